"""The Faust app: three agents that hand their records over and decide nothing.

Faust acknowledges what an agent was given, whatever came of it: also when the agent raised, and
when it was cancelled. So an agent here returns to Faust only when all is on Kafka; a failure is
told to the process, which ends, and the agent never returns.
"""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Final, TypeVar

import faust
from faust.types import TP
from faust.types.auth import CredentialsT
from mode import CrashingSupervisor

from streams.kafka.access import KafkaAccess, ssl_context
from streams.kafka.derived import Derived
from streams.kafka.read import Read

SESSION_SECONDS: Final = 10.0
"""How long a killed worker holds its partitions; 60 by default."""
HEARTBEAT_SECONDS: Final = 3.0
TAKE_MAX: Final = 1000
"""Records that are worked off at once: more make fewer values, each with all that came for it."""
TAKE_SECONDS: Final = 0.05


T = TypeVar("T")


class Halt:
    """Where an agent says what went wrong. The process is to end then, by `os._exit`."""

    def __init__(self) -> None:
        self.wrong: Exception | None = None
        self.said = asyncio.Event()

    async def unless(self, work: Awaitable[T]) -> T:
        """What `work` gives. If it raises, this says so and never returns, unless cancelled."""
        try:
            return await work
        except Exception as wrong:
            self.wrong = self.wrong or wrong
            self.said.set()
            await asyncio.Event().wait()
            raise


def make_app(access: KafkaAccess, folds: list[Derived], halt: Halt, directory: Path) -> faust.App:
    """The app with an agent for each of `folds`; Faust keeps its files in `directory`."""
    app = faust.App(
        access.group("worker"),
        broker=[f"kafka://{address}" for address in access.bootstrap],
        broker_credentials=_credentials(access),
        broker_client_id=f"{access.prefix}-worker",
        datadir=directory,
        store="memory://",
        web_enabled=False,
        processing_guarantee="at_least_once",
        stream_wait_empty=True,
        stream_buffer_maxsize=4096,
        agent_supervisor=CrashingSupervisor,
        consumer_auto_offset_reset="earliest",
        broker_commit_interval=1.0,
        broker_commit_every=10_000,
        broker_session_timeout=SESSION_SECONDS,
        broker_heartbeat_interval=HEARTBEAT_SECONDS,
        broker_request_timeout=30.0,
        producer_acks=-1,
        producer_request_timeout=30.0,
        topic_allow_declare=False,
        topic_disable_leader=True,
        table_standby_replicas=0,
        worker_redirect_stdouts=False,
    )
    for fold in folds:
        _add_agent(app, access.topic(fold.fold.source), fold, halt)
    return app


def _add_agent(app: faust.App, topic: str, fold: Derived, halt: Halt) -> None:
    channel = app.topic(topic, key_serializer="raw", value_serializer="raw")

    @app.agent(channel, name=f"agent.{topic}", concurrency=1)
    async def work(stream: Any) -> None:
        async for events in stream.take_events(TAKE_MAX, within=TAKE_SECONDS):
            gaps = await halt.unless(fold.take([_read(event.message) for event in events]))
            for partition, offset in gaps.items():
                await app.consumer.seek(TP(topic, partition), offset)


def _read(message: Any) -> Read:
    headers = message.headers
    return Read(
        message.partition,
        message.offset,
        message.key,
        message.value,
        tuple(headers.items() if isinstance(headers, dict) else headers or ()),
        round(message.timestamp * 1000),
    )


def _credentials(access: KafkaAccess) -> CredentialsT | None:
    context = ssl_context(access)
    if access.security.startswith("sasl"):
        return faust.SASLCredentials(
            username=access.username,
            password=access.password,
            mechanism=access.sasl_mechanism,
            ssl_context=context,
        )
    return None if context is None else faust.SSLCredentials(context)

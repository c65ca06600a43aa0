"""A gateway whose keys come from Kafka: known at once, refused once revoked, and served from the
snapshot while Kafka is away."""

import asyncio
import hashlib
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.cli.keys import issue
from ledger.clock import SystemClock
from ledger.events import BackendObserved, payload_of
from ledger.folds.book import Key
from ledger.folds.book_entries import key_entry
from ledger.folds.routing import view_of
from streams.kafka.access import KafkaAccess
from streams.kafka.feed import REGISTRY
from streams.kafka.read import latest_values, read_to_end
from streams.kafka.records import event_of
from streams.kafka.registry import KafkaRegistry
from tests.gateway.doors import SOON_SECONDS, backend, door
from tests.streams.worker_house import working
from tests.support import processes
from tests.support.derived import put
from tests.support.processes import Answer, Gateway, call, chat, wait_until

pytestmark = pytest.mark.e2e

AWAY = "127.0.0.1:9"
ISSUED = datetime(2026, 11, 1, tzinfo=UTC)


def key(key_id: str, version: int = 1, revoked_at: datetime | None = None) -> dict[str, bytes]:
    """The entry of a key whose secret is its id."""
    made = Key(
        key_id=key_id,
        version=version,
        hash=hashlib.sha256(key_id.encode()).hexdigest(),
        issued_at=ISSUED,
        revoked_at=revoked_at,
    )
    return dict([key_entry(made)])


def kafka_table(access: KafkaAccess, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap": list(access.bootstrap),
        "prefix": access.prefix,
        "partitions": access.partitions,
        "replication": 1,
    } | more


def health(gateway: Gateway) -> tuple[int, Any]:
    answer = call(f"{gateway.url}/health/ready", timeout=5)
    return answer.status, answer.json()


def code_of(answer: Answer) -> str | None:
    code: str | None = answer.json().get("error", {}).get("code")
    return code


def test_keys_come_from_kafka_and_outlive_it(kafka: KafkaAccess, tmp_path: Path) -> None:
    asyncio.run(put(kafka, REGISTRY, key("key-1") | key("key-2")))
    with processes.backend(tmp_path, models="fake") as one:
        backends = [backend(one.url, "one")]
        with door(tmp_path, backends, kafka=kafka_table(kafka)) as gateway:
            status, said = health(gateway)
            assert status == 200 and "notes" not in said
            assert chat(gateway.url, "key-1").status == chat(gateway.url, "key-2").status == 200
            assert chat(gateway.url, "key-3").status == 401
            asyncio.run(put(kafka, REGISTRY, key("key-1", 2, ISSUED) | key("key-3")))
            wait_until(
                "key-3 opens", lambda: chat(gateway.url, "key-3").status == 200, SOON_SECONDS
            )
            wait_until(
                "key-1 is refused",
                lambda: code_of(chat(gateway.url, "key-1")) == "revoked_api_key",
                SOON_SECONDS,
            )
        with door(tmp_path, backends, kafka=kafka_table(kafka, bootstrap=[AWAY])) as gateway:
            status, said = health(gateway)
            assert status == 200
            assert "keys are as they were" in said["notes"][0] and AWAY in said["notes"][0]
            assert chat(gateway.url, "key-2").status == chat(gateway.url, "key-3").status == 200
            assert code_of(chat(gateway.url, "key-1")) == "revoked_api_key"
            metrics = call(f"{gateway.url}/metrics").body.decode()
            assert "tollbook_feed_live 0.0" in metrics and "tollbook_feed_age_seconds" in metrics


def test_without_kafka_and_without_a_snapshot_it_says_what_it_waits_for(
    kafka: KafkaAccess, tmp_path: Path
) -> None:
    table = kafka_table(kafka, bootstrap=[AWAY])
    with (
        processes.backend(tmp_path, models="fake") as one,
        door(tmp_path, [backend(one.url, "one")], ready=False, kafka=table) as gateway,
    ):

        def waits() -> bool:
            try:
                status, said = health(gateway)
            except OSError:
                return False
            return status == 503 and "cannot be reached" in said["waiting_for"][0]

        wait_until("it says what it waits for", waits, SOON_SECONDS)
        answer = chat(gateway.url, "key-1")
        assert (answer.status, code_of(answer)) == (503, "registry_unavailable")


def test_what_it_sees_of_backends_goes_to_kafka(kafka: KafkaAccess, tmp_path: Path) -> None:
    asyncio.run(put(kafka, REGISTRY, key("key-1")))

    async def observed() -> list[BackendObserved]:
        found = []
        async for read in read_to_end(kafka, "backends", "test"):
            said = payload_of(event_of(read.headers, read.value))
            assert isinstance(said, BackendObserved)
            found.append(said)
        return found

    with processes.backend(tmp_path, models="fake") as one:
        backends = [backend(one.url, "one")]
        with door(tmp_path, backends, kafka=kafka_table(kafka)) as gateway:
            assert chat(gateway.url, "key-1").status == 200
            wait_until(
                "the request is seen in a view",
                lambda: any(said.requests == 1 for said in asyncio.run(observed())),
                SOON_SECONDS * 3,
            )
            one.stop()
            wait_until(
                "the others hear that it is down",
                lambda: any(not said.up and said.fault for said in asyncio.run(observed())),
                SOON_SECONDS * 3,
            )
            last = asyncio.run(observed())[-1]
    assert (last.backend_id, last.gateway) == ("one", "gateway")
    assert msgspec.structs.asdict(last)["failures"] == 0


def test_one_gateway_cut_off_from_a_backend_does_not_take_it_from_the_others(
    kafka: KafkaAccess, tmp_path: Path
) -> None:
    registry = KafkaRegistry(kafka, "/cli/test/1", clock=SystemClock())
    registry.append(lambda _: issue("key-1", "key-1", None, ISSUED))
    with working(kafka), processes.backend(tmp_path, models="fake") as one, ExitStack() as stack:
        gateways = []
        for name, url in (("cut-off", f"http://{AWAY}"), ("two", one.url), ("three", one.url)):
            folder = tmp_path / name
            folder.mkdir()
            said = [backend(url, "one", models=["fake"])]
            table = kafka_table(kafka)
            one_door = door(folder, said, gateway={"name": name}, kafka=table)
            gateways.append(stack.enter_context(one_door))

        def views() -> dict[str, bool]:
            found = asyncio.run(latest_values(kafka, "routing-state", "test"))
            return {view.gateway: view.up for view in map(view_of, found.values())}

        def all_said() -> bool:
            return views() == {"cut-off": False, "two": True, "three": True}

        wait_until("all three have said what they see", all_said, SOON_SECONDS * 3)
        for gateway in gateways[1:]:
            wait_until("key-1 opens", lambda door=gateway: chat(door.url, "key-1").status != 401)
            assert chat(gateway.url, "key-1").status == 200
            assert health(gateway)[1]["backends"] == {"one": "up"}
        assert chat(gateways[0].url, "key-1").status == 502
        wait_until("all three still see it so", all_said, SOON_SECONDS)

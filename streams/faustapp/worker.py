"""One worker process: starts the app, watches it, and ends it in order or at once."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from faust.types import TP

from ledger.clock import Clock
from ledger.errors import LedgerError
from streams.errors import KafkaError, StreamsError, StreamStopped, TopicsWrong
from streams.faustapp.app import SESSION_SECONDS, Halt, make_app
from streams.kafka.access import KafkaAccess
from streams.kafka.admin import check_topics
from streams.kafka.derived import FOLDS, Derived
from streams.kafka.read import hush

TICK_SECONDS: Final = 1.0
PAUSE_SECONDS_MAX: Final = SESSION_SECONDS * 0.8
STOP_SECONDS_MAX: Final = 30.0
RETRY_SECONDS_MAX: Final = 10.0
STALL_SECONDS_MAX: Final = 120.0
EXIT_FAILED: Final = 1

Say = Callable[[str], None]


def run_worker(access: KafkaAccess, *, clock: Clock, say: Say) -> int:
    """Work until SIGTERM or SIGINT; returns 0 then.

    With Kafka away at the start it waits. Raises `TopicsWrong` for topics that are not as they
    should be. After a failure later on the process goes without a word to Faust, which acknowledges
    what it has in hand when it is stopped in order: after trouble with brokers it begins again
    under the same process number, else it ends with code 1 and words. What is on Kafka is right in
    both cases, and the next start goes on from it.
    """
    _quiet()
    with tempfile.TemporaryDirectory(prefix="tollbook-worker-") as directory:
        return asyncio.run(_work(access, Path(directory), clock, say))


async def _work(access: KafkaAccess, directory: Path, clock: Clock, say: Say) -> int:
    # Within the loop, because Faust's parts belong to the loop in which they are made.
    return await _Worker(access, directory, clock, say).run()


class _Worker:
    """The parts of one worker at work."""

    def __init__(self, access: KafkaAccess, directory: Path, clock: Clock, say: Say) -> None:
        self._access = access
        self._directory = directory
        self._clock = clock
        self._say = say
        self._stop = asyncio.Event()
        self._halt = Halt()
        self._folds = [
            Derived(access, fold, clock=clock, pause_max=PAUSE_SECONDS_MAX) for fold in FOLDS
        ]
        self._app = make_app(access, self._folds, self._halt, directory)
        self._generation = 0
        self._moved = clock.monotonic()
        self._before: dict[TP, int] = {}

    async def run(self) -> int:
        """Work until a signal. Never returns after a failure."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        if not await self._kafka_is_there():
            return 0
        try:
            for fold in self._folds:
                await fold.start()
            self._app.on_partitions_revoked.connect(self._revoked)
            ticking = asyncio.create_task(self._tick())
            starting = asyncio.create_task(self._app.start())
            while not self._stop.is_set():
                await self._look(starting)
            ticking.cancel()
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await starting
                await self._app.stop()
                for fold in self._folds:
                    await fold.stop()
        except Exception as wrong:
            self._die(wrong)
            raise
        return 0

    async def _tick(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await self._halt.unless(self._say_alive())
                await asyncio.sleep(TICK_SECONDS)

    async def _say_alive(self) -> None:
        for fold in self._folds:
            fold.tick()

    async def _kafka_is_there(self) -> bool:
        """Wait for a broker; false if a signal came first. Raises `TopicsWrong`."""
        pause = 1.0
        said = False
        while not self._stop.is_set():
            try:
                await check_topics(self._access)
                return True
            except TopicsWrong:
                raise
            except KafkaError as wrong:
                if not said:
                    self._say(f"{wrong}; trying again until it is there")
                said = True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause)
            pause = min(2 * pause, RETRY_SECONDS_MAX)
        return False

    async def _look(self, starting: asyncio.Task[None]) -> None:
        """Once a second: raise what went wrong anywhere, and see to it that work moves on."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._halt.said.wait(), TICK_SECONDS)
        if self._halt.wrong is not None:
            raise self._halt.wrong
        if starting.done():
            await starting
        if self._app.crashed:
            raise KafkaError(f"Faust gave up: {self._app.crash_reason or 'it says no reason'}")
        generation = self._app.consumer_generation_id
        if starting.done() and not self._app.rebalancing and generation != self._generation:
            await self._seek()
            if not self._generation:
                self._say("ready")
            self._generation = generation
        self._must_move()

    async def _seek(self) -> None:
        """Fetch from where the derived topics end, whatever the group has committed."""
        for fold in self._folds:
            topic = self._access.topic(fold.fold.source)
            assigned = [tp for tp in self._app.consumer.assignment() if tp.topic == topic]
            for partition, offset in (await fold.place([tp.partition for tp in assigned])).items():
                await self._app.consumer.seek(TP(topic, partition), offset)

    def _must_move(self) -> None:
        """Raise `StreamStopped` if records wait and none was worked off for a long time."""
        now = self._clock.monotonic()
        places = {
            TP(self._access.topic(fold.fold.source), number): offset
            for fold in self._folds
            for number, offset in fold.positions().items()
        }
        waiting = [
            tp
            for tp, offset in places.items()
            if tp in self._app.consumer.assignment()
            and (self._app.consumer.highwater(tp) or 0) > offset
        ]
        if not waiting or places != self._before:
            self._before, self._moved = places, now
        if now - self._moved > STALL_SECONDS_MAX:
            names = ", ".join(f"{tp.topic}/{tp.partition}" for tp in waiting)
            raise KafkaError(
                f"records wait in {names}, and none was worked off for {STALL_SECONDS_MAX:.0f} s"
            )

    async def _revoked(self, *said: Any, **_: Any) -> None:
        revoked: Iterable[TP] = said[-1]
        for fold in self._folds:
            topic = self._access.topic(fold.fold.source)
            fold.forget([tp.partition for tp in revoked if tp.topic == topic])

    def _die(self, wrong: Exception) -> None:
        """End this process without another word to Faust. Trouble with brokers passes, so the
        process begins anew under the same number; everything else is for a person."""
        code = EXIT_FAILED
        if self._stop.is_set():
            # What is on Kafka is right, only the group has not been told how far it is.
            self._say("stopped without an answer from Kafka")
            code = 0
        elif isinstance(wrong, StreamsError | LedgerError):
            self._say(str(wrong))
        else:
            traceback.print_exception(wrong)
        sys.stderr.flush()
        shutil.rmtree(self._directory, ignore_errors=True)
        if code and isinstance(wrong, KafkaError) and not isinstance(wrong, StreamStopped):
            self._say("starting again")
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        os._exit(code)


def _quiet() -> None:
    """Faust and its client say on every rebalance what is no news; what matters is said by us."""
    hush()
    for name in ("faust", "mode"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    warnings.simplefilter("ignore")

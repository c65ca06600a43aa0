"""The process `tollbook relay`: one per data directory, until it is told to stop or is orphaned.

Kafka being away is no reason to end: it goes on trying for ever, says so once, and tells the
gateway through the status file.
"""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from ledger.clock import SystemClock
from streams.errors import KafkaError, StreamsError
from streams.kafka.access import KafkaAccess
from streams.kafka.admin import check_topics
from streams.kafka.read import hush
from streams.kafka.relay.said import Trouble
from streams.kafka.relay.status import write_status
from streams.kafka.relay.window import WindowSender
from streams.kafka.relay.work import Relay
from streams.local.layout import Layout
from streams.local.process import (
    TROUBLE_PAUSE_SECONDS_MAX,
    Say,
    Stop,
    alone,
    speaker,
)
from streams.local.retention import KEEP_BYTES
from streams.log.spool import Durability

PAUSE_SECONDS: Final = 0.05
"""Between two rounds that had nothing to do: an answer is on Kafka this much later."""

BUSY_PAUSE_SECONDS: Final = 0.01
"""After a round that moved something: what comes meanwhile shares one window."""

LOOK_SECONDS: Final = 0.1
"""How often a round that is at work is asked whether it is still wanted."""

STATUS_SECONDS: Final = 1.0
LAST_ROUND_SECONDS_MAX: Final = 15.0
"""At the end what is left is sent within this time, or left to the next relay."""
AWAY_SECONDS_MAX: Final = 2.0
"""The same where Kafka was away already."""


class Halt(Exception):
    """The process was told to stop while a round was at work."""


def relay_forever(
    data: Path,
    access: KafkaAccess,
    *,
    keep_bytes: int = KEEP_BYTES,
    durability: Durability = "process",
    stop_on_stdin_eof: bool = False,
    name: str = "relay",
) -> int:
    """Be the relay of `data` until SIGTERM, Ctrl-C, or the end of standard input if so asked.

    Waits while another relay or runner is at work. Returns the exit code: 0 for an orderly end, 1
    if something is left for the next relay.
    """
    hush()
    say = speaker("relay")
    layout = Layout(data)
    with alone(layout, say, watch_stdin=stop_on_stdin_eof) as stop:
        if stop is None:
            return 0
        work = _work(layout, access, keep_bytes, durability, name, say, stop)
        return asyncio.run(work)


async def _work(
    layout: Layout,
    access: KafkaAccess,
    keep_bytes: int,
    durability: Durability,
    name: str,
    say: Say,
    stop: Stop,
) -> int:
    trouble = Trouble(say)
    sender = WindowSender(access, trouble)
    relay = Relay(
        layout,
        access,
        sender,
        SystemClock(),
        say=say,
        name=name,
        keep_bytes=keep_bytes,
        durability=durability,
    )
    reporter = asyncio.create_task(_report(layout.root, relay, trouble, say))
    try:
        await _check(access, trouble, stop)
        await _rounds(relay, trouble, say, stop)
        seconds = LAST_ROUND_SECONDS_MAX if trouble.fault is None else AWAY_SECONDS_MAX
        return await _end(relay, say, seconds)
    finally:
        reporter.cancel()
        await asyncio.gather(reporter, return_exceptions=True)
        await sender.close()


async def _check(access: KafkaAccess, trouble: Trouble, stop: Stop) -> None:
    """Wait until the topics are there and as they must be."""
    pause = PAUSE_SECONDS
    while not stop.asked and not stop.parent_gone:
        try:
            await _unless_stopped(check_topics(access), stop)
            return
        except KafkaError as wrong:
            trouble.say(str(wrong))
        except Halt:
            return
        pause = min(2 * pause, TROUBLE_PAUSE_SECONDS_MAX)
        await _sleep(pause, stop)


async def _rounds(relay: Relay, trouble: Trouble, say: Say, stop: Stop) -> None:
    """Round after round until told to stop, or until the parent and all other writers are gone."""
    pause = trouble_pause = PAUSE_SECONDS
    while not stop.asked:
        try:
            moved = await _unless_stopped(relay.step(), stop)
            if stop.parent_gone and not relay.live():
                return
            pause = BUSY_PAUSE_SECONDS if moved else PAUSE_SECONDS
            trouble_pause = PAUSE_SECONDS
        except Halt:
            return
        except (StreamsError, OSError) as wrong:
            if stop.parent_gone:
                # An orphan that cannot go on must not keep the next gateway's relay from its lock.
                return
            if isinstance(wrong, KafkaError):
                trouble.say(str(wrong))
            else:
                say(f"{wrong}; trying again, the spools keep everything meanwhile")
            trouble_pause = pause = min(2 * trouble_pause, TROUBLE_PAUSE_SECONDS_MAX)
        await _sleep(pause, stop)


async def _end(relay: Relay, say: Say, seconds: float) -> int:
    try:
        async with asyncio.timeout(seconds):
            await relay.catch_up()
            await relay.close()
    except TimeoutError:
        say("Kafka takes nothing; what is left is sent by the next relay")
        return 1
    except (StreamsError, OSError) as wrong:
        say(f"{wrong}; what is left is sent by the next relay")
        return 1
    return 0


async def _unless_stopped(work: Coroutine[Any, Any, bool | None], stop: Stop) -> bool:
    """Do `work`; raises `Halt` if it is not done soon after the process was told to stop."""
    task = asyncio.create_task(work)
    halted = False
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=LOOK_SECONDS)
            stop.wait(0)
            if (stop.asked or stop.parent_gone) and not task.done():
                await asyncio.wait({task}, timeout=LAST_ROUND_SECONDS_MAX / 3)
                break
    finally:
        if not task.done():
            halted = True
            task.cancel()
            await asyncio.wait({task})
    if task.cancelled() and halted:
        raise Halt
    if task.cancelled():
        # The client awaits requests of its own that it has cancelled, when a broker goes away.
        raise KafkaError("Kafka went away in the middle of a request")
    return bool(task.result())


async def _sleep(seconds: float, stop: Stop) -> None:
    """Sleep, but not much past the moment when the process is told to stop."""
    end = asyncio.get_running_loop().time() + seconds
    while not stop.asked:
        stop.wait(0)
        left = end - asyncio.get_running_loop().time()
        if left <= 0 or stop.parent_gone:
            await asyncio.sleep(max(0.0, min(left, PAUSE_SECONDS)))
            return
        await asyncio.sleep(min(left, LOOK_SECONDS))


async def _report(data: Path, relay: Relay, trouble: Trouble, say: Say) -> None:
    """Keep the status file true, for the gateway's metrics."""
    told = False
    while True:
        try:
            write_status(data, relay.status(trouble.fault))
            told = False
        except OSError as wrong:
            if not told:
                say(f"the status file cannot be written: {wrong}")
            told = True
        await asyncio.sleep(STATUS_SECONDS)

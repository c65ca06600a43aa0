"""The process `tollbook write`: one writer, from its start to its exit code."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ledger.clock import SystemClock
from streams.kafka.access import KafkaAccess
from streams.kafka.writer import KafkaWriter, WriterOptions

EXIT_STALLED: Final = 1


def say(words: str) -> None:
    """One line on standard error. A parent that no longer reads it must not stop the books."""
    with contextlib.suppress(OSError, ValueError):
        print(f"tollbook write: {words}", file=sys.stderr, flush=True)


def run_forever(
    access: KafkaAccess,
    target: Path | str,
    options: WriterOptions,
    watch: Callable[[KafkaWriter], None] = lambda _: None,
) -> int:
    """Write until SIGTERM or Ctrl-C. `watch` gets the writer before it starts.

    Returns 0. Raises `StreamStopped` and `TopicsWrong` with words. A process that stands still
    ends itself with `EXIT_STALLED`.
    """

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        writer = KafkaWriter(access, target, SystemClock(), say, _leave, options)
        watch(writer)
        say(f"taking topics {access.prefix}.* of Kafka at {access.where} into the ledger")
        await writer.run(stop)

    asyncio.run(run())
    return 0


def _leave(words: str) -> None:
    """End at once: whatever hangs would hang in an orderly end too."""
    say(words)
    os._exit(EXIT_STALLED)

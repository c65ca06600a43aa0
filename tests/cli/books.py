"""A real data directory as a gateway leaves it, and the commands run over it in this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from click.testing import CliRunner, Result

from gateway.cli.main import main
from ledger.clock import SystemClock
from ledger.events import Draft
from ledger.identity import mint_id
from streams.local.layout import Layout
from streams.log.spool import SpoolWriter

RESERVE_BYTES = 1 << 16
LIMIT_BYTES = 1 << 24


def run(*args: str) -> Result:
    """One command line. What it prints is in `stdout` and `stderr`; a bug keeps its traceback."""
    result = CliRunner().invoke(main, args, prog_name="tollbook")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def run_json(*args: str) -> Any:
    """What a command that ends well prints under `--json`."""
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output
    return msgspec.json.decode(result.stdout)


@contextmanager
def living_spool(data: Path, *drafts: Draft) -> Iterator[SpoolWriter]:
    """A gateway's spool with `drafts`; its writer lives until the end of the block."""
    layout = Layout(data)
    layout.make()
    incarnation = mint_id()
    writer = SpoolWriter.create(
        layout.spool(incarnation),
        f"/gateway/test/{incarnation}",
        clock=SystemClock(),
        limit_bytes=LIMIT_BYTES,
        reserve_bytes=RESERVE_BYTES,
    )
    try:
        for draft in drafts:
            writer.append(draft)
        yield writer
    finally:
        writer.close()


def dead_spool(data: Path, *drafts: Draft) -> Path:
    """A spool whose writer died after `drafts`; the directory."""
    with living_spool(data, *drafts) as writer:
        return writer.directory

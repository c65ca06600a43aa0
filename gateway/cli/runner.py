"""`tollbook runner`: the process that takes spools into the ledger. The gateway starts it."""

from pathlib import Path
from typing import Literal

import click

from gateway.cli.options import data_option
from gateway.setting_values import MIB


@click.command("runner", hidden=True)
@data_option
@click.option("--keep-bytes", type=click.IntRange(0), default=256 * MIB, show_default=True)
@click.option("--durability", type=click.Choice(["process", "power"]), default="process")
@click.option("--name", default="runner", show_default=True)
@click.option("--ledger", metavar="URL")
@click.option("--stop-on-stdin-eof", is_flag=True)
def command(
    data: Path,
    keep_bytes: int,
    durability: Literal["process", "power"],
    name: str,
    ledger: str | None,
    stop_on_stdin_eof: bool,
) -> int:
    """Take spools and registry into the ledger until SIGTERM. One per data directory works; a
    second one waits for it to end."""
    from gateway.cli.data import for_writing
    from gateway.settings import LedgerSettings, ledger_url_of
    from streams.local.runner import run_forever

    return run_forever(
        for_writing(data),
        keep_bytes=keep_bytes,
        durability=durability,
        stop_on_stdin_eof=stop_on_stdin_eof,
        name=name,
        ledger=ledger_url_of(LedgerSettings(url=ledger)),
    )

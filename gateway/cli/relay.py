"""`tollbook relay`: the process that takes spools to Kafka. The gateway starts it."""

import sys
from pathlib import Path

import click

from gateway.cli.place import place_of, server_options


@click.command("relay", hidden=True)
@server_options
@click.option("--settings-on-stdin", is_flag=True, help="The first line there is all settings.")
@click.option("--stop-on-stdin-eof", is_flag=True)
def command(
    data: Path,
    config: Path | None,
    kafka: str | None,
    ledger: str | None,
    settings_on_stdin: bool,
    stop_on_stdin_eof: bool,
) -> int:
    """Take spools to Kafka until SIGTERM. One per data directory works; a second one waits for it
    to end."""
    import msgspec

    from gateway.cli.data import for_writing
    from gateway.cli.place import Place
    from gateway.settings import Settings
    from gateway.supervisor.line import read_line
    from streams.kafka.relay.process import relay_forever

    if settings_on_stdin:
        settings = msgspec.json.decode(read_line(sys.stdin.fileno()), type=Settings)
        place = Place(data, settings)
    else:
        place = place_of(data, config, kafka, ledger)
    spool = place.settings.spool
    return relay_forever(
        for_writing(data),
        place.need_kafka(),
        keep_bytes=spool.keep_bytes,
        durability=spool.durability,
        stop_on_stdin_eof=stop_on_stdin_eof,
        name=place.settings.gateway.name,
    )

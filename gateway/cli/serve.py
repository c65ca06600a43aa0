"""`tollbook serve`: flags over the configuration file, then the gateway until it is stopped."""

from pathlib import Path
from typing import Literal

import click
import msgspec

from gateway.cli.backend_known import registry_or_none
from gateway.cli.data import for_writing, refuse_relayed
from gateway.cli.failure import Stop
from gateway.cli.options import NAMES
from gateway.cli.place import Place, place_of, server_options
from gateway.secrets import put_secret
from gateway.setting_values import check_secret
from gateway.settings import BackendSettings, Settings, SettingsError
from ledger.words import counted


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed; null is what was not, and leaves the file's value or the default."""

    backends: tuple[str, ...] = ()
    models: tuple[str, ...] | None = None
    host: str | None = None
    port: int | None = None
    workers: int | None = None
    durability: Literal["process", "power"] | None = None


@click.command("serve", short_help="Serve the OpenAI-compatible door.")
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="URL",
    help="A model server, with or without /v1. Takes the place of those in the file.",
)
@click.option(
    "--backend-key",
    "keys",
    multiple=True,
    metavar="KEY",
    help="The servers' key, or where it is (env:NAME, file:PATH): one for all, or one for each "
    "--backend in its order. A key itself is kept in a file of the data directory.",
)
@click.option(
    "--models", type=NAMES, metavar="A,B", help="Models that are served; '*' passes any name on."
)
@click.option("--host", metavar="ADDRESS", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Port; 0: a free one.")
@click.option("--workers", type=click.IntRange(1, 256), metavar="N", help="Serving processes.")
@click.option(
    "--durability",
    type=click.Choice(["process", "power"]),
    help="What a write survives: the end of any process, or also a power cut.",
)
@server_options
def command(
    backends: tuple[str, ...],
    keys: tuple[str, ...],
    models: tuple[str, ...] | None,
    host: str | None,
    port: int | None,
    workers: int | None,
    durability: Literal["process", "power"] | None,
    data: Path,
    config: Path | None,
    kafka: str | None,
    ledger: str | None,
) -> int:
    """Serve the OpenAI-compatible door until SIGTERM or Ctrl-C. With --backend, the configuration
    file of the working directory is not read."""
    place = place_of(data, config, kafka, ledger, here=not backends)
    flags = Flags(
        backends=backends,
        models=models,
        host=host,
        port=port,
        workers=workers,
        durability=durability,
    )
    settings = with_flags(place.settings, flags)
    if not settings.backends and not has_backends(place):
        raise click.UsageError(
            "no backend is given; give --backend URL, write [[backends]] into a tollbook.toml "
            "(`tollbook init` makes one), or run `tollbook backends add` first"
        )
    if settings.kafka.bootstrap:
        refuse_embedded(data)
    elif data.exists():
        refuse_relayed(data)
    settings = with_keys(settings, keys, for_writing(data))
    from gateway.wiring import serve

    return serve(settings, data)


def has_backends(place: Place) -> bool:
    """True if the registry may have a backend; that on Kafka is not asked, since a gateway starts
    with Kafka away too."""
    if not place.embedded:
        return True
    return any(one.removed_at is None for one in registry_or_none(place).backends.values())


def refuse_embedded(data: Path) -> None:
    """Raises `Stop` if `data` has keys or prices of its own: it was served without Kafka.

    What its spools still hold is in its own ledger, and must not count in a second one too.
    """
    from streams.local.layout import Layout

    log = Layout(data).registry_log
    if log.exists() and log.stat().st_size > 0:
        raise Stop(
            f"{data} was served without Kafka: its keys, prices and books are its own. Carry them "
            "over by `tollbook move --to-kafka`, then start with another --data, which is new; or "
            "start this one without --kafka"
        )


def with_flags(settings: Settings, flags: Flags) -> Settings:
    """`settings` with what was typed put over them. Pure. Raises `SettingsError`."""
    typed = {
        "host": flags.host,
        "port": flags.port,
        "workers": flags.workers,
        "models": flags.models,
    }
    gateway = msgspec.structs.replace(
        settings.gateway, **{name: value for name, value in typed.items() if value is not None}
    )
    spool = settings.spool
    if flags.durability is not None:
        spool = msgspec.structs.replace(spool, durability=flags.durability)
    backends = settings.backends
    if flags.backends:
        backends = tuple(BackendSettings(url=url) for url in dict.fromkeys(flags.backends))
    return msgspec.structs.replace(settings, gateway=gateway, spool=spool, backends=backends)


def with_keys(settings: Settings, keys: tuple[str, ...], data: Path) -> Settings:
    """`settings` whose backends refer to the typed `keys`, which are put away in `data`.

    One key is for every backend; else there are as many as backends. Raises `SettingsError`.
    """
    if not keys:
        return settings
    if len(keys) not in (1, len(settings.backends)):
        raise click.UsageError(
            f"{counted(len(keys), 'backend key')} for "
            f"{counted(len(settings.backends), 'backend')}; "
            "give one for all, or one for each"
        )
    each = keys if len(keys) > 1 else keys * len(settings.backends)
    backends = tuple(
        msgspec.structs.replace(backend, key=_reference(backend, key, data))
        for backend, key in zip(settings.backends, each, strict=True)
    )
    return msgspec.structs.replace(settings, backends=backends)


def _reference(backend: BackendSettings, key: str, data: Path) -> str:
    try:
        return msgspec.structs.replace(backend, key=key).key or key
    except SettingsError:
        if key.startswith(("env:", "file:")):
            raise
        # It is no reference, so it is the key itself, whatever it looks like.
        secret = check_secret(key, "--backend-key").encode()
        return f"file:{put_secret(data, f'{backend.id}.key', secret).absolute()}"

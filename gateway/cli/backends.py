"""`tollbook backends`: model servers added, changed, drained and removed while gateways run."""

from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import click
import msgspec

from gateway.cli import backend_drain, backend_probe, backend_shift
from gateway.cli.backend_facts import (
    Said,
    backend_json,
    backends_table,
    changed,
    registered,
    removed,
)
from gateway.cli.backend_known import everything, is_known, no_such, registry_or_none
from gateway.cli.data import change_registry, make_ready
from gateway.cli.failure import Stop
from gateway.cli.options import NAMES, json_option
from gateway.cli.output import json_text, show
from gateway.cli.place import Place, place_option
from gateway.setting_values import check_name
from gateway.settings import BackendSettings
from ledger.clock import SystemClock
from ledger.folds.book import WEIGHT_MAX, Book

ENGINES: Final = ("auto", "vllm", "sglang", "llamacpp", "openai")
WEIGHT: Final = click.IntRange(0, WEIGHT_MAX)

_ABOUT: Final = {
    "--url": "Address of the server, with or without /v1.",
    "--key": "Where each gateway finds the server's key: env:NAME or file:PATH.",
    "--engine": "Which server it is; auto asks it.",
    "--models": "Its models. Default: what it lists; '*': any name is passed on.",
    "--weight": "Its part of new requests, in percent of what it would get with 100.",
}


@click.group("backends", no_args_is_help=True)
def command() -> None:
    """Model servers, added, changed and removed without a restart of any gateway.

    What is said here of a backend stands over what a configuration file says of the same name.
    """


@command.command("add")
@click.argument("name")
@click.option("--url", metavar="URL", help=f"{_ABOUT['--url']} Not given: as configured.")
@click.option("--key", metavar="REF", help=_ABOUT["--key"])
@click.option("--engine", type=click.Choice(ENGINES), default="auto", help=_ABOUT["--engine"])
@click.option("--models", type=NAMES, metavar="A,B", help=_ABOUT["--models"])
@click.option("--weight", type=WEIGHT, default=WEIGHT_MAX, metavar="N", help=_ABOUT["--weight"])
@place_option
@json_option
def add(
    name: str,
    url: str | None,
    key: str | None,
    engine: Literal["auto", "vllm", "sglang", "llamacpp", "openai"],
    models: tuple[str, ...] | None,
    weight: int,
    place: Place,
    as_json: bool,
) -> None:
    """Add the backend NAME. Running gateways ask it for its models within a second, and send it
    requests once it has answered."""
    check_name("name", name)
    said = Said(url=None, key=None, engine=engine, models=models or (), weight=weight)
    if url is not None:
        said = _checked(name, msgspec.structs.replace(said, url=url, key=key))
    elif key is not None or models or engine != "auto":
        raise click.UsageError("key, engine and models belong to an address; give it by --url URL")
    elif not is_known(place, name):
        raise click.UsageError(f"no address is given for {name}; give it by --url URL")
    now = SystemClock().now()
    _tell(
        change_registry(make_ready(place), lambda book: registered(book, name, said, now)),
        place,
        name,
        as_json,
    )


@command.command("set")
@click.argument("name")
@click.option("--url", metavar="URL", help=_ABOUT["--url"])
@click.option("--key", metavar="REF", help=f"{_ABOUT['--key']} An empty text: it has none.")
@click.option("--engine", type=click.Choice(ENGINES), help=_ABOUT["--engine"])
@click.option("--models", type=NAMES, metavar="A,B", help="Its models; '*': any name is passed on.")
@click.option("--weight", type=WEIGHT, metavar="N", help=_ABOUT["--weight"])
@place_option
@json_option
def set_backend(
    name: str,
    url: str | None,
    key: str | None,
    engine: Literal["auto", "vllm", "sglang", "llamacpp", "openai"] | None,
    models: tuple[str, ...] | None,
    weight: int | None,
    place: Place,
    as_json: bool,
) -> None:
    """Change the backend NAME; what is not given stays. Requests that run are not touched.

    Of a backend in gateways' configuration files only --weight can be changed here.
    """
    given: dict[str, Any] = {
        "url": url,
        "key": key,
        "engine": engine,
        "models": models,
        "weight": weight,
    }
    said = Said(**{field: value for field, value in given.items() if value is not None})
    if said == Said():
        raise click.UsageError("nothing is changed; give at least one of the options")
    if key == "":
        said = msgspec.structs.replace(said, key=None)
    book = _change(place, name, said)
    _tell(book, place, name, as_json)


@command.command("list")
@place_option
@json_option
def list_backends(place: Place, as_json: bool) -> None:
    """List the backends, where each is known from, and what gateways that run see of it."""
    backends = everything(place, registry_or_none(place))
    if as_json:
        click.echo(json_text({"backends": [backend_json(one) for one in backends]}))
    else:
        show(
            backends_table(backends), empty="no backend yet; `tollbook backends add` registers one"
        )


command.add_command(backend_drain.command)
command.add_command(backend_shift.command)
command.add_command(backend_probe.command)


@command.command("undrain")
@click.argument("name")
@place_option
@json_option
def undrain(name: str, place: Place, as_json: bool) -> None:
    """Let the backend NAME have new requests again."""
    book = registry_or_none(place)
    server = book.backends.get(name)
    if server is None or not server.draining or server.removed_at is not None:
        if server is None and not is_known(place, name):
            raise no_such(place, book, name)
        raise Stop(f"backend {name} is not being drained; there is nothing to do")
    _tell(_change(place, name, Said(draining=False)), place, name, as_json)


@command.command("remove")
@click.argument("name")
@click.option("--now", is_flag=True, help="Also if it was not drained before.")
@place_option
@json_option
def remove(name: str, now: bool, place: Place, as_json: bool) -> None:
    """Remove the backend NAME, which was drained: gateways forget it. What it served stays billed.

    One of a configuration file stays removed, whatever the file says, until it is added again.
    """
    book = registry_or_none(place)
    server = book.backends.get(name)
    at_work = server is None or (server.removed_at is None and not server.draining)
    if at_work and (server is not None or is_known(place, name)) and not (now and server):
        raise Stop(
            f"backend {name} still gets requests; run `tollbook backends drain {name}` first"
            + ("" if server is None else ", or give --now: then nobody tells when it is free")
        )
    moment = SystemClock().now()
    change_registry(place, lambda book: removed(book, name, moment))
    if as_json:
        click.echo(json_text({"id": name, "removed": moment}))
    else:
        click.echo(f"removed backend {name}")


def _change(place: Place, name: str, said: Said) -> Book:
    book = registry_or_none(place)
    server = book.backends.get(name)
    address = {"url", "key", "engine", "models"}
    given = {field for field in address if getattr(said, field) is not msgspec.UNSET}
    url = said.url if isinstance(said.url, str) else server.url if server else None
    configured = server is None and is_known(place, name)
    if server is None and not configured:
        raise no_such(place, book, name)
    if given and url is None:
        raise Stop(
            f"the address of backend {name} is in the configuration of each gateway, so "
            f"{', '.join(sorted(given))} must be changed there; or give --url URL too, which then "
            "stands for all gateways"
        )
    if given and said.key is msgspec.UNSET and (server is None or server.url is None):
        # Its key is in those settings, too, which a registered address stands over as a whole.
        raise Stop(
            f"the key of backend {name} is in the configuration of each gateway, as its address "
            "was; give --key REF too, which then stands for all gateways (--key '': it has none)"
        )
    if given:
        said = _checked(name, said)
    now = SystemClock().now()
    return change_registry(
        make_ready(place), lambda book: changed(book, name, said, configured, now)
    )


def _checked(name: str, said: Said) -> Said:
    """`said` as a configuration file would have it. Raises `SettingsError` for what it refuses."""
    url = said.url if isinstance(said.url, str) else "http://as.it.was"
    key = said.key if isinstance(said.key, str) else None
    if key is not None and key.startswith("file:"):
        key = f"file:{Path(key.removeprefix('file:')).absolute()}"
    models = said.models if isinstance(said.models, tuple) else ()
    checked = BackendSettings(url=url, name=name, key=key, models=models)
    if isinstance(said.url, str):
        # Written in one way, so that a second backend at the same address is found out.
        parts = urlsplit(checked.url)
        url = parts._replace(netloc=parts.netloc.lower()).geturl()
        said = msgspec.structs.replace(said, url=url)
    return said if key is None else msgspec.structs.replace(said, key=checked.key)


def _tell(book: Book, place: Place, name: str, as_json: bool) -> None:
    found = [one for one in everything(place, book) if one.backend_id == name]
    if as_json:
        click.echo(json_text(backend_json(found[0])))
    else:
        show(backends_table(found))

"""`tollbook keys`: issue, list and revoke API keys. A secret is printed once and kept nowhere."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import click

from gateway.cli.account_facts import Names, assigned, find, retagged, tags_text
from gateway.cli.account_options import tag_option
from gateway.cli.data import (
    all_names,
    change_registry,
    key_names,
    make_ready,
    name_key,
    registry,
)
from gateway.cli.failure import Stop
from gateway.cli.options import NAMES, json_option
from gateway.cli.output import Cell, Column, Table, json_text, pairs_text, show
from gateway.cli.place import Place, place_option
from gateway.setting_values import nearest
from ledger.clock import SystemClock
from ledger.events import Draft, KeyIssued, KeyRevoked
from ledger.folds.book import Book, Key
from ledger.identity import mint_id, mint_secret

NAME_LENGTH_MAX: Final = 200
"""A name is for people who read a bill; a longer one would not fit its lines."""


@click.group("keys", no_args_is_help=True)
def command() -> None:
    """API keys: who may call, which models, and for which project."""


@command.command("create")
@click.option("--name", required=True, metavar="NAME", help="Who or what the key is for.")
@click.option("--models", type=NAMES, metavar="A,B", help="Models it may use. Default: every one.")
@click.option(
    "--no-fallback",
    is_flag=True,
    help="Only the model asked for may answer, whatever [[fallbacks]] say.",
)
@click.option(
    "--admin",
    is_flag=True,
    help="It reads what every key used and cost, by /v1/organization, and may use no model.",
)
@click.option(
    "--project", "project", metavar="ID|NAME", help="What it uses belongs there. Default: nowhere."
)
@tag_option
@place_option
@json_option
def create(
    name: str,
    models: tuple[str, ...] | None,
    no_fallback: bool,
    admin: bool,
    project: str | None,
    tags: Sequence[tuple[str, str]],
    place: Place,
    as_json: bool,
) -> None:
    """Issue a key and show its secret, this once. A running gateway knows it within a second."""
    name = checked_name(name)
    if admin and models is not None:
        raise click.UsageError("an admin key uses no model; give --admin or --models")
    if admin:
        # An older gateway, which does not know the scope, gives such a key nothing at all.
        models = ()
    elif models is not None and "*" in models:
        models = None
    key_id, secret = mint_id(), mint_secret()
    now = SystemClock().now()
    draft = issue(key_id, secret, models, now, fallback=not no_fallback, admin=admin)
    owner, held = None, retagged({}, tags)
    if project is not None:
        _, owner = find(registry(place), all_names(place), project, ("project",))
    # The name first: if it cannot be kept, there is no key that nobody knows by name.
    name_key(make_ready(place), key_id, name)
    if owner is not None or held:
        # Before the key opens, so that nothing it uses belongs to nobody.
        change_registry(place, lambda book: assigned(book, key_id, owner, held, now))
    change_registry(place, lambda book: draft)
    if as_json:
        said = {"id": key_id, "key": secret, "name": name, "models": models}
        more = {"scope": "admin" if admin else None, "project": owner, "tags": held}
        click.echo(json_text({**said, **more}))
        return
    shown: list[tuple[str, Cell]] = [("key", secret), ("id", key_id), ("name", name)]
    shown.append(("models", "none, it is an admin's" if admin else models or "every model"))
    if owner is not None:
        shown.append(("project", owner))
    if held:
        shown.append(("tags", tags_text(held)))
    click.echo(pairs_text(shown))
    click.echo(
        "\nKeep the key now: only its hash is stored, so it cannot be shown again.", err=True
    )


@command.command("list")
@place_option
@json_option
def list_keys(place: Place, as_json: bool) -> None:
    """List the keys: id, name, models, project, when issued and revoked. Never a secret or hash."""
    names, book = all_names(place), registry(place)
    keys = sorted(book.keys.values(), key=lambda key: (key.issued_at, key.key_id))
    if as_json:
        rows = [key_json(key, names.get("key", {}), book) for key in keys]
        click.echo(json_text({"keys": rows}))
    else:
        table = keys_table(keys, names.get("key", {}), book, names)
        show(table, empty="no key yet; `tollbook keys create` issues one")


@command.command("move")
@click.argument("which", metavar="ID|NAME")
@click.option(
    "--project", "project", metavar="ID|NAME", help="Where what it uses belongs from now."
)
@click.option("--no-project", is_flag=True, help="From now on it belongs to no project.")
@place_option
@json_option
def move_key(
    which: str, project: str | None, no_project: bool, place: Place, as_json: bool
) -> None:
    """Move a key to a project, from now on: what it used before stays where it was.

    Requests that were accepted before the move belong to the old project, whenever they end.
    """
    if (project is None) == (not no_project):
        raise click.UsageError("give either --project ID|NAME or --no-project")
    book, names = registry(place), all_names(place)
    _, key_id = find(book, names, which, ("key",))
    owner = None
    if project is not None:
        _, owner = find(book, names, project, ("project",))
    now = SystemClock().now()
    change_registry(place, lambda book: moved(book, key_id, owner, now))
    if as_json:
        click.echo(json_text({"id": key_id, "project": owner, "since": now}))
    else:
        said = "no project" if owner is None else f"project {owner}"
        click.echo(f"key {key_id} belongs to {said} from now on")


@command.command("revoke")
@click.argument("which", metavar="ID|NAME")
@place_option
@json_option
def revoke_key(which: str, place: Place, as_json: bool) -> None:
    """Revoke a key: a running gateway refuses it within a second. What it used stays billed."""
    names = key_names(place)
    key = find_key(registry(place), names, which)
    now = SystemClock().now()
    book = change_registry(place, lambda book: revoke(book.keys[key.key_id], now))
    if as_json:
        click.echo(json_text(key_json(book.keys[key.key_id], names, book)))
    else:
        click.echo(f"revoked key {key.key_id} ({names.get(key.key_id, 'no name')})")


def checked_name(name: str, what: str = "a key") -> str:
    """`name` without space around it. Raises `Stop` for what could not be read on a bill."""
    name = name.strip()
    if not name or len(name) > NAME_LENGTH_MAX or not name.isprintable():
        raise Stop(
            f"{name!r} is not a name for {what}; write one line of up to {NAME_LENGTH_MAX} "
            "characters that says who it is for"
        )
    return name


def issue(
    key_id: str,
    secret: str,
    models: tuple[str, ...] | None,
    now: datetime,
    *,
    fallback: bool = True,
    admin: bool = False,
) -> Draft:
    """The fact that a key was issued. It holds the secret's hash and nothing else of it. Pure."""
    payload = KeyIssued(
        key_id=key_id,
        base=0,
        version=1,
        hash=hashlib.sha256(secret.encode()).hexdigest(),
        models=None if models is None else list(models),
        fallback=None if fallback else False,
        scope="admin" if admin else None,
    )
    return Draft(f"{key_id}/v1", key_id, now, payload)


def revoke(key: Key, now: datetime) -> Draft:
    """The fact that `key` was revoked. Pure. Raises `Stop` if it is already."""
    if key.revoked_at is not None:
        raise Stop(
            f"key {key.key_id} was revoked at {key.revoked_at:%Y-%m-%d %H:%M:%S} UTC already; "
            "there is nothing left to do"
        )
    version = key.version + 1
    payload = KeyRevoked(
        key_id=key.key_id,
        base=key.version,
        version=version,
        hash=key.hash,
        revoked_at=now,
        models=None if key.models is None else list(key.models),
        fallback=None if key.fallback else False,
        scope="admin" if key.scope == "admin" else None,
    )
    return Draft(f"{key.key_id}/v{version}", key.key_id, now, payload)


def moved(book: Book, key_id: str, project_id: str | None, now: datetime) -> Draft:
    """The fact that a key belongs to another project from `now` on, with the tags it has. Pure but
    for the id. Raises `Stop` if it is there already."""
    had = book.members.get(key_id, ())
    if (had[-1].project_id if had else None) == project_id:
        there = "no project" if project_id is None else f"project {project_id}"
        raise Stop(f"key {key_id} belongs to {there} already; nothing was written")
    return assigned(book, key_id, project_id, had[-1].tags if had else {}, now)


def find_key(book: Book, names: Mapping[str, str], which: str) -> Key:
    """The key with the id or name `which`. Pure. Raises `Stop` if there is none or several.

    A name that several keys carry means the one that still opens, if it is only one.
    """
    if which in book.keys:
        return book.keys[which]
    found = [key for key_id, key in book.keys.items() if names.get(key_id) == which]
    found = [key for key in found if key.revoked_at is None] or found
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(sorted(key.key_id for key in found))
        raise Stop(f"{len(found)} keys are named {which!r}; give the id of one of them: {ids}")
    near = nearest(which, [*book.keys, *(names[k] for k in book.keys if k in names)])
    hint = f"did you mean {near!r}?" if near else "`tollbook keys list` shows the keys"
    raise Stop(f"there is no key with the id or name {which!r}; {hint}")


def key_json(key: Key, names: Mapping[str, str], book: Book | None = None) -> dict[str, object]:
    """One key for JSON: what may be shown of it, with the project and tags it has in `book`."""
    had = book.members.get(key.key_id, ()) if book else ()
    return {
        "id": key.key_id,
        "name": names.get(key.key_id),
        "models": key.models,
        "fallback": key.fallback,
        "scope": key.scope,
        "project": had[-1].project_id if had else None,
        "tags": had[-1].tags if had else {},
        "issued": key.issued_at,
        "revoked": key.revoked_at,
    }


def keys_table(
    keys: Iterable[Key],
    names: Mapping[str, str],
    book: Book | None = None,
    all_: Names | None = None,
) -> Table:
    """The keys as a table: what may be shown of them. A project is shown by its name in `all_`,
    else by its id; where no key has one, there is no such column."""
    there = {key_id: had[-1].project_id for key_id, had in (book.members if book else {}).items()}
    called = (all_ or {}).get("project", {})
    placed = any(there.values())
    columns = ["id", "name", "models", "fallback", *(["project"] if placed else [])]
    rows: list[tuple[Cell, ...]] = []
    for key in keys:
        opens: Cell = "every model" if key.models is None else key.models
        row: list[Cell] = [key.key_id, names.get(key.key_id)]
        row += ["admin" if key.scope == "admin" else opens, key.fallback]
        if placed:
            owner = there.get(key.key_id)
            row.append(called.get(owner, owner) if owner else None)
        rows.append((*row, key.issued_at, key.revoked_at))
    return Table(tuple(Column(name) for name in (*columns, "issued", "revoked")), tuple(rows))

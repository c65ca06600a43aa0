"""`tollbook accounts`: organizations, their projects, and the keys of those; tags and names."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

import click

from gateway.cli.account_facts import (
    closed,
    find,
    organization,
    project,
    retagged,
    tagged,
    tags_text,
    unused_name,
)
from gateway.cli.account_options import TAG, tag_option
from gateway.cli.data import (
    all_names,
    change_registry,
    forget_name,
    made_names,
    name_it,
    registry,
)
from gateway.cli.failure import Stop
from gateway.cli.keys import checked_name
from gateway.cli.options import csv_option, json_option, one_format
from gateway.cli.output import Cell, Column, Table, json_text, pairs_text, show
from gateway.cli.place import Place, place_option
from ledger.clock import SystemClock
from ledger.folds.book import Book
from ledger.identity import mint_id
from ledger.words import counted

if TYPE_CHECKING:
    from ledger.sql.accounts import KeyNode, OrganizationNode
    from ledger.sql.names import Kind

KINDS: Final = ("organization", "project", "key")


@click.group("accounts", no_args_is_help=True)
def command() -> None:
    """Organizations, which pay, their projects, and the keys that work for those."""


@command.command("create-organization")
@click.argument("name")
@tag_option
@place_option
@json_option
def create_organization(
    name: str, tags: Sequence[tuple[str, str]], place: Place, as_json: bool
) -> None:
    """Make an organization called NAME."""
    name = checked_name(name, "an organization")
    held = retagged({}, tags)
    new = mint_id()
    names = made_names(place)
    unused_name(registry(place), names, "organization", name)
    # The name first: if it cannot be kept, there is no organization that nobody knows by name.
    name_it(place, "organization", new, name)
    now = SystemClock().now()
    change_registry(place, lambda book: organization(book, new, held, False, now))
    _say(as_json, {"id": new, "name": name, "tags": held})


@command.command("create-project")
@click.argument("name")
@click.option(
    "--organization", "owner", required=True, metavar="ID|NAME", help="Who pays. It stays so."
)
@tag_option
@place_option
@json_option
def create_project(
    name: str, owner: str, tags: Sequence[tuple[str, str]], place: Place, as_json: bool
) -> None:
    """Make a project called NAME in an organization; statements are made for projects."""
    name = checked_name(name, "a project")
    held = retagged({}, tags)
    book, names = registry(place), all_names(place)
    _, payer = find(book, names, owner, ("organization",))
    unused_name(book, names, "project", name)
    new, now = mint_id(), SystemClock().now()
    project(book, new, payer, held, False, now)
    name_it(place, "project", new, name)
    change_registry(place, lambda book: project(book, new, payer, held, False, now))
    _say(as_json, {"id": new, "name": name, "organization": payer, "tags": held})


@command.command("list")
@click.option("--keys", "with_keys", is_flag=True, help="Show each project's keys too.")
@place_option
@json_option
@csv_option
def list_accounts(with_keys: bool, place: Place, as_json: bool, as_csv: bool) -> None:
    """List organizations, their projects, and by --keys the keys; --json always has the keys."""
    one_format(as_json, as_csv)
    from ledger.sql.accounts import loose_of, tree_of

    book, names = registry(place), all_names(place)
    tree, loose = tree_of(book, names), loose_of(book, names)
    if as_json:
        click.echo(json_text({"organizations": tree, "keys_without_project": loose}))
        return
    show(
        tree_table(tree, loose, with_keys=with_keys),
        as_csv=as_csv,
        empty="no organization yet; `tollbook accounts create-organization` makes one",
    )


@command.command("tag")
@click.argument("which", metavar="ID|NAME")
@click.argument("tags", nargs=-1, type=TAG, metavar="[NAME=VALUE]...")
@click.option(
    "--remove",
    "gone",
    multiple=True,
    metavar="NAME",
    help="A tag that goes. May be given several times.",
)
@place_option
@json_option
def tag(
    which: str,
    tags: Sequence[tuple[str, str]],
    gone: Sequence[str],
    place: Place,
    as_json: bool,
) -> None:
    """Set tags of an organization, project or key, or remove some. Those not named stay.

    A key's tags hold from now on; what it used before keeps the tags that it had.
    """
    if not tags and not gone:
        raise click.UsageError("no tag is given; write NAME=VALUE, or --remove NAME")
    now = SystemClock().now()
    kind, id_ = find(registry(place), all_names(place), which, KINDS)
    book = change_registry(place, lambda book: tagged(book, kind, id_, tags, gone, now))
    _say(as_json, {"id": id_, "kind": kind, "tags": tags_of(book, kind, id_)})


@command.command("close")
@click.argument("which", metavar="ID|NAME")
@click.option("--reopen", is_flag=True, help="Open it again.")
@place_option
@json_option
def close(which: str, reopen: bool, place: Place, as_json: bool) -> None:
    """Close a project or an organization: nothing new belongs to it, what was stays on bills.

    It is refused while a key opens, or a project is open, that belongs to it.
    """
    now = SystemClock().now()
    kind, id_ = find(registry(place), all_names(place), which, KINDS[:2])
    change_registry(place, lambda book: closed(book, kind, id_, reopen, now))
    _say(as_json, {"id": id_, "kind": kind, "closed": not reopen})


@command.command("rename")
@click.argument("which", metavar="ID|NAME")
@click.argument("name")
@place_option
@json_option
def rename(which: str, name: str, place: Place, as_json: bool) -> None:
    """Call an organization, a project or a key NAME. Names stand in no fact: bills show it too."""
    book, names = registry(place), all_names(place)
    kind, id_ = find(book, names, which, KINDS)
    name = checked_name(name, kind)
    if kind != "key":
        unused_name(book, names, kind, name)
    name_it(place, cast("Kind", kind), id_, name)
    _say(as_json, {"id": id_, "kind": kind, "name": name})


@command.command("forget")
@click.argument("which", metavar="ID|NAME")
@place_option
@json_option
def forget(which: str, place: Place, as_json: bool) -> None:
    """Erase the name of an organization, a project or a key. All that was counted stays.

    No fact, total, hash or chain holds a name, so that nothing breaks; only the id is shown now.
    """
    kind, id_ = find(registry(place), all_names(place), which, KINDS)
    if not forget_name(place, cast("Kind", kind), id_):
        raise Stop(f"{kind} {id_} has no name; there is nothing to forget")
    _say(as_json, {"id": id_, "kind": kind, "name": None})


def tags_of(book: Book, kind: str, id_: str) -> Mapping[str, str]:
    """The tags of a thing as they are now. Pure."""
    if kind == "organization":
        return book.organizations[id_].tags
    if kind == "project":
        return book.projects[id_].tags
    had = book.members.get(id_, ())
    return had[-1].tags if had else {}


def tree_table(
    tree: "Sequence[OrganizationNode]", loose: "Sequence[KeyNode]", *, with_keys: bool
) -> Table:
    """Organizations, each before its projects, each before its keys; each row names what it
    belongs to by id. Pure."""
    rows: list[tuple[Cell, ...]] = []
    for payer in tree:
        state = "closed" if payer.closed else "open"
        inside = sum(len(one.keys) for one in payer.projects)
        rows.append(
            ("organization", payer.id, payer.name, None, state, inside, tags_text(payer.tags))
        )
        for one in payer.projects:
            state = "closed" if one.closed else "open"
            tags = tags_text(one.tags)
            rows.append(("project", one.id, one.name, payer.id, state, len(one.keys), tags))
            if with_keys:
                rows += [_key_row(key, one.id) for key in one.keys]
    if with_keys:
        rows += [_key_row(key, None) for key in loose]
    notes = (
        ()
        if with_keys or not loose
        else (f"{counted(len(loose), 'key belongs', 'keys belong')} to no project.",)
    )
    columns = ("kind", "id", "name", "belongs to", "state")
    return Table(
        (*(Column(name) for name in columns), Column("keys", number=True), Column("tags")),
        tuple(rows),
        notes,
    )


def _key_row(key: "KeyNode", project_id: str | None) -> tuple[Cell, ...]:
    state = "revoked" if key.revoked else "open"
    return "key", key.id, key.name, project_id, state, None, tags_text(key.tags)


def _say(as_json: bool, said: Mapping[str, object]) -> None:
    if as_json:
        click.echo(json_text(said))
        return
    shown: list[tuple[str, Cell]] = []
    for name, value in said.items():
        text = tags_text(value) or None if isinstance(value, Mapping) else value
        shown.append((name, cast(Cell, text)))
    click.echo(pairs_text(shown))

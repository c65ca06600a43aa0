"""Organizations, projects and tags as facts: what a command makes of the book.

Pure, but that every fact gets an id that was never there.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, cast

from gateway.cli.failure import Stop
from gateway.setting_values import nearest
from ledger.events import BooksSet, Draft, KeyAssigned, OrganizationSet, ProjectSet
from ledger.events.money import Rounding
from ledger.events.requests import SYSTEM_KEY_ID
from ledger.folds.accounts import keys_in
from ledger.folds.book import Book
from ledger.identity import mint_id

Names = Mapping[str, Mapping[str, str]]
"""Names by kind (`organization`, `project`, `key`) and id."""

Said = OrganizationSet | ProjectSet | KeyAssigned | BooksSet

TAGS_MAX: Final = 50
TAG_VALUE_LENGTH_MAX: Final = 200
_TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}")


def parse_tag(text: str) -> tuple[str, str]:
    """A tag in `name=value`. Raises `ValueError` with words."""
    name, sign, value = text.partition("=")
    if not sign or _TAG.fullmatch(name) is None:
        raise ValueError(
            f"{text!r} is not a tag; write NAME=VALUE, the name in up to 63 letters, digits and "
            "any of _ . : / -"
        )
    if len(value) > TAG_VALUE_LENGTH_MAX or not value.isprintable():
        raise ValueError(f"the value of tag {name} is one line of up to {TAG_VALUE_LENGTH_MAX}")
    return name, value


def retagged(
    old: Mapping[str, str], given: Iterable[tuple[str, str]], gone: Iterable[str] = ()
) -> dict[str, str]:
    """`old` with tags that are given and without those that are to go. Raises `Stop`."""
    tags = dict(old) | dict(given)
    for name in gone:
        if name not in tags:
            near = nearest(name, tags)
            hint = f"did you mean {near!r}?" if near else "`tollbook accounts list` shows the tags"
            raise Stop(f"there is no tag {name!r} there; {hint}")
        del tags[name]
    if len(tags) > TAGS_MAX:
        raise Stop(f"these are {len(tags)} tags; one thing has at most {TAGS_MAX}")
    return dict(sorted(tags.items()))


def tags_text(tags: Mapping[str, str]) -> tuple[str, ...]:
    """Tags as they are written on the command line. Pure."""
    return tuple(f"{name}={value}" for name, value in sorted(tags.items()))


def ids_of(book: Book, kind: str) -> Sequence[str]:
    """The ids of everything of a kind that the registry knows; our own key is one."""
    if kind == "organization":
        return list(book.organizations)
    if kind == "project":
        return list(book.projects)
    return [*book.keys, SYSTEM_KEY_ID]


def find(book: Book, names: Names, which: str, kinds: Sequence[str]) -> tuple[str, str]:
    """The kind and id of what `which` means: an id or a name, or either behind `KIND/`.

    Raises `Stop` if there is none or several. Of several with one name, the open one is meant.
    """
    before, sign, behind = which.partition("/")
    if sign and before in kinds:
        kinds, which = (before,), behind
    there = [(kind, id_) for kind in kinds for id_ in ids_of(book, kind)]
    found = [one for one in there if one[1] == which]
    if not found:
        found = [one for one in there if _name(names, one) == which]
        found = [one for one in found if not _over(book, *one)] or found
    if len(found) == 1:
        return found[0]
    if found:
        all_ = ", ".join(sorted(f"{kind}/{id_}" for kind, id_ in found))
        raise Stop(f"{len(found)} things are called {which!r}; give one of them: {all_}")
    words = [*(id_ for _, id_ in there), *(name for one in there if (name := _name(names, one)))]
    lowered = {word.lower(): word for word in words}
    near = nearest(which.lower(), lowered)
    hint = f"did you mean {lowered[near]!r}?" if near else "`accounts list --keys` shows all"
    raise Stop(f"there is no {' or '.join(kinds)} with the id or name {which!r}; {hint}")


def unused_name(book: Book, names: Names, kind: str, name: str) -> str:
    """`name`, if no open organization or project has it: people find them by it. Raises `Stop`."""
    for id_ in ids_of(book, kind):
        if _name(names, (kind, id_)) == name and not _over(book, kind, id_):
            raise Stop(f"{kind} {id_} is called {name!r} already; give this one another name")
    return name


def organization(
    book: Book, organization_id: str, tags: Mapping[str, str], closed: bool, now: datetime
) -> Draft:
    """The whole new state of an organization, made from what the book has."""
    old = book.organizations.get(organization_id)
    base = old.version if old else 0
    payload = OrganizationSet(
        organization_id=organization_id,
        base=base,
        version=base + 1,
        tags=dict(tags),
        closed=closed,
    )
    return _draft("organization", organization_id, now, payload)


def project(
    book: Book,
    project_id: str,
    organization_id: str,
    tags: Mapping[str, str],
    closed: bool,
    now: datetime,
) -> Draft:
    """The whole new state of a project. Raises `Stop` if its organization takes nothing new."""
    owner = book.organizations.get(organization_id)
    if owner is not None and owner.closed and not closed:
        raise Stop(
            f"organization {organization_id} is closed and takes nothing new; open it again by "
            f"`tollbook accounts close {organization_id} --reopen`"
        )
    old = book.projects.get(project_id)
    base = old.version if old else 0
    payload = ProjectSet(
        project_id=project_id,
        organization_id=organization_id,
        base=base,
        version=base + 1,
        tags=dict(tags),
        closed=closed,
    )
    return _draft("project", project_id, now, payload)


def assigned(
    book: Book, key_id: str, project_id: str | None, tags: Mapping[str, str], now: datetime
) -> Draft:
    """From `now` on the key belongs to a project (null: to none), with these tags of its own.
    Raises `Stop` if that project takes nothing new."""
    had = book.members.get(key_id, ())
    there = book.projects.get(project_id) if project_id is not None else None
    stays = bool(had) and had[-1].project_id == project_id
    if there is not None and there.closed and not stays:
        raise Stop(
            f"project {project_id} is closed and takes nothing new; open it again by "
            f"`tollbook accounts close {project_id} --reopen`"
        )
    payload = KeyAssigned(
        key_id=key_id,
        project_id=project_id,
        base=len(had),
        version=len(had) + 1,
        tags=dict(tags),
    )
    return _draft("assigned", key_id, now, payload)


def tagged(
    book: Book,
    kind: str,
    id_: str,
    given: Iterable[tuple[str, str]],
    gone: Iterable[str],
    now: datetime,
) -> Draft:
    """`kind/id_` with other tags and nothing else changed. Raises `Stop`."""
    if kind == "organization":
        old = book.organizations[id_]
        return organization(book, id_, retagged(old.tags, given, gone), old.closed, now)
    if kind == "project":
        one = book.projects[id_]
        tags = retagged(one.tags, given, gone)
        return project(book, id_, one.organization_id, tags, one.closed, now)
    had = book.members.get(id_, ())
    tags = retagged(had[-1].tags if had else {}, given, gone)
    return assigned(book, id_, had[-1].project_id if had else None, tags, now)


def closed(book: Book, kind: str, id_: str, reopen: bool, now: datetime) -> Draft:
    """`kind/id_` closed, or open again. Raises `Stop` while something that works belongs to it."""
    old = book.organizations[id_] if kind == "organization" else book.projects[id_]
    if old.closed != reopen:
        raise Stop(f"{kind} {id_} is {'open' if reopen else 'closed'} already")
    inner = [] if reopen else _working(book, kind, id_)
    if inner:
        way = "revoke them or move them by `tollbook keys move`"
        raise Stop(
            f"{kind} {id_} holds {', '.join(inner)}, which would go on as before; "
            f"{way if kind == 'project' else 'close them first'}"
        )
    if kind == "organization":
        return organization(book, id_, old.tags, not reopen, now)
    return project(book, id_, book.projects[id_].organization_id, old.tags, not reopen, now)


def books_set(
    book: Book,
    zone: str | None,
    rounding: Rounding | None,
    issuer: str | None,
    now: datetime,
) -> Draft:
    """How the books are kept, with what is given changed; an empty issuer is none. Raises `Stop`
    if that is how they are kept already."""
    old = book.rules
    payload = BooksSet(
        base=old.version,
        version=old.version + 1,
        zone=old.zone if zone is None else zone,
        rounding=cast(Rounding, old.rounding) if rounding is None else rounding,
        issuer=old.issuer if issuer is None else issuer or None,
    )
    if (payload.zone, payload.rounding, payload.issuer) == (old.zone, old.rounding, old.issuer):
        raise Stop("the books are kept like that already; nothing was written")
    return _draft("books", "books", now, payload)


def _draft(word: str, subject: str, now: datetime, payload: Said) -> Draft:
    # With a part that is minted, the loser of a race is another event and not a conflict.
    return Draft(f"{word}/{subject}/v{payload.version}/{mint_id()}", subject, now, payload)


def _working(book: Book, kind: str, id_: str) -> list[str]:
    if kind == "organization":
        inside = [one for one in book.projects.values() if one.organization_id == id_]
        return sorted(f"project {one.project_id}" for one in inside if not one.closed)
    keys = [book.keys[key_id] for key_id in keys_in(book, id_) if key_id in book.keys]
    return [f"key {key.key_id}" for key in keys if key.revoked_at is None]


def _name(names: Names, one: tuple[str, str]) -> str | None:
    return names.get(one[0], {}).get(one[1])


def _over(book: Book, kind: str, id_: str) -> bool:
    if kind == "organization":
        return book.organizations[id_].closed
    if kind == "project":
        return book.projects[id_].closed
    return id_ in book.keys and book.keys[id_].revoked_at is not None

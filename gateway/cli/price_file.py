"""Price files: CSV or TOML with every value as text, and all that is wrong in one, by line. Pure.

A number that is not in quotes could have been a float before anybody saw it, so TOML's numbers are
refused. A file is taken as a whole: one problem in it, and nothing of it counts.
"""

import csv
import io
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypeVar

import msgspec

from gateway.cli.options import parse_instant
from gateway.cli.price_entries import (
    CURRENCY_DEFAULT,
    PRICED,
    SIDES,
    UNIT_DEFAULT,
    Unit,
    amount,
    bands_of,
    named_prices,
    parse_currency,
    parse_model,
    parse_unit,
)
from gateway.setting_values import nearest
from ledger.errors import AmountError
from ledger.events import PriceEntry, PriceListed
from ledger.events.money import Band
from ledger.folds.price_lists import percent_parts, publishable
from ledger.folds.prices import Price
from ledger.words import counted

Kind = Literal["csv", "toml"]
BAND_FIELDS: Final = ("band", "days", "hours")
ENTRY_FIELDS: Final = ("model", "scope", "currency", "from", "unit", "zone", "discount")
FIELDS: Final = (*ENTRY_FIELDS, *BAND_FIELDS, *SIDES, *PRICED)
"""What a row may say. In CSV a row with a `band` is one of the entry with its model, scope and
`from`; in TOML it is a `[[price.band]]` below its `[[price]]`."""

SHOWN_ONLY: Final = ("id", "version", "state", "rerate")
"""What `prices list --csv` says beside these, and an import passes over."""

_TOML_HEADER: Final = re.compile(r"\s*\[{1,2}\s*([A-Za-z_.\s]+?)\s*\]{1,2}\s*(?:#.*)?")
_TOML_KEY: Final = re.compile(r"\s*(?:\"([^\"]+)\"|'([^']+)'|([A-Za-z0-9_-]+))\s*=")
_TOML_LINE: Final = re.compile(r"at line ([0-9]+)")

T = TypeVar("T")


class Problem(msgspec.Struct, frozen=True, order=True):
    """What is wrong in a line, in words."""

    line: int
    words: str


class Found(msgspec.Struct, frozen=True):
    """An entry, and the line that it begins in."""

    line: int
    entry: PriceEntry


class Parsed(msgspec.Struct, frozen=True):
    """What a file says. Where there are problems, the entries are not all of it."""

    found: list[Found]
    problems: list[Problem]

    @property
    def entries(self) -> list[PriceEntry]:
        """The entries, in the order of the file."""
        return [one.entry for one in self.found]


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """What a file is read against: when what names no instant begins; how a scope and a zone are
    checked, with `ValueError` in words; and how an id is made."""

    begin: datetime
    scope: Callable[[str], str]
    zone: Callable[[str], str]
    mint: Callable[[], str]


class _Row(msgspec.Struct, frozen=True):
    """Texts by field, the line of each, and whether they are of a band."""

    line: int
    values: Mapping[str, str]
    lines: Mapping[str, int]

    def at(self, field: str) -> int:
        return self.lines.get(field, self.line)


def parse(text: str, kind: Kind, around: Around) -> Parsed:
    """The entries of a price file and everything that is wrong with it, by line."""
    problems: list[Problem] = []
    rows = list(_csv_rows(text, problems) if kind == "csv" else _toml_rows(text, problems))
    found = list(_entries(rows, around, problems))
    if not rows and not problems:
        problems.append(Problem(1, "there is no price in this file"))
    return Parsed(found, sorted(set(problems)))


def judged(
    parsed: Parsed,
    prices: Sequence[Price],
    now: datetime,
    rerate: str | None,
    closed_until: datetime | None,
) -> list[Problem]:
    """What the registry would refuse of these entries, each by its line: all of it, while the
    registry itself names the first."""
    problems = list(parsed.problems)
    for one in parsed.found:
        alone = PriceListed(base=len(prices), entries=[one.entry], rerate=rerate)
        refused = publishable(alone, now, prices, closed_until)
        if isinstance(refused, str):
            problems.append(Problem(one.line, refused))
    return sorted(set(problems))


def _csv_rows(text: str, problems: list[Problem]) -> Iterator[_Row]:
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff")), strict=True)
    header: list[str] | None = None
    line = 1
    try:
        for cells in reader:
            begins, line = line, reader.line_num + 1
            if not any(cell.strip() for cell in cells) or cells[0].lstrip().startswith("#"):
                continue
            if header is None:
                header = [cell.strip() for cell in cells]
                problems += [Problem(begins, words) for words in _strange(header)]
                continue
            if len(cells) != len(header):
                values = counted(len(cells), "value stands", "values stand")
                words = f"{values} under {counted(len(header), 'column')}"
                problems.append(Problem(begins, words))
                continue
            named = zip(header, (cell.strip() for cell in cells), strict=True)
            yield _Row(begins, {n: v for n, v in named if v and n in FIELDS}, {})
    except csv.Error as wrong:
        problems.append(Problem(reader.line_num, f"this is no CSV: {wrong}"))


def _strange(names: Sequence[str]) -> Iterator[str]:
    for number, name in enumerate(names):
        if name not in FIELDS and name not in SHOWN_ONLY:
            near = nearest(name, FIELDS)
            hint = f"did you mean {near}?" if near else f"it is one of {', '.join(FIELDS)}"
            yield f"there is no column {name!r}; {hint}"
        elif name in names[:number]:
            yield f"the column {name} is there twice"
    if "model" not in names:
        yield "there is no column model; the first line names the columns"


class _Number(str):
    """A number of TOML as it was written, before it could become a float."""


def _toml_rows(text: str, problems: list[Problem]) -> Iterator[_Row]:
    try:
        read = tomllib.loads(text, parse_float=_Number)
    except tomllib.TOMLDecodeError as wrong:
        where = _TOML_LINE.search(str(wrong))
        problems.append(Problem(int(where[1]) if where else 1, f"this is no TOML: {wrong}"))
        return
    places = _toml_lines(text)
    for name in read:
        if name != "price":
            words = f"there is no {name!r} in a price file; it is [[price]] and [[price.band]]"
            problems.append(Problem(places.get((0, 0, name), 1), words))
    prices = read.get("price", [])
    if not isinstance(prices, list) or not all(isinstance(one, dict) for one in prices):
        problems.append(Problem(1, "prices are written as [[price]], one for each entry"))
        return
    for number, one in enumerate(prices, 1):
        bands = one.pop("band", [])
        entry = _toml_row(one, (number, 0), places, problems, (*ENTRY_FIELDS, *SIDES, *PRICED))
        yield entry
        if not isinstance(bands, list) or not all(isinstance(band, dict) for band in bands):
            problems.append(Problem(entry.line, "bands are written as [[price.band]]"))
            continue
        for count, band in enumerate(bands, 1):
            band = {("band" if name == "name" else name): value for name, value in band.items()}
            row = _toml_row(
                band, (number, count), places, problems, (*BAND_FIELDS, *SIDES, *PRICED)
            )
            if "band" not in row.values:
                problems.append(Problem(row.line, "a band has no name"))
                continue
            shared = {n: entry.values[n] for n in ("model", "scope", "from") if n in entry.values}
            yield _Row(row.line, {**shared, **row.values}, {**entry.lines, **row.lines})


def _toml_row(
    said: Mapping[str, Any],
    which: tuple[int, int],
    places: Mapping[tuple[int, int, str], int],
    problems: list[Problem],
    fields: Sequence[str],
) -> _Row:
    line = places.get((*which, ""), 1)
    values, lines = dict[str, str](), dict[str, int]()
    for name, value in said.items():
        lines[name] = places.get((*which, "name" if name == "band" else name), line)
        if name not in fields:
            near = nearest(name, fields)
            hint = f"did you mean {near}?" if near else f"it is one of {', '.join(fields)}"
            problems.append(Problem(lines[name], f"there is no {name!r} here; {hint}"))
        elif isinstance(value, _Number) or not isinstance(value, str):
            words = f'{name} is not text: write it in quotes, as {name} = "{value}"'
            problems.append(Problem(lines[name], words))
        elif value.strip():
            values[name] = value.strip()
    return _Row(line, values, lines)


def _toml_lines(text: str) -> dict[tuple[int, int, str], int]:
    """The line of each key by entry and band (0: none), and that of each header as the key ""."""
    found: dict[tuple[int, int, str], int] = {}
    entry = band = 0
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TOML_HEADER.fullmatch(line):
            name = re.sub(r"\s", "", header[1])
            if name == "price":
                entry, band = entry + 1, 0
            elif name == "price.band":
                band += 1
            found.setdefault((entry, band, ""), number)
            if name not in ("price", "price.band"):
                found.setdefault((0, 0, name), number)
        elif key := _TOML_KEY.match(line):
            found.setdefault((entry, band, next(part for part in key.groups() if part)), number)
    return found


_Group = tuple[str, str | None, datetime]


def _entries(rows: Iterable[_Row], around: Around, problems: list[Problem]) -> Iterator[Found]:
    """One entry for each model, scope and instant: its own row and those of its bands."""
    made: dict[_Group, tuple[int, PriceEntry]] = {}
    bands: dict[_Group, list[tuple[int, list[Band]]]] = {}
    broken: set[_Group] = set()
    for row in rows:
        before = len(problems)
        group = _group(row, around, problems)
        if "model" not in row.values:
            problems.append(Problem(row.line, "there is no model"))
        if "band" in row.values:
            found = _bands(row, problems)
            if group is not None and found is not None:
                bands.setdefault(group, []).append((row.line, found))
        else:
            # Read even if nothing can become of it: all that is wrong in a file is told at once.
            entry = _entry(row, group or ("", None, around.begin), around, problems)
            if group is not None and group in made:
                first = made[group][0]
                words = f"{row.values['model']} stands for this instant in line {first} already"
                problems.append(Problem(row.line, words))
            elif group is not None:
                made[group] = (row.line, entry)
        if group is not None and len(problems) > before:
            broken.add(group)
    for group, (line, entry) in made.items():
        own = [band for _, some in bands.pop(group, []) for band in some]
        if group not in broken:
            yield Found(line, msgspec.structs.replace(entry, bands=own))
    for left in bands.values():
        words = "no entry has the model, scope and from of this band"
        problems += [Problem(line, words) for line, _ in left]


def _group(row: _Row, around: Around, problems: list[Problem]) -> _Group | None:
    model = _field(row, "model", parse_model, "", problems)
    scope: str | None = None
    before = len(problems)
    if "scope" in row.values:
        scope = _field(row, "scope", around.scope, "", problems)
    begin = _field(row, "from", parse_instant, around.begin, problems)
    return None if not model or len(problems) > before else (model, scope, begin)


def _entry(row: _Row, group: _Group, around: Around, problems: list[Problem]) -> PriceEntry:
    unit: Unit = _field(row, "unit", parse_unit, UNIT_DEFAULT, problems)
    zone = _field(row, "zone", around.zone, "", problems) or None
    discount = _field(row, "discount", _percent, "", problems) or None
    return PriceEntry(
        price_id=around.mint(),
        model=group[0],
        scope=group[1],
        effective_from=group[2],
        currency=_field(row, "currency", parse_currency, CURRENCY_DEFAULT, problems),
        unit=unit,
        zone=zone,
        discount=discount,
        per_unit=_prices(row, unit, problems),
    )


def _bands(row: _Row, problems: list[Problem]) -> list[Band] | None:
    prices = _prices(row, UNIT_DEFAULT, problems)
    days, hours = row.values.get("days", "daily"), row.values.get("hours", "00:00-24:00")
    try:
        return bands_of(row.values["band"], days, hours, prices)
    except ValueError as wrong:
        field = "days" if "weekday" in str(wrong) else "hours" if "hours" in str(wrong) else "band"
        problems.append(Problem(row.at(field), str(wrong)))
        return None


def _prices(row: _Row, unit: Unit, problems: list[Problem]) -> dict[str, str]:
    given = [(name, row.values[name]) for name in (*SIDES, *PRICED) if name in row.values]
    for name, text in given:
        try:
            amount(name, text, unit)
        except ValueError as wrong:
            problems.append(Problem(row.at(name), str(wrong)))
    return named_prices(given)


def _percent(text: str) -> str:
    try:
        percent_parts(text.removesuffix("%").strip())
    except AmountError as wrong:
        raise ValueError(str(wrong)) from wrong
    return text.removesuffix("%").strip()


def _field(
    row: _Row, name: str, parse_text: Callable[[str], T], default: T, problems: list[Problem]
) -> T:
    text = row.values.get(name)
    if text is None:
        return default
    try:
        return parse_text(text)
    except ValueError as wrong:
        problems.append(Problem(row.at(name), str(wrong)))
        return default

"""Options that several verbs share, and how their text becomes values. Pure but for `--data`."""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, TypeVar

import click

DATA_DEFAULT: Final = Path("tollbook-data")
GROUPINGS: Final = ("project", "key", "model", "day")
_MONTH: Final = re.compile(r"([0-9]{4})-([0-9]{2})")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

Command = TypeVar("Command", bound=Callable[..., Any])


def parse_month(text: str) -> str:
    """`text` if it is a month such as 2026-11. Raises `ValueError` with words."""
    match = _MONTH.fullmatch(text)
    if match is None or not 1 <= int(match[2]) <= 12 or int(match[1]) < 1970:
        raise ValueError(f"{text!r} is not a month; write it as 2026-11")
    return text


def parse_instant(text: str) -> datetime:
    """The aware UTC instant in `text`; a date is its first moment, without a zone it is UTC.

    Raises `ValueError` with words.
    """
    try:
        if _DATE.fullmatch(text):
            day = date.fromisoformat(text)
            return datetime(day.year, day.month, day.day, tzinfo=UTC)
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not an instant; write 2026-11-01 or 2026-11-01T08:00:00Z"
        ) from None


def parse_names(text: str) -> tuple[str, ...]:
    """The names in a list with commas, each once. Raises `ValueError` with words."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if "" in names:
        raise ValueError(f"{text!r} holds an empty name; write names with commas between: a,b")
    return names


def parse_groups(text: str) -> tuple[str, ...]:
    """What a bill is grouped by, in the bill's own order. Raises `ValueError` with words."""
    names = parse_names(text)
    stranger = next((name for name in names if name not in GROUPINGS), None)
    if stranger is not None:
        raise ValueError(f"a bill is not grouped by {stranger!r}, but by {', '.join(GROUPINGS)}")
    return tuple(name for name in GROUPINGS if name in names)


def parse_price(text: str) -> str:
    """An exact decimal price of a million tokens, in plain digits. Raises `ValueError`."""
    from ledger.amounts import pico_per_token
    from ledger.errors import AmountError

    try:
        pico_per_token(text)
    except AmountError as wrong:
        raise ValueError(str(wrong)) from wrong
    return format(Decimal(text), "f")


class Parsed(click.ParamType):
    """A click type made of one of the functions above."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)


MONTH: Final = Parsed("YYYY-MM", parse_month)
INSTANT: Final = Parsed("instant", parse_instant)
NAMES: Final = Parsed("a,b", parse_names)
GROUPS: Final = Parsed("project,key,model,day", parse_groups)
PRICE: Final = Parsed("price", parse_price)


def data_option(command: Command) -> Command:
    """`--data DIR`, which every verb takes."""
    return click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="TOLLBOOK_DATA",
        default=DATA_DEFAULT,
        show_default=True,
        metavar="DIR",
        help="Data directory. Also read from TOLLBOOK_DATA.",
    )(command)


def json_option(command: Command) -> Command:
    """`--json`, which every verb takes that prints data."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def csv_option(command: Command) -> Command:
    """`--csv`, for the verbs that print one table."""
    return click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")(command)


def one_format(as_json: bool, as_csv: bool) -> None:
    """Refuse two formats at once."""
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other; give one of them")

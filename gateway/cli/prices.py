"""`tollbook prices`: publish, list, import, compare and try prices. A price is never changed, a
later one takes over."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import click
import msgspec

from gateway.cli.account_facts import find
from gateway.cli.data import all_names, change_registry, current_ledger, registry
from gateway.cli.failure import EXIT_FAILED, Stop
from gateway.cli.options import INSTANT, MONTH, PRICE, Parsed, csv_option, json_option, one_format
from gateway.cli.output import json_text, show
from gateway.cli.period_words import nothing_words
from gateway.cli.place import Place, place_option
from gateway.cli.price_entries import (
    CURRENCY_DEFAULT,
    PRICED,
    UNIT_DEFAULT,
    UNITS,
    Unit,
    begin_of,
    named_prices,
    parse_band,
    parse_currency,
    parse_model,
    parse_unit,
    set_entry,
)
from gateway.cli.price_file import Around, Kind, Problem, judged, parse
from gateway.cli.price_file import Parsed as ParsedFile
from gateway.cli.price_words import (
    difference_table,
    differences,
    file_table,
    price_json,
    prices_table,
    simulated_json,
    simulated_table,
    standing,
)
from gateway.cli.progress import progress
from ledger.clock import SystemClock
from ledger.errors import AmountError, BadZone
from ledger.events import Draft, PriceEntry, PriceListed
from ledger.events.money import Band
from ledger.folds.book import Book
from ledger.folds.months import standing_of
from ledger.folds.price_lists import free_from, percent_parts, price_of, publishable
from ledger.folds.prices import Price
from ledger.identity import mint_id
from ledger.words import counted
from ledger.zones import zone_of

SUBJECT: Final = "prices"
LIST_BYTES_MAX: Final = 900_000
"""An event fits one frame of a log, which has a mebibyte; some of that is around the list."""


def parse_percent(text: str) -> str:
    """A discount in percent. Raises `ValueError` with words."""
    try:
        percent_parts(text.removesuffix("%"))
    except AmountError as wrong:
        raise ValueError(str(wrong)) from wrong
    return text.removesuffix("%")


def parse_zone(text: str) -> str:
    """The name of a time zone. Raises `ValueError` with words and the nearest name."""
    try:
        zone_of(text)
    except BadZone as wrong:
        raise ValueError(str(wrong)) from wrong
    return text


def parse_reason(text: str) -> str:
    """Why prices are made anew. Raises `ValueError` with words."""
    if not text.strip() or not text.isprintable() or len(text) > 500:
        raise ValueError("a reason is one line of 1 to 500 characters; it is kept for ever")
    return text.strip()


RERATE: Final = click.option(
    "--rerate",
    type=Parsed("reason", parse_reason),
    metavar="REASON",
    help="Allow it to begin earlier than a minute from now and so to price anew what is on the "
    "bill of an open month. The reason is kept with it; a closed month never changes.",
)


@click.group("prices", no_args_is_help=True)
def command() -> None:
    """Prices by model and kind of token, with bands, discounts and charges."""


@command.command("set")
@click.argument("model")
@click.option("--in", "input_", type=PRICE, metavar="P", help="Every kind of input.")
@click.option("--out", "output", type=PRICE, metavar="P", help="Every kind of output.")
@click.option("--uncached-in", type=PRICE, metavar="P", help="Input that was processed.")
@click.option("--cached-in", type=PRICE, metavar="P", help="Input found in the prefix cache.")
@click.option("--cache-write-in", type=PRICE, metavar="P", help="Input written to a cache.")
@click.option("--reasoning-out", type=PRICE, metavar="P", help="Output that was reasoning.")
@click.option("--other-out", type=PRICE, metavar="P", help="All other output.")
@click.option("--request", type=PRICE, metavar="P", help="Each request whose tokens are known.")
@click.option("--gpu-second", type=PRICE, metavar="P", help="Each second spent with a backend.")
@click.option(
    "--failed-attempt",
    type=PRICE,
    metavar="P",
    help="Each call of a backend that failed and was tried elsewhere. Default: nothing.",
)
@click.option(
    "--unit",
    type=Parsed("tokens", parse_unit),
    default=str(UNIT_DEFAULT),
    show_default=True,
    metavar="TOKENS",
    help=f"How many tokens a price is for: {', '.join(UNITS)}.",
)
@click.option("--key", metavar="ID|NAME", help="Only for this key, before every other price.")
@click.option("--project", metavar="ID|NAME", help="Only for the keys of this project.")
@click.option(
    "--discount",
    type=Parsed("percent", parse_percent),
    metavar="PERCENT",
    help="Instead of prices: so much off the price that holds without this one.",
)
@click.option(
    "--band",
    "bands",
    type=Parsed("band", parse_band),
    multiple=True,
    metavar="NAME:DAYS:HOURS:PRICES",
    help="Other prices at some hours of the week: night:mon-fri:22:00-06:00:in=0.05,out=0.2. May "
    "be given more than once. Default: the bands that the price has.",
)
@click.option("--no-bands", is_flag=True, help="Drop the bands that the price has.")
@click.option(
    "--zone",
    type=Parsed("zone", parse_zone),
    metavar="NAME",
    help="By whose clock bands are told, such as Europe/Berlin.",
)
@click.option(
    "--currency",
    type=Parsed("currency", parse_currency),
    metavar="CODE",
    help="Default: that of the model's price so far, else USD.",
)
@click.option(
    "--from",
    "begin",
    type=INSTANT,
    metavar="INSTANT",
    help="From when on: 2026-11-01 or 2026-11-01T08:00:00Z. Default: in a minute; with --rerate "
    "now.",
)
@RERATE
@place_option
@json_option
def set_price(
    model: str,
    unit: Unit,
    key: str | None,
    project: str | None,
    discount: str | None,
    bands: tuple[tuple[Band, ...], ...],
    no_bands: bool,
    zone: str | None,
    currency: str | None,
    begin: datetime | None,
    rerate: str | None,
    place: Place,
    as_json: bool,
    **given: str | None,
) -> None:
    """Publish the price of MODEL, or of all models that a pattern matches: 'llama-*', or '*'.

    A price is an exact decimal with at most six places. --in and --out stand for all kinds that
    are not given alone; a kind that is not given at all keeps the price it has.
    """
    prices = _named(given)
    if not prices and discount is None and not bands and not no_bands:
        raise click.UsageError(
            "no price is given; give --in P and --out P, or a kind of token, or --discount PERCENT"
        )
    if discount is not None and (prices or bands):
        raise click.UsageError("--discount is off other prices; it stands without prices and bands")
    if key is not None and project is not None:
        raise click.UsageError("--key and --project exclude each other; give one of them")
    scope = None
    if key is not None or project is not None:
        kind = "key" if key is not None else "project"
        scope = scope_of(registry(place), place, f"{kind}/{key or project}")
    price_id, model = mint_id(), _model(model)

    def entry_from(moment: datetime) -> PriceEntry:
        return PriceEntry(
            price_id=price_id,
            model=model,
            currency=CURRENCY_DEFAULT,
            effective_from=moment,
            unit=unit,
            per_unit=prices,
            scope=scope,
            discount=discount,
            zone=zone,
            bands=[band for parts in bands for band in parts],
        )

    whole = bool(bands) or no_bands

    def make(book: Book) -> Draft:
        # Read here, where no other command can be at it: a minute is meant from then on.
        now = SystemClock().now()
        begins = begin_of(begin, rerate, now)
        if begin is None and rerate is None:
            begins = free_from(begins, [entry_from(begins)], book.prices)
        try:
            entry = set_entry(book, entry_from(begins), currency, bands_given=whole)
        except ValueError as wrong:
            raise Stop(str(wrong)) from wrong
        return listing(book, [entry], rerate, now)

    book = change_registry(place, make)
    price = next(one for one in book.prices if one.price_id == price_id)
    if as_json:
        click.echo(json_text(price_json(price, book.rerated)))
    else:
        show(prices_table([price], {price.price_id: "set"}, book.rerated))


@command.command("list")
@place_option
@csv_option
@json_option
def list_prices(place: Place, as_csv: bool, as_json: bool) -> None:
    """List every price that was ever published, and which of them stands now.

    --csv prints a file that `tollbook prices import` takes.
    """
    one_format(as_json, as_csv)
    book = registry(place)
    prices = sorted(
        book.prices,
        key=lambda one: (one.model, one.scope or "", one.effective_from, one.version),
    )
    states = standing(prices, SystemClock().now())
    if as_json:
        rows = [
            {**price_json(price, book.rerated), "state": states[price.price_id]} for price in prices
        ]
        click.echo(json_text({"prices": rows}))
    elif as_csv:
        show(file_table(prices, states, book.rerated), as_csv=True)
    else:
        table = prices_table(prices, states, book.rerated)
        show(table, empty="no price yet; `tollbook prices set` publishes one")


@command.command("import")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only say what is wrong with it.")
@click.option(
    "--from",
    "begin",
    type=INSTANT,
    metavar="INSTANT",
    help="When what names no instant begins. Default: in a minute; with --rerate now.",
)
@RERATE
@place_option
@json_option
def import_prices(
    file: Path,
    dry_run: bool,
    begin: datetime | None,
    rerate: str | None,
    place: Place,
    as_json: bool,
) -> int:
    """Publish all prices of FILE, CSV or TOML, together: all of them or none.

    Every problem is listed with its line; with one of them nothing is published.
    """
    read: list[ParsedFile] = []

    def make(book: Book) -> Draft:
        now = SystemClock().now()
        begins = begin_of(begin, rerate, now)
        parsed = _read(file, book, place, begins)
        if begin is None and rerate is None:
            free = free_from(begins, parsed.entries, book.prices)
            parsed = parsed if free == begins else _read(file, book, place, free)
        found = judged(parsed, book.prices, now, rerate, _closed_until(book))
        if found:
            raise _Problems(found)
        draft = listing(book, parsed.entries, rerate, now)
        if len(msgspec.json.encode(draft.payload)) > LIST_BYTES_MAX:
            prices = counted(len(parsed.entries), "price")
            raise Stop(f"{file} holds {prices}, more than one event can; split it")
        read[:] = [parsed]
        return draft

    try:
        if dry_run:
            make(registry(place))
        else:
            change_registry(place, make)
    except _Problems as wrong:
        return _refuse(file, wrong.problems, as_json)
    entries = read[0].entries
    if as_json:
        ids = [entry.price_id for entry in entries]
        click.echo(
            json_text(
                {
                    "imported": not dry_run,
                    "prices": [] if dry_run else ids,
                    "count": len(ids),
                    "problems": [],
                }
            )
        )
    else:
        what = "would be published" if dry_run else "published, all together"
        click.echo(f"{file}: {counted(len(entries), 'price')} {what}")
    return 0


@command.command("diff")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@place_option
@csv_option
@json_option
def diff(file: Path, place: Place, as_csv: bool, as_json: bool) -> int:
    """Show what the prices of FILE would change, each against what then stands for its model and
    scope. Publishes nothing."""
    one_format(as_json, as_csv)
    now, book = SystemClock().now(), registry(place)
    parsed = _read(file, book, place, begin_of(None, None, now))
    if parsed.problems:
        return _refuse(file, parsed.problems, as_json)
    found = differences(book, parsed)
    if as_json:
        click.echo(json_text({"differences": found}))
    else:
        show(difference_table(found), as_csv=as_csv, empty=f"{file} changes no price")
    return 0


@command.command("simulate")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--month",
    type=MONTH,
    required=True,
    metavar="YYYY-MM",
    help="The month whose usage is priced, in the zone of the books.",
)
@place_option
@csv_option
@json_option
def simulate(file: Path | None, month: str, place: Place, as_csv: bool, as_json: bool) -> int:
    """Show what a month would have cost at the prices of FILE (default: at those that stand now)
    beside what it cost. Publishes nothing.

    The prices of FILE stand in the place of all others for the same model and scope; one that
    begins outside of the month counts from its first instant.
    """
    from ledger.sql.replay import load_book
    from ledger.sql.simulate import simulated, standing_now

    one_format(as_json, as_csv)
    now = SystemClock().now()
    with current_ledger(place) as ledger, ledger.read() as read:
        book = load_book(read)
        candidates = standing_now(book, now)
        if file is not None:
            parsed = _read(file, book, place, begin_of(None, None, now))
            if not parsed.problems:
                candidates, parsed = _priced(parsed, book)
            if parsed.problems:
                return _refuse(file, parsed.problems, as_json)
        with progress(f"pricing {month} twice"):
            found = simulated(read, book, month, candidates, whole=file is None)
    standing = standing_of(book.periods, month)
    if as_json:
        click.echo(json_text(simulated_json(standing, found)))
    else:
        table = simulated_table(standing, found)
        if as_csv:
            click.echo(f"tollbook: {table.notes[-1]}", err=True)
        show(table, as_csv=as_csv, empty=nothing_words(standing))
    return 0


def listing(book: Book, entries: Sequence[PriceEntry], rerate: str | None, now: datetime) -> Draft:
    """The fact of these prices, told at `now` and made from the book's newest. Raises `Stop` with
    the reason if they may not be published."""
    payload = PriceListed(base=len(book.prices), entries=list(entries), rerate=rerate)
    found = publishable(payload, now, book.prices, _closed_until(book))
    if isinstance(found, str):
        raise Stop(found)
    return Draft(mint_id(), SUBJECT, now, payload)


def scope_of(book: Book, place: Place, text: str) -> str:
    """The scope that `key/ID|NAME` or `project/ID|NAME` names. Raises `Stop`."""
    kind, slash, which = text.partition("/")
    if not slash or kind not in ("key", "project") or not which:
        raise Stop(f"{text!r} is no scope; write key/ID or project/ID, an id or a name")
    found, id_ = find(book, all_names(place), which, (kind,))
    return f"{found}/{id_}"


def _closed_until(book: Book) -> datetime | None:
    return book.periods[-1].end if book.periods else None


class _Problems(Exception):
    """What is wrong with a price file; it never leaves this module."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("a price file has problems")
        self.problems = problems


def _read(file: Path, book: Book, place: Place, begin: datetime) -> ParsedFile:
    kind: Kind = "toml" if file.suffix.lower() == ".toml" else "csv"
    names = all_names(place)

    def scope(text: str) -> str:
        before, slash, which = text.partition("/")
        if not slash or before not in ("key", "project") or not which:
            raise ValueError(f"{text!r} is no scope; write key/ID or project/ID, an id or a name")
        try:
            return "/".join(find(book, names, which, (before,)))
        except Stop as wrong:
            raise ValueError(wrong.message) from wrong

    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as wrong:
        raise Stop(f"{file} cannot be read: {wrong.strerror}; nothing was published") from wrong
    except UnicodeDecodeError as wrong:
        raise Stop(
            f"{file} is no text in UTF-8: {wrong}; save it as CSV or TOML in UTF-8"
        ) from None
    return parse(text, kind, Around(begin=begin, scope=scope, zone=parse_zone, mint=mint_id))


def _priced(parsed: ParsedFile, book: Book) -> tuple[list[Price], ParsedFile]:
    """The entries as prices that are later than all others; or the file with what is wrong."""
    last = max((price.version for price in book.prices), default=0)
    prices, problems = [], list(parsed.problems)
    for number, one in enumerate(parsed.found, 1):
        made = price_of(one.entry, last + number)
        if isinstance(made, str):
            problems.append(Problem(one.line, made))
        else:
            prices.append(made)
    return prices, ParsedFile(parsed.found, problems)


def _refuse(file: Path, problems: Sequence[Problem], as_json: bool) -> int:
    if as_json:
        click.echo(json_text({"imported": False, "problems": problems}))
    for one in problems:
        click.echo(f"{file}:{one.line}: {one.words}", err=True)
    count = counted(len(problems), "problem")
    click.echo(f"tollbook: {file} has {count}; nothing was published", err=True)
    return EXIT_FAILED


def _named(given: Mapping[str, str | None]) -> dict[str, str]:
    names = {"input_": "in", "output": "out"}
    said = ((names.get(name, name), text) for name, text in given.items() if text is not None)
    prices = named_prices(said)
    return {name: prices[name] for name in PRICED if name in prices}


def _model(text: str) -> str:
    try:
        return parse_model(text)
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from None

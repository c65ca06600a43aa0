"""`tollbook prices`: publish and list prices. A price is never changed, a later one takes over."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import click

from gateway.cli.data import change_registry, registry
from gateway.cli.options import INSTANT, PRICE, Parsed, json_option
from gateway.cli.output import Column, Table, json_text, show
from gateway.cli.place import Place, place_option
from ledger.amounts import decimal_text
from ledger.clock import SystemClock
from ledger.events import BUCKETS, Draft, PricePublished
from ledger.folds.book import Book
from ledger.folds.prices import Price
from ledger.identity import mint_id

CURRENCY_DEFAULT: Final = "USD"
TOKENS_PER_PRICE: Final = 1_000_000
"""Prices are written per million tokens, as everybody writes them."""

_CURRENCY: Final = re.compile(r"[A-Z]{3}")


def parse_currency(text: str) -> str:
    """A currency's three letters. Raises `ValueError` with words."""
    if not _CURRENCY.fullmatch(text.upper()):
        raise ValueError(f"{text!r} is not a currency; write its three letters, such as USD or EUR")
    return text.upper()


@click.group("prices", no_args_is_help=True)
def command() -> None:
    """Prices per million tokens, by model and kind of token."""


@command.command("set")
@click.argument("model")
@click.option("--in", "input_", type=PRICE, metavar="P", help="Every kind of input.")
@click.option("--out", "output", type=PRICE, metavar="P", help="Every kind of output.")
@click.option("--uncached-in", type=PRICE, metavar="P", help="Input that was processed.")
@click.option("--cached-in", type=PRICE, metavar="P", help="Input found in the prefix cache.")
@click.option("--cache-write-in", type=PRICE, metavar="P", help="Input written to a cache.")
@click.option("--reasoning-out", type=PRICE, metavar="P", help="Output that was reasoning.")
@click.option("--other-out", type=PRICE, metavar="P", help="All other output.")
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
    help="From when on: 2026-11-01 or 2026-11-01T08:00:00Z. Default: now. It may be past.",
)
@place_option
@json_option
def set_price(
    model: str,
    input_: str | None,
    output: str | None,
    uncached_in: str | None,
    cached_in: str | None,
    cache_write_in: str | None,
    reasoning_out: str | None,
    other_out: str | None,
    currency: str | None,
    begin: datetime | None,
    place: Place,
    as_json: bool,
) -> None:
    """Publish the price of MODEL ('*': every model without its own) for a million tokens.

    A price is an exact decimal with at most six places. --in and --out stand for all kinds that
    are not given alone; a kind that is not given at all keeps the price it has.
    """
    each = {
        "uncached_in": uncached_in,
        "cached_in": cached_in,
        "cache_write_in": cache_write_in,
        "reasoning_out": reasoning_out,
        "other_out": other_out,
    }
    given = per_bucket(input_, output, each)
    if not given:
        raise click.UsageError("no price is given; give --in P and --out P, or a kind of token")
    if not model.strip() or not model.isprintable():
        raise click.UsageError(f"{model!r} is not the name of a model; give it as in /v1/models")
    now = SystemClock().now()
    price_id = mint_id()
    book = change_registry(
        place,
        lambda book: publish(book, price_id, model, given, currency, begin or now, now),
    )
    price = next(one for one in book.prices if one.price_id == price_id)
    if as_json:
        click.echo(json_text(price_json(price)))
    else:
        show(prices_table([price], {price.price_id: "set"}))


@command.command("list")
@place_option
@json_option
def list_prices(place: Place, as_json: bool) -> None:
    """List every price that was ever published, and which of them stands now."""
    prices = sorted(
        registry(place).prices,
        key=lambda price: (price.model, price.effective_from, price.version),
    )
    states = standing(prices, SystemClock().now())
    if as_json:
        rows = [{**price_json(price), "state": states[price.price_id]} for price in prices]
        click.echo(json_text({"prices": rows}))
    else:
        show(
            prices_table(prices, states), empty="no price yet; `tollbook prices set` publishes one"
        )


def per_bucket(
    input_: str | None, output: str | None, each: Mapping[str, str | None]
) -> dict[str, str]:
    """The price of each bucket that was given, alone or by its side. Pure."""
    prices = {}
    for bucket in BUCKETS:
        side = input_ if bucket.endswith("_in") else output
        price = side if each[bucket] is None else each[bucket]
        if price is not None:
            prices[bucket] = price
    return prices


def publish(
    book: Book,
    price_id: str,
    model: str,
    given: Mapping[str, str],
    currency: str | None,
    begin: datetime,
    now: datetime,
) -> Draft:
    """The fact of a new price for `model` from `begin` on, made from the book's newest. Pure.

    A bucket that is not in `given` keeps what the model's own price then is, unless the currency
    changes: an amount in another currency is not carried over.
    """
    own = [price for price in book.prices if price.model == model]
    begun = [price for price in own if price.effective_from <= begin]
    before = max(begun, key=lambda price: (price.effective_from, price.version), default=None)
    currency = currency or (before.currency if before else CURRENCY_DEFAULT)
    kept = per_million(before) if before and before.currency == currency else {}
    prices = {**kept, **given}
    version = max((price.version for price in own), default=0)
    payload = PricePublished(
        price_id=price_id,
        model=model,
        base=version,
        version=version + 1,
        currency=currency,
        effective_from=begin,
        per_million={bucket: prices[bucket] for bucket in BUCKETS if bucket in prices},
    )
    return Draft(price_id, model, now, payload)


def per_million(price: Price) -> dict[str, str]:
    """The exact decimal of a million tokens by bucket. Pure."""
    return {
        bucket: decimal_text(price.pico[bucket] * TOKENS_PER_PRICE)
        for bucket in BUCKETS
        if bucket in price.pico
    }


def standing(prices: list[Price], now: datetime) -> dict[str, str]:
    """Of each price whether it stands `now`, comes later, or is past. Pure."""
    latest: dict[str, Price] = {}
    for price in prices:
        old = latest.get(price.model)
        order = (price.effective_from, price.version)
        if price.effective_from <= now and (
            old is None or order > (old.effective_from, old.version)
        ):
            latest[price.model] = price
    return {
        price.price_id: "now"
        if latest.get(price.model) is price
        else ("later" if price.effective_from > now else "past")
        for price in prices
    }


def price_json(price: Price) -> dict[str, object]:
    """One price for JSON; a bucket without a price is null."""
    prices = per_million(price)
    return {
        "id": price.price_id,
        "model": price.model,
        "version": price.version,
        "currency": price.currency,
        "from": price.effective_from,
        "per_million": {bucket: prices.get(bucket) for bucket in BUCKETS},
    }


def prices_table(prices: list[Price], states: Mapping[str, str]) -> Table:
    """Prices as a table, per million tokens; a bucket without a price is a dash."""
    columns = [Column("model"), Column("from"), Column("state"), Column("currency")]
    return Table(
        columns=(*columns, *(Column(bucket, number=True) for bucket in BUCKETS)),
        rows=tuple(
            (
                price.model,
                price.effective_from,
                states[price.price_id],
                price.currency,
                *(per_million(price).get(bucket) for bucket in BUCKETS),
            )
            for price in prices
        ),
        notes=("Prices are for a million tokens.",),
    )

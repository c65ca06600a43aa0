"""A month as single charges: one for each bucket of tokens and each charge, hour by hour."""

from collections.abc import Iterator

import msgspec

from ledger.events import BUCKETS
from ledger.folds.book import Book
from ledger.folds.prices import CHARGES
from ledger.folds.rating import Kind, Rated
from ledger.sql.rated import Step, month_lines
from ledger.sql.session import ReadSession

UNITS: dict[str, int] = {"request": 1, "failed_attempt": 1, "gpu_second": 1_000_000}


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity at one unit price, so that quantity times price is the cost exactly.

    `bucket` is a token bucket or a charge. `quantity` counts tokens, requests, calls that failed,
    or microseconds (`gpu_second`); below zero in a correction. `unit_pico` is 10^-12 of `currency`
    for one of these and `list_pico` the same before a discount; `unit` is how many of them the
    price was set for. All of them, and `cost_pico`, are null where there is no price. `requests`
    are those that the quantity is of: it stands on each of their charges. `start_us` is the first
    instant of the hour or day. `corrects` names the event whose line it corrects.
    """

    start_us: int
    key_id: str
    project_id: str | None
    model: str
    basis: str
    bucket: str
    quantity: int
    list_pico: int | None
    unit_pico: int | None
    cost_pico: int | None
    currency: str | None
    price_id: str | None
    price_version: int | None
    band: str | None
    unit: int
    requests: int
    corrects: str | None
    kind: Kind
    discount_id: str | None = None


def charges(read: ReadSession, book: Book, month: str, *, step: Step = "hour") -> Iterator[Charge]:
    """The charges of `month`, by time, project, key, model, bucket, basis, price, band, correction.

    A quantity of zero is none. Requests of which nothing is known (basis `none`) have no charge;
    `month_lines` has them. Raises `BadQuery` for a month that is none.
    """
    held: list[Charge] = []
    for line in month_lines(read, book, month, step=step):
        if held and held[0].start_us != line.start_us:
            yield from sorted(held, key=_order)
            held = []
        held += charges_of(line)
    yield from sorted(held, key=_order)


def charges_of(line: Rated) -> Iterator[Charge]:
    """The charges that one part of the usage comes to."""
    rate, used = line.rate, line.used
    for bucket in (*BUCKETS, *CHARGES):
        quantity = used.get(bucket)
        unit_pico = None if rate is None else rate.pico.get(bucket)
        if not quantity or (bucket in CHARGES and unit_pico is None):
            continue
        price = None if unit_pico is None or rate is None else rate.price
        usual_unit = 1_000_000 if rate is None else rate.price.unit
        yield Charge(
            start_us=line.start_us,
            key_id=line.key_id,
            project_id=line.project_id,
            model=line.model,
            basis=line.basis,
            bucket=bucket,
            quantity=quantity,
            list_pico=None if rate is None else rate.list_pico.get(bucket),
            unit_pico=unit_pico,
            cost_pico=None if unit_pico is None else quantity * unit_pico,
            currency=None if price is None else price.currency,
            price_id=None if price is None else price.price_id,
            price_version=None if price is None else price.version,
            band=None if price is None or rate is None else rate.band,
            unit=UNITS.get(bucket, usual_unit),
            requests=line.totals.requests,
            corrects=line.corrects,
            kind=line.kind,
            discount_id=_discount(line) if price is not None else None,
        )


def _discount(line: Rated) -> str | None:
    off = None if line.rate is None else line.rate.discount
    return None if off is None else off.price_id


def _order(one: Charge) -> tuple[object, ...]:
    texts = (one.project_id, one.key_id, one.model, one.bucket, one.basis, one.price_id)
    more = (one.band, one.corrects, one.discount_id, one.kind)
    return one.start_us, *(text or "" for text in (*texts, *more))

"""Which price holds for a use at an instant, and what it makes of each unit. Pure.

Of the prices that have begun the best holds whole, and gives nothing of another's to what it does
not name. The best is that for the key, then that for its project, then that for everybody; of those
that for the very model, then that of the longest pattern; of those the one that begins last, and of
two that begin together the later in the registry. A discount stands in this order too, and takes
its percent off the best below it that has prices of its own. The time of a request decides, and
never the order in which prices and requests became known.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import msgspec

from ledger.amounts import discounted
from ledger.events import BUCKETS
from ledger.folds.money import Member
from ledger.folds.prices import Price, PricedBand
from ledger.folds.usage import Five, Totals, by_bucket

Local = Callable[[str, int], tuple[int, int]]
"""Weekday (1 is Monday) and minute of the local day, of a zone's name and an instant."""

RateName = tuple[str, str | None, str | None]
"""What tells rates apart: the id of the price, that of the discount, the name of the band."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Rate(msgspec.Struct, frozen=True):
    """What a unit costs in pico of `currency`, by token bucket and charge; what is not named has no
    price.

    `list_pico` is before `discount` and `pico` after it. `price` is the entry that these numbers
    stand in, `band` the one of its bands in which they were found.
    """

    price: Price
    band: str | None
    currency: str
    list_pico: Mapping[str, int]
    pico: Mapping[str, int]
    discount: Price | None = None

    @property
    def name(self) -> RateName:
        """What tells this rate from every other of a price book."""
        off = None if self.discount is None else self.discount.price_id
        return self.price.price_id, off, self.band


Kind = Literal["usage", "late", "corrected"]


class Rated(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one key, model and basis within one hour, day or span, all of it at one rate.

    `start_us` is the first instant of that part, in microseconds since 1970. `totals` holds only
    requests with an end. `failed_attempts` counts their calls beyond each one's last; `busy_us` is
    how long they spent with a backend, null where nobody knows it of any of them; both are counted
    where the rate charges for them, and are else 0 and null. `rate` null: no price holds. `kind`
    other than `usage`: `corrects` names the event, `source:sequence`, that ended the request whose
    line this corrects, and counts may be below zero.
    """

    key_id: str
    project_id: str | None
    model: str
    basis: str
    start_us: int
    totals: Totals
    failed_attempts: int
    busy_us: int | None
    rate: Rate | None
    corrects: str | None = None
    kind: Kind = "usage"

    @property
    def used(self) -> dict[str, int | None]:
        """How many there are of what can have a price, by token bucket and charge. Where nothing is
        known of the tokens nothing else is charged either."""
        return used(self.basis, self.totals, self.failed_attempts, self.busy_us)


def used(
    basis: str, totals: Totals, failed_attempts: int, busy_us: int | None
) -> dict[str, int | None]:
    """Quantities by token bucket and charge; `gpu_second` in microseconds."""
    if basis == "none":
        return by_bucket(totals)
    return {
        **by_bucket(totals),
        "request": totals.requests,
        "gpu_second": busy_us,
        "failed_attempt": failed_attempts,
    }


def charged_only(one: Rated) -> Rated:
    """`one` with only those counts beyond tokens and requests that its rate charges for: no others
    have a place on a bill."""
    pico = {} if one.rate is None else one.rate.pico
    failed = one.failed_attempts if "failed_attempt" in pico else 0
    busy = one.busy_us if "gpu_second" in pico else None
    if (failed, busy) == (one.failed_attempts, one.busy_us):
        return one
    return msgspec.structs.replace(one, failed_attempts=failed, busy_us=busy)


def split(one: Rated) -> tuple[Rated, ...]:
    """The part of `one` that has a price, with its requests and charges, and the tokens that have
    none; `one` itself if it is all of a kind. So what a month costs does not depend on what a
    token without a price happens to be added up with."""
    pico = {} if one.rate is None else one.rate.pico
    counts = one.used
    lacking = tuple(bool(counts[name]) and name not in pico for name in BUCKETS)
    if not any(lacking) or not any(counts.get(name) for name in pico):
        return (one,)
    bare = Totals(0, _only(one.totals.tokens, lacking), _only(one.totals.known, lacking))
    return (
        msgspec.structs.replace(one, totals=one.totals.plus(bare, sign=-1)),
        msgspec.structs.replace(one, totals=bare, failed_attempts=0, busy_us=None),
    )


def _only(counts: Five, wanted: Sequence[bool]) -> Five:
    a, b, c, d, e = (n if take else 0 for n, take in zip(counts, wanted, strict=True))
    return (a, b, c, d, e)


class _Row:
    """The prices of one scope for one model or pattern, in the order in which they begin."""

    def __init__(self, prices: Iterable[Price]) -> None:
        self.prices = sorted(prices, key=lambda price: (price.effective_from, price.version))
        self.begins = [_us(price.effective_from) for price in self.prices]

    def begun(self, at_us: int) -> int:
        """How many have begun at that instant."""
        return bisect_right(self.begins, at_us)


class Sheet:
    """A price book made ready for many questions. `members` says which project a key belongs to."""

    def __init__(
        self, prices: Sequence[Price], members: Mapping[str, tuple[Member, ...]] | None = None
    ) -> None:
        rows: dict[tuple[str | None, str], list[Price]] = {}
        for price in prices:
            rows.setdefault((price.scope, price.model), []).append(price)
        self._exact: dict[tuple[str | None, str], _Row] = {}
        self._patterns: dict[str | None, list[tuple[str, _Row]]] = {}
        for (scope, model), found in rows.items():
            named = [price for price in found if not price.is_pattern]
            wide = [price for price in found if price.is_pattern]
            if named:
                self._exact[scope, model] = _Row(named)
            if wide:
                self._patterns.setdefault(scope, []).append((model[:-1], _Row(wide)))
        for found_patterns in self._patterns.values():
            found_patterns.sort(key=lambda pattern: -len(pattern[0]))
        self._members = {
            key_id: ([_us(one.since) for one in had], had)
            for key_id, had in (members or {}).items()
        }
        self._chains: dict[tuple[str, str | None, str], tuple[_Row, ...]] = {}
        self._rates: dict[RateName, Rate] = {}

    def project(self, key_id: str, at_us: int) -> str | None:
        """The project that the key belonged to at that instant."""
        had = self._members.get(key_id)
        count = 0 if had is None else bisect_right(had[0], at_us)
        return None if had is None or not count else had[1][count - 1].project_id

    def rate(self, key_id: str, model: str, at_us: int, local: Local) -> Rate | None:
        """What a request of that key and model, accepted at that instant, is priced by; null if no
        price holds. `at_us` is in microseconds since 1970."""
        discount: Price | None = None
        for row in self._chain(key_id, self.project(key_id, at_us), model):
            for price in reversed(row.prices[: row.begun(at_us)]):
                if price.discount is None:
                    return self._rate(price, _band_at(price, at_us, local), discount)
                discount = discount or price
        return None

    def cuts(self, first_us: int, after_us: int) -> list[int]:
        """The instants within the span, its first left out, at which a price begins or a key
        changes its project. Bands have edges beside these, which the clock of a zone tells."""
        moves = {at for begins, _ in self._members.values() for at in begins}
        return sorted(
            at for at in moves | set(self.starts(first_us, after_us)) if first_us < at < after_us
        )

    def starts(self, first_us: int, after_us: int) -> list[int]:
        """The instants within the span, its first left out, at which a price begins."""
        begins = {at for row in self._rows() for at in row.begins}
        return sorted(at for at in begins if first_us < at < after_us)

    def moves(self, first_us: int, after_us: int) -> dict[str, list[int]]:
        """The instants within the span, its first left out, at which a key changes its project."""
        found = {
            key_id: [at for at in begins if first_us < at < after_us]
            for key_id, (begins, _) in self._members.items()
        }
        return {key_id: moves for key_id, moves in found.items() if moves}

    def standing(self, first_us: int, after_us: int) -> list[Price]:
        """The prices that can hold at some instant of the span, also below a discount."""
        found: list[Price] = []
        for row in self._rows():
            # Below a discount an older price goes on, so it hides nothing before it.
            usual = [
                number
                for number in range(row.begun(first_us))
                if row.prices[number].discount is None
            ]
            since = usual[-1] if usual else 0
            found += row.prices[since : row.begun(after_us - 1)]
        return found

    def _rows(self) -> Iterable[_Row]:
        yield from self._exact.values()
        for patterns in self._patterns.values():
            yield from (row for _, row in patterns)

    def _chain(self, key_id: str, project_id: str | None, model: str) -> tuple[_Row, ...]:
        """The rows that can hold for it, the best first."""
        name = (key_id, project_id, model)
        found = self._chains.get(name)
        if found is None:
            found = self._chains[name] = tuple(self._matching(key_id, project_id, model))
        return found

    def _matching(self, key_id: str, project_id: str | None, model: str) -> Iterable[_Row]:
        scopes = [f"key/{key_id}", None]
        if project_id is not None:
            scopes.insert(1, f"project/{project_id}")
        for scope in scopes:
            if (exact := self._exact.get((scope, model))) is not None:
                yield exact
            for prefix, row in self._patterns.get(scope, ()):
                if model.startswith(prefix):
                    yield row

    def _rate(self, price: Price, band: PricedBand | None, discount: Price | None) -> Rate:
        off = None if discount is None else discount.price_id
        name = price.price_id, off, None if band is None else _label(price, band)
        found = self._rates.get(name)
        if found is None:
            usual = {**price.pico, **price.charges, **({} if band is None else band.pico)}
            parts = 0 if discount is None or discount.discount is None else discount.discount
            found = self._rates[name] = Rate(
                price=price,
                band=name[2],
                currency=price.currency,
                list_pico=usual,
                pico={what: discounted(pico, parts) for what, pico in usual.items()},
                discount=discount,
            )
        return found


def _band_at(price: Price, at_us: int, local: Local) -> PricedBand | None:
    if not price.bands or price.zone is None:
        return None
    weekday, minute = local(price.zone, at_us)
    for band in price.bands:
        if weekday in band.days and band.start <= minute < band.end:
            return band
    return None


def _label(price: Price, band: PricedBand) -> str:
    """The band's name, which must stand for one set of prices: where another band of this price has
    the same name and other prices, its place among them is part of it."""
    if all(one.pico == band.pico for one in price.bands if one.name == band.name):
        return band.name
    return f"{band.name} {price.bands.index(band) + 1}"


def _us(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND

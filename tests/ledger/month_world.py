"""Gateways, prices and sums for tests of closed months."""

from collections.abc import Sequence
from datetime import UTC, datetime

from ledger.amounts import decimal_text
from ledger.events import Draft, Event, SourceMark
from ledger.folds.cost import cost_of_rated
from ledger.folds.rating import Rated
from ledger.sql.periods import Sums, month_sums, parted
from ledger.sql.rated import month_lines
from ledger.sql.rebuild import rebuild
from ledger.sql.replay import load_book
from ledger.sql.session import Ledger
from tests.ledger.ledgers import Feeder, scribed
from tests.support import events as say
from tests.support.events import SOURCE, Scribe

NOVEMBER = datetime(2026, 11, 3, 10, 15, tzinfo=UTC)
END = datetime(2026, 12, 1, tzinfo=UTC)
DECEMBER = datetime(2026, 12, 9, 8, 20, tzinfo=UTC)
OTHER = "/gateway/other/0193a0000000700080000000000000b2"
RUNNER = "/runner/test/0193a0000000700080000000000000c3"
PRICES = {"uncached_in": "2", "cached_in": "1", "cache_write_in": "1", "reasoning_out": "8"}


class Gateway:
    """A source whose marks say how far it got."""

    def __init__(self, source: str = SOURCE) -> None:
        self.scribe = Scribe(source)
        self._marks = 0

    def says(self, *drafts: Draft) -> list[Event]:
        return self.scribe.write_all(*drafts)

    def marks(self, at: datetime) -> list[Event]:
        self._marks += 1
        payload = SourceMark(last=dict(self.scribe.last), open=0)
        draft = Draft(f"{self.scribe.source}/mark/{self._marks}", self.scribe.source, at, payload)
        return [self.scribe.write(draft)]


def priced(ledger: Ledger, *, model: str = "m", other_out: str = "4") -> None:
    prices = PRICES | {"other_out": other_out}
    at = datetime(2026, 1, 1, tzinfo=UTC)
    draft = say.price(f"p-{model}", prices, model=model, start=at)
    Feeder(ledger, f"registry/{model}").feed(scribed([draft], f"/cli/{model}"))


def sums(ledger: Ledger, month: str) -> Sums:
    with ledger.read() as read:
        return month_sums(read, load_book(read), month)


def lines(ledger: Ledger, month: str) -> list[Rated]:
    with ledger.read() as read:
        return list(month_lines(read, load_book(read), month, step="span"))


def cost(found: Sequence[Rated]) -> str:
    return decimal_text(sum(cost_of_rated(one).pico or 0 for one in found))


def clean(ledger: Ledger) -> None:
    """Nothing is wrong with the ledger, and a rebuild finds the same."""
    assert rebuild(ledger).parted == ()
    with ledger.read() as read:
        assert list(parted(read, load_book(read))) == []


def started(ledger: Ledger) -> tuple[Gateway, Feeder]:
    """A gateway that began in November with one request, and its log."""
    priced(ledger)
    gateway, feeder = Gateway(), Feeder(ledger)
    feeder.feed(gateway.marks(NOVEMBER))
    feeder.feed(gateway.says(say.accepted("r1", NOVEMBER), say.finished("r1", NOVEMBER)))
    return gateway, feeder


# --- what refuses -------------------------------------------------------------------------------

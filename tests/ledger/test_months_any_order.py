"""Closed months of a random year: no order of arrival moves anything, and every cost lands once."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.audit import audit
from ledger.clock import SystemClock
from ledger.events import Event
from ledger.sql import tables
from ledger.sql.adjust import corrections_of_all_time
from ledger.sql.hashes import projection_hash
from ledger.sql.periods import Sums
from ledger.sql.rated import month_lines, rated
from ledger.sql.rebuild import rebuild
from ledger.sql.replay import load_book
from ledger.sql.writer import Batch, LedgerWriter
from tests.ledger.closings import closing
from tests.ledger.ledgers import Feeder, Make, count, in_files, scribed
from tests.ledger.month_world import OTHER, PRICES, RUNNER, Gateway, clean, cost, sums
from tests.support import events as say
from tests.support.events import SOURCE, Scribe


def told_of_a_year(seed: int, directory: Path) -> tuple[list[Event], list[Event], list[Sums]]:
    """A life of three months with every kind of lateness, told to one writer in time's own order:
    the events of usage, those of the registry in their order, and what the months came to."""
    dice = random.Random(seed)
    usage: list[Event] = []
    registry: list[Event] = []
    with in_files(directory, f"first{seed}") as ledger:
        feeder = Feeder(ledger)

        def tell(events: Sequence[Event]) -> None:
            usage.extend(events)
            feeder.feed(events)

        def rule(event: Event) -> None:
            registry.append(event)
            Feeder(ledger, f"registry/{len(registry)}").feed([event])

        price = say.price("p", PRICES | {"other_out": "4"}, start=datetime(2026, 1, 1, tzinfo=UTC))
        rule(scribed([price], "/cli/price")[0])
        gateway, other, runner = Gateway(), Gateway(OTHER), Scribe(RUNNER)
        waiting: list[tuple[Gateway, str, datetime]] = []
        for n, month in enumerate(("2026-11", "2026-12", "2027-01")):
            start = datetime(2026 + (n > 1), (11, 12, 1)[n], 1, tzinfo=UTC)
            end = datetime(2026 + (n > 0), (12, 1, 2)[n], 1, tzinfo=UTC)
            tell([*gateway.marks(start), *other.marks(start)])
            for number in range(8):
                name, at = f"r{n}-{number}", start + timedelta(hours=dice.randrange(600))
                whose = dice.choice((gateway, other))
                tell(whose.says(say.accepted(name, at)))
                if dice.random() < 0.4:
                    tell([runner.write(say.abandoned(name, at, chunks=dice.randrange(9)))])
                waiting.append((whose, name, at))
            dice.shuffle(waiting)
            for whose, name, at in waiting[: len(waiting) // 2]:
                counted = say.tokens(dice.randrange(50), dice.randrange(50))
                tell(whose.says(say.finished(name, at, usage=counted)))
            del waiting[: len(waiting) // 2]
            tell([*gateway.marks(end), *other.marks(end)])
            for number in range(2):
                usage_now = None if dice.random() < 0.3 else say.tokens(dice.randrange(50), 3)
                draft = say.corrected(f"r{n}-{number}", usage_now, f"{SOURCE}:1", end)
                rule(scribed([draft], f"/cli/fix/{n}/{number}")[0])
            rule(closing(ledger, month)[1])
        for whose, name, at in waiting:
            tell(whose.says(say.finished(name, at)))
        months = [sums(ledger, month) for month in ("2026-11", "2026-12", "2027-01", "2027-02")]
        clean(ledger)
    return usage, registry, months


@settings(max_examples=3)
@given(seed=st.integers(0, 10**6), dice=st.randoms(use_true_random=False))
def test_no_order_of_arrival_moves_anything(
    make_ledger: Make, tmp_path_factory: pytest.TempPathFactory, seed: int, dice: random.Random
) -> None:
    """Usage shuffled, the registry early or late, in batches of any size, by two writers."""
    directory = tmp_path_factory.mktemp("months")
    usage, registry, months = told_of_a_year(seed, directory)
    hashes = []
    for number in range(2):
        dice.shuffle(usage)
        with make_ledger(directory, "shuffled") as ledger:
            queue, rules = list(usage), list(registry)
            writers = [LedgerWriter(ledger, SystemClock()) for _ in range(2)]
            while queue or rules:
                writer = dice.choice(writers)
                of = rules if rules and (not queue or dice.random() < 0.1) else queue
                size = dice.randrange(1, 60)
                log = "registry" if of is rules else "usage"
                at = writer.position(log)
                writer.write(Batch(log, at, at + size, of[:size]))
                del of[:size]
            found = [sums(ledger, m) for m in ("2026-11", "2026-12", "2027-01", "2027-02")]
            assert found == months, f"order {number}"
            with ledger.read() as read:
                hashes.append(projection_hash(read))
                assert number == 0 or audit(read).clean
            assert rebuild(ledger).parted == ()
            assert count(ledger, tables.late) > 0
    assert hashes[0] == hashes[1]


def test_every_cost_lands_in_one_month(tmp_path: Path) -> None:
    """All months together come to what all requests and corrections come to."""
    for seed in range(3):
        usage, registry, months = told_of_a_year(seed, tmp_path)
        with in_files(tmp_path, f"whole{seed}") as ledger:
            Feeder(ledger, "registry").feed(registry)
            Feeder(ledger).feed(usage)
            with ledger.read() as read:
                book = load_book(read)
                whole = [
                    *rated(read, book, 0, 1 << 60, step="span"),
                    *corrections_of_all_time(read, book),
                ]
                by_month = [
                    one
                    for month in ("2026-11", "2026-12", "2027-01", "2027-02")
                    for one in month_lines(read, book, month, step="day")
                ]
        assert cost(whole) == cost(by_month)
        assert sum(one.totals.requests for one in whole) == sum(
            one.totals.requests for one in by_month
        )
        assert len(months) == 4 and isinstance(months[0], Sums)

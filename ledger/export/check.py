"""Holds an export against the ledger as it is now: files, sums, prices, and what has come since.

The ledger goes on after an export of an open month. What ended after the export is not a
difference: it is counted apart, and exporting again takes it in. A closed month stands still.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from ledger.clock import to_us
from ledger.events import BUCKETS
from ledger.export.bill import bill_lines, unpriced_in
from ledger.export.facts import Month, Span, month_in, prices_before
from ledger.export.manifest import Manifest, damage
from ledger.export.sums import Sums, by_request, by_roll_up
from ledger.sql.bill import BillLine, totals_of
from ledger.sql.session import ReadSession


class Checked(msgspec.Struct, frozen=True):
    """What is wrong with an export, in words (empty: nothing).

    How many requests of its month ended or were corrected, and how many prices of its month were
    published, after it was made is nothing wrong: exporting again takes them in.
    """

    differences: list[str]
    newer: int
    repriced: int


def check_export(read: ReadSession, directory: Path, manifest: Manifest) -> Checked:
    """Hold the files in `directory` and the sums of `manifest` against the ledger."""
    month = month_in(read, manifest.month)
    said = Sums(manifest.requests, manifest.tokens, manifest.known)
    differences, newer = damage(directory, manifest), 0
    now = by_roll_up(read, month)
    if manifest.period != "open":
        differences += _otherwise(manifest, month)
        differences += _between(manifest.month, said, now)
    elif now != said or month.state != "open":
        position = {source: last["requests"] for source, last in manifest.position.items()}
        reached, newer = by_request(read, _span(manifest), position)
        differences += _between(manifest.month, said, reached)
    prices, known = set(manifest.prices), set(prices_before(month))
    if prices - known:
        differences.append(
            f"the export of {manifest.month} was made with prices that the ledger does not have: "
            f"{', '.join(sorted(prices - known))}"
        )
    repriced = len(known - prices)
    comparable = manifest.period != "open" or month.state == "open"
    if comparable and not differences and not newer and not repriced:
        lines = bill_lines(read, manifest.month, month.book)
        newer = sum(1 for line in lines if line.kind != "usage") - manifest.corrections
        if not newer:
            differences += _costs(manifest, totals_of(lines), _unpriced(read, manifest, lines))
    return Checked(differences, max(newer, 0), repriced)


def _span(manifest: Manifest) -> Span:
    start, end = (to_us(datetime.fromisoformat(at)) for at in (manifest.start, manifest.end))
    return start, end


def _otherwise(manifest: Manifest, month: Month) -> list[str]:
    """That the month is not closed or settled, or not as the export says."""
    if (month.state, month.root) == (manifest.period, manifest.root):
        return []
    said, here = (
        state if root is None else f"{state} with the root {root}"
        for state, root in ((manifest.period, manifest.root), (month.state, month.root))
    )
    return [f"the export of {manifest.month} says that it is {said}, and the ledger says {here}"]


def _unpriced(read: ReadSession, manifest: Manifest, lines: Sequence[BillLine]) -> int:
    """What this format calls unpriced: lines, up to the second."""
    if manifest.format < 3:
        return sum(line.lacks_price for line in lines)
    month = month_in(read, manifest.month)
    return unpriced_in(read, month.month, month.book, lines)


def _costs(manifest: Manifest, cost: dict[str, str], unpriced: int) -> list[str]:
    if (manifest.cost, manifest.unpriced) == (cost, unpriced):
        return []
    what = "lines" if manifest.format < 3 else "requests"
    return [
        f"the export of {manifest.month} says that it costs {_money(manifest.cost)} with "
        f"{manifest.unpriced} {what} without a price, and the bill says {_money(cost)} with "
        f"{unpriced}"
    ]


def _money(cost: dict[str, str]) -> str:
    return ", ".join(f"{amount} {currency}" for currency, amount in cost.items()) or "nothing"


def _between(month: str, said: Sums, now: Sums) -> list[str]:
    pairs = [("requests", said.requests, now.requests)]
    pairs += [(name, said.tokens[name], now.tokens[name]) for name in BUCKETS]
    pairs += [(f"rows that know {name}", said.known[name], now.known[name]) for name in BUCKETS]
    return [
        f"the export of {month} says {what} {here}, and the ledger has {there} of the same requests"
        for what, here, there in pairs
        if here != there
    ]

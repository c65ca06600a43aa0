"""An export held against the ledger: are its files whole, and do its sums still stand?

Used by the audit. An export is a picture of one moment, so what came after it is no difference.
"""

from pathlib import Path

import msgspec

from ledger.clock import to_us
from ledger.events import BUCKETS
from ledger.export.bill import bill_lines, costs_of, prices_before
from ledger.export.manifest import Manifest, damage
from ledger.export.sums import Span, Sums, by_request, by_roll_up
from ledger.sql.bill import month_range
from ledger.sql.session import ReadSession


class Checked(msgspec.Struct, frozen=True):
    """What is wrong with an export, in words (empty: nothing).

    How many requests of its month ended, and how many prices of its month were published, after it
    was made is nothing wrong: exporting again takes them in.
    """

    differences: list[str]
    newer: int
    repriced: int


def check_export(read: ReadSession, directory: Path, manifest: Manifest) -> Checked:
    """Hold the files in `directory` and the sums of `manifest` against the ledger."""
    first, after = month_range(manifest.month)
    span: Span = (to_us(first), to_us(after))
    said = Sums(manifest.requests, manifest.tokens, manifest.known)
    differences, newer = damage(directory, manifest), 0
    if by_roll_up(read, span) != said:
        position = {source: last["requests"] for source, last in manifest.position.items()}
        now, newer = by_request(read, span, position)
        differences += _between(manifest.month, said, now)
    prices, known = set(manifest.prices), set(prices_before(read, span[1]))
    if prices - known:
        differences.append(
            f"the export of {manifest.month} was made with prices that the ledger does not have: "
            f"{', '.join(sorted(prices - known))}"
        )
    repriced = len(known - prices)
    if not differences and not newer and not repriced:
        cost, unpriced = costs_of(bill_lines(read, manifest.month))
        if (manifest.cost, manifest.unpriced) != (cost, unpriced):
            differences.append(
                f"the export of {manifest.month} says that it costs {_money(manifest.cost)} with "
                f"{manifest.unpriced} lines without a price, and the bill says {_money(cost)} with "
                f"{unpriced}"
            )
    return Checked(differences, newer, repriced)


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

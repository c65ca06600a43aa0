"""A closed month as text. Pure."""

from gateway.cli.output import cell_text, pairs_text
from ledger.events import PeriodClosed
from ledger.folds.money import Period


def period_pairs(said: PeriodClosed | Period) -> str:
    """What was frozen, a line for each."""
    totals = ", ".join(f"{cost} {currency}" for currency, cost in sorted(said.totals.items()))
    missing = (
        said.without
        if isinstance(said, Period)
        else tuple((one.source, one.reason) for one in said.without)
    )
    pairs: list[tuple[str, str]] = [
        ("from", f"{cell_text(said.start)} (zone {said.zone})"),
        ("to", f"{cell_text(said.end)}, not included"),
        ("requests", f"{said.requests:,}"),
        ("without price", f"{said.unpriced:,}"),
        ("without end", f"{said.open:,}"),
        ("tokens", ", ".join(f"{n:,} {name}" for name, n in said.tokens.items()) or "none"),
        ("cost", totals or "none"),
        ("prices", f"the first {said.prices:,} of the registry"),
        ("sources", f"{len(said.cut):,} in its cut"),
        ("lines", said.lines),
        ("root", said.root),
    ]
    pairs += [("without", f"{source}: {reason}") for source, reason in missing]
    return pairs_text(pairs)

"""How a month stands, and what a closed one holds, as text. Pure."""

from gateway.cli.output import cell_text, pairs_text
from ledger.events import PeriodClosed
from ledger.folds.money import Period
from ledger.folds.months import Standing


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


def standing_json(standing: Standing) -> dict[str, object]:
    """How a month stands, for JSON. `open` says whether its numbers may still change."""
    return {
        "month": standing.month,
        "open": standing.state == "open",
        "period": standing.state,
        "settled_with": standing.settled_with,
    }


def standing_words(standing: Standing) -> str:
    """How a month stands, for whoever reads its numbers."""
    month, own = standing.month, standing.own
    if own is not None:
        return f"{month} was closed on {own.closed_at:%Y-%m-%dT%H:%M:%SZ}, root {own.root}"
    if standing.settled_with is not None:
        return (
            f"{month} is before {standing.settled_with}, the first month that was closed, and was "
            "settled with it: these numbers change no more"
        )
    return f"{month} is open: these numbers may still change"


def nothing_words(standing: Standing) -> str:
    """That a month has no line on its bill."""
    if standing.state == "open":
        return f"no request of {standing.month} has an end yet"
    return f"nothing is on the bill of {standing.month}"

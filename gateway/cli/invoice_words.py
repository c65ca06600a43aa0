"""What a statement says, as plain texts for HTML and PDF alike. Pure."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from gateway.cli.output import printable

if TYPE_CHECKING:
    from ledger.export.statement import Line, Statement

BUCKET_WORDS: Final = {
    "uncached_in": "input tokens",
    "cached_in": "input tokens from the cache",
    "cache_write_in": "input tokens written to the cache",
    "reasoning_out": "output tokens of reasoning",
    "other_out": "output tokens",
    "request": "requests",
    "gpu_second": "seconds with a server",
    "failed_attempt": "failed attempts",
}

HEADS: Final = ("Description", "Quantity", "Unit price", "per", "Amount")

MICROSECONDS: Final = 1_000_000

UNPRICED: Final = "unpriced"
"""Stands in the name of a file for the currency of what has no price."""


class Row(msgspec.Struct, frozen=True):
    """One row of the table of lines, as texts; `faint` for one that adds nothing to the sum."""

    cells: tuple[str, str, str, str, str]
    faint: bool = False


def title(statement: "Statement") -> str:
    """What it is: a statement of a closed month, or the draft of one."""
    return draft_title(statement.month) if statement.is_open else f"Statement {statement.month}"


def draft_title(month: str) -> str:
    """What drafts of that month are called, and known by afterwards."""
    return f"Draft statement {month}"


def facts(statement: "Statement") -> Iterator[tuple[str, str]]:
    """Who, when and in which currency, as pairs of a label and a text."""
    if statement.issuer:
        yield "From", printable(statement.issuer)
    if statement.organization_id is not None:
        yield "For", _named(statement.organization, statement.organization_id)
    yield "Project", _project(statement)
    yield "Period", f"{statement.start} up to {statement.end} (zone {statement.zone})"
    yield "Currency", statement.currency or "none: nothing here has a price"
    if statement.root is not None:
        yield "Root of the month", statement.root


def rows(statement: "Statement") -> Iterator[Row]:
    """The lines, then what they add up to and the one rounding."""
    currency = statement.currency
    for line in statement.lines:
        yield Row(_cells(line, currency), faint=line.cost is None)
    if currency is None:
        return
    yield Row(("Sum of all lines, exact", "", "", "", f"{statement.exact} {currency}"))
    if statement.remainder not in (None, "0"):
        words = f"Rounding ({statement.rounding.replace('_', ' ')})"
        yield Row((words, "", "", "", f"{statement.remainder} {currency}"))


def total(statement: "Statement") -> str | None:
    """What is to be paid."""
    if statement.total is None:
        return None
    return f"{statement.total} {statement.currency}"


def notes(statement: "Statement") -> Iterator[str]:
    """What its reader must know."""
    if statement.is_open:
        yield (
            "This month is open: lines may still change until it is closed "
            f"(tollbook close {statement.month})."
        )
    if statement.settled_with is not None:
        yield (
            f"This month is before {statement.settled_with}, the first that was closed, and was "
            "settled with it: lines change no more."
        )
    if any(line.cost is None for line in statement.lines):
        yield "A line without an amount has no price, or nobody could count it; it is in no sum."
    if any(line.kind != "usage" for line in statement.lines):
        yield "Corrections name the event of an earlier request that they correct."


def lost_in_pdf(statement: "Statement") -> bool:
    """Whether a name has a character that the fonts of every reader of PDF lack."""
    names = (statement.issuer, statement.organization, statement.project)
    said = [*names, *(line.model for line in statement.lines)]
    return any(text.encode("latin-1", "ignore").decode("latin-1") != text for text in said if text)


def file_name(statement: "Statement") -> str:
    """The name of its file, without the ending: only letters, digits, dots and dashes."""
    start = file_start(statement.month, statement.project_id)
    return start + _plain(statement.currency or UNPRICED)


def file_start(month: str, project_id: str | None) -> str:
    """What the names of all files of a month and project begin with; the currency comes next."""
    return f"{_plain(month)}-{_plain(project_id or 'no-project')}-"


def _plain(text: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in text)


def _cells(line: "Line", currency: str | None) -> tuple[str, str, str, str, str]:
    what = f"{printable(line.model)}: {BUCKET_WORDS.get(line.bucket, line.bucket)}"
    if line.band:
        what += f", {printable(line.band)}"
    if line.basis not in ("reported", ""):
        what += f" ({line.basis})"
    if line.corrects is not None:
        what = f"Correction of {printable(line.corrects)}: {what}"
    if line.bucket == "gpu_second":
        whole, part = divmod(abs(line.quantity), MICROSECONDS)
        sign = "-" if line.quantity < 0 else ""
        quantity = f"{sign}{whole:,}.{part:06d}"
    else:
        quantity = f"{line.quantity:,}"
    unit = "" if line.unit_price is None else f"{line.unit:,}"
    amount = "no price" if line.cost is None else f"{line.cost} {currency}"
    return what, quantity, line.unit_price or "", unit, amount


def _named(name: str | None, id_: str) -> str:
    return id_ if name is None else f"{printable(name)} ({id_})"


def _project(statement: "Statement") -> str:
    if statement.project_id is None:
        return "keys that belong to no project"
    return _named(statement.project, statement.project_id)

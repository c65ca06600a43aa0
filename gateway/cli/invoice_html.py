"""A statement as one HTML page that needs nothing from elsewhere; same values, same bytes."""

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Final

from gateway.cli.invoice_words import HEADS, facts, notes, rows, title, total
from gateway.cli.svg import BLUE, FAINT, INK, Drawing

if TYPE_CHECKING:
    from ledger.export.statement import Statement

_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;color:#24292f;background:#fff;max-width:60rem;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0 0 1rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1.5rem;margin:0 0 1.5rem}
dt{color:#57606a}dd{margin:0;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%}
th{text-align:left;color:#57606a;font-weight:600;border-bottom:2px solid #d8dee4}
th,td{padding:.35rem .6rem;vertical-align:top}
td{border-bottom:1px solid #eaeef2;overflow-wrap:anywhere}
th:not(:first-child),td:not(:first-child){text-align:right;white-space:nowrap;
font-variant-numeric:tabular-nums}
tr.faint td{color:#8b949e}
.total{font-size:1.3rem;font-weight:600;text-align:right;margin:1rem .6rem}
.note{color:#57606a}.draft h1{color:#cf222e}svg{max-width:100%;height:auto;margin:1rem 0}
@media print{body{margin:0}}
"""

BARS_HIGH: Final = 120
WIDTH: Final = 720


def html(statement: "Statement") -> bytes:
    """The page, in UTF-8. Whatever a name says, it is shown as text."""
    head = escape(title(statement))
    parts = [
        begins(title(statement)) + f"<style>{_STYLE}</style></head>",
        f'<body class="{"draft" if statement.is_open else "closed"}"><h1>{head}</h1><dl>',
        *(f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>" for label, text in facts(statement)),
        "</dl>",
        chart(statement.days, statement.currency).rstrip("\n") if statement.days else "",
        "<table><thead><tr>",
        *(f"<th>{word}</th>" for word in HEADS),
        "</tr></thead><tbody>",
    ]
    for row in rows(statement):
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row.cells)
        faint = ' class="faint"' if row.faint else ""
        parts.append(f"<tr{faint}>{cells}</tr>")
    parts.append("</tbody></table>")
    if (owed := total(statement)) is not None:
        parts.append(f'<p class="total">Total: {escape(owed)}</p>')
    parts += [f'<p class="note">{escape(words)}</p>' for words in notes(statement)]
    parts.append("</body></html>\n")
    return "\n".join(part for part in parts if part).encode()


def begins(name: str) -> str:
    """How every page of that title begins."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{escape(name)}</title>"
    )


def chart(days: Mapping[str, str], currency: str | None) -> str:
    """Cost by day as bars, an SVG text. A bar below the line is a correction."""
    from ledger.amounts import pico_of

    costs = {day: pico_of(text) for day, text in days.items()}
    most, least = max(*costs.values(), 0), min(*costs.values(), 0)
    span = max(most - least, 1)
    drawing = Drawing(WIDTH, BARS_HIGH + 50, "Cost by day")
    zero = 20 + BARS_HIGH * most // span
    step = WIDTH / max(len(costs), 1)
    for number, (day, cost) in enumerate(costs.items()):
        high = BARS_HIGH * abs(cost) // span
        top = zero - high if cost >= 0 else zero
        drawing.box(number * step + 1, top, max(step - 2, 1), high, fill=BLUE)
        if number == 0:
            drawing.words(0, BARS_HIGH + 40, day, colour=FAINT, size=11)
        elif number == len(costs) - 1:
            drawing.words(WIDTH, BARS_HIGH + 40, day, colour=FAINT, size=11, anchor="end")
    drawing.line(0, zero, WIDTH, zero)
    best = max(costs, key=lambda day: costs[day])
    words = f"Cost by day; the most was {days[best]} {currency or ''} on {best}"
    drawing.words(0, 12, words.replace("  ", " "), colour=INK, size=11)
    return drawing.text()

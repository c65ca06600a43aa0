"""A statement as PDF. The one home of fpdf2, which draws text and tables in the fonts that every
reader has; the date in the file is that of the month's end, so the same values give the same bytes.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Final

from fpdf import FPDF, FontFace
from fpdf.enums import XPos, YPos

from gateway.cli.invoice_words import HEADS, facts, notes, rows, title, total
from ledger.amounts import pico_of

if TYPE_CHECKING:
    from ledger.export.statement import Statement

FONT: Final = "Helvetica"
COLUMNS: Final = (82, 30, 26, 20, 32)
"""Widths in mm of a page of A4 within its margins of 10."""

BARS_HIGH: Final = 28.0
WIDTH: Final = 190.0


def pdf(statement: "Statement") -> bytes:
    """The document. A character that its fonts lack is shown as a question mark."""
    page = FPDF(format="A4")
    page.set_creation_date(datetime.fromisoformat(statement.end))
    page.set_title(_text(title(statement)))
    page.set_creator("Tollbook")
    page.set_producer("Tollbook")
    page.set_auto_page_break(True, margin=15)
    page.add_page()
    page.set_font(FONT, "B", 16)
    page.cell(0, 10, _text(title(statement)), new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    for label, text in facts(statement):
        page.set_font(FONT, "B", 9)
        page.cell(35, 5, _text(label))
        page.set_font(FONT, "", 9)
        page.multi_cell(0, 5, _text(text), new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    page.ln(4)
    _bars(page, statement)
    _table(page, statement)
    if (owed := total(statement)) is not None:
        page.ln(3)
        page.set_font(FONT, "B", 13)
        page.cell(0, 8, _text(f"Total: {owed}"), align="R", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    page.set_font(FONT, "", 8)
    for words in notes(statement):
        page.multi_cell(0, 4, _text(words), new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    return bytes(page.output())


def _bars(page: FPDF, statement: "Statement") -> None:
    """Cost by day; a bar below the line is a correction."""
    costs = [pico_of(text) for text in statement.days.values()]
    if not costs:
        return
    most, least = max(*costs, 0), min(*costs, 0)
    span = max(most - least, 1)
    top = page.get_y()
    zero = top + BARS_HIGH * most / span
    step = WIDTH / len(costs)
    page.set_fill_color(47, 111, 222)
    for number, cost in enumerate(costs):
        high = BARS_HIGH * abs(cost) / span
        start = zero - high if cost >= 0 else zero
        page.rect(10 + number * step + 0.3, start, max(step - 0.6, 0.3), high, style="F")
    page.line(10, zero, 10 + WIDTH, zero)
    page.set_y(top + BARS_HIGH + 1)
    page.set_font(FONT, "", 8)
    days = list(statement.days)
    page.cell(0, 5, _text(f"Cost by day, {days[0]} to {days[-1]}"))
    page.ln(8)


def _table(page: FPDF, statement: "Statement") -> None:
    page.set_font(FONT, "", 8)
    page.set_fill_color(255)
    page.set_draw_color(216, 222, 228)
    with page.table(
        col_widths=COLUMNS,
        text_align=("LEFT", "RIGHT", "RIGHT", "RIGHT", "RIGHT"),
        line_height=4.5,
        borders_layout="HORIZONTAL_LINES",
        headings_style=FontFace(emphasis="BOLD"),
    ) as table:
        table.row([_text(word) for word in HEADS])
        for row in rows(statement):
            table.row([_text(cell) for cell in row.cells])


def _text(text: str) -> str:
    return text.encode("latin-1", "replace").decode("latin-1")

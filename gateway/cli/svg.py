"""Drawings as SVG text: rectangles, lines, dots and words, with y downwards in pixels. Pure.

The same values give the same bytes, and a viewer in light or dark sees it alike: it has its own
ground. Whatever a text says, it is shown as text.
"""

from collections.abc import Sequence
from html import escape
from typing import Final, Literal

INK: Final = "#24292f"
FAINT: Final = "#8b949e"
RULE: Final = "#d8dee4"
BLUE: Final = "#2f6fde"
RED: Final = "#cf222e"
COLOURS: Final = ("#2f6fde", "#d9822b", "#2da44e", "#8250df", "#bf3989", "#57606a")
"""Lines that stand side by side; these can be told apart in grey too."""

Anchor = Literal["start", "middle", "end"]


class Drawing:
    """A drawing of `width` x `height` pixels that grows by what is put on it."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self._size = width, height
        self._parts = [f"<title>{escape(title)}</title>"]
        self.box(0, 0, width, height, fill="#ffffff")

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = "none",
        stroke: str = "none",
    ) -> None:
        """A rectangle."""
        self._parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(max(width, 0))}" '
            f'height="{_n(max(height, 0))}" fill="{fill}" stroke="{stroke}"/>'
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, colour: str = RULE, width: float = 1
    ) -> None:
        """A straight line."""
        self._parts.append(
            f'<line x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}" '
            f'stroke="{colour}" stroke-width="{_n(width)}"/>'
        )

    def path(self, points: Sequence[tuple[float, float]], colour: str, width: float = 1.5) -> None:
        """A line through all of `points`."""
        text = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self._parts.append(
            f'<polyline points="{text}" fill="none" stroke="{colour}" '
            f'stroke-width="{_n(width)}" stroke-linejoin="round"/>'
        )

    def dot(self, x: float, y: float, colour: str, *, full: bool = True) -> None:
        """A small circle, full or only its rim."""
        fill = colour if full else "#ffffff"
        self._parts.append(
            f'<circle cx="{_n(x)}" cy="{_n(y)}" r="3" fill="{fill}" stroke="{colour}" '
            'stroke-width="1.5"/>'
        )

    def words(
        self,
        x: float,
        y: float,
        text: str,
        *,
        colour: str = INK,
        size: float = 12,
        anchor: Anchor = "start",
        bold: bool = False,
    ) -> None:
        """A line of text whose base is at `y`."""
        weight = ' font-weight="600"' if bold else ""
        shown = "".join(c if c.isprintable() else "?" for c in text)
        self._parts.append(
            f'<text x="{_n(x)}" y="{_n(y)}" fill="{colour}" font-size="{_n(size)}" '
            f'text-anchor="{anchor}"{weight}>{escape(shown)}</text>'
        )

    def text(self) -> str:
        """The whole drawing as the text of a file."""
        width, height = (_n(size) for size in self._size)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif">'
        )
        return "\n".join([head, *self._parts, "</svg>"]) + "\n"


def _n(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")

"""What `tollbook shares` makes of the views that gateways tell: rows, table and drawing. Pure."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from gateway.cli.output import Column, Table
from gateway.cli.svg import BLUE, FAINT, INK, RED, RULE, Drawing
from gateway.routing.shares import shares
from ledger.folds.routing import RoutingView
from ledger.words import counted

ALL: Final = "all"
"""What stands for several gateways together."""

MICROSECONDS: Final = 1_000_000


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One backend at one gateway: its picks, what the odds promised, both as a share of what all
    backends had there (null without picks), its share before the gateway's last start, and why it
    is off, null if it is not."""

    backend_id: str
    picks: int
    promised: float
    measured: float | None
    expected: float | None
    before: float | None = None
    off: str | None = None


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """The shares at one gateway, over its last `seconds`."""

    gateway: str
    seconds: float
    picks: int
    parts: tuple[Part, ...]


def shared(
    views: Iterable[RoutingView],
    now: datetime,
    *,
    ended: bool = False,
    gone: Collection[str] = (),
) -> list[Shared]:
    """The shares at each gateway that is heard of, or with `ended` also at those that are not any
    more; of several first all together. Of backends that were removed, which are `gone` or of which
    a later process of the gateway tells nothing, views may still be kept: they are left out."""
    found: dict[str, list[RoutingView]] = {}
    for view in views:
        wanted = view.picks is not None and view.backend_id not in gone
        if wanted and (ended or view.expires_at > now):
            found.setdefault(view.gateway, []).append(view)
    for gateway, told in found.items():
        newest = max(told, key=lambda view: view.observed_at).source
        found[gateway] = [view for view in told if view.source == newest]
    each = [_shared(gateway, found[gateway]) for gateway in sorted(found)]
    return [_together(each), *each] if len(each) > 1 else each


def off(groups: Iterable[Shared]) -> list[str]:
    """In words, each share that is off."""
    return [
        f"{group.gateway}: {part.backend_id} is off: {part.off}"
        for group in groups
        for part in group.parts
        if part.off is not None
    ]


def shares_table(groups: Sequence[Shared]) -> Table:
    """Every share as a row, and below what is off."""
    columns = (
        Column("gateway"),
        Column("backend"),
        Column("picks", number=True),
        Column("measured", number=True),
        Column("expected", number=True),
        Column("before start", number=True),
        Column("share"),
    )
    rows = tuple(
        (
            group.gateway,
            part.backend_id,
            part.picks,
            _percent(part.measured),
            _percent(part.expected),
            _percent(part.before),
            "off" if part.off else "as it should be",
        )
        for group in groups
        for part in group.parts
    )
    return Table(columns=columns, rows=rows, notes=tuple(off(groups)))


def shares_json(groups: Iterable[Shared]) -> dict[str, object]:
    """The same for JSON; shares are 0 to 1."""
    return {
        "gateways": [
            {
                "gateway": group.gateway,
                "seconds": group.seconds,
                "picks": group.picks,
                "backends": [
                    {
                        "id": part.backend_id,
                        "picks": part.picks,
                        "expected_picks": round(part.promised, 4),
                        "measured": _rounded(part.measured),
                        "expected": _rounded(part.expected),
                        "before_start": _rounded(part.before),
                        "off": part.off,
                    }
                    for part in group.parts
                ],
            }
            for group in groups
        ]
    }


LEFT: Final = 190.0
BAR: Final = 420.0
ROW: Final = 40.0
HEAD: Final = 58.0


def shares_drawing(groups: Sequence[Shared], now: datetime) -> str:
    """The shares as an SVG: for each backend a bar of what was measured over a bar of what was
    expected, and a mark where it stood before the last start."""
    rows = sum(len(group.parts) for group in groups)
    height = HEAD + len(groups) * 46 + rows * ROW + 24
    drawing = Drawing(LEFT + BAR + 130, height, "Shares of the requests")
    drawing.words(16, 26, "Shares of the requests", size=16, bold=True)
    drawing.words(16, 44, f"{now:%Y-%m-%d %H:%M:%S} UTC", colour=FAINT, size=11)
    _legend(drawing, LEFT, 44)
    top = HEAD
    for group in groups:
        words = f"{group.gateway}: {counted(group.picks, 'pick')} in {group.seconds:.0f} s"
        drawing.words(16, top + 26, words, bold=True)
        top += 38
        low = top + len(group.parts) * ROW
        for step in range(0, 101, 25):
            x = LEFT + BAR * step / 100
            drawing.line(x, top, x, low)
            drawing.words(x, top - 3, f"{step} %", colour=FAINT, size=9, anchor="middle")
        for part in group.parts:
            _draw_part(drawing, part, top)
            top += ROW
        top += 8
    return drawing.text()


def _draw_part(drawing: Drawing, part: Part, top: float) -> None:
    colour = RED if part.off else BLUE
    name = part.backend_id if len(part.backend_id) <= 24 else f"{part.backend_id[:23]}…"
    drawing.words(LEFT - 10, top + 24, name, anchor="end")
    drawing.box(LEFT, top + 7, BAR * (part.measured or 0.0), 14, fill=colour)
    drawing.box(LEFT, top + 24, BAR * (part.expected or 0.0), 6, fill=FAINT)
    if part.before is not None:
        x = LEFT + BAR * part.before
        drawing.line(x, top + 4, x, top + 33, INK, 2)
    shown = "no picks" if part.measured is None else f"{part.measured:.1%}"
    drawing.words(LEFT + BAR + 10, top + 19, shown + (" off" if part.off else ""), colour=colour)
    if part.expected is not None:
        words = f"expected {part.expected:.1%}"
        drawing.words(LEFT + BAR + 10, top + 32, words, colour=FAINT, size=10)


def _legend(drawing: Drawing, x: float, y: float) -> None:
    drawing.box(x, y - 9, 16, 9, fill=BLUE)
    drawing.words(x + 21, y, "measured", size=11)
    drawing.box(x + 90, y - 7, 16, 5, fill=FAINT)
    drawing.words(x + 111, y, "expected by its odds", size=11)
    drawing.line(x + 240, y - 11, x + 240, y + 2, INK, 2)
    drawing.words(x + 247, y, "before the last start", size=11)
    drawing.line(16, y + 10, x + BAR + 114, y + 10, RULE)


def _shared(gateway: str, views: Iterable[RoutingView]) -> Shared:
    views = sorted(views, key=lambda view: view.backend_id)
    picks = {view.backend_id: view.picks or 0 for view in views}
    promised = {view.backend_id: float(view.expected or 0) for view in views}
    measured, expected = shares(picks, picks), shares(promised, promised)
    return Shared(
        gateway=gateway,
        seconds=max((view.picks_us or 0) for view in views) / MICROSECONDS,
        picks=sum(picks.values()),
        parts=tuple(
            Part(
                backend_id=(name := view.backend_id),
                picks=picks[name],
                promised=promised[name],
                measured=measured.get(name),
                expected=expected.get(name),
                before=None if view.share_before is None else float(view.share_before),
                off=view.share_off,
            )
            for view in views
        ),
    )


def _together(groups: Sequence[Shared]) -> Shared:
    """All gateways as one. Whether a share is off is each gateway's own to say."""
    picks: dict[str, int] = {}
    promised: dict[str, float] = {}
    for part in (part for group in groups for part in group.parts):
        picks[part.backend_id] = picks.get(part.backend_id, 0) + part.picks
        promised[part.backend_id] = promised.get(part.backend_id, 0.0) + part.promised
    measured, expected = shares(picks, picks), shares(promised, promised)
    return Shared(
        gateway=ALL,
        seconds=max(group.seconds for group in groups),
        picks=sum(picks.values()),
        parts=tuple(
            Part(
                backend_id=name,
                picks=picks[name],
                promised=promised[name],
                measured=measured.get(name),
                expected=expected.get(name),
            )
            for name in sorted(picks)
        ),
    )


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)

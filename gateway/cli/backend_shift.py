"""`tollbook backends shift`: requests go from old backends to new ones in steps, and back again if
the new ones do worse."""

from collections.abc import Mapping
from itertools import islice
from typing import Final

import click
import msgspec

from gateway.cli.backend_facts import Said, changed
from gateway.cli.backend_known import is_known, no_such, registry_or_none
from gateway.cli.data import change_registry, make_ready
from gateway.cli.failure import EXIT_FAILED, Stop
from gateway.cli.looks import TOLD_SECONDS, looks
from gateway.cli.options import NAMES, Parsed, json_option
from gateway.cli.output import json_text
from gateway.cli.place import Place, place_option
from gateway.cli.progress import progress
from gateway.cli.shifting import Judged, Limits, Pace, judge, pace, together, unreached, worst
from gateway.cli.views import views_of
from ledger.clock import SystemClock
from ledger.folds.book import WEIGHT_MAX
from ledger.folds.routing import RoutingView

HOLDS_MAX: Final = 3
"""So often a step is held once more: for first tokens that come late, or for too few requests."""

LOOK_SECONDS: Final = 1.0


def parse_steps(text: str) -> tuple[int, ...]:
    """Percents that rise, the last of them 100. Raises `ValueError` with words."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < int(part) <= 100 for part in parts):
        raise ValueError(f"{text!r} are no steps; write percents such as 5,25,50,100")
    steps = [int(part) for part in parts]
    if steps != sorted(set(steps)):
        raise ValueError(f"the steps {text} do not rise; write them as 5,25,50,100")
    return tuple(steps)


class Shift(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done, and what weights the backends had before."""

    old: tuple[str, ...]
    new: tuple[str, ...]
    limits: Limits
    hold_seconds: float
    weights: Mapping[str, int]

    def at(self, percent: int) -> dict[str, int]:
        """The weights with `percent` at the new ones, in percent. What the largest of the old and
        of the new had together moves, at most 100, and 100 if that is 0; the old ones keep their
        parts among each other. So other backends of the model have no less than before."""
        most = max(self.weights[name] for name in self.old)
        whole = min(most + max(self.weights[name] for name in self.new), WEIGHT_MAX) or WEIGHT_MAX
        made = dict.fromkeys(self.new, -(-whole * percent // 100))
        for name in self.old:
            part = self.weights[name] * whole // most if most else whole
            made[name] = part * (100 - percent) // 100
        return made


@click.command("shift")
@click.option("--from", "old", type=NAMES, required=True, metavar="A,B", help="The old backends.")
@click.option("--to", "new", type=NAMES, required=True, metavar="C,D", help="The new backends.")
@click.option(
    "--steps",
    type=Parsed("5,25,50,100", parse_steps),
    default="5,25,50,100",
    show_default=True,
    metavar="N,N",
    help="Percents of their usual part of requests that the new ones get, step by step; the old "
    "ones get the rest.",
)
@click.option(
    "--hold-seconds",
    type=click.FloatRange(1),
    default=60.0,
    show_default=True,
    metavar="N",
    help="How long each step is watched.",
)
@click.option(
    "--failures-max",
    type=click.FloatRange(0, 100),
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    help="More failures than this, and more than the old ones have, roll back at once.",
)
@click.option(
    "--slower-max",
    type=click.FloatRange(1),
    default=1.5,
    show_default=True,
    metavar="TIMES",
    help="First tokens that come later by this hold the step, and roll back if they stay so.",
)
@click.option(
    "--requests-min",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    metavar="N",
    help="Requests that a step needs at the new ones; with fewer it is held up to three times.",
)
@place_option
@json_option
def command(
    old: tuple[str, ...],
    new: tuple[str, ...],
    steps: tuple[int, ...],
    hold_seconds: float,
    failures_max: float,
    slower_max: float,
    requests_min: int,
    place: Place,
    as_json: bool,
) -> int:
    """Shift requests from old backends to new ones in steps, and back if the new ones fail more or
    answer later. Exit code 0: all is shifted. 1: it was rolled back.

    Afterwards the old ones have the weight 0: drain and remove them.
    """
    shift = Shift(
        old=old,
        new=new,
        limits=Limits(failures_max / 100, slower_max, requests_min),
        hold_seconds=hold_seconds,
        weights=_weights(place, old, new),
    )
    # At first the old ones have all of it, as the new ones will at the end.
    usual = pace({}, views_of(place).values(), old, SystemClock().now())
    try:
        told = _steps(place, shift, steps, Pace(0, 0, usual.first_token_us), tell=not as_json)
    except BaseException:
        # Ctrl-C, brokers that are away, a backend that somebody removed meanwhile.
        click.echo(
            "tollbook: the shift ends on its way, and weights stay as they are: see `tollbook "
            "backends list`, and shift again or set them",
            err=True,
        )
        raise
    shifted = told[-1]["verdict"] in ("good", "few")
    if as_json:
        click.echo(json_text({"shifted": shifted, "steps": told}))
    elif shifted:
        click.echo(_next(shift, steps[-1]))
    else:
        click.echo("rolled back: every backend has the weight that it had before")
    return 0 if shifted else EXIT_FAILED


def _next(shift: Shift, percent: int) -> str:
    """What was reached, and what comes next."""
    names = ", ".join(shift.new)
    if percent == 100:
        return f"all requests go to {names}; next: tollbook backends drain {shift.old[0]}"
    return f"{names} has {percent} % of its usual part; shift again to go on, with --steps 100"


def _steps(
    place: Place, shift: Shift, steps: tuple[int, ...], seen: Pace, *, tell: bool
) -> list[dict[str, object]]:
    """One step after the other; what is worse ends them and is rolled back. Returns what is told
    of each."""
    told: list[dict[str, object]] = []
    for step in steps:
        judged, seen = _step(place, shift, step, seen)
        told.append({"percent": step, "verdict": judged.verdict, "words": judged.words})
        if tell:
            click.echo(f"{step} % at {', '.join(shift.new)}: {judged.words}")
        if judged.verdict in ("bad", "slow"):
            for name, weight in shift.weights.items():
                _weigh(place, name, weight)
            break
    return told


def _step(place: Place, shift: Shift, step: int, seen: Pace) -> tuple[Judged, Pace]:
    """Give the new ones `step` percent, watch, and judge. `seen` is what the old ones did until
    now, with which the new ones are compared; it is given back with what they did since."""
    for name, weight in shift.at(step).items():
        _weigh(place, name, weight)
    old, new = seen, Pace()
    for _ in range(HOLDS_MAX + 1):
        before = views_of(place)
        broken = _hold(place, shift, step, before, old)
        views, now = views_of(place).values(), SystemClock().now()
        old = worst(old, pace(before, views, shift.old, now))
        new = together(new, pace(before, views, shift.new, now))
        if broken:
            return Judged("bad", f"gateways do not reach {'; '.join(broken)}"), old
        judged = judge(old, new, shift.limits)
        if judged.verdict in ("good", "bad"):
            break
    return judged, old


def _hold(
    place: Place,
    shift: Shift,
    step: int,
    before: Mapping[tuple[str, str], RoutingView],
    usual: Pace,
) -> tuple[str, ...]:
    """Watch for the time of one hold, less if what comes is bad already: which of the new ones no
    gateway reaches. `usual` is what the old ones did until `before`."""
    whole = shift.hold_seconds + TOLD_SECONDS
    with progress(f"{step} % at {', '.join(shift.new)}") as tell:
        # What the first look sees is what was told before the step, as in `before`.
        for look in islice(looks(place, LOOK_SECONDS, whole), 1, None):
            views = look.views.values()
            if broken := unreached(views, shift.new, look.now):
                return broken
            old = worst(usual, pace(before, views, shift.old, look.now))
            new = pace(before, views, shift.new, look.now)
            if judge(old, new, shift.limits).verdict == "bad":
                return ()
            tell(round(look.waited_seconds), round(whole))
    return ()


def _weights(place: Place, old: tuple[str, ...], new: tuple[str, ...]) -> dict[str, int]:
    """The weights as they are. Raises `Stop` for backends between which nothing can be shifted."""
    book = registry_or_none(place)
    weights = {}
    if set(old) & set(new):
        raise Stop(f"{', '.join(sorted(set(old) & set(new)))} is both old and new")
    for name in (*old, *new):
        server = book.backends.get(name)
        if (server is None and not is_known(place, name)) or (server and server.removed_at):
            raise no_such(place, book, name)
        if server is not None and server.draining:
            raise Stop(f"backend {name} is being drained; `tollbook backends undrain {name}` first")
        weights[name] = 100 if server is None else server.weight
    if broken := _unreached(place, new):
        raise Stop(f"nothing was changed: gateways do not reach {'; '.join(broken)}")
    return weights


def _unreached(place: Place, new: tuple[str, ...]) -> tuple[str, ...]:
    """Which of the new ones no gateway reaches. One that has just been added is waited for."""
    for look in looks(place, LOOK_SECONDS, TOLD_SECONDS):
        broken = unreached(look.views.values(), new, look.now)
        if not broken:
            break
    return broken


def _weigh(place: Place, name: str, weight: int) -> None:
    configured = name not in registry_or_none(place).backends
    now = SystemClock().now()
    change_registry(
        make_ready(place), lambda book: changed(book, name, Said(weight=weight), configured, now)
    )

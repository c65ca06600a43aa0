"""Many restarts of a gateway under load, and the shares of its servers right before and after each:

`python -m tests.routing.restarts --restarts 50 --plots docs/plots`

Every second end is a kill -9, the others are orderly. What is drawn is what clients saw: which
server gave the last answers before an end, and the first ones after the next start. Exit code 1 if
a share moved by more than 5 points or a gateway called a share off.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from gateway.cli.svg import COLOURS, FAINT, INK, RED, RULE, Drawing
from tests.gateway.doors import new_key, toml
from tests.routing.crowd import Crowd, backends, crowd
from tests.routing.street import Street, street
from tests.support.fake_backend import KEY
from tests.support.processes import Gateway, free_port, tollbook, tollbook_json, wait_until

POINTS: Final = 5.0
"""How far a share may move over a restart, in points of a hundred."""

WINDOW: Final = 600
"""Answers of which a share is taken."""

CLIENTS: Final = 12

SPEEDS: Final = {"quick": 20, "equal": 20, "half": 40, "slow": 80}
"""The servers, and milliseconds that each needs for an answer: so shares differ, and a gateway that
had forgotten them would show it."""

WARM_ANSWERS: Final = 300
ANSWERS_SECONDS_MAX: Final = 120.0


class Restart(msgspec.Struct, frozen=True):
    """One restart: how the process ended, and shares 0 to 1 before and after."""

    how: str
    before: dict[str, float]
    after: dict[str, float]

    def moves(self) -> dict[str, float]:
        """By how many points of a hundred each share moved."""
        names = sorted(self.before.keys() | self.after.keys())
        return {
            name: 100 * (self.after.get(name, 0.0) - self.before.get(name, 0.0)) for name in names
        }


class Played(msgspec.Struct, frozen=True):
    """All restarts, lines of the gateways' log that called a share off, the audit's word, and what
    the last gateway said of shares before its start."""

    restarts: tuple[Restart, ...]
    off: tuple[str, ...]
    audit: str
    remembered: dict[str, float | None]

    @property
    def furthest(self) -> float:
        """The largest move of any share, in points."""
        return max(abs(move) for one in self.restarts for move in one.moves().values())

    def words(self) -> str:
        """What came of it, in a line."""
        moves = [abs(move) for one in self.restarts for move in one.moves().values()]
        kills = sum(one.how == "kill -9" for one in self.restarts)
        return (
            f"{len(self.restarts)} restarts, {kills} of them by kill -9: of {len(moves)} shares "
            f"none moved by more than {self.furthest:.1f} points; median "
            f"{statistics.median(moves):.1f}; called off by a gateway: {len(self.off)}; "
            f"audit: {self.audit}"
        )


class Inn:
    """One gateway after the other at the same address, with the same data directory."""

    def __init__(self, directory: Path, servers: Street) -> None:
        self.data, self.log, self._port = directory / "data", directory / "serve.log", free_port()
        (directory / "server-key").write_text(KEY + "\n")
        self._config = directory / "tollbook.toml"
        tables = [server.table for server in servers.servers.values()]
        self._config.write_text(toml({"backends": tables}))

    @contextmanager
    def life(self) -> Iterator[Gateway]:
        """One process, from ready to its end."""
        gateway = Gateway(self.data, self._port, self.log, "--config", str(self._config))
        try:
            gateway.wait_ready()
            yield gateway
        finally:
            gateway.stop()


def play(
    directory: Path, restarts: int, *, window: int = WINDOW, say: Callable[[str], None] = print
) -> Played:
    """So many restarts, with clients that never rest."""
    found: list[Restart] = []
    told: dict[str, float | None] = {}
    with street(*SPEEDS) as servers:
        for name, milliseconds in SPEEDS.items():
            servers.servers[name].become(f"n1-d{milliseconds}")
        inn = Inn(directory, servers)
        key = new_key(inn.data, "load")
        with inn.life() as gateway, crowd([gateway], key, CLIENTS, patient=True) as calling:
            calling.more(WARM_ANSWERS, ANSWERS_SECONDS_MAX)
            before = _shares(calling, window)
            _end(gateway, 0)
            for number in range(restarts):
                with inn.life() as one:
                    calling.go_to(one)
                    after = _shares(calling, window)
                    found.append(Restart(_how(number), before, after))
                    say(_line(number, found[-1]))
                    before, told = _shares(calling, window), _remembered(inn)
                    _end(one, number + 1)
        lines = inn.log.read_text(errors="replace").splitlines()
        audit = tollbook(inn.data, "audit", check=False).stdout.strip().splitlines()[-1]
    off = tuple(line for line in lines if "the share of backend" in line)
    return Played(tuple(found), off, audit, told)


def _shares(calling: Crowd, window: int) -> dict[str, float]:
    counted = backends(calling.more(window, ANSWERS_SECONDS_MAX)[:window])
    return {name: count / counted.total() for name, count in counted.items()}


def _remembered(inn: Inn) -> dict[str, float | None]:
    (told,) = tollbook_json(inn.data, "shares")["gateways"]
    return {one["id"]: one["before_start"] for one in told["backends"]}


def _how(number: int) -> str:
    return "kill -9" if number % 2 else "SIGTERM"


def _end(gateway: Gateway, number: int) -> None:
    if number % 2:
        gateway.kill()
    else:
        gateway.terminate()
    wait_until("it is gone", lambda: not gateway.alive)


def _line(number: int, one: Restart) -> str:
    words = ", ".join(
        f"{name} {one.before.get(name, 0):.1%} -> {one.after.get(name, 0):.1%}"
        for name in sorted(one.before.keys() | one.after.keys())
    )
    return f"{number + 1:3} {one.how}: {words}"


LEFT, TOP, WIDTH, HEIGHT = 52.0, 56.0, 620.0, 300.0


def shares_drawing(restarts: Sequence[Restart]) -> str:
    """The share of each server before (rings) and after (dots) each restart."""
    names = sorted({name for one in restarts for name in one.moves()})
    most = max(share for one in restarts for share in (*one.before.values(), *one.after.values()))
    high = 0.1 * (int(most * 10) + 1)
    drawing = Drawing(LEFT + WIDTH + 100, TOP + HEIGHT + 48, "Shares before and after restarts")
    drawing.words(LEFT, 22, "Share of each server before and after restarts", size=15, bold=True)
    drawing.dot(LEFT + 6, 38, INK, full=False)
    drawing.words(LEFT + 14, 42, f"the last {WINDOW} answers before it", size=11)
    drawing.dot(LEFT + 216, 38, INK)
    drawing.words(LEFT + 224, 42, f"the first {WINDOW} answers after it", size=11)

    def at(number: int, share: float) -> tuple[float, float]:
        return _across(number, len(restarts)), TOP + HEIGHT * (1 - share / high)

    for tenth in range(int(high * 10 + 0.5) + 1):
        _, y = at(0, tenth / 10)
        drawing.line(LEFT, y, LEFT + WIDTH, y)
        drawing.words(LEFT - 6, y + 4, f"{tenth * 10} %", colour=FAINT, size=10, anchor="end")
    _restarts_below(drawing, len(restarts))
    for name, colour in zip(names, COLOURS, strict=False):
        points = [at(number, one.after.get(name, 0.0)) for number, one in enumerate(restarts)]
        drawing.path(points, colour, 1)
        for number, one in enumerate(restarts):
            drawing.dot(*at(number, one.before.get(name, 0.0)), colour, full=False)
            drawing.dot(*points[number], colour)
    ends = {name: at(0, restarts[-1].after.get(name, 0.0))[1] for name in names}
    low = -1e9
    for name in sorted(names, key=lambda name: ends[name]):
        low = max(ends[name] + 4, low + 14)
        colour = COLOURS[names.index(name)]
        drawing.words(LEFT + WIDTH + 10, low, name, colour=colour, bold=True)
    return drawing.text()


def moves_drawing(restarts: Sequence[Restart]) -> str:
    """By how many points each share moved over each restart, and the bound of 5."""
    names = sorted({name for one in restarts for name in one.moves()})
    moves = [one.moves() for one in restarts]
    high = max(POINTS + 1, *(abs(move) for one in moves for move in one.values()))
    drawing = Drawing(LEFT + WIDTH + 100, TOP + HEIGHT + 48, "Moves of shares over restarts")
    drawing.words(LEFT, 22, "By how much each share moved over a restart", size=15, bold=True)
    drawing.words(LEFT, 42, "in points of a hundred; red: the bound", colour=FAINT, size=11)

    def at(number: int, move: float) -> tuple[float, float]:
        return _across(number, len(restarts)), TOP + HEIGHT / 2 * (1 - move / high)

    for step in range(-int(high), int(high) + 1):
        _, y = at(0, step)
        bound = abs(step) == POINTS
        drawing.line(LEFT, y, LEFT + WIDTH, y, RED if bound else RULE, 1.5 if bound else 1)
        drawing.words(LEFT - 6, y + 4, f"{step:+d}", colour=FAINT, size=10, anchor="end")
    _restarts_below(drawing, len(restarts))
    for at_name, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        for number, one in enumerate(moves):
            drawing.dot(*at(number, one.get(name, 0.0)), colour)
        y = TOP + 20 + 20 * at_name
        drawing.words(LEFT + WIDTH + 10, y, name, colour=colour, bold=True)
    return drawing.text()


def _across(number: int, count: int) -> float:
    return LEFT + 10 + (WIDTH - 20) * number / max(count - 1, 1)


def _restarts_below(drawing: Drawing, count: int) -> None:
    for number in range(count):
        if (number + 1) % 10 == 0 or number in (0, count - 1):
            x = _across(number, count)
            words = str(number + 1)
            drawing.words(x, TOP + HEIGHT + 18, words, colour=FAINT, size=10, anchor="middle")
    drawing.words(LEFT + WIDTH / 2, TOP + HEIGHT + 38, "restart", size=11, anchor="middle")


def draw(played: Played, folder: Path) -> None:
    """Write both drawings into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "restarts-shares.svg").write_text(shares_drawing(played.restarts))
    (folder / "restarts-moves.svg").write_text(moves_drawing(played.restarts))


def main() -> int:
    """Play, say, draw. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.routing.restarts", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--restarts", type=int, default=50)
    parser.add_argument("--plots", type=Path, help="draw into this folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tollbook-restarts-") as root:
        played = play(Path(root), args.restarts, say=lambda words: print(words, flush=True))
    print(played.words())
    for line in played.off:
        print(line)
    if args.plots is not None:
        draw(played, args.plots)
    return int(played.furthest > POINTS or bool(played.off))


if __name__ == "__main__":
    sys.exit(main())

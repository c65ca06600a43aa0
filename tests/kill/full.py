"""No room: the spool at its limit, the disk at its end. What cannot be metered is not served.

The gateway must say so, must not call a backend for it, and must come back by itself once there is
room. What was open has its end in the ledger in any case.
"""

import contextlib
import random
import resource
import sys
import threading
from pathlib import Path

from tests.kill.books import Measured
from tests.kill.client import Ask, Seen, ask_all
from tests.kill.place import Place, Rounds, verify
from tests.kill.world import World
from tests.support.processes import call, wait_until

QUICK = "q-n2-p9"
OPEN = ("o-n160-i25000-p21", "o-n80-i50000-p22-c6")
"""Four seconds and more: open from before the spool is full until after."""

SMALL = '[spool]\nlimit_bytes = "1 MiB"\nreserve_bytes = "64 KiB"\n'
FILLING_MAX = 4000
AT_ONCE = 24


class Open:
    """Requests that are in flight while the room runs out; a thread watches them."""

    def __init__(self, world: World, dice: random.Random, name: str) -> None:
        self.seen: list[Seen] = []
        self.asks = [
            Ask(
                tag=f"{name}-open-{number}",
                key=dice.choice(world.keys),
                model=dice.choice(OPEN),
                stream=number % 3 > 0,
                endpoint=dice.choice(("chat/completions", "completions")),
            )
            for number in range(9)
        ]
        self._thread = threading.Thread(
            target=lambda: self.seen.extend(ask_all(world.url, self.asks)), daemon=True
        )
        self._thread.start()
        wanted = {ask.tag for ask in self.asks}
        wait_until("they are at the backends", lambda: wanted <= world.fleet.calls().keys())

    def wait(self) -> list[Seen]:
        """What became of them."""
        self._thread.join(40)
        assert not self._thread.is_alive(), "a client still waits for its answer"
        return self.seen


def spool_full(place: Place, rounds: Rounds) -> Measured:
    """The runner stands still until the spool is at its limit, then goes on."""
    measured = Measured()
    for number in rounds:
        place.fleet.reset()
        dice = place.dice(f"spool full {number}")
        name = f"full{place.seed}-{number}"
        with place.world(SMALL) as world:
            world.start()
            runner = world.the_runner()
            quick = Asking(world, dice, name)
            quick.some(dice.randint(1, 50))
            world.pause(runner)
            open_now = Open(world, dice, name)
            refused = quick.until_refused()
            place.say(f"round {number}: full after {len(quick.seen)} requests")
            assert refused.error is not None and "ledger" in refused.error["message"]
            quick.require_all_refused(10)
            assert call(f"{world.url}/health/ready").status == 503
            seen = open_now.wait()
            assert all(one.served for one in seen), "what was open is finished although it is full"
            quick.require_all_refused(3)
            world.go_on(runner)
            wait_until("there is room again", quick.is_served)
            quick.some(20)
            code = world.stop()
            assert code == 0, f"serve ended with {code}"
            world.settle()
            measured = measured.plus(verify(world, [*quick.seen, *seen]))
    return measured


class Asking:
    """Quick plain calls, and all that came of them."""

    def __init__(self, world: World, dice: random.Random, name: str) -> None:
        self.seen: list[Seen] = []
        self._world, self._dice, self._name = world, dice, name

    def some(self, count: int) -> list[Seen]:
        """So many calls, several at once."""
        first = len(self.seen)
        asks = [
            Ask(
                tag=f"{self._name}-{first + number}",
                key=self._dice.choice(self._world.keys),
                model=QUICK,
                stream=self._dice.random() < 0.2,
            )
            for number in range(count)
        ]
        seen = ask_all(self._world.url, asks, AT_ONCE)
        self.seen += seen
        return seen

    def until_refused(self) -> Seen:
        """Call on until one is refused; every one before that must be served."""
        while len(self.seen) < FILLING_MAX:
            refused = [one for one in self.some(100) if not one.served]
            for one in refused:
                # One that was in flight just then may be cut, since its end had no room.
                cut = one.ask.stream and one.status == 200 and one.error is not None
                if not cut:
                    self._require_refused(one)
            if refused:
                return refused[-1]
        raise AssertionError(f"{FILLING_MAX} requests, and there is still room")

    def require_all_refused(self, count: int) -> None:
        """So many calls, and none of them may be served."""
        for one in self.some(count):
            self._require_refused(one)

    def is_served(self) -> bool:
        """True if one more call is served."""
        return self.some(1)[0].served

    def _require_refused(self, seen: Seen) -> None:
        assert seen.status == 503 and seen.error is not None, f"not refused: {seen}"
        assert seen.error["code"] in ("spool_full", "spool_failed"), seen.error
        assert set(seen.error) == {"message", "type", "param", "code"}, seen.error


def disk_full(place: Place, rounds: Rounds) -> Measured:
    """The disk takes no more: a limit on file sizes, or a small disk where one may be mounted."""
    ways = (_limit_put_on, _limit_from_the_start, _small_disk)
    measured = Measured()
    for number in rounds:
        place.fleet.reset()
        way = ways[(number + place.seed) % len(ways)]
        place.say(f"round {number}: {way.__name__.strip('_').replace('_', ' ')}")
        measured = measured.plus(way(place, number))
    return measured


def _limit_put_on(place: Place, number: int) -> Measured:
    """While it serves, no file of the gateway may grow any more; later it may again."""
    dice = place.dice(f"disk full {number}")
    with place.world() as world:
        world.start()
        name = f"limit{place.seed}-{number}"
        quick = Asking(world, dice, name)
        assert all(one.served for one in quick.some(30))
        open_now = Open(world, dice, name)
        pid = world.now.pid
        [spool] = world.spools_of(world.lives[-1])
        segment = max(spool.glob("*.seg"))
        room = segment.stat().st_size + dice.randint(0, 600)
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        seen = open_now.wait()
        for one in seen:
            assert not one.served, f"{one.ask.tag} was served, and could not be metered: {one}"
            assert one.end == "whole" and one.error is not None, f"cut without a word: {one}"
            assert one.status == (200 if one.ask.stream else 503), one
        quick.require_all_refused(10)
        killed = dice.random() < 0.5
        if killed:
            world.kill()
            world.settle()
            world.start()
        else:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
        wait_until("it serves again", quick.is_served)
        quick.some(10)
        assert world.stop() == 0
        world.settle()
        return verify(world, [*quick.seen, *seen])


def _limit_from_the_start(place: Place, number: int) -> Measured:
    """Gateway and runner begin with a limit on the size of every file, the ledger's too."""
    dice = place.dice(f"disk full {number}")
    with place.world(SMALL) as world:
        size = dice.randint(280, 420) * 1024
        world.start(prefix=_limited(size))
        quick = Asking(world, dice, f"small{place.seed}-{number}")
        quick.until_refused()
        quick.require_all_refused(5)
        if dice.random() < 0.5:
            world.stop()
            # It had no room for its last words, so it ends for its ledger as if it were killed.
            world.lives[-1].killed = True
        else:
            world.kill()
        world.settle()
        world.start()
        wait_until("it serves again", quick.is_served)
        assert world.stop() == 0
        world.settle()
        return verify(world, quick.seen)


def _limited(size: int) -> tuple[str, ...]:
    """A program that sets the limit and becomes what comes after it."""
    code = (
        "import os, resource, sys;"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}));"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    return (sys.executable, "-c", code)


def _small_disk(place: Place, number: int) -> Measured:
    """A file system of a few megabytes that something else fills up, and then leaves again."""
    dice = place.dice(f"disk full {number}")
    with place.small_disk(megabytes=24) as root:
        if root is None:
            place.say("mounting is not permitted here: a limit on the size of files in its place")
            return _limit_put_on(place, number)
        with place.world(root=root / "world") as world:
            world.start()
            quick = Asking(world, dice, f"disk{place.seed}-{number}")
            assert all(one.served for one in quick.some(30))
            open_now = Open(world, dice, f"disk{place.seed}-{number}")
            ballast = [root / "ballast"]
            fill(ballast[0])
            quick.until_refused()
            quick.require_all_refused(5)
            seen = open_now.wait()
            assert all(one.served for one in seen), "the reserve is there for what was open"
            if dice.random() < 0.5:
                world.kill()
                world.settle()
                ballast.append(root / "more")
                fill(ballast[1])
                _cannot_start(world)
                free(ballast)
                world.start()
            free(ballast)
            wait_until("it serves again", quick.is_served)
            quick.some(10)
            assert world.stop() == 0
            world.settle()
            return verify(world, [*quick.seen, *seen])


def _cannot_start(world: World) -> None:
    """On a full disk a gateway says why it does not start."""
    said = len(world.said())
    gateway = world.start(ready=False)
    wait_until("it has given up", lambda: not gateway.alive)
    words = world.said()[said:]
    assert gateway.popen.returncode == 1, gateway.popen.returncode
    assert "Traceback" not in words, words


def fill(path: Path) -> None:
    """Write until the disk of `path` is full."""
    with path.open("wb", buffering=0) as file:
        for block in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(block))


def free(ballast: list[Path]) -> None:
    """Give the disk its room back."""
    for path in ballast:
        path.unlink(missing_ok=True)

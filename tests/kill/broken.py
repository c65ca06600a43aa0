"""Damaged spools: a torn tail is cut off, broken bytes before it are named, nothing older is lost.

The damage is done by hand to the spool of a gateway that was killed, while the ledger was behind.
"""

import random
import shutil
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.kill import disk
from tests.kill.books import Books, Check, Measured
from tests.kill.client import Crowd, Mix, Seen
from tests.kill.disk import Frame
from tests.kill.place import Place, Rounds, verify
from tests.kill.world import MODELS, World
from tests.support.processes import wait_until

FRAMES_MIN = 5
"""Frames that the ledger has taken, and that it has not, when a spool is left."""

MIX = Mix(streams=12, plains=5, models=MODELS)


def torn_tail(place: Place, rounds: Rounds) -> Measured:
    """The end of a dead spool is cut, turned over, or half a frame: all before it counts."""
    measured = Measured()
    for number in rounds:
        dice = place.dice(f"torn {number}")
        place.fleet.reset()
        with place.world() as world:
            spool, seen, _ = _dead_spool(world, dice, f"torn{place.seed}-{number}")
            before = disk.frames(spool)
            kept, how = disk.tear(spool, dice)
            place.say(f"round {number}: {how}")
            lost = _requests_of(before[len(kept) :])
            seen += _serve_on(world, dice, f"torn{place.seed}-{number}-new")
            measured = measured.plus(verify(world, seen, lost=_tags(world, seen, before, lost)))
            require_events(world.data, kept)
            assert disk.unread_bytes(spool) == 0, "the torn tail is cut off"
    return measured


def broken_middle(place: Place, rounds: Rounds) -> Measured:
    """Bytes in the middle of a dead spool are turned over: named, and no reason not to serve."""
    measured = Measured()
    for number in rounds:
        place.fleet.reset()
        taken = (number + place.seed) % 2 == 0
        with place.world() as world:
            measured = measured.plus(_broken(place, world, number, taken=taken))
    return measured


def _broken(place: Place, world: World, number: int, *, taken: bool) -> Measured:
    """`taken`: the bytes break after the ledger has taken them, else before."""
    dice = place.dice(f"broken {number}")
    name = f"broken{place.seed}-{number}"
    spool, seen, position = _dead_spool(world, dice, name)
    whole = disk.frames(spool)
    mine = [frame for frame in whole[1:-1] if (frame.end <= position) == taken]
    bad = dice.choice(mine)
    copy = world.root / bad.file.name
    shutil.copy2(bad.file, copy)
    place.say(
        f"round {number}: {disk.flip(bad, dice)}, in frame {whole.index(bad)} of {len(whole)}, "
        f"which the ledger had {'' if taken else 'not '}taken"
    )
    kept = [frame for frame in whole if frame.end <= max(position, bad.start)]
    lost = _tags(world, seen, whole, _requests_of(whole[len(kept) :]))
    seen += _serve_on(world, dice, f"{name}-new")
    require_named(world, bad)
    books = Books(world.data)
    require_events(world.data, kept)
    unread = () if taken else lost
    if taken:
        Check(world, books).all(seen)
        world.settled.clear()
    else:
        # A spool that cannot be read to its end is not closed by guessing: some stay open.
        new = [one for one in seen if one.ask.tag not in unread]
        require_served(books, new)
    # What is put back whole is read on, and then nothing is missing at all.
    shutil.copy2(copy, bad.file)
    world.start()
    assert world.stop() == 0
    world.settle()
    code, after, errors = world.audit()
    require_events(world.data, whole)
    assert code == 0 and not after, f"all is whole again; the audit: {code}, {after}, {errors}"
    return Check(world, Books(world.data)).all(seen)


def _dead_spool(world: World, dice: random.Random, name: str) -> tuple[Path, list[Seen], int]:
    """The spool of a gateway that was killed under load while its runner stood still.

    Returns it, what the clients saw, and how far the ledger has read it.
    """
    world.start()
    [spool] = world.spools_of(world.lives[-1])

    def frames(*, taken: bool) -> int:
        position = _position(world.data, spool)
        return sum((frame.end <= position) == taken for frame in disk.frames(spool))

    with Crowd(world.url, world.keys, MIX, dice, name) as crowd:
        time.sleep(dice.uniform(0.5, 1.0))
        wait_until("the ledger has taken some", lambda: frames(taken=True) >= FRAMES_MIN)
        runner = world.the_runner()
        world.pause(runner)
        time.sleep(dice.uniform(0.5, 1.0))
        wait_until("some are not taken", lambda: frames(taken=False) >= FRAMES_MIN)
        world.kill(runner)
    world.settle()
    return spool, crowd.seen, _position(world.data, spool)


def _position(data: Path, spool: Path) -> int:
    """How far the ledger has read `spool`."""
    db = sqlite3.connect(f"file:{data / 'ledger.db'}?mode=ro", uri=True)
    try:
        wanted = ("SELECT next_offset FROM positions WHERE log = ?", (f"spool/{spool.name}",))
        found = db.execute(*wanted).fetchone()
    finally:
        db.close()
    return found[0] if found else 0


def _serve_on(world: World, dice: random.Random, name: str) -> list[Seen]:
    """Start, serve for a while and stop: whatever an old spool is like, a new one is there."""
    world.start()
    with Crowd(world.url, world.keys, MIX, dice, name) as crowd:
        time.sleep(dice.uniform(0.4, 0.8))
    assert world.stop() == 0
    world.settle()
    assert any(seen.served for seen in crowd.seen), "it serves"
    return crowd.seen


def _requests_of(frames: Iterable[Frame]) -> set[str]:
    """The requests that any record of `frames` speaks of."""
    return {
        str(record["data"].get("request_id"))
        for frame in frames
        for record in frame.records
        if "request_id" in record["data"]
    }


def _tags(
    world: World, seen: Iterable[Seen], frames: Iterable[Frame], requests: set[str]
) -> set[str]:
    """The tags of `requests`, by what their acceptance in `frames` says of the client's id."""
    books = Books(world.data)
    hashes = {books.hashed(one.ask.tag): one.ask.tag for one in seen}
    found = set()
    for frame in frames:
        for record in frame.records:
            data = record["data"]
            if data.get("request_id") in requests and data.get("client_request") in hashes:
                found.add(hashes[data["client_request"]])
    return found


def require_events(data: Path, frames: Iterable[Frame]) -> None:
    """Every record of `frames` that the ledger keeps is in it, and says the same."""
    db = sqlite3.connect(f"file:{data / 'ledger.db'}?mode=ro", uri=True)
    try:
        stored: dict[str, Any] = dict(db.execute("SELECT id, type FROM events"))
    finally:
        db.close()
    for frame in frames:
        for record in frame.records:
            if record["topic"] not in ("tokens", "backends"):
                assert stored.get(record["id"]) == record["type"], f"older, and lost: {record}"


def require_named(world: World, bad: Frame) -> None:
    """The audit fails, and says in which file and where."""
    code, findings, errors = world.audit()
    assert code == 1, f"broken bytes, and the audit says {code}: {errors}"
    named = [
        one for one in findings if str(bad.file) in one["says"] and f" {bad.start} " in one["says"]
    ]
    assert named, f"{bad.file} at {bad.start} is not named in {findings}"


def require_served(books: Books, seen: Iterable[Seen]) -> None:
    """Each whole answer of `seen` is in the ledger once, with its tokens."""
    rows = books.by_client()
    for one in seen:
        if one.served:
            [row] = rows[books.hashed(one.ask.tag)]
            assert (row["state"], row["basis"]) == ("finished", "reported"), row
            assert (row["reasoning_out"] + row["other_out"]) == one.ask.tokens, row

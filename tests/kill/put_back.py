"""The data directory put back to an older copy: new is new, and what is lost is named.

The copy is a `cp -a` of a directory at rest (stopped in order, or just killed and not yet adopted),
or one that was made under load in the order that docs/operations.md gives. Where only the ledger is
put back, the spools still know all of it, and nothing may be lost.
"""

import time

from tests.kill.books import Books, Check, Measured
from tests.kill.client import Crowd, Mix
from tests.kill.place import Place, Rounds
from tests.kill.world import MODELS

MIX = Mix(streams=10, plains=4, models=MODELS)
COPIES = ("running", "stopped", "killed", "ledger")
NAMES_A_GAP = {"logs", "completeness", "requests"}
"""The checks that may speak of a lost part; nothing may be set aside, nothing add up wrong."""


def put_back(place: Place, rounds: Rounds) -> Measured:
    """Serve, copy, serve on, lose it all, put the copy back, serve again."""
    measured = Measured()
    for number in rounds:
        kind = COPIES[(number + place.seed) % len(COPIES)]
        place.say(f"round {number}: a copy of a {kind} gateway's directory")
        measured = measured.plus(_one(place, number, kind))
    return measured


def _one(place: Place, number: int, kind: str) -> Measured:
    dice = place.dice(f"put back {number}")
    place.fleet.reset()
    with place.world() as world:
        copy = world.root / "copy"
        name = f"back{place.seed}-{number}"
        world.start()
        with Crowd(world.url, world.keys, MIX, dice, name) as crowd:
            time.sleep(dice.uniform(0.5, 1.5))
            if kind == "running":
                begun = time.monotonic()
                world.copy_live(copy, dice.uniform(0.0, 0.8))
            else:
                if kind == "killed":
                    world.kill(world.the_runner())
                else:
                    assert world.stop() == 0
                world.settle()
                begun = time.monotonic()
                world.copy(copy)
                world.start()
            time.sleep(dice.uniform(0.4, 1.0))
            world.kill()
        world.settle()
        # What had its end before the copy was begun is in it; the copy of a directory at rest also
        # has what was open then.
        later = {
            seen.ask.tag
            for seen in crowd.seen
            if seen.ended > begun and (kind == "running" or seen.sent > begun)
        }
        if kind == "ledger":
            later.clear()
            world.put_back_ledger(copy)
        else:
            world.put_back(copy)
        world.start()
        with Crowd(world.url, world.keys, MIX, dice, f"{name}-new") as fresh:
            time.sleep(dice.uniform(0.5, 1.2))
            world.kill()
        world.settle()
        code, findings, errors = world.audit()
        assert code == (1 if findings else 0), (code, findings, errors)
        assert kind == "running" or not findings, f"nothing is missing: {findings}"
        strange = [one for one in findings if one["check"] not in NAMES_A_GAP]
        assert not strange, f"a lost part is a gap and nothing else: {strange}"
        for one in findings:
            place.say(f"  the audit: {one['check']}: {one['says']}")
        books = Books(world.data)
        measured = Check(world, books).all([*crowd.seen, *fresh.seen], lost=later)
        assert any(seen.served for seen in fresh.seen), "the copy serves"
        return measured

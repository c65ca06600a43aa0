"""`kill -9` at random moments under load: the gateway, its runner, its workers, in any mixture.

Meanwhile the audit must find nothing on a ledger that is written to, and a command that is killed
while it adopts what dead processes left must do no harm either.
"""

import random
import signal
import time
from pathlib import Path

from tests.kill import disk
from tests.kill.books import Books, Measured
from tests.kill.client import Crowd, Mix
from tests.kill.place import Place, Rounds, verify
from tests.kill.world import MODELS, World

CHECK_EVERY_ROUNDS = 10
TOMLS = ("", '[spool]\ndurability = "power"\n', "[spool]\nkeep_bytes = 0\n")
MIX = Mix(streams=16, plains=6, models=MODELS)

GATEWAY_WAYS = ("serving", "serving", "stopping", "starting", "serving")
RUNNER_WAYS = ("runner", "both", "adopting", "runner then gateway", "audited")
WORKERS_WAYS = ("parent", "all", "worker")


def kill_gateway(place: Place, rounds: Rounds) -> Measured:
    """Kill the gateway while it serves, while it starts, while it stops; start again; go on."""
    return _crash(place, rounds, GATEWAY_WAYS)


def kill_runner(place: Place, rounds: Rounds) -> Measured:
    """Kill the runner, again and again, and now and then the gateway with it."""
    return _crash(place, rounds, RUNNER_WAYS)


def _crash(place: Place, rounds: Rounds, ways: tuple[str, ...]) -> Measured:
    dice = place.dice(" ".join(ways))
    measured = Measured()
    toml = dice.choice(TOMLS)
    place.say(f"configured: {toml or 'nothing'}")
    with place.world(toml) as world:
        for run in rounds.runs(CHECK_EVERY_ROUNDS):
            place.fleet.reset()
            name = f"crash{place.seed}-{rounds.played}"
            with Crowd(world.url, world.keys, MIX, dice, name) as crowd:
                for number in run:
                    way = ways[number % len(ways)]
                    place.say(f"round {number}: {way}, {crowd.served()} served so far")
                    _one(world, dice, way)
            world.settle()
            if dice.random() < 0.5:
                # Otherwise the audit itself finds the dead spools, and adopts them.
                world.start()
                assert world.stop() == 0
            measured = measured.plus(verify(world, crowd.seen, bill=ways is GATEWAY_WAYS))
    assert measured.served and measured.abandoned, "every part of the promise was put to the test"
    return measured


def _one(world: World, dice: random.Random, way: str) -> None:
    world.start(ready=way != "starting")
    match way:
        case "starting":
            time.sleep(dice.uniform(0.0, 1.2))
        case "stopping":
            time.sleep(dice.uniform(0.3, 1.0))
            world.now.signal(signal.SIGTERM)
            time.sleep(dice.uniform(0.0, 0.6))
        case "runner":
            for _ in range(3):
                time.sleep(dice.uniform(0.05, 0.7))
                world.kill_child(world.the_runner())
            time.sleep(dice.uniform(0.0, 0.5))
        case "runner then gateway":
            time.sleep(dice.uniform(0.3, 1.0))
            world.kill_child(world.the_runner())
            time.sleep(dice.uniform(0.0, 0.2))
        case "audited":
            time.sleep(dice.uniform(0.2, 0.6))
            code, findings, errors = world.audit()
            assert (code, findings) == (0, []), f"on a live gateway: {findings}, {errors}"
        case _:
            time.sleep(dice.uniform(0.3, 1.5))
    runner = world.runner() if way in ("both", "adopting") else None
    world.kill(*([runner] if runner else []))
    if way == "adopting":
        world.kill_command(dice.uniform(0.4, 1.6), "bill")


def fewer_workers(place: Place, rounds: Rounds) -> Measured:
    """Three workers are killed, one way or another; one worker comes after them."""
    dice = place.dice("workers")
    measured = Measured()
    with place.world() as world:
        for number in rounds:
            way = WORKERS_WAYS[(number + place.seed) % len(WORKERS_WAYS)]
            place.say(f"round {number}: {way}")
            place.fleet.reset()
            name = f"workers{place.seed}-{number}"
            with Crowd(world.url, world.keys, MIX, dice, name) as crowd:
                world.start(workers=3)
                time.sleep(dice.uniform(0.5, 1.5))
                workers = world.workers()
                if way == "worker":
                    world.kill_worker(dice.choice(workers))
                    time.sleep(dice.uniform(0.5, 1.5))
                    workers = world.workers()
                world.kill(*(workers if way == "all" else []))
                world.start(workers=1)
                time.sleep(dice.uniform(0.3, 0.8))
                world.kill()
            world.start()
            assert world.stop() == 0
            world.settle()
            measured = measured.plus(verify(world, crowd.seen))
            require_adopted(world)
    assert measured.served and measured.abandoned, "every part of the promise was put to the test"
    return measured


def require_adopted(world: World) -> None:
    """Every spool is closed, by its writer or by an adopter, on disk and in the ledger."""
    closed = Books(world.data).closed
    spools = [spool for spool in disk.spools(world.data) if disk.records(spool)]
    left = [spool.name for spool in spools if not (spool / "adopted").exists()]
    assert not left, f"not adopted: {left}"
    unsaid = [name for name in map(_source, spools) if name not in closed]
    assert not unsaid, f"nobody said that these are closed: {unsaid}"


def _source(spool: Path) -> str:
    return disk.source(spool)

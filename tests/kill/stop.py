"""SIGTERM with requests in flight: what runs is finished, up to a limit.

That limit is a few seconds here, so that both kinds are seen.
"""

import random
import threading
import time

from tests.kill.books import Books, Measured
from tests.kill.client import Ask, Seen, ask_all
from tests.kill.crash import require_adopted
from tests.kill.place import Place, Rounds, verify
from tests.kill.world import World
from tests.support.processes import wait_until

GRACE_SECONDS = 3
TOML = f"[gateway]\nshutdown_seconds_max = {GRACE_SECONDS}\n"
SHORT = ("s-n30-i15000-p11", "s-n60-i8000-p12-c3", "s-n12-i40000-p13-r4")
"""About half a second: well within the grace, whenever they began."""

LONG = ("l-n4000-i15000-p14", "l-n9000-i9000-p15-c5")
"""A minute or more: nobody waits for these."""


def sigterm(place: Place, rounds: Rounds) -> Measured:
    """Stop a gateway in order, with streams and plain calls in flight, by one or two workers."""
    dice = place.dice("sigterm")
    measured = Measured()
    with place.world(TOML) as world:
        for number in rounds:
            place.fleet.reset()
            workers = 1 + (number + place.seed) % 2
            place.say(f"round {number}: {workers} workers")
            seen, late = _one(world, dice, f"stop{place.seed}-{number}", workers)
            measured = measured.plus(verify(world, [*seen, late]))
            require_adopted(world)
            books = Books(world.data)
            states = {row["state"] for row in books.rows}
            assert states == {"finished"}, f"an orderly stop abandons nothing: {states}"
            gateways = {by for source, by in books.closed.items() if "/gateway/" in source}
            assert gateways == {"itself"}, f"each source says itself that it is closed: {gateways}"
            outcomes = {row["client_request"]: row["outcome"] for row in books.rows}
            for one in seen:
                _as_promised(one, outcomes[books.hashed(one.ask.tag)])
    return measured


def _one(world: World, dice: random.Random, name: str, workers: int) -> tuple[list[Seen], Seen]:
    asks = [
        Ask(
            tag=f"{name}-{number}",
            key=dice.choice(world.keys),
            model=dice.choice(SHORT if number % 3 else LONG),
            stream=number % 2 == 0,
            endpoint=dice.choice(("chat/completions", "completions")),
            usage=dice.random() < 0.5,
        )
        for number in range(24)
    ]
    world.start(workers=workers)
    seen: list[Seen] = []
    clients = threading.Thread(target=lambda: seen.extend(ask_all(world.url, asks)), daemon=True)
    clients.start()
    wait_until("all requests are at the backends", lambda: _at_backends(world) == len(asks))
    time.sleep(dice.uniform(0.0, 0.2))
    world.ask_to_stop()
    # It comes too late, or just in time: it must be refused, or be served and billed.
    [late] = ask_all(
        world.url, [Ask(tag=f"{name}-late", key=world.keys[0], model=SHORT[0], stream=True)]
    )
    code = world.stop()
    clients.join(GRACE_SECONDS + 20)
    assert not clients.is_alive(), "a client still waits for its answer"
    assert code == 0, f"serve ended with {code}"
    world.settle()
    return seen, late


def _at_backends(world: World) -> int:
    return sum(one.stats()["requests"] for one in world.fleet.backends)


def _as_promised(seen: Seen, outcome: str) -> None:
    tag = seen.ask.tag
    if seen.ask.model in SHORT:
        assert seen.served and outcome == "completed", f"{tag} had time enough: {outcome}, {seen}"
        return
    assert outcome == "shutdown", f"{tag} is {outcome}"
    assert seen.end == "whole" and not seen.done, f"{tag} ends in order, with words: {seen.end}"
    assert seen.error is not None and "stopped" in seen.error["message"], f"{tag}: {seen.error}"
    # The head of a stream is long gone when the gateway stops; a plain answer still has its status.
    assert seen.status == (200 if seen.ask.stream else 503), f"{tag}: {seen.status}"

"""What happens to an installation under load: played short by the suite, long by the soak."""

import random
import time
from contextlib import ExitStack

from gateway.dev.broker import Broker
from gateway.dev.postgres import Postgres
from tests.cluster.books import verify
from tests.cluster.world import Cluster, sometimes
from tests.kill.books import Measured
from tests.kill.client import Crowd, Mix, Seen
from tests.kill.world import MODELS

MIX = Mix(streams=6, plains=3, models=MODELS)


def under_load(cluster: Cluster, dice: random.Random, name: str, stack: ExitStack) -> list[Crowd]:
    """One crowd at each gateway, until `stack` ends."""
    return [
        stack.enter_context(Crowd(house.url, cluster.keys, MIX, dice, f"{name}-{house.name}"))
        for house in cluster.houses
    ]


def killed(cluster: Cluster, dice: random.Random, rounds: int) -> Measured:
    """Gateway, relay, writer and worker get `kill -9` at random moments, and are started again."""
    cluster.begin_all()
    seen: list[Seen] = []
    for number in range(rounds):
        with ExitStack() as stack:
            crowds = under_load(cluster, dice, f"kill{number}", stack)
            victims = ["gateway", "relay", "write", "worker"]
            dice.shuffle(victims)
            for victim in victims:
                sometimes(dice, 0.3, 1.0)
                _kill(cluster, dice, victim)
            sometimes(dice, 0.5, 1.0)
        seen += [one for crowd in crowds for one in crowd.seen]
    _end(cluster)
    return verify(cluster, seen)


def _kill(cluster: Cluster, dice: random.Random, victim: str) -> None:
    house = dice.choice(cluster.houses)
    if victim == "gateway":
        cluster.kill_gateway(house)
        sometimes(dice, 0.0, 0.3)
        cluster.start(house)
    elif victim == "relay":
        cluster.kill_relay(house)
    else:
        cluster.kill_role(victim)
        sometimes(dice, 0.0, 0.3)
        cluster.begin(victim)


def _end(cluster: Cluster) -> None:
    """Stop all gateways in order, and let orphans of killed ones end."""
    for house in cluster.houses:
        cluster.stop(house)
    cluster.wait_gone()


def replayed(cluster: Cluster, dice: random.Random) -> Measured:
    """All that was ever spooled is sent once more beside live traffic: nothing moves."""
    cluster.begin_all()
    with ExitStack() as stack:
        crowds = under_load(cluster, dice, "first", stack)
        sometimes(dice, 0.5, 1.0)
        cluster.kill_gateway(cluster.houses[0])
        cluster.start(cluster.houses[0])
        sometimes(dice, 0.5, 1.0)
    _end(cluster)
    verify(cluster, [one for crowd in crowds for one in crowd.seen])
    for spool in cluster.spools():
        (spool / "relayed.json").unlink(missing_ok=True)
        (spool / "adopted").unlink(missing_ok=True)
        (spool / "consumed").write_bytes(bytes(8))
    for house in cluster.houses:
        cluster.start(house)
    with ExitStack() as stack:
        again = under_load(cluster, dice, "again", stack)
        sometimes(dice, 1.5, 2.0)
    _end(cluster)
    crowds += again
    return verify(cluster, [one for crowd in crowds for one in crowd.seen])


def servers_away(
    cluster: Cluster, dice: random.Random, broker: Broker, postgres: Postgres
) -> Measured:
    """The broker stops and comes back, Postgres is killed and comes back; gateways serve on."""
    cluster.begin_all()
    seen: list[Seen] = []
    with ExitStack() as stack:
        crowds = under_load(cluster, dice, "away", stack)
        sometimes(dice, 0.5, 1.0)
        broker.stop()
        before = sum(crowd.served() for crowd in crowds)
        time.sleep(2.0)
        assert sum(crowd.served() for crowd in crowds) > before, "they serve without Kafka"
        broker.start()
        sometimes(dice, 0.5, 1.0)
        postgres.kill()
        before = sum(crowd.served() for crowd in crowds)
        time.sleep(2.0)
        assert sum(crowd.served() for crowd in crowds) > before, "they serve without Postgres"
        postgres.start()
        sometimes(dice, 0.5, 1.0)
    seen += [one for crowd in crowds for one in crowd.seen]
    _end(cluster)
    return verify(cluster, seen)


def members_change(cluster: Cluster, dice: random.Random) -> Measured:
    """A second writer and a second worker join and leave under load."""
    cluster.begin_all()
    with ExitStack() as stack:
        crowds = under_load(cluster, dice, "members", stack)
        sometimes(dice, 0.3, 0.6)
        for role in ("write", "worker"):
            cluster.begin(role, f"{role}-2")
        sometimes(dice, 4.0, 5.0)
        for name in ("write", "worker"):
            cluster.roles[name].terminate()
        sometimes(dice, 1.0, 2.0)
        cluster.begin("write")
        cluster.roles["worker-2"].kill()
        cluster.begin("worker")
        sometimes(dice, 0.5, 1.0)
    _end(cluster)
    return verify(cluster, [one for crowd in crowds for one in crowd.seen])

"""The scenarios of an installation in the form that the soak plays: round after round."""

import random
from collections.abc import Callable

from gateway.dev.broker import Broker
from gateway.dev.postgres import Postgres
from tests.cluster.scenarios import killed, members_change, servers_away
from tests.cluster.world import Cluster
from tests.kill.books import Measured
from tests.kill.place import Place, Rounds
from tests.support.kafka import access_to, new_name, running_broker, running_postgres

KILLS_IN_ONE_ROUND = 3

Play = Callable[[Cluster, random.Random, Broker, Postgres], Measured]


def cluster_killed(place: Place, rounds: Rounds) -> Measured:
    """Gateway, relay, writer and worker are killed under load, on a real Kafka and Postgres."""
    return _each(place, rounds, lambda c, dice, b, p: killed(c, dice, KILLS_IN_ONE_ROUND))


def cluster_servers(place: Place, rounds: Rounds) -> Measured:
    """Kafka stops, Postgres is killed, and both come back while gateways serve."""
    return _each(place, rounds, servers_away)


def cluster_members(place: Place, rounds: Rounds) -> Measured:
    """Writers and workers join, leave and die while gateways serve."""
    return _each(place, rounds, lambda c, dice, b, p: members_change(c, dice))


def _each(place: Place, rounds: Rounds, play: Play) -> Measured:
    measured = Measured()
    with running_broker() as broker, running_postgres() as postgres:
        for number in rounds:
            place.fleet.reset()
            url = postgres.create_database(new_name("soak"))
            with Cluster(place.fleet, place.folder(), access_to(broker), url) as cluster:
                dice = place.dice(f"cluster {number}")
                measured = measured.plus(play(cluster, dice, broker, postgres))
            place.say(f"round {number}: {measured.words()}")
    return measured

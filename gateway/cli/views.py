"""What running gateways say of their backends, for the command line: from the data directory, or
from Kafka."""

import asyncio
from typing import Final

from gateway.cli.place import Place
from ledger.folds.routing import RoutingView, readable_views
from streams.local.layout import Layout
from streams.log.lock import held
from streams.log.reader import SpoolReader
from streams.log.spool import LOCK

ROUTING: Final = "routing-state"
_GATEWAY: Final = "/gateway/"


def living(place: Place) -> list[str] | None:
    """The sources of the gateways that serve from this data directory now; null where that cannot
    be known, since they are on other machines."""
    if not place.embedded:
        return None
    spools = [SpoolReader(one) for one in Layout(place.data).spool_directories()]
    sources = [one.told_source() for one in spools if held(one.directory / LOCK)]
    return [source for source in sources if source is not None and source.startswith(_GATEWAY)]


def views_of(place: Place) -> dict[tuple[str, str], RoutingView]:
    """The last view of each backend by each gateway, also those that have run out.

    Raises `KafkaError` where they are on Kafka and it cannot be reached. Blocks.
    """
    access = place.kafka
    if access is None:
        from streams.local.routed import recall

        return recall(Layout(place.data))
    from streams.kafka.read import latest_values

    return readable_views(asyncio.run(latest_values(access, ROUTING, "backends")).values())

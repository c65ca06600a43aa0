"""A gateway that is killed, or loses its disk, begins again with what it knew of its backends."""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.keys import issue
from ledger.clock import SystemClock
from ledger.folds.routing import RoutingView, view_of
from streams.kafka.access import KafkaAccess
from streams.kafka.read import latest_values
from streams.kafka.registry import KafkaRegistry
from streams.local.layout import Layout
from streams.local.routed import recall
from tests.gateway.doors import SOON_SECONDS, ask, backend, door, new_key
from tests.gateway.test_kafka_feed import ask as ask_by
from tests.gateway.test_kafka_feed import health, kafka_table
from tests.streams.worker_house import working
from tests.support import processes
from tests.support.processes import Backend, Gateway, call, wait_until

pytestmark = pytest.mark.e2e

DOWN = "down: it was down before this gateway started"


@contextmanager
def servers(directory: Path) -> Iterator[list[Backend]]:
    """`good` answers, `bad` lists its models and fails every request."""
    with (
        processes.backend(directory, models="fake") as good,
        processes.backend(directory, models="fake") as bad,
    ):
        call(f"{bad.url}/_next", ["e500"] * 2000)
        yield [good, bad]


def tables(both: list[Backend]) -> list[dict[str, Any]]:
    return [backend(one.url, name) for name, one in zip(("good", "bad"), both, strict=True)]


def is_down(gateway: Gateway) -> bool:
    """Asks until the gateway has found out; clients see none of it."""
    said: str = health(gateway)[1]["backends"]["bad"]
    return said.startswith("down")


def told(views: dict[tuple[str, str], RoutingView]) -> bool:
    bad, good = views.get(("bad", "gateway")), views.get(("good", "gateway"))
    return bad is not None and bad.state == "open" and good is not None and good.requests > 0


def test_a_gateway_that_was_killed_knows_who_was_down(tmp_path: Path) -> None:
    data = tmp_path / "data"
    key = new_key(data, "all")
    with servers(tmp_path) as both:
        with door(tmp_path, tables(both)) as gateway:
            wait_until(
                "bad is known to be bad",
                lambda: ask(gateway, key, "fake", stream=True).status == 200 and is_down(gateway),
                SOON_SECONDS,
            )
            wait_until("it is in a view", lambda: told(recall(Layout(data))), SOON_SECONDS)
            gateway.kill()
        before = recall(Layout(data))["good", "gateway"]
        with door(tmp_path, tables(both)) as gateway:
            assert health(gateway)[1]["backends"]["bad"].startswith("down")
            assert DOWN in gateway.output() or "backend bad is open" in gateway.output()
            after = wait_until(
                "its first view is in the file",
                lambda: (
                    (found := recall(Layout(data))["good", "gateway"]).source != before.source
                    and found
                ),
                SOON_SECONDS,
            )
    assert isinstance(after, RoutingView)
    assert after.requests == 0 and after.first_token_us == before.first_token_us is not None


def test_with_kafka_alone_it_outlives_the_loss_of_gateway_and_worker(
    kafka: KafkaAccess, tmp_path: Path
) -> None:
    issued = datetime(2026, 11, 1, tzinfo=UTC)
    registry = KafkaRegistry(kafka, "/cli/test/1", clock=SystemClock())
    registry.append(lambda _: issue("key-1", "key-1", None, issued))

    def views() -> dict[tuple[str, str], RoutingView]:
        found = asyncio.run(latest_values(kafka, "routing-state", "test"))
        return {(view.backend_id, view.gateway): view for view in map(view_of, found.values())}

    with servers(tmp_path) as both:
        table = kafka_table(kafka)
        with working(kafka), door(tmp_path, tables(both), kafka=table) as gateway:
            wait_until("key-1 opens", lambda: ask_by(gateway, "key-1").status != 401, SOON_SECONDS)
            wait_until(
                "bad is known to be bad",
                lambda: ask_by(gateway, "key-1").status == 200 and is_down(gateway),
                SOON_SECONDS,
            )
            wait_until("it is in a view", lambda: told(views()), 3 * SOON_SECONDS)
            gateway.kill()
        shutil.rmtree(tmp_path / "data")
        with working(kafka), door(tmp_path, tables(both), kafka=table) as gateway:
            wait_until("key-1 opens", lambda: ask_by(gateway, "key-1").status != 401, SOON_SECONDS)
            output = gateway.output()
    assert "routing goes on from" in output
    # Until the next one was up some seconds went by: then it is on trial, and not up as if new.
    assert "backend bad is open" in output or "backend bad is half open" in output

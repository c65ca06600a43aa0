"""A gateway that is killed, or loses its disk, begins again with what it knew of its backends."""

import asyncio
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.pool import FRESH_SECONDS
from gateway.cli.keys import issue
from gateway.routing.shares import shares
from ledger.clock import SystemClock
from ledger.folds.routing import RoutingView, view_of
from streams.kafka.access import KafkaAccess
from streams.kafka.read import latest_values
from streams.kafka.registry import KafkaRegistry
from streams.local.layout import Layout
from streams.local.routed import recall
from tests.gateway.doors import SOON_SECONDS, ask, backend, door, new_key
from tests.gateway.test_kafka_feed import health, kafka_table
from tests.streams.worker_house import working
from tests.support import processes
from tests.support.processes import Backend, Gateway, call, chat, descendants, lives, wait_until

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


def issue_key(kafka: KafkaAccess) -> None:
    """Make key-1, whose secret is its id."""
    issued = datetime(2026, 11, 1, tzinfo=UTC)
    registry = KafkaRegistry(kafka, "/cli/test/1", clock=SystemClock())
    registry.append(lambda _: issue("key-1", "key-1", None, issued))


def views(kafka: KafkaAccess) -> dict[tuple[str, str], RoutingView]:
    found = asyncio.run(latest_values(kafka, "routing-state", "test"))
    return {(view.backend_id, view.gateway): view for view in map(view_of, found.values())}


def by_backend(kafka: KafkaAccess, not_of: str = "") -> dict[str, RoutingView]:
    """The views of the one gateway that there is, unless they are still those of `not_of`."""
    found = {view.backend_id: view for view in views(kafka).values()}
    return found if all(view.source != not_of for view in found.values()) else {}


def kill_and_lose_the_disk(gateway: Gateway) -> None:
    """End it at once. Its relay brings what is on the disk to Kafka before it ends, too."""
    below = descendants(gateway.popen.pid)
    gateway.kill()
    wait_until("its children end", lambda: not any(map(lives, below)), 3 * SOON_SECONDS)
    shutil.rmtree(gateway.data)


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
    issue_key(kafka)
    with servers(tmp_path) as both:
        table = kafka_table(kafka)
        with working(kafka), door(tmp_path, tables(both), kafka=table) as gateway:
            wait_until(
                "key-1 opens", lambda: chat(gateway.url, "key-1").status != 401, SOON_SECONDS
            )
            wait_until(
                "bad is known to be bad",
                lambda: chat(gateway.url, "key-1").status == 200 and is_down(gateway),
                SOON_SECONDS,
            )
            wait_until("it is in a view", lambda: told(views(kafka)), 3 * SOON_SECONDS)
            kill_and_lose_the_disk(gateway)
        with working(kafka), door(tmp_path, tables(both), kafka=table) as gateway:
            wait_until(
                "key-1 opens", lambda: chat(gateway.url, "key-1").status != 401, SOON_SECONDS
            )
            output = gateway.output()
    assert "routing goes on from" in output
    # Until the next one was up some seconds went by: then it is on trial, and not up as if new.
    assert "backend bad is open" in output or "backend bad is half open" in output


def test_with_kafka_alone_the_first_views_after_a_loss_are_as_the_last_before_it(
    kafka: KafkaAccess, tmp_path: Path
) -> None:
    """Shares go on from the minute before; what was open is so still, or on trial if that is
    long ago."""
    issue_key(kafka)
    with (
        working(kafka),
        servers(tmp_path) as both,
        processes.backend(tmp_path, models="fake") as third,
    ):
        rows, table = [*tables(both), backend(third.url, "third")], kafka_table(kafka)
        with door(tmp_path, rows, kafka=table) as gateway:
            wait_until(
                "key-1 opens", lambda: chat(gateway.url, "key-1").status != 401, SOON_SECONDS
            )
            wait_until(
                "bad is known to be bad",
                lambda: chat(gateway.url, "key-1").status == 200 and is_down(gateway),
                SOON_SECONDS,
            )
            assert {chat(gateway.url, "key-1").status for _ in range(20)} == {200}

            def all_told() -> dict[str, RoutingView]:
                found = by_backend(kafka)
                whole = len(found) == 3 and sum(view.picks or 0 for view in found.values()) >= 21
                return found if whole and found["bad"].state == "open" else {}

            wait_until("shares and breaker are told", all_told, 3 * SOON_SECONDS)
            kill_and_lose_the_disk(gateway)
        wait_until("the last of it is folded", lambda: settled(kafka), 3 * SOON_SECONDS)
        before = by_backend(kafka)
        with door(tmp_path, rows, kafka=table) as gateway:
            first = first_views(kafka, before)
            kill_and_lose_the_disk(gateway)
        picks = {name: view.picks or 0 for name, view in before.items()}
        had = {name: round(share, 4) for name, share in shares(picks, picks).items()}
        told = {name: float(view.share_before or "nan") for name, view in first.items()}
        assert told == had and 0 < told["good"] < 1
        assert {name: view.first_token_us for name, view in first.items()} == {
            name: view.first_token_us for name, view in before.items()
        }
        assert {name: view.state for name, view in first.items()} == {
            "good": "closed",
            "third": "closed",
            "bad": "open",
        }
        time.sleep(FRESH_SECONDS)
        with door(tmp_path, rows, kafka=table):
            assert first_views(kafka, first)["bad"].state == "half_open"


def settled(kafka: KafkaAccess) -> bool:
    """True if nothing new has come for a second: nobody tells anything, and all is folded."""
    had = views(kafka)
    time.sleep(1)
    return views(kafka) == had


def first_views(kafka: KafkaAccess, before: dict[str, RoutingView]) -> dict[str, RoutingView]:
    """What the process that came after `before` says, of all of its backends."""
    source = before["bad"].source
    found: dict[str, RoutingView] = wait_until(
        "it tells of all its backends", lambda: by_backend(kafka, source), 3 * SOON_SECONDS
    )
    return found

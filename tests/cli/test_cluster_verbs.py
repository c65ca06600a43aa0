"""The commands where several machines share Kafka and Postgres: both are real here."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.cli import backend_drain
from gateway.dev.broker import Broker
from ledger.clock import SystemClock
from ledger.events import Event
from ledger.folds.routing import RoutingView, view_bytes
from ledger.sql.session import open_ledger
from ledger.sql.writer import Batch, LedgerWriter
from streams.kafka.access import KafkaAccess
from streams.kafka.read import read_to_end
from streams.kafka.records import event_of
from streams.kafka.relay.status import Status, write_status
from tests.cli.books import run, run_json
from tests.streams.topics_house import produce, produce_raw
from tests.support import events as say
from tests.support.events import Scribe
from tests.support.kafka import access_to, settings_file

pytestmark = pytest.mark.e2e


@pytest.fixture
def where(tmp_path: Path, kafka: KafkaAccess, postgres_url: str) -> tuple[str, ...]:
    """Options that name the real servers, and a data directory that is not there."""
    config = settings_file(tmp_path, kafka, postgres_url)
    return "--config", str(config), "--data", str(tmp_path / "none")


def test_topics_are_made_once_and_checked(tmp_path: Path, broker: Broker) -> None:
    access = access_to(broker, topics=False)
    config = ("--config", str(settings_file(tmp_path, access)))
    missing = run("topics", "check", *config)
    assert missing.exit_code == 1
    assert f"{access.prefix}.requests is missing; `tollbook topics create`" in missing.stderr
    assert "10 made now" in run("topics", "create", *config).stdout
    assert run_json("topics", "create", *config)["made"] == []
    shown = run("topics", "check", *config)
    assert shown.exit_code == 0 and "all are there as they should be" in shown.stdout
    other = settings_file(tmp_path, replace(access, partitions=3))
    wrong = run("topics", "check", "--config", str(other))
    assert wrong.exit_code == 1 and "has 2 partitions and 3 are set" in wrong.stderr


def test_without_kafka_there_are_no_topics() -> None:
    refused = run("topics", "check")
    assert refused.exit_code == 1 and "--kafka HOST:PORT" in refused.stderr


def test_keys_and_prices_live_on_kafka_and_names_in_postgres(where: tuple[str, ...]) -> None:
    made = run_json("keys", "create", "--name", "alice", "--models", "m", *where)
    listed = run_json("keys", "list", *where)["keys"]
    assert [(key["id"], key["name"], key["models"]) for key in listed] == [
        (made["id"], "alice", ["m"])
    ]
    assert run_json("keys", "revoke", "alice", *where)["revoked"] is not None
    again = run("keys", "revoke", "alice", *where)
    assert again.exit_code == 1 and "already" in again.stderr
    told = run("prices", "set", "m", "--in", "1", "--out", "2", "--rerate", "first", *where)
    assert told.exit_code == 0 and "no worker has passed it on" in told.stderr
    assert [price["state"] for price in run_json("prices", "list", *where)["prices"]] == ["now"]


def test_backends_live_on_kafka_and_what_gateways_see_of_them(
    monkeypatch: pytest.MonkeyPatch, where: tuple[str, ...], kafka: KafkaAccess
) -> None:
    monkeypatch.setattr(backend_drain, "TOLD_SECONDS", 0.0)
    made = run_json("backends", "add", "gpu", "--url", "http://127.0.0.1:9", *where)
    assert made["state"] == "no gateway tells of it" and made["from"] == "registry"
    seen = view_of_gateway("gpu", in_flight=2, draining=False)
    asyncio.run(produce_raw(kafka, "routing-state", seen, b"gpu/g1"))
    (one,) = run_json("backends", "list", *where)["backends"]
    assert one["state"] == "up" and one["gateways"][0]["running"] == 2
    refused = run("backends", "drain", "gpu", "--wait-seconds", "0", *where)
    assert refused.exit_code == 1 and "2 requests still run there" in refused.stdout
    assert "g1 has not taken note yet" in refused.stdout


def view_of_gateway(backend_id: str, **more: Any) -> bytes:
    """What the worker writes of one backend, as the gateway g1 sees it now."""
    now = SystemClock().now()
    return view_bytes(
        RoutingView(
            backend_id=backend_id,
            gateway="g1",
            up=True,
            source="/gateway/g1/1",
            sequence=1,
            observed_at=now,
            expires_at=now + timedelta(seconds=60),
            appended_ms=0,
            offset=0,
            **more,
        )
    )


def test_the_books_are_read_without_a_data_directory(where: tuple[str, ...]) -> None:
    run_json("keys", "create", "--name", "alice", *where)
    assert run_json("bill", *where)["rows"] == []
    assert run_json("query", "SELECT count(*) AS n FROM requests", *where)["rows"] == [{"n": 0}]
    assert run_json("audit", *where)["clean"] is True
    assert run_json("rebuild", *where)["parted"] == []
    assert run_json("export", *where)["manifest"]["requests"] == 0


def test_with_kafka_away_changes_are_refused_with_words(tmp_path: Path, postgres_url: str) -> None:
    place = ("--kafka", "127.0.0.1:1", "--ledger", postgres_url, "--data", str(tmp_path / "d"))
    refused = run("prices", "set", "m", "--in", "1", *place)
    assert refused.exit_code == 1 and "Kafka at 127.0.0.1:1" in refused.stderr
    assert "nothing was changed" in refused.stderr


def test_an_embedded_directory_is_not_served_with_kafka(tmp_path: Path) -> None:
    """Its spools would be relayed: what its own ledger holds would count in the shared one too."""
    data = ("--data", str(tmp_path / "data"))
    assert run("keys", "create", "--name", "alice", *data).exit_code == 0
    away = ("--backend", "http://127.0.0.1:9", "--kafka", "127.0.0.1:9", "--port", "0")
    done = run("serve", *away, *data)
    assert done.exit_code == 1
    assert "was served without Kafka" in done.stderr and "tollbook move --to-kafka" in done.stderr


def test_a_directory_of_a_gateway_with_kafka_is_not_served_or_billed_without(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    (data / "spool").mkdir(parents=True)
    write_status(data, Status(at=SystemClock().now()))
    for verb in (
        ("bill",),
        ("keys", "create", "--name", "n"),
        ("serve", "--backend", "http://127.0.0.1:1"),
    ):
        refused = run(*verb, "--data", str(data))
        assert refused.exit_code == 1, verb
        assert "its books are in the shared ledger" in refused.stderr
    assert not (data / "registry").exists() and not (data / "ledger.db").exists()


def test_a_request_is_explained_with_its_offsets_on_kafka(
    kafka: KafkaAccess, postgres_url: str, where: tuple[str, ...]
) -> None:
    """Also one whose gateway's clock was years ahead of the brokers', and one that is not there."""
    ahead = datetime(2031, 1, 1, tzinfo=UTC)
    scribe = Scribe()
    stored = scribe.write_all(
        *(draft for n in range(20) for draft in say.life(f"r{n}", say.after(n))),
        *say.life("ahead", ahead),
    )
    kept = [event for event in stored if event.topic != "tokens"]
    with open_ledger(postgres_url) as ledger:
        writer = LedgerWriter(ledger, SystemClock())
        writer.write(Batch("direct", 0, len(kept), kept))
        writer.write(Batch("lost", 0, 1, Scribe("/gateway/test/2").write_all(say.accepted("lost"))))
    asyncio.run(produce(kafka, stored))
    there = asyncio.run(requests_on(kafka))
    for request_id in ("r7", "ahead"):
        said = run_json("explain", request_id, *where)
        assert [event["id"].partition("/")[0] for event in said["events"]] == [request_id] * 3
        for event in said["events"]:
            found = there[event["place"]]
            assert (found.id, found.name) == (event["id"], event["name"])
    (gone,) = run_json("explain", "lost", *where)["events"]
    assert gone["place"] is None
    line = run_json("explain", "--line", "model=m,month=2026-11", "--limit", "3", *where)
    assert line["equal"] and line["total"] == 20
    assert all("requests/" in one["ended"]["place"] for one in line["requests"])


async def requests_on(access: KafkaAccess) -> dict[str, Event]:
    """Every event of the topic of requests by its place, read without what looks for one."""
    return {
        f"{access.topic('requests')}/{read.partition}@{read.offset}": event_of(
            read.headers, read.value
        )
        async for read in read_to_end(access, "requests", "test")
    }


def test_with_brokers_away_a_request_is_explained_without_offsets(
    tmp_path: Path, postgres_url: str
) -> None:
    with open_ledger(postgres_url) as ledger:
        stored = [event for event in Scribe().write_all(*say.life("r1")) if event.topic != "tokens"]
        LedgerWriter(ledger, SystemClock()).write(Batch("direct", 0, len(stored), stored))
    place = ("--kafka", "127.0.0.1:1", "--ledger", postgres_url, "--data", str(tmp_path / "d"))
    shown = run("explain", "r1", *place)
    assert shown.exit_code == 0 and "reported" in shown.stdout
    assert "offsets are not known: Kafka at 127.0.0.1:1" in shown.stderr
    assert "no longer in the log" not in shown.stdout

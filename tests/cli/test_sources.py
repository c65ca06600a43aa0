"""`tollbook sources`: which sources there are, and closing one that never comes back."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

from ledger.clock import SystemClock
from ledger.events import Event
from ledger.sql.bill import bill
from ledger.sql.session import open_ledger
from ledger.sql.writer import Batch, LedgerWriter
from streams.kafka.access import KafkaAccess
from streams.kafka.read import read_to_end
from streams.kafka.records import event_of
from streams.local.layout import Layout
from streams.local.runner import run_once
from tests.cli.books import living_spool, run, run_json
from tests.support import events as say
from tests.support.events import SOURCE, START, Scribe

REASON = "its disk burnt"


def lost_gateway(data: Path) -> str:
    """A gateway that the ledger knows and whose spool is gone with an open request; its source."""
    with living_spool(data, say.accepted("r-1"), say.delivered("r-1", 1, chunks=7)) as spool:
        run_once(data)
        shutil.rmtree(spool.directory)
        return spool.source


def test_a_source_whose_spool_is_gone_is_closed_with_what_it_left_open(tmp_path: Path) -> None:
    source = lost_gateway(tmp_path)
    (before,) = run_json("sources", "list", "--data", str(tmp_path))["sources"]
    assert (before["source"], before["closed_by"], before["open"]) == (source, None, 1)
    done = run(
        "sources", "close", source.rpartition("/")[2], "--reason", REASON, "--data", str(tmp_path)
    )
    assert done.exit_code == 0, done.output
    assert "1 open request ended" in done.stdout
    states = run_json("sources", "list", "--data", str(tmp_path))["sources"]
    after = next(state for state in states if state["source"] == source)
    assert (after["closed_by"], after["open"]) == (f"operator: {REASON}", 0)
    with open_ledger(Layout(tmp_path).ledger) as ledger, ledger.read() as read:
        (line,) = bill(read, None)
    assert (line.requests, line.other_out) == (1, 7)
    assert run("audit", "--data", str(tmp_path)).exit_code == 0


def test_what_cannot_be_closed_is_refused_with_words(tmp_path: Path) -> None:
    place = ("--reason", REASON, "--data", str(tmp_path))
    source = lost_gateway(tmp_path)
    assert run("sources", "close", source, *place).exit_code == 0
    again = run("sources", "close", source, *place)
    assert again.exit_code == 1
    assert f"is closed already, by operator: {REASON}" in again.stderr
    unknown = run("sources", "close", source[:-1], *place)
    assert unknown.exit_code == 1 and f"did you mean {source}?" in unknown.stderr
    with living_spool(tmp_path, say.accepted("r-2")) as spool:
        run_once(tmp_path)
        alive = run("sources", "close", spool.source, *place)
    assert alive.exit_code == 1 and "it holds its spool" in alive.stderr
    for reason in ("", " \n", "x" * 201):
        bad = run("sources", "close", source, "--reason", reason, "--data", str(tmp_path))
        assert bad.exit_code == 2 and "a reason is one line" in bad.stderr


async def read(access: KafkaAccess, topic: str) -> list[Event]:
    found = read_to_end(access, topic, "test")
    return [event_of(record.headers, record.value) async for record in found]


def taken(access: KafkaAccess, ledger_url: str) -> None:
    """Take what Kafka holds into the ledger, as its writer does."""
    with open_ledger(ledger_url) as ledger:
        writer = LedgerWriter(ledger, SystemClock())
        for topic in ("requests", "sources"):
            events = asyncio.run(read(access, topic))
            writer.write(Batch(f"test:{topic}", 0, len(events), events))


def test_with_kafka_the_closing_goes_through_its_topics(
    kafka: KafkaAccess, postgres_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "tollbook.toml"
    file.write_text(
        f'[kafka]\nbootstrap = ["{kafka.where}"]\nprefix = "{kafka.prefix}"\n'
        f'[ledger]\nurl = "{postgres_url}"\n'
    )
    config = str(file)
    scribe = Scribe()
    now = SystemClock().now()
    events = scribe.write_all(
        say.accepted("r-1"), say.delivered("r-1", 1, chunks=7), say.mark(SOURCE, 1, START, {})
    )
    fresh = Scribe(other := f"{SOURCE[:-2]}ff").write_all(say.mark(other, 1, now, {}))
    with open_ledger(postgres_url) as ledger:
        batch = Batch("before", 0, 4, [*events, *fresh])
        LedgerWriter(ledger, SystemClock()).write(batch)
    place = ("--reason", REASON, "--config", config, "--data", str(tmp_path))
    alive = run("sources", "close", other, *place)
    assert alive.exit_code == 1 and "seems to be alive" in alive.stderr
    done = run("sources", "close", SOURCE, *place)
    assert done.exit_code == 0, done.output
    taken(kafka, postgres_url)
    found: dict[str, Any] = run_json("sources", "list", "--config", config, "--data", str(tmp_path))
    by = {state["source"]: state["closed_by"] for state in found["sources"]}
    assert by[SOURCE] == f"operator: {REASON}" and by[other] is None
    with open_ledger(postgres_url, readonly=True) as ledger, ledger.read() as read:
        (line,) = bill(read, None)
    assert (line.requests, line.other_out) == (1, 7)

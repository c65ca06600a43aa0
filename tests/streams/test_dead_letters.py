"""Dead letters: their form, and how one is listed, shown and sent back."""

import asyncio
import itertools
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.clock import SystemClock
from streams.errors import KafkaError
from streams.kafka.access import KafkaAccess
from streams.kafka.deadletter import LetterBox, filed, mended, replay
from streams.kafka.letters import NOWHERE, DeadLetter, letter_of, sent_of
from streams.kafka.records import record_of
from tests.streams.relay_house import sent as sent_events
from tests.streams.test_kafka_writer import a_day, told_directly
from tests.streams.topics_house import Books, produce, produce_raw, settings_file, writing
from tests.support.events import Scribe, finished
from tests.support.processes import CLI, Process, wait_until

BYTES = st.binary(max_size=20)
LETTERS = st.builds(
    DeadLetter,
    topic=st.just("t.requests"),
    partition=st.integers(0, 99),
    offset=st.integers(0, 2**40),
    reason=st.text(max_size=30),
    by=st.sampled_from(["writer", "worker", "relay"]),
    key=st.none() | BYTES,
    value=st.none() | BYTES,
    headers=st.lists(st.tuples(st.sampled_from(["ce_id", "x"]), BYTES), max_size=3),
)


@given(LETTERS)
def test_a_letter_comes_back_as_it_was_put(letter: DeadLetter) -> None:
    if not letter.reason.isascii():
        letter = msgspec.structs.replace(
            letter, reason=letter.reason.encode(errors="replace").decode()
        )
    sent = sent_of(letter)
    assert letter_of(sent.headers, sent.value) == letter
    assert sent.key.decode() == letter.place


@given(st.lists(st.tuples(st.text(max_size=20), BYTES), max_size=4), st.none() | BYTES)
def test_any_record_gives_an_answer(headers: list[tuple[str, bytes]], value: bytes | None) -> None:
    letter_of(headers, value)
    assert letter_of([("tollbook-topic", b"\xff"), ("tollbook-partition", b"x")], value) is None


def test_a_letter_without_a_place_on_a_broker_is_named_by_its_event() -> None:
    headers = [("ce_source", b"/gateway/a/1"), ("ce_sequence", b"0007")]
    letter = DeadLetter(
        topic="t.requests",
        partition=NOWHERE,
        offset=NOWHERE,
        reason="too large",
        by="relay",
        key=None,
        value=b"{}",
        headers=headers,
    )
    assert letter.place == "t.requests//gateway/a/1/0007"


_numbers = itertools.count()


def run(folder: Path, config: Path, *line: str) -> tuple[int, str]:
    name = folder / f"{next(_numbers)}.log"
    program = Process([*CLI, "dead-letters", *line, "--config", str(config)], name)
    wait_until("it ends", lambda: not program.alive, 60)
    return program.popen.returncode, program.output()


@pytest.mark.e2e
async def test_a_mended_record_goes_back_and_counts_once(
    kafka: KafkaAccess, tmp_path: Path
) -> None:
    """A record that a broker refused goes back; one that is no event still does not."""
    books = Books(tmp_path / "ledger.db")
    config = settings_file(tmp_path, kafka, None)
    events = a_day(3)
    late = Scribe("/gateway/test/late").write(finished("late"))
    record = record_of(late)
    letter = DeadLetter(
        topic=kafka.topic("requests"),
        partition=NOWHERE,
        offset=NOWHERE,
        reason="the broker takes no record of this size",
        by="relay",
        key=record.key,
        value=record.value,
        headers=record.headers,
    )
    box = LetterBox(kafka, "relay")
    try:
        await box.put([letter, letter])
    finally:
        await box.close()
    part, at = await produce_raw(kafka, "requests", b"broken")
    await produce(kafka, events)
    async with writing(kafka, books.target):
        await books.until_taken(events)
        assert [one.copies for one in await filed(kafka)] == [2, 1]
        broken = f"{kafka.topic('requests')}/{part}/{at}"
        code, said = await asyncio.to_thread(run, tmp_path, config, "replay", broken, letter.place)
        assert code == 1 and "is still no event that could count" in said
        assert "nothing was sent" in said and late.id not in books.ids()
        code, said = await asyncio.to_thread(
            run, tmp_path, config, "replay", letter.place, "--json"
        )
        assert code == 0, said
        [sent] = json.loads(said)["replayed"]
        assert sent["id"] == late.id
        code, said = await asyncio.to_thread(run, tmp_path, config, "replay", letter.place)
        assert code == 0, said
        await books.until_taken([late])
    back = [event for event in await sent_events(kafka, "requests") if event.id == late.id]
    assert len(back) == 2 and len({event.name for event in back}) == 1, "the guards see one record"
    assert books.hashes()["usage_hourly"] == told_directly(tmp_path, events, [late])["usage_hourly"]
    code, said = await asyncio.to_thread(run, tmp_path, config, "list", "--json")
    listed = {one["place"]: one for one in json.loads(said)["dead_letters"]}
    assert listed[letter.place]["replayed"] is not None and listed[broken]["replayed"] is None
    code, said = await asyncio.to_thread(run, tmp_path, config, "show", broken)
    assert code == 0 and "broken" in said and "not an event record" in said
    code, said = await asyncio.to_thread(run, tmp_path, config, "show", "nowhere")
    assert code == 1 and "there is no dead letter 'nowhere'" in said


async def test_the_writer_waits_for_its_letter(kafka: KafkaAccess) -> None:
    """A value that only just fits does not fit with a reason: it goes without the value."""
    letter = DeadLetter(
        topic="t",
        partition=0,
        offset=1,
        reason="r" * 2000,
        by="writer",
        key=None,
        value=bytes(1_047_000),
        headers=[],
    )
    box = LetterBox(kafka, "writer")
    try:
        await box.put([letter])
    finally:
        await box.close()
    [one] = await filed(kafka)
    assert one.letter.cut and one.letter.value is None
    with pytest.raises(KafkaError, match="too large to be kept whole"):
        mended(one.letter, "/cli/x/1", 1, SystemClock())


async def test_letters_that_go_back_from_two_machines_at_once_are_one_record_each(
    kafka: KafkaAccess,
) -> None:
    scribe = Scribe("/gateway/test/late")
    box = LetterBox(kafka, "relay")
    try:
        for number in range(4):
            record = record_of(scribe.write(finished(f"late{number}")))
            letter = DeadLetter(
                topic=kafka.topic("requests"),
                partition=0,
                offset=number,
                reason="too large",
                by="relay",
                key=record.key,
                value=record.value,
                headers=[*record.headers, ("tollbook-replayed", b"\xff")],
            )
            await box.put([letter])
    finally:
        await box.close()
    letters = await filed(kafka)
    assert [one.replayed for one in letters] == [None] * 4
    clock = SystemClock()
    await asyncio.gather(
        replay(kafka, letters[:3], "/cli/a/1", clock),
        replay(kafka, letters[1:][::-1] + letters[2:], "/cli/b/1", clock),
    )
    back = await sent_events(kafka, "requests")
    assert len(back) == 6 and len({event.name for event in back}) == 4
    assert len({event.id for event in back}) == 4
    assert all(one.replayed == one.claimed is not None for one in await filed(kafka))


async def test_a_poison_record_of_headers_alone_blocks_nobody(
    kafka: KafkaAccess, tmp_path: Path
) -> None:
    """It is as large as a record may be, so that no letter can hold it, not even without value."""
    books = Books(tmp_path / "ledger.db")
    await produce_raw(kafka, "requests", b"x", headers=[("h", bytes(1_048_390))])
    events = a_day(3)
    await produce(kafka, events)
    async with writing(kafka, books.target) as running:
        await books.until_taken(events)
        assert running.writer.counts["poison"] == 1
    [one] = await filed(kafka)
    assert one.letter.cut and not one.letter.headers and "ce_specversion" in one.letter.reason

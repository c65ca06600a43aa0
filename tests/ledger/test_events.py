"""The vocabulary: golden files of every version, what is kept, and what stops a reader."""

import contextlib
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import EventError, MalformedEvent, UnknownEvent
from ledger.events import BUCKETS, PAYLOADS, Event, Usage, payload_of, same_fact, type_of
from ledger.events.envelope import COUNT_MAX
from ledger.events.usage import NOTHING_KNOWN, TOKENS_MAX
from streams.codec import decode
from streams.topics import TOPICS
from tests.ledger.golden_events import DRAFTS, GOLDEN, NEWEST, record_of
from tests.support import events
from tests.support.events import SOURCE, Scribe


def event_of(type_: str, **changes: Any) -> Event:
    """The golden event of `type_` with fields of its data changed, added, or removed by null."""
    record = json.loads(GOLDEN.joinpath(f"{NEWEST.get(type_, type_)}.json").read_bytes())
    record["data"] = {k: v for k, v in (record["data"] | changes).items() if v is not None}
    return decode(json.dumps(record).encode())


@pytest.mark.parametrize("name", DRAFTS)
def test_every_type_reads_its_golden_files(name: str) -> None:
    record = GOLDEN.joinpath(f"{name}.json").read_bytes().rstrip(b"\n")
    assert payload_of(decode(record)) == DRAFTS[name]
    assert record_of(DRAFTS[name]) == record, "old readers would see another record than before"


@pytest.mark.parametrize("type_", PAYLOADS)
def test_a_golden_file_sets_every_field(type_: str) -> None:
    data = json.loads(bytes(event_of(type_).data))
    assert list(data) == [field.name for field in msgspec.structs.fields(PAYLOADS[type_])]


def test_every_golden_file_is_of_a_known_type_and_none_is_lost() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(DRAFTS)
    assert set(NEWEST) == set(PAYLOADS)


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_type_has_a_version_a_topic_and_a_sentence(payload: Any) -> None:
    prefix, _, version = payload.TYPE.rpartition(".")
    assert prefix.startswith("tollbook.") and version == "v1"
    assert payload.TOPIC in TOPICS and payload.__doc__.strip().endswith(".")
    assert type_of(payload.TYPE) is payload


@pytest.mark.parametrize("type_", PAYLOADS)
def test_a_field_of_a_later_version_is_read_over_and_kept(type_: str) -> None:
    event = event_of(type_, from_the_future={"deep": [1, 2]})
    assert payload_of(event) == DRAFTS[NEWEST[type_]]
    assert json.loads(bytes(event.data))["from_the_future"] == {"deep": [1, 2]}


@pytest.mark.parametrize("type_", ["tollbook.request.finished.v2", "tollbook.tea.served.v1", ""])
def test_a_newer_type_or_version_stops_the_reader_and_says_what_to_do(type_: str) -> None:
    event = msgspec.structs.replace(event_of("tollbook.request.finished.v1"), type=type_)
    with pytest.raises(UnknownEvent, match="upgrade this reader"):
        payload_of(event)
    with pytest.raises(UnknownEvent, match="upgrade this reader"):
        type_of(type_)


@pytest.mark.parametrize(
    "changes",
    [
        {"request_id": None},
        {"request_id": 5},
        {"stream": "yes"},
        {"chunks": -1},
        {"chunks": 1.5},
        {"chunks": COUNT_MAX + 1},
        {"basis": "guessed"},
        {"outcome": "lost"},
        {"accepted_at": "2026-11-03T10:15:00"},
        {"accepted_at": "yesterday"},
        {"usage": {"other_out": -1}},
        {"usage": {"other_out": TOKENS_MAX + 1}},
        {"usage": {"other_out": 1.0}},
        {"usage": "a lot"},
    ],
    ids=str,
)
def test_data_that_does_not_fit_its_type_is_poison_and_named(changes: dict[str, Any]) -> None:
    event = event_of("tollbook.request.finished.v1", **changes)
    with pytest.raises(MalformedEvent) as poison:
        payload_of(event)
    assert event.name in str(poison.value) and event.type in str(poison.value)


NASTY = st.sampled_from(
    [b"null", b"{}", b"[" * 5000, b'"\xff\xfe"', b'{"usage":{"other_out":-1}}', b"1e400", b"tru"]
)


@given(st.sampled_from(sorted(PAYLOADS)), st.binary(max_size=60) | NASTY)
def test_any_data_gives_a_payload_or_a_typed_error(type_: str, data: bytes) -> None:
    event = msgspec.structs.replace(event_of(type_), data=msgspec.Raw(data))
    with contextlib.suppress(MalformedEvent):
        assert isinstance(payload_of(event), PAYLOADS[type_])


@given(st.sampled_from(sorted(PAYLOADS)), st.data())
def test_golden_data_with_a_broken_byte_gives_a_payload_or_a_typed_error(
    type_: str, drawn: st.DataObject
) -> None:
    event = event_of(type_)
    data = bytearray(event.data)
    data[drawn.draw(st.integers(0, len(data) - 1))] = drawn.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedEvent):
        payload_of(msgspec.structs.replace(event, data=msgspec.Raw(bytes(data))))


@pytest.mark.parametrize("count", [-1, TOKENS_MAX + 1])
@pytest.mark.parametrize("bucket", BUCKETS)
def test_no_bucket_holds_a_count_out_of_its_bounds(bucket: str, count: int) -> None:
    with pytest.raises(EventError, match=f"{bucket} is {count}"):
        Usage(**{bucket: count})


def test_nothing_known_is_not_zero() -> None:
    assert not NOTHING_KNOWN.known and Usage(other_out=0).known
    assert NOTHING_KNOWN.counts() == (None,) * 5 != Usage(**dict.fromkeys(BUCKETS, 0)).counts()


def test_one_fact_is_the_same_whoever_carries_it_and_when() -> None:
    draft = events.finished("r1")
    one, two = Scribe(SOURCE), Scribe("/runner/test/2")
    two.write(events.finished("r0"))
    again = msgspec.structs.replace(two.write(draft), recordedtime=datetime(2030, 1, 1, tzinfo=UTC))
    assert same_fact(one.write(draft), again)
    assert again.name == "/runner/test/2:2"


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "r2/finished"},
        {"type": "tollbook.request.finished.v2"},
        {"subject": "key-2"},
        {"time": datetime(2030, 1, 1, tzinfo=UTC)},
        {"data": msgspec.Raw(b"{}")},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_another_content_is_another_fact(changed: dict[str, Any]) -> None:
    event = Scribe().write(events.finished("r1"))
    assert not same_fact(event, msgspec.structs.replace(event, **changed))

"""Records: what is written is read again, and any bytes at all give an event or a CodecError."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.events import Draft, payload_of
from ledger.events.envelope import COUNT_MAX
from streams.codec import decode, decode_all, encode
from streams.errors import CodecError
from tests.support import events
from tests.support.events import SOURCE, START, Scribe
from tests.support.strategies import lives

RECORD = Scribe().record(events.finished("r1"))
instants = st.datetimes(timezones=st.just(UTC))


def changed(**fields: Any) -> bytes:
    """A good record with fields changed, or removed by null."""
    record = json.loads(RECORD) | fields
    return json.dumps({k: v for k, v in record.items() if v is not None}).encode()


def test_a_record_is_one_line_of_json_in_the_structured_form_of_cloudevents() -> None:
    record = json.loads(RECORD)
    assert b"\n" not in RECORD and record["specversion"] == "1.0"
    assert list(record) == [
        *("specversion", "id", "source", "topic", "sequence", "type", "subject"),
        *("time", "recordedtime", "data"),
    ]


@given(lives(), instants, st.integers(1, COUNT_MAX), st.text(max_size=40))
def test_what_is_written_is_read_again(
    life: list[Draft], recorded: datetime, sequence: int, source: str
) -> None:
    for draft in life:
        event = decode(encode(draft, source, sequence, recorded))
        assert payload_of(event) == draft.payload
        assert (event.id, event.subject, event.time) == (draft.id, draft.subject, draft.time)
        assert (event.source, event.sequence, event.recordedtime) == (source, sequence, recorded)
        assert (event.topic, event.type) == (draft.payload.TOPIC, draft.payload.TYPE)


def test_data_stays_as_it_was_written_byte_for_byte() -> None:
    data = b'{ "request_id" : "r1",\t"later":[1.50,{}] }'
    record = RECORD[: RECORD.index(b'"data":')] + b'"data":' + data + b"}"
    assert bytes(decode(record).data) == data


def test_an_attribute_of_a_later_version_is_read_over() -> None:
    assert decode(changed(traceparent="00-ab")) == decode(changed())


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"{}",
        b"null",
        b"[" * 100_000,
        RECORD[:-1],
        RECORD + b"x",
        RECORD.replace(b"completed", b"\xff\xfe"),
        RECORD.replace(b"key-1", b"\xff\xfe"),
        changed(id=None),
        changed(id=5),
        changed(data=None),
        changed(sequence=0),
        changed(sequence=-1),
        changed(sequence="1"),
        changed(sequence=COUNT_MAX + 1),
        changed(time="2026-11-03T10:15:00"),
        changed(time="2026-11-03T10:15:00+02:00"),
        changed(recordedtime="2026-11-03T10:15:00+02:00"),
        changed(time="0001-01-01T00:00:00+14:00"),
        changed(time=1.5),
    ],
    ids=range(20),
)
def test_what_is_no_whole_record_in_utc_is_refused(broken: bytes) -> None:
    with pytest.raises(CodecError, match="not an event record"):
        decode(broken)


@given(st.binary(max_size=200))
def test_any_bytes_give_an_event_or_a_codec_error(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode(data)


@given(st.data())
def test_a_record_with_broken_bytes_gives_an_event_or_a_codec_error(drawn: st.DataObject) -> None:
    record = bytearray(RECORD)
    for _ in range(drawn.draw(st.integers(1, 3))):
        at = drawn.draw(st.integers(0, len(record) - 1))
        record[at : at + drawn.draw(st.integers(0, 3))] = drawn.draw(st.binary(max_size=3))
    try:
        event = decode(bytes(record))
    except CodecError:
        return
    assert event.sequence >= 1 and event.time.tzinfo is event.recordedtime.tzinfo is UTC


def test_times_keep_their_microseconds() -> None:
    at = START + timedelta(microseconds=1)
    event = decode(encode(events.accepted("r1", at), SOURCE, 1, at))
    assert event.time == event.recordedtime == at


@given(lives(), st.data())
def test_many_records_at_once_are_what_each_of_them_is(
    life: list[Draft], data: st.DataObject
) -> None:
    scribe = Scribe()
    records = [scribe.record(draft) for draft in life]
    assert decode_all(b"\n".join(records)) == [decode(record) for record in records]
    bad = data.draw(
        st.sampled_from(
            (
                b"",
                b"{}",
                b"\xff",
                RECORD[:-1],
                RECORD + b"{}",
                changed(time="2026-11-29T10:00:00+01:00"),
            )
        )
        | st.binary(max_size=40)
    )
    records.insert(data.draw(st.integers(0, len(records))), bad)
    assert decode_all(b"\n".join(records)) is None

"""What a review of the gateway found: the heartbeat of more streams than fit in one append."""

from pathlib import Path

import pytest

from gateway.call import Call
from gateway.wire.endpoints import CHAT
from gateway.wire.requests import asked
from gateway.wire.sse import StreamMeter
from ledger.clock import SystemClock
from ledger.events import TokensDelivered, payload_of
from streams.errors import SpoolFailed
from streams.log.reader import SpoolReader
from streams.log.spool import SpoolWriter
from tests.gateway.desk import BODY, Desk, ScriptedClient

STREAMS = 4_000
"""Their running totals are some 2 MiB, and a log takes 1 MiB in one append."""

LONGEST = "🚪" * 256
"""The longest name of a model that is let in, in bytes."""

CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'


def opened(desk: Desk, number: int, model: str = "m") -> Call:
    wish = asked(BODY.replace(b'"m"', f'"{model}"'.encode()))
    call = Call(f"req_{number:032x}", "key-1", CHAT, wish, desk.clock.monotonic())
    call.accepted_at = desk.clock.now()
    meter = StreamMeter(call.wish, "openai", chat=True)
    call.begin_stream(meter, desk.clock.monotonic())
    meter.feed(CHUNK)
    desk.relay.open[call.request_id] = call
    return call


def told(spool: Path) -> set[str]:
    reader, place, ids = SpoolReader(spool), 0, set()
    while events := (chunk := reader.read(place)).events:
        place = chunk.next_offset
        for event in events:
            payload = payload_of(event)
            assert isinstance(payload, TokensDelivered)
            ids.add(payload.request_id)
    return ids


async def test_one_heartbeat_tells_of_every_stream_however_many(tmp_path: Path) -> None:
    spool = tmp_path / "spool" / "a1"
    journal = SpoolWriter.create(spool, "/gateway/test/a1", clock=SystemClock())
    desk = Desk(ScriptedClient(), journal=journal)
    wanted = {opened(desk, number).request_id for number in range(STREAMS)}
    desk.relay.tick()
    journal.close()
    assert told(spool) == wanted


async def test_the_ends_that_a_full_disk_did_not_take_are_all_written_later(
    tmp_path: Path,
) -> None:
    spool = tmp_path / "spool" / "a1"
    journal = SpoolWriter.create(spool, "/gateway/test/a1", clock=SystemClock())
    closed = SpoolWriter.create(tmp_path / "spool" / "b1", "/gateway/x/b1", clock=SystemClock())
    closed.close()
    desk = Desk(ScriptedClient(), journal=closed)
    calls = [opened(desk, number, LONGEST) for number in range(1_000)]
    ends = desk.relay._ends
    for call in calls:
        with pytest.raises(SpoolFailed):
            ends.finish(call, "client_gone", counted=call.counted())
    assert len(ends._unwritten) == len(calls)
    ends._journal = desk.relay._journal = journal
    for call in calls:
        del desk.relay.open[call.request_id]
    desk.relay.tick()
    assert not desk.relay.owes
    journal.close()
    assert journal.last() == {"requests": len(calls)}

"""Live totals of a key: equal to what the ledger makes of the same distinct events."""

import itertools
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from ledger.events import Draft, Event, payload_of
from ledger.folds import live
from ledger.folds.live import KeyUsage, fold_usage, usage_bytes, usage_of
from ledger.folds.requests import RequestRow, fold_request
from ledger.folds.usage import ZERO, Totals, contribution
from streams.codec import decode, encode
from tests.support import events

GATEWAYS = (
    "/gateway/a/0193a0000000700080000000000000a1",
    "/gateway/b/0193a0000000700080000000000000b1",
)
ADOPTERS = (
    "/relay/c/0193b0000000700080000000000000c1",
    "/relay/d/0193b0000000700080000000000000d1",
)


def stored(draft: Draft, source: str, sequence: int) -> Event:
    return decode(encode(draft, source, sequence, draft.time))


def fold(log: list[Event], usage: KeyUsage | None = None, first: int = 0) -> KeyUsage:
    """The totals after `log`, by way of bytes after each event, as a killed worker would go on."""
    usage = usage or KeyUsage(key_id="key-1")
    for offset, event in enumerate(log, first):
        fold_usage(usage, event, payload_of(event), offset)
        usage = usage_of(usage_bytes(usage))
    return usage


def in_the_ledger(log: list[Event]) -> tuple[int, Totals]:
    """Accepted requests, and the sum of the contributions of all requests with an end."""
    distinct = {(event.source, event.sequence): event for event in log}
    rows: dict[str, RequestRow] = {}
    accepted = 0
    for event in distinct.values():
        said = payload_of(event)
        accepted += event.type == "tollbook.request.accepted.v1"
        if event.type != "tollbook.request.rejected.v1":
            request_id = getattr(said, "request_id")  # noqa: B009
            rows[request_id] = fold_request(rows.get(request_id), event, said)
    total = ZERO
    for row in rows.values():
        cell = contribution(row)
        total = total if cell is None else total.plus(cell[1].totals)
    return accepted, total


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    """What a partition holds of one key: each source in its order, mixed in any way, and anything
    that was sent before sent again later."""
    queues: dict[str, list[Draft]] = {source: [] for source in (*GATEWAYS, *ADOPTERS)}
    for number in range(draw(st.integers(1, 5))):
        request_id, at = f"r{number}", events.START + timedelta(seconds=number)
        gateway = draw(st.sampled_from(GATEWAYS))
        queues[gateway].append(events.accepted(request_id, at))
        queues[gateway].append(events.attempted(request_id, 1, at))
        out = draw(st.integers(0, 5))
        if draw(st.booleans()):
            queues[gateway].append(events.finished(request_id, at, usage=events.tokens(out=out)))
        for adopter in draw(st.lists(st.sampled_from(ADOPTERS), unique=True)):
            chunks = draw(st.integers(0, 3))
            usage = events.tokens(out=chunks, uncached=draw(st.none() | st.just(3)))
            queues[adopter].append(
                events.abandoned(request_id, at, source=gateway, chunks=chunks, usage=usage)
            )
    queues[GATEWAYS[0]].append(events.rejected("no"))
    written = {
        source: [stored(draft, source, n) for n, draft in enumerate(drafts, 1)]
        for source, drafts in queues.items()
    }
    log: list[Event] = []
    while any(written.values()):
        source = draw(st.sampled_from([s for s, rest in written.items() if rest]))
        log.append(written[source].pop(0))
        if draw(st.integers(0, 3)) == 0:
            first = draw(st.integers(0, len(log) - 1))
            again = [event for event in log[first:] if event.source == log[first].source]
            log.extend(again)
    return log


@given(logs(), st.integers(0, 30))
def test_totals_are_those_of_the_distinct_events(log: list[Event], killed_at: int) -> None:
    usage = fold(log)
    accepted, total = in_the_ledger(log)
    assert (usage.accepted, usage.rejected, usage.doubtful) == (accepted, 1, 0)
    assert Totals(usage.ended, usage.tokens, usage.known) == total

    # A worker that died read some of it, wrote it, and reads all of it again.
    before = fold(log[:killed_at])
    assert usage_bytes(fold(log, before)) == usage_bytes(usage)
    assert usage_bytes(fold(log, usage)) == usage_bytes(usage)


def test_an_open_request_stands_with_its_deadline_until_its_end() -> None:
    drafts = [events.accepted("r"), events.accepted("s"), events.finished("r")]
    log = [stored(draft, events.SOURCE, n) for n, draft in enumerate(drafts, 1)]
    usage = fold(log)
    assert usage.open == {"s": events.START + timedelta(minutes=30)}
    assert (usage.accepted, usage.ended) == (2, 1)


def test_a_broken_event_counts_once_it_is_mended_although_later_ones_were_heard() -> None:
    first, second = (
        stored(events.finished(name), events.SOURCE, n) for n, name in enumerate("rs", 1)
    )
    usage = KeyUsage(key_id="key-1")
    assert live.owe(usage, first, 0)
    assert not live.owe(usage, first, 1)
    fold([second], usage, 1)
    fold_usage(usage, second, payload_of(second), 1)
    assert usage.ended == 1
    for offset in (2, 3):
        fold_usage(usage, first, payload_of(first), offset)
    assert (usage.ended, usage.owed) == (2, [])


def test_what_is_remembered_is_bounded_and_what_that_loses_is_counted() -> None:
    usage = KeyUsage(key_id="key-1")
    offsets = itertools.count()
    for number in range(live.SOURCES_MAX + 10):
        source = f"/gateway/a/{number:032x}"
        event = stored(events.accepted(f"r{number}"), source, 1)
        fold_usage(usage, event, payload_of(event), next(offsets))
    assert len(usage.heard) == live.SOURCES_MAX
    again = stored(events.finished("r0"), f"/gateway/a/{0:032x}", 2)
    fold_usage(usage, again, payload_of(again), next(offsets))
    assert (usage.ended, usage.doubtful) == (0, 1)
    for number in range(live.ABANDONED_MAX + 10):
        event = stored(
            events.abandoned(f"x{number}", source="/gateway/z/f"), "/relay/z/f", number + 1
        )
        fold_usage(usage, event, payload_of(event), next(offsets))
    assert len(usage.abandoned) == live.ABANDONED_MAX
    assert usage.ended == live.ABANDONED_MAX + 10

"""Old segments go, oldest first, and never one that somebody may still need."""

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from streams.local.retention import KeptSpool, OldSegment, Plan, carry_out, look, plan
from tests.streams.builders import accepted, attempted, finished
from tests.streams.house import House
from tests.streams.test_runner import serve


@st.composite
def spools(draw: st.DrawFn) -> list[KeptSpool]:
    made = []
    for number in range(draw(st.integers(0, 5))):
        segments, start = [], draw(st.integers(0, 50))
        for _ in range(draw(st.integers(0, 5))):
            size = draw(st.integers(0, 30))
            segments.append(OldSegment(start, size, draw(st.integers(0, 100))))
            start += size or 1
        consumed = draw(st.integers(0, start + 10))
        free_below = draw(st.integers(0, consumed))
        settled = draw(st.booleans())
        made.append(
            KeptSpool(
                Path(f"/d/spool/s{number}"),
                segments,
                1 << 63 if settled else consumed,
                1 << 63 if settled else free_below,
                settled,
            )
        )
    return made


def is_gone(spool: KeptSpool, segment: OldSegment, what: Plan) -> bool:
    names = {path.name for path in what.segments if path.parent == spool.directory}
    return spool.directory in what.spools or f"{segment.start:020d}.seg" in names


@given(spools(), st.integers(0, 200))
def test_what_is_needed_stays_and_what_stays_has_no_gap(
    kept: list[KeptSpool], keep_bytes: int
) -> None:
    what = plan(kept, keep_bytes)
    left_consumed = left_settled = 0
    for spool in kept:
        gone = [is_gone(spool, segment, what) for segment in spool.segments]
        assert gone == sorted(gone, reverse=True), "segments go from the front only"
        for number, (segment, went) in enumerate(zip(spool.segments, gone, strict=True), 1):
            end = segment.start + segment.size
            if went and not spool.settled:
                assert end <= spool.free_below, "a needed segment went"
                assert number < len(spool.segments), "the newest segment of a live spool went"
            if not went and end <= spool.consumed:
                left_consumed += segment.size
                left_settled += segment.size if spool.settled else 0
    assert set(what.spools) <= {spool.directory for spool in kept if spool.settled}
    assert left_consumed <= keep_bytes or left_settled == 0, "more is kept than may be"


@given(spools())
def test_nothing_goes_while_less_is_kept_than_may_be(kept: list[KeptSpool]) -> None:
    assert plan(kept, 10**6) == Plan([], [])


def test_too_many_small_spools_go_oldest_first() -> None:
    many = [
        KeptSpool(Path(f"/d/spool/s{number}"), [OldSegment(0, 1, number)], 1 << 63, 1 << 63, True)
        for number in range(7)
    ]
    what = plan(many, 1000, spools_kept_max=4)
    assert what.spools == [Path("/d/spool/s0"), Path("/d/spool/s1"), Path("/d/spool/s2")]


def test_the_accepted_event_of_an_open_request_is_never_deleted(house: House) -> None:
    gateway = house.gateway(segment_bytes=900)
    serve(gateway, "a", "b")
    gateway.append(accepted("long"), attempted("long"))
    serve(gateway, *"cdefgh")
    runner = house.runner(keep_bytes=0)
    runner.catch_up()
    kept = sorted(gateway.directory.glob("*.seg"))
    assert kept[0].name != "0" * 20 + ".seg", "what is older than the open request is gone"
    assert b'"long/accepted"' in kept[0].read_bytes()
    runner.close()
    house.die(gateway)
    house.catch_up(keep_bytes=0)
    assert house.states()["long"] == "abandoned"
    assert house.findings() == []
    house.catch_up(keep_bytes=0)
    assert "aa01" not in house.spools(), "a spool that is settled goes as a whole"
    assert house.findings() == []


def test_a_finished_request_frees_what_it_held(house: House) -> None:
    gateway = house.gateway(segment_bytes=900)
    gateway.append(accepted("long"), attempted("long"))
    serve(gateway, *"abcd")
    runner = house.runner(keep_bytes=0)
    runner.catch_up()
    assert len(list(gateway.directory.glob("*.seg"))) > 2
    gateway.append(finished("long"))
    runner.catch_up()
    assert len(list(gateway.directory.glob("*.seg"))) == 1
    serve(gateway, "e")
    runner.catch_up()
    assert house.states()["e"] == "finished"
    runner.close()


def test_what_fits_is_kept(house: House) -> None:
    gateway = house.gateway(segment_bytes=900)
    serve(gateway, *"abcdef")
    house.die(gateway)
    house.catch_up()
    assert (gateway.directory / ("0" * 20 + ".seg")).exists()


def test_a_deletion_cut_short_is_ended_by_the_next_runner(house: House) -> None:
    spool = house.gateway()
    serve(spool, "a")
    house.die(spool)
    house.catch_up()
    spool.directory.rename(spool.directory.with_name(".gone-aa01"))
    unborn = house.layout.spools / ".new-aa02"
    unborn.mkdir()
    old = house.layout.spools / ".new-aa00"
    old.mkdir()
    at = house.clock.now().timestamp()
    os.utime(unborn, (at - 10, at - 10))
    os.utime(old, (at - 4000, at - 4000))
    house.catch_up()
    names = {path.name for path in house.layout.spools.iterdir()}
    assert ".gone-aa01" not in names and ".new-aa00" not in names
    assert ".new-aa02" in names, "it may be in the making"
    assert house.findings() == []


def test_looking_and_deleting_meet_the_files_on_disk(house: House) -> None:
    gateway = house.gateway(segment_bytes=900)
    serve(gateway, *"abcdef")
    end = gateway.written_bytes()
    kept = look(gateway.directory, consumed=end, needed_from=None, settled=False)
    assert sum(segment.size for segment in kept.segments) == end
    held = look(gateway.directory, consumed=end, needed_from=1000, settled=False)
    assert held.free_below == max(s.start for s in held.segments if s.start <= 1000)
    carry_out(plan([kept], 1000))
    left = sorted(gateway.directory.glob("*.seg"))
    assert sum(path.stat().st_size for path in left) <= 1000 + 900
    carry_out(plan([kept], 1000))

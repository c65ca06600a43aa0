"""The runner over a real ledger: what is on disk arrives once, whatever happens to anybody."""

import json
import shutil
from pathlib import Path
from typing import Never

import pytest

from ledger.errors import LedgerUnavailable, PositionMoved
from ledger.events import Usage
from ledger.sql.writer import Batch, LedgerWriter, Written
from streams.errors import RunnerError, SpoolFailed
from streams.local.follower import Follower
from streams.local.layout import REGISTRY_LOG_NAME, log_name
from streams.local.runner import run_once
from streams.log.lock import FileLock
from streams.log.reader import Chunk, SpoolReader
from streams.log.segment import frame
from streams.log.spool import SpoolWriter, segment_name
from tests.streams.builders import START, accepted, attempted, delivered, finished
from tests.streams.house import House
from tests.streams.test_registry_log import issue, revoke


def serve(writer: SpoolWriter, *names: str) -> None:
    """Requests from start to end."""
    for name in names:
        writer.append(accepted(name), attempted(name))
        writer.append(delivered(name, 1, 4))
        writer.append(finished(name))


def test_what_a_living_gateway_writes_arrives_and_it_is_told_so(house: House) -> None:
    gateway = house.gateway()
    runner = house.runner()
    assert not runner.step()
    house.clock.advance(1)
    serve(gateway, "a")
    gateway.append(accepted("b"), attempted("b"))
    while runner.step():
        house.clock.advance(0.3)
    assert house.states() == {"a": "finished", "b": "open"}
    house.clock.advance(0.3)
    assert gateway.unconsumed_bytes() == 0
    assert runner.live() == [gateway.directory.name]
    assert house.adopted() == set()
    gateway.append(finished("b"))
    assert runner.step()
    assert house.states()["b"] == "finished"
    assert house.findings() == []
    runner.close()
    assert house.spools() == ["aa01"], "a runner that closed nothing leaves no spool of its own"


def test_a_new_key_and_a_new_gateway_are_seen_at_once(house: House) -> None:
    runner = house.runner()
    runner.step()
    house.registry().append(issue("k1"))
    house.clock.advance(0.3)
    serve(house.gateway("aa02"), "a")
    while runner.step():
        house.clock.advance(0.1)
    assert house.states() == {"a": "finished"}
    assert house.position(REGISTRY_LOG_NAME) == house.layout.registry_log.stat().st_size
    runner.close()


def test_the_spool_of_a_killed_gateway_is_adopted(house: House) -> None:
    gateway = house.gateway()
    serve(gateway, "a")
    gateway.append(accepted("b"), attempted("b"))
    gateway.append(delivered("b", 1, 3))
    gateway.append(delivered("b", 2, 8))
    gateway.append(accepted("c"), attempted("c"))
    house.die(gateway)
    house.catch_up()
    rows = house.requests()
    assert house.states() == {"a": "finished", "b": "abandoned", "c": "abandoned"}
    assert (rows["b"].usage, rows["b"].basis) == (Usage(uncached_in=7, other_out=8), "running")
    assert (rows["c"].usage.known, rows["c"].basis) == (False, "none")
    assert rows["b"].source == gateway.source
    closed = house.closed()
    runner = closed.pop(gateway.source)
    assert closed == {runner: "itself"} and runner.startswith("/runner/test/")
    assert house.adopted() == set(house.spools()) and len(house.spools()) == 2
    assert any("2 open requests are closed as abandoned" in line for line in house.said)
    assert house.findings() == []


def test_adopting_again_finds_nothing_to_do(house: House) -> None:
    gateway = house.gateway()
    gateway.append(accepted("b"))
    house.die(gateway)
    house.catch_up()
    before = house.spools()
    house.said.clear()
    for _ in range(3):
        house.catch_up()
    assert house.spools() == before
    assert house.said == []


def test_a_gateway_that_closed_itself_needs_no_closing(house: House) -> None:
    from streams.adoption import closed

    gateway = house.gateway()
    serve(gateway, "a")
    gateway.append(closed(gateway.source, gateway.last(), START, "itself"))
    gateway.close()
    house.catch_up()
    assert house.closed() == {gateway.source: "itself"}
    assert house.spools() == ["aa01"] and house.adopted() == {"aa01"}
    assert house.findings() == []


def test_a_gateway_that_never_wrote_leaves_nothing_to_close(house: House) -> None:
    house.die(house.gateway())
    house.catch_up()
    assert house.closed() == {}
    assert house.adopted() == {"aa01"} and house.spools() == ["aa01"]


@pytest.mark.parametrize("left", [1, 8, 20, 300])
def test_a_torn_tail_is_cut_and_kept_aside(house: House, left: int) -> None:
    gateway = house.gateway(segment_bytes=1 << 20)
    gateway.append(accepted("a"), attempted("a"))
    end = gateway.written_bytes()
    path = gateway.directory / segment_name(0)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:left])
    house.die(gateway)
    house.catch_up()
    assert house.states() == {"a": "abandoned"}
    assert path.read_bytes() == whole
    assert (gateway.directory / f"torn-{end}").read_bytes() == whole[:left]
    assert any(f"{left} bytes at the end were no whole record" in line for line in house.said)
    assert house.findings() == []


def test_broken_bytes_stop_one_spool_with_words_and_no_other(house: House) -> None:
    broken, sound = house.gateway("aa01", 1 << 20), house.gateway("aa02")
    serve(broken, "a", "b", "c")
    broken.append(accepted("open"))
    serve(sound, "d")
    sound.append(accepted("e"))
    path = broken.directory / segment_name(0)
    whole = path.read_bytes()
    data = bytearray(whole)
    at = data.find(b'"b/attempted')
    data[at + 5] ^= 1
    path.write_bytes(data)
    house.die(broken)
    house.die(sound)
    for _ in range(2):
        house.catch_up()
    assert house.states() == {"a": "finished", "d": "finished", "e": "abandoned"}
    assert "aa01" not in house.adopted() and "aa02" in house.adopted()
    assert path.read_bytes() == bytes(data), "nothing is cut that may be more than a torn tail"
    findings = house.findings()
    assert any("broken bytes at" in words for words in findings), findings
    assert len([line for line in house.said if "broken bytes at" in line]) == 2, "once for each"
    path.write_bytes(whole)
    house.catch_up()
    assert house.findings() == [], "a whole copy was put back, and nothing is left of it"
    assert house.states()["c"] == "finished" and house.states()["open"] == "abandoned"


def test_a_record_that_is_no_event_is_kept_aside_and_passed(house: House) -> None:
    gateway = house.gateway(segment_bytes=1 << 20)
    serve(gateway, "a")
    with (gateway.directory / segment_name(0)).open("ab") as file:
        file.write(frame([b"{}"]))
    house.die(gateway)
    house.catch_up()
    assert house.states() == {"a": "finished"}
    assert "aa01" in house.adopted()
    assert any("set aside" in words for words in house.findings())


def test_an_event_of_a_newer_version_stops_its_spool_and_loses_nothing(house: House) -> None:
    newer, sound = house.gateway("aa01", 1 << 20), house.gateway("aa02")
    serve(newer, "a")
    path = newer.directory / segment_name(0)
    last = json.loads(path.read_bytes()[path.read_bytes().rfind(b'{"specversion"') :])
    last |= {"id": "a/frozen", "type": "tollbook.request.frozen.v1", "sequence": 4}
    record = json.dumps(last, separators=(",", ":")).encode()
    with path.open("ab") as file:
        file.write(frame([record]))
    serve(sound, "b")
    house.die(newer)
    house.die(sound)
    for _ in range(2):
        house.catch_up()
    assert house.states() == {"a": "finished", "b": "finished"}
    assert "aa01" not in house.adopted()
    assert house.position("spool/aa01") == 0, "a newer runner starts where this one stopped"
    assert any("upgrade" in line and "nothing of it is lost" in line for line in house.said)


def test_a_ledger_that_is_away_costs_time_and_no_event(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = house.gateway()
    serve(gateway, "a")
    runner = house.runner()

    def away(self: LedgerWriter, batch: Batch) -> Never:
        raise LedgerUnavailable("the disk of the ledger is full")

    with monkeypatch.context() as patch:
        patch.setattr(LedgerWriter, "write", away)
        for _ in range(3):
            house.clock.advance(1)
            with pytest.raises(LedgerUnavailable):
                runner.step()
    house.clock.advance(1)
    assert gateway.unconsumed_bytes() == gateway.written_bytes()
    while runner.step():
        house.clock.advance(1)
    assert house.states() == {"a": "finished"}
    assert house.findings() == []
    runner.close()


def test_two_runners_at_once_count_everything_once(house: House) -> None:
    gateway = house.gateway()
    serve(gateway, "a")
    one, two = house.runner(), house.runner()
    one.step()
    two.step()
    serve(gateway, "b")
    house.clock.advance(1)
    while one.step():
        pass
    with pytest.raises(PositionMoved):
        two.step()
    two.forget()
    gateway.append(accepted("c"))
    house.clock.advance(1)
    two.step()
    house.die(gateway)
    house.clock.advance(1)
    two.step()
    two.step()
    assert house.states() == {"a": "finished", "b": "finished", "c": "abandoned"}
    assert house.findings() == []
    two.close()


def test_run_once_gives_way_to_a_runner_at_work(house: House) -> None:
    gateway = house.gateway()
    serve(gateway, "a")
    lock = FileLock.take(house.layout.runner_lock)
    assert lock is not None
    assert not run_once(house.layout.root)
    assert house.states() == {}
    lock.release()
    told: list[tuple[int, int]] = []
    assert run_once(house.layout.root, progress=lambda done, total: told.append((done, total)))
    assert house.states() == {"a": "finished"}
    assert told[-1] == (gateway.written_bytes(), gateway.written_bytes())


def test_run_once_without_a_data_directory_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="there is no data directory"):
        run_once(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_spool_that_is_removed_under_the_runner_does_not_stop_it(house: House) -> None:
    gone, stays = house.gateway("aa01"), house.gateway("aa02")
    serve(gone, "a")
    runner = house.runner()
    runner.step()
    shutil.rmtree(gone.directory)
    serve(stays, "b")
    for _ in range(6):
        house.clock.advance(1)
        runner.step()
    assert house.states()["b"] == "finished"
    runner.close()


def test_a_spool_that_cannot_be_read_does_not_stop_the_others(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = house.gateway("aa01"), house.gateway("aa02")
    serve(bad, "a")
    serve(good, "b")
    read = SpoolReader.read

    def fails(self: SpoolReader, offset: int, max_bytes: int = 1 << 21) -> object:
        if self.directory.name == "aa01":
            raise OSError(5, "Input/output error")
        return read(self, offset, max_bytes)

    house.die(bad)
    house.die(good)
    with monkeypatch.context() as patch:
        patch.setattr(SpoolReader, "read", fails)
        house.catch_up()
    assert house.states() == {"b": "finished"}
    assert "aa01" not in house.adopted(), "what cannot be read is not closed"
    assert any("Input/output error" in line for line in house.said)
    house.catch_up()
    assert house.states() == {"a": "finished", "b": "finished"}
    assert house.findings() == []


def test_a_large_spool_is_taken_in_several_transactions(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = house.gateway(segment_bytes=1 << 16)
    for number in range(300):
        gateway.append(accepted(f"r{number}"), attempted(f"r{number}"), finished(f"r{number}"))
    sizes = []
    write = LedgerWriter.write

    def noted(self: LedgerWriter, batch: Batch) -> Written:
        sizes.append(len(batch.events))
        return write(self, batch)

    monkeypatch.setattr(LedgerWriter, "write", noted)
    monkeypatch.setattr("streams.local.follower.BATCH_EVENTS_MAX", 50)
    house.die(gateway)
    house.catch_up()
    assert max(sizes) <= 50 and sum(sizes) == 902
    assert set(house.states().values()) == {"finished"} and len(house.states()) == 300
    assert house.findings() == []


def test_refused_changes_of_the_registry_do_not_reach_the_ledger(house: House) -> None:
    house.registry().append(issue("k1"))
    house.registry("/cli/test/2").append(revoke("k1", 1))
    house.catch_up()
    house.catch_up()
    assert house.position(REGISTRY_LOG_NAME) == house.layout.registry_log.stat().st_size
    assert house.findings() == []


def test_the_name_of_a_log_is_that_of_its_directory(house: House) -> None:
    assert log_name(house.layout.spool("aa01")) == "spool/aa01"


def follower(house: House, writer: SpoolWriter) -> Follower:
    """A follower as a runner that starts now would make it."""
    runner = house.runner()
    runner._spools.look()
    return runner._followers[writer.directory.name]


def test_a_new_runner_recalls_only_what_open_requests_need(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = house.gateway(segment_bytes=900)
    serve(gateway, *"abcd")
    gateway.append(accepted("open"), attempted("open"))
    serve(gateway, *"efgh")
    gateway.append(delivered("open", 1, 3))
    house.runner().catch_up()
    read: list[int] = []
    original = SpoolReader.read

    def noted(self: SpoolReader, offset: int, max_bytes: int = 1 << 21) -> Chunk:
        read.append(offset)
        return original(self, offset, max_bytes)

    monkeypatch.setattr(SpoolReader, "read", noted)
    life = follower(house, gateway).life
    assert set(life.open) == {"open"} and life.open["open"].row.chunks == 3
    assert min(read) > 1000, "what is older than the open request is not read again"
    (gateway.directory / "source").unlink()
    whole = follower(house, gateway).life
    assert min(read) == 0, "without a name all is read"
    assert whole.open["open"].row == life.open["open"].row
    gateway.append(finished("open"))
    house.runner().catch_up()
    read.clear()
    assert not follower(house, gateway).life.open


def test_an_empty_newest_segment_is_no_torn_tail(house: House) -> None:
    gateway = house.gateway(segment_bytes=1 << 20)
    serve(gateway, "a")
    (gateway.directory / segment_name(gateway.written_bytes())).touch()
    house.die(gateway)
    house.catch_up()
    assert house.adopted() >= {"aa01"}
    assert not any("cut off" in line for line in house.said)
    assert house.findings() == []


def test_while_the_disk_refuses_nothing_is_adopted_and_nothing_lost(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = house.gateway()
    gateway.append(accepted("a"))
    house.die(gateway)
    runner = house.runner()

    def full(fd: int, offset: int, size: int) -> Never:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("streams.log.spool.os.posix_fallocate", full)
        with pytest.raises(SpoolFailed, match="cannot start a spool"):
            runner.step()
    assert house.states() == {"a": "open"}
    assert house.adopted() == set()
    house.clock.advance(1)
    runner.step()
    runner.step()
    assert house.states() == {"a": "abandoned"}
    runner.close()
    assert house.findings() == []


def test_a_mark_that_cannot_be_made_is_made_later_without_telling_all_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = house.gateway()
    gateway.append(accepted("a"))
    house.die(gateway)
    runner = house.runner()

    def full(path: Path) -> Never:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "touch", full)
        for _ in range(3):
            house.clock.advance(1)
            with pytest.raises(OSError, match="No space"):
                runner.step()
    house.clock.advance(1)
    runner.step()
    runner.step()
    assert "aa01" in house.adopted()
    own = next(name for name in house.spools() if name != "aa01")
    events = SpoolReader(house.layout.spool(own)).read(0).events
    assert [event.id for event in events] == ["a/abandoned", "/gateway/test/aa01/closed"]
    runner.close()
    assert house.findings() == []

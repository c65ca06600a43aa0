"""A data directory, or a part of it, put back to an older copy.

What is gone is named. What comes after is new, and is never taken for something known.
"""

import shutil
from pathlib import Path

import pytest

from streams.local.layout import REGISTRY_LOG_NAME
from streams.log.spool import segment_name
from tests.streams.builders import accepted, attempted, delivered, finished
from tests.streams.house import House
from tests.streams.test_registry_log import issue, revoke
from tests.streams.test_runner import serve


def test_everything_put_back_goes_on_as_if_it_were_then(house: House, tmp_path: Path) -> None:
    gateway = house.gateway("aa01")
    serve(gateway, "a")
    gateway.append(accepted("b"), attempted("b"))
    house.runner().catch_up()
    house.copy(tmp_path / "copy")
    shutil.rmtree(house.layout.root)
    shutil.copytree(tmp_path / "copy", house.layout.root)
    later = house.gateway("aa02")
    serve(later, "a2", "b2")
    house.die(later)
    house.catch_up()
    assert house.states() == {
        "a": "finished",
        "b": "abandoned",
        "a2": "finished",
        "b2": "finished",
    }
    assert house.findings() == []


def test_a_spool_that_is_older_than_the_ledger_is_closed_by_what_the_ledger_knows(
    house: House, tmp_path: Path
) -> None:
    gateway = house.gateway("aa01")
    gateway.append(accepted("a"), attempted("a"))
    house.copy(tmp_path / "copy")
    shutil.rmtree(house.layout.root)
    shutil.copytree(tmp_path / "copy", house.layout.root)
    # The same process goes on writing to what will be lost.
    shutil.rmtree(house.layout.spools)
    house.layout.make()
    gateway = house.gateway("aa01")
    gateway.append(accepted("a"), attempted("a"))
    gateway.append(delivered("a", 1, 4))
    gateway.append(finished("a"))
    gateway.append(accepted("b"), attempted("b"))
    gateway.append(delivered("b", 1, 6))
    house.runner().catch_up()
    house.put_back(tmp_path / "copy", "spool")
    later = house.gateway("aa02")
    serve(later, "c")
    house.catch_up()
    assert house.states() == {"a": "finished", "b": "abandoned", "c": "finished"}
    assert house.requests()["b"].chunks == 6, "the ledger had it, though the spool has lost it"
    assert any("the spool ends before that" in line for line in house.said)
    assert house.closed()["/gateway/test/aa01"].startswith("/runner/")
    assert house.adopted() >= {"aa01"}
    house.catch_up()
    later.append(accepted("d"))
    house.die(later)
    house.catch_up()
    assert house.states()["d"] == "abandoned"


def test_a_ledger_that_is_older_reads_again_what_the_spools_still_have(
    house: House, tmp_path: Path
) -> None:
    gateway = house.gateway("aa01")
    serve(gateway, "a")
    house.catch_up()
    house.close()
    shutil.copytree(house.layout.root, tmp_path / "copy")
    later = house.gateway("aa02")
    serve(later, "b")
    later.append(accepted("c"))
    house.die(later)
    house.catch_up()
    before = house.requests(), house.closed()
    shutil.rmtree(house.layout.root / "ledger.db-wal", ignore_errors=True)
    house.put_back(tmp_path / "copy", "ledger.db")
    assert house.states() == {"a": "finished"}
    house.catch_up()
    assert (house.requests(), house.closed()) == before
    assert house.findings() == []


def test_a_gap_between_an_older_ledger_and_deleted_segments_is_named(
    house: House, tmp_path: Path
) -> None:
    gateway = house.gateway("aa01", segment_bytes=1000)
    serve(gateway, "a")
    house.runner().catch_up()
    house.copy(tmp_path / "copy")
    shutil.rmtree(house.layout.root)
    shutil.copytree(tmp_path / "copy", house.layout.root)
    shutil.rmtree(house.layout.spools)
    house.layout.make()
    gateway = house.gateway("aa01", segment_bytes=1000)
    serve(gateway, "a", "b", "c", "d", "e")
    gateway.append(accepted("f"))
    house.runner(keep_bytes=0).catch_up()
    segments = sorted(path.name for path in gateway.directory.glob("*.seg"))
    assert segments[0] != segment_name(0), "consumed segments were deleted"
    house.put_back(tmp_path / "copy", "ledger.db")
    house.catch_up()
    states = house.states()
    assert states["a"] == "finished" and states["f"] == "abandoned"
    assert len(states) < 6, "what the deleted segments said is not made up"
    assert any("are gone from the disk" in line for line in house.said)
    findings = house.findings()
    assert any("are gone from the disk" in words for words in findings), findings
    later = house.gateway("aa02")
    serve(later, "g")
    house.die(later)
    house.catch_up()
    assert house.states()["g"] == "finished"


def test_a_registry_that_was_put_back_loses_no_later_change(house: House, tmp_path: Path) -> None:
    house.registry().append(issue("k1"))
    house.close()
    shutil.copytree(house.layout.root, tmp_path / "copy")
    house.registry("/cli/test/2").append(issue("k2"))
    house.registry("/cli/test/3").append(issue("k3"))
    house.catch_up()
    was = house.position(REGISTRY_LOG_NAME)
    house.put_back(tmp_path / "copy", "registry")
    house.registry("/cli/test/4").append(issue("k4"))
    assert house.layout.registry_log.stat().st_size < was
    house.catch_up()
    assert any("the log ends at" in line for line in house.said)
    house.registry("/cli/test/5").append(revoke("k1", 1))
    house.registry("/cli/test/6").append(issue("k6"))
    house.catch_up()
    assert keys(house) == {"k1": True, "k2": False, "k3": False, "k4": False, "k6": False}


def test_a_registry_put_back_under_a_running_runner_is_read_anew(
    house: House, tmp_path: Path
) -> None:
    runner = house.runner()
    house.registry().append(issue("k1"))
    shutil.copy(house.layout.registry_log, tmp_path / "old")
    house.registry("/cli/test/2").append(issue("k2"))
    runner.step()
    shutil.copy(tmp_path / "old", house.layout.registry_log)
    house.clock.advance(1)
    runner.step()
    house.registry("/cli/test/3").append(revoke("k1", 1))
    house.clock.advance(1)
    runner.step()
    runner.close()
    assert keys(house) == {"k1": True, "k2": False}
    assert any("it is read anew" in line for line in house.said)


@pytest.mark.parametrize("change", ["same", "other"])
def test_a_change_that_was_forgotten_and_made_again_is_not_skipped_silently(
    house: House, tmp_path: Path, change: str
) -> None:
    house.registry().append(issue("k1"))
    house.close()
    shutil.copytree(house.layout.root, tmp_path / "copy")
    house.registry("/cli/test/2").append(revoke("k1", 1))
    house.catch_up()
    house.put_back(tmp_path / "copy", "registry")
    again = revoke("k1", 1) if change == "same" else issue("k1")
    house.registry("/cli/test/3").append(again)
    house.catch_up()
    told = [words for words in house.findings() if "k1/v2" in words]
    assert bool(told) == (change == "other"), "another truth under the same name is a finding"


def keys(house: House) -> dict[str, bool]:
    """The keys that the ledger knows, and whether each is revoked."""
    from sqlalchemy import select

    from ledger.sql import tables
    from ledger.sql.session import open_ledger

    with open_ledger(house.layout.ledger, readonly=True) as ledger, ledger.read() as read:
        rows = read.rows(select(tables.keys.c.key_id, tables.keys.c.revoked_us))
    return {key_id: revoked is not None for key_id, revoked in rows}

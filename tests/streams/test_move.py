"""`tollbook move --to-kafka`: an embedded directory's books, on Kafka and in another ledger."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from gateway.dev.postgres import Postgres
from ledger.clock import SystemClock
from ledger.sql.names import names_of, set_name
from ledger.sql.session import open_ledger
from ledger.sql.writer import Batch, LedgerWriter
from streams.errors import KafkaError
from streams.kafka.access import KafkaAccess
from streams.kafka.move import Moved, Mover, read_cursor
from streams.local.runner import run_once
from tests.cli.books import dead_spool
from tests.streams.builders import accepted, attempted, delivered, finished
from tests.streams.house import House
from tests.streams.test_kafka_writer import a_day
from tests.streams.topics_house import Books, produce, settings_file
from tests.support.events import Scribe, key_issued, life, price
from tests.support.processes import CLI, Process, wait_until


def fill(house: House) -> None:
    """Two gateways, one of which died with an open stream; a key, prices, and odd records."""
    registry = house.registry()
    registry.append(lambda book: key_issued("key-1"))
    registry.append(lambda book: price("p1", {"uncached_in": "2", "other_out": "5"}))
    for name in ("aa01", "bb02"):
        gateway = house.gateway(name)
        for number in range(30):
            rid = f"{name}-{number}"
            gateway.append(accepted(rid), attempted(rid))
            gateway.append(delivered(rid, 1, 3))
            gateway.append(finished(rid))
        gateway.append(accepted(f"{name}-open"), attempted(f"{name}-open"))
        gateway.append(delivered(f"{name}-open", 1, 8))
        house.die(gateway)
    house.catch_up()
    with open_ledger(house.layout.ledger) as ledger:
        again, other = Scribe("/gateway/test/cc03"), Scribe("/gateway/test/dd04")
        events = [again.write(finished("aa01-1")), other.write(finished("aa01-2", out=99))]
        LedgerWriter(ledger, SystemClock()).write(Batch("odd", 0, 2, events))
        with ledger.write() as tx:
            set_name(tx, "key", "key-1", "team one")
            set_name(tx, "project", "project-1", "search")


async def move(house: House, access: KafkaAccess, target: Path | str) -> Moved:
    with open_ledger(house.layout.ledger, readonly=True) as source:
        mover = Mover(house.layout.root, source, access, target, SystemClock(), house.said.append)
        try:
            return await mover.run()
        finally:
            await mover.close()


async def test_all_of_it_is_carried_and_the_same(
    house: House, kafka: KafkaAccess, postgres_url: str
) -> None:
    fill(house)
    moved = await move(house, kafka, postgres_url)
    old, new = Books(house.layout.ledger), Books(postgres_url)
    assert moved.parted == () and new.hashes() == old.hashes()
    assert new.ids() == old.ids() and len(new.ids()) == moved.events
    with open_ledger(postgres_url, readonly=True) as ledger, ledger.read() as read:
        assert names_of(read, "key") == {"key-1": "team one"}
        assert names_of(read, "project") == {"project-1": "search"}
    cursor = read_cursor(house.layout.root)
    assert cursor is not None and cursor.done and cursor.sent == moved.events


async def test_a_move_that_broke_off_goes_on(
    house: House, kafka: KafkaAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(house)
    target = tmp_path / "new.db"
    monkeypatch.setattr("streams.kafka.move.WINDOW", 7)
    whole, windows = Mover._send, 0

    async def breaks(self: Mover, events: list[object]) -> None:
        nonlocal windows
        windows += 1
        await whole(self, events)  # type: ignore[arg-type]
        if windows in (1, 5, 12):
            # Acked, and the cursor is not moved: what a kill here leaves.
            raise KeyboardInterrupt

    monkeypatch.setattr(Mover, "_send", breaks)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            await move(house, kafka, target)
    moved = await move(house, kafka, target)
    assert moved.parted == () and Books(target).hashes() == Books(house.layout.ledger).hashes()
    assert await move(house, kafka, target) == moved


async def test_much_that_was_set_aside_does_not_stop_a_move(
    house: House, kafka: KafkaAccess, tmp_path: Path
) -> None:
    """More of it than a writer takes for an accident; one of them is not even text."""
    fill(house)
    scribe = Scribe("/gateway/test/cc05")
    odd = [scribe.write(finished(f"odd-{number}")) for number in range(130)]
    odd = [msgspec.structs.replace(event, data=msgspec.Raw(b"{}")) for event in odd]
    odd[7] = msgspec.structs.replace(odd[7], data=msgspec.Raw(b'{"x":"\\\\x\xff"}'))
    with open_ledger(house.layout.ledger) as ledger:
        written = LedgerWriter(ledger, SystemClock()).write(Batch("odder", 0, 130, odd))
    assert written.conflicts == 130
    moved = await move(house, kafka, tmp_path / "new.db")
    assert moved.parted == ()


async def test_an_installation_in_use_is_refused(
    house: House, kafka: KafkaAccess, tmp_path: Path
) -> None:
    fill(house)
    await produce(kafka, a_day(1))
    with pytest.raises(KafkaError, match="has events of its own"):
        await move(house, kafka, tmp_path / "new.db")
    assert read_cursor(house.layout.root) is None


async def test_a_move_goes_to_one_place(house: House, kafka: KafkaAccess, tmp_path: Path) -> None:
    fill(house)
    await move(house, kafka, tmp_path / "new.db")
    other = msgspec.structs.replace(kafka, prefix=f"{kafka.prefix}x")
    with pytest.raises(KafkaError, match="was begun; give the same"):
        await move(house, other, tmp_path / "new.db")


@pytest.mark.e2e
def test_the_command(house: House, kafka: KafkaAccess, postgres_url: str, tmp_path: Path) -> None:
    fill(house)
    gateway = house.gateway("ee05")
    config = settings_file(tmp_path, kafka, postgres_url)
    line = [*CLI, "move", "--to-kafka", "--config", str(config), "--json"]
    line += ["--data", str(house.layout.root)]

    def run(name: str) -> tuple[int, str]:
        program = Process(line, tmp_path / name)
        wait_until("it ends", lambda: not program.alive, 120)
        return program.popen.returncode, program.output()

    code, said = run("refused")
    assert code == 1 and "a gateway is at work" in said and "stop it" in said
    house.die(gateway)
    code, said = run("moved")
    assert code == 0, said
    told = json.loads(said[said.index("{") :])
    assert told["parted"] == [] and told["before"] == told["after"]
    assert Books(postgres_url).hashes() == Books(house.layout.ledger).hashes()
    assert asyncio.run(move(house, kafka, postgres_url)).parted == ()


def test_a_directory_whose_books_are_elsewhere_is_refused(
    kafka: KafkaAccess, postgres: Postgres, postgres_url: str, tmp_path: Path
) -> None:
    """Its spools hold the newest events only; a move of those would say that all is the same."""
    data = tmp_path / "data"
    dead_spool(data, *life("r-1"))
    assert run_once(data, ledger=postgres.create_database("elsewhere"))
    config = settings_file(tmp_path, kafka, postgres_url)
    line = [*CLI, "move", "--to-kafka", "--config", str(config), "--data", str(data)]
    program = Process(line, tmp_path / "refused")
    wait_until("it ends", lambda: not program.alive, 60)
    assert program.popen.returncode == 1 and "in a ledger at a URL" in program.output()
    assert not (data / "ledger.db").exists()

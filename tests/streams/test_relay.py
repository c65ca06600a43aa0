"""The relay on a real broker: everything that was written comes out, in order, whatever happens."""

import json
import shutil
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from ledger.events import Draft, RequestFinished, SourceMark
from streams.kafka.access import KafkaAccess, client_options
from streams.kafka.letters import letter_of
from streams.kafka.relay.cursor import CURSOR, load
from streams.kafka.relay.status import Status
from streams.log.reader import SpoolReader
from streams.log.segment import frame
from streams.log.spool import SpoolWriter
from tests.streams.builders import START, accepted, attempted, delivered
from tests.streams.house import House
from tests.streams.relay_house import (
    abandonments,
    closings,
    once,
    payloads,
    read,
    relay_all,
    relaying,
    sent,
)
from tests.streams.test_runner import serve
from tests.streams.topics_house import until


def mark(spool: SpoolWriter, number: int) -> Draft:
    said = SourceMark(last=spool.last(), open=0)
    return Draft(f"{spool.source}/mark/{number}", spool.source, START, said)


def consumed(spool: SpoolWriter) -> int:
    return SpoolReader(spool.directory).consumed()


async def test_what_a_spool_holds_is_on_kafka_in_order_and_the_spool_knows(
    house: House, kafka: KafkaAccess
) -> None:
    gateway = house.gateway(segment_bytes=3000)
    gateway.append(mark(gateway, 1))
    for number in range(40):
        serve(gateway, f"r{number}")
    async with relaying(house, kafka) as relay:
        while await relay.step():
            pass
        assert consumed(gateway) == gateway.written_bytes()
        status = relay.status(None)
        assert (status.lag_bytes, status.sent, status.aside) == (0, 121 + 40, 0)
        serve(gateway, "late")
        assert relay.status(None).lag_bytes > 0
        house.clock.advance(1)
        await relay.step()
        assert consumed(gateway) == gateway.written_bytes()
    events = await sent(kafka)
    assert len(once(events)) == len(events), "nothing twice"
    requests = [event for event in events if event.topic == "requests"]
    assert [e.sequence for e in requests] == list(range(1, len(requests) + 1))
    assert {event.source for event in events} == {gateway.source}
    assert not house.adopted(), "the gateway lives"


async def test_a_disk_that_takes_no_cursor_sends_nothing_twice(
    house: House, kafka: KafkaAccess
) -> None:
    """A full disk may last for hours: what is on Kafka must not go there again and again."""
    gateway = house.gateway()
    serve(gateway, "r1")
    (gateway.directory / f".{CURSOR}.new").mkdir()
    async with relaying(house, kafka) as relay:
        assert await relay.step()
        for _ in range(5):
            house.clock.advance(1)
            assert not await relay.step()
        serve(gateway, "r2")
        assert not await relay.step()
        assert len(await sent(kafka)) == 4 and consumed(gateway) == 0
        assert sum("cannot be read or marked" in words for words in house.said) == 1
        (gateway.directory / f".{CURSOR}.new").rmdir()
        while await relay.step():
            pass
        assert len(await sent(kafka)) == 8
        assert consumed(gateway) == gateway.written_bytes()


async def test_records_carry_their_key_and_every_attribute(
    house: House, kafka: KafkaAccess
) -> None:
    gateway = house.gateway()
    serve(gateway, "a")
    gateway.append(mark(gateway, 1))
    await relay_all(house, kafka)
    for record in await read(kafka, "requests"):
        headers = dict(record.headers)
        assert record.key == b"key-1" == headers["ce_subject"]
        assert headers["ce_source"].decode() == gateway.source
    (record,) = await read(kafka, "sources")
    assert record.key == gateway.source.encode()


async def test_a_dead_gateway_is_closed_without_a_ledger(house: House, kafka: KafkaAccess) -> None:
    gateway = house.gateway()
    serve(gateway, "a")
    gateway.append(accepted("b"), attempted("b"))
    gateway.append(delivered("b", 1, 6))
    house.die(gateway)
    await relay_all(house, kafka)
    events = await sent(kafka)
    (said,) = abandonments(events)
    assert (said.request_id, said.chunks, said.abandoned_source) == ("b", 6, gateway.source)
    closed = closings(events)[gateway.source]
    assert closed.last == {"requests": 5, "tokens": 2}
    assert closed.by.startswith("/relay/test/")
    (told,) = [event for event in events if event.id.startswith("b/abandoned/")]
    assert told.id == f"b/abandoned/{closed.by.rpartition('/')[2]}"
    assert closings(events)[closed.by].by == "itself"
    assert house.adopted() == set(house.spools())
    await relay_all(house, kafka)
    assert len(await sent(kafka)) == len(events), "settled spools are left alone"


async def test_a_relay_that_starts_again_goes_on_where_it_was_with_what_was_open(
    house: House, kafka: KafkaAccess
) -> None:
    gateway = house.gateway(segment_bytes=1000)
    gateway.append(accepted("a"), attempted("a"))
    gateway.append(delivered("a", 1, 3))
    for number in range(10):
        serve(gateway, f"r{number}")
    async with relaying(house, kafka) as relay:
        while await relay.step():
            pass
    before = len(await sent(kafka))
    house.die(gateway)
    await relay_all(house, kafka)
    events = await sent(kafka)
    assert len(once(events)) == len(events)
    assert len(events) == before + 3, "the abandonment and two closings"
    (said,) = abandonments(events)
    assert (said.request_id, said.chunks) == ("a", 3)


async def test_a_lost_cursor_sends_everything_again_under_the_same_names(
    house: House, kafka: KafkaAccess
) -> None:
    gateway = house.gateway()
    serve(gateway, "a", "b")
    async with relaying(house, kafka) as relay:
        while await relay.step():
            pass
    for broken in (None, b'{"position":'):
        path = gateway.directory / CURSOR
        path.unlink() if broken is None else path.write_bytes(broken)
        async with relaying(house, kafka) as relay:
            while await relay.step():
                pass
    events = await sent(kafka)
    assert len(events) == 3 * len(once(events))
    assert consumed(gateway) == gateway.written_bytes()


async def test_a_spool_put_back_to_an_older_copy_contradicts_nothing(
    house: House, kafka: KafkaAccess, tmp_path: Path
) -> None:
    gateway = house.gateway()
    gateway.append(accepted("a"), attempted("a"))
    gateway.append(delivered("a", 1, 2))
    async with relaying(house, kafka) as relay:
        await relay.step()
    shutil.copytree(gateway.directory, tmp_path / "old")
    gateway.append(delivered("a", 2, 9))
    house.die(gateway)
    await relay_all(house, kafka)
    shutil.rmtree(gateway.directory)
    shutil.copytree(tmp_path / "old", gateway.directory)
    await relay_all(house, kafka)
    events = await sent(kafka)
    once(events)
    by_id: dict[str, bytes] = {}
    for event in events:
        assert by_id.setdefault(event.id, bytes(event.data)) == bytes(event.data)
    assert sorted(said.chunks for said in abandonments(events)) == [2, 9]
    assert len([e for e in events if e.id.startswith(f"{gateway.source}/closed/")]) == 2


async def test_a_power_cut_that_takes_what_was_relayed_closes_it_all_the_same(
    house: House, kafka: KafkaAccess
) -> None:
    gateway = house.gateway(segment_bytes=1 << 20)
    serve(gateway, "a")
    left = gateway.written_bytes()
    gateway.append(accepted("b"), attempted("b"))
    gateway.append(delivered("b", 1, 5))
    async with relaying(house, kafka) as relay:
        await relay.step()
    house.die(gateway)
    (segment,) = gateway.directory.glob("*.seg")
    with segment.open("r+b") as file:
        file.truncate(left)
    await relay_all(house, kafka)
    events = await sent(kafka)
    assert len(once(events)) == len(events)
    (said,) = abandonments(events)
    assert (said.request_id, said.chunks) == ("b", 5), "though the spool has lost it"
    assert closings(events)[gateway.source].last == {"requests": 5, "tokens": 2}
    assert any("the spool ends before that" in line for line in house.said)


async def test_a_refused_record_goes_aside_and_blocks_nothing(
    house: House, kafka: KafkaAccess
) -> None:
    await limit(kafka, "requests", 20_000)
    gateway = house.gateway(segment_bytes=1 << 20)
    serve(gateway, "a")
    gateway.append(accepted("big", model="m" * 30_000))
    for number in range(200):
        serve(gateway, f"r{number}")
    gateway.append(accepted("big2", model="m" * 30_000))
    async with relaying(house, kafka) as relay:
        await relay.step()
        assert relay.status(None).aside == 2
        assert consumed(gateway) == gateway.written_bytes()
    events = await sent(kafka)
    ids = {event.id for event in events}
    assert {"a/finished", "r0/accepted", "r199/finished"} <= ids
    assert not {"big/accepted", "big2/accepted"} & ids
    order = [event.sequence for event in events if event.topic == "requests"]
    assert order == sorted(order)
    files = sorted((house.layout.root / "aside").glob("*.json"))
    kept = [json.loads(file.read_text()) for file in files]
    assert [json.loads(one["record"])["id"] for one in kept] == ["big/accepted", "big2/accepted"]
    assert all("MessageSizeTooLarge" in one["reason"] for one in kept)
    letters = [letter_of(r.headers, r.value) for r in await read(kafka, "dead-letters")]
    assert [letter.by for letter in letters if letter is not None] == ["relay", "relay"]
    assert sum("set aside" in line for line in house.said) == 2
    async with relaying(house, kafka) as relay:
        assert relay.status(None).aside == 2, "counted once, also by the next relay"


async def test_bytes_that_are_no_event_go_aside(house: House, kafka: KafkaAccess) -> None:
    gateway = house.gateway()
    serve(gateway, "a")
    (segment,) = gateway.directory.glob("*.seg")
    with segment.open("ab") as file:
        file.write(frame([b'{"specversion":"1.0","id":"no event"}']))
    house.die(gateway)
    await relay_all(house, kafka)
    (letter,) = [letter_of(r.headers, r.value) for r in await read(kafka, "dead-letters")]
    assert letter is not None and letter.value is not None and b"no event" in letter.value
    assert len(list((house.layout.root / "aside").glob("*.json"))) == 1
    assert house.adopted() == set(house.spools())


async def test_segments_that_kafka_has_are_deleted_but_not_those_of_open_requests(
    house: House, kafka: KafkaAccess
) -> None:
    done, at_work = house.gateway("aa01", 1000), house.gateway("aa02", 1000)
    at_work.append(accepted("open"))
    for number in range(10):
        serve(done, f"a{number}")
        serve(at_work, f"b{number}")
    async with relaying(house, kafka, keep=0) as relay:
        while await relay.step():
            pass
        house.clock.advance(60)
        await relay.step()
    assert len(list(done.directory.glob("*.seg"))) == 1
    assert len(list(at_work.directory.glob("*.seg"))) > 5
    known = load(at_work.directory)
    assert known is not None and [r.row.request_id for r in known.open] == ["open"]


async def test_many_spools_share_the_windows(house: House, kafka: KafkaAccess) -> None:
    for number in range(12):
        gateway = house.gateway(f"a{number:03d}")
        serve(gateway, *[f"{number}-{n}" for n in range(30)])
        house.die(gateway)
    await relay_all(house, kafka)
    events = await sent(kafka)
    assert len(once(events)) == len(events)
    finished = {said.request_id for said in payloads(events) if isinstance(said, RequestFinished)}
    assert len(finished) == 360
    assert house.adopted() == set(house.spools())


async def test_it_works_by_tls_and_a_password(house: House, secure_kafka: KafkaAccess) -> None:
    gateway = house.gateway()
    serve(gateway, "a")
    await relay_all(house, secure_kafka)
    assert {event.id for event in await sent(secure_kafka)} >= {"a/accepted", "a/finished"}


def test_a_status_is_kept_and_read_back(tmp_path: Path) -> None:
    from streams.kafka.relay.status import read_status, write_status

    assert read_status(tmp_path) is None
    write_status(tmp_path, Status(at=START, lag_bytes=5, fault="away"))
    assert read_status(tmp_path) == Status(at=START, lag_bytes=5, fault="away")


async def limit(access: KafkaAccess, name: str, most: int) -> None:
    """Make the broker refuse larger batches on a topic."""
    client = AIOKafkaAdminClient(**client_options(access, "test"))
    await client.start()
    try:
        topic = access.topic(name)
        change = {"max.message.bytes": str(most)}
        await client.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, topic, configs=change)]
        )

        async def has_it() -> bool:
            asked = [ConfigResource(ConfigResourceType.TOPIC, topic)]
            (answer,) = await client.describe_configs(asked)
            ((_, _, _, _, entries),) = answer.resources
            return ("max.message.bytes", str(most)) in [entry[:2] for entry in entries]

        await until(has_it, "the broker knows the new limit")
    finally:
        await client.close()

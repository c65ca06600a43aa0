"""The relay as a process of its own: killed, orphaned, excluded, with brokers that come and go."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gateway.dev.broker import Broker
from streams.kafka.access import KafkaAccess
from streams.kafka.relay.status import read_status
from streams.log.lock import held
from tests.streams.builders import accepted, attempted
from tests.streams.house import House
from tests.streams.relay_house import abandonments, closings, once, payloads, sent
from tests.streams.test_runner import serve
from tests.streams.test_runner_process import GATEWAY, SECONDS_MAX, ended, wait_until
from tests.support.kafka import access_to

RELAY = """
import sys
from pathlib import Path
import msgspec
from streams.kafka.access import KafkaAccess
from streams.kafka.relay.process import relay_forever
access = msgspec.json.decode(sys.argv[2], type=KafkaAccess)
sys.exit(relay_forever(Path(sys.argv[1]), access, stop_on_stdin_eof=sys.argv[3] == "eof"))
"""

Process = subprocess.Popen[str]
Start = Callable[..., Process]


@pytest.fixture
def start(house: House) -> Iterator[Start]:
    """Starts a relay; whatever is still there at the end is killed."""
    started: list[Process] = []

    def run(access: KafkaAccess, mode: str = "signal") -> Process:
        said = msgspec.json.encode(access).decode()
        process = subprocess.Popen(
            [sys.executable, "-c", RELAY, str(house.layout.root), said, mode],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate(timeout=10)


def stop(process: Process) -> str:
    process.send_signal(signal.SIGTERM)
    return ended(process)


def orphan(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None


def test_it_ends_on_sigterm_with_everything_sent(
    house: House, start: Start, kafka: KafkaAccess
) -> None:
    gateway = house.gateway()
    serve(gateway, "a")
    relay = start(kafka)
    wait_until(lambda: gateway.directory.joinpath("relayed.json").exists())
    serve(gateway, "b")
    stop(relay)
    ids = {event.id for event in asyncio.run(sent(kafka))}
    assert {"a/finished", "b/finished"} <= ids
    status = read_status(house.layout.root)
    assert status is not None and status.fault is None
    assert not held(house.layout.runner_lock)


def test_an_orphan_closes_its_dead_gateway_and_ends(
    house: House, start: Start, kafka: KafkaAccess
) -> None:
    gateway = house.gateway()
    gateway.append(accepted("a"), attempted("a"))
    relay = start(kafka, "eof")
    wait_until(lambda: gateway.directory.joinpath("relayed.json").exists())
    house.die(gateway)
    orphan(relay)
    assert "1 open request is closed as abandoned" in ended(relay)
    events = asyncio.run(sent(kafka))
    assert [said.request_id for said in abandonments(events)] == ["a"]
    assert closings(events)[gateway.source].by.startswith("/relay/")
    assert house.adopted() == set(house.spools())


def test_two_relays_exclude_each_other_and_a_runner_is_excluded_too(
    house: House, start: Start, kafka: KafkaAccess
) -> None:
    first = start(kafka)
    wait_until(lambda: held(house.layout.runner_lock))
    second = start(kafka)
    assert second.stderr is not None
    assert "another runner is at work" in second.stderr.readline()
    gateway = house.gateway()
    first.kill()
    first.wait(SECONDS_MAX)
    serve(gateway, "a")
    wait_until(lambda: gateway.directory.joinpath("relayed.json").exists())
    from streams.local.runner import run_once

    assert not run_once(house.layout.root), "the runner's work is not done beside a relay"
    stop(second)
    assert "a/finished" in {event.id for event in asyncio.run(sent(kafka))}


def test_gateways_and_relays_are_killed_again_and_again(
    house: House, start: Start, kafka: KafkaAccess, seed: int
) -> None:
    """Every request that a gateway saw finish is on Kafka; every other one is abandoned."""
    finished: set[str] = set()
    for round_number in range(3):
        relay = start(kafka)
        gateway = subprocess.Popen(
            [sys.executable, "-c", GATEWAY, str(house.layout.root), f"b{round_number}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert gateway.stdout is not None
        for count, line in enumerate(gateway.stdout, 1):
            finished.add(line.strip())
            if count == 600 + seed % 500:
                relay.kill()
            if count == 1500 + seed % 50:
                gateway.kill()
        gateway.wait(SECONDS_MAX)
        gateway.stdout.close()
        relay.wait(SECONDS_MAX)
    last = start(kafka, "eof")
    orphan(last)
    ended(last)
    events = asyncio.run(sent(kafka))
    known = once(events).values()
    by_source: dict[tuple[str, str], set[int]] = {}
    for event in known:
        by_source.setdefault((event.source, event.topic), set()).add(event.sequence)
    for (source, topic), found in by_source.items():
        assert found == set(range(1, max(found) + 1)), f"{topic} of {source} has a gap"
    ends = {event.id.partition("/")[0] for event in known if event.id.endswith("/finished")}
    begun = {event.id.partition("/")[0] for event in known if event.id.endswith("/accepted")}
    assert finished <= ends
    assert {said.request_id for said in abandonments(known)} == begun - ends
    assert house.adopted() == set(house.spools())
    said = closings(known)
    for source in (f"/gateway/test/b{number}" for number in range(3)):
        last_seen = {topic: max(s) for (who, topic), s in by_source.items() if who == source}
        assert said[source].last == last_seen


def test_a_broker_that_goes_and_comes_back_loses_and_blocks_nothing(
    house: House, start: Start, own_broker: Broker
) -> None:
    access = access_to(own_broker)
    gateway = house.gateway(segment_bytes=50_000)
    relay = start(access)
    serve(gateway, *[f"a{number}" for number in range(100)])
    wait_until(lambda: behind(house) == 0)
    own_broker.stop()
    serve(gateway, *[f"b{number}" for number in range(500)])
    wait_until(lambda: fault(house) is not None)
    assert gateway.room(), "serving goes on"
    own_broker.start()
    serve(gateway, *[f"c{number}" for number in range(100)])
    wait_until(lambda: behind(house) == 0 and fault(house) is None)
    own_broker.kill()
    serve(gateway, *[f"d{number}" for number in range(100)])
    own_broker.start()
    wait_until(lambda: gateway.unconsumed_bytes() >= 0 and behind(house) == 0)
    house.die(gateway)
    words = stop(relay)
    assert words.count("does not answer") + words.count("cannot be reached") <= 2, words
    events = asyncio.run(sent(access))
    known = once(events)
    assert len({said for said in map(str, payloads(known.values())) if "RequestFin" in said}) == 800
    order = [e.sequence for e in events if e.topic == "requests" and e.source == gateway.source]
    assert sorted(set(order)) == list(range(1, 2401))


def test_without_kafka_it_waits_says_so_once_and_ends_when_told(house: House, start: Start) -> None:
    gateway = house.gateway()
    serve(gateway, "a")
    relay = start(KafkaAccess(bootstrap=("127.0.0.1:1",)))
    wait_until(lambda: fault(house) is not None)
    relay.send_signal(signal.SIGTERM)
    _, words = relay.communicate(timeout=SECONDS_MAX)
    assert relay.returncode == 1
    assert words.count("trying again, the spools keep everything meanwhile") == 1, words
    assert words.count("what is left is sent by the next relay") == 1
    assert len(words.splitlines()) == 2, words


def test_topics_that_are_missing_are_named(house: House, start: Start, broker: Broker) -> None:
    access = access_to(broker, "missing", topics=False)
    start(access)
    wait_until(lambda: "tollbook topics create" in (fault(house) or ""))


def behind(house: House) -> int:
    """Bytes that Kafka has not, by the spools' own marks."""
    left = 0
    for directory in house.layout.spool_directories():
        size = sum(path.stat().st_size for path in Path(directory).glob("*.seg"))
        left += size - int.from_bytes((directory / "consumed").read_bytes(), "big")
    return left


def fault(house: House) -> str | None:
    status = read_status(house.layout.root)
    return None if status is None else status.fault

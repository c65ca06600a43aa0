"""A gateway whose Kafka goes away: it serves and bills from disk, refuses when full, and drains."""

import asyncio
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from gateway.dev.broker import Broker
from streams.kafka.access import KafkaAccess
from tests.streams.relay_house import once, sent
from tests.support.kafka import access_to, settings_file
from tests.support.processes import (
    Gateway,
    backend,
    call,
    chat,
    gateway,
    role,
    tollbook,
    tollbook_json,
    wait_until,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(280)]

LONG_NAME = "m" * 256
"""A model's name stands in two events of each request: so the spool fills with few of them."""


def metric(door: Gateway, name: str) -> float:
    """The value of a metric without labels; -1 where it is not shown."""
    for line in call(f"{door.url}/metrics").body.decode().splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    return -1.0


def finished(access: KafkaAccess) -> Counter[str]:
    """The ends on Kafka by request."""
    events = once(asyncio.run(sent(access, "requests"))).values()
    return Counter(e.id for e in events if e.type.startswith("tollbook.request.finished"))


def test_kafka_away_fills_the_spool_and_back_again_drains_it(
    own_broker: Broker, tmp_path: Path
) -> None:
    access = access_to(own_broker)
    config = settings_file(tmp_path, access)
    text = config.read_text()
    config.write_text(f'{text}[spool]\nlimit_bytes = "1 MiB"\nreserve_bytes = "64 KiB"\n')
    data = tmp_path / "data"
    place = ("--config", str(config))
    with backend(tmp_path) as server:
        key = tollbook_json(data, "keys", "create", "--name", "ann", *place)["key"]
        with role("worker", tmp_path, *place):
            with gateway(data, [server.url], *place) as door:
                wait_until("the key is known", lambda: chat(door.url, key).status == 200)
                line = next(said for said in door.output().splitlines() if "serving" in said)
                assert f"Kafka at {own_broker.address}" in line
                own_broker.stop()
                good, answer = 0, chat(door.url, key, LONG_NAME)
                while answer.status == 200 and good < 2000:
                    good, answer = good + 1, chat(door.url, key, LONG_NAME)
                assert answer.status == 503, answer.body
                assert good > 50, "it served from disk until the spool was full"
                wait_until("it is shown", lambda: metric(door, "tollbook_relay_kafka_up") == 0)
                lag, age = "tollbook_relay_lag_bytes", "tollbook_relay_oldest_seconds"
                wait_until("the lag is shown", lambda: metric(door, lag) > 900_000)
                assert metric(door, age) > 0
                own_broker.start()
                wait_until("it serves again", lambda: chat(door.url, key).status == 200, 60)
                up = "tollbook_relay_kafka_up"
                wait_until("Kafka is up", lambda: metric(door, up) == 1)
            ends = finished(access)
            assert len(ends) == len(server.calls()), "as many ends as the backend gave answers"
            assert max(ends.values()) == 1


def test_topics_that_are_not_as_they_should_be_stop_the_start_with_words(
    kafka: KafkaAccess, tmp_path: Path
) -> None:
    wrong = msgspec.structs.replace(kafka, partitions=kafka.partitions + 1)
    config = settings_file(tmp_path, wrong)
    options = ("--backend", "http://127.0.0.1:1", "--port", "0", "--config", str(config))
    said = tollbook(tmp_path / "data", "serve", *options, check=False)
    assert said.returncode == 1
    assert f"{kafka.topic('requests')} has {kafka.partitions} partitions" in said.stderr
    assert "cannot be changed" in said.stderr

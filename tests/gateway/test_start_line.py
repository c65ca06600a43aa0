"""The start line: who can reach the door, and how long an outage of the ledger it covers."""

from pathlib import Path

import pytest

from gateway.call import Call
from gateway.service import backends_of
from gateway.settings import (
    BackendSettings,
    GatewaySettings,
    KafkaSettings,
    Settings,
    SpoolSettings,
)
from gateway.start_line import BYTES_PER_REQUEST, covered, reach, start_line
from gateway.wire.endpoints import CHAT
from gateway.wire.requests import asked
from ledger.clock import SystemClock
from ledger.events import Usage
from ledger.identity import mint_id
from streams.log.spool import SpoolWriter

MIB = 1 << 20
REQUESTS = 200
SHARE_OFF_MAX = 0.30


@pytest.mark.parametrize(
    ("host", "who"),
    [
        ("127.0.0.1", "only from this machine"),
        ("127.8.8.8", "only from this machine"),
        ("localhost", "only from this machine"),
        ("::1", "only from this machine"),
        ("0.0.0.0", "from every network"),
        ("::", "from every network"),
        ("10.0.0.7", "from wherever 10.0.0.7 can be reached"),
    ],
)
def test_who_can_reach_it(host: str, who: str) -> None:
    assert who in reach(host)
    assert ("TLS" in reach(host)) == (who != "only from this machine")


def test_it_says_where_kafka_is() -> None:
    backend = BackendSettings(url="http://127.0.0.1:1")
    embedded = start_line(Settings(backends=(backend,)), 8080, None)
    assert "Kafka" not in embedded and "without the ledger" in embedded
    kafka = KafkaSettings(bootstrap=("k1:9092", "k2:9092"), prefix="acme")
    line = start_line(Settings(backends=(backend,), kafka=kafka), 8080, None)
    assert "Kafka at k1:9092,k2:9092, acme.*" in line and "without Kafka" in line


@pytest.mark.parametrize(
    ("limit", "text"),
    [(MIB, "about 69 s"), (10 * MIB, "about 11 min"), (1024 * MIB, "about 19 h")],
)
def test_how_long_an_outage_is_covered(limit: int, text: str) -> None:
    assert covered(limit) == text


def test_the_line_says_everything_at_once() -> None:
    settings = Settings(
        gateway=GatewaySettings(host="::1"),
        backends=(BackendSettings(url="http://127.0.0.1:1"),),
        spool=SpoolSettings(limit_bytes=64 * MIB),
    )
    line = start_line(settings, 8080, "models a, b")
    assert line.startswith("tollbook: serving http://[::1]:8080/v1 (only from this machine); ")
    assert "; 1 backend; models a, b; spool limit 64 MiB, which covers about 74 min" in line
    assert "\n" not in line
    assert "; backends as the registry says; spool" in start_line(Settings(), 1, None)
    assert "; 2 backends; spool" in start_line(Settings(), 1, None, 2)


@pytest.mark.parametrize("client", [None, "0" * 32])
def test_the_stated_size_of_a_request_is_what_the_spool_writes(
    tmp_path: Path, client: str | None
) -> None:
    clock, incarnation = SystemClock(), mint_id()
    settings = Settings(backends=(BackendSettings(url="http://127.0.0.1:8000"),))
    backend = backends_of(settings, str)[0]
    spool = SpoolWriter.create(tmp_path / "s", f"/gateway/gateway/{incarnation}", clock=clock)
    wish = asked(b'{"model":"meta-llama/Llama-3.1-8B-Instruct","max_tokens":512}')
    usage = Usage(uncached_in=812, cached_in=1024, cache_write_in=0, reasoning_out=0, other_out=231)
    for _ in range(REQUESTS):
        call = Call(f"req_{mint_id()}", mint_id(), CHAT, wish, clock.monotonic())
        call.upstream = 2.123456
        spool.append(
            call.accepted(clock.now(), 1800.0, client, None),
            call.attempted(clock.now(), backend, None),
        )
        spool.append(
            call.finish(
                clock.now(),
                clock.monotonic() + 2.2,
                "completed",
                status=200,
                counted=("reported", usage),
            )
        )
    each = spool.written_bytes() / REQUESTS
    spool.close()
    assert abs(each / BYTES_PER_REQUEST - 1) <= SHARE_OFF_MAX

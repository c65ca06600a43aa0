"""A clock that differs from the broker's: measured from the acks, told, shown to the gateway."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.relayed import relay_gauges, relay_missing
from ledger.clock import SystemClock
from streams.kafka.access import KafkaAccess
from streams.kafka.relay.said import Trouble
from streams.kafka.relay.status import Status, write_status
from streams.kafka.relay.window import Outgoing, WindowSender


class WrongClock(SystemClock):
    """The machine's clock, set wrong by `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._off = timedelta(seconds=seconds)

    def now(self) -> datetime:
        return super().now() + self._off


@pytest.mark.parametrize("seconds", [0.0, 100.0, -100.0])
async def test_the_difference_is_measured_from_the_brokers_own_times(
    kafka: KafkaAccess, seconds: float
) -> None:
    clock = WrongClock(seconds)
    sender = WindowSender(kafka, Trouble(print), clock)
    try:
        now_ms = int(clock.now().timestamp() * 1000)
        assert not await sender.send([Outgoing(kafka.topic("sources"), b"k", b"{}", [], now_ms)])
    finally:
        await sender.close()
    # Less than a record's way there and back, which is seconds at most.
    assert abs(sender.skew_seconds - seconds) < 20.0
    assert (sender.skew_seconds == 0.0) == (seconds == 0.0)


@pytest.mark.parametrize(("skew", "ready"), [(0.0, True), (-59.0, True), (61.0, False)])
def test_beyond_a_minute_a_gateway_is_not_ready(tmp_path: Path, skew: float, ready: bool) -> None:
    write_status(tmp_path, Status(at=datetime(2026, 11, 1, tzinfo=UTC), skew_seconds=skew))
    missing = relay_missing(tmp_path)
    assert (missing == []) == ready
    shown = {name: value for name, _, _, value in relay_gauges(tmp_path, SystemClock())}
    assert shown["tollbook_relay_skew_seconds"] == skew
    if not ready:
        assert "61 s ahead of Kafka's" in missing[0]

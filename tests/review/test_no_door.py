"""What a review of the gateway found: the advice must be about what went wrong at the door."""

import socket

import pytest

from gateway.settings import GatewaySettings, Settings
from gateway.wiring import _no_door, bind


def refusal(host: str, port: int) -> str:
    with pytest.raises(OSError) as refused:
        bind(host, port)
    settings = Settings(gateway=GatewaySettings(host=host, port=port))
    return _no_door(settings, refused.value)


def test_a_taken_port_is_told_from_a_wrong_address() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert "--port 0 takes a free one" in refusal("127.0.0.1", other.getsockname()[1])
    for host in ("203.0.113.9", "[::1]"):
        said = refusal(host, 0)
        assert "--host" in said and "--port" not in said

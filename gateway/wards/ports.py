"""Ports that servers may take which are started here."""

import socket

from gateway.wards.errors import WardFailed


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def take_port(host: str, port: int, option: str) -> int:
    """`port` if nobody listens on it, or a free one for 0. Raises `WardFailed` if it is taken."""
    with socket.socket() as probe:
        # As every server does; without it a connection that fades out would count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as wrong:
            raise WardFailed(
                f"port {port} on {host} cannot be taken: {wrong.strerror}. Another program has it, "
                f"perhaps a demo that still runs: stop that, or give another one by {option} "
                f"(0 takes a free one)"
            ) from wrong
        found: int = probe.getsockname()[1]
        return found

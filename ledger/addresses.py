"""When two addresses are of one server, although they are written differently. Pure."""

from typing import Final

_PORTS: Final = {"http": "80", "https": "443"}
"""What is meant where no port is written."""

_LOOPBACK: Final = frozenset(("localhost", "127.0.0.1", "[::1]"))


def door_of(url: str) -> str:
    """The one way to write the address of the server at `url`, to tell two of them apart by.

    `url` is as a backend's root is held: with its scheme, without a slash at the end. All names of
    this machine for itself are one, although a server may listen on only one of them: two servers
    on one port of it are rarer than one that is added twice.
    """
    scheme, _, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    host, colon, port = place.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = place, ""
    scheme, host = scheme.lower(), host.lower()
    host = "localhost" if host in _LOOPBACK else host
    return f"{scheme}://{host}:{port.lstrip('0') or _PORTS.get(scheme, '')}{slash}{path}"

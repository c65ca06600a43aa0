"""How a setting's text becomes a value, and what is refused on the way. Pure.

No message repeats a text that may be a secret.
"""

import difflib
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import parse_qsl, urlsplit

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

SECRET_BYTES_MAX: Final = 4096
"""A longer key would not pass the header limits of the servers that it opens."""

_UNITS: Final = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 1024 * GIB}
_SIZE: Final = re.compile(r"(\d+)\s*(B|KiB|MiB|GiB|TiB)")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TOPIC: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ENV: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SettingsError(ValueError):
    """A setting that cannot be used. The message names it, the reason, and what to write."""


def normal_url(url: str) -> str:
    """`url` as a backend's root: no `/v1`, no slash at the end. Raises `SettingsError`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.username is not None or parts.password is not None:
        # The address is not repeated: it holds a password.
        raise SettingsError(
            "the address of a backend holds a user name or password; give the key by `key`"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise SettingsError(
            f"{url!r} is not the address of a backend; write it as http://HOST:PORT"
        )
    if parts.query or parts.fragment:
        raise SettingsError(f"{url!r} has a part after ? or #; write it as http://HOST:PORT")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def parse_size(text: str) -> int:
    """Bytes in `text`: `4096`, `256 MiB`, `1GiB`. Raises `SettingsError`."""
    match = _SIZE.fullmatch(text.strip())
    if match:
        return int(match[1]) * _UNITS[match[2]]
    if text.strip().isdecimal():
        return int(text)
    raise SettingsError(f'{text!r} is not a size; write bytes, or "256 MiB" ({", ".join(_UNITS)})')


def size_text(count: int) -> str:
    """`count` bytes in the largest unit that holds them exactly; `parse_size` reads it back."""
    unit = next(name for name in reversed(_UNITS) if count % _UNITS[name] == 0 and count)
    return f"{count // _UNITS[unit]} {unit}"


def check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"{what} {name!r} is no name: letters, digits, dot, dash and underscore, "
            "at most 64, beginning with a letter or digit"
        )


def check_models(models: tuple[str, ...]) -> None:
    if "" in models:
        raise SettingsError("models holds an empty name; remove it")
    if "*" in models and len(models) > 1:
        raise SettingsError('models holds "*" and more; "*" alone already means any name')


def check_reference(reference: str, what: str = "a backend's key") -> None:
    """Refuse what is neither env:NAME nor file:PATH; `what` it stands for is for the message."""
    kind, _, place = reference.partition(":")
    if kind == "env" and _ENV.fullmatch(place):
        return
    if kind == "file" and place:
        return
    # The text is not repeated: it may be the secret itself.
    raise SettingsError(
        f"{what} is given by a reference, env:NAME or file:PATH, never by itself; "
        "put it into an environment variable or a file and name that"
    )


def check_bootstrap(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SettingsError(f"{address!r} is not the address of a broker; write it as HOST:PORT")


def check_topic_prefix(prefix: str) -> None:
    if not _TOPIC.fullmatch(prefix):
        raise SettingsError(
            f"prefix {prefix!r} cannot begin a topic's name: letters, digits, dash and underscore, "
            "at most 64"
        )


def check_ledger_url(url: str) -> None:
    """A Postgres URL without a password, or a reference to one that may have it."""
    if url.startswith(("env:", "file:")):
        check_reference(url, "the address of the ledger")
        return
    # The address is not repeated: it may hold a password.
    if not url.startswith("postgresql+psycopg://"):
        raise SettingsError(
            "the address of the ledger begins with postgresql+psycopg://, or is a reference, "
            "env:NAME or file:PATH"
        )
    try:
        parts = urlsplit(url)
        named = {name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
        secret = parts.password is not None or bool(named & {"password", "sslpassword"})
    except ValueError:
        raise SettingsError("the address of the ledger cannot be read as a URL") from None
    if secret:
        raise SettingsError(
            "the address of the ledger holds a password; put the whole address into an environment "
            "variable or a file, and name that: env:NAME or file:PATH"
        )


def check_secret(secret: str, where: str, what: str = "a backend's key") -> str:
    """`secret` without space around it, if it is one line of plain characters, as a key is.

    Raises `SettingsError`, which says where it was found and never what it is.
    """
    secret = secret.strip()
    if not secret:
        raise SettingsError(f"{where} is empty; put {what} there")
    if len(secret) > SECRET_BYTES_MAX or not (secret.isascii() and secret.isprintable()):
        raise SettingsError(
            f"what {where} holds is not {what}: that is one line of plain characters, "
            f"at most {SECRET_BYTES_MAX}"
        )
    return secret


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The word of `known` that looks most like `word`, if any does."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return found[0] if found else None

"""What an operator may set, with its default, its limits and its meaning: the one table of it.

`tollbook init` and docs/configuration.md are written from these types and from nothing else. A
setting holds a reference to a secret (`env:NAME`, `file:PATH`), never the secret. Apart from the
command line, this is the only place of the gateway that reads the environment.
"""

import hashlib
import os
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec.structs import force_setattr

from gateway.setting_values import (
    GIB,
    KIB,
    MIB,
    SECRET_BYTES_MAX,
    SettingsError,
    check_models,
    check_name,
    check_reference,
    check_secret,
    nearest,
    normal_url,
    parse_size,
    size_text,
)

__all__ = [
    "SECTIONS",
    "BackendSettings",
    "Field",
    "GatewaySettings",
    "Settings",
    "SettingsError",
    "SpoolSettings",
    "TimeoutSettings",
    "fields",
    "load_settings",
    "normal_url",
    "parse_size",
    "resolve_secret",
    "settings_from",
    "size_text",
]

SECONDS_MAX: Final = 86_400
"""A day: a longer timeout is a mistake of units, and `inf` is no timeout at all."""

_PLACE: Final = re.compile(r" - at `\$\.?(?P<place>[^`]*)`$")


def _is(about: str, kind: str) -> msgspec.Meta:
    """What stands in the documents about one setting; `kind` says how it is written."""
    return msgspec.Meta(description=about, extra={"kind": kind})


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The door itself: where it listens and what it lets in."""

    name: Annotated[
        str,
        _is(
            "Name of this gateway in every event that it writes. It outlives restarts; give each "
            "machine its own.",
            "name",
        ),
    ] = "gateway"
    host: Annotated[
        str,
        _is(
            "Address to listen on. 127.0.0.1 can be reached from this machine only, 0.0.0.0 from "
            "every network that this machine is on.",
            "text",
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, _is("Port to listen on; 0 takes a free one.", "integer"), msgspec.Meta(ge=0, le=65535)
    ] = 8080
    workers: Annotated[
        int,
        _is("Processes that serve; one per core is enough.", "integer"),
        msgspec.Meta(ge=1, le=256),
    ] = 1
    body_bytes_max: Annotated[
        int, _is("A larger request is refused with 413.", "size"), msgspec.Meta(ge=KIB, le=GIB)
    ] = 32 * MIB
    shutdown_seconds_max: Annotated[
        float,
        _is(
            "After SIGTERM, requests that run may go on for this long; then they are cut and "
            "billed for what was delivered.",
            "seconds",
        ),
        msgspec.Meta(ge=0, le=SECONDS_MAX),
    ] = 30.0
    models: Annotated[
        tuple[str, ...],
        _is(
            'Models that are served. Empty: what the backends list. ["*"]: any name is passed '
            "on, and the backend decides.",
            "list of names",
        ),
    ] = ()

    def __post_init__(self) -> None:
        check_name("name", self.name)
        check_models(self.models)
        if not self.host:
            raise SettingsError("host is empty; write 127.0.0.1, or 0.0.0.0 for every network")


class BackendSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model server behind the door. `url` is held without `/v1` and without a slash at the end.

    `id` names it in events, metrics and headers; it is made from the address but never shows it.
    """

    url: Annotated[
        str,
        _is("Address of the server, with or without /v1: http://127.0.0.1:8000.", "http address"),
    ]
    name: Annotated[
        str | None,
        _is(
            "Name of the backend in events, metrics and headers. Not given: made from a hash of "
            "the address, so that no address is in an event.",
            "name",
        ),
    ] = None
    key: Annotated[
        str | None,
        _is(
            "Where the server's key is found: env:NAME (an environment variable) or file:PATH. "
            "The key itself does not belong in this file.",
            "env:NAME or file:PATH",
        ),
    ] = None
    engine: Annotated[
        Literal["auto", "vllm", "sglang", "llamacpp", "openai"],
        _is(
            "Which server it is; auto asks it. It decides how usage is asked for during a stream.",
            "choice",
        ),
    ] = "auto"
    models: Annotated[
        tuple[str, ...],
        _is("Models of this backend. Empty: what its /v1/models lists.", "list of names"),
    ] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "url", normal_url(self.url))
        if self.name is not None:
            check_name("name", self.name)
        if self.key is not None:
            check_reference(self.key)
        check_models(self.models)

    @property
    def id(self) -> str:
        """The backend's id: its name, or `b-` and eight hex digits of its address's hash."""
        if self.name is not None:
            return self.name
        return "b-" + hashlib.sha256(self.url.encode()).hexdigest()[:8]


class TimeoutSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a backend may take. What runs out of time is billed for what was delivered."""

    connect_seconds: Annotated[
        float,
        _is("To open a connection to a backend.", "seconds"),
        msgspec.Meta(gt=0, le=SECONDS_MAX),
    ] = 5.0
    first_byte_seconds: Annotated[
        float,
        _is(
            "From the request to the first byte of the answer; a plain answer comes whole, so "
            "this must cover all of its generation.",
            "seconds",
        ),
        msgspec.Meta(gt=0, le=SECONDS_MAX),
    ] = 300.0
    body_seconds: Annotated[
        float,
        _is("For a request to arrive whole, from its head on; then it is refused.", "seconds"),
        msgspec.Meta(gt=0, le=SECONDS_MAX),
    ] = 60.0
    between_chunks_seconds: Annotated[
        float,
        _is("Silence within a stream.", "seconds"),
        msgspec.Meta(gt=0, le=SECONDS_MAX),
    ] = 60.0
    total_seconds: Annotated[
        float,
        _is("A whole request.", "seconds"),
        msgspec.Meta(gt=0, le=SECONDS_MAX),
    ] = 1800.0


class SpoolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The spool: what was served is on disk before the ledger has it."""

    durability: Annotated[
        Literal["process", "power"],
        _is(
            "What a write survives: process (kill -9 of any process) or power (also a power cut; "
            "each request waits for fsync).",
            "choice",
        ),
    ] = "process"
    limit_bytes: Annotated[
        int,
        _is(
            "Spool that the ledger has not taken yet. Near it new requests are refused with 503: "
            "nothing is served that could not be billed.",
            "size",
        ),
        msgspec.Meta(ge=MIB),
    ] = GIB
    reserve_bytes: Annotated[
        int,
        _is(
            "Disk space kept back so that open requests can be ended when the disk is full.", "size"
        ),
        msgspec.Meta(ge=64 * KIB),
    ] = 4 * MIB
    keep_bytes: Annotated[
        int,
        _is("Spool that is kept after the ledger has taken it, for audits.", "size"),
        msgspec.Meta(ge=0),
    ] = 256 * MIB
    flush_milliseconds: Annotated[
        int,
        _is(
            "How often running totals of a stream are written: after a kill, a stream's bill is "
            "short by at most this long.",
            "milliseconds",
        ),
        msgspec.Meta(ge=10, le=60_000),
    ] = 250

    def __post_init__(self) -> None:
        if 2 * self.reserve_bytes > self.limit_bytes:
            raise SettingsError(
                f"reserve_bytes ({size_text(self.reserve_bytes)}) is more than half of limit_bytes "
                f"({size_text(self.limit_bytes)}), so hardly a request could be accepted; "
                "raise the limit or lower the reserve"
            )


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything of tollbook.toml. The defaults alone are valid: a door with nothing behind it."""

    gateway: GatewaySettings = GatewaySettings()
    backends: tuple[BackendSettings, ...] = ()
    timeouts: TimeoutSettings = TimeoutSettings()
    spool: SpoolSettings = SpoolSettings()

    def __post_init__(self) -> None:
        for what, values in (
            ("the address", [backend.url for backend in self.backends]),
            ("the name", [backend.id for backend in self.backends]),
        ):
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                raise SettingsError(f"two backends have {what} {twice}; remove one of them")


SECTIONS: Final[dict[str, type[msgspec.Struct]]] = {
    "gateway": GatewaySettings,
    "backends": BackendSettings,
    "timeouts": TimeoutSettings,
    "spool": SpoolSettings,
}
"""The tables of tollbook.toml in the order in which they are shown; `backends` is a list."""


class Field(msgspec.Struct, frozen=True):
    """One line of the table of settings. `default` is a TOML value, null where there is none."""

    section: str
    name: str
    kind: str
    default: str | None
    about: str
    required: bool
    choices: tuple[str, ...] = ()


def fields() -> Iterator[Field]:
    """Every setting there is, in the order in which it is shown: what the documents are made of."""
    for section, cls in SECTIONS.items():
        hints = typing.get_type_hints(cls, include_extras=True)
        for field in msgspec.structs.fields(cls):
            plain, meta, *_limits = typing.get_args(hints[field.name])
            kind: str = meta.extra["kind"]
            yield Field(
                section=section,
                name=field.name,
                kind=kind,
                default=None if field.required else _toml(field.default, kind),
                about=meta.description,
                required=field.required,
                choices=typing.get_args(plain) if kind == "choice" else (),
            )


def load_settings(path: Path | None = None) -> Settings:
    """The settings in the file at `path`, or the defaults without one.

    Relative `file:` references are taken from the file's own folder. Raises `SettingsError` for a
    file that cannot be read, an unknown setting (the nearest known one is named) or a wrong value.
    """
    if path is None:
        return Settings()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SettingsError(
            f"there is no configuration file {path}; `tollbook init` writes one"
        ) from None
    except (OSError, UnicodeDecodeError) as wrong:
        raise SettingsError(f"{path} cannot be read: {wrong}") from wrong
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as wrong:
        raise SettingsError(f"{path} is not valid TOML: {wrong}; mend that place") from wrong
    try:
        return _anchored(settings_from(raw), path.parent)
    except SettingsError as wrong:
        raise SettingsError(f"{path}: {wrong}") from wrong


def settings_from(raw: Mapping[str, object]) -> Settings:
    """Settings from the tables of a TOML file. Raises `SettingsError` naming the wrong setting."""
    _refuse_strangers("", raw, tuple(SECTIONS), "table")
    values: dict[str, object] = {}
    for section, cls in SECTIONS.items():
        if section not in raw:
            continue
        table = raw[section]
        if section != "backends":
            values[section] = _table(section, table, cls)
        elif isinstance(table, list):
            values[section] = [
                _table(f"backends[{index}]", one, cls) for index, one in enumerate(table, start=1)
            ]
        else:
            raise SettingsError(
                "backends is a list of tables; write [[backends]], with two brackets"
            )
    try:
        return msgspec.convert(values, Settings)
    except msgspec.ValidationError as wrong:
        raise SettingsError(_reworded(str(wrong))) from wrong


def resolve_secret(reference: str) -> str:
    """The secret that `reference` (`env:NAME` or `file:PATH`) stands for.

    Raises `SettingsError` if it is not there or could not be sent in a header; no message ever
    holds the secret or a part of it.
    """
    check_reference(reference)
    kind, _, place = reference.partition(":")
    if kind == "env":
        found = os.environ.get(place)
        if found is None:
            raise SettingsError(
                f"the environment variable {place} is not set, but a backend's key is said to be "
                f"in it ({reference}); set it before starting"
            )
    else:
        try:
            with open(place, encoding="utf-8") as file:
                found = file.read(SECRET_BYTES_MAX + 1)
        except (OSError, UnicodeDecodeError) as wrong:
            reason = wrong.strerror if isinstance(wrong, OSError) else "it is not text"
            raise SettingsError(
                f"the key of a backend cannot be read from {place}: {reason}"
            ) from None
    return check_secret(found, reference)


def _toml(value: object, kind: str) -> str | None:
    """`value` as it stands in a TOML file; null for a setting that is not given."""
    if value is None:
        return None
    if kind == "size" and isinstance(value, int):
        return f'"{size_text(value)}"' if value else "0"
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{one}"' for one in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _table(place: str, table: object, cls: type[msgspec.Struct]) -> dict[str, object]:
    """One table of the file with its sizes read; its other values are judged by `convert`."""
    if not isinstance(table, dict):
        raise SettingsError(f"{place} is a table; write [{place}] on a line of its own")
    known = tuple(field.name for field in msgspec.structs.fields(cls))
    _refuse_strangers(place, table, known, "setting")
    sizes = {field.name for field in fields() if field.kind == "size"}
    values = dict(table)
    for name in sizes & values.keys():
        if isinstance(values[name], str):
            try:
                values[name] = parse_size(values[name])
            except SettingsError as wrong:
                raise SettingsError(f"{place}.{name}: {wrong}") from wrong
    return values


def _refuse_strangers(
    place: str, table: Mapping[str, object], known: tuple[str, ...], what: str
) -> None:
    for name in table:
        if name in known:
            continue
        full = f"{place}.{name}" if place else name
        near = nearest(name, known)
        hint = (
            f"did you mean {full.removesuffix(name)}{near}?"
            if near
            else f"known here: {', '.join(known)}"
        )
        raise SettingsError(f"{full} is not a {what} of Tollbook; {hint}")


def _reworded(message: str) -> str:
    """A validation message with its place in front, as an operator names it."""
    match = _PLACE.search(message)
    if match is None:
        return message
    # msgspec counts from 0; people count from 1.
    place = re.sub(r"\[(\d+)\]", lambda found: f"[{int(found[1]) + 1}]", match["place"])
    said = message[: match.start()].replace("`", "")
    said = said.replace("Object missing required field ", "this setting must be given: ")
    last = place.rpartition(".")[2]
    choices = next((one.choices for one in fields() if one.name == last and one.choices), ())
    if choices and said.startswith("Invalid enum value"):
        said = f"{said.removeprefix('Invalid enum value ')} is none of {', '.join(choices)}"
    elif said.startswith("Expected"):
        said = f"wrong value: {said[:1].lower()}{said[1:]}"
    return f"{place}: {said}" if place else said


def _anchored(settings: Settings, folder: Path) -> Settings:
    """`settings` with relative `file:` references made absolute from `folder`."""
    backends = tuple(
        msgspec.structs.replace(
            one, key=f"file:{(folder / one.key.removeprefix('file:')).absolute()}"
        )
        if one.key is not None and one.key.startswith("file:")
        else one
        for one in settings.backends
    )
    return msgspec.structs.replace(settings, backends=backends)

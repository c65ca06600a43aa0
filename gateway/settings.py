"""What an operator has set: `gateway.sections` read from a file, and what is wrong in it in words.

Apart from the command line, this is the only place of the gateway that reads the environment.
"""

import os
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from gateway.sections import (
    BackendSettings,
    FallbackSettings,
    GatewaySettings,
    KafkaSettings,
    LedgerSettings,
    PolicySettings,
    RoutingSettings,
    SpoolSettings,
    TimeoutSettings,
)
from gateway.setting_values import (
    SECRET_BYTES_MAX,
    SettingsError,
    check_reference,
    check_secret,
    nearest,
    normal_url,
    parse_size,
    size_text,
)
from ledger.addresses import door_of

__all__ = [
    "CONFIG_DEFAULT",
    "LISTS",
    "SECTIONS",
    "BackendSettings",
    "FallbackSettings",
    "Field",
    "GatewaySettings",
    "KafkaSettings",
    "LedgerSettings",
    "PolicySettings",
    "RoutingSettings",
    "Settings",
    "SettingsError",
    "SpoolSettings",
    "TimeoutSettings",
    "cache_folder",
    "fields",
    "ledger_url_of",
    "load_settings",
    "normal_url",
    "parse_size",
    "resolve_secret",
    "settings_from",
    "size_text",
]

CONFIG_DEFAULT: Final = Path("tollbook.toml")
"""What is read where no file is named, if it is in the working directory."""

_PLACE: Final = re.compile(r" - at `\$\.?(?P<place>[^`]*)`$")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything of tollbook.toml. The defaults alone are valid: a door with nothing behind it."""

    gateway: GatewaySettings = GatewaySettings()
    backends: tuple[BackendSettings, ...] = ()
    routing: RoutingSettings = RoutingSettings()
    policies: tuple[PolicySettings, ...] = ()
    fallbacks: tuple[FallbackSettings, ...] = ()
    timeouts: TimeoutSettings = TimeoutSettings()
    spool: SpoolSettings = SpoolSettings()
    ledger: LedgerSettings = LedgerSettings()
    kafka: KafkaSettings = KafkaSettings()

    def __post_init__(self) -> None:
        doors: dict[str, str] = {}
        for backend in self.backends:
            first = doors.setdefault(door_of(backend.url), backend.url)
            if first is not backend.url:
                also = "" if first == backend.url else f", also written {backend.url}"
                raise SettingsError(f"two backends have the address {first}{also}; remove one")
        if (twice := _twice([backend.id for backend in self.backends])) is not None:
            raise SettingsError(f"two backends have the name {twice}; remove one of them")
        if (twice := _twice([one.model for one in self.policies])) is not None:
            raise SettingsError(f"two policies are for the model {twice}; remove one of them")
        if (twice := _twice([one.model for one in self.fallbacks])) is not None:
            raise SettingsError(f"two fallbacks are for the model {twice}; remove one of them")


SECTIONS: Final[dict[str, type[msgspec.Struct]]] = {
    "gateway": GatewaySettings,
    "backends": BackendSettings,
    "routing": RoutingSettings,
    "policies": PolicySettings,
    "fallbacks": FallbackSettings,
    "timeouts": TimeoutSettings,
    "spool": SpoolSettings,
    "ledger": LedgerSettings,
    "kafka": KafkaSettings,
}
"""The tables of tollbook.toml in the order in which they are shown."""

LISTS: Final = frozenset(("backends", "policies", "fallbacks"))
"""Those of them that there may be several of: `[[backends]]`."""


def cache_folder() -> Path:
    """Where this user keeps what can be fetched again; it may not be there yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tollbook"


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
        if section not in LISTS:
            values[section] = _table(section, table, cls)
        elif isinstance(table, list):
            values[section] = [
                _table(f"{section}[{index}]", one, cls) for index, one in enumerate(table, start=1)
            ]
        else:
            raise SettingsError(
                f"{section} is a list of tables; write [[{section}]], with two brackets"
            )
    try:
        return msgspec.convert(values, Settings)
    except msgspec.ValidationError as wrong:
        raise SettingsError(_reworded(str(wrong))) from wrong


def resolve_secret(reference: str, what: str = "a backend's key") -> str:
    """The secret that `reference` (`env:NAME` or `file:PATH`) stands for; `what` is for messages.

    Raises `SettingsError` if it is not there or could not be sent in a header; no message ever
    holds the secret or a part of it.
    """
    check_reference(reference, what)
    kind, _, place = reference.partition(":")
    if kind == "env":
        found = os.environ.get(place)
        if found is None:
            raise SettingsError(
                f"the environment variable {place} is not set, but {what} is said to be "
                f"in it ({reference}); set it before starting"
            )
    else:
        try:
            with open(place, encoding="utf-8") as file:
                found = file.read(SECRET_BYTES_MAX + 1)
        except (OSError, UnicodeDecodeError) as wrong:
            reason = wrong.strerror if isinstance(wrong, OSError) else "it is not text"
            raise SettingsError(f"{what} cannot be read from {place}: {reason}") from None
    return check_secret(found, reference, what)


def ledger_url_of(settings: LedgerSettings) -> str | None:
    """The address of the ledger, which may hold a password; null for SQLite in the data directory.

    Raises `SettingsError` if it is not where it is said to be.
    """
    url = settings.url
    if url is None or not url.startswith(("env:", "file:")):
        return url
    return resolve_secret(url, "the address of the ledger")


def _toml(value: object, kind: str) -> str | None:
    """`value` as it stands in a TOML file; null for a setting that is not given."""
    if value is None:
        return None
    if kind == "size" and isinstance(value, int):
        return f'"{size_text(value)}"' if value else "0"
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{one}"' for one in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _twice(values: Sequence[str]) -> str | None:
    """The first of `values` that stands there again; null if none does."""
    return next((value for value in values if values.count(value) > 1), None)


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
    """`settings` with relative paths, also in `file:` references, made absolute from `folder`."""

    def reference(text: str | None) -> str | None:
        if text is None or not text.startswith("file:"):
            return text
        return f"file:{path(text.removeprefix('file:'))}"

    def path(text: str | None) -> str | None:
        return None if text is None else str((folder / text).absolute())

    replace, kafka = msgspec.structs.replace, settings.kafka
    return replace(
        settings,
        backends=tuple(replace(one, key=reference(one.key)) for one in settings.backends),
        ledger=replace(settings.ledger, url=reference(settings.ledger.url)),
        kafka=replace(
            kafka,
            ca_file=path(kafka.ca_file),
            cert_file=path(kafka.cert_file),
            key_file=path(kafka.key_file),
            sasl_password=reference(kafka.sasl_password),
        ),
    )

"""Where a verb works: a data directory, and the Kafka and the ledger that the settings name."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from gateway.cli.failure import Stop
from gateway.cli.options import DATA_DEFAULT, Command, data_option
from gateway.kafka_access import access_of
from gateway.settings import CONFIG_DEFAULT, Settings, ledger_url_of, load_settings
from streams.kafka.access import KafkaAccess
from streams.local.layout import Layout

LEDGER_ENV: Final = "TOLLBOOK_LEDGER"


class Place(msgspec.Struct, frozen=True):
    """A data directory with everything that was set. Nothing is reached until it is asked for."""

    data: Path
    settings: Settings

    @property
    def kafka(self) -> KafkaAccess | None:
        """How brokers are reached; null in embedded mode. Raises `SettingsError`."""
        return access_of(self.settings.kafka)

    @property
    def ledger_target(self) -> Path | str:
        """What `open_ledger` takes: the address that is set, or the data directory's own file.
        It may hold a password. Raises `SettingsError`."""
        return ledger_url_of(self.settings.ledger) or Layout(self.data).ledger

    @property
    def shared_ledger(self) -> bool:
        """True if the ledger is a server and not a file of the data directory."""
        return self.settings.ledger.url is not None

    @property
    def embedded(self) -> bool:
        """True without Kafka: the data directory holds everything, and a runner takes spools."""
        return not self.settings.kafka.bootstrap

    def need_kafka(self) -> KafkaAccess:
        """How brokers are reached. Raises `Stop` in embedded mode."""
        access = self.kafka
        if access is None:
            raise Stop(
                "no Kafka is set; give --kafka HOST:PORT, or bootstrap in [kafka] of a "
                "configuration file by --config"
            )
        return access


def place_of(
    data: Path, config: Path | None, kafka: str | None, ledger: str | None, *, here: bool = True
) -> Place:
    """What the four options of `server_options` mean together; an option stands over the file.

    `here` allows the configuration file of the working directory to be read if none is named.
    """
    if config is None and here and CONFIG_DEFAULT.exists():
        config = CONFIG_DEFAULT
    settings = load_settings(config)
    replace = msgspec.structs.replace
    if kafka is not None:
        bootstrap = tuple(address.strip() for address in kafka.split(",") if address.strip())
        settings = replace(settings, kafka=replace(settings.kafka, bootstrap=bootstrap))
    if ledger is not None:
        settings = replace(settings, ledger=replace(settings.ledger, url=ledger))
    return Place(data, settings)


def _ledger_reference(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The address as it was typed. That of the environment stays there, since it may hold a
    password: a reference to it is what goes into the settings and on to other processes."""
    assert param.name is not None
    typed = ctx.get_parameter_source(param.name)
    if value and typed is click.core.ParameterSource.ENVIRONMENT:
        return value if value.startswith(("env:", "file:")) else f"env:{LEDGER_ENV}"
    return value


_OPTIONS: Final = (
    data_option,
    click.option(
        "--config",
        type=click.Path(path_type=Path),
        envvar="TOLLBOOK_CONFIG",
        metavar="FILE",
        help="Configuration. Default: tollbook.toml, if it is there. Also read from "
        "TOLLBOOK_CONFIG.",
    ),
    click.option(
        "--kafka",
        envvar="TOLLBOOK_KAFKA",
        metavar="HOST:PORT,...",
        help="Brokers, over those of the configuration. Also read from TOLLBOOK_KAFKA.",
    ),
    click.option(
        "--ledger",
        envvar=LEDGER_ENV,
        callback=_ledger_reference,
        metavar="URL",
        help="The ledger: postgresql+psycopg://USER@HOST/DATABASE, or env:NAME or file:PATH that "
        "hold the address. Default: that of the configuration, else SQLite in the data directory. "
        f"Also read from {LEDGER_ENV}.",
    ),
)


def server_options(command: Command) -> Command:
    """`--data`, `--config`, `--kafka` and `--ledger`, as they are: for `place_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def place_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same four for a verb that takes them as one argument, `place: Place`."""

    @functools.wraps(command)
    def run(
        *args: Any,
        data: Path = DATA_DEFAULT,
        config: Path | None = None,
        kafka: str | None = None,
        ledger: str | None = None,
        **more: Any,
    ) -> Any:
        return command(*args, place=place_of(data, config, kafka, ledger), **more)

    return server_options(run)

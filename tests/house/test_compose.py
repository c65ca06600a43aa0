"""compose.yaml against the program: commands parse, settings load, addresses lead somewhere."""

import re
import tomllib
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
import yaml

from gateway.cli.main import main
from gateway.dev.jars import KAFKA_VERSION
from gateway.settings import Settings, settings_from
from tests.house.commands import commands, parse
from tests.support.processes import REPO

COMPOSE: dict[str, Any] = yaml.safe_load((REPO / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "tollbook"}


def filled(text: str) -> str:
    """`text` as compose fills it in where nothing is set: ${NAME:-default}."""
    return re.sub(r"\$\{\w+:-(.*)\}", r"\1", text)


def settings(name: str) -> Settings:
    """The settings that a service of ours finds at TOLLBOOK_CONFIG."""
    service = OURS[name]
    path = service["environment"]["TOLLBOOK_CONFIG"]
    (source,) = [one["source"] for one in service["configs"] if one["target"] == path]
    return settings_from(tomllib.loads(COMPOSE["configs"][source]["content"]))


def test_there_is_what_several_machines_need() -> None:
    assert set(SERVICES) - set(OURS) == {"kafka", "postgres"}
    verbs = sorted(service["command"][1] for service in OURS.values())
    assert verbs == ["serve", "serve", "topics", "worker", "worker", "write"]


@pytest.mark.parametrize("name", OURS)
def test_a_service_runs_a_command_that_exists(name: str) -> None:
    program, *words = OURS[name]["command"]
    assert program == "tollbook"
    parse([filled(word) for word in words])


@pytest.mark.parametrize("name", OURS)
def test_a_service_has_settings_that_load_and_servers_that_are_there(name: str) -> None:
    kafka = settings(name).kafka
    assert settings("topics").kafka == kafka, "all have the same topics"
    (bootstrap,) = kafka.bootstrap
    broker = SERVICES["kafka"]
    assert f"PLAINTEXT://{bootstrap}" == broker["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert bootstrap.partition(":")[0] == "kafka"
    assert broker["image"] == f"apache/kafka:{KAFKA_VERSION}", "the version that the tests run"
    url = urlsplit(OURS[name]["environment"]["TOLLBOOK_LEDGER"])
    database = SERVICES["postgres"]["environment"]
    assert (url.scheme, url.hostname) == ("postgresql+psycopg", "postgres")
    assert (url.username, url.password, url.path[1:]) == (
        database["POSTGRES_USER"],
        database["POSTGRES_PASSWORD"],
        database["POSTGRES_DB"],
    )


def test_every_variable_is_one_that_the_commands_read() -> None:
    known = {
        variable
        for words in commands(main)
        for option in found(words).params
        if isinstance(option, click.Option) and isinstance(variable := option.envvar, str)
    }
    own = {"TOLLBOOK_BACKEND_KEY"}  # read by name: --backend-key env:TOLLBOOK_BACKEND_KEY
    for service in OURS.values():
        assert set(service["environment"]) <= known | own


def found(words: tuple[str, ...]) -> click.Command:
    """The command with this path."""
    command: click.Command = main
    for word in words:
        assert isinstance(command, click.Group)
        inner = command.get_command(click.Context(command), word)
        assert inner is not None
        command = inner
    return command


def test_each_gateway_is_one_of_its_own() -> None:
    gateways = [name for name in OURS if OURS[name]["command"][1] == "serve"]
    assert len({settings(name).gateway.name for name in gateways}) == 2
    assert len({tuple(OURS[name]["volumes"]) for name in gateways}) == 2
    assert len({tuple(OURS[name]["ports"]) for name in gateways}) == 2


def test_volumes_configs_and_what_is_waited_for_are_there() -> None:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in COMPOSE["volumes"], name
        for config in service.get("configs", []):
            assert config["source"] in COMPOSE["configs"], name
        for other, how in service.get("depends_on", {}).items():
            assert other in SERVICES, name
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], name

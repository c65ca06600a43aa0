"""`tollbook backends` over a data directory, without a gateway: what it records, shows, refuses."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import backend_drain
from tests.cli.books import living_spool, run, run_json
from tests.support.processes import environment

URL = "http://127.0.0.1:9"


@pytest.fixture
def data(tmp_path: Path) -> tuple[str, str]:
    return "--data", str(tmp_path / "data")


def listed(data: tuple[str, ...], *more: str) -> dict[str, dict[str, Any]]:
    found = run_json("backends", "list", *data, *more)["backends"]
    return {one["id"]: one for one in found}


def test_a_backend_is_added_changed_and_removed(data: tuple[str, str]) -> None:
    assert "no backend yet" in run("backends", "list", *data).stdout
    made = run_json("backends", "add", "gpu", "--url", f"{URL}/v1/", "--key", "env:K", *data)
    assert (made["url"], made["key"], made["weight"]) == (URL, "env:K", 100)
    run_json("backends", "set", "gpu", "--weight", "20", "--models", "a,b", *data)
    run_json("backends", "set", "gpu", "--key", "", *data)
    one = listed(data)["gpu"]
    assert (one["weight"], one["models"], one["key"], one["from"]) == (
        20,
        ["a", "b"],
        None,
        "registry",
    )
    refused = run("backends", "remove", "gpu", *data)
    assert refused.exit_code == 1 and "tollbook backends drain gpu" in refused.stderr
    assert run("backends", "remove", "gpu", "--now", *data).exit_code == 0
    assert not listed(data)
    again = run_json("backends", "add", "gpu", "--url", URL, *data)
    assert again["weight"] == 100 and again["models"] == []


def test_an_address_is_one_however_it_is_written(data: tuple[str, str]) -> None:
    made = run_json("backends", "add", "gpu", "--url", "HTTP://GPU.example:80/v1", *data)
    assert made["url"] == "http://gpu.example:80"
    twin = run("backends", "add", "gpu2", "--url", "http://gpu.example:80/", *data)
    assert twin.exit_code == 1 and "already the address of backend gpu" in twin.stderr
    run_json("backends", "add", "own", "--url", "http://localhost", *data)
    for url in ("http://127.0.0.1:80", "http://[::1]", "http://LOCALHOST:80/v1"):
        twin = run("backends", "add", "own2", "--url", url, *data)
        assert twin.exit_code == 1 and "already the address of backend own" in twin.stderr, url
    assert run("backends", "add", "own2", "--url", "https://localhost", *data).exit_code == 0


def test_a_key_file_is_named_in_full(data: tuple[str, str]) -> None:
    made = run_json("backends", "add", "gpu", "--url", URL, "--key", "file:gpu.key", *data)
    assert made["key"] == f"file:{Path('gpu.key').absolute()}"


@pytest.mark.parametrize(
    ("args", "code", "why"),
    [
        (("add", "gpu"), 2, "no address is given for gpu"),
        (("add", "gpu", "--key", "env:K"), 2, "give it by --url"),
        (("add", "a b", "--url", URL), 1, "is no name"),
        (("add", "gpu", "--url", "gpu:80"), 1, "is not the address of a backend"),
        (("add", "gpu", "--url", URL, "--key", "sk-secret"), 1, "env:NAME or file:PATH"),
        (("add", "gpu", "--url", URL, "--weight", "101"), 2, "0<=x<=100"),
        (("set", "gpu"), 2, "nothing is changed"),
        (("set", "gpu", "--weight", "1"), 1, "there is no backend 'gpu'"),
        (("drain", "gpu"), 1, "there is no backend 'gpu'"),
        (("undrain", "gpu"), 1, "there is no backend 'gpu'"),
        (("remove", "gpu"), 1, "there is no backend 'gpu'"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    data: tuple[str, str], args: tuple[str, ...], code: int, why: str
) -> None:
    refused = run("backends", *args, *data)
    assert refused.exit_code == code and why in refused.stderr, refused.stderr
    assert "sk-secret" not in refused.output
    assert not listed(data)


def test_what_a_configuration_names_can_be_weighed_and_drained_but_not_moved(
    tmp_path: Path, data: tuple[str, str]
) -> None:
    config = tmp_path / "t.toml"
    config.write_text(f'[[backends]]\nurl = "{URL}"\nname = "conf"\n')
    where = (*data, "--config", str(config))
    refused = run("backends", "set", "conf", "--engine", "vllm", *where)
    assert refused.exit_code == 1 and "engine must be changed there" in refused.stderr
    run_json("backends", "set", "conf", "--weight", "7", *where)
    one = listed(where)["conf"]
    assert (one["weight"], one["url"], one["from"]) == (7, URL, "configured")
    assert run("backends", "drain", "conf", *where).exit_code == 0
    assert listed(where)["conf"]["state"] == "draining"
    assert run("backends", "remove", "conf", *where).exit_code == 0 and not listed(where)
    assert run_json("backends", "add", "conf", *where)["from"] == "configured"


def test_a_configured_backend_is_moved_only_together_with_its_key(
    tmp_path: Path, data: tuple[str, str]
) -> None:
    config = tmp_path / "t.toml"
    config.write_text(f'[[backends]]\nurl = "{URL}"\nname = "conf"\nkey = "env:K"\n')
    where = (*data, "--config", str(config))
    for _ in range(2):  # known by its configuration alone, then by the registry, too
        refused = run("backends", "set", "conf", "--url", f"{URL}9", *where)
        assert refused.exit_code == 1 and "give --key REF too" in refused.stderr
        run_json("backends", "set", "conf", "--weight", "50", *where)
    moved = run_json("backends", "set", "conf", "--url", f"{URL}9", "--key", "env:K", *where)
    assert (moved["url"], moved["key"], moved["weight"]) == (f"{URL}9", "env:K", 50)
    again = run_json("backends", "set", "conf", "--url", f"{URL}8", *where)
    assert (again["url"], again["key"]) == (f"{URL}8", "env:K")


def test_a_drain_is_safe_at_once_where_no_gateway_lives_and_may_be_taken_back(
    data: tuple[str, str],
) -> None:
    run_json("backends", "add", "gpu", "--url", URL, *data)
    drained = run_json("backends", "drain", "gpu", *data)
    assert drained["safe"] and drained["grace_seconds"] == 0
    assert "safe to stop" in run("backends", "drain", "gpu", *data).stdout
    assert not run_json("backends", "undrain", "gpu", *data)["draining"]
    again = run("backends", "undrain", "gpu", *data)
    assert again.exit_code == 1 and "not being drained" in again.stderr


def test_a_living_gateway_that_tells_nothing_may_still_send_requests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: tuple[str, str]
) -> None:
    monkeypatch.setattr(backend_drain, "TOLD_SECONDS", 0.0)
    run_json("backends", "add", "gpu", "--url", URL, *data)
    with living_spool(tmp_path / "data"):
        wait = ("--wait-seconds", "0")
        refused = run("backends", "drain", "gpu", *wait, *data)
        assert refused.exit_code == 1 and "has not taken note yet" in refused.stdout
        assert listed(data)["gpu"]["draining"]
    assert run("backends", "drain", "gpu", *data).exit_code == 0


def test_the_verb_needs_no_package_of_the_gateway() -> None:
    """Backends are listed and drained from machines that have no gateway on them."""
    heavy = "aiohttp", "starlette", "uvloop", "python_multipart", "sqlalchemy", "aiokafka"
    look = f"import sys, gateway.cli.backends; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", look], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"

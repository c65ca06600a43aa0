"""`tollbook backends probe` against a fake engine in a process of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.events import RequestFinished, SourceClosed
from ledger.events.requests import SYSTEM_KEY_ID
from tests.cli.books import run, run_json
from tests.gateway.doors import facts
from tests.support import processes
from tests.support.fake_backend import KEY
from tests.support.processes import Backend


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    with processes.backend(tmp_path_factory.mktemp("engine"), models="fake,other") as running:
        yield running


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "good").write_text(KEY)
    (tmp_path / "bad").write_text("sk-another-one")
    return tmp_path / "data"


def add(data: Path, name: str, url: str, key: str, *more: str) -> None:
    reference = f"file:{data.parent / key}"
    run_json("backends", "add", name, "--url", url, "--key", reference, *more, "--data", str(data))


def test_every_rung_of_one_that_lives_and_its_token_is_in_the_books(
    data: Path, engine: Backend
) -> None:
    add(data, "gpu", engine.url, "good")
    (one,) = run_json("backends", "probe", "--data", str(data))["backends"]
    assert (one["id"], one["holds"]) == ("gpu", True)
    rungs = ["name", "port", "tls", "key", "list", "model", "generation"]
    assert [step["rung"] for step in one["steps"]] == rungs
    assert one["steps"][-1]["words"].startswith("fake: a token came")
    told = [said for _, said in facts(data)]
    (finished,) = [said for said in told if isinstance(said, RequestFinished)]
    assert (finished.key_id, finished.outcome) == (SYSTEM_KEY_ID, "completed")
    assert finished.usage.other_out
    assert isinstance(told[-1], SourceClosed), "nobody waits for it"


def test_what_does_not_hold_is_said_and_is_the_exit_code(data: Path, engine: Backend) -> None:
    add(data, "away", engine.url.replace("127.0.0.1", "127.0.0.2"), "good")
    add(data, "closed", engine.url, "bad")
    add(data, "keyless", f"{engine.url}/x", "nowhere")
    said = run("backends", "probe", "--no-token", "--data", str(data))
    assert said.exit_code == 1
    fails = {
        words[0]: (words[1], line)
        for line in said.stdout.splitlines()
        if "FAILS" in (words := line.split())
    }
    assert {name: rung for name, (rung, _) in fails.items()} == {
        "away": "port",
        "closed": "key",
        "keyless": "key",
    }
    assert f"a model server listens at {engine.url}" in " ".join(said.stdout.split())
    assert "refuses the server key" in fails["closed"][1]
    assert not [one for _, one in facts(data) if isinstance(one, RequestFinished)]


def test_without_a_token_and_one_by_name(data: Path, engine: Backend) -> None:
    add(data, "gpu", engine.url, "good")
    add(data, "off", engine.url.replace("127.0.0.1", "127.0.0.2"), "good")
    args = ("backends", "probe", "gpu", "--no-token", "--data", str(data))
    (one,) = run_json(*args)["backends"]
    assert one["holds"] and one["steps"][-1]["holds"] is None
    assert "there is no backend 'gpx'" in run("backends", "probe", "gpx", *args[-2:]).stderr


def test_nothing_to_probe(data: Path) -> None:
    said = run("backends", "probe", "--data", str(data))
    assert said.exit_code == 1 and "tollbook backends add" in said.stderr

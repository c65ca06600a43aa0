"""Where a verb works: options over the file, the file over the defaults, secrets left where they
are."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gateway.cli.failure import Stop
from gateway.cli.place import Place, place_option
from gateway.settings import Settings, SettingsError

FILE = """
[kafka]
bootstrap = ["file:1"]
prefix = "east"
[ledger]
url = "postgresql+psycopg://file/books"
"""


def place(*words: str, env: dict[str, str] | None = None) -> Place:
    """The place that a verb gets for a command line."""
    got: list[Place] = []

    @click.command()
    @place_option
    def verb(place: Place) -> None:
        got.append(place)

    done = CliRunner().invoke(verb, words, env=env, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return got[0]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_anything_all_is_in_the_data_directory() -> None:
    found = place("--data", "d")
    assert found == Place(Path("d"), Settings())
    assert found.embedded and not found.shared_ledger and found.kafka is None
    assert found.ledger_target == Path("d/ledger.db")
    with pytest.raises(Stop, match="--kafka HOST:PORT"):
        found.need_kafka()


def test_the_file_that_lies_here_is_read_and_options_stand_over_it(here: Path) -> None:
    (here / "tollbook.toml").write_text(FILE)
    found = place()
    assert found.need_kafka().bootstrap == ("file:1",) and found.need_kafka().prefix == "east"
    assert found.ledger_target == "postgresql+psycopg://file/books"
    typed = place("--kafka", "a:1, b:2", "--ledger", "postgresql+psycopg://typed/books")
    assert typed.need_kafka().bootstrap == ("a:1", "b:2") and typed.need_kafka().prefix == "east"
    assert typed.ledger_target == "postgresql+psycopg://typed/books"
    with pytest.raises(SettingsError, match="holds a password"):
        place("--ledger", "postgresql+psycopg://a:hush@b/c")


def test_the_environment_names_them_too_and_its_password_stays_there(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "other.toml").write_text(FILE)
    env = {
        "TOLLBOOK_CONFIG": "other.toml",
        "TOLLBOOK_KAFKA": "env:9",
        "TOLLBOOK_LEDGER": "postgresql+psycopg://me:hush@db/books",
    }
    found = place(env=env)
    assert found.settings.kafka.bootstrap == ("env:9",) and found.settings.kafka.prefix == "east"
    assert found.settings.ledger.url == "env:TOLLBOOK_LEDGER"
    assert "hush" not in repr(found)
    monkeypatch.setenv("TOLLBOOK_LEDGER", env["TOLLBOOK_LEDGER"])
    assert found.ledger_target == env["TOLLBOOK_LEDGER"]
    assert place(env={"TOLLBOOK_LEDGER": "file:/x"}).settings.ledger.url == "file:/x"

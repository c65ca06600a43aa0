"""What the documents say is true: commands, versions, settings, links."""

import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from gateway.cli.docs import cli_page, configuration_page
from gateway.cli.main import main
from tests.house.commands import commands, parse
from tests.support.processes import REPO, environment

DEMO_COMMAND = (
    "python3 -m venv .venv && .venv/bin/pip install -q -e '.[demo]' && .venv/bin/tollbook demo"
)
TEST_COMMAND = (
    "python3 -m venv .venv && .venv/bin/pip install -q -e '.[dev]' && .venv/bin/python -m pytest"
)
PAGES = [REPO / "README.md", REPO / "CHANGELOG.md", *sorted((REPO / "docs").rglob("*.md"))]


def test_the_readme_shows_the_two_commands_word_for_word() -> None:
    lines = (REPO / "README.md").read_text().splitlines()
    assert lines.count(DEMO_COMMAND) == lines.count(TEST_COMMAND) == 1


def ci_run(folder: Path, readme: str) -> tuple[int, str]:
    """Exit code and output of .ci/run in a folder with this README."""
    (folder / ".ci").mkdir()
    shutil.copy(REPO / ".ci" / "run", folder / ".ci" / "run")
    (folder / "README.md").write_text(readme)
    done = subprocess.run(
        [folder / ".ci" / "run"],
        cwd="/",
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_ci_runs_the_readmes_test_command_word_for_word(tmp_path: Path) -> None:
    command = 'python3 -m venv --help >help && echo "CI=$CI"; cat; exit 3; : -m pytest'
    code, output = ci_run(tmp_path, f"# A\n\n```\n{DEMO_COMMAND}\n{command}\n```\n")
    assert (code, output) == (3, f"+ {command}\nCI=true\n")
    assert (tmp_path / "help").exists(), "it runs in the checkout, wherever it is called from"


@pytest.mark.parametrize("readme", ["# nothing\n", f"{TEST_COMMAND}\n{TEST_COMMAND}\n"])
def test_ci_refuses_a_readme_without_its_one_test_command(tmp_path: Path, readme: str) -> None:
    code, output = ci_run(tmp_path, readme)
    assert code == 2 and "exactly one line" in output


def test_the_version_is_the_changelogs_newest() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    newest = re.search(r"^## \[?(\d+\.\d+\.\d+)", (REPO / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None and newest[1] == project["version"]


@pytest.mark.parametrize(
    ("page", "text"), [("configuration.md", configuration_page), ("cli.md", cli_page)]
)
def test_a_generated_page_is_what_the_program_says_now(page: str, text: Any) -> None:
    written = (REPO / "docs" / page).read_text()
    assert written == text(), "run `python -m gateway.cli.docs` and commit what it writes"


def test_every_command_is_documented() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    missing = [words for words in commands(main) if f"`tollbook {' '.join(words)}`" not in text]
    assert not missing


def written_commands() -> Iterator[tuple[str, str]]:
    """Page and command line of every `tollbook …` in a code block of a page."""
    for page in PAGES:
        for block in re.findall(r"^```[a-z]*\n(.*?)^```", page.read_text(), re.M | re.S):
            for line in block.replace("\\\n", " ").splitlines():
                for part in re.split(r" && | \| | # |; ", line):
                    words = part.strip().removeprefix("$ ").removeprefix(".venv/bin/")
                    # A synopsis names options in brackets; it is no command to type.
                    if words.startswith("tollbook ") and not re.search(r"[\[…]|\.\.\.", words):
                        yield page.name, words


def test_every_command_in_the_documents_parses() -> None:
    lines = list(written_commands())
    assert lines, "the documents show how the commands are used"
    wrong = []
    for page, line in lines:
        try:
            parse(shlex.split(line, comments=True)[1:])
        except click.ClickException as refused:
            wrong.append(f"{page}: {line}: {refused.format_message()}")
    assert not wrong, "\n".join(wrong)


def test_a_command_that_does_not_exist_would_be_seen() -> None:
    for words in (["fly"], ["serve", "--wings"], ["keys", "forge"], ["serve", "--port", "x"]):
        with pytest.raises(click.UsageError):
            parse(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    local = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert not [link for link in local if not (page.parent / link).exists()]


def test_decisions_are_numbered_without_a_gap() -> None:
    names = sorted(path.name for path in (REPO / "docs" / "decisions").glob("*.md"))
    numbers = [int(name.partition("-")[0]) for name in names]
    assert names and numbers == list(range(1, len(numbers) + 1))
    assert all(re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", name) for name in names)

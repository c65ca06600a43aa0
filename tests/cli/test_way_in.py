"""Ctrl-C at any moment of a command's life ends it with 130 and without a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import environment

HUNG_SECONDS = 60
INTERRUPTED = 130

AT_IMPORT = """
import importlib.abc, os, signal, sys
import gateway.cli.__main__ as way_in

module = sys.argv[1]

class Interrupter(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Interrupter())
"""
"""Presses Ctrl-C just before the module named by the first argument is loaded."""

AT_EXIT = """
import atexit, os, signal, sys
import gateway.cli.__main__ as way_in

atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
"""

WAY_IN = """
sys.argv[:2] = ["tollbook"]
way_in.main()
"""

IGNORED = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"


def ended(tmp_path: Path, code: str, *args: str) -> "subprocess.CompletedProcess[str]":
    """What a process that runs `code` leaves."""
    return subprocess.run(
        (sys.executable, "-c", code, *args),
        env=environment(TOLLBOOK_DATA=str(tmp_path / "data")),
        capture_output=True,
        text=True,
        timeout=HUNG_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("module", ["gateway.cli.main", "click", "gateway.cli.failure"])
def test_while_the_program_is_loaded(tmp_path: Path, module: str) -> None:
    done = ended(tmp_path, AT_IMPORT + WAY_IN, module, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "")


@pytest.mark.parametrize("module", ["gateway.cli.keys", "streams.log.registry"])
def test_while_a_command_is_at_work(tmp_path: Path, module: str) -> None:
    done = ended(tmp_path, AT_IMPORT + WAY_IN, module, "keys", "create", "--name", "a")
    assert (done.returncode, done.stdout) == (INTERRUPTED, "")
    assert done.stderr.strip() == "tollbook: interrupted"


def test_while_the_interpreter_ends(tmp_path: Path) -> None:
    done = ended(tmp_path, AT_EXIT + WAY_IN, "", "--version")
    assert (done.returncode, done.stderr) == (INTERRUPTED, "")
    assert done.stdout.startswith("tollbook")


@pytest.mark.parametrize("module", ["click", "gateway.cli.keys"])
def test_who_was_started_to_ignore_it_goes_on(tmp_path: Path, module: str) -> None:
    line = ("keys", "create", "--name", "a", "--json")
    done = ended(tmp_path, IGNORED + AT_IMPORT + WAY_IN, module, *line)
    assert (done.returncode, '"id"' in done.stdout) == (0, True), done.stderr
    assert "interrupted" not in done.stderr

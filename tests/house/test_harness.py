"""The harness is itself held to its word: faults are planted in a suite of its own, and seen."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import REPO, environment

PLANTED = """
import asyncio, os, subprocess, sys, warnings

from hypothesis import given, strategies as st


async def test_good():
    await asyncio.sleep(0)


async def test_leaked_task():
    asyncio.get_running_loop().create_task(asyncio.sleep(60))


def test_leaked_task_in_sync_test():
    async def main():
        asyncio.get_running_loop().create_task(asyncio.sleep(60))

    asyncio.run(main())


async def test_unseen_exception():
    def fault():
        raise RuntimeError("only the loop saw this")

    asyncio.get_running_loop().call_soon(fault)
    await asyncio.sleep(0.01)


def test_warning():
    warnings.warn("old", DeprecationWarning, stacklevel=1)


def test_environment():
    assert not [name for name in os.environ if name.startswith("TOLLBOOK_")]


def test_stray_process():
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    parent = f"import subprocess; subprocess.Popen({sleeper!r})"
    subprocess.Popen([sys.executable, "-c", parent]).wait()


@given(st.integers())
def test_seeded(number):
    with open("drawn", "a") as drawn:
        drawn.write(f"{number} ")
"""


def run_planted(directory: Path, *options: str) -> str:
    """The output of pytest, with this project's conftest and settings, over the planted suite."""
    (directory / "test_planted.py").write_text(PLANTED)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "test_planted.py"),
            *("-p", "tests.conftest", "-p", "no:cacheprovider"),
            *("-c", str(REPO / "pyproject.toml"), "--rootdir", str(directory)),
            *options,
        ],
        cwd=directory,
        env=environment() | {"TOLLBOOK_DATA": "/nowhere"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_planted(tmp_path_factory.mktemp("planted"))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("FAILED test_planted.py::test_leaked_task", "task <Task pending name="),
        ("FAILED test_planted.py::test_leaked_task_in_sync_test", "left behind in the event loop"),
        ("FAILED test_planted.py::test_unseen_exception", "exception that nobody saw"),
        ("FAILED test_planted.py::test_warning", "DeprecationWarning: old"),
        ("ERROR test_planted.py::test_stray_process", "processes that were left"),
    ],
)
def test_a_planted_fault_is_seen(report: str, name: str, why: str) -> None:
    assert f"{name} - " in report and why in report, report


def test_what_is_in_order_passes_and_nothing_else_fails(report: str) -> None:
    # The five faults; the stray one passes its call and errs afterwards.
    assert "4 failed, 4 passed, 1 error" in report, report


@pytest.mark.parametrize("processes", ["0", "1"], ids=["here", "in another process"])
def test_the_printed_seed_repeats_the_run(tmp_path: Path, processes: str) -> None:
    drawn = tmp_path / "drawn"
    first = run_planted(tmp_path, "-k", "seeded", "-n", processes)
    told = first.partition("--hypothesis-seed=")[2].partition(")")[0]
    numbers = drawn.read_text()
    drawn.unlink()
    run_planted(tmp_path, "-k", "seeded", f"--hypothesis-seed={told}")
    assert told.isdigit() and drawn.read_text() == numbers

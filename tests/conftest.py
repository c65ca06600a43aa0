"""What holds for every test: no leaked task, no stray process, no setting from outside, one seed.

- `async def` tests run in a loop of their own; a task that is still there at its end fails the
  test, also in a sync test that calls `asyncio.run`, and so does an exception that only the loop
  saw.
- A process that a test started, or that was started below one of these, must be gone at its end.
- TOLLBOOK_* variables of the machine are removed before anything is imported or collected.
- One seed for Hypothesis and for every test that rolls dice: printed at the top, repeated with
  `--hypothesis-seed=N`.
"""

import asyncio
import contextlib
import ctypes
import functools
import inspect
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import hypothesis
import pytest

from tests.support.processes import descendants

SEED_BITS = 32
STRAY_SECONDS_MAX = 5.0
"""How long a process that has been told to go may take after the test that started it."""
PR_SET_CHILD_SUBREAPER = 36

hypothesis.settings.register_profile(
    "tollbook",
    deadline=None,  # the machines are shared: a slow example is no failure
    database=None,  # the seed repeats a failure, on any machine
    print_blob=True,
)
hypothesis.settings.load_profile("tollbook")

pytest_plugins = ["tests.servers", "tests.spread"]

leaked: list[str] = []
"""What the test at work has left behind in an event loop; emptied before each test."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    for name in [name for name in os.environ if name.startswith("TOLLBOOK_")]:
        del os.environ[name]
    if config.option.hypothesis_seed is None:
        # That of the process which started this one (tests/spread.py), or a new one.
        given: dict[str, Any] = getattr(config, "workerinput", {})
        rolled = random.SystemRandom().getrandbits(SEED_BITS)
        config.option.hypothesis_seed = given.get("seed", rolled)
    # A gateway that is killed leaves its runner to the next reaper above it. Let that be us, so
    # that a process which outlives its parent is seen as well.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _watch_loops()


def pytest_report_header(config: pytest.Config) -> str:
    return _seed_line(config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(_seed_line(terminalreporter.config))


def _seed_line(config: pytest.Config) -> str:
    seed = config.option.hypothesis_seed
    return f"seed: {seed} (repeat with --hypothesis-seed={seed})"


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> int:
    """The seed of this run, for tests that roll dice of their own: `random.Random(seed)`."""
    return int(pytestconfig.option.hypothesis_seed)


def _watch_loops() -> None:
    """Note every task that `asyncio.run` would otherwise cancel without a word."""
    # Private, but no public hook sees them: a Python that renames it fails here at once.
    cancel_all = asyncio.runners._cancel_all_tasks  # type: ignore[attr-defined]

    def cancel_and_note(loop: asyncio.AbstractEventLoop) -> None:
        leaked.extend(f"task {task!r}" for task in asyncio.all_tasks(loop))
        cancel_all(loop)

    asyncio.runners._cancel_all_tasks = cancel_and_note  # type: ignore[attr-defined]


def _in_a_loop(test: Callable[..., Any]) -> Callable[..., None]:
    """`test`, a coroutine function, as a plain one that runs it to its end."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(_note_exception)
            await test(*args, **kwargs)

        asyncio.run(main())

    return run


def _note_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    leaked.append(f"exception that nobody saw: {context}")
    loop.default_exception_handler(context)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj = _in_a_loop(pyfuncitem.obj)
    leaked.clear()
    result = yield
    # Only a test that passed gets here: one that broke off may well have left tasks behind.
    if leaked:
        pytest.fail("left behind in the event loop:\n" + "\n".join(leaked), pytrace=False)
    return result


@pytest.fixture(autouse=True)
def no_stray_processes() -> Iterator[None]:
    """Fail a test that leaves a process; those of wider fixtures are there before it starts."""
    before = set(_living_children())
    yield
    strays = _strays(before)
    if strays:
        pytest.fail(f"processes that were left and are killed now: {strays}", pytrace=False)


@pytest.fixture(autouse=True, scope="session")
def no_stray_processes_at_the_end() -> Iterator[None]:
    """The same for what fixtures of modules and of the session start."""
    before = set(_living_children())
    yield
    strays = _strays(before)
    if strays:
        pytest.fail(f"processes that fixtures left, killed now: {strays}", pytrace=False)


def _strays(before: set[int]) -> dict[int, str]:
    """Processes below this one that are not in `before` and do not go by themselves; killed."""
    end = time.monotonic() + STRAY_SECONDS_MAX
    while strays := {pid: line for pid, line in _living_children().items() if pid not in before}:
        if time.monotonic() > end:
            for pid in strays:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.02)
    return strays


def _living_children() -> dict[int, str]:
    """Living processes below this one, orphans of a killed child among them."""
    found = descendants(os.getpid())
    # The tracker of multiprocessing lives as long as this process and ends with it. Postgres starts
    # and ends processes of its own at any time; the one above them does count.
    return {
        pid: line
        for pid, line in found.items()
        if "resource_tracker" not in line and not line.startswith("postgres: ")
    }

"""How the whole suite is spread over processes; a part of it, named on the command line, is not.

Most of the suite waits: for brokers, timeouts, processes that start. A file's tests stay together,
in their order, because they share fixtures and some go on from each other. Chance is not touched:
every process has the seed that the first one printed.
"""

import os
from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

PROCESSES_MAX: Final = 4
LONG: Final = ("tests/e2e/", "tests/cluster/", "tests/kill/", "tests/streams/", "tests/house/")
"""They go first, so that at the end no process waits for a long test of another one."""

APART: Final = ("tests/cluster/", "tests/kill/", "tests/streams/test_worker.py")
"""Tests of many seconds that share nothing but their package's backends: each may run anywhere."""


class ByFile(LoadFileScheduling):  # type: ignore[misc]
    """One file after the other to whoever is free, and one test after the other of those apart."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(APART) else nodeid.partition("::")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are cores, none (all in this process) if tests were named."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return 0
    return min(PROCESSES_MAX, len(os.sched_getaffinity(0)) + 1)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.hookimpl
def pytest_configure_node(node: Any) -> None:
    # Options that were not on the command line do not reach the other processes by themselves.
    node.workerinput["seed"] = node.config.option.hypothesis_seed


@pytest.hookimpl
def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    # All processes must give a test the same name, and packed bytes hold the time of their making.
    packed = isinstance(val, bytes) and not (val.isascii() and val.decode().isprintable())
    return argname if packed else None

"""The tools that guard the code agree with it, and each import contract sees its own fault."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.house.rules import PRODUCT
from tests.support.processes import REPO, environment

LINT_IMPORTS = "from importlinter.cli import lint_imports_command as run; run()"


def tool(*command: str, cwd: Path = REPO) -> tuple[int, str]:
    """Exit code and output of one of the development tools, run on `cwd`."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environment(PYTHONPATH=str(cwd), COLUMNS="200"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("-m", "ruff", "check", "."),
        ("-m", "ruff", "format", "--check", "."),
        ("-m", "mypy"),
        ("-c", LINT_IMPORTS, "--no-cache"),
    ],
    ids=["ruff-check", "ruff-format", "mypy-strict", "import-contracts"],
)
def test_the_tools_find_nothing(command: tuple[str, ...]) -> None:
    code, output = tool(*command)
    assert code == 0, output


PLANTED: dict[str, dict[str, str]] = {
    "roots": {"ledger/folds/usage.py": "import streams.codec"},
    "inside-ledger": {"ledger/events/usage.py": "import ledger.folds.usage"},
    "inside-streams": {"streams/unplaced.py": "x = 1"},
    "inside-gateway": {"gateway/errors.py": "import gateway.settings"},
    "pure": {"ledger/folds/book.py": "import time"},
    "request-path": {
        "streams/log/sync.py": "import gateway.helper",
        "gateway/helper.py": "import ledger.sql.tables",
    },
    "home-of-the-http-client": {"gateway/relay.py": "import aiohttp"},
    "home-of-the-http-server": {"gateway/service.py": "import starlette.types"},
    "home-of-sql": {"ledger/export/rows.py": "import sqlalchemy"},
    "home-of-kafka": {"gateway/relay.py": "import aiokafka"},
    "home-of-faust": {"streams/kafka/records.py": "import faust"},
    "home-of-duckdb": {"gateway/cli/query.py": "def f():\n    import duckdb"},
    "home-of-pdf": {"gateway/cli/bill.py": "import fpdf"},
    "home-of-metrics": {"gateway/stats.py": "import prometheus_client"},
    "home-of-the-command-line": {"streams/log/registry.py": "import click"},
    "home-of-the-demo": {"gateway/relay.py": "import openai"},
    "home-of-chance": {"gateway/backends/pool.py": "import random"},
    "no-cycles": {"ledger/folds/requests.py": "import ledger.folds.usage"},
}
"""Contract to the lines that break it, added to the modules of a copy."""


def contracts() -> list[dict[str, Any]]:
    settings = tomllib.loads((REPO / "pyproject.toml").read_text())
    found: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    return found


def test_a_fault_is_planted_under_every_contract() -> None:
    assert set(PLANTED) == {contract["id"] for contract in contracts()}


@pytest.mark.parametrize("contract", contracts(), ids=lambda contract: contract["id"])
def test_a_contract_sees_the_fault_planted_under_it(
    contract: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copy(REPO / "pyproject.toml", tmp_path)
    for top in PRODUCT:
        shutil.copytree(REPO / top, tmp_path / top, ignore=shutil.ignore_patterns("__pycache__"))
    for path, line in PLANTED[contract["id"]].items():
        with (tmp_path / path).open("a") as module:
            module.write(f"\n{line}\n")
    options = ("--no-cache", "--contract", contract["id"])
    code, output = tool("-c", LINT_IMPORTS, *options, cwd=tmp_path)
    assert code == 1 and f"{contract['name']} BROKEN" in output, output

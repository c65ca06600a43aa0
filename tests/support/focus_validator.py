"""The FinOps Foundation's own validator of FOCUS 1.2, in a Python and an environment of its own.

It needs Python 3.12 or newer and libraries that are not ours, so it never comes near our
environment. It is installed once into a cache, and runs without a network. Where there is no such
Python, or it cannot be installed, a test says so by name.
"""

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import msgspec
import pytest

from gateway.settings import cache_folder

PINNED: Final = ("focus-validator==2.2.1", "pyarrow==21.0.0")
"""Alone the validator gets a pyarrow that needs another numpy than it has, and does not start."""

CRITERIA: Final = (
    "ACCOUNT_NAMING_SUPPORTED",
    "BILLING_BASED_ON_PROVISIONED_RESOURCES_SUPPORTED",
    "MULTIPLE_BILLING_ACCOUNT_TYPES_SUPPORTED",
    "MULTIPLE_PRICING_CATEGORIES_SUPPORTED",
    "MULTIPLE_SUB_ACCOUNT_TYPES_SUPPORTED",
    "NEGOTIATED_PRICING_SUPPORTED",
    "PRICING_BILLING_CURRENCY_DIFFERENCES_SUPPORTED",
    "PUBLIC_PRICE_LIST_SUPPORTED",
    "RESOURCE_TYPE_ASSIGNMENT_SUPPORTED",
    "SUB_ACCOUNT_SUPPORTED",
    "TAGGING_SUPPORTED",
    "UNIT_PRICING_SUPPORTED",
    "USAGE_MEASUREMENT_SUPPORTED",
)
"""All of its 18 but those on commitments, reservations, regions, zones and virtual currencies: a
gateway before one's own servers has none of these, and the columns are null."""

UNAVOIDABLE: Final = "InvoiceId-C-005-C"
"""The model lost the conditions of two rules: InvoiceId MUST be null (-C-004) and MUST NOT be null
(-C-005), both for every row. A file without invoices keeps the first and breaks the second."""

NEWEST: Final = 14


class Validated(msgspec.Struct, frozen=True):
    """What the validator said: how many rules it ran, and the names of those failed and skipped."""

    ran: int
    failed: tuple[str, ...]
    skipped: int


def validate(path: Path, work: Path, criteria: tuple[str, ...] = CRITERIA) -> Validated:
    """Hold the file at `path` against FOCUS 1.2. `work` is an empty directory."""
    home = _installed()
    # It looks for its list of currencies below the working directory, and writes its log there.
    (package,) = home.glob("lib/python3.*/site-packages/focus_validator")
    (work / "focus_validator").symlink_to(package)
    report = work / "report.xml"
    command = [
        *_without_network(),
        str(home / "bin/python"), str(home / "bin/focus-validator"),
        "--data-file", str(path), "--validate-version", "1.2",
        "--focus-dataset", "CostAndUsage", "--block-download",
        "--applicability-criteria", ",".join(criteria),
        "--output-type", "unittest", "--output-destination", str(report),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    # It ends with 0 whether or not rules fail, so its report has to be read.
    assert report.exists(), f"no report: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    suites = ElementTree.parse(report).getroot()
    failed = sorted(one.get("name") or "" for one in suites.iter("failure"))
    assert len(failed) == int(suites.get("failures") or -1)
    return Validated(int(suites.get("tests") or 0), tuple(failed), int(suites.get("skipped") or 0))


@cache
def _without_network() -> tuple[str, ...]:
    """What a command is begun with to have no network. Where that cannot be, its own option and
    what is installed already have to do."""
    command = ("unshare", "--map-root-user", "--net")
    if shutil.which("unshare") is None:
        return ()
    tried = subprocess.run([*command, "true"], capture_output=True, check=False)
    return command if tried.returncode == 0 else ()


@cache
def _installed() -> Path:
    """The environment of the validator, made if it is not there. Skips by name if it cannot be."""
    python = next(_interpreters(), None)
    if python is None:
        pytest.skip(
            "NOT TESTED without Python 3.12 or newer: the public FOCUS validator, focus-validator "
            "2.2.1, which held this file elsewhere; our own check of the same rules still ran"
        )
    home = cache_folder() / "-".join(part.replace("==", "-") for part in PINNED)
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "ready").exists():
            shutil.rmtree(home, ignore_errors=True)
            _install(python, home)
            (home / "ready").touch()
    return home


def _install(python: Path, home: Path) -> None:
    for command in (
        [str(python), "-m", "venv", str(home)],
        [str(home / "bin/pip"), "install", "--quiet", *PINNED],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            words = f"NOT TESTED without focus-validator 2.2.1: {done.stderr.strip()[-500:]}"
            if os.environ.get("CI") == "true":
                pytest.fail(words)
            pytest.skip(words)


def _interpreters() -> Iterator[Path]:
    """Every Python from 3.12 on that starts, oldest first: newer ones lack wheels of what is
    pinned. A shim of pyenv has the name and may start nothing."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for minor in range(12, NEWEST + 1):
        named = shutil.which(f"python3.{minor}")
        found = [] if named is None else [Path(named)]
        found += sorted(versions.glob(f"3.{minor}.*/bin/python"))
        yield from (one for one in found if _is(one, minor))


def _is(python: Path, minor: int) -> bool:
    try:
        done = subprocess.run(
            [str(python), "--version"], capture_output=True, text=True, check=False
        )
    except OSError:
        return False
    return re.match(rf"Python 3\.{minor}\.", done.stdout) is not None

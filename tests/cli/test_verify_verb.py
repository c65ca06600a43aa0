"""`tollbook verify` as an auditor uses it: after a real close, on every format, offline."""

import re
import shutil
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from sqlalchemy import func, select, update

from ledger.events import RequestFinished
from ledger.export.formats import WRITERS
from ledger.export.manifest import MANIFEST
from ledger.sql import session, tables
from ledger.sql.names import erase_name, names_of
from ledger.sql.session import open_ledger
from streams.local.layout import Layout
from tests.cli.books import dead_spool, run, run_json
from tests.support.events import accepted, finished, mark, tokens
from tests.support.processes import REPO, backend, call, gateway, tollbook, tollbook_json

OCTOBER = datetime(2026, 10, 5, 12, tzinfo=UTC)
FLIPS = 6
"""Positions of each file that are changed, one at a time."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A data directory whose October is closed and exported in every format, and its root."""
    data = tmp_path_factory.mktemp("data")
    issued = run_json("keys", "create", "--name", "Ada Lovelace", "--data", str(data))
    key_id = str(issued["id"])
    price = ("m", "--uncached-in", "1", "--other-out", "2", "--currency", "EUR")
    began = ("--from", "2026-10-01T00:00:00Z", "--rerate", "first price")
    run_json("prices", "set", *price, *began, "--data", str(data))
    drafts = [mark("/gateway/test/x", 1, OCTOBER, {})]
    for n in range(30):
        at = OCTOBER.replace(minute=n)
        drafts += [
            accepted(f"req_{n:032x}", at, key_id),
            finished(f"req_{n:032x}", at, key_id, usage=tokens(n, n)),
        ]
    dead_spool(data, *drafts)
    closed = run_json("close", "2026-10", "--data", str(data))
    for kind in WRITERS:
        run_json("export", "--month", "2026-10", "--format", kind, "--data", str(data))
    return data, str(closed["period"]["root"])


def verified(place: Path, *more: str) -> Any:
    """What `tollbook verify` says, whatever it finds."""
    result = run("verify", str(place), *more, "--json")
    said = msgspec.json.decode(result.stdout)
    assert result.exit_code == (0 if said["clean"] else 1)
    return said


def told(said: Any, what: str = "findings") -> str:
    return "\n".join(line for one in said["exports"] for line in one[what])


def test_every_format_of_a_closed_month_is_proven_offline(
    made: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, root = made

    def refuse(*given: object, **named: object) -> None:
        raise AssertionError("a proof asks no network")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(session, "open_ledger", refuse)
    said = verified(data / "exports", "--root", root)
    assert told(said) == ""
    assert {one["kind"] for one in said["exports"]} == set(WRITERS)
    assert {one["root"] for one in said["exports"]} == {root}
    archive = next(one for one in said["exports"] if one["kind"] == "archive")
    assert archive["events"] > 60, "30 requests of two events, a mark, the registry"
    assert "event by event and with none left out: " in told({"exports": [archive]}, "proven")
    others = [one for one in said["exports"] if one["kind"] != "archive"]
    assert all("--format archive" in told({"exports": [one]}, "unproven") for one in others)


@pytest.mark.parametrize("kind", sorted(WRITERS))
def test_one_changed_byte_in_any_file_of_any_format_is_found(
    made: tuple[Path, str], tmp_path: Path, kind: str
) -> None:
    data, root = made
    directory = tmp_path / kind
    shutil.copytree(data / "exports" / kind / "billing_period=2026-10", directory)
    chance = Random(kind)
    names = sorted(path.name for path in directory.iterdir())
    assert MANIFEST in names
    assert len(names) > 1
    for name in names:
        path = directory / name
        whole = path.read_bytes()
        for position in sorted(chance.sample(range(len(whole)), FLIPS)):
            changed = bytearray(whole)
            changed[position] ^= chance.randrange(1, 256)
            path.write_bytes(changed)
            assert told(verified(directory)), f"byte {position} of {name}"
        path.write_bytes(whole)
    assert told(verified(directory, "--root", root)) == ""


def test_it_says_in_words_what_was_proven_and_what_was_not(made: tuple[Path, str]) -> None:
    data, root = made
    directory = data / "exports" / "focus-1.2" / "billing_period=2026-10"
    result = run("verify", str(directory))
    assert result.exit_code == 0
    assert f"root        {root}" in result.stdout
    assert "proven      the manifest is as it was sealed" in result.stdout
    assert "not proven  that nobody wrote all of this anew" in result.stdout
    assert result.stdout.rstrip().endswith("unchanged: 1 export")
    other = "ab" * 32
    result = run("verify", str(directory), "--root", other)
    assert result.exit_code == 1
    assert f"WRONG       the root that was noted elsewhere is {other}, not {root}" in result.stdout
    assert result.stdout.rstrip().endswith("WRONG: 1 of 1 export")


def test_what_cannot_be_verified_is_said_in_words(tmp_path: Path) -> None:
    result = run("verify", str(tmp_path))
    assert result.exit_code == 1
    assert "there is no manifest.json" in result.stderr
    result = run("verify", str(tmp_path / "elsewhere"))
    assert result.exit_code == 1
    assert "elsewhere is no directory" in result.stderr
    result = run("verify", str(tmp_path), "--root", "abc")
    assert result.exit_code == 2
    assert "it has 64 hex digits" in result.stderr


def test_an_archive_is_told_where_it_may_go_on_from(made: tuple[Path, str]) -> None:
    data, _ = made
    other = "ab" * 32
    result = run("verify", str(data / "exports"), "--from", other)
    assert result.exit_code == 1
    assert f"no archive here goes on from {other}, which was given with --from" in result.stdout
    result = run("verify", str(data / "exports" / "csv"), "--from", other)
    assert result.exit_code == 1 and "there is no archive here" in result.stderr


def test_erasing_a_name_changes_no_export_and_breaks_no_proof(
    made: tuple[Path, str], tmp_path: Path
) -> None:
    data, root = made
    exports = data / "exports"
    files = {path: path.read_bytes() for path in exports.rglob("*") if path.is_file()}
    assert not any(b"Lovelace" in content for content in files.values())
    erase(data)
    assert "Lovelace" not in run("keys", "list", "--data", str(data)).stdout
    assert told(verified(exports, "--root", root)) == ""
    for kind in WRITERS:
        done = run_json("export", "--month", "2026-10", "--format", kind, "--data", str(data))
        assert done["change"] == "same", kind
    audited = run_json("audit", "--data", str(data))
    assert audited["findings"] == []
    assert audited["looked_at"]["chains"] > 60
    assert {path: path.read_bytes() for path in files} == files


def erase(data: Path) -> None:
    """Take the one name out of the ledger, as the law may ask for."""
    with open_ledger(Layout(data).ledger) as ledger, ledger.write() as tx:
        (key_id,) = names_of(tx, "key")
        assert erase_name(tx, "key", key_id)


def test_the_page_proves_an_archive_without_our_code(
    made: tuple[Path, str], tmp_path: Path
) -> None:
    data, root = made
    page = (REPO / "docs" / "proof.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert "ledger" not in script
    (tmp_path / "prove.py").write_text(script)
    archive = data / "exports" / "archive" / "billing_period=2026-10"
    done = subprocess.run(
        [sys.executable, "-I", tmp_path / "prove.py", archive],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == (f"{root}\n", 0), done.stderr


@pytest.mark.e2e
def test_a_killed_gateway_left_claims_that_tell_a_change_in_the_ledger(tmp_path: Path) -> None:
    data = tmp_path / "data"
    key = tollbook_json(data, "keys", "create", "--name", "alice")["key"]
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
    with backend(tmp_path) as server, gateway(data, [server.url]) as door:
        for _ in range(5):
            assert call(f"{door.url}/v1/chat/completions", body, key=key).status == 200
        door.kill()
    report = tollbook_json(data, "audit")
    assert report["findings"] == []
    assert report["looked_at"]["chains"] > 15
    with open_ledger(Layout(data).ledger) as ledger, ledger.write() as tx:
        events = tables.events
        ended = func.min(events.c.id)
        event_id = tx.value(select(ended).where(events.c.type == RequestFinished.TYPE))
        later = update(events).where(events.c.id == event_id)
        tx.execute(later.values(time_us=events.c.time_us + 1))
    report = tollbook(data, "audit", check=False)
    assert report.returncode == 1
    told = r"chains: /runner/\S+ closed it with \w{64} as the head of requests"
    assert re.search(told, report.stdout), report.stdout

"""`tollbook invoice` as finance uses it: files that open, names found, an open month said."""

import json
from pathlib import Path

from tests.cli.books import dead_spool
from tests.support import events
from tests.support.processes import tollbook, tollbook_json


def lab(tmp_path: Path) -> Path:
    """A data directory with a project, whose key used a priced model."""
    data = tmp_path / "data"
    tollbook(data, "accounts", "create-organization", "Physics")
    tollbook(data, "accounts", "create-project", "Vision", "--organization", "Physics")
    key = tollbook_json(data, "keys", "create", "--name", "alice", "--project", "Vision")
    first = ("--from", "2026-01-01", "--rerate", "the first price")
    tollbook(data, "prices", "set", "m", "--in", "150", "--out", "600", *first)
    # The key came into the project today, so its use must be of today.
    moment = events.after(0)
    dead_spool(data, *events.life("r1", moment, key_id=key["id"]))
    return data


def test_a_month_gives_a_page_and_a_document_for_each_project(tmp_path: Path) -> None:
    data = lab(tmp_path)
    out = tmp_path / "out"
    said = tollbook_json(data, "invoice", "2026-11", "--out", str(out))
    assert said["open"] is True
    (one,) = said["statements"]
    assert one["statement"]["exact"] == "0.0042" and one["statement"]["total"] == "0.00"
    page, document = (Path(name) for name in one["files"])
    assert "Draft statement 2026-11" in page.read_text(encoding="utf-8")
    assert document.read_bytes().startswith(b"%PDF")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    shown = tollbook(data, "invoice", "2026-11", "--out", str(out)).stdout
    assert "2026-11 is open: these are drafts" in shown
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_project_that_is_not_there_is_met_with_the_nearest(tmp_path: Path) -> None:
    data = lab(tmp_path)
    refused = tollbook(data, "invoice", "2026-11", "--project", "Visoin", check=False)
    assert refused.returncode == 1 and "did you mean 'Vision'?" in refused.stderr
    assert tollbook(data, "invoice", "2026-11", "--project", "project/Vision").returncode == 0
    empty = tollbook(data, "invoice", "2026-10")
    assert "nothing of 2026-10 has a line on a statement yet" in empty.stdout + empty.stderr


def test_letters_that_pdf_lacks_are_told_of(tmp_path: Path) -> None:
    data = lab(tmp_path)
    assert "fonts lack" not in tollbook(data, "invoice", "2026-11").stdout
    tollbook(data, "books", "set", "--issuer", "Łódź")
    assert "fonts lack" in tollbook(data, "invoice", "2026-11").stdout
    page = tollbook_json(data, "invoice", "2026-11", "--format", "html")
    assert "Łódź" in Path(page["statements"][0]["files"][0]).read_text(encoding="utf-8")
    assert "fonts lack" not in tollbook(data, "invoice", "2026-11", "--format", "html").stdout


def test_an_empty_month_is_an_empty_list(tmp_path: Path) -> None:
    data = lab(tmp_path)
    said = json.loads(tollbook(data, "invoice", "2026-10", "--json").stdout)
    assert said == {
        "month": "2026-10",
        "open": True,
        "period": "open",
        "settled_with": None,
        "unpriced": 0,
        "statements": [],
        "removed": [],
    }

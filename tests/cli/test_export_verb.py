"""`tollbook export` as finance uses it: formats, words about open months, and what is left out."""

import json
from pathlib import Path

import pytest

from gateway.cli.export import FORMATS
from ledger.events import Usage
from ledger.export.formats import WRITERS
from tests.cli.books import dead_spool, run, run_json
from tests.support import events

MONTH = "2026-11"
NOTHING = Usage(
    uncached_in=None, cached_in=None, cache_write_in=None, reasoning_out=None, other_out=None
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Six requests: four priced, one of a model without a price, one of unknown use."""
    data = tmp_path / "data"
    rerate = ("--rerate", "the first price")
    price = ("--uncached-in", "1", "--cached-in", "0.1", "--other-out", "2")
    made = run(
        "prices", "set", "m", "--currency", "EUR", *price, "--from", "2026-11-01", *rerate,
        "--data", str(data),
    )  # fmt: skip
    assert made.exit_code == 0, made.stderr
    drafts = [draft for n in range(4) for draft in events.life(f"r{n}")]
    drafts += events.life("free", model="another")
    drafts += events.life("none", usage=NOTHING, basis="none")
    dead_spool(data, *drafts)
    return data


def test_the_formats_that_are_offered_are_those_that_there_are() -> None:
    assert tuple(WRITERS) == FORMATS


def test_every_format_has_its_own_place_and_says_that_the_month_is_open(
    data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = ("--month", MONTH, "--out", str(out), "--data", str(data))
    for kind in FORMATS[:-1]:
        shown = run("export", "--format", kind, *options)
        assert shown.exit_code == 0, shown.stderr
        assert "2026-11 is open" in shown.stdout and "tollbook close 2026-11" in shown.stdout
        told = run_json("export", "--format", kind, *options)
        assert (told["change"], told["period"]) == ("same", "open")
        assert told["directory"] == str(out / kind / f"billing_period={MONTH}")
        assert told["manifest"]["cost"] == {"EUR": "0.00008"}
    assert sorted(path.name for path in out.iterdir()) == [".lock", *sorted(FORMATS[:-1])]
    manifest = out / "focus-1.3" / f"billing_period={MONTH}" / "manifest.json"
    assert json.loads(manifest.read_bytes())["period"] == "open"


def test_what_focus_cannot_hold_is_counted_on_the_output(data: Path) -> None:
    shown = run("export", "--month", MONTH, "--format", "focus-1.2", "--data", str(data)).stdout
    assert "FOCUS has no row for tokens that have no price: 16" in shown
    assert "FOCUS has no row for requests whose use nobody knows: 1" in shown


def test_an_archive_of_an_open_month_is_refused_with_what_to_do(data: Path) -> None:
    refused = run("export", "--month", MONTH, "--format", "archive", "--data", str(data))
    assert refused.exit_code == 1 and "tollbook close 2026-11" in refused.stderr
    assert not (data / "exports" / "archive").exists()


def test_without_a_month_it_is_the_current_one_in_the_zone_of_the_books(data: Path) -> None:
    told = run_json("export", "--format", "csv", "--data", str(data))
    assert told["manifest"]["zone"] == "UTC"
    assert told["directory"].endswith(f"billing_period={told['manifest']['month']}")

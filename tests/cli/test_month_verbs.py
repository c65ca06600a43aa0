"""Closing months on the command line: what refuses, what is frozen, and what a correction says."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ledger.clock import SystemClock
from ledger.events import Usage
from ledger.identity import mint_id
from ledger.sql.session import open_ledger
from ledger.sql.writer import Batch, LedgerWriter
from streams.kafka.access import KafkaAccess
from streams.local.layout import Layout
from streams.local.runner import run_once
from streams.log.registry import RegistryLog
from tests.cli.books import dead_spool, living_spool, run, run_json
from tests.support import events as say
from tests.support.events import SOURCE, Scribe
from tests.support.kafka import settings_file
from tests.support.processes import tollbook, tollbook_json

OCTOBER = datetime(2026, 10, 7, 9, 30, tzinfo=UTC)
END = datetime(2026, 11, 1, tzinfo=UTC)
Where = tuple[str, ...]


@pytest.fixture
def where(tmp_path: Path) -> Where:
    return ("--data", str(tmp_path))


def priced(data: Path) -> None:
    draft = say.price("p1", {"uncached_in": "1", "cached_in": "1", "other_out": "1"}, start=OCTOBER)
    RegistryLog(Layout(data).registry, f"/cli/t/{mint_id()}", clock=SystemClock()).append(
        lambda book: draft
    )


def used(data: Path) -> None:
    """A gateway that served two requests in October, and stopped in order."""
    priced(data)
    dead_spool(
        data,
        say.mark(SOURCE, 1, OCTOBER, {}),
        say.accepted("r1", OCTOBER),
        say.finished("r1", OCTOBER),
        say.accepted("r2", OCTOBER),
        say.finished("r2", OCTOBER, usage=say.tokens(100, 10)),
    )


def refused(*args: str) -> str:
    done = run(*args)
    assert (done.exit_code, done.stdout) == (1, ""), done.output
    assert "tollbook: " in done.stderr
    return done.stderr


def test_a_month_is_closed_and_shown(tmp_path: Path, where: Where) -> None:
    used(tmp_path)
    said = run("close", "2026-10", "--dry-run", *where)
    assert said.exit_code == 0 and "2026-10 would be closed so:" in said.stdout
    assert "no month is closed" in run("periods", "list", *where).stdout
    assert "2016-10 is before the first month" in refused("close", "2016-10", *where)
    frozen = run_json("close", "2026-10", *where)["period"]
    assert frozen["totals"] == {"USD": "0.000126"} and frozen["requests"] == 2
    shown = run("periods", "show", "2026-10", *where).stdout
    assert frozen["root"] in shown and "0.000126 USD" in shown and "(zone UTC)" in shown
    (row,) = run_json("periods", "list", *where)["periods"]
    assert (row["month"], row["root"], row["lines"]) == ("2026-10", frozen["root"], frozen["lines"])
    csv = run("periods", "list", "--csv", *where).stdout
    assert csv.splitlines()[1].startswith("2026-10,2,0,0,0.000126 USD,")
    assert "2026-10 is closed already" in refused("close", "2026-10", *where)
    assert "before 2026-10, the first" in refused("periods", "show", "2026-09", *where)
    assert "`tollbook close 2026-11` closes it" in refused("periods", "show", "2026-11", *where)
    assert "`tollbook close 2026-11` closes the next" in refused(
        "periods", "show", "2026-12", *where
    )
    assert run("audit", *where).exit_code == 0
    assert run("rebuild", *where).exit_code == 0


def test_a_month_before_the_first_that_was_closed_is_settled_in_all_words(
    tmp_path: Path, where: Where
) -> None:
    used(tmp_path)
    with_open = run_json("bill", "--month", "2026-09", *where)
    assert (with_open["open"], with_open["period"]) == (True, "open")
    run_json("close", "2026-10", *where)
    said = "2026-09 is before 2026-10, the first month that was closed, and was settled with it"
    for args in (("close", "2026-09"), ("periods", "show", "2026-09")):
        assert said in refused(*args, *where)
    out = ("--out", str(tmp_path / "out"))
    for said_by in (("bill", "--month", "2026-09"), ("invoice", "2026-09", *out)):
        told = run_json(*said_by, *where)
        assert (told["open"], told["period"], told["settled_with"]) == (False, "settled", "2026-10")
        shown = run(*said_by, *where).stdout
        assert said in shown and "is open" not in shown and "yet" not in shown
    assert run_json("export", "--month", "2026-09", *where)["period"] == "settled"
    shown = run("export", "--month", "2026-09", *where).stdout
    assert "2026-09 was settled with the first month that was closed" in shown
    refusal = refused("export", "--month", "2026-09", "--format", "archive", *where)
    assert "tollbook export --month 2026-10 --format archive" in refusal
    simulated = run_json("prices", "simulate", "--month", "2026-09", *where)
    assert simulated["open"] is False
    verified = run("verify", str(tmp_path / "exports"))
    assert verified.exit_code == 0
    assert "2026-09 is settled, and only a closed month has a root" in verified.stdout
    assert run("audit", *where).exit_code == 0


def test_what_has_no_price_is_one_number_everywhere(tmp_path: Path, where: Where) -> None:
    """Some of the tokens of two requests have no price, and the third used none of those."""
    used(tmp_path)
    dead_spool(
        tmp_path,
        say.mark(SOURCE, 1, OCTOBER, {}),
        *(
            draft
            for n, out in enumerate((4, 5, 0))
            for draft in (
                say.accepted(f"q{n}", OCTOBER),
                say.finished(f"q{n}", OCTOBER, usage=Usage(uncached_in=9, reasoning_out=out)),
            )
        ),
    )
    out = ("--out", str(tmp_path / "out"))
    for closed in (False, True):
        if closed:
            frozen = run_json("close", "2026-10", *where)["period"]
            (row,) = run_json("periods", "list", *where)["periods"]
            shown = run("periods", "show", "2026-10", *where).stdout
            assert (frozen["unpriced"], row["unpriced"]) == (2, 2)
            assert "without price  2" in shown
        for by in ("key,model", "day"):
            assert run_json("bill", "--month", "2026-10", "--by", by, *where)["unpriced"] == 2
        assert "with tokens of 2 requests" in run("bill", "--month", "2026-10", *where).stdout
        assert run_json("invoice", "2026-10", *out, *where)["unpriced"] == 2
        shown = run("invoice", "2026-10", *out, *where).stdout
        assert "without a price and in no sum: 9 tokens of 2 requests" in shown
        for kind in ("parquet", "csv", "focus-1.4"):
            done = run_json("export", "--month", "2026-10", "--format", kind, *where)
            assert done["manifest"]["unpriced"] == 2, kind
        shown = run("export", "--month", "2026-10", *where).stdout
        assert "without a price: tokens of 2 requests" in shown
        assert run("audit", *where).exit_code == 0


def test_tokens_without_a_price_that_land_in_a_month_are_told_of(
    tmp_path: Path, where: Where
) -> None:
    """None of its own requests has them: they are on a line that corrects an earlier month."""
    used(tmp_path)
    run_json("close", "2026-10", *where)
    run_json("correct", "r1", "--set", "reasoning_out=7", "--reason", "it said so", *where)
    assert run_json("invoice", "2026-11", *where)["unpriced"] == 0
    shown = run("invoice", "2026-11", *where).stdout
    assert "without a price and in no sum: 7 tokens\n" in shown


def test_drafts_that_no_longer_hold_are_removed_and_nothing_else(
    tmp_path: Path, where: Where
) -> None:
    """A model gets its price after the draft was written, so the statement is in a currency."""
    dead_spool(tmp_path, *say.life("r1", OCTOBER), *say.life("r2", END + timedelta(hours=9)))
    place = tmp_path / "invoices"
    run_json("invoice", "2026-11", *where)
    first = run_json("invoice", "2026-10", *where)
    assert first["removed"] == []
    bare = [place / f"2026-10-no-project-unpriced.{kind}" for kind in ("html", "pdf")]
    assert all(path.is_file() for path in bare)
    others = {
        place / "2026-10-no-project-unpriced-copy.html": bare[0].read_bytes(),
        place / "2026-10-somebody-else-unpriced.html": bare[0].read_bytes(),
        place / "2026-10-no-project-EUR.html": b"<title>Draft statement 2026-10</title>",
        place / "2026-10-no-project-EUR.pdf": b"%PDF mine",
        place / "2026-10-no-project-CHF.html": bare[0].read_bytes().replace(b"Draft s", b"S"),
    }
    for path, content in others.items():
        path.write_bytes(content)
    others |= {path: path.read_bytes() for path in place.glob("2026-11-*")}
    priced(tmp_path)
    second = run_json("invoice", "2026-10", "--format", "pdf", *where)
    assert second["removed"] == [str(path) for path in bare]
    assert run_json("invoice", "2026-10", *where)["removed"] == []
    drafts = [place / f"2026-10-no-project-USD.{kind}" for kind in ("html", "pdf")]
    run_json("close", "2026-10", *where)
    # The final one is wanted as HTML alone, and the draft as PDF would contradict it.
    shown = run("invoice", "2026-10", "--format", "html", *where).stdout
    assert f"removed 1 draft of 2026-10 that no longer held: {drafts[1].name}" in shown
    assert b"<title>Statement 2026-10</title>" in drafts[0].read_bytes()
    run_json("invoice", "2026-10", *where)
    kept = {path: path.read_bytes() for path in place.iterdir() if path not in drafts}
    assert kept == others


def test_a_gateway_that_is_away_with_its_spool_refuses_and_lands_later(
    tmp_path: Path,
) -> None:
    """Its machine is offline when October is closed, by real commands, and comes back after."""
    data, away = tmp_path / "data", tmp_path / "away"
    data.mkdir()
    used(data)
    with living_spool(data, say.mark("s", 1, OCTOBER, {})) as spool:
        run_once(data)
        source, home = spool.source, spool.directory
        spool.append(say.accepted("r3", OCTOBER, key_id="key-2"))
        spool.append(say.finished("r3", OCTOBER, key_id="key-2", usage=say.tokens(1000, 0)))
    shutil.move(home, away)
    done = tollbook(data, "close", "2026-10", check=False)
    assert done.returncode == 1
    assert f"{source}: it has no mark at or after 2026-11-01" in done.stderr
    assert "--without SOURCE --reason TEXT" in done.stderr
    half = tollbook(data, "close", "2026-10", "--without", source, check=False)
    assert half.returncode == 2 and "need each other" in half.stderr
    name = source.rpartition("/")[2]
    frozen = tollbook_json(
        data, "close", "2026-10", "--without", name, "--reason", "the rack has no power"
    )["period"]
    assert frozen["without"] == [{"source": source, "reason": "the rack has no power"}]
    before = tollbook_json(data, "bill", "--month", "2026-10")
    shutil.move(away, home)
    assert tollbook_json(data, "bill", "--month", "2026-10") == before
    (late,) = tollbook_json(data, "bill", "--month", "2026-11")["rows"]
    assert (late["key"], late["cost"], late["corrects"]) == ("key-2", "0.001", f"{source}:2")
    assert tollbook(data, "audit").returncode == 0
    said = tollbook_json(data, "explain", "r3")
    assert said["line"] is None, "its own month does not hold it"
    (landed,) = said["late"]
    assert (landed["month"], landed["original"]) == ("2026-11", f"{source}:2")
    line = tollbook_json(data, "explain", "--line", landed["line"])
    (one,) = line["corrections"]
    assert line["equal"] and (line["total"], line["total_corrections"]) == (0, 1)
    assert (one["kind"], one["before"], one["after"]["uncached_in"]) == ("late", None, 1000)
    assert one["made_by"]["id"] == "r3/finished" and "@" in one["made_by"]["place"]
    text = tollbook(data, "explain", "r3").stdout
    assert "its end came behind the cut of its own month" in text
    assert "no line of its own month, whose cut has no end of it" in text


def test_a_request_is_corrected_with_a_reason(tmp_path: Path, where: Where) -> None:
    used(tmp_path)
    assert "--reason" in run("correct", "r2", "--void", *where).stderr
    reason = ("--reason", "the engine counted twice")
    neither = run("correct", "r2", *reason, *where)
    assert neither.exit_code == 2 and "--set BUCKET=N, or --void" in neither.stderr
    typo = run("correct", "r2", "--set", "uncached=1", *reason, *where)
    assert typo.exit_code == 2 and "did you mean uncached_in?" in typo.stderr
    for wrong in ("uncached_in=1.5", "uncached_in=-1", "uncached_in=", "uncached_in"):
        said = run("correct", "r2", "--set", wrong, *reason, *where)
        assert said.exit_code == 2 and "is no count" in said.stderr
    assert "knows no request r9" in refused("correct", "r9", "--void", *reason, *where)
    twice = run(
        "correct", "r2", "--set", "uncached_in=1", "--set", "uncached_in=2", *reason, *where
    )
    assert twice.exit_code == 2 and "set twice" in twice.stderr
    same = ("correct", "r2", "--set", "uncached_in=100", *reason, *where)
    assert "counts as that already" in refused(*same)
    open_one = run("correct", "r2", "--set", "uncached_in=50", *reason, *where)
    assert open_one.exit_code == 0, open_one.output
    assert "100 -> 50" in open_one.stdout and "2026-10" in open_one.stdout
    assert "it was said that it used uncached_in 50," in run("explain", "r2", *where).stdout
    frozen = run_json("close", "2026-10", *where)["period"]
    assert frozen["totals"] == {"USD": "0.000076"}
    done: Any = run_json("correct", "r2", "--void", *reason, *where)
    assert done["month"] == "2026-11" and done["before"]["uncached_in"] == 50
    assert done["correction"]["original"].endswith(":4")
    assert "it was said that it counts as nothing (" in run("explain", "r2", *where).stdout
    assert "counts as nothing already" in refused("correct", "r2", "--void", *reason, *where)
    (line,) = run_json("bill", "--month", "2026-11", *where)["rows"]
    assert (line["requests"], line["cost"]) == (-1, "-0.00006")
    assert run("audit", *where).exit_code == 0
    corrections_are_explained(where, line["corrects"])


def corrections_are_explained(where: Where, corrects: str) -> None:
    """Of the request that was corrected twice, in its own month and behind its closing."""
    first, second = run_json("explain", "r2", *where)["corrections"]
    assert (first["month"], second["month"]) == ("2026-10", "2026-11")
    for made, before, after in ((first, 100, 50), (second, 50, None)):
        said = run_json("explain", "--line", made["line"], *where)
        (one,) = said["corrections"]
        assert said["equal"] and said["total"] == 0 and said["requests"] == []
        assert (one["kind"], one["request_id"], one["corrects"]) == ("corrected", "r2", corrects)
        assert one["original"]["id"] == "r2/finished" and one["original"]["place"]
        assert one["made_by"]["place"].startswith("registry@")
        assert one["reason"] == "the engine counted twice"
        assert one["before"]["uncached_in"] == before
        assert (one["after"] or {}).get("uncached_in") == after
        (part,) = one["parts"]
        assert part["counts"]["uncached_in"] == (after or 0) - before
        assert part["price"] == "p1" and part["price_version"] == 1
    shown = run("explain", "--line", f"month=2026-11,corrects={corrects}", *where).stdout
    for words in (
        "No request counts in this line as it happened",
        "1 entry of what was told late or corrected",
        "a person said what it really used",
        "after it was on no bill",
        "On this line: -1 requests",
        "price: version 1 of m",
        "the engine counted twice",
    ):
        assert words in shown, (words, shown)
    assert "requests 1 to 0" not in shown and shown.endswith("equal\n")
    refused = run("explain", "--line", "month=2026-11,kind=wrong", *where)
    assert refused.exit_code == 2 and "one of usage, late, corrected" in refused.stderr


def test_an_open_request_cannot_be_corrected(tmp_path: Path, where: Where) -> None:
    with living_spool(tmp_path, say.accepted("r1", OCTOBER)):
        run_once(tmp_path)
        words = refused("correct", "r1", "--void", "--reason", "why not", *where)
    assert "has no end yet" in words


def test_a_month_is_closed_where_the_registry_is_on_kafka(
    tmp_path: Path, kafka: KafkaAccess, postgres_url: str
) -> None:
    config = settings_file(tmp_path, kafka, postgres_url)
    place = ("--config", str(config), "--data", str(tmp_path / "data"))
    scribe = Scribe()
    told = scribe.write_all(
        say.mark(SOURCE, 1, OCTOBER, {}),
        say.finished("r1", OCTOBER),
        say.mark(SOURCE, 2, END + timedelta(minutes=1), {"requests": 1, "sources": 1}),
    )
    with open_ledger(postgres_url) as ledger:
        writer = LedgerWriter(ledger, SystemClock())
        writer.write(Batch("before", 0, 1, told[:1]))
        assert "no mark at or after" in refused("close", "2026-10", *place)
        writer.write(Batch("before", 1, 3, told[1:]))
    done = run("close", "2026-10", *place)
    assert done.exit_code == 0, done.output
    (row,) = run_json("periods", "list", *place)["periods"]
    assert (row["month"], row["requests"], row["unpriced"]) == ("2026-10", 1, 1)
    again = refused("close", "2026-10", *place)
    assert "registry has other periods" in again

"""`tollbook prices` on real data directories: files with everything that can be wrong in them, and
what a month would have cost."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ledger.clock import SystemClock
from ledger.events import Usage
from ledger.identity import mint_id
from streams.local.layout import Layout
from streams.log.registry import RegistryLog
from tests.cli.books import dead_spool, run, run_json
from tests.support import events as say

NOW = ("--rerate", "a test of what was")
SINCE = ("--from", "2026-11-01", *NOW)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def at(data: Path) -> tuple[str, str]:
    return "--data", str(data)


def written(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def listed(data: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run_json("prices", "list", *at(data))["prices"]
    return found


CSV = """\
# Prices from December on.
model,scope,from,currency,unit,zone,discount,band,days,hours,in,out,cached_in,request
llama-*,,2027-12-01,EUR,1000,Europe/Berlin,,,,,0.00015,0.0006,0.000075,0.001
llama-*,,2027-12-01,,,,,night,mon-fri,22:00-06:00,,0.0003,,
qwen,,2027-12-01T08:00:00Z,,,,,,,,0.15,0.6,,
qwen,key/alice,2027-12-01,,,,12.5,,,,,,,
"""
TOML = """\
[[price]]
model = "llama-*"
from = "2027-12-01"
currency = "EUR"
unit = "1000"
zone = "Europe/Berlin"
in = "0.00015"
cached_in = "0.000075"
out = "0.0006"
request = "0.001"

[[price.band]]
name = "night"
days = "mon-fri"
hours = "22:00-06:00"
out = "0.0003"

[[price]]
model = "qwen"
from = "2027-12-01T08:00:00Z"
in = "0.15"
out = "0.6"

[[price]]
model = "qwen"
scope = "key/alice"
from = "2027-12-01"
discount = "12.5"
"""


@pytest.mark.parametrize(("name", "text"), [("p.csv", CSV), ("p.toml", TOML)])
def test_a_file_is_published_whole(data: Path, tmp_path: Path, name: str, text: str) -> None:
    key = run_json("keys", "create", "--name", "alice", *at(data))["id"]
    file = written(tmp_path, name, text)
    dry = run_json("prices", "import", file, "--dry-run", *at(data))
    assert (dry["imported"], dry["count"], listed(data)) == (False, 3, [])
    assert run_json("prices", "import", file, *at(data))["count"] == 3
    llama, qwen, off = sorted(listed(data), key=lambda one: (one["model"], one["scope"] or ""))
    assert (llama["model"], llama["currency"], llama["unit"]) == ("llama-*", "EUR", 1000)
    assert llama["per_million"]["uncached_in"] == "0.15"
    assert (llama["per_million"]["cached_in"], llama["charges"]) == ("0.075", {"request": "0.001"})
    bands = [(b["name"], b["days"], b["hours"], b["per_million"]) for b in llama["bands"]]
    night = {"reasoning_out": "0.3", "other_out": "0.3"}
    assert bands == [
        ("night", "mon-fri", "22:00-24:00", night),
        ("night", "tue-sat", "00:00-06:00", night),
    ]
    assert qwen["from"] == "2027-12-01T08:00:00Z"
    assert (off["scope"], off["discount"]) == (f"key/{key}", "12.5")
    # What is listed is a file again: for the same instants it is refused as a whole.
    again = written(tmp_path, "again.csv", run("prices", "list", "--csv", *at(data)).stdout)
    refused = run("prices", "import", again, *at(data))
    assert refused.exit_code == 1 and "has a price from" in refused.stderr
    assert f"{again} has 3 problems; nothing was published" in refused.stderr
    assert run_json("prices", "diff", again, *at(data))["differences"] == []
    other = tmp_path / "other"
    made = run_json("keys", "create", "--name", "bob", "--data", str(other))["id"]
    text = Path(again).read_text().replace(key, made)
    Path(again).write_text(text)
    run_json("prices", "import", again, "--data", str(other))
    plain = ("id", "scope", "state")
    assert [{k: v for k, v in one.items() if k not in plain} for one in listed(other)] == [
        {k: v for k, v in one.items() if k not in plain} for one in listed(data)
    ]


BAD_CSV = """\
model,scope,from,zone,band,days,hours,uncachd_in,uncached_in,other_out
qwen,,2027-12-01,,,,,,0.15,0.6
qwen,,2027-12-01,,,,,,0.2,0.6
m1,,2027-12-01,,,,,,-1,0.6
m2,,2027-12-01,,,,,,1e-3,.5
m3,,2027-12-01,,,,,,0.0000001,
m4,,2027-12-01,Europe/Berln,,,,,1,1
m5,,2020-01-01,,,,,,1,1
m6,key/alicia,2027-12-01,,,,,,1,1
m7,,yesterday,,,,,,1,1
m8,,2027-12-01,Europe/Berlin,,,,,1,1
m8,,2027-12-01,,a,mon-fry,22:00-24:00,,1,
m8,,2027-12-01,,b,daily,10:00-26:00,,1,
m9,,2027-12-01,Europe/Berlin,,,,,1,1
m9,,2027-12-01,,a,daily,10:00-12:00,,2,
m9,,2027-12-01,,b,mon,11:00-13:00,,3,
m10,,2027-12-01,,a,daily,10:00-12:00,,2,
,,2027-12-01,,,,,,2,
m11,,2027-12-01,,,,,,NaN,
m12,,2027-12-01,,
"""


def test_every_problem_is_told_with_its_line_and_nothing_applied(
    data: Path, tmp_path: Path
) -> None:
    run_json("keys", "create", "--name", "alice", *at(data))
    file = written(tmp_path, "bad.csv", BAD_CSV)
    refused = run("prices", "import", file, *at(data))
    assert refused.exit_code == 1 and listed(data) == []
    said = [line.removeprefix(f"{file}:") for line in refused.stderr.splitlines()]
    wanted = [
        ("1:", "no column 'uncachd_in'; did you mean uncached_in?"),
        ("3:", "qwen stands for this instant in line 2 already"),
        ("4:", "uncached_in: a price is a plain decimal from 0 up, such as 0.15, not '-1'"),
        ("5:", "uncached_in: a price is a plain decimal from 0 up, such as 0.15, not '1e-3'"),
        ("5:", "other_out: a price is a plain decimal from 0 up, such as 0.15, not '.5'"),
        ("6:", "0.0000001 has more than 6 decimals"),
        ("7:", "no time zone 'Europe/Berln'; write a name such as Europe/Berlin"),
        ("7:", "did you mean Europe/Berlin?"),
        ("8:", "earlier than 60 s from now"),
        ("9:", "did you mean 'alice'?"),
        ("10:", "'yesterday' is not an instant"),
        ("12:", "'fry' is no weekday; did you mean fri?"),
        ("13:", "are no hours of a day"),
        ("14:", "bands a and b of m9 overlap on Monday"),
        ("17:", "no entry has the model, scope and from of this band"),
        ("18:", "there is no model"),
        ("19:", "not 'NaN'"),
        ("20:", "5 values stand under 10 columns"),
    ]
    for place, words in wanted:
        assert any(line.startswith(place) and words in line for line in said), (place, words, said)
    assert said[-1].endswith("problems; nothing was published")
    as_json = run("prices", "import", file, "--json", *at(data))
    problems = json.loads(as_json.stdout)["problems"]
    assert len(problems) == len(said) - 1 and problems[0]["line"] == 1


BROKEN_TWICE = """\
model,scope,from,band,zone,uncached_in
m,,2027-12-01,,,1
m,,2027-12-01,,,-1
n,project/none,yesterday,,Europe/Berln,1e3
,,2027-12-01,night,,0.5
"""


def test_all_that_is_wrong_in_one_row_is_told(data: Path, tmp_path: Path) -> None:
    file = written(tmp_path, "bad.csv", BROKEN_TWICE)
    refused = run("prices", "import", file, "--json", *at(data))
    assert refused.exit_code == 1 and listed(data) == []
    lines = [one["line"] for one in json.loads(refused.stdout)["problems"]]
    assert lines == [3, 3, 4, 4, 4, 4, 5]


BAD_TOML = """\
[[price]]
model = "m"
from = "2027-12-01"
uncached_in = 0.15
othr_out = "1"

[[price.band]]
name = "night"
hours = "22:00-24:00"
uncached_in = "1e3"

[[price]]
model = "n"
from = 2027-12-01
unit = "100"
out = "1"

[prices]
model = "x"
"""


def test_a_number_of_toml_is_refused_with_its_line(data: Path, tmp_path: Path) -> None:
    run_json("keys", "create", "--name", "alice", *at(data))
    file = written(tmp_path, "bad.toml", BAD_TOML)
    refused = run("prices", "import", file, *at(data))
    assert refused.exit_code == 1 and listed(data) == []
    for words in (
        f'{file}:4: uncached_in is not text: write it in quotes, as uncached_in = "0.15"',
        f"{file}:5: there is no 'othr_out' here; did you mean other_out?",
        f"{file}:10: uncached_in: a price is a plain decimal",
        f"{file}:14: from is not text",
        f"{file}:15: '100' is no unit",
        f"{file}:18: there is no 'prices' in a price file",
    ):
        assert words in refused.stderr, (words, refused.stderr)
    broken = written(tmp_path, "broken.toml", '[[price]]\nmodel = "m\n')
    assert f"{broken}:2: this is no TOML" in run("prices", "import", broken, *at(data)).stderr


@pytest.mark.parametrize("verb", ["import", "diff"])
def test_a_file_that_cannot_be_read_is_named(data: Path, tmp_path: Path, verb: str) -> None:
    run_json("keys", "create", "--name", "alice", *at(data))
    refused = run("prices", verb, str(tmp_path / "none.csv"), *at(data))
    assert refused.exit_code == 1 and "none.csv cannot be read: No such file" in refused.stderr
    (tmp_path / "latin.csv").write_bytes(b"model,in\n\xfc,1\n")
    refused = run("prices", verb, str(tmp_path / "latin.csv"), *at(data))
    assert refused.exit_code == 1 and "is no text in UTF-8" in refused.stderr
    empty = run("prices", verb, written(tmp_path, "empty.csv", ""), *at(data))
    assert empty.exit_code == 1 and "no price in this file" in empty.stderr


def test_an_early_price_needs_a_reason(data: Path) -> None:
    early = ("prices", "set", "m", "--in", "1", "--from", "2026-11-01")
    refused = run(*early, *at(data))
    assert refused.exit_code == 1 and "say --rerate with a reason" in refused.stderr
    assert run("prices", "set", "m", "--in", "1", *at(data)).exit_code == 0
    (soon,) = listed(data)
    assert soon["state"] == "later"
    assert run(*early, *NOW, *at(data)).exit_code == 0
    assert [one["state"] for one in listed(data)] == ["now", "later"]


def of_old(data: Path, model: str, begins: str) -> None:
    """A single price, as an older version published them, by its exact name."""
    start = datetime.fromisoformat(begins)
    draft = say.price(f"old-{model}", {"other_out": "7"}, model=model, start=start)
    directory = Layout(data).registry
    RegistryLog(directory, f"/cli/old/{mint_id()}", clock=SystemClock()).append(lambda _: draft)


def test_a_single_price_of_old_keeps_its_instant(data: Path, tmp_path: Path) -> None:
    of_old(data, "m", "2027-12-01T00:00:00Z")
    same = ("prices", "set", "m", "--out", "1", "--from", "2027-12-01")
    refused = run(*same, *at(data))
    assert refused.exit_code == 1 and "m has a price from 2027-12-01T00:00:00Z" in refused.stderr
    assert "another instant by --from, or say --rerate with a reason" in refused.stderr
    file = written(tmp_path, "p.csv", "model,from,out\nn,2027-12-01,1\nm,2027-12-01,2\n")
    for dry in ((), ("--dry-run",)):
        refused = run("prices", "import", file, *dry, *at(data))
        assert refused.exit_code == 1 and f"{file}:3: m has a price from" in refused.stderr
    assert [one["per_million"]["other_out"] for one in listed(data)] == ["7"]
    done = run(*same, "--rerate", "a typing error", *at(data))
    assert done.exit_code == 0, done.output
    assert [(one["version"], one["rerate"]) for one in listed(data)] == [
        (1, None),
        (2, "a typing error"),
    ]


class Stopped:
    """A clock at one instant that is still to come, so that no command sees another second."""

    NOW = datetime(2027, 6, 1, 12, 0, 0, 250_000, tzinfo=UTC)

    def now(self) -> datetime:
        return self.NOW


def test_prices_of_one_second_begin_one_after_the_other(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cli.prices.SystemClock", Stopped)
    run_json("prices", "set", "m", "--in", "1", *at(data))
    second = run_json("prices", "set", "m", "--out", "2", *at(data))
    assert second["per_million"]["uncached_in"] == "1", "it goes on from the first"
    run_json("prices", "set", "n", "--in", "1", *at(data))
    file = written(tmp_path, "p.csv", "model,in\nm,3\nk,3\n")
    run_json("prices", "import", file, *at(data))
    begins = [(one["model"], one["from"].removeprefix("2027-06-01T12:")) for one in listed(data)]
    assert begins == [
        ("k", "01:03Z"),
        ("m", "01:01Z"),
        ("m", "01:02Z"),
        ("m", "01:03Z"),
        ("n", "01:01Z"),
    ]
    said = run("prices", "set", "m", "--in", "1", "--from", "2027-06-01T12:01:01Z", *at(data))
    assert said.exit_code == 1 and "m has a price from" in said.stderr


def test_the_list_says_why_prices_were_made_anew(data: Path, tmp_path: Path) -> None:
    run("prices", "set", "m", "--in", "1", *SINCE, *at(data))
    run("prices", "set", "m", "--in", "2", "--from", "2027-12-01", *at(data))
    run("prices", "set", "m", "--in", "3", "--from", "2027-12-01", "--rerate", "a typo", *at(data))
    assert [one["rerate"] for one in listed(data)] == ["a test of what was", None, "a typo"]
    shown = run("prices", "list", *at(data)).stdout
    assert "m from 2026-11-01T00:00:00Z, made anew (--rerate): a test of what was" in shown
    assert "m from 2027-12-01T00:00:00Z, made anew (--rerate): a typo" in shown
    assert shown.count("made anew") == 2
    csv = written(tmp_path, "again.csv", run("prices", "list", "--csv", *at(data)).stdout)
    assert "a typo" in Path(csv).read_text()
    other = run("prices", "import", csv, "--dry-run", "--rerate", "x", "--data", str(data))
    assert "no column" not in other.stderr
    notes = run_json("audit", *at(data))["notes"]
    assert len([note for note in notes if "made anew from 2027-12-01" in note]) == 1


def test_an_audit_tells_of_prices_that_were_made_anew(data: Path) -> None:
    run("prices", "set", "m", "--in", "1", *at(data))
    dead_spool(data, *say.life("r1"))
    notes = run_json("audit", *at(data))["notes"]
    assert not [note for note in notes if "made anew" in note]
    run("prices", "set", "llama-*", "--in", "1", "--from", "2026-11-01", *NOW, *at(data))
    said = run_json("audit", *at(data))
    (note,) = [note for note in said["notes"] if "made anew" in note]
    assert "prices of llama-* were made anew from 2026-11-01T00:00:00Z on" in note
    assert "(a test of what was), event /cli/" in note
    assert said["findings"] == []


def test_what_set_takes_beyond_prices(data: Path) -> None:
    key = run_json("keys", "create", "--name", "alice", *at(data))["id"]
    off = run_json("prices", "set", "*", "--key", "alice", "--discount", "10", *at(data))
    assert (off["scope"], off["discount"]) == (f"key/{key}", "10")
    band = "night:mon-fri:22:00-06:00:in=0.05,out=0.1"
    options = ("--in", "0.1", "--out", "0.2", "--request", "0.001", "--gpu-second", "0.0001")
    bands = ("--band", band, "--zone", "Europe/Berlin", "--unit", "1000")
    made = run_json("prices", "set", "m", *options, *bands, *NOW, *at(data))
    assert made["per_million"]["other_out"] == "200" and len(made["bands"]) == 2
    assert made["charges"] == {"request": "0.001", "gpu_second": "0.0001"}
    kept = run_json("prices", "set", "m", "--failed-attempt", "0.5", *NOW, *at(data))
    assert len(kept["bands"]) == 2 and kept["charges"]["request"] == "0.001"
    bare = run_json("prices", "set", "m", "--no-bands", *NOW, *at(data))
    assert (bare["bands"], bare["zone"]) == ([], None)
    shown = run("prices", "list", *at(data)).stdout
    assert "night:mon-fri:22:00-24:00" in shown and "discount %" in shown


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ("m --discount 10 --in 1", 2, "stands without prices and bands"),
        ("m --in 1 --key a --project b", 2, "exclude each other"),
        ("m --discount 101", 2, "percent from 0 to 100"),
        ("m --in 1 --zone Europe/Berln", 2, "did you mean Europe/Berlin"),
        ("m --in 1 --band night:daily:22:00-24:00:in=1", 1, "names no zone"),
        ("a*b --in 1", 2, "ends with its one *"),
        ("m --in 1 --key nobody", 1, "no key with the id or name 'nobody'"),
        ("m --in 1 --unit 100", 2, "no unit"),
    ],
)
def test_what_set_refuses(data: Path, args: str, code: int, words: str) -> None:
    run_json("keys", "create", "--name", "alice", *at(data))
    refused = run("prices", "set", *args.split(), *at(data))
    assert refused.exit_code == code and words in refused.stderr, refused.stderr
    assert listed(data) == []


def test_what_a_file_would_change_and_what_a_month_would_have_cost(
    data: Path, tmp_path: Path
) -> None:
    key = run_json("keys", "create", "--name", "alice", *at(data))["id"]
    run_json("prices", "set", "m", "--in", "1", "--out", "2", *SINCE, *at(data))
    usage = Usage(uncached_in=1_000_000, other_out=1_000_000)
    dead_spool(
        data,
        *(say.finished(f"r{n}", key_id=key, usage=usage) for n in range(2)),
        say.finished("r9", key_id=key, model="other", usage=usage),
    )
    file = written(
        tmp_path, "next.csv", "model,from,in,out\nm,2027-01-01,1,3\nother,2027-01-01,5,\n"
    )
    found = run_json("prices", "diff", file, *at(data))["differences"]
    changed = [
        (one["line"], one["model"], one["what"], one["before"], one["after"]) for one in found
    ]
    assert changed[:2] == [(2, "m", "reasoning_out", "2", "3"), (2, "m", "other_out", "2", "3")]
    assert (3, "other", "currency", None, "USD") in changed
    before = run("bill", "--month", "2026-11", "--json", *at(data)).stdout
    said = run_json("prices", "simulate", file, "--month", "2026-11", *at(data))
    assert (said["before"], said["after"]) == ({"USD": "6"}, {"USD": "13"})
    assert said["difference"] == {"USD": "7"} and said["open"] is True
    other = next(row for row in said["rows"] if row["model"] == "other")
    assert (other["before"], other["after"]) == ({}, {"USD": "5"})
    assert (other["unpriced_before"], other["unpriced_after"]) == (2_000_000, 1_000_000)
    table = run("prices", "simulate", file, "--month", "2026-11", *at(data)).stdout
    assert "Would differ by: 7 USD" in table and "2026-11 is open" in table
    assert "1,000,000 tokens would have no price and are in no sum" in table
    # Nothing was published, and the bill is what it was.
    assert len(listed(data)) == 1
    assert run("bill", "--month", "2026-11", "--json", *at(data)).stdout == before
    # Without a file: at what stands now, for the whole month.
    run_json("prices", "set", "m", "--in", "4", "--out", "4", *NOW, *at(data))
    now = run_json("prices", "simulate", "--month", "2026-11", *at(data))
    assert (now["before"], now["after"]) == ({"USD": "6"}, {"USD": "16"})


def test_the_bill_says_that_its_month_is_open(data: Path) -> None:
    run_json("prices", "set", "m", "--in", "1", "--out", "2", *SINCE, *at(data))
    dead_spool(data, say.finished("r1"))
    said = run_json("bill", "--month", "2026-11", *at(data))
    assert (said["open"], said["zone"], said["root"]) == (True, "UTC", None)
    shown = run("bill", "--month", "2026-11", *at(data))
    assert "2026-11 is open: these numbers may still change" in shown.stdout
    csv = run("bill", "--month", "2026-11", "--csv", *at(data))
    assert "2026-11 is open" in csv.stderr and "open" not in csv.stdout


def test_a_failed_attempt_costs_nothing_unless_the_price_book_says_so(data: Path) -> None:
    drafts = [
        say.attempted("r1", 1),
        say.attempted("r1", 2, backend_id="b-2", after="connect refused"),
        say.finished("r1", attempts=2, duration_us=1_000_007, overhead_us=7),
    ]
    dead_spool(data, *drafts)
    run_json("prices", "set", "m", "--in", "0", "--out", "0", *SINCE, *at(data))
    costs = [one["cost"] for one in run_json("explain", "r1", *at(data))["attempts"]]
    assert costs == ["0", "0"]
    more = ("--failed-attempt", "0.25", "--gpu-second", "2", "--request", "0.5")
    run_json("prices", "set", "m", *more, *SINCE, *at(data))
    said = run_json("explain", "r1", *at(data))
    assert [one["cost"] for one in said["attempts"]] == ["0.25", "2.5"]
    assert said["cost"] == "2.75"
    assert said["charges"] == {"request": "1", "gpu_second": "1", "failed_attempt": "1"}
    shown = " ".join(run("explain", "r1", *at(data)).stdout.split())
    assert "failed_attempt 1 0.25 each 0.25" in shown and "gpu_second 1 2 a second 2" in shown
    row = run_json("bill", "--month", "2026-11", *at(data))["rows"][0]
    assert (row["cost"], row["price_version"]) == ("2.75", 2)
    line = said["line"]
    assert run_json("explain", "--line", line, *at(data))["equal"] is True

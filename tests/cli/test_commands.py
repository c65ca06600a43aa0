"""Every command on a real data directory, with a gateway that lives, died, or never was."""

import hashlib
import json
import os
import stat
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import gateway.wiring
from gateway.cli.main import VERBS
from gateway.settings import Settings
from ledger.events import BUCKETS, Usage
from streams.local.layout import Layout
from streams.log.lock import FileLock
from streams.log.registry import RegistryTail
from tests.cli.books import dead_spool, living_spool, run, run_json
from tests.support import events

MONTH = "2026-11"
NOW = ("--rerate", "a test of what was")
"""Prices of these tests hold at once, and for what was before."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def at(data: Path) -> tuple[str, str]:
    return "--data", str(data)


def create(data: Path, name: str, *more: str) -> dict[str, str]:
    made: dict[str, str] = run_json("keys", "create", "--name", name, *more, *at(data))
    return made


def bill_rows(data: Path, *more: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = run_json("bill", "--month", MONTH, *more, *at(data))["rows"]
    return rows


def test_a_created_key_opens_and_its_secret_is_nowhere(data: Path) -> None:
    made = create(data, "alice", "--models", "a,b")
    assert set(made) == {"id", "key", "name", "models", "scope", "project", "tags"}
    tail = RegistryTail(Layout(data).registry_log)
    book = tail.poll()
    assert book is not None
    key = book.by_hash[hashlib.sha256(made["key"].encode()).hexdigest()]
    assert (key.key_id, key.models) == (made["id"], ("a", "b"))
    for path in data.rglob("*"):
        assert not path.is_file() or made["key"].encode() not in path.read_bytes(), path
    assert b"alice" not in Layout(data).registry_log.read_bytes()


def test_a_key_for_people_is_shown_once(data: Path) -> None:
    shown = run("keys", "create", "--name", "alice", *at(data))
    secret = shown.stdout.split()[1]
    assert secret.startswith("sk-tb-") and "only its hash" in shown.stderr
    listed = run("keys", "list", *at(data))
    assert "alice" in listed.stdout and "every model" in listed.stdout
    assert secret not in listed.output
    assert hashlib.sha256(secret.encode()).hexdigest() not in run_text("keys", "list", data=data)


def run_text(*args: str, data: Path) -> str:
    return run(*args, "--json", *at(data)).output


def test_a_star_for_models_means_every_model(data: Path) -> None:
    assert create(data, "alice", "--models", "*")["models"] is None


def test_a_key_is_revoked_by_name_or_id(data: Path) -> None:
    alice, bob = create(data, "alice"), create(data, "bob")
    assert run("keys", "revoke", "alice", *at(data)).exit_code == 0
    assert run_json("keys", "revoke", bob["id"], *at(data))["revoked"] is not None
    keys = run_json("keys", "list", *at(data))["keys"]
    assert [key["id"] for key in keys] == [alice["id"], bob["id"]]
    assert all(key["revoked"] for key in keys)
    again = run("keys", "revoke", "alice", *at(data))
    assert again.exit_code == 1 and "already" in again.stderr
    unknown = run("keys", "revoke", "alicia", *at(data))
    assert unknown.exit_code == 1 and "did you mean 'alice'?" in unknown.stderr


def test_a_price_is_set_kept_and_listed(data: Path) -> None:
    run_json("prices", "set", "m", "--in", "0.15", "--out", "0.60", *NOW, *at(data))
    second = run_json("prices", "set", "m", "--cached-in", "0.05", *NOW, *at(data))
    assert second["per_million"] == {
        "uncached_in": "0.15",
        "cached_in": "0.05",
        "cache_write_in": "0.15",
        "reasoning_out": "0.6",
        "other_out": "0.6",
    }
    prices = run_json("prices", "list", *at(data))["prices"]
    assert [(price["version"], price["state"]) for price in prices] == [(1, "past"), (2, "now")]
    assert "0.05" in run("prices", "list", *at(data)).stdout


def test_the_bill_after_a_crash_is_right(data: Path) -> None:
    key = create(data, "alice")["id"]
    price = ("--in", "1", "--out", "2", "--from", "2026-11-01", *NOW)
    price_id = run_json("prices", "set", "m", *price, *at(data))["id"]
    dead_spool(
        data,
        *events.life("r1", key_id=key),
        *events.life("r2", key_id=key, model="other"),
        *events.life("r3", key_id=key)[:3],
    )
    rows = bill_rows(data)
    assert {(row["model"], row["basis"]) for row in rows} == {
        ("m", "reported"),
        ("m", "running"),
        ("other", "reported"),
    }
    first = next(row for row in rows if (row["model"], row["basis"]) == ("m", "reported"))
    assert first == {
        "key": key,
        "name": "alice",
        "model": "m",
        "uncached_in": 12,
        "cached_in": 0,
        "cache_write_in": 0,
        "reasoning_out": 0,
        "other_out": 4,
        "requests": 1,
        "basis": "reported",
        "charges": {},
        "cost": "0.00002",
        "currency": "USD",
        "unpriced": [],
        "price": price_id,
        "price_version": 1,
        "band": None,
        "discount": None,
        "kind": "usage",
        "corrects": None,
    }
    unpriced = next(row for row in rows if row["model"] == "other")
    assert unpriced["cost"] is None and unpriced["unpriced"] == ["uncached_in", "other_out"]


def test_the_bill_by_day_as_csv_and_as_a_table(data: Path) -> None:
    later = events.START + timedelta(days=1)
    none = events.finished("r2", at=later, usage=Usage(), basis="none")
    dead_spool(data, *events.life("r1"), events.accepted("r2", at=later), none)
    csv = run("bill", "--month", MONTH, "--by", "day", "--csv", *at(data)).stdout.splitlines()
    priced = "charges,cost,currency,price,price_id,discount_id,kind,corrects"
    assert csv[0] == f"day,{','.join(BUCKETS)},requests,basis,{priced}"
    assert csv[1:] == [
        "2026-11-03,12,0,0,0,4,1,reported,,,,,,,usage,",
        "2026-11-04,,,,,,1,none,,,,,,,usage,",
    ]
    table = run("bill", "--month", MONTH, "--by", "day", *at(data)).stdout
    line = next(line for line in table.splitlines() if line.startswith("2026-11-04"))
    assert line.split() == ["2026-11-04", *"–––––", "1", "none", "–", "–", "–"]
    assert "1 of 2 lines has no price for uncached_in, other_out" in table
    assert "no request of 2026-10 has an end yet" in (
        run("bill", "--month", "2026-10", *at(data)).stdout
    )


def test_commands_work_while_a_gateway_lives(data: Path) -> None:
    with living_spool(data, *events.life("r1")) as writer:
        assert bill_rows(data)[0]["requests"] == 1
        writer.append(*events.life("r2"))
        assert bill_rows(data)[0]["requests"] == 2
        writer.append(events.accepted("r3"))
        assert run("audit", *at(data)).exit_code == 0
        state = run_json("spool", "list", *at(data))["spools"][0]
        assert (state["state"], state["waiting"]) == ("live", 0)
        assert run("rebuild", *at(data)).exit_code == 0
        assert bill_rows(data)[0]["requests"] == 2


def test_commands_work_while_a_runner_lives(data: Path) -> None:
    dead_spool(data, *events.life("r1"))
    assert bill_rows(data)
    lock = FileLock.take(Layout(data).runner_lock)
    assert lock is not None
    try:
        for verb in (("bill", "--month", MONTH), ("audit",), ("rebuild",), ("keys", "list")):
            assert run(*verb, *at(data)).exit_code == 0
    finally:
        lock.release()


def test_an_audit_finds_what_was_changed_in_a_spool(data: Path) -> None:
    with living_spool(data, *events.life("r1")) as writer:
        writer.append(*events.life("r2"))
        assert run_json("audit", *at(data))["clean"] is True
        segment = next(writer.directory.glob("*.seg"))
        content = segment.read_bytes()
        segment.write_bytes(content[:100] + b"#" + content[101:])
        parted = run("audit", "--json", *at(data))
    report = json.loads(parted.stdout)
    assert parted.exit_code == 1 and report["clean"] is False
    assert any("broken bytes" in finding["says"] for finding in report["findings"])


def test_an_audit_sees_a_spool_that_lost_its_end(data: Path) -> None:
    directory = dead_spool(data, *events.life("r1"), *events.life("r2"))
    assert run("audit", *at(data)).exit_code == 0
    segment = next(directory.glob("*.seg"))
    os.truncate(segment, segment.stat().st_size // 2)
    parted = run("audit", *at(data))
    assert parted.exit_code == 1
    assert "NOT CLEAN" in parted.stdout and "its end was lost" in parted.stdout


def test_an_audit_sees_a_registry_that_lost_its_end(data: Path) -> None:
    create(data, "alice")
    assert run("audit", *at(data)).exit_code == 0
    os.truncate(Layout(data).registry_log, 0)
    parted = run("audit", *at(data))
    assert parted.exit_code == 1 and "the registry log" in parted.stdout


def test_an_export_is_the_same_twice_and_its_damage_is_found(data: Path) -> None:
    dead_spool(data, *events.life("r1"))
    first = run_json("export", "--month", MONTH, *at(data))
    assert (first["change"], first["manifest"]["requests"]) == ("new", 1)
    assert run_json("export", "--month", MONTH, *at(data))["change"] == "same"
    shown = run("export", "--month", MONTH, *at(data)).stdout
    assert "the same bytes as before" in shown and "requests.parquet" in shown
    assert run("audit", *at(data)).exit_code == 0
    with (Path(first["directory"]) / "requests.parquet").open("ab") as file:
        file.write(b"x")
    parted = run("audit", *at(data))
    assert parted.exit_code == 1 and "requests.parquet" in parted.stdout


def test_an_export_goes_elsewhere(data: Path, tmp_path: Path) -> None:
    dead_spool(data, *events.life("r1"))
    out = tmp_path / "elsewhere"
    run_json("export", "--month", MONTH, "--out", str(out), *at(data))
    assert (out / "parquet" / f"billing_period={MONTH}" / "manifest.json").exists()


def test_a_question_is_answered(data: Path) -> None:
    dead_spool(data, *events.life("r1"), *events.life("r2"))
    columns = "model, sum(other_out) AS out, 1.50::DECIMAL(9,2) AS d, NULL AS n"
    sql = f"SELECT {columns} FROM requests GROUP BY ALL"
    answer = run_json("query", sql, *at(data))
    assert answer == {
        "columns": ["model", "out", "d", "n"],
        "rows": [{"model": "m", "out": 8, "d": "1.50", "n": None}],
    }
    assert run("query", sql, "--csv", *at(data)).stdout == "model,out,d,n\nm,8,1.50,\n"
    assert "–" in run("query", sql, *at(data)).stdout
    nested = run("query", "SELECT [1, 2] AS l, {'a': 1} AS s", "--csv", *at(data)).stdout
    assert nested == 'l,s\n"[1,2]","{""a"":1}"\n'
    assert run("query", "SELECT 1 WHERE false", *at(data)).stdout == "no rows\n"


@pytest.mark.parametrize(
    "sql", ["SELECT x FROM nowhere", "DROP TABLE requests", "", "SELECT (", "1;2"]
)
def test_what_is_no_question_is_refused_with_words(data: Path, sql: str) -> None:
    create(data, "alice")
    refused = run("query", sql, *at(data))
    assert refused.exit_code == 1 and refused.stderr.startswith("tollbook: ")


def test_a_rebuild_puts_right_what_parted(data: Path) -> None:
    dead_spool(data, *events.life("r1"))
    assert run_json("rebuild", *at(data))["parted"] == []
    from ledger.sql import tables
    from ledger.sql.session import open_ledger

    with open_ledger(Layout(data).ledger) as ledger, ledger.write() as tx:
        tx.execute(tables.usage_hourly.update().values(other_out=1000))
    assert run("audit", *at(data)).exit_code == 1
    parted = run("rebuild", *at(data))
    assert parted.exit_code == 1 and "usage_hourly were not what the events say" in parted.stdout
    assert run("audit", *at(data)).exit_code == 0
    assert bill_rows(data)[0]["other_out"] == 4


def test_a_spool_is_shown(data: Path) -> None:
    dead_spool(data, *events.life("r1"))
    directory = dead_spool(data, *events.life("r2"), *events.life("r3"))
    for path in Layout(data).spool_directories():
        assert run("spool", "show", path.name, *at(data)).exit_code == 0
    shown = run_json("spool", "show", directory.name, "--limit", "3", *at(data))
    assert shown["more"] and [record["id"] for record in shown["records"]] == [
        "r2/accepted",
        "r2/attempted/1",
        "r2/delivered/1",
    ]
    table = run("spool", "show", directory.name, "--limit", "3", *at(data)).stdout
    assert "request.accepted.v1" in table and "more follow behind the 3 records shown" in table
    assert len(run_json("spool", "show", directory.name, "--limit", "0", *at(data))["records"]) == 8
    which = run("spool", "show", *at(data))
    assert which.exit_code == 1 and "there are 2 spools" in which.stderr
    assert "no spool begins with 'zz'" in run("spool", "show", "zz", *at(data)).stderr
    beyond = run("spool", "show", directory.name, "--from", "9999999", *at(data))
    assert beyond.exit_code == 1 and "beyond the end" in beyond.stdout


def test_a_torn_and_a_broken_spool_are_shown_as_such(data: Path) -> None:
    directory = dead_spool(data, *events.life("r1"))
    segment = next(directory.glob("*.seg"))
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-3])
    torn = run_json("spool", "show", *at(data))
    assert len(torn["records"]) == 3 and torn["waiting"] > 0 and torn["trouble"] is None
    segment.write_bytes(whole[:20] + b"#" + whole[21:])
    broken = run("spool", "show", *at(data))
    assert broken.exit_code == 1 and "broken bytes" in broken.stdout


def test_init_writes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("init").exit_code == 0
    again = run("init")
    assert again.exit_code == 1 and "already there" in again.stderr
    (tmp_path / "tollbook.toml").write_text("x")
    assert run("init", "--force").exit_code == 0
    assert (tmp_path / "tollbook.toml").read_text() != "x"
    assert "no directory" in run("init", "none/t.toml").stderr


@pytest.mark.parametrize("verb", ["bill", "audit", "rebuild", "export", "keys list", "spool list"])
def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path, verb: str) -> None:
    refused = run(*verb.split(), *at(tmp_path / "none"))
    assert refused.exit_code == 1 and "there is no data directory" in refused.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("verb", ["bill", "keys create --name x", "serve --backend http://a"])
def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path, verb: str) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    refused = run(*verb.split(), *at(tmp_path))
    assert refused.exit_code == 1 and "holds other things (thesis.tex)" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("bil", "did you mean bill?"),
        ("zzz", "`tollbook --help` lists the commands"),
        ("bill --month 2026-13", "write it as 2026-11"),
        ("bill --by hour", "key, model, day"),
        ("bill --csv --json", "exclude each other"),
        ("bill --wat", "no such option"),
        ("keys create", "missing option '--name'"),
        ("keys create --name a --models a,,b", "empty name"),
        ("prices set m", "no price is given"),
        ("prices set m --in 1e3", "plain decimal"),
        ("prices set m --in 1 --from never", "write 2026-11-01"),
        ("prices set m --in 1 --currency dollars", "three letters"),
        ("serve --port 70000 --backend http://a", "0<=x<=65535"),
        ("serve --backend http://a --backend-key a --backend-key b", "2 backend keys for 1"),
        ("serve", "no backend is given"),
    ],
)
def test_wrong_usage_is_met_with_words(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOLLBOOK_DATA", str(data))
    refused = run(*line.split())
    assert refused.exit_code == 2, refused.output
    assert refused.stderr.startswith("tollbook: ") and words in refused.stderr
    assert "See `tollbook" in refused.stderr and refused.stdout == ""


def served(monkeypatch: pytest.MonkeyPatch, *args: str) -> tuple[Settings, Path]:
    """What `tollbook serve` hands to the gateway, which is not started."""
    calls: list[tuple[Settings, Path]] = []

    def serve(settings: Settings, data: Path) -> int:
        calls.append((settings, data))
        return 0

    monkeypatch.setattr(gateway.wiring, "serve", serve)
    result = run("serve", *args)
    assert result.exit_code == 0, result.output
    assert "hush" not in result.output
    return calls[0]


def test_serve_puts_keys_away_and_hands_over_references(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends = ("--backend", "http://a/v1", "--backend", "http://b")
    settings, where = served(
        monkeypatch,
        *backends,
        "--backend-key",
        "sk-hush",
        "--models",
        "*",
        "--port",
        "0",
        *at(data),
    )
    assert where == data and settings.gateway.models == ("*",) and settings.gateway.port == 0
    assert "hush" not in repr(settings)
    for backend in settings.backends:
        assert backend.key is not None
        file = Path(backend.key.removeprefix("file:"))
        assert file.read_text().strip() == "sk-hush"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_serve_takes_one_key_for_each_backend_and_references_as_they_are(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "--backend http://a --backend-key env:A_KEY --backend http://b --backend-key sk-hush-2"
    settings, _ = served(monkeypatch, *line.split(), *at(data))
    assert settings.backends[0].key == "env:A_KEY"
    assert (settings.backends[1].key or "").startswith("file:")


def test_serve_reads_the_file_that_lies_here_unless_a_backend_is_given(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tollbook.toml").write_text(
        '[gateway]\nport = 9\nworkers = 3\n[[backends]]\nurl = "http://file"\n'
    )
    settings, _ = served(monkeypatch, "--port", "10", *at(data))
    assert (settings.gateway.port, settings.gateway.workers) == (10, 3)
    assert settings.backends[0].url == "http://file"
    settings, _ = served(monkeypatch, "--backend", "http://flag", *at(data))
    assert settings.gateway.workers == 1 and settings.backends[0].url == "http://flag"
    both = ("--config", "tollbook.toml", "--backend", "http://flag", "--durability", "power")
    settings, _ = served(monkeypatch, *both, *at(data))
    assert settings.gateway.workers == 3 and settings.backends[0].url == "http://flag"
    assert settings.spool.durability == "power"


def test_serve_refuses_a_wrong_file_and_a_wrong_address(data: Path, tmp_path: Path) -> None:
    none = run("serve", "--config", str(tmp_path / "none.toml"), *at(data))
    assert none.exit_code == 1 and "tollbook init" in none.stderr
    wrong = run("serve", "--backend", "localhost:8000", *at(data))
    assert wrong.exit_code == 1 and "http://HOST:PORT" in wrong.stderr
    key = run("serve", "--backend", "http://a", "--backend-key", "hush\nhush", *at(data))
    assert key.exit_code == 1 and "one line" in key.stderr and "hush" not in key.stderr


def test_a_missing_extra_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(data, "alice")
    for name in [name for name in sys.modules if name.startswith("ledger.export")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    refused = run("query", "SELECT 1", *at(data))
    assert refused.exit_code == 1 and 'pip install "tollbook[export]"' in refused.stderr


def test_a_ledger_that_is_none_is_met_with_words(data: Path) -> None:
    create(data, "alice")
    for left in data.glob("ledger.db*"):
        left.unlink()
    Layout(data).ledger.write_bytes(b"this is not a database, but long enough to be looked at" * 50)
    refused = run("bill", *at(data))
    assert refused.exit_code == 1 and "not a SQLite file" in refused.stderr


def test_every_verb_has_help_of_its_own() -> None:
    top = run("--help").stdout
    for verb in VERBS:
        shown = run(verb, "--help")
        assert shown.exit_code == 0 and shown.stdout.startswith(f"Usage: tollbook {verb}")
        assert (f"  {verb} " in top) == (verb not in ("runner", "relay", "reader"))

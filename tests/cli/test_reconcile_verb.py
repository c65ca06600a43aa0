"""`tollbook reconcile`: what it prints, when it fails, and which time it means."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from gateway.cli.reconcile import span_of
from ledger.events import Draft
from ledger.sql.session import open_ledger
from tests.cli.books import dead_spool, run, run_json
from tests.ledger.ledgers import Feeder, scribed
from tests.support import events as say
from tests.support.events import START

HOUR = timedelta(hours=1)
TIME = ("--since", "2026-11-03T10:00:00Z", "--until", "2026-11-03T12:00:00Z")


def told(out: int, **request: Any) -> list[Draft]:
    """An hour of one backend that served a request of 12 and 4 tokens, and counted `out`."""
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    values = {"duration_us": 1_000_000, "first_token_us": 1000} | request
    return [
        say.counted("b-1", 1, say.after(-600), dict.fromkeys(names, 100)),
        *say.life("r", say.after(0), **values),
        say.counted("b-1", 2, say.after(60), fault="no answer in 5 s"),
        say.counted("b-1", 3, say.after(600), dict(zip(names, (112, 100 + out), strict=True))),
    ]


def test_a_ledger_that_agrees(tmp_path: Path) -> None:
    dead_spool(tmp_path, *told(4))
    done = run("reconcile", *TIME, "--data", str(tmp_path))
    assert done.exit_code == 0 and "same" in done.stdout and "surplus" not in done.stdout
    assert "1 reading failed, the last because no answer in 5 s" in done.stdout
    assert "not over" not in done.stdout


def test_a_back_door_ends_with_1_and_says_how_much(tmp_path: Path) -> None:
    dead_spool(tmp_path, *told(4 + 1234))
    done = run("reconcile", *TIME, "--data", str(tmp_path))
    assert done.exit_code == 1
    assert "BACK DOOR: 1,234 tokens" in done.stdout and "surplus" in done.stdout
    other = run_json("reconcile", *TIME, "--backend", "b-9", "--data", str(tmp_path))
    assert other["windows"] == [] and other["unread"] == []


def test_json_has_what_the_table_has(tmp_path: Path) -> None:
    dead_spool(tmp_path, *told(9, outcome="client_gone", basis="running"))
    found = run_json("reconcile", *TIME, "--data", str(tmp_path))
    (window,) = found["windows"]
    assert (window["backend"], window["engine"], window["over"]) == ("b-1", "vllm", True)
    assert (window["readings"], window["readings_failed"], window["requests"]) == (2, 1, 1)
    out = {side["side"]: side for side in window["sides"]}["out"]
    assert (out["engine"], out["ledger"], out["difference"], out["at_least"]) == (9, 4, 5, 4)
    assert out["verdict"] == "explained" and out["beyond"] == 0
    (cause,) = out["causes"]
    assert cause["name"] == "cut" and cause["more"] == 32 and "1 request cut" in cause["says"]


def test_what_gateways_have_not_told_yet_is_no_verdict(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "ledger.db") as ledger:
        Feeder(ledger).feed(scribed(told(104)))
    done = run("reconcile", *TIME, "--data", str(tmp_path))
    assert done.exit_code == 0 and "surplus, not over" in done.stdout


def test_a_backend_that_is_not_compared_is_named(tmp_path: Path) -> None:
    dead_spool(tmp_path, *say.life("r"))
    done = run("reconcile", *TIME, "--data", str(tmp_path))
    assert done.exit_code == 0
    assert "no engine was read twice" in done.stdout
    assert "b-1 is not compared, 1 request went there" in done.stdout


def test_the_ledger_may_be_a_shared_one(tmp_path: Path, postgres_url: str) -> None:
    with open_ledger(postgres_url) as ledger:
        mark = say.mark(say.SOURCE, 1, say.after(700), {})
        Feeder(ledger).feed(scribed([*told(5), mark]))
    place = ("--kafka", "127.0.0.1:9", "--ledger", postgres_url, "--data", str(tmp_path))
    assert run("reconcile", *TIME, *place).exit_code == 1


@pytest.mark.parametrize(
    "time",
    [
        ("--since", "0001-01-01", "--until", "9999-12-31"),
        ("--since", "0001-01-01"),
        ("--hours", "87840"),
    ],
    ids=" ".join,
)
def test_the_time_may_begin_long_before_the_first_reading(
    tmp_path: Path, time: tuple[str, ...]
) -> None:
    with open_ledger(tmp_path / "ledger.db") as ledger:
        Feeder(ledger).feed(scribed([*told(5), say.mark(say.SOURCE, 1, say.after(700), {})]))
    done = run("reconcile", *time, "--data", str(tmp_path))
    assert done.exit_code == 1 and "BACK DOOR: 1 token that" in done.stdout


def test_a_backend_that_is_not_known_is_named(tmp_path: Path) -> None:
    open_ledger(tmp_path / "ledger.db").close()
    done = run("reconcile", "--backend", "b-9", "--data", str(tmp_path))
    assert "no engine of backend b-9" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ((None, None, None, None), START - 24 * HOUR, START),
        ((None, None, None, 2), START - 2 * HOUR, START),
        ((None, START - HOUR, None, None), START - HOUR, START),
        ((None, START - HOUR, START + HOUR, None), START - HOUR, START + HOUR),
        (("2026-10", None, None, None), "2026-10-01", "2026-11-01"),
        (("2026-11", None, None, None), "2026-11-01", START),
    ],
)
def test_the_time_that_is_meant(asked: Any, first: Any, last: Any) -> None:
    def moment(said: Any) -> datetime:
        if not isinstance(said, str):
            return said  # type: ignore[no-any-return]
        return datetime.fromisoformat(said).replace(tzinfo=UTC)

    month, since, until, hours = asked
    assert span_of(month, since, until, hours, START) == (moment(first), moment(last))


@pytest.mark.parametrize(
    "asked",
    [
        ("2026-10", None, None, 3),
        (None, START - HOUR, None, 3),
        (None, None, START, None),
        (None, START, START - HOUR, None),
        (None, START + HOUR, None, None),
    ],
)
def test_a_time_that_contradicts_itself_is_refused(asked: Any) -> None:
    month, since, until, hours = asked
    with pytest.raises(click.UsageError):
        span_of(month, since, until, hours, START)

"""`tollbook explain` on real data directories: it says what the ledger and the logs hold."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.explain import parse_line
from gateway.http.client_ids import client_request_of
from gateway.secrets import hash_key
from ledger.events import Usage
from ledger.events.requests import SYSTEM_KEY_ID
from streams.local.layout import Layout
from streams.local.runner import run_once
from tests.cli.books import dead_spool, run, run_json
from tests.support import events as say
from tests.support.events import after

HINT = "alice's own id"
PRICES = ("--in", "0.5", "--cached-in", "0.05", "--out", "1.25")
SINCE = ("--from", "2026-11-01", "--rerate", "a test of what was")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gateway's day: a request that took two backends and was cut, its retry, one that died with
    its gateway, one that was refused, and many of another key."""
    data = tmp_path_factory.mktemp("explain") / "data"
    at = ("--data", str(data))
    run_json("prices", "set", "m", *PRICES, *SINCE, *at)
    client = client_request_of(HINT.encode(), hash_key(data))
    usage = Usage(uncached_in=100, cached_in=20, cache_write_in=0, reasoning_out=0, other_out=7)
    drafts = [
        say.accepted("cut000", client_request=client, client_retry=0),
        say.attempted("cut000", 1),
        say.attempted(
            "cut000",
            2,
            after(1),
            backend_id="b-2",
            after="connect refused",
            score="3.125",
            reasons=["3 waiting", "KV 12.5%"],
        ),
        say.delivered("cut000", 1, 5),
        say.finished(
            "cut000",
            usage=usage,
            basis="running",
            outcome="client_gone",
            reason="the client hung up",
            backend_id="b-2",
            attempts=2,
            first_token_us=41_000,
            duration_us=1_234_567,
            overhead_us=320,
        ),
        *say.life("again0", after(5))[1:],
        say.rejected("refused"),
        say.accepted("req_0123456789abc", after(7)),
        say.attempted("req_0123456789abc", 1, after(7)),
    ]
    drafts.insert(5, say.accepted("again0", after(5), client_request=client, client_retry=1))
    for n in range(12):
        drafts += say.life(f"many{n:02}", after(60 + n), "key-2")
    dead_spool(data, *drafts)
    run_once(data, keep_bytes=1 << 30)
    return data


def explained(data: Path, *args: str) -> Any:
    return run_json("explain", *args, "--data", str(data))


def record_at(data: Path, place: str) -> dict[str, Any]:
    """The record that stands at a place in a spool, read without any of our readers."""
    log, _, offset = place.rpartition("@")
    directory = data / log
    starts = sorted(int(path.stem) for path in directory.glob("*.seg"))
    start = max(one for one in starts if one <= int(offset))
    path = next(path for path in directory.glob("*.seg") if int(path.stem) == start)
    raw = path.read_bytes()[int(offset) - start :]
    found: dict[str, Any]
    found, _ = json.JSONDecoder().raw_decode(raw.decode(errors="replace"))
    return found


def test_a_request_is_explained_from_its_events_to_its_bill_line(data: Path) -> None:
    said = explained(data, "cut000")
    request = said["request"]
    assert (request["outcome"], request["reason"]) == ("client_gone", "the client hung up")
    assert (request["first_token_us"], request["duration_us"]) == (41_000, 1_234_567)
    attempts = [(a["attempt"], a["backend_id"], a["failed"], a["cost"]) for a in said["attempts"]]
    cost = "0.00005975"  # 100 × 0.5 + 20 × 0.05 + 7 × 1.25, of a million
    assert attempts == [(1, "b-1", "connect refused", "0"), (2, "b-2", None, cost)]
    # An attempt of before scores were told has none.
    routes = [(one["score"], one["reasons"]) for one in said["attempts"]]
    assert routes == [(None, None), ("3.125", ["3 waiting", "KV 12.5%"])]
    assert said["cost"] == cost and said["currency"] == "USD"
    assert said["price"]["version"] == 1 and said["price"]["per_million"]["cached_in"] == "0.05"
    assert said["basis"] == "running" and "up to a cut" in said["basis_said"]
    assert said["bill_line"]["requests"] == said["usage_hourly"]["requests"] == 1
    price = said["price"]["price_id"]
    assert said["line"] == f"key=key-1,model=m,day=2026-11-03,basis=running,price={price}"
    assert [one["request_id"] for one in said["same_client_id"]] == ["again0"]
    assert said["same_client_id"][0]["client_retry"] == 1


def test_a_person_reads_why_a_backend_was_chosen(data: Path) -> None:
    said = " ".join(run("explain", "cut000", "--data", str(data)).stdout.split())
    assert "3.125" in said
    assert "attempt 2 went to b-2 by: 3 waiting, KV 12.5%" in said
    assert "attempt 1 went to" not in said


def test_every_event_stands_where_it_is_said_to_stand(data: Path) -> None:
    events = explained(data, "cut000")["events"]
    kinds = [event["id"].split("/", 1)[1] for event in events]
    assert kinds == ["accepted", "attempted/1", "attempted/2", "finished"]
    for event in events:
        found = record_at(data, event["place"])
        assert (found["id"], found["source"]) == (event["id"], event["name"].rpartition(":")[0])


def test_the_event_of_the_price_stands_in_the_registry_log(data: Path) -> None:
    place = explained(data, "cut000")["price"]["event"]["place"]
    log, _, offset = place.partition("@")
    assert log == "registry"
    raw = Layout(data).registry_log.read_bytes()[int(offset) :]
    found, _ = json.JSONDecoder().raw_decode(raw.decode(errors="replace"))
    assert found["type"] == "tollbook.price.listed.v1"
    assert found["data"]["rerate"] == SINCE[-1]


def test_a_request_whose_gateway_died_is_explained_by_whoever_closed_it(data: Path) -> None:
    said = explained(data, "req_0123456789abc")
    assert said["request"]["state"] == "abandoned" and said["basis"] == "none"
    (closing,) = [event for event in said["events"] if event["id"] == "req_0123456789abc/abandoned"]
    assert closing["name"].startswith("/runner/")
    assert record_at(data, closing["place"])["id"] == "req_0123456789abc/abandoned"
    assert said["cost"] is None


def test_for_a_person_it_says_all_of_it_in_words(data: Path) -> None:
    shown = run("explain", "cut000", "--data", str(data)).stdout
    for words in (
        "41.000 ms",
        "1,234.567 ms",
        "connect refused",
        "the client hung up",
        "running: the engine's own count up to a cut",
        "price: version 1 of m, in USD",
        "spool/",
        "tollbook explain --line 'key=key-1,model=m,day=2026-11-03,basis=running,price=",
        "again0",
    ):
        assert words in shown, words


def test_another_model_that_answered_is_told_beside_the_one_asked_for(tmp_path: Path) -> None:
    data = tmp_path / "data"
    dead_spool(
        data,
        say.accepted("fell00", model="big"),
        say.attempted("fell00"),
        say.finished("fell00", model="m", asked_model="big"),
    )
    said = explained(data, "fell00")
    assert (said["request"]["model"], said["asked_model"]) == ("m", "big")
    shown = run("explain", "fell00", "--data", str(data)).stdout
    assert re.search(r"^asked for +big$", shown, re.M)


def test_a_line_lists_its_events_and_adds_up_to_the_bill(data: Path) -> None:
    said = explained(data, "--line", "key=key-2,model=m,day=2026-11-03", "--limit", "5")
    assert said["equal"] and said["bill"] == said["sums"] and said["total"] == 12
    assert said["bill"][0]["requests"] == 12 and said["bill"][0]["other_out"] == 48
    assert [one["request_id"] for one in said["requests"]] == [f"many{n:02}" for n in range(5)]
    for one in said["requests"]:
        found = record_at(data, one["ended"]["place"])
        assert found["id"] == f"{one['request_id']}/finished"
        assert found["data"]["usage"]["other_out"] == one["counts"]["other_out"]
    rest = explained(data, "--line", "key=key-2,model=m,day=2026-11-03", "--skip", "5")
    assert [one["request_id"] for one in rest["requests"]] == [f"many{n:02}" for n in range(5, 12)]
    shown = run("explain", "--line", "key=key-2,month=2026-11", "--limit", "5", "--data", str(data))
    assert "--skip 5 shows the next" in shown.stdout and shown.stdout.endswith("equal\n")


def test_the_line_of_an_explanation_can_be_explained(data: Path) -> None:
    line = explained(data, "cut000")["line"]
    said = explained(data, "--line", line)
    assert [one["request_id"] for one in said["requests"]] == ["cut000"] and said["equal"]


def test_a_clients_own_id_finds_its_tries(data: Path) -> None:
    found = explained(data, "--client", HINT)["requests"]
    assert [(one["request_id"], one["client_retry"]) for one in found] == [
        ("cut000", 0),
        ("again0", 1),
    ]
    assert HINT not in run("explain", "cut000", "--data", str(data)).output
    assert explained(data, "--client", "nobody's")["requests"] == []


def test_the_key_of_a_line_may_be_told_by_its_name(tmp_path: Path) -> None:
    data = tmp_path / "data"
    at = ("--data", str(data))
    ids = [run_json("keys", "create", "--name", name, *at)["id"] for name in ("ada", "bob", "bob")]
    lives = [say.life(f"r{n}", after(n), key_id) for n, key_id in enumerate([*ids, SYSTEM_KEY_ID])]
    dead_spool(data, *(draft for life in lives for draft in life))
    for key, request_id in (("ada", "r0"), (ids[0], "r0"), (ids[2], "r2"), ("system", "r3")):
        said = explained(data, "--line", f"key={key},month=2026-11")
        assert [one["request_id"] for one in said["requests"]] == [request_id], key
        assert said["equal"]
    shown = run("explain", "r0", *at).stdout
    assert f"{ids[0]} (ada)" in shown
    both = run("explain", "--line", "key=bob,month=2026-11", *at)
    assert both.exit_code == 1 and "2 keys are named 'bob'" in both.stderr


def test_what_retention_took_is_said_to_be_gone(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    for directory in Layout(copy).spool_directories():
        shutil.rmtree(directory)
    said = explained(copy, "cut000")
    assert [event["place"] for event in said["events"]] == [None] * 4 and said["cost"]
    assert "no longer in the log" in run("explain", "cut000", "--data", str(copy)).stdout


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("nobody",), 1, "there is no request 'nobody' in the ledger"),
        (("many00x",), 1, "there is no request"),
        (("many0x",), 1, "there is no request"),
        (("refused",), 1, "was refused with 404 (model_not_found)"),
        ((), 2, "give a request's id, or --client ID, or --line PARTS"),
        (("a", "--line", "key=b"), 2, "give a request's id"),
        (("--line", "alice"), 2, "names no line"),
        (("--line", "key=a,key=b"), 2, "key is given twice"),
        (("--line", "day=2026-11-31"), 2, "is not an instant"),
        (("--line", "day=2026-11-03,month=2026-12"), 2, "is not in the month"),
        (("--line", "month=2026-13"), 2, "write it as 2026-11"),
        (("--line", "key=nobody,month=2026-11"), 1, "no request counts in this line"),
    ],
)
def test_what_cannot_be_explained_is_refused_with_words(
    data: Path, args: tuple[str, ...], code: int, words: str
) -> None:
    refused = run("explain", *args, "--data", str(data))
    assert refused.exit_code == code and words in refused.stderr, refused.output


def test_ids_that_begin_alike_are_offered(data: Path) -> None:
    for part in ("req_01234567", "0123456789ab"):
        shown = run("explain", part, "--data", str(data)).stderr
        assert "did you mean req_0123456789abc?" in shown
    short = run("explain", "many0", "--data", str(data)).stderr
    assert "did you mean" not in short and "shows the newest" in short


def test_a_directory_without_a_key_for_clients_ids_says_so_and_makes_none(tmp_path: Path) -> None:
    data = tmp_path / "data"
    dead_spool(data, *say.life("r1"))
    refused = run("explain", "--client", "x", "--data", str(data))
    assert refused.exit_code == 1 and "has no key for them" in refused.stderr
    assert not (data / "secrets").exists()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("key=a", {"key": "a"}),
        ("model=a,b=c,basis=none", {"model": "a,b=c", "basis": "none"}),
        ("day=2026-11-03", {"day": "2026-11-03", "month": "2026-11"}),
        (" key = a", None),
    ],
)
def test_a_line_is_read(text: str, parts: dict[str, str] | None) -> None:
    if parts is None:
        with pytest.raises(ValueError, match="names no line"):
            parse_line(text)
    else:
        assert parse_line(text) == parts

"""Faults of metering that others have reported, each with the right value of ours.

A fault is an issue thread of another project, what a backend and a client did there, and the row
that the ledger must have of it. They are played together against one live gateway; the backends'
own books are checked as in `tests/proof`. What is not about the count of one request is proven
elsewhere: lost and doubled rows in `tests/kill`, an unreachable store in `tests/streams` and
`tests/cluster`, totals against rows by `tollbook audit`, shown as a table in docs/metering.md.
"""

import asyncio
import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.proof.oracle import BUCKETS, Case, Row, complaints
from tests.proof.plans import read
from tests.proof.world import Stage, stage
from tests.support.processes import Answer, call, tollbook, tollbook_json, wait_until

SOON_SECONDS = 10.0


class Fault(msgspec.Struct, frozen=True):
    """`thread`: where it was reported. `plan`: a line as `tests.proof` writes it. `row`: columns
    that the ledger must have; the five buckets are `buckets`."""

    thread: str
    plan: str
    buckets: tuple[int | None, int | None, int | None, int | None, int | None]
    row: Row


CHAT, RESPONSES = "path=/v1/chat/completions", "path=/v1/responses"
MESSAGES, TEXT = "path=/v1/messages", "path=/v1/completions"
LEAVES = "client=leaves_there"
UNKNOWN = (None, None, None, None, None)

FAULTS = (
    Fault(
        "litellm#33736: a client that leaves mid-stream pays nothing and has no row",
        f"{CHAT} engine=vllm script=n9-g4 {LEAVES} words=6",
        (8, 0, 0, 0, 4),
        {"outcome": "client_gone", "basis": "running", "reason": "the client hung up"},
    ),
    Fault(
        "litellm#14457: the usage comes in the last chunk only and is gone on an early end",
        f"{CHAT} engine=fake script=n9-g4 {LEAVES} words=6",
        (8, None, None, 0, 4),
        {"outcome": "client_gone", "basis": "tokenized"},
    ),
    Fault(
        "litellm#36008, #35958: cut behind the last token, before the usage",
        f"{CHAT} engine=fake script=n9-g9 {LEAVES} words=6",
        (8, None, None, 0, 9),
        {"outcome": "client_gone", "basis": "tokenized"},
    ),
    Fault(
        "litellm#36008: the same where the backend breaks off",
        f"{CHAT} engine=fake script=n9-k9 words=6",
        (8, None, None, 0, 9),
        {"outcome": "backend_lost", "basis": "tokenized"},
    ),
    Fault(
        "litellm#37992: a reported zero is taken for a missing count",
        f"{CHAT} engine=fake script=n0 words=6",
        (8, 0, 0, 0, 0),
        {"outcome": "completed", "basis": "reported"},
    ),
    Fault(
        "litellm#37992: the same in a plain answer",
        f"{CHAT} engine=vllm stream=False script=n0 words=6",
        (8, 0, 0, 0, 0),
        {"outcome": "completed", "basis": "reported"},
    ),
    Fault(
        "litellm#37734: the row of a cut answer has lost its cache",
        f"{CHAT} engine=llamacpp script=n9-c5-g4 {LEAVES} words=6",
        (3, 5, 0, 0, 4),
        {"outcome": "client_gone", "basis": "running", "model": "m-llamacpp"},
    ),
    Fault(
        "litellm#12970: the stream reports 33,019 prompt tokens, the bill says 19,357",
        f"{CHAT} engine=vllm script=n3-c20000 words=33017",
        (13_019, 20_000, 0, 0, 3),
        {"outcome": "completed", "basis": "reported"},
    ),
    Fault(
        "litellm#8244: a tokenizer that is not the model's own",
        f"{TEXT} engine=llamacpp script=n3-u2 stream=False words=6",
        (6, None, None, 0, 3),
        {"outcome": "completed", "basis": "tokenized"},
    ),
    Fault(
        "bifrost#4484: every streamed call of /v1/responses has 0 tokens",
        f"{RESPONSES} engine=vllm script=n5-c2-r1 words=6",
        (6, 2, 0, 1, 4),
        {"outcome": "completed", "basis": "reported"},
    ),
    Fault(
        "open-ace#3422: the usage of response.incomplete is dropped",
        f"{RESPONSES} engine=fake script=n9 limit=4 words=6",
        (8, 0, 0, 0, 4),
        {"outcome": "completed", "basis": "reported"},
    ),
    Fault(
        "new-api#4344: a client that leaves a plain call pays nothing",
        f"{CHAT} engine=vllm stream=False script=d20000 client=leaves_early words=6",
        (8, None, None, None, None),
        {"outcome": "client_gone", "basis": "tokenized"},
    ),
    Fault(
        "new-api#4463: a client that leaves before the first byte leaves nothing to bill",
        f"{CHAT} engine=vllm script=d20000 client=leaves_early words=6",
        (8, None, None, 0, 0),
        {"outcome": "client_gone", "basis": "tokenized"},
    ),
    Fault(
        "new-api#4168: charged although nothing arrived",
        f"{CHAT} engine=vllm script=h1",
        UNKNOWN,
        {"outcome": "timeout", "basis": "none"},
    ),
    Fault(
        "new-api#4168: the same where the backend breaks off before the first token",
        f"{CHAT} engine=vllm script=n9-k0",
        UNKNOWN,
        {"outcome": "backend_lost", "basis": "none"},
    ),
    Fault(
        "new-api#5289: the text of an error counts as output",
        f"{CHAT} engine=fake script=e500",
        UNKNOWN,
        {"outcome": "completed", "basis": "none", "status": 500},
    ),
    Fault(
        "new-api#5289: the same inside a stream that began with 200",
        f"{CHAT} engine=fake script=n9-x3 words=6",
        (8, None, None, 0, 3),
        {"outcome": "backend_lost", "basis": "tokenized"},
    ),
    Fault(
        "apisix#13662: the total lacks the input where events are split",
        f"{CHAT} engine=fake script=n5-s1 words=6",
        (8, 0, 0, 0, 5),
        {"outcome": "completed", "basis": "reported"},
    ),
    Fault(
        "apisix#13876: an error after partial output makes a second, paid call",
        f"{CHAT} engine=sglang script=n9-k3 words=6",
        (8, 0, 0, 0, 3),
        {"outcome": "backend_lost", "basis": "running", "attempts": 1},
    ),
    Fault(
        "kong#14535: a stream has no completion tokens",
        f"{CHAT} engine=fake script=n5 words=6",
        (8, 0, 0, 0, 5),
        {"outcome": "completed", "basis": "reported"},
    ),
    Fault(
        "oh-my-pi#5022: the usage comes twice, the first without details",
        f"{CHAT} engine=vllm script=n5-c3-u3 words=6",
        (5, 3, 0, 0, 5),
        {"outcome": "completed", "basis": "reported"},
    ),
    Fault(
        "dynamo#14850: the cached tokens are told only at the end",
        f"{CHAT} engine=vllm script=n5-c3 words=6",
        (5, 3, 0, 0, 5),
        {"outcome": "completed", "basis": "reported"},
    ),
    Fault(
        "litellm#6215, aider#5516, pi#2148: cached and written tokens are priced twice",
        f"{CHAT} engine=fake script=n5-c3-v2-r1 words=6",
        (3, 3, 2, 1, 4),
        {"outcome": "completed", "basis": "reported"},
    ),
    Fault(
        "litellm#6215: the same at /v1/messages, whose input leaves them out",
        f"{MESSAGES} engine=fake script=n5-c3-v2 words=6",
        (3, 3, 2, 0, 5),
        {"outcome": "completed", "basis": "reported"},
    ),
)

PRICE_IN, PRICE_OUT = Decimal("2"), Decimal("30")


class Played(msgspec.Struct):
    """Every fault's case, and what the gateway and the ledger say of all together."""

    cases: dict[str, Case]
    unknown: Answer
    retried: Row
    attempts: list[Row]
    metrics: str
    bill: list[dict[str, Any]]
    rows: list[Row]
    hourly: Row


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    yield asyncio.run(_play(tmp_path_factory.mktemp("faults")))


async def _play(directory: Path) -> Played:
    prices = ["prices", "set", "*", "--in", str(PRICE_IN), "--out", str(PRICE_OUT)]
    prices += ["--rerate", "first price"]
    await asyncio.to_thread(tollbook, directory / "data", *prices)
    async with stage(directory, more_models=("m-all",)) as there:
        cases = await there.play([read(fault.plan) for fault in FAULTS])
        url = there.gateway.url
        unknown = await asyncio.to_thread(
            call, f"{url}/v1/moderations", {"model": "m-vllm"}, there.key.secret
        )
        retried = await _retried(there)
        await asyncio.to_thread(wait_until, "no probe runs", lambda: _quiet(url), SOON_SECONDS)
        page = await asyncio.to_thread(call, f"{url}/metrics")
        bill = await asyncio.to_thread(tollbook_json, there.data, "bill")
        audit = await asyncio.to_thread(tollbook, there.data, "audit", check=False)
        assert audit.returncode == 0, audit.stdout
        names = ", ".join(f"SUM({name}) AS {name}" for name in BUCKETS)
        return Played(
            cases=dict(zip((fault.thread for fault in FAULTS), cases, strict=True)),
            unknown=unknown,
            retried=retried,
            attempts=_read(there.data, "SELECT * FROM attempts ORDER BY request_id, attempt"),
            metrics=page.body.decode(),
            bill=bill["rows"],
            rows=_read(there.data, "SELECT * FROM requests"),
            hourly=_read(
                there.data, f"SELECT SUM(requests) AS requests, {names} FROM usage_hourly"
            )[0],
        )


async def _retried(there: Stage) -> Row:
    """The row of a request whose first backend failed and whose second did not."""
    there.fakes["vllm"].next("e503")
    for _ in range(60):
        body = {"model": "m-all", "messages": [], "script": "n3-p5"}
        answer = await asyncio.to_thread(
            call, f"{there.gateway.url}/v1/chat/completions", body, there.key.secret
        )
        assert answer.status == 200
        if not there.fakes["vllm"].counts.next:
            request_id = answer.headers["x-request-id"]
            return (await there.rows([request_id]))[request_id]
    pytest.fail("no request came to the backend that fails")


def _quiet(url: str) -> bool:
    """True if no breaker is open. Until then a token is asked for now and then, and billed."""
    backends = call(f"{url}/health/ready").json()["backends"].values()
    return all(said.startswith("up") for said in backends)


def _read(data: Path, sql: str) -> list[Row]:
    db = sqlite3.connect(f"file:{data / 'ledger.db'}?mode=ro", uri=True)
    try:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute(sql)]
    finally:
        db.close()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.thread.partition(":")[0])
def test_a_fault_of_others(played: Played, fault: Fault) -> None:
    case = played.cases[fault.thread]
    assert tuple(case.row[name] for name in BUCKETS) == fault.buckets, case.row
    assert fault.row.items() <= case.row.items()
    if case.plan.script.chunks:
        assert list(complaints(case)) == []


def test_a_route_that_cannot_be_metered_is_refused(played: Played) -> None:
    """bifrost#2873: routes that are passed through skip the budget."""
    assert played.unknown.status == 404
    assert b"/v1/moderations" in played.unknown.body


def test_a_retry_is_an_attempt_and_no_request(played: Played) -> None:
    """litellm#39455: each retry is a request, three rows for one success."""
    row = played.retried
    assert (row["attempts"], row["basis"], row["uncached_in"], row["other_out"]) == (
        2,
        "reported",
        5,
        3,
    )
    tries = [one for one in played.attempts if one["request_id"] == row["request_id"]]
    assert [one["failed"] for one in tries] == ["status 503", None]


def test_a_request_has_one_row_and_totals_are_their_sum(played: Played) -> None:
    """litellm#15740, #37144, #13280: logged twice, totals of 0, 8 rows where the seller shows 9."""
    ids = [row["request_id"] for row in played.rows]
    assert len(ids) == len(set(ids))
    assert {case.row["request_id"] for case in played.cases.values()} <= set(ids)
    assert played.hourly["requests"] == len(ids)
    for name in BUCKETS:
        assert played.hourly[name] == sum(row[name] or 0 for row in played.rows), name


def test_cut_answers_have_the_same_price_as_whole_ones(played: Played) -> None:
    """litellm#37734: rows of cut answers at price 0, or of another model."""
    assert {line["basis"] for line in played.bill} >= {"reported", "running", "tokenized"}
    for line in played.bill:
        ins, outs = (sum(line[name] or 0 for name in names) for names in (BUCKETS[:3], BUCKETS[3:]))
        cost = (PRICE_IN * ins + PRICE_OUT * outs) / 1_000_000
        assert Decimal(line["cost"] or 0) == cost, line


def test_metrics_have_the_streams_that_were_cut(played: Played) -> None:
    """envoyproxy/ai-gateway#2115: the histogram of tokens misses streams that were cancelled."""
    families = text_string_to_metric_families(played.metrics)
    samples = [one for family in families for one in family.samples]
    told = sum(one.value for one in samples if one.name == "tollbook_tokens_total")
    assert told == sum(row[name] or 0 for row in played.rows for name in BUCKETS)

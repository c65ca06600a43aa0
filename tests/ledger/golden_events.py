"""One event of every type and version with every field set: what the golden files hold.

A golden file is what some version of Tollbook wrote into somebody's ledger, so it is never edited.
A field that is added, and may be left out, gives the type a second file (`TYPE.2.json`); a type
that needs another shape gets a new version. Either is a new entry here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import msgspec

from ledger.events import (
    BackendChanged,
    BackendCounted,
    BackendObserved,
    BackendRegistered,
    BackendRemoved,
    Band,
    BooksSet,
    CreditPosted,
    Draft,
    KeyAssigned,
    KeyIssued,
    KeyRevoked,
    OrganizationSet,
    Payload,
    PeriodClosed,
    Posting,
    PriceEntry,
    PriceListed,
    PricePublished,
    ProjectSet,
    RequestAbandoned,
    RequestAccepted,
    RequestAttempted,
    RequestFinished,
    RequestRejected,
    SourceClosed,
    SourceMark,
    TokensDelivered,
    Usage,
    UsageCorrected,
    Without,
)
from tests.support.events import SOURCE, START, Scribe

GOLDEN = Path(__file__).parent / "golden"
ID = "0193a0000000700080000000000000b2"
USAGE = Usage(uncached_in=36, cached_in=5, cache_write_in=2, reasoning_out=7, other_out=50)
LATER = START + timedelta(microseconds=1_234_567)
OBSERVED = BackendObserved(
    backend_id="b-0123abcd",
    gateway="box",
    up=False,
    expires_at=LATER,
    fault="/v1/models answered 500",
    in_flight=3,
    requests=57,
    failures=2,
    first_token_us=41_000,
)
TOLD = msgspec.structs.replace(
    OBSERVED,
    between_tokens_us=8_300,
    running=3,
    waiting=1,
    kv_usage="0.4375",
    prefix_hits=345_678,
    prefix_queries=1_234_567,
    read_us=1_200_000,
    state="half_open",
    state_us=4_000_000,
    errors="2.5",
    successes=1,
    share="0.25",
    draining=True,
    drain_us=9_500_000,
)
LAST = {"requests": 3, "tokens": 40, "sources": 1}

ACCEPTED = RequestAccepted(
    request_id=ID,
    key_id="k-1",
    model="gemma",
    endpoint="chat",
    stream=True,
    deadline=START + timedelta(minutes=30),
    held_in=41,
    held_out=100,
    client_request="9f86d081884c7d65",
)

ATTEMPTED = RequestAttempted(
    request_id=ID, attempt=2, backend_id="b-0123abcd", after="connect refused"
)
SCORED = msgspec.structs.replace(ATTEMPTED, score="2.125", reasons=["2 waiting", "KV 12.5%"])
FINISHED = RequestFinished(
    request_id=ID,
    key_id="k-1",
    model="gemma",
    endpoint="chat",
    stream=True,
    accepted_at=START,
    outcome="client_gone",
    basis="running",
    usage=USAGE,
    status=200,
    reason="the client hung up",
    backend_id="b-0123abcd",
    attempts=2,
    chunks=57,
    first_token_us=41_000,
    duration_us=1_234_567,
    overhead_us=320,
)
ABANDONED = RequestAbandoned(
    request_id=ID,
    key_id="k-1",
    model="gemma",
    endpoint="completions",
    stream=True,
    accepted_at=START,
    abandoned_source=SOURCE,
    basis="running",
    usage=USAGE,
    backend_id="b-0123abcd",
    attempts=1,
    chunks=12,
)
ISSUED = KeyIssued(key_id="k-1", base=0, version=1, hash="ab" * 32, models=["gemma", "llama"])
REVOKED = KeyRevoked(
    key_id="k-1", base=1, version=2, hash="ab" * 32, revoked_at=LATER, models=["gemma"]
)
MARK = SourceMark(last=LAST, open=2, oldest_open=START)
CLOSED = SourceClosed(
    closed_source=SOURCE, last=LAST, by="/runner/box/0193a0000000700080000000000000c3"
)
HEADS = {"requests": "c0" * 32, "sources": "d1" * 32}

_PAYLOADS: tuple[Payload, ...] = (
    ACCEPTED,
    msgspec.structs.replace(ACCEPTED, client_retry=2, answers=4),
    ATTEMPTED,
    SCORED,
    msgspec.structs.replace(SCORED, model="gemma-q4"),
    RequestRejected(request_id=ID, key_id="k-1", status=404, code="model_not_found", model="llama"),
    TokensDelivered(request_id=ID, chunks=12, basis="running", usage=USAGE),
    FINISHED,
    msgspec.structs.replace(FINISHED, asked_model="gemma-27b"),
    ABANDONED,
    msgspec.structs.replace(ABANDONED, asked_model="gemma-27b"),
    MARK,
    msgspec.structs.replace(MARK, heads=HEADS),
    CLOSED,
    msgspec.structs.replace(CLOSED, heads=HEADS),
    OBSERVED,
    TOLD,
    msgspec.structs.replace(
        TOLD,
        picks=1_204,
        expected="1198.25",
        picks_us=58_750_000,
        share_before="0.3342",
        share_off="it got 51.2% of 1,204 picks",
    ),
    BackendCounted(
        backend_id="b-0123abcd",
        gateway="box",
        engine="vllm",
        counters={"vllm:prompt_tokens_total": 4810, "vllm:generation_tokens_total": 977},
        process_started=START,
        running=3,
        waiting=1,
        fault="/metrics answered 500",
    ),
    BackendRegistered(
        backend_id="gpu-1",
        base=0,
        version=1,
        url="http://10.0.0.7:8000",
        key="env:GPU_KEY",
        engine="vllm",
        models=["gemma", "llama"],
        weight=10,
        draining=True,
    ),
    BackendChanged(
        backend_id="gpu-1",
        base=1,
        version=2,
        url="http://10.0.0.7:8000",
        key="file:/run/secrets/gpu",
        engine="sglang",
        models=["gemma"],
        weight=50,
        draining=True,
    ),
    BackendRemoved(
        backend_id="gpu-1",
        base=2,
        version=3,
        url="http://10.0.0.7:8000",
        key="env:GPU_KEY",
        engine="llamacpp",
        models=["gemma"],
        weight=0,
        draining=True,
        removed_at=LATER,
    ),
    ISSUED,
    msgspec.structs.replace(ISSUED, fallback=False),
    msgspec.structs.replace(ISSUED, fallback=False, scope="admin"),
    REVOKED,
    msgspec.structs.replace(REVOKED, fallback=False),
    msgspec.structs.replace(REVOKED, fallback=False, scope="admin"),
    PricePublished(
        price_id="p-1",
        model="gemma",
        base=2,
        version=3,
        currency="USD",
        effective_from=START,
        per_million={"uncached_in": "0.15", "cached_in": "0.075", "other_out": "0.6"},
    ),
    PriceListed(
        base=3,
        entries=[
            PriceEntry(
                price_id="p-2",
                model="gemma*",
                currency="EUR",
                effective_from=LATER,
                unit=1000,
                per_unit={"uncached_in": "0.15", "request": "0.002", "gpu_second": "0.0004"},
                scope="project/proj-1",
                zone="Europe/Zurich",
                bands=[
                    Band(
                        name="night",
                        days=[1, 2, 3, 4, 5],
                        start=0,
                        end=360,
                        per_unit={"uncached_in": "0.05"},
                    )
                ],
            ),
            PriceEntry(
                price_id="p-3",
                model="gemma",
                currency="EUR",
                effective_from=LATER,
                scope="key/k-1",
                discount="12.5",
            ),
        ],
        rerate="the provider sent a new sheet",
    ),
    BooksSet(base=0, version=1, zone="Europe/Zurich", rounding="half_up", issuer="lab"),
    OrganizationSet(
        organization_id="org-1", base=0, version=1, tags={"cost_center": "4711"}, closed=True
    ),
    ProjectSet(
        project_id="proj-1",
        organization_id="org-1",
        base=0,
        version=1,
        tags={"team": "vision"},
        closed=True,
    ),
    KeyAssigned(key_id="k-1", project_id="proj-1", base=0, version=1, tags={"env": "prod"}),
    CreditPosted(
        entry_id="entry-1",
        kind="top_up",
        postings=[
            Posting(account="project/proj-1", currency="EUR", amount="25.00"),
            Posting(account="cash", currency="EUR", amount="-25.00"),
        ],
        reason="invoice 7 was paid",
        effective_from=LATER,
    ),
    PeriodClosed(
        month="2026-11",
        zone="Europe/Zurich",
        start=START,
        end=LATER,
        base=0,
        version=1,
        prices=3,
        corrections=2,
        cut={SOURCE: LAST},
        requests=120,
        open=1,
        unpriced=2,
        tokens={"uncached_in": 4800, "other_out": 977},
        totals={"EUR": "1.25"},
        lines="ab" * 32,
        root="cd" * 32,
        tzdata="2026b",
        without=[Without(source="/gateway/lost/1", reason="its disk is gone")],
    ),
    UsageCorrected(
        correction_id="corr-1",
        request_id=ID,
        original=f"{SOURCE}:7",
        base=0,
        version=1,
        reason="the engine counted twice",
        usage=USAGE,
    ),
)


def record_of(payload: Payload) -> bytes:
    """The record of `payload` as a log holds it, with the same envelope for all."""
    draft = Draft(f"{ID}/{payload.TYPE}", "k-1", LATER, payload)
    return Scribe().record(draft)


def _named(payloads: Iterable[Payload]) -> Iterator[tuple[str, Payload]]:
    shapes = Counter[str]()
    for payload in payloads:
        shapes[payload.TYPE] += 1
        number = shapes[payload.TYPE]
        yield payload.TYPE if number == 1 else f"{payload.TYPE}.{number}", payload


DRAFTS = dict(_named(_PAYLOADS))
"""By the name of the golden file: `TYPE`, and `TYPE.2` once a field was added."""

NEWEST = {payload.TYPE: name for name, payload in DRAFTS.items()}
"""The name of the file that sets every field which its type has by now."""

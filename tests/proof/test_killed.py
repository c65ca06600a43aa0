"""A gateway that is killed: its open streams are billed by the last running totals, never more.

Every stream stands still before the kill, so that the last totals are of all that was sent.
"""

import asyncio
import random
import sqlite3
from pathlib import Path

import msgspec

from tests.proof.client import Got
from tests.proof.direct import received
from tests.proof.oracle import BUCKETS, Row
from tests.proof.plans import CHAT, MESSAGES, RESPONSES, SPEECH, SPOKEN, TEXT, Plan, drawn
from tests.proof.world import stage
from tests.support import processes
from tests.support.fake.books import Served
from tests.support.script import Script

STREAMS = 60
STILL_SECONDS = 1.0
"""Four flush intervals: by then the totals are on disk."""

PATIENT = {"first_byte_seconds": 60.0, "between_chunks_seconds": 60.0, "total_seconds": 60.0}


def _standing(dice: random.Random) -> Plan:
    """A stream that stands still somewhere, with a client that waits for more."""
    while True:
        plan = drawn(dice)
        if plan.stream and plan.path in (CHAT, TEXT, RESPONSES, MESSAGES, *SPOKEN, SPEECH):
            break
    script = msgspec.structs.replace(
        Script(), chunks=9, cached=plan.script.cached, per_chunk=plan.script.per_chunk
    )
    script = msgspec.structs.replace(script, stall=dice.randrange(script.chunks + 1))
    return msgspec.structs.replace(
        plan, script=script, client="stays", reset=False, hangs_at=0, limit=0
    )


def test_a_killed_gateway_bills_what_its_streams_had_sent(tmp_path: Path, seed: int) -> None:
    dice = random.Random(f"{seed}/killed")
    played = asyncio.run(_killed(tmp_path, [_standing(dice) for _ in range(STREAMS)]))
    audit = processes.tollbook(tmp_path / "data", "audit", check=False)
    assert audit.returncode == 0, audit.stdout
    rows = _rows(tmp_path / "data")
    assert len(rows) == STREAMS
    bases = set()
    for plan, served, got in played:
        row = rows[str(served.request_id)]
        bases.add(row["basis"])
        words = f"seed {seed}: {plan.line()}: {row}, {served}"
        assert (row["state"], row["outcome"]) == ("abandoned", "abandoned"), words
        _check(plan, served, got, row, words)
    assert {"running", "counted"} <= bases


def _check(plan: Plan, served: Served, got: Got, row: Row, words: str) -> None:
    ins, outs = (
        [row[name] for name in names if row[name] is not None]
        for names in (BUCKETS[:3], BUCKETS[3:])
    )
    chunks, _ = received(plan, got.body)
    if row["basis"] == "running":
        assert (sum(ins), sum(outs)) == (served.prompt, served.completion), words
    elif row["basis"] == "counted":
        assert not ins or sum(ins) == served.prompt, words
        assert chunks <= sum(outs) <= served.completion, words
    else:
        # A piece of sound is no token, so speech has no count before its end.
        assert (row["basis"], ins, outs) == ("none", [], []), words
        assert not chunks or plan.path == SPEECH, words


async def _killed(directory: Path, plans: list[Plan]) -> list[tuple[Plan, Served, Got]]:
    async with stage(directory, timeouts=PATIENT) as there:
        sent = sum(plan.script.stall or 0 for plan in plans)
        playing = [asyncio.create_task(there.one(plan)) for plan in plans]
        await asyncio.to_thread(
            processes.wait_until,
            "every stream stands still",
            lambda: sum(call.chunks for call in there.calls()) == sent,
        )
        await asyncio.sleep(STILL_SECONDS)
        await asyncio.to_thread(there.gateway.kill)
        return await asyncio.gather(*playing)


def _rows(data: Path) -> dict[str, Row]:
    db = sqlite3.connect(f"file:{data / 'ledger.db'}?mode=ro", uri=True)
    try:
        db.row_factory = sqlite3.Row
        return {row["request_id"]: dict(row) for row in db.execute("SELECT * FROM requests")}
    finally:
        db.close()

"""`gateway.drain_to_end`: who leaves is billed what the engine itself reports at the end."""

import asyncio
import random
from pathlib import Path

from tests.proof.oracle import BUCKETS, Case
from tests.proof.plans import CHAT, INPUT_ONLY, MESSAGES, RESPONSES, TEXT, Plan
from tests.proof.world import stage
from tests.support.script import Script
from tests.support.shapes import ENGINES

SCRIPTS = 60


def _left(dice: random.Random) -> Plan:
    """An answer of a second whose client leaves in its first quarter: a hang-up is noticed within
    a heartbeat, and what breaks before that is a backend that broke."""
    path = dice.choice((CHAT, TEXT, RESPONSES, MESSAGES, *INPUT_ONLY))
    stream = path not in INPUT_ONLY and dice.random() < 0.7
    early = not stream or dice.random() < 0.3
    cut = 90 if stream and dice.random() < 0.2 else None
    return Plan(
        path=path,
        engine=dice.choice(ENGINES),
        stream=stream,
        script=Script(
            chunks=100, interval_us=10_000, cut=cut, delay_ms=300 if early else 0, reasoning=3
        ),
        client="leaves_early" if early else "leaves_sometime",
        hangs_at=0 if early else dice.randrange(1, 25),
        reset=dice.random() < 0.5,
        words=dice.randrange(1, 30),
    )


def test_the_answer_is_read_to_its_end(tmp_path: Path, seed: int) -> None:
    dice = random.Random(f"{seed}/drained")
    plans = [_left(dice) for _ in range(SCRIPTS)]

    async def played() -> list[Case]:
        async with stage(tmp_path, gateway={"drain_to_end": ["*"]}) as there:
            return await there.play(plans)

    for case in asyncio.run(played()):
        _check(case, f"seed {seed}: {case.plan.line()}: {case.row}, {case.served}")


def _check(case: Case, words: str) -> None:
    plan, served, row = case.plan, case.served, case.row
    assert case.got.left, words
    assert row["outcome"] == "client_gone", words
    if plan.path == "/v1/rerank" and plan.engine == "sglang" and row["basis"] == "none":
        return
    if plan.script.cut is None:
        assert served.end == "done", words
        assert row["basis"] == "reported", words
        assert row["reason"].endswith("read to its end"), words
    else:
        assert served.end == "cut", words
        assert row["basis"] in ("running", "tokenized"), words

    assert case.ins in (None, served.prompt), words
    assert case.outs == served.completion, words
    assert plan.script.cut is not None or all(row[name] is not None for name in BUCKETS), words

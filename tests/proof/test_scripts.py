"""The proof of the meter: random scripts of misbehaving backends and clients, and a live gateway.

The fake backends keep their own count of every token. For `reported` and `running` the ledger says
the same number; for `tokenized` what the backend's own tokenizer makes of the text that was sent;
for `counted` at most what was produced and at least what the client received. Whatever a client
gets is what the backend sent. A broken script is printed as small as it could be made, as a line
for `python -m tests.proof --plan "LINE"`; the long form is `python -m tests.soak scripts`.
"""

import asyncio
import random
from pathlib import Path

import msgspec
import pytest

from tests.proof.oracle import Case, complaints
from tests.proof.plans import CHAT, MESSAGES, RESPONSES, TEXT, Plan, drawn, read, simpler
from tests.proof.world import Played, prove, stage
from tests.support.script import Script
from tests.support.shapes import ENGINES

SCRIPTS = 300
STREAMS = 200
LEAST = f"path={CHAT} engine=fake script=n9-g4 client=leaves_there mute=True"
"""No usage and no tokenizer, so that every basis is seen."""


def check(played: Played, seed: int) -> None:
    broken = "\n".join(one.words() for one in played.broken)
    assert not broken, f"seed {seed}, {len(played.broken)} of {played.scripts} broken:\n{broken}"


def test_random_scripts(tmp_path: Path, seed: int) -> None:
    dice = random.Random(f"{seed}/scripts")
    plans = [read(LEAST), *(drawn(dice) for _ in range(SCRIPTS))]
    played = asyncio.run(prove(tmp_path, plans))
    check(played, seed)
    assert {"reported", "running", "tokenized", "counted", "none"} == played.bases.keys()
    assert {"completed", "client_gone", "backend_lost"} <= played.outcomes.keys()


def test_200_streams_at_once(tmp_path: Path, seed: int) -> None:
    dice = random.Random(f"{seed}/streams")
    played = asyncio.run(prove(tmp_path, [_stream(dice) for _ in range(STREAMS)], STREAMS))
    check(played, seed)
    assert played.most_open >= STREAMS * 3 // 4


def _stream(dice: random.Random) -> Plan:
    """A stream of some seconds that ends in one of four ways."""
    chunks = dice.randrange(30, 60)
    at = dice.randrange(20, chunks)
    end = dice.choice(("well", "well", "left", "cut", "error"))
    cut, error = at if end == "cut" else None, at if end == "error" else None
    return Plan(
        path=dice.choice((CHAT, TEXT, RESPONSES, MESSAGES)),
        engine=dice.choice(ENGINES),
        script=Script(chunks=chunks, interval_us=60_000, cut=cut, error=error),
        client="leaves_sometime" if end == "left" else "stays",
        hangs_at=at if end == "left" else 0,
        reset=dice.random() < 0.5,
    )


def test_a_plan_is_written_and_read_back(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(200):
        plan = drawn(dice)
        assert read(plan.line()) == plan
        assert all(one != plan for one in simpler(plan))


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """Good cases, to be falsified."""
    plans = [
        read("path=/v1/chat/completions engine=vllm script=n5-c2-r1"),
        read("path=/v1/chat/completions engine=vllm script=n9-g4 client=leaves_there"),
        read("path=/v1/messages engine=llamacpp script=n9-g4 client=leaves_there"),
    ]

    async def played() -> list[Case]:
        async with stage(tmp_path_factory.mktemp("good")) as there:
            return await there.play(plans)

    found = asyncio.run(played())
    assert [list(complaints(case)) for case in found] == [[], [], []]
    assert [case.row["basis"] for case in found] == ["reported", "running", "tokenized"]
    return found


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize(
    ("column", "change"),
    [("other_out", 1), ("other_out", -1), ("uncached_in", 1), ("uncached_in", -1), ("chunks", 40)],
)
def test_a_row_that_is_off_by_one_is_seen(
    cases: list[Case], which: int, column: str, change: int
) -> None:
    case = cases[which]
    row = case.row | {column: case.row[column] + change}
    assert list(complaints(msgspec.structs.replace(case, row=row)))


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize(
    ("column", "value"),
    [("basis", "counted"), ("basis", "none"), ("outcome", "shutdown"), ("uncached_in", None)],
)
def test_a_row_of_another_kind_is_seen(
    cases: list[Case], which: int, column: str, value: str | None
) -> None:
    case = cases[which]
    assert list(complaints(msgspec.structs.replace(case, row=case.row | {column: value})))


def test_bytes_that_the_backend_did_not_send_are_seen(cases: list[Case]) -> None:
    for case in cases:
        body = case.got.body.replace(b" t1", b" t2")
        got = msgspec.structs.replace(case.got, body=body)
        assert list(complaints(msgspec.structs.replace(case, got=got)))
    assert list(complaints(msgspec.structs.replace(cases[0], row=cases[0].row | {"cached_in": 0})))

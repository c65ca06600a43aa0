"""A live gateway in front of one fake backend of each engine, and scripts played against it."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from tests.gateway.doors import Key, backend, door, new_key
from tests.proof.client import Got, play
from tests.proof.direct import Direct, direct, sounds
from tests.proof.oracle import Case, Row, complaints
from tests.proof.plans import MUTE, SPEECH, Plan, simpler
from tests.support import processes
from tests.support.fake.books import Served
from tests.support.fake_backend import FakeBackend, fake_backend
from tests.support.processes import Gateway
from tests.support.shapes import ENGINES

LIMITS = {"first_byte_seconds": 3.0, "between_chunks_seconds": 2.0, "total_seconds": 60.0}
AT_ONCE = 40
LEDGER_SECONDS_MAX = 30.0
RECENT = 2_000
SHRINKS_MAX = 60


class Broken(msgspec.Struct):
    """A script whose row is wrong, as small as it could be made."""

    plan: Plan
    faults: list[str]

    def words(self) -> str:
        return f"  {self.plan.line()}\n    " + "\n    ".join(self.faults)


class Played(msgspec.Struct, kw_only=True):
    """What came of some scripts. `most_open` were in the backends' hands at once."""

    scripts: int
    tokens: int
    most_open: int
    bases: dict[str, int]
    outcomes: dict[str, int]
    broken: list[Broken]

    def words(self) -> str:
        """One line for a person."""
        counts = ", ".join(f"{basis} {n}" for basis, n in sorted(self.bases.items()))
        ends = ", ".join(f"{name} {n}" for name, n in sorted(self.outcomes.items()))
        return f"{self.scripts} scripts, {self.tokens} tokens: {counts}; {ends}"


class Stage:
    """Where scripts are played."""

    def __init__(
        self, data: Path, gateway: Gateway, fakes: dict[str, FakeBackend], key: Key
    ) -> None:
        self.data, self.gateway, self.fakes, self.key = data, gateway, fakes, key
        self._tags = 0
        self._open = 0
        self.most_open = 0

    async def play(self, plans: Sequence[Plan], at_once: int = AT_ONCE) -> list[Case]:
        """Play all `plans`, `at_once` at a time, and read their rows."""
        turns = asyncio.Semaphore(at_once)

        async def one(plan: Plan) -> tuple[Plan, Served, Got]:
            async with turns:
                return await self.one(plan)

        played = await asyncio.gather(*(one(plan) for plan in plans))
        rows = await self.rows([served.request_id for _, served, _ in played])
        return [
            Case(
                plan=plan,
                direct=direct(plan, served.number),
                served=served,
                got=got,
                row=rows[str(served.request_id)],
            )
            for plan, served, got in played
        ]

    def calls(self) -> list[Served]:
        """What all backends have in their books."""
        return [call for fake in self.fakes.values() for call in fake.calls]

    async def one(self, plan: Plan) -> tuple[Plan, Served, Got]:
        """Play one plan; the ledger may not know its end yet."""
        self._tags += 1
        tag, fake = f"s{self._tags}", self.fakes[plan.server]

        def served() -> Served | None:
            calls = fake.counts.calls
            recent = (calls[-place] for place in range(1, min(len(calls), RECENT) + 1))
            return next((call for call in recent if call.tag == tag), None)

        async def arrived() -> None:
            await _soon(lambda: served() is not None)

        shown = direct(plan, 0)
        self._open += 1
        self.most_open = max(self.most_open, self._open)
        got = await play(
            plan,
            self.gateway.port,
            self.key.secret,
            tag,
            arrived=arrived,
            enough=lambda got: _enough(plan, shown, got),
        )
        self._open -= 1
        found = served()
        assert found is not None, f"it never came to the backend: {plan.line()}: {got}"
        await _soon(lambda: found.end != "open")
        return plan, found, got

    async def rows(self, request_ids: Sequence[str | None]) -> dict[str, Row]:
        """The rows of requests, once the ledger has the ends of all of them."""
        wanted = {str(request_id) for request_id in request_ids}
        end = asyncio.get_running_loop().time() + LEDGER_SECONDS_MAX
        while True:
            rows = await asyncio.to_thread(_finished, self.data, wanted)
            if len(rows) == len(wanted):
                return rows
            missing = sorted(wanted - rows.keys())
            assert asyncio.get_running_loop().time() < end, f"no end in the ledger: {missing[:5]}"
            await asyncio.sleep(0.1)

    async def shrink(self, case: Case) -> Broken:
        """The simplest plan on the way from that of `case` which is broken too."""
        found = Broken(case.plan, list(complaints(case)))
        tries = 0
        while tries < SHRINKS_MAX:
            for plan in simpler(found.plan):
                tries += 1
                faults = [word for one in await self.play([plan]) for word in complaints(one)]
                if faults:
                    found = Broken(plan, faults)
                    break
            else:
                break
        return found


async def _soon(holds: Callable[[], bool]) -> None:
    """Wait for what the backend will do in a moment; who looks at it next says if it did not."""
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)


def _enough(plan: Plan, shown: Direct, got: Got) -> bool:
    """True once the client has what its plan waits for."""
    script, body = plan.script, got.body
    if plan.client == "leaves_after":
        ends = (b"[DONE]", b'"message_stop"', b'"response.completed"', b'"response.incomplete"')
        return any(end in body for end in ends) and body.endswith(b"\n")
    steps = script.stall if plan.client == "leaves_there" else plan.hangs_at
    if not steps:
        return True
    if plan.path == SPEECH:
        return sounds(body) >= steps
    there = shown.mark(min(steps, len(shown.steps()))) in body
    # Where it is known that no more will come, the event that brought it is waited for.
    return there and (plan.client != "leaves_there" or body.endswith(b"\n"))


def _finished(data: Path, wanted: set[str]) -> dict[str, Row]:
    """Those of the wanted rows that are finished; nothing while there is no ledger yet."""
    with contextlib.suppress(sqlite3.OperationalError):
        db = sqlite3.connect(f"file:{data / 'ledger.db'}?mode=ro", uri=True)
        try:
            db.row_factory = sqlite3.Row
            rows = db.execute("SELECT * FROM requests WHERE state = 'finished'")
            return {row["request_id"]: dict(row) for row in rows if row["request_id"] in wanted}
        finally:
            db.close()
    return {}


@contextlib.asynccontextmanager
async def stage(
    directory: Path, more_models: tuple[str, ...] = (), **tables: Any
) -> AsyncIterator[Stage]:
    """A gateway and its backends, until the block ends; each serves `more_models` too."""
    data = directory / "data"
    async with AsyncExitStack() as stack:
        fakes: dict[str, FakeBackend] = {}
        for engine, name in (*((engine, engine) for engine in ENGINES), ("fake", MUTE)):
            models = (f"m-{name}", *more_models)
            one = fake_backend(engine, models=models, name=name, tokenizes=name != MUTE)
            fakes[name] = await stack.enter_async_context(one)
        key = await asyncio.to_thread(new_key, data, "k")
        configured = [backend(fake.url, name) for name, fake in fakes.items()]
        opened = door(directory, configured, **{"timeouts": LIMITS, **tables})
        gateway = await asyncio.to_thread(opened.__enter__)
        try:
            yield Stage(data, gateway, fakes, key)
        finally:
            await asyncio.to_thread(opened.__exit__, None, None, None)


async def prove(
    directory: Path,
    plans: Sequence[Plan],
    at_once: int = AT_ONCE,
    *,
    shrinks: int = 3,
    **tables: Any,
) -> Played:
    """Play `plans` on a stage of their own; the audit of its ledger must be clean."""
    async with stage(directory, **tables) as there:
        cases = await there.play(plans, at_once)
        wrong = [case for case in cases if any(complaints(case))]
        broken = [await there.shrink(case) for case in wrong[:shrinks]]
        broken += [Broken(case.plan, list(complaints(case))) for case in wrong[shrinks:]]
        audit = await asyncio.to_thread(processes.tollbook, there.data, "audit", check=False)
        assert audit.returncode == 0, audit.stdout
        assert "Traceback" not in there.gateway.output()
        most_open = there.most_open
    played = Played(
        scripts=len(cases),
        tokens=sum(case.served.completion for case in cases),
        most_open=most_open,
        bases={},
        outcomes={},
        broken=broken,
    )
    for case in cases:
        for found, name in ((played.bases, "basis"), (played.outcomes, "outcome")):
            found[case.row[name]] = found.get(case.row[name], 0) + 1
    return played

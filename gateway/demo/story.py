"""What the demo does, from the first process to the last number. It prints nothing.

Requests go one after the other, and llama.cpp's counters are read between them, so that each
difference can be told for the request that it belongs to.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import sleep

import msgspec

from gateway.demo.checks import (
    Check,
    Compared,
    Counters,
    billed,
    compare,
    door,
    read_counters,
    totals,
)
from gateway.demo.clients import CALLS, Call, fetch, make, status
from gateway.demo.engine import MODEL, Order, model_file, threads_here
from gateway.demo.errors import DemoFailed
from gateway.wards.errors import WardFailed
from gateway.wards.ward import Ward, leashed, ward
from ledger.clock import Clock
from ledger.folds.requests import RequestRow
from ledger.sql.bill import BillLine, bill
from ledger.sql.checks import known_requests
from ledger.sql.session import open_ledger
from streams.local.layout import Layout

HOST = "127.0.0.1"
LOGS = "demo"
"""Where in the data directory the two servers' logs are."""

SETTLE_SECONDS_MAX = 30.0
"""For the engine to notice a hang-up, or the ledger to hold what the spool has: a second or two."""

POLL_SECONDS = 0.05

BLAME_POLLS = 20
"""So often it is looked whether a server died, when a call has failed: for a second."""

STEPS = 6 + len(CALLS)
"""How often `Tell` is called."""

Tell = Callable[[str], None]
"""Told, before each step, what it is."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo runs on. `keys` are the users' secrets by name, `key_ids` their ids.

    `backend_key_file` holds `backend_key`; it is what the gateway is given.
    """

    data: Path
    port: int
    backend_port: int
    backend_key: str
    backend_key_file: Path
    keys: Mapping[str, str]
    key_ids: Mapping[str, str]

    @property
    def front(self) -> str:
        """The gateway's address."""
        return f"http://{HOST}:{self.port}"

    @property
    def back(self) -> str:
        """The model server's address."""
        return f"http://{HOST}:{self.backend_port}"


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One request of the demo: what was asked, what came, and how the books compare."""

    call: Call
    text: str
    row: RequestRow
    compared: Compared


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """All that the demo shows: the bill of its two keys, its requests, and the four checks."""

    lines: list[BillLine]
    told: list[Told]
    checks: list[Check]

    @property
    def holds(self) -> bool:
        """True if every check holds."""
        return all(check.holds for check in self.checks)


def start(plan: Plan, clock: Clock, stack: ExitStack, tell: Tell) -> tuple[Ward, Ward]:
    """The model server and the gateway, ready; they end with `stack`. Raises `WardFailed`."""
    logs = plan.data / LOGS
    logs.mkdir(exist_ok=True)
    tell("putting the model together")
    order = Order(
        model=str(model_file()),
        host=HOST,
        port=plan.backend_port,
        key=plan.backend_key,
        threads=threads_here(),
    )
    tell("starting llama.cpp")
    argv = [sys.executable, "-m", "gateway.demo.engine"]
    engine = stack.enter_context(
        ward("llama.cpp", argv, logs / "engine.log", msgspec.json.encode(order) + b"\n")
    )
    engine.wait_until(lambda: _answers(f"{plan.back}/health"), clock)
    tell("starting the gateway")
    argv = [sys.executable, "-m", "gateway.cli", "serve", "--data", str(plan.data)]
    argv += ["--host", HOST, "--port", str(plan.port), "--backend", plan.back]
    argv += ["--backend-key", f"file:{plan.backend_key_file.absolute()}"]
    gateway = stack.enter_context(leashed("the gateway", argv, logs / "gateway.log"))
    gateway.wait_until(lambda: _answers(f"{plan.front}/health/ready"), clock)
    return engine, gateway


def drive(plan: Plan, clock: Clock, wards: tuple[Ward, Ward], tell: Tell) -> Outcome:
    """Make every request, wait for the ledger, and compare. Raises `WardFailed`."""
    at_start = reading = _settled(plan, clock, wards)
    tell("knocking at the front door and the back door")
    user = plan.keys["ada"]
    front, request_id = status(plan.front, user, MODEL)
    checks = [
        door("front door with a user key: 200", front, 200),
        door("back door without the server key: 401", status(plan.back, None, MODEL)[0], 401),
        door("back door with a user key: 401", status(plan.back, user, MODEL)[0], 401),
    ]
    knock = Call(who="ada", endpoint="chat", stream=False, prompt="Hi")
    made: list[tuple[Call, str, str, Counters]] = []
    following = _settled(plan, clock, wards)
    made.append((knock, request_id, "", following.minus(reading)))
    for call in CALLS:
        reading = following
        tell(_words(call))
        with blame(wards):
            heard = make(f"{plan.front}/v1", plan.keys[call.who], MODEL, call)
        following = _settled(plan, clock, wards)
        made.append((call, heard.request_id, heard.text, following.minus(reading)))
    tell("waiting until the ledger has it all")
    rows, lines = _books(plan, clock, wards, [request_id for _, request_id, _, _ in made])
    told = [
        Told(call=call, text=text, row=rows[of], compared=compare(of, engine, rows[of]))
        for call, of, text, engine in made
    ]
    sums = billed(msgspec.structs.asdict(line) for line in lines)
    engine = following.minus(at_start)
    checks.append(totals([one.compared for one in told], engine, sums))
    tell("done")
    return Outcome(lines=lines, told=told, checks=checks)


@contextmanager
def blame(wards: tuple[Ward, Ward]) -> Iterator[None]:
    """A call that failed because a server died is told as that server's death."""
    try:
        yield
    except (WardFailed, OSError):
        # Connections of a process that was killed break a little before it is gone.
        for _ in range(BLAME_POLLS):
            for one in wards:
                one.check()
            sleep(POLL_SECONDS)
        raise


def _words(call: Call) -> str:
    how = "streamed" if call.stream else "plain"
    ends = ", hangs up mid-stream" if call.hang_up_after is not None else ""
    return f"{call.who}: {call.endpoint}, {how}{ends}"


def _answers(url: str) -> bool:
    try:
        return fetch(url, None)[0] == 200
    except OSError:
        return False  # nobody listens there yet


def _settled(plan: Plan, clock: Clock, wards: tuple[Ward, Ward]) -> Counters:
    """The engine's counters once it is idle."""
    end = clock.monotonic() + SETTLE_SECONDS_MAX
    while clock.monotonic() < end:
        for one in wards:
            one.check()
        with blame(wards):
            code, _, text = fetch(f"{plan.back}/metrics", plan.backend_key)
        if code != 200:
            raise DemoFailed(f"llama.cpp's metrics answer {code}: {text}")
        counters, idle = read_counters(text)
        if idle:
            return counters
        sleep(POLL_SECONDS)
    raise DemoFailed(
        f"llama.cpp still works on a request after {SETTLE_SECONDS_MAX:.0f} s; "
        "the client's hang-up did not reach it"
    )


def _books(
    plan: Plan, clock: Clock, wards: tuple[Ward, Ward], request_ids: list[str]
) -> tuple[dict[str, RequestRow], list[BillLine]]:
    """The rows of all requests once each has an end, and the bill of the two keys."""
    end = clock.monotonic() + SETTLE_SECONDS_MAX
    with open_ledger(Layout(plan.data).ledger, readonly=True) as ledger:
        while clock.monotonic() < end:
            for one in wards:
                one.check()
            with ledger.read() as read:
                rows = known_requests(read, request_ids)
                if len(rows) == len(request_ids) and all(row.billed for row in rows.values()):
                    ids = set(plan.key_ids.values())
                    lines = [line for line in bill(read, None) if line.key_id in ids]
                    return rows, lines
            sleep(POLL_SECONDS)
    raise DemoFailed(
        f"after {SETTLE_SECONDS_MAX:.0f} s the ledger lacks requests that were answered; "
        f"see {plan.data / LOGS / 'gateway.log'}, and run `tollbook audit --data {plan.data}`"
    )

"""`tollbook demo`: a real model behind the gateway, two users, a bill, and its proof.

It parses, calls and prints; what happens is in `gateway.demo`.
"""

import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Final, Never

import click

from gateway.cli.bill import bill_table, line_json
from gateway.cli.data import change_registry, for_writing, name_key, registry
from gateway.cli.failure import EXIT_FAILED
from gateway.cli.keys import issue
from gateway.cli.options import json_option
from gateway.cli.output import Column, Table, cell_text, json_text, show
from gateway.cli.place import Place
from gateway.cli.price_entries import named_prices
from gateway.cli.price_words import per_million
from gateway.cli.prices import listing
from gateway.secrets import put_secret
from gateway.settings import Settings
from ledger.clock import SystemClock, to_us
from ledger.events import PriceEntry
from ledger.folds.rating import Sheet
from ledger.identity import mint_id, mint_secret
from ledger.zones import local

if TYPE_CHECKING:
    from gateway.demo.checks import Compared
    from gateway.demo.story import Outcome, Plan, Tell, Told
    from gateway.wards.ward import Ward

DATA_DEFAULT: Final = Path("tollbook-demo")
PORT_DEFAULT, BACKEND_PORT_DEFAULT = 8180, 8181
USERS: Final = ("ada", "ben")
PRICE_IN, PRICE_CACHED_IN, PRICE_OUT = "0.1", "0.01", "0.4"
"""Per million tokens, in USD: made up, and small enough that a few cents would be a long day."""

RERATE: Final = "the demo's own price, from its first request on"
GROUPS: Final = ("key", "model")
WATCH_SECONDS: Final = 0.5


@click.command("demo")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=DATA_DEFAULT,
    show_default=True,
    metavar="DIR",
    help="Data directory of the demo. It is kept, and a second run adds to it.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT_DEFAULT,
    show_default=True,
    metavar="N",
    help="Port of the gateway; 0: a free one.",
)
@click.option(
    "--backend-port",
    type=click.IntRange(0, 65535),
    default=BACKEND_PORT_DEFAULT,
    show_default=True,
    metavar="N",
    help="Port of the model server; 0: a free one.",
)
@click.option("--keep-running", is_flag=True, help="Leave both servers running until Ctrl-C.")
@json_option
def command(data: Path, port: int, backend_port: int, keep_running: bool, as_json: bool) -> int:
    """Run a real llama.cpp model behind the gateway, with two users, and check the bill against
    the engine's own counters. Everything stays on this machine. Exit code 0 only if all four
    checks hold."""
    from gateway.demo.story import STEPS, drive, start
    from gateway.wards.ports import take_port

    clock = SystemClock()
    with ExitStack() as stack:
        with steps(STEPS) as tell:
            port = take_port("127.0.0.1", port, "--port")
            backend_port = take_port("127.0.0.1", backend_port, "--backend-port")
            plan = prepare(data, port, backend_port, clock.now(), tell)
            wards = start(plan, clock, stack, tell)
            outcome = drive(plan, clock, wards, tell)
        report(outcome, plan, as_json=as_json)
        if keep_running:
            click.echo(keep_text(plan), err=as_json)
            # Here Ctrl-C is the way to end it, and no failure.
            with suppress(KeyboardInterrupt):
                watch(wards)
    return 0 if outcome.holds else EXIT_FAILED


def watch(wards: Iterable["Ward"]) -> Never:
    """Sleep for as long as all servers live. Raises `WardFailed` when one has ended."""
    while True:
        for one in wards:
            one.check()
        sleep(WATCH_SECONDS)


def prepare(data: Path, port: int, backend_port: int, now: datetime, tell: "Tell") -> "Plan":
    """Two new keys, prices for the model unless it has them, and a key for the model server."""
    from gateway.demo.engine import MODEL
    from gateway.demo.story import Plan

    tell("making two keys and prices")
    place = Place(for_writing(data), Settings())
    keys, key_ids = {}, {}
    for name in USERS:
        key_ids[name], keys[name] = mint_id(), mint_secret()
        draft = issue(key_ids[name], keys[name], None, now)
        name_key(place, key_ids[name], name)
        change_registry(place, lambda book, draft=draft: draft)  # type: ignore[misc]
    said = (("in", PRICE_IN), ("out", PRICE_OUT), ("cached_in", PRICE_CACHED_IN))
    prices = named_prices(said)
    book = registry(place)
    sheet = Sheet(book.prices, book.members)
    rate = sheet.rate(key_ids[USERS[0]], MODEL, to_us(now), lambda zone, us: local(us, zone))
    if rate is None or per_million(rate.price) != prices:
        entry = PriceEntry(
            price_id=mint_id(),
            model=MODEL,
            currency="USD",
            effective_from=now,
            per_unit=prices,
        )
        change_registry(place, lambda book: listing(book, [entry], RERATE, now))
    server_key = mint_secret()
    return Plan(
        data=data,
        port=port,
        backend_port=backend_port,
        backend_key=server_key,
        backend_key_file=put_secret(data, "demo-engine.key", server_key.encode()),
        keys=keys,
        key_ids=key_ids,
    )


@contextmanager
def steps(total: int) -> Iterator["Tell"]:
    """Show on standard error which of `total` steps is at work: a bar, or lines in a log."""
    if not sys.stderr.isatty():
        yield lambda what: click.echo(f"tollbook demo: {what}", err=True)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=total)

        def tell(what: str) -> None:
            shown.update(task, advance=1, description=what)

        yield tell


def report(outcome: "Outcome", plan: "Plan", *, as_json: bool) -> None:
    """Print the requests, the bill and the checks."""
    if as_json:
        click.echo(
            json_text(
                {
                    "rows": [line_json(line, GROUPS) for line in outcome.lines],
                    "requests": [told_json(one) for one in outcome.told],
                    "checks": outcome.checks,
                }
            )
        )
        return
    click.echo("Every request, tokens as the engine counted them = as the ledger holds them\n")
    show(told_table(outcome.told))
    click.echo("\nThe bill\n")
    show(bill_table(outcome.lines, GROUPS))
    click.echo("\nFour checks\n")
    for check in outcome.checks:
        click.echo(f"  {'holds' if check.holds else 'FAILS'}  {check.name} ({check.seen})")
    click.echo("\n" + on_from_here(plan.data))


def told_json(one: "Told") -> dict[str, object]:
    """One request of the demo for JSON. Pure."""
    return {
        "id": one.compared.request_id,
        "name": one.call.who,
        "endpoint": one.call.endpoint,
        "stream": one.call.stream,
        "outcome": one.row.outcome,
        "basis": one.row.basis,
        "engine": one.compared.engine,
        "ledger": one.compared.ledger,
        "explained": one.compared.explained,
    }


def told_table(told: list["Told"]) -> Table:
    """The requests of the demo as a table; a difference is explained below. Pure."""
    words = ("#", "name", "endpoint", "how", "ended", "basis")
    numbers = ("input processed", "input from cache", "output")
    rows = []
    notes = []
    for number, one in enumerate(told, start=1):
        how = "streamed" if one.call.stream else "plain"
        who = (str(number), one.call.who, one.call.endpoint, how, one.row.outcome, one.row.basis)
        rows.append((*who, *_sides(one.compared)))
        if not one.compared.same:
            why = one.compared.explained or "nothing explains the difference"
            notes.append(f"Request {number} ({one.compared.request_id}): {why}")
    columns = [Column(word) for word in words] + [Column(name, number=True) for name in numbers]
    return Table(tuple(columns), tuple(rows), tuple(notes))


def _sides(compared: "Compared") -> Iterator[str]:
    """Engine and ledger side by side, number by number."""
    engine, ledger = compared.engine, compared.ledger
    for name in engine.__struct_fields__:
        one, other = getattr(engine, name), None if ledger is None else getattr(ledger, name)
        sign = "=" if one == other else "≠"
        yield f"{cell_text(one)} {sign} {cell_text(other)}"


def on_from_here(data: Path) -> str:
    """What to try next, on the data that stays. Pure."""
    where = f"--data {shlex.quote(str(data))}"
    return "\n".join(
        (
            f"The books stay in {data}. Go on with",
            f"  tollbook bill {where}",
            f'  tollbook query "SELECT key, basis, sum(cost) FROM bill GROUP BY ALL" {where}',
            f"  tollbook audit {where}",
        )
    )


def keep_text(plan: "Plan") -> str:
    """How to call the gateway while it runs on. Pure."""
    from gateway.demo.engine import MODEL

    body = f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "Hi"}}]}}'
    return (
        f"\nServing on {plan.front}/v1 until Ctrl-C. Call it as ada:\n"
        f"  curl {plan.front}/v1/chat/completions -H 'content-type: application/json' \\\n"
        f"    -H 'authorization: Bearer {plan.keys['ada']}' -d '{body}'"
    )

"""How the ledger does with many requests: `python -m tests.growth --rows N [--postgres]`.

Fills a new ledger from a seed, in a directory that is removed at the end, and closes each month but
the last. Then it prints how large the ledger is, how long the bill, the exports and the closing of
the last month take and in how much memory, and the plans of the main queries. It asserts nothing: a
person reads it.
"""

import argparse
import json
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ledger.sql.session import ledger_url, open_ledger
from tests.growth import work
from tests.growth.fill import fill
from tests.growth.plans import plans
from tests.growth.traffic import Month, months_of
from tests.ledger.closings import close
from tests.support.kafka import running_postgres

FREE_BYTES_PER_ROW = 4_000
"""Room that must be free on the disk for each request that is made, its indexes and exports."""


def main() -> None:
    """Fill, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.growth", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="requests in all")
    parser.add_argument("--months", type=int, default=10, help="months that they are spread over")
    parser.add_argument("--first", default="2026-11", help="the first month")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--zone", help="of the books and the band; else UTC and Berlin's nights")
    parser.add_argument("--postgres", action="store_true", help="in a Postgres of its own")
    parser.add_argument("--only", help="measure only these, with commas between", default="")
    parser.add_argument("--plans", action="store_true", help="print the plans of the main queries")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args()
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < options.rows * FREE_BYTES_PER_ROW:
        parser.error(f"{free:,} bytes are free in {tempfile.gettempdir()}, too few for that")
    months = months_of(options.first, options.months, options.rows)
    figures: dict[str, object] = {"rows": options.rows, "months": options.months}
    with _place(postgres=options.postgres) as (target, folder):
        figures["database"] = "postgres" if options.postgres else "sqlite"
        _fill(target, months, options, figures)
        for name in work.STEPS:
            if not options.only or name in options.only.split(","):
                figures[name] = _alone(name, target, months[-1].name, folder)
                print(name, json.dumps(figures[name]), flush=True)
        if options.plans:
            with open_ledger(target, readonly=True) as ledger, ledger.read() as read:
                for name, lines in plans(read, months[-1]).items():
                    print(f"\n{name}", *lines, sep="\n  ")
    print(json.dumps(figures, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def _fill(
    target: str, months: list[Month], options: argparse.Namespace, figures: dict[str, object]
) -> None:
    started = time.monotonic()
    said = 0

    def progress(done: int) -> None:
        nonlocal said
        if done - said >= 500_000:
            said = done
            print(f"{done:,} requests in {time.monotonic() - started:.0f} s", flush=True)

    closed: dict[str, float] = {}
    with open_ledger(target) as ledger:

        def filled(month: Month) -> None:
            if month is months[-1]:
                return
            # As in life: a month is closed before most of the next one is there.
            work.month_chains(ledger, month.name, Path())
            began = time.monotonic()
            close(ledger, month.name)
            closed[month.name] = round(time.monotonic() - began, 2)
            print(f"{month.name} closed in {closed[month.name]} s", flush=True)

        fill(ledger, months, options.seed, progress, filled, zone=options.zone)
    figures["closed"] = closed
    figures["fill"] = {"seconds": round(time.monotonic() - started, 1)}


def _alone(step: str, *given: object) -> work.Figures:
    """What a step says, run in a process of its own, so that its memory is its own."""
    context = multiprocessing.get_context("spawn")
    failed: list[BaseException] = []
    with context.Pool(1) as pool:
        told = pool.apply_async(work.run, (step, *given), error_callback=failed.append)
        told.wait()
    # The other figures are worth having although one step failed.
    return {"failed": repr(failed[0])} if failed else told.get()


@contextmanager
def _place(*, postgres: bool) -> Iterator[tuple[str, Path]]:
    """The URL of an empty ledger, and a folder for what is exported."""
    with tempfile.TemporaryDirectory(prefix="tollbook-growth-") as name:
        folder = Path(name)
        if not postgres:
            yield ledger_url(folder / "ledger.db"), folder
            return
        with running_postgres() as server:
            yield server.create_database("growth"), folder


if __name__ == "__main__":
    main()

"""What Tollbook costs: `python -m tests.bench [--seconds S] [--rounds N] [--json FILE]`.

Direct, a bare Starlette + aiohttp passthrough, and Tollbook with its ledger on, in the same run and
in turns, so that the noise of the machine meets all three. Figures are ratios and medians over the
rounds; only they last, requests per second do not. It asserts nothing: a person reads it.
"""

import argparse
import json
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench import real_model
from tests.bench.machinery import build
from tests.bench.measures import Figure, against_fake


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each load")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--only", choices=("fake", "model"), help="only this part")
    options = parser.parse_args()
    console = Console()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="tollbook-bench-") as place:
        if options.only != "model":
            build()
            figures += against_fake(Path(place), options.seconds, options.rounds, console.print)
        if options.only != "fake":
            figures += real_model.figures(Path(place), options.rounds, console.print)
    table = Table(title="Tollbook against direct and against a bare passthrough")
    for column in ("what", "direct", "passthrough", "tollbook", "figure", "budget", "holds"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for figure in figures:
        table.add_row(*figure.row())
    console.print(table)
    if options.json is not None:
        options.json.write_text(json.dumps([figure.row() for figure in figures], indent=1) + "\n")


if __name__ == "__main__":
    main()

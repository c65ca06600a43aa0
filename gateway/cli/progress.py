"""Shows how far long work is: on standard error, only on a terminal, gone when it is done."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tell = Callable[[int, int], None]
"""Told how many of how many units are done; the total may be 0 while it is not known."""


@contextmanager
def progress(what: str) -> Iterator[Tell]:
    """Show `what` while the block runs; what it is given tells how far the work is."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    # Imported here: most commands end before this alone would have been loaded.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=0)
        yield lambda done, total: shown.update(task, completed=done, total=total)

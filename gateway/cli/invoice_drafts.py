"""Drafts of statements that no longer say anything: found by their names and their first words.

A project that has no line in a currency any more gets no new file, so the draft that was written
while it had one would stay, and could be taken for a statement.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from gateway.cli.invoice_html import begins
from gateway.cli.invoice_words import UNPRICED, draft_title, file_start

_REST: Final = re.compile(rf"([A-Z]{{3}}|{UNPRICED})\.(html|pdf)")
"""What comes in the name of a file behind month and project."""


def drop_drafts(
    directory: Path,
    month: str,
    projects: Iterable[str | None],
    written: Collection[Path],
    *,
    is_open: bool,
) -> list[Path]:
    """Remove the drafts of `month` and `projects` (null: of keys without one) that what was just
    `written` leaves behind, and give their paths. While the month `is_open` a draft whose other
    format was written stays."""
    kept = {path.stem for path in written} if is_open else set()
    gone = []
    for path in _named(directory, month, projects):
        if path not in written and path.stem not in kept and _is_draft(path, month):
            path.unlink()
            gone.append(path)
    return gone


def _named(directory: Path, month: str, projects: Iterable[str | None]) -> Iterator[Path]:
    """The files that have the name of a statement of this month."""
    starts = [file_start(month, project_id) for project_id in projects]
    for path in sorted(directory.glob(f"{month}-*")) if directory.is_dir() else ():
        rests = (path.name.removeprefix(start) for start in starts if path.name.startswith(start))
        if any(_REST.fullmatch(rest) for rest in rests) and path.is_file():
            yield path


def _is_draft(path: Path, month: str) -> bool:
    """Whether a file is what `tollbook invoice` writes as a draft of `month`."""
    title = draft_title(month)
    try:
        content = path.read_bytes()
    except OSError:
        return False
    if path.suffix == ".html":
        return content.startswith(begins(title).encode())
    wanted = (f"/Title ({title})".encode(), b"/Creator (Tollbook)")
    return content.startswith(b"%PDF") and all(words in content for words in wanted)

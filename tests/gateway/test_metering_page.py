"""docs/metering.md says what the program does: its tables are made of the program's own.

`python -m tests.gateway.test_metering_page` writes them anew.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, get_args

import pytest

from gateway.cli.explain_words import BASIS_SAID
from gateway.cuts import POLICIES
from gateway.tokenizers import SECONDS_MAX
from gateway.wire.endpoints import ENDPOINTS
from ledger.events import BUCKETS, Basis
from ledger.export.columns import ATTEMPT_COLUMNS, CONSERVATION_COLUMNS, COUNTER_COLUMNS
from ledger.export.views import VIEWS
from tests.gateway.test_faults import FAULTS, Fault
from tests.support.processes import REPO

PATH: Final = REPO / "docs" / "metering.md"
PAGE: Final = PATH.read_text()

FOUND: Final = {
    "usage": "the member `usage` of the answer",
    "nothing_generated": "no model runs: every bucket is 0",
}
STREAMED: Final = {
    "chat": "the last chunk with `usage`; running on every chunk",
    "text": "the last chunk with `usage`; running on every chunk",
    "responses": "`response.completed`, `.incomplete` or `.failed`",
    "messages": "input in `message_start`, output in `message_delta`",
    "transcription": "`transcript.text.done`, or the last chunk",
    "speech": "`speech.audio.done`",
    None: "never streamed: `stream` is refused with 400",
}
BILLED: Final = {
    "begun": "the prompt, and what was produced as far as it is known",
    "delivered": "nothing until text was passed on; then the prompt and what was produced",
}


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    header = list(header)
    yield f"| {' | '.join(header)} |"
    yield f"|{'|'.join('---' for _ in header)}|"
    for row in rows:
        yield f"| {' | '.join(str(cell) for cell in row)} |"


def endpoints() -> Iterator[str]:
    return table(
        ("path", "on events", "plain answer", "streamed answer", "output"),
        (
            (
                f"`{one.path}`",
                f"`{one.name}`",
                FOUND[one.found],
                STREAMED[one.dialect],
                "counted" if one.generates else "none: 0",
            )
            for one in ENDPOINTS.values()
        ),
    )


def bases() -> Iterator[str]:
    said = (BASIS_SAID[basis].partition(": ") for basis in get_args(Basis))
    return table(("basis", "how the count was obtained"), ((f"`{n}`", w) for n, _, w in said))


def policies() -> Iterator[str]:
    return table(
        ("cause", "outcome", "reason on the row", "billed", "a tokenizer is asked"),
        (
            (
                cause.replace("_", " "),
                f"`{policy.outcome}`",
                policy.reason,
                BILLED[policy.billed],
                "yes" if policy.tokenized else "no",
            )
            for cause, policy in POLICIES.items()
        ),
    )


def faults() -> Iterator[str]:
    def row(fault: Fault) -> Iterator[object]:
        thread, _, words = fault.thread.partition(": ")
        yield from (thread, words, f"`{fault.row['outcome']}`", f"`{fault.row['basis']}`")
        yield from ("–" if count is None else f"{count:,}" for count in fault.buckets)

    header = ("thread", "what went wrong there", "outcome", "basis", *BUCKETS)
    return table(header, map(row, FAULTS))


def columns_of(columns: Iterable[Any]) -> Callable[[], Iterator[str]]:
    rows = [(f"`{column.name}`", column.meaning) for column in columns]
    return lambda: table(("column", "meaning"), rows)


TABLES: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "endpoints": endpoints,
    "bases": bases,
    "policies": policies,
    "faults": faults,
    "attempts": columns_of(ATTEMPT_COLUMNS),
    "conservation": columns_of(CONSERVATION_COLUMNS),
    "counters": columns_of(COUNTER_COLUMNS),
}


def place_of(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- table: {name} -->\n).*?(?=<!-- end -->)", re.S)


def _literally(text: str) -> Callable[[re.Match[str]], str]:
    return lambda _: text


def written() -> str:
    """The page with every table as it should be."""
    page = PAGE
    for name, make in TABLES.items():
        page = place_of(name).sub(_literally("\n".join(make()) + "\n"), page)
    return page


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_the_page_is_what_the_program_says(name: str) -> None:
    found = place_of(name).search(PAGE)
    assert found is not None, f"docs/metering.md has no table {name}"
    assert found[0] == "\n".join(TABLES[name]()) + "\n", "run this module, and commit the page"


def test_the_page_has_no_other_table() -> None:
    named = re.findall(r"<!-- table: (\w+) -->", PAGE)
    assert named == list(dict.fromkeys(named)) and set(named) == set(TABLES)


def test_what_the_page_says_in_passing_is_so() -> None:
    assert f"{SECONDS_MAX:.0f} seconds" in PAGE
    assert all(f"`{bucket}`" in PAGE for bucket in BUCKETS)
    assert {"attempts", "counters", "conservation"} <= {view.name for view in VIEWS}


if __name__ == "__main__":
    PATH.write_text(written())

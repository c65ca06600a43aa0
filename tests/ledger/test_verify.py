"""An export is proven by its own files: one changed byte anywhere is found, whoever changed it."""

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import update

from ledger.chain import START as NO_HEAD
from ledger.chain import link, root_of
from ledger.clock import from_us
from ledger.errors import ChainBroken, ExportFailed
from ledger.events import Draft, PeriodClosed
from ledger.export.archive import Archived, manifest_heads, write_archive
from ledger.export.archive_columns import ARCHIVE, EVENTS
from ledger.export.manifest import (
    FORMAT,
    MANIFEST,
    ChainHead,
    ExportedFile,
    Manifest,
    describe,
    read_manifest,
)
from ledger.export.verify import Verified, verify
from ledger.folds.money import Period
from ledger.sql import tables
from ledger.sql.chain import root_at
from ledger.sql.names import erase_name
from ledger.sql.replay import load_book
from ledger.sql.session import ReadSession
from tests.support.books import Books
from tests.support.events import SOURCE, Scribe, accepted, after, finished, key_issued, mark, tokens

MONTHS = [datetime(2026, n, 1, tzinfo=UTC) for n in (11, 12)] + [
    datetime(2027, n, 1, tzinfo=UTC) for n in (1, 2)
]
FLIPS = 40
"""Positions of each file that are changed, one at a time."""


def reached(read: ReadSession) -> dict[str, dict[str, int]]:
    """Everything the ledger has, as a cut."""
    cut: dict[str, dict[str, int]] = {}
    for source, topic, last, _ in read.rows(tables.source_topics.select()):
        cut.setdefault(source, {})[topic] = last
    return cut


def close(books: Books, number: int, without: str | None = None) -> Period:
    """Close the month of that number as `tollbook close` does, as far as a proof is concerned. A
    source that told nothing new is left out of its cut."""
    with books.ledger.write() as tx:
        cut = reached(tx)
        cut.pop(without or "", None)
        root = root_at(tx, cut)
    start, end = MONTHS[number - 1], MONTHS[number]
    said = PeriodClosed(
        month=f"{start:%Y-%m}",
        zone="UTC",
        start=start,
        end=end,
        base=number - 1,
        version=number,
        prices=0,
        cut=cut,
        requests=0,
        open=0,
        unpriced=0,
        tokens={},
        totals={},
        lines="00" * 32,
        root=root,
        tzdata="2026b",
    )
    books.add(Draft(f"period/{said.month}", said.month, end + timedelta(hours=1), said))
    with books.ledger.read() as read:
        return load_book(read).periods[-1]


def serve(books: Books, prefix: str, count: int = 9) -> None:
    books.add(mark(SOURCE, int(prefix[1:]), after(0), {}))
    for n in range(count):
        books.add(
            accepted(f"{prefix}-{n}", after(n)),
            finished(f"{prefix}-{n}", after(n), usage=tokens(n, n)),
        )


@pytest.fixture
def closed(books: Books) -> list[Period]:
    """Two closed months, and something behind them."""
    books.add(key_issued("key-1"))
    books.name("key-1", "Ada Lovelace")
    periods = []
    for number in (1, 2):
        serve(books, f"r{number}")
        periods.append(close(books, number))
    serve(books, "r3")
    return periods


def manifest_of(period: Period, kind: str, files: Sequence[ExportedFile], **more: Any) -> Manifest:
    return Manifest(
        format=FORMAT,
        kind=kind,
        month=period.month,
        zone=period.zone,
        start=period.start.isoformat(),
        end=period.end.isoformat(),
        period="closed",
        root=period.root,
        cut={source: dict(topics) for source, topics in period.cut.items()},
        requests=9,
        open=0,
        tokens={},
        known={},
        corrections=0,
        cost={"EUR": "1.25"},
        unpriced=0,
        prices=[],
        position={},
        files=list(files),
        **more,
    )


def archive(books: Books, periods: Sequence[Period], number: int, out: Path) -> Path:
    """The archive of the month of that number, in `out`."""
    directory = out / ARCHIVE / f"billing_period={periods[number - 1].month}"
    directory.mkdir(parents=True)
    with books.ledger.read() as read:
        done: Archived = write_archive(read, periods[number - 1], periods, directory)
    manifest = manifest_of(
        periods[number - 1],
        ARCHIVE,
        done.files,
        heads=done.heads,
        before=done.before,
        previous_root=done.previous_root,
    )
    (directory / MANIFEST).write_bytes(manifest.encode())
    return directory


def figures(books: Books, period: Period, out: Path) -> Path:
    """An export of another kind: a file, and the heads of the month."""
    directory = out / "csv" / f"billing_period={period.month}"
    directory.mkdir(parents=True)
    (directory / "bill.csv").write_text("day,cost\n2026-11-03,1.25\n")
    with books.ledger.read() as read:
        heads = manifest_heads(read, period.cut)
    manifest = manifest_of(period, "csv", [describe(directory / "bill.csv", 1)], heads=heads)
    (directory / MANIFEST).write_bytes(manifest.encode())
    return directory


def words(found: Sequence[Verified]) -> str:
    return "\n".join(line for one in found for line in one.findings)


def test_archives_of_two_months_are_proven_event_by_event(
    books: Books, closed: list[Period], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for number in (1, 2):
        archive(books, closed, number, out)
    first, second = verify(out)
    assert (first.findings, second.findings) == ([], [])
    assert (first.root, second.root) == (closed[0].root, closed[1].root)
    assert first.events == 20, "a mark, a key, and nine requests of two events"
    assert second.events == 20, "a mark, the closing of the first month, and nine requests"
    assert any(f"the closing of the month before, with the root {first.root}" in line
               for line in second.proven)  # fmt: skip
    assert any("(--root)" in line for line in first.unproven)


def test_a_source_that_was_quiet_for_a_month_goes_on_where_it_was(
    books: Books, tmp_path: Path
) -> None:
    quiet = Scribe("/gateway/quiet/0193a0000000700080000000000000dd")
    books.write(quiet.write_all(accepted("q1"), finished("q1")))
    periods = [close(books, 1)]
    serve(books, "r2")
    periods.append(close(books, 2, without=quiet.source))
    books.write(quiet.write_all(accepted("q3", after(9)), finished("q3", after(9))))
    periods.append(close(books, 3))
    for number in (1, 2, 3):
        archive(books, periods, number, tmp_path)
    found = verify(tmp_path)
    assert words(found) == ""
    assert [one.events for one in found] == [2, 20, 3]
    third = tmp_path / ARCHIVE / f"billing_period={periods[2].month}"
    assert (quiet.source, "requests", 2) in {
        (one.source, one.topic, one.sequence) for one in read_manifest(third).before or []
    }
    manifest = read_manifest(third)
    before = [msgspec.structs.replace(one, head="ab" * 32) for one in manifest.before or []]
    forged(third, list, before=before)
    told = words(verify(tmp_path))
    assert f"{quiet.source}:2 of requests from another head than a month beside it" in told


@pytest.fixture
def three(books: Books, closed: list[Period], tmp_path: Path) -> tuple[list[Period], list[Path]]:
    """The archives of three months in a row, beside one another."""
    periods = [*closed, close(books, 3)]
    return periods, [archive(books, periods, number, tmp_path / "out") for number in (1, 2, 3)]


def test_a_month_that_is_missing_between_two_is_a_finding(
    three: tuple[list[Period], list[Path]], tmp_path: Path
) -> None:
    periods, places = three
    out, aside = tmp_path / "out", tmp_path / "aside"
    first, second, third = verify(out)
    assert words([first, second, third]) == ""
    assert "it goes on from 2026-11, whose archive is beside it" in second.proven
    places[1].rename(aside)
    first, third = verify(out)
    assert first.findings == []
    (told,) = third.findings
    assert "the archive of the month before 2027-01 is missing" in told
    assert f"--from {periods[1].root}" in told
    # Unless the operator says that it is elsewhere, and names the very root.
    found = verify(out, after=[periods[1].root])
    assert words(found) == "" and "given with --from" in "".join(found[1].proven)
    other = "ab" * 32
    told = words(verify(out, after=[other]))
    assert f"no archive here goes on from {other}" in told and "is missing" in told


def test_the_first_archive_may_go_on_from_what_is_not_there(
    three: tuple[list[Period], list[Path]], tmp_path: Path
) -> None:
    """And the months at the end may be gone: nothing here can tell."""
    periods, places = three
    out = tmp_path / "out"
    places[0].rename(tmp_path / "first")
    second, third = verify(out)
    assert words([second, third]) == ""
    assert any("what happened before" in line for line in second.unproven)
    assert not any("what happened before" in line for line in third.unproven)
    second, _ = verify(out, after=[periods[0].root])
    assert second.findings == [] and "given with --from" in "".join(second.proven)
    places[2].rename(tmp_path / "third")
    assert words(verify(out)) == ""


def test_of_two_archives_that_say_to_be_the_first_the_later_is_wrong(
    three: tuple[list[Period], list[Path]], tmp_path: Path
) -> None:
    _, places = three
    manifest = msgspec.structs.replace(read_manifest(places[1]), previous_root=None, before=None)
    (places[1] / MANIFEST).write_bytes(manifest.encode())
    _, second, _ = verify(tmp_path / "out")
    assert "no month was closed before 2026-12, and the archive of 2026-11" in words([second])


def test_roots_to_go_on_from_need_an_archive(
    books: Books, closed: list[Period], tmp_path: Path
) -> None:
    figures(books, closed[0], tmp_path)
    with pytest.raises(ExportFailed, match="there is no archive here"):
        verify(tmp_path, after=[closed[0].root])


def test_a_root_noted_elsewhere_is_compared(
    books: Books, closed: list[Period], tmp_path: Path
) -> None:
    directory = archive(books, closed, 2, tmp_path)
    (found,) = verify(directory, closed[1].root)
    assert found.findings == []
    assert "the root is the one that was noted elsewhere" in found.proven
    assert not any("--root" in line for line in found.unproven)
    (found,) = verify(directory, closed[0].root)
    assert f"noted elsewhere is {closed[0].root}, not {closed[1].root}" in words([found])
    archive(books, closed, 1, tmp_path)
    with pytest.raises(ExportFailed, match="2026-11, 2026-12; name the directory of one"):
        verify(tmp_path, closed[1].root)


@pytest.mark.parametrize("make", [archive, figures], ids=["archive", "figures"])
def test_one_changed_byte_anywhere_is_found(
    books: Books, closed: list[Period], tmp_path: Path, make: Any
) -> None:
    what = (closed, 2) if make is archive else (closed[1],)
    directory = make(books, *what, tmp_path / "out")
    assert words(verify(directory)) == ""
    chance = Random(7)
    for path in sorted(directory.iterdir()):
        whole = path.read_bytes()
        positions = {0, len(whole) - 1, *chance.sample(range(len(whole)), min(FLIPS, len(whole)))}
        for position in sorted(positions):
            changed = bytearray(whole)
            changed[position] ^= chance.randrange(1, 256)
            path.write_bytes(changed)
            assert words(verify(directory)), f"byte {position} of {path.name}"
        path.write_bytes(whole[:-1])
        assert words(verify(directory)), f"{path.name} is cut"
        path.write_bytes(whole)
    assert words(verify(directory)) == ""


def test_files_that_are_gone_or_were_added_are_found(
    books: Books, closed: list[Period], tmp_path: Path
) -> None:
    directory = figures(books, closed[0], tmp_path)
    (directory / "more.csv").write_text("day\n")
    assert "more.csv is not named in the manifest" in words(verify(directory))
    (directory / "more.csv").unlink()
    (directory / "bill.csv").unlink()
    assert "bill.csv cannot be read" in words(verify(directory))
    (directory / MANIFEST).unlink()
    with pytest.raises(ExportFailed, match=r"no manifest\.json"):
        verify(directory)


def test_exports_that_were_swapped_whole_or_lack_their_manifest_are_found(
    books: Books, closed: list[Period], tmp_path: Path
) -> None:
    """A query tells the month by the directory, whatever the manifest in it says."""
    one, other = (archive(books, closed, number, tmp_path) for number in (1, 2))
    csv = figures(books, closed[0], tmp_path)
    assert words(verify(tmp_path)) == ""
    swap(one, other)
    assert words(verify(tmp_path)).count("not of the month in its name") == 2
    swap(one, other)
    swap(one, csv)
    found = words(verify(tmp_path))
    assert "files of the kind csv, not archive" in found
    assert "files of the kind archive, not csv" in found
    swap(one, csv)
    (csv / MANIFEST).unlink()
    assert words(verify(tmp_path)).startswith(f"{csv} holds no {MANIFEST}")


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def forged(directory: Path, change: Any, **more: Any) -> None:
    """Change the rows of an archive and make hashes and seal fit again."""
    path = directory / EVENTS
    rows = change(pq.read_table(path).to_pylist())
    schema = pq.read_schema(path)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, store_schema=False)
    manifest = read_manifest(directory)
    manifest = msgspec.structs.replace(manifest, files=[describe(path, len(rows))], **more)
    (directory / MANIFEST).write_bytes(manifest.encode())


def cheaper(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last finished request used a token less."""
    last = next(row for row in reversed(rows) if '"other_out":8' in row["data"])
    last["data"] = last["data"].replace('"other_out":8', '"other_out":7')
    return rows


def test_a_forger_who_makes_all_hashes_fit_is_found_by_the_chain(
    books: Books, closed: list[Period], tmp_path: Path
) -> None:
    directory = archive(books, closed, 1, tmp_path)
    changes: list[tuple[Any, str]] = [
        (cheaper, "lead to another head"),
        (lambda rows: rows[:-1], "its events end at"),
        (lambda rows: rows[:5] + rows[6:], "behind 4 comes"),
        (lambda rows: [*rows, rows[-1] | {"sequence": rows[-1]["sequence"] + 1}], "its events end"),
        (lambda rows: [*rows, rows[-1] | {"source": "/z", "sequence": 1}], "behind 0 comes /z:1"),
        (lambda rows: [], "its events end at 0"),
    ]
    whole = tmp_path / "whole"
    shutil.copytree(directory, whole)
    for change, said in changes:
        shutil.rmtree(directory)
        shutil.copytree(whole, directory)
        forged(directory, change)
        assert said in words(verify(directory))


def test_a_forger_who_writes_everything_anew_is_found_by_the_noted_root_alone(
    books: Books, closed: list[Period], tmp_path: Path
) -> None:
    directory = archive(books, closed, 1, tmp_path)
    rows = cheaper(pq.read_table(directory / EVENTS).to_pylist())
    heads: dict[tuple[str, str], tuple[int, str]] = {}
    for row in rows:
        chain = row["source"], row["topic"]
        head = bytes.fromhex(heads.get(chain, (0, NO_HEAD.hex()))[1])
        us = (row["time"] - from_us(0)) // timedelta(microseconds=1)
        said = (row["id"], row["type"], row["subject"], us, row["data"].encode())
        heads[chain] = row["sequence"], link(head, *chain, row["sequence"], *said).hex()
    listed = [
        ChainHead(source=source, topic=topic, sequence=sequence, head=head)
        for (source, topic), (sequence, head) in sorted(heads.items())
    ]
    forged(directory, cheaper, heads=listed, root=root_of(heads))
    (found,) = verify(directory)
    assert found.findings == []
    assert any("that nobody wrote all of this anew" in line for line in found.unproven)
    assert "noted elsewhere" in words(verify(directory, closed[0].root))
    archive(books, closed, 2, tmp_path)
    assert "from another head than a month beside it ended with" in words(verify(tmp_path))


def test_exports_of_one_month_with_two_roots_are_told(
    books: Books, closed: list[Period], tmp_path: Path
) -> None:
    archive(books, closed, 1, tmp_path)
    directory = figures(books, closed[0], tmp_path)
    assert words(verify(tmp_path)) == ""
    manifest = msgspec.structs.replace(read_manifest(directory), heads=[], cut={}, root=root_of({}))
    (directory / MANIFEST).write_bytes(manifest.encode())
    assert "another export of 2026-11 beside it has the root" in words(verify(tmp_path))


def test_of_an_open_month_only_files_are_proven(
    books: Books, closed: list[Period], tmp_path: Path
) -> None:
    directory = figures(books, closed[0], tmp_path)
    manifest = read_manifest(directory)
    manifest = msgspec.structs.replace(manifest, period="open", root=None, cut=None, heads=None)
    (directory / MANIFEST).write_bytes(manifest.encode())
    (found,) = verify(directory)
    assert found.findings == []
    assert "2026-11 is open, and only a closed month has a root" in " ".join(found.unproven)
    assert "2026-11 is open: it has none yet" in words(verify(directory, closed[0].root))


def test_erasing_a_name_breaks_no_proof_and_changes_no_byte(
    books: Books, closed: list[Period], tmp_path: Path
) -> None:
    before = archive(books, closed, 1, tmp_path / "a")
    with books.ledger.write() as tx:
        assert erase_name(tx, "key", "key-1")
        assert root_at(tx, closed[0].cut) == closed[0].root
    behind = archive(books, closed, 1, tmp_path / "b")
    for path in before.iterdir():
        assert path.read_bytes() == (behind / path.name).read_bytes()
        assert b"Lovelace" not in path.read_bytes()
    assert words(verify(before, closed[0].root)) == ""


def test_no_archive_is_written_of_events_that_were_changed_in_the_ledger(
    books: Books, closed: list[Period], tmp_path: Path
) -> None:
    with books.ledger.write() as tx:
        table = tables.events
        tx.execute(
            update(table).where(table.c.id == "r1-8/finished").values(data='{"request_id":"r1-8"}')
        )
    with pytest.raises(ChainBroken, match="do not lead to the head"):
        archive(books, closed, 1, tmp_path)
    with books.ledger.write() as tx:
        tx.execute(tables.chain_heads.delete())
    with pytest.raises(ExportFailed, match="events in the ledger were changed since"):
        archive(books, closed, 1, tmp_path / "again")

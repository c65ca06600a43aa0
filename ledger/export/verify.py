"""Proves an export from its own files, with no ledger and no network: `tollbook verify`.

It says what follows from what, and as plainly what it could not look at. Whoever can write all of
the files can make them agree with one another; only a root that was noted elsewhere tells that.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ledger.chain import START, UNCHAINED_TOPICS, link, root_of
from ledger.errors import ExportFailed
from ledger.events import PeriodClosed
from ledger.export.archive_columns import ARCHIVE, ARCHIVE_COLUMNS, EVENTS
from ledger.export.columns import schema_of
from ledger.export.manifest import MANIFEST, ChainHead, Manifest, damage, read_manifest
from ledger.words import counted

RUN = 5000
"""Events of an archive that are held at a time."""

FINDINGS_MAX = 20
"""Findings of one export that are told one by one."""

PERIOD: Final = "billing_period="
KIND: Final = re.compile(r"parquet|csv|archive|focus-[0-9.]+")
"""What directories of exports are called, which tells a reader the month and the kind of files."""

Progress = Callable[[str, int, int], None]
"""Told the export at work, and how many of how many events of its archive are linked."""

Heads = dict[tuple[str, str], tuple[int, str]]


class Verified(msgspec.Struct, kw_only=True):
    """What came of one export. `findings` is what is wrong; `proven` what holds, and `unproven`
    what could not be looked at here, in words. `previous_root` of an archive is that of the month
    before; null: it is the first."""

    directory: Path
    kind: str | None = None
    month: str | None = None
    root: str | None = None
    events: int = 0
    findings: list[str] = []
    proven: list[str] = []
    unproven: list[str] = []
    heads: Heads = {}
    before: Heads = {}
    previous_root: str | None = None

    def say(self, words: str) -> None:
        """Note something that is wrong; beyond `FINDINGS_MAX` only that there is more."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(words)
        elif len(self.findings) == FINDINGS_MAX:
            self.findings.append("and more of this kind")


def verify(
    place: Path,
    root: str | None = None,
    *,
    after: Collection[str] = (),
    progress: Progress = lambda what, done, total: None,
) -> list[Verified]:
    """Verify the export in the directory `place`, or all that are below it.

    `root` is the root of the one closed month in there, noted elsewhere. `after` are roots of
    months whose archives are not there and need not be: an archive may go on from one of them.
    Raises `ExportFailed` if there is no export at all, and for `after` without any archive.
    """
    found = [_verify_one(directory, root, progress) for directory in _exports_in(place)]
    found += [_bare(directory) for directory in _without_manifest(place)]
    _compare(found)
    _in_a_row(found, after)
    months = sorted({one.month for one in found if one.month is not None})
    if root is not None and len(months) > 1:
        raise ExportFailed(
            f"a root is that of one month, and {place} holds {', '.join(months)}; name the "
            "directory of one of them"
        )
    return found


def _exports_in(place: Path) -> list[Path]:
    if (place / MANIFEST).exists():
        return [place]
    found = [
        path.parent
        for path in sorted(place.rglob(MANIFEST))
        if not any(part.startswith(".") for part in path.relative_to(place).parts)
    ]
    if not found:
        if not place.is_dir():
            raise ExportFailed(f"{place} is no directory; name the one that was exported into")
        raise ExportFailed(
            f"there is no {MANIFEST} in {place} or below it, so nothing there can be verified; "
            "name the directory that `tollbook export` wrote"
        )
    return found


def _without_manifest(place: Path) -> Iterator[Path]:
    for path in sorted(place.rglob(f"{PERIOD}*")):
        hidden = any(part.startswith(".") for part in path.relative_to(place).parts)
        if path.is_dir() and not hidden and not (path / MANIFEST).exists():
            yield path


def _bare(directory: Path) -> Verified:
    found = Verified(directory=directory)
    found.say(
        f"{directory} holds no {MANIFEST}, so that nothing in it can be verified, while a query "
        "over all months reads it too"
    )
    return found


def _verify_one(directory: Path, root: str | None, progress: Progress) -> Verified:
    found = Verified(directory=directory)
    manifest = _manifest(directory, found)
    if manifest is None:
        return found
    found.kind, found.month, found.root = manifest.kind, manifest.month, manifest.root
    _place(directory, manifest, found)
    whole = _files(directory, manifest, found)
    heads = found.heads = _root(manifest, root, found)
    if manifest.kind == ARCHIVE:
        _archive(directory, manifest, heads, whole, found, progress)
    elif manifest.root is not None:
        found.unproven.append(
            "that the figures in these files follow from the events: the archive of the month "
            "holds those (`tollbook export --format archive`), and `tollbook audit` compares"
        )
    return found


def _manifest(directory: Path, found: Verified) -> Manifest | None:
    """The manifest, if it can be read; whether its bytes are those that were written is noted."""
    try:
        manifest = read_manifest(directory)
        sealed = manifest.format > 1
        same = not sealed or (directory / MANIFEST).read_bytes() == manifest.encode()
    except (ExportFailed, OSError, ValueError) as wrong:
        found.say(f"the manifest cannot be read: {wrong}")
        return None
    if not same:
        found.say(
            f"{directory / MANIFEST} has been changed since it was written: its seal does not fit"
        )
    elif sealed:
        found.proven.append("the manifest is as it was sealed")
    else:
        found.unproven.append(
            "the manifest itself: an older version wrote it, without a seal; export again"
        )
    return manifest


def _place(directory: Path, manifest: Manifest, found: Verified) -> None:
    """Whether the files stand where they are looked for: two exports may be swapped whole."""
    here = directory.absolute()
    if not here.name.startswith(PERIOD):
        return
    if here.name != f"{PERIOD}{manifest.month}":
        found.say(f"{directory} holds the export of {manifest.month}, not of the month in its name")
    if KIND.fullmatch(here.parent.name) and here.parent.name != manifest.kind:
        found.say(f"{directory} holds files of the kind {manifest.kind}, not {here.parent.name}")


def _files(directory: Path, manifest: Manifest, found: Verified) -> bool:
    """Compare every file with its hash; true if all are as they were written."""
    strange = [file.name for file in manifest.files if Path(file.name).name != file.name]
    if strange:
        found.say(f"the manifest names files elsewhere: {', '.join(strange)}")
        return False
    wrong = damage(directory, manifest)
    for words in wrong:
        found.say(words)
    named = {file.name for file in manifest.files} | {MANIFEST}
    for path in sorted(directory.iterdir()):
        if path.name not in named and not path.name.startswith("."):
            found.say(f"{path} is not named in the manifest: somebody has put it there")
    if not wrong:
        count = counted(len(manifest.files), "file")
        found.proven.append(f"{count} as the manifest's SHA-256 says")
    return not wrong


def _root(manifest: Manifest, root: str | None, found: Verified) -> Heads:
    """Make the root anew from the heads of the manifest, and compare it with what is known."""
    if manifest.root is None:
        found.unproven.append(
            f"more than the files: {manifest.month} is {manifest.period}, and only a closed month "
            "has a root"
        )
        if root is not None:
            yet = " yet" if manifest.period == "open" else ""
            found.say(
                f"a root was given, and {manifest.month} is {manifest.period}: it has none{yet}"
            )
        return {}
    heads = _heads_of(manifest.heads or [], found)
    made = root_of(heads)
    if made != manifest.root:
        found.say(f"the heads in the manifest make the root {made}, and it says {manifest.root}")
    elif _chained(manifest.cut or {}) != _cut_of(heads):
        found.say("the cut in the manifest is not where its heads stand")
    else:
        found.proven.append(
            f"the root {made} follows from the heads of {counted(len(heads), 'chain')}"
        )
    if root is None:
        found.unproven.append(
            "that nobody wrote all of this anew: compare the root with one that was noted "
            "elsewhere when the month was closed (--root)"
        )
    elif root.lower() != manifest.root:
        found.say(f"the root that was noted elsewhere is {root.lower()}, not {manifest.root}")
    else:
        found.proven.append("the root is the one that was noted elsewhere")
    return heads


def _heads_of(listed: Sequence[ChainHead], found: Verified) -> Heads:
    heads = {(one.source, one.topic): (one.sequence, one.head) for one in listed}
    if len(heads) != len(listed):
        found.say("the manifest gives two heads for one chain")
    return heads


def _cut_of(heads: Heads) -> dict[tuple[str, str], int]:
    return {chain: sequence for chain, (sequence, _) in heads.items()}


def _chained(cut: dict[str, dict[str, int]]) -> dict[tuple[str, str], int]:
    return {
        (source, topic): sequence
        for source, topics in cut.items()
        for topic, sequence in topics.items()
        if sequence > 0 and topic not in UNCHAINED_TOPICS
    }


def _archive(
    directory: Path,
    manifest: Manifest,
    heads: Heads,
    whole: bool,
    found: Verified,
    progress: Progress,
) -> None:
    """Make every chain anew from the events, from the heads of the month before to this one's."""
    found.previous_root = manifest.previous_root
    before = found.before = _heads_of(manifest.before or [], found)
    if manifest.previous_root is None and before:
        found.say("there are heads of months before, and no root of any")
    if not whole:
        found.unproven.append(f"the chains: {EVENTS} is not read, because files are damaged")
        return
    total = sum(file.rows for file in manifest.files if file.name == EVENTS)
    try:
        walk = _Walk(before, heads, found)
        for run in _runs(directory / EVENTS):
            walk.take(run)
            progress(f"verifying {manifest.month}", walk.events, total)
    except (ExportFailed, pa.ArrowException, OSError, ValueError, OverflowError) as wrong:
        found.say(f"{directory / EVENTS} cannot be read: {wrong}")
        return
    walk.end()
    found.events = walk.events
    if not walk.broken:
        found.proven.append(
            f"the way from where months before ended to the heads of {manifest.month}, event by "
            f"event and with none left out: {counted(walk.events, 'event')}"
        )
    _past(manifest, walk, found)


def _past(manifest: Manifest, walk: "_Walk", found: Verified) -> None:
    """What the archive says of the month before it."""
    if manifest.previous_root is None:
        return
    if manifest.previous_root in walk.roots:
        found.proven.append(
            f"the closing of the month before, with the root {manifest.previous_root}, is among "
            "the events"
        )
    else:
        found.say(
            f"no closing among the events tells the root {manifest.previous_root}, which the "
            "manifest names as that of the month before"
        )


Row = tuple[str, str, int, str, str, str, int, str]
"""One event of an archive in the order of its columns; the time is in microseconds."""


def _runs(path: Path) -> Iterator[list[Row]]:
    file = pq.ParquetFile(path)
    wanted = schema_of(ARCHIVE_COLUMNS)
    if file.schema_arrow.remove_metadata() != wanted:
        raise ExportFailed(f"its columns are {file.schema_arrow}, not {wanted}")
    for batch in file.iter_batches(batch_size=RUN):
        if any(column.null_count for column in batch.columns):
            raise ExportFailed("an event lacks something")
        columns = [
            (column.cast(pa.int64()) if name == "time" else column).to_pylist()
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        yield list(zip(*columns, strict=True))


class _Walk:
    """Goes through the events of an archive in their order and makes their chains."""

    def __init__(self, before: Heads, heads: Heads, found: Verified) -> None:
        self._heads, self._found = heads, found
        self._before = before
        self._at: dict[tuple[str, str], tuple[int, bytes]] = {
            chain: (sequence, bytes.fromhex(head)) for chain, (sequence, head) in before.items()
        }
        self._left: set[tuple[str, str]] = set()
        self.events = 0
        self.broken = False
        self.roots: set[str] = set()

    def take(self, run: list[Row]) -> None:
        """Go on by the events of `run`."""
        self.events += len(run)
        for source, topic, sequence, event_id, kind, subject, time_us, data in run:
            chain = source, topic
            if chain in self._left:
                continue
            at, head = self._at.get(chain, (0, START))
            if sequence != at + 1 or chain not in self._heads:
                self._leave(chain, f"behind {at} comes {source}:{sequence} of {topic}")
                continue
            said = data.encode()
            self._at[chain] = (
                sequence,
                link(head, source, topic, sequence, event_id, kind, subject, time_us, said),
            )
            if kind == PeriodClosed.TYPE:
                self._closing(said)

    def end(self) -> None:
        """Compare where the chains ended with the heads that they have to lead to."""
        for chain, (sequence, head) in sorted(self._heads.items()):
            if chain in self._left:
                continue
            at, made = self._at.get(chain, (0, START))
            if at != sequence:
                self._leave(chain, f"its events end at {at}, and its head stands at {sequence}")
            elif made.hex() != head:
                first = self._before.get(chain, (0, ""))[0] + 1
                self._leave(
                    chain,
                    f"its events {first} to {sequence} lead to another head than the manifest "
                    "says: at least one of them was changed",
                )
        for chain in sorted(self._before.keys() - self._heads.keys()):
            self._leave(chain, "it was in a month before, and this month has no head of it")

    def _leave(self, chain: tuple[str, str], words: str) -> None:
        self._left.add(chain)
        self.broken = True
        self._found.say(f"the chain {chain[1]} of {chain[0]} is broken: {words}")

    def _closing(self, data: bytes) -> None:
        try:
            self.roots.add(msgspec.json.decode(data, type=_Closing).root)
        except msgspec.DecodeError:
            self.roots.add("")


class _Closing(msgspec.Struct, frozen=True):
    root: str


def _compare(found: Sequence[Verified]) -> None:
    """Exports of one month have one root, whatever their kind, and a month goes on where others
    ended."""
    roots: dict[str, str] = {}
    ends: dict[tuple[str, str, int], str] = {}
    for one in found:
        for chain, (sequence, head) in one.heads.items():
            ends.setdefault((*chain, sequence), head)
    for one in found:
        for (source, topic), (sequence, head) in one.before.items():
            if ends.get((source, topic, sequence), head) != head:
                one.say(
                    f"it goes on behind {source}:{sequence} of {topic} from another head than a "
                    "month beside it ended with"
                )
        if one.month is None or one.root is None:
            continue
        known = roots.setdefault(one.month, one.root)
        if one.root != known:
            one.say(f"another export of {one.month} beside it has the root {known}")


def _in_a_row(found: Sequence[Verified], after: Collection[str]) -> None:
    """Months are closed one after another, and so their archives must follow one another: only the
    first of them may go on from one that is not there, and those from a root of `after`."""
    archives = sorted(
        (one for one in found if one.kind == ARCHIVE and one.month is not None and one.root),
        key=lambda one: one.month or "",
    )
    if not archives:
        if after:
            raise ExportFailed(
                "--from names the root that an archive goes on from, and there is no archive here"
            )
        return
    ends = {one.root: one for one in archives}
    for one in archives:
        _follows(one, archives[0], ends, after)
    for root in sorted(set(after) - {one.previous_root for one in archives}):
        archives[0].say(f"no archive here goes on from {root}, which was given with --from")


def _follows(
    one: Verified, first: Verified, ends: Mapping[str | None, Verified], after: Collection[str]
) -> None:
    before, is_first = one.previous_root, one.month == first.month
    if before is None:
        if not is_first:
            one.say(
                f"it says that no month was closed before {one.month}, and the archive of "
                f"{first.month} is beside it"
            )
        return
    beside = ends.get(before)
    if beside is not None and (beside.month or "") < (one.month or ""):
        one.proven.append(f"it goes on from {beside.month}, whose archive is beside it")
    elif before in after:
        one.proven.append(f"it goes on from the root {before}, which was given with --from")
    elif not is_first:
        one.say(
            f"the archive of the month before {one.month} is missing: none here ends with the root "
            f"{before}, and earlier ones are here. Put it beside these, or say that it is known "
            f"elsewhere: --from {before}"
        )
    else:
        one.unproven.append(
            "what happened before: the archives of the months up to the one with the root "
            f"{before} hold that"
        )

"""A data directory with everything in it that a runner meets, and ways to look at the result."""

import shutil
import tempfile
from functools import cache
from pathlib import Path

from sqlalchemy import select

from gateway.cli.audit import logs
from ledger.audit import audit
from ledger.folds.requests import RequestRow
from ledger.sql import tables
from ledger.sql.rows import request_of
from ledger.sql.session import Ledger, open_ledger
from streams.local.layout import Layout
from streams.local.runner import Runner
from streams.log.registry import RegistryLog
from streams.log.spool import SpoolWriter
from tests.streams.builders import FakeClock


@cache
def migrated_ledger() -> Path:
    """An empty ledger, made once for all tests: Alembic takes a fifth of a second each time."""
    path = Path(tempfile.mkdtemp(prefix="tollbook-test-")) / "ledger.db"
    open_ledger(path).close()
    return path


class House:
    """One data directory. What dies here dies like a process: its locks go, its files stay."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(root)
        self.layout.make()
        shutil.copy(migrated_ledger(), self.layout.ledger)
        self.clock = FakeClock()
        self.said: list[str] = []
        self._ledgers: list[Ledger] = []
        self._spools: list[SpoolWriter] = []

    def gateway(self, incarnation: str = "aa01", segment_bytes: int = 2000) -> SpoolWriter:
        """The spool of a gateway that starts now."""
        writer = SpoolWriter.create(
            self.layout.spool(incarnation),
            f"/gateway/test/{incarnation}",
            clock=self.clock,
            limit_bytes=1 << 20,
            reserve_bytes=4096,
            segment_bytes=segment_bytes,
        )
        self._spools.append(writer)
        return writer

    def die(self, writer: SpoolWriter) -> None:
        """End the process of `writer` as `kill -9` would."""
        writer._lock.release()

    def registry(self, source: str = "/cli/test/1") -> RegistryLog:
        return RegistryLog(self.layout.registry, source, clock=self.clock)

    def runner(self, keep_bytes: int = 1 << 30) -> Runner:
        """A runner that starts now. It holds no lock: the tests run one at a time."""
        ledger = open_ledger(self.layout.ledger, migrate=False)
        self._ledgers.append(ledger)
        return Runner(
            self.layout,
            ledger,
            self.clock,
            say=self.said.append,
            name="test",
            keep_bytes=keep_bytes,
        )

    def catch_up(self, keep_bytes: int = 1 << 30) -> None:
        """What `run_once` does."""
        runner = self.runner(keep_bytes)
        runner.catch_up()
        runner.close()

    def requests(self) -> dict[str, RequestRow]:
        with open_ledger(self.layout.ledger, readonly=True) as ledger, ledger.read() as read:
            rows = read.rows(select(*tables.requests.columns))
        return {row[0]: request_of(row) for row in rows}

    def states(self) -> dict[str, str]:
        return {name: row.state for name, row in self.requests().items()}

    def closed(self) -> dict[str, str]:
        """Who closed which source."""
        with open_ledger(self.layout.ledger, readonly=True) as ledger, ledger.read() as read:
            rows = read.rows(select(tables.sources.c.source, tables.sources.c.closed_by))
        return {source: by for source, by in rows if by is not None}

    def position(self, log: str) -> int:
        with open_ledger(self.layout.ledger, readonly=True) as ledger, ledger.read() as read:
            where = tables.positions.c.log == log
            return int(read.value(select(tables.positions.c.next_offset).where(where)) or 0)

    def findings(self) -> list[str]:
        """What the audit says; nothing if all is well."""
        with open_ledger(self.layout.ledger, readonly=True) as ledger, ledger.read() as read:
            report = audit(read, logs(read, self.layout))
        return [f"{finding.check}: {finding.says}" for finding in report.findings]

    def spools(self) -> list[str]:
        return [directory.name for directory in self.layout.spool_directories()]

    def adopted(self) -> set[str]:
        return {d.name for d in self.layout.spool_directories() if (d / "adopted").exists()}

    def copy(self, to: Path) -> None:
        """A copy of the whole directory, as a backup would have it. Nothing may be at work."""
        self.close()
        shutil.copytree(self.layout.root, to)

    def put_back(self, copy: Path, *names: str) -> None:
        """Replace everything, or only `names`, by what `copy` has."""
        self.close()
        for name in names or [entry.name for entry in self.layout.root.iterdir()]:
            ours, old = self.layout.root / name, copy / name
            if ours.is_dir():
                shutil.rmtree(ours)
                shutil.copytree(old, ours)
            else:
                ours.unlink()
                if old.exists():
                    shutil.copy2(old, ours)

    def close(self) -> None:
        for ledger in self._ledgers:
            ledger.close()
        self._ledgers.clear()
        for spool in self._spools:
            spool.close()
        self._spools.clear()

"""A data directory whose ledger is a Postgres: the same books, and one directory to a ledger."""

from pathlib import Path

import pytest

from ledger.errors import LedgerUnavailable
from ledger.sql.bill import bill
from ledger.sql.session import open_ledger
from streams.local.layout import Layout
from streams.local.runner import run_once
from tests.cli.books import dead_spool
from tests.support import events as say


def test_a_runner_takes_spools_into_postgres(postgres_url: str, tmp_path: Path) -> None:
    dead_spool(tmp_path, *say.life("r-1"), say.accepted("r-2"))
    assert run_once(tmp_path, ledger=postgres_url)
    assert run_once(tmp_path, ledger=postgres_url), "the directory is known again"
    assert not Layout(tmp_path).ledger.exists()
    with open_ledger(postgres_url, readonly=True) as ledger, ledger.read() as read:
        assert sum(line.requests for line in bill(read, None)) == 2


def test_a_second_data_directory_is_refused_with_words(postgres_url: str, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    dead_spool(one, *say.life("r-1"))
    dead_spool(other, *say.life("r-2"))
    run_once(one, ledger=postgres_url)
    with pytest.raises(LedgerUnavailable, match=r"belongs to another data directory.*same Kafka"):
        run_once(other, ledger=postgres_url)
    with open_ledger(postgres_url, readonly=True) as ledger, ledger.read() as read:
        assert sum(line.requests for line in bill(read, None)) == 1

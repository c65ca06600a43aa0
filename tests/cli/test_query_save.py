"""`tollbook query --save`: the views as a database for other tools."""

import json
from pathlib import Path

import duckdb

from tests.cli.books import dead_spool
from tests.support import events
from tests.support.processes import tollbook, tollbook_json


def test_the_views_are_saved_for_other_tools(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "books.duckdb"
    key = tollbook_json(data, "keys", "create", "--name", "alice")
    dead_spool(data, *events.life("r1", key_id=key["id"]))
    said = json.loads(tollbook(data, "query", "--save", str(file), "--json").stdout)
    assert said["file"] == str(file) and said["rows"]["requests"] == 1
    with duckdb.connect(str(file), read_only=True) as saved:
        found = saved.execute('SELECT "key", other_out FROM requests').fetchall()
    assert found == [("alice", 4)]
    shown = tollbook(data, "query", "--save", str(file)).stdout
    assert "requests" in shown and "usage_hourly" in shown
    for wrong in (("query",), ("query", "SELECT 1", "--save", str(file))):
        refused = tollbook(data, *wrong, check=False)
        assert refused.returncode == 2 and "give one SELECT" in refused.stderr

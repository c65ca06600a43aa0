"""`tollbook dev --kafka`: one request through all of it, from the door to the bill in Postgres."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_backend import KEY
from tests.support.kafka import server_folder
from tests.support.processes import (
    CLI,
    Process,
    backend,
    chat,
    free_port,
    tollbook_json,
    wait_until,
)

pytestmark = pytest.mark.e2e

ELSEWHERE = "postgresql+psycopg://nobody@127.0.0.1:9/nothing"
START_SECONDS_MAX = 200.0
"""Kafka, Postgres and three processes, one after the other, on a machine that others use too."""


def at(data: Path, *words: str) -> Any:
    """What a command prints under --json on the servers that `dev` has started in `data`."""
    return tollbook_json(data / "gateway", *words, "--config", str(data / "tollbook.toml"))


def test_a_request_goes_from_the_door_to_the_bill_over_kafka(tmp_path: Path) -> None:
    port = free_port()
    with server_folder() as folder, backend(tmp_path) as server:
        data = folder / "dev"
        options = ("--backend", server.url, "--backend-key", KEY, "--models", "*")
        # What a shell has for other servers is not for those that are started here.
        shell = ("env", "TOLLBOOK_KAFKA=127.0.0.1:9", f"TOLLBOOK_LEDGER={ELSEWHERE}")
        place = ("--port", str(port), "--data", str(data))
        line = (*shell, *CLI, "dev", "--kafka", *options, *place)
        dev = Process(line, tmp_path / "dev.log")
        try:

            def serving() -> bool:
                assert dev.alive, dev.output()
                return "Ctrl-C ends everything" in dev.output()

            wait_until(f"everything is up:\n{dev.output()}", serving, START_SECONDS_MAX)
            made = at(data, "keys", "create", "--name", "me")
            at(data, "prices", "set", "*", "--in", "1", "--out", "2", "--rerate", "first price")
            url = f"http://127.0.0.1:{port}"
            wait_until("the key is known", lambda: chat(url, made["key"]).status == 200)
            rows = wait_until("the bill has it", lambda: at(data, "bill")["rows"], 60)
            assert [(row["name"], row["model"]) for row in rows] == [("me", "fake")]
            assert rows[0]["cost"] is not None
            assert at(data, "audit")["clean"] is True
            dev.signal(signal.SIGINT)
            assert dev.popen.wait(60) == 0, dev.output()
            assert dev.descendants() == {}
        finally:
            dev.stop()

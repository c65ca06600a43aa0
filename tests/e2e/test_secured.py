"""Every process by TLS and SASL: one block of settings, and its password in nobody's log."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from streams.kafka.access import KafkaAccess
from tests.support.fake_backend import KEY
from tests.support.kafka import settings_file
from tests.support.processes import (
    Gateway,
    Process,
    backend,
    chat,
    free_port,
    role,
    tollbook_json,
    wait_until,
)

pytestmark = pytest.mark.e2e


def test_one_block_of_settings_is_for_every_process(
    tmp_path: Path, secure_kafka: KafkaAccess, postgres_url: str
) -> None:
    config = settings_file(tmp_path, secure_kafka, postgres_url)
    none, place = tmp_path / "none", ("--config", str(config))
    made = tollbook_json(none, "keys", "create", "--name", "me", *place)
    tollbook_json(none, "topics", "check", *place)
    with ExitStack() as stack:
        server = stack.enter_context(backend(tmp_path))
        running: list[Process] = [
            stack.enter_context(role(verb, tmp_path, *place)) for verb in ("write", "worker")
        ]
        options = ("--backend", server.url, "--backend-key", KEY, "--models", "*")
        door = Gateway(
            tmp_path / "gateway",
            free_port(),
            tmp_path / "serve.log",
            *options,
            *place,
        )
        running.append(door)
        stack.callback(door.stop)
        door.wait_ready()
        wait_until("the key is known", lambda: chat(door.url, made["key"]).status == 200)
        rows = wait_until(
            "the bill has it", lambda: tollbook_json(none, "bill", *place)["rows"], 60
        )
        assert [(row["name"], row["requests"]) for row in rows] == [("me", 1)]
        assert all(process.alive for process in running)
    assert secure_kafka.password is not None
    for log in tmp_path.glob("*.log"):
        assert secure_kafka.password not in log.read_text()

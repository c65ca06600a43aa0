"""Every process by TLS and SASL: one block of settings, and its password in nobody's log."""

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from streams.kafka.access import KafkaAccess
from tests.support.fake_backend import KEY
from tests.support.kafka import settings_file
from tests.support.processes import (
    CLI,
    Gateway,
    Process,
    backend,
    call,
    environment,
    free_port,
    wait_until,
)

pytestmark = pytest.mark.e2e


def asked(config: Path, *words: str) -> Any:
    """What a command prints under --json with this configuration and no data directory."""
    done = subprocess.run(
        [*CLI, *words, "--config", str(config), "--data", str(config.parent / "none"), "--json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_one_block_of_settings_is_for_every_process(
    tmp_path: Path, secure_kafka: KafkaAccess, postgres_url: str
) -> None:
    config = settings_file(tmp_path, secure_kafka, postgres_url)
    made = asked(config, "keys", "create", "--name", "me")
    asked(config, "topics", "check")
    with ExitStack() as stack:
        server = stack.enter_context(backend(tmp_path))
        running: list[Process] = []
        for role in ("write", "worker"):
            line = (*CLI, role, "--config", str(config), "--data", str(tmp_path / role))
            running.append(Process(line, tmp_path / f"{role}.log"))
            stack.callback(running[-1].stop)
        options = ("--backend", server.url, "--backend-key", KEY, "--models", "*")
        door = Gateway(
            tmp_path / "gateway",
            free_port(),
            tmp_path / "serve.log",
            *(*options, "--config", str(config)),
        )
        running.append(door)
        stack.callback(door.stop)
        door.wait_ready()
        body = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}
        url = f"{door.url}/v1/chat/completions"
        wait_until("the key is known", lambda: call(url, body, made["key"]).status == 200)
        rows = wait_until("the bill has it", lambda: asked(config, "bill")["rows"], 60)
        assert [(row["name"], row["requests"]) for row in rows] == [("me", 1)]
        assert all(process.alive for process in running)
    assert secure_kafka.password is not None
    for log in tmp_path.glob("*.log"):
        assert secure_kafka.password not in log.read_text()

"""The runner as a process of its own: one at a time, ended by a signal or with its parent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streams.log.lock import held
from streams.log.reader import SpoolReader
from tests.streams.builders import accepted, attempted
from tests.streams.house import House
from tests.streams.test_runner import serve

RUNNER = """
import sys
from pathlib import Path
from streams.local.runner import run_forever
sys.exit(run_forever(Path(sys.argv[1]), stop_on_stdin_eof=sys.argv[2] == "eof", name="test"))
"""

GATEWAY = """
import sys
from pathlib import Path
from ledger.clock import SystemClock
from streams.log.spool import SpoolWriter
from tests.streams.builders import accepted, attempted, delivered, finished

writer = SpoolWriter.create(Path(sys.argv[1]) / "spool" / sys.argv[2],
                            f"/gateway/test/{sys.argv[2]}", clock=SystemClock(),
                            segment_bytes=50_000)
number = 0
while True:
    name = f"{sys.argv[2]}-{number}"
    writer.append(accepted(name), attempted(name))
    writer.append(delivered(name, 1, 3))
    if number % 3:
        writer.append(finished(name))
        print(name, flush=True)
    number += 1
"""

SECONDS_MAX = 20.0

Process = subprocess.Popen[str]
Start = Callable[..., Process]


@pytest.fixture
def start(house: House) -> Iterator[Start]:
    """Starts a runner; whatever is still there at the end is killed."""
    started: list[Process] = []

    def run(mode: str = "eof") -> Process:
        process = subprocess.Popen(
            [sys.executable, "-c", RUNNER, str(house.layout.root), mode],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate(timeout=10)


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not true():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def ended(process: Process) -> str:
    """Standard error of a process that ended well."""
    _, err = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, err
    return err


def test_a_runner_ends_on_sigterm_with_everything_taken(house: House, start: Start) -> None:
    gateway = house.gateway()
    runner = start("signal")
    serve(gateway, "a")
    wait_until(lambda: house.states() == {"a": "finished"})
    serve(gateway, "b")
    runner.send_signal(signal.SIGTERM)
    ended(runner)
    assert house.states() == {"a": "finished", "b": "finished"}
    assert not held(house.layout.runner_lock)
    assert house.adopted() == set(), "the gateway lives"
    assert house.findings() == []


def test_a_runner_whose_parent_dies_adopts_it_and_ends(house: House, start: Start) -> None:
    gateway = house.gateway()
    runner = start()
    gateway.append(accepted("a"), attempted("a"))
    wait_until(lambda: house.states() == {"a": "open"})
    house.die(gateway)
    assert runner.stdin is not None
    runner.stdin.close()
    runner.stdin = None
    said = ended(runner)
    assert house.states() == {"a": "abandoned"}
    assert house.adopted() == set(house.spools())
    assert "1 open request is closed as abandoned" in said
    assert house.findings() == []


def test_a_runner_stays_while_another_gateway_lives(house: House, start: Start) -> None:
    parent, other = house.gateway("aa01"), house.gateway("aa02")
    runner = start()
    serve(parent, "a")
    house.die(parent)
    assert runner.stdin is not None
    runner.stdin.close()
    runner.stdin = None
    wait_until(lambda: "aa01" in house.adopted())
    serve(other, "b")
    wait_until(lambda: house.states().get("b") == "finished")
    assert runner.poll() is None
    house.die(other)
    ended(runner)
    assert {"aa01", "aa02"} <= house.adopted()
    assert house.findings() == []


def test_a_second_runner_waits_and_takes_over_from_a_killed_one(house: House, start: Start) -> None:
    gateway = house.gateway()
    first = start()
    wait_until(lambda: held(house.layout.runner_lock))
    second = start()
    assert second.stderr is not None
    assert "another runner is at work" in second.stderr.readline()
    serve(gateway, "a")
    wait_until(lambda: house.states() == {"a": "finished"})
    first.kill()
    first.wait(SECONDS_MAX)
    serve(gateway, "b")
    wait_until(lambda: house.states().get("b") == "finished")
    second.send_signal(signal.SIGTERM)
    ended(second)
    assert house.findings() == []


def test_a_waiting_runner_ends_with_its_parent(house: House, start: Start) -> None:
    first = start()
    wait_until(lambda: held(house.layout.runner_lock))
    second = start()
    assert second.stdin is not None and second.stderr is not None
    second.stderr.readline()
    second.stdin.close()
    second.stdin = None
    ended(second)
    assert first.poll() is None
    first.send_signal(signal.SIGTERM)
    ended(first)


def test_gateways_and_runners_are_killed_again_and_again(
    house: House, start: Start, seed: int
) -> None:
    """Every request that a gateway saw finish is in the ledger; every other is abandoned."""
    finished: set[str] = set()
    for round_number in range(3):
        runner = start("signal")
        gateway = subprocess.Popen(
            [sys.executable, "-c", GATEWAY, str(house.layout.root), f"b{round_number}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert gateway.stdout is not None
        for count, line in enumerate(gateway.stdout, 1):
            finished.add(line.strip())
            if count == 150:
                runner.kill()
            if count == 300 + seed % 50:
                gateway.kill()
        gateway.wait(SECONDS_MAX)
        gateway.stdout.close()
        runner.wait(SECONDS_MAX)
    last = start()
    assert last.stdin is not None
    last.stdin.close()
    last.stdin = None
    ended(last)
    states = house.states()
    assert all(states[name] == "finished" for name in finished)
    assert set(states.values()) == {"finished", "abandoned"}
    assert house.adopted() == set(house.spools())
    assert house.findings() == []
    for name, row in house.requests().items():
        if states[name] == "abandoned":
            assert row.chunks in (0, 3)


def test_what_the_ledger_took_is_what_the_spools_hold(house: House, start: Start) -> None:
    runner = start()
    gateway = house.gateway(segment_bytes=3000)
    for number in range(50):
        serve(gateway, f"r{number}")
    house.die(gateway)
    assert runner.stdin is not None
    runner.stdin.close()
    runner.stdin = None
    ended(runner)
    reader = SpoolReader(gateway.directory)
    assert reader.consumed() == gateway.written_bytes() == house.position("spool/aa01")
    assert len(house.states()) == 50


def test_a_runner_without_standard_input_does_not_wait_for_ever(house: House) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(house.layout.root), "eof"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=True,
        preexec_fn=lambda: os.close(0),
    )
    assert done.stdout == ""


def test_a_runner_survives_a_ledger_that_cannot_be_opened_yet(house: House, start: Start) -> None:
    gateway = house.gateway()
    serve(gateway, "a")
    saved = house.layout.ledger.read_bytes()
    house.layout.ledger.write_bytes(b"no database" * 1000)
    runner = start("signal")
    assert runner.stderr is not None
    line = runner.stderr.readline()
    assert "the spools keep everything meanwhile" in line
    house.layout.ledger.write_bytes(saved)
    wait_until(lambda: house.states() == {"a": "finished"})
    runner.send_signal(signal.SIGTERM)
    ended(runner)


def test_the_root_is_made_if_it_is_missing(tmp_path: Path) -> None:
    root = tmp_path / "fresh"
    subprocess.run(
        [sys.executable, "-c", RUNNER, str(root), "eof"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SECONDS_MAX,
        check=True,
    )
    assert (root / "ledger.db").exists() and (root / "spool").is_dir()

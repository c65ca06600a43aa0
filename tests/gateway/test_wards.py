"""Processes beside this one, for real: they end when let go, or when their starter dies."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.wards import leash, ward
from gateway.wards.errors import WardFailed
from gateway.wards.ward import Ward
from ledger.clock import SystemClock
from tests.support.processes import environment, lives, wait_until

OBEYS = "import sys; print('up', flush=True); sys.stdin.read(); print('down')"
"""Ends by itself when its standard input does."""

TOLD = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("up", os.getpid(), flush=True)
time.sleep(60)
"""
"""Looks at signals only."""

DEAF = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", os.getpid(), flush=True)
time.sleep(60)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def pid_in(log: Path) -> int:
    """The PID that the script in `log` says; fails if it does not say any."""

    def said() -> re.Match[str] | None:
        return re.search(r"up (\d+)\n", log.read_text()) if log.exists() else None

    return int(wait_until("it is up", said)[1])


def is_up(log: Path) -> bool:
    return "up" in log.read_text()


def test_a_ward_is_waited_for_and_ends_with_its_input(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of the last time\n")
    with ward.ward("it", python(OBEYS), log) as one:
        one.wait_until(lambda: is_up(log), SystemClock())
        one.check()
    with pytest.raises(WardFailed, match="it ended with exit code 0"):
        one.check()
    assert log.read_text() == "up\ndown\n"


def test_a_command_on_a_leash_gets_its_signal_when_it_is_let_go(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ward.leashed("it", python(TOLD), log) as one:
        pid = pid_in(log)
        assert lives(pid)
    assert not lives(pid)
    with pytest.raises(WardFailed, match="it ended with exit code 7"):
        one.check()


def test_one_that_does_not_go_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ward, "STOP_SECONDS_MAX", 0.2)
    log = tmp_path / "log"
    with ward.leashed("it", python(DEAF), log) as one:
        pid = pid_in(log)
    assert not one.alive
    wait_until("what hung on the leash is gone too", lambda: not lives(pid))


def test_the_death_of_a_starter_ends_what_hangs_on_the_leash(tmp_path: Path) -> None:
    log = tmp_path / "log"
    starter = f"""
import time
from pathlib import Path
from gateway.wards.ward import leashed
with leashed("it", {python(TOLD)!r}, Path({str(log)!r})):
    time.sleep(60)
"""
    process = subprocess.Popen(python(starter), env=environment())
    try:
        pid = pid_in(log)
    finally:
        process.kill()
        process.wait()
    wait_until("the command is gone", lambda: not lives(pid))


def test_one_that_ends_before_it_is_ready_is_told_with_its_last_lines(tmp_path: Path) -> None:
    code = "print(*range(30), sep='\\n'); raise SystemExit(3)"
    with (
        ward.ward("it", python(code), tmp_path / "log") as one,
        pytest.raises(WardFailed) as told,
    ):
        one.wait_until(lambda: False, SystemClock())
    said = str(told.value).splitlines()
    assert said[0].startswith("it ended with exit code 3; it said (all of it is in ")
    assert said[1:] == [str(number) for number in range(18, 30)]


@pytest.mark.parametrize("hung", [True, False])
def test_a_signal_that_ended_it_is_named(tmp_path: Path, hung: bool) -> None:
    log = tmp_path / "log"
    start = ward.leashed if hung else ward.ward
    with start("it", python(TOLD), log) as one:
        os.kill(pid_in(log), signal.SIGKILL)
        how = "ended with exit code 137" if hung else "was ended by signal 9"
        with pytest.raises(WardFailed, match=f"it {how}; it said"):
            one.wait_until(lambda: False, SystemClock())


def test_a_leash_names_its_process_to_who_hears_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    order = leash.Order(argv=tuple(python(TOLD)), log=str(log))
    one = Ward("it", leash.COMMAND, tmp_path / "errors", order.line(), heard=True)
    try:
        assert leash.told_pid(one.hear()) == pid_in(log)
    finally:
        one.stop()
    assert not one.alive


def test_what_cannot_be_run_says_nothing_to_who_hears_it(tmp_path: Path) -> None:
    order = leash.Order(argv=("/nowhere/at-all",))
    one = Ward("it", leash.COMMAND, tmp_path / "errors", order.line(), heard=True)
    try:
        assert one.hear() == b""
        with pytest.raises(WardFailed, match="No such file"):
            one.wait_until(lambda: False, SystemClock())
    finally:
        one.stop()

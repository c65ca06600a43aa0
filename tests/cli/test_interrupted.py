"""Ctrl-C while DuckDB is at work ends a command as anywhere else."""

import os
import signal
from pathlib import Path

from tests.support.processes import CLI, Process, tollbook, wait_until

LONG = "SELECT max(md5(range::VARCHAR)) FROM range(100000000000)"
AT_WORK_SECONDS = 3.0
"""Of the processor: far more than the command needs until the question is being answered."""


def worked_seconds(pid: int) -> float:
    """Seconds of the processor that a living process has used."""
    cells = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(cells[11]) + int(cells[12])) / os.sysconf("SC_CLK_TCK")


def test_ctrl_c_in_a_long_question_is_quiet(tmp_path: Path) -> None:
    data = tmp_path / "data"
    tollbook(data, "keys", "create", "--name", "alice")
    process = Process((*CLI, "query", LONG, "--data", str(data)), tmp_path / "query.log")
    try:
        wait_until("DuckDB is at work", lambda: worked_seconds(process.pid) > AT_WORK_SECONDS)
        process.signal(signal.SIGINT)
        assert process.popen.wait(60) == 130
    finally:
        process.stop()
    assert process.output().endswith("tollbook: interrupted\n")
    assert "Traceback" not in process.output()

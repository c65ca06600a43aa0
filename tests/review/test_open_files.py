"""What a review found: with the usual limit of 1,024 open files, 500 streams were too many."""

import subprocess
import sys

SCRIPT = """
import resource
from gateway.wiring import raise_file_limit
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))
raise_file_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def limits(hard: str) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(hard=hard)], capture_output=True, text=True, check=True
    )
    return [int(number) for number in done.stdout.split()]


def test_the_gateway_takes_as_many_files_as_it_may() -> None:
    soft, hard = limits("hard")
    assert soft > 256 and (soft == hard or soft == 65_536)
    assert limits("300") == [300, 300], "never more than the hard limit"

"""Kill it: real processes, real sockets, random moments. What a client saw finish is in the ledger.

Short forms of the scenarios that `python -m tests.soak` plays for as long as one wants. One that
failed is repeated with `--hypothesis-seed=N`, as far as chance is ours to repeat.
"""

import pytest

from tests.kill.broken import broken_middle, torn_tail
from tests.kill.crash import fewer_workers, kill_gateway, kill_runner
from tests.kill.full import disk_full, spool_full
from tests.kill.place import Place, Rounds, Scenario
from tests.kill.put_back import put_back
from tests.kill.stop import sigterm

SHORT: list[tuple[Scenario, int]] = [
    (kill_gateway, 5),
    (kill_runner, 4),
    (fewer_workers, 1),
    (put_back, 2),
    (sigterm, 1),
    (spool_full, 1),
    (disk_full, 3),
    (torn_tail, 2),
    (broken_middle, 2),
]


@pytest.mark.e2e
@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("scenario", "rounds"), SHORT, ids=[scenario.__name__ for scenario, _ in SHORT]
)
def test_killed(place: Place, scenario: Scenario, rounds: int) -> None:
    print(scenario(place, Rounds(rounds)).words())

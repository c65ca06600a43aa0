"""Whether a request may begin: each no has its own code and says what to do."""

import pytest

from gateway.admission import require_admission
from gateway.errors import Overloaded


def test_a_gateway_with_room_lets_in() -> None:
    require_admission(draining=False, spool_has_room=True)


@pytest.mark.parametrize(
    ("draining", "room", "code", "words"),
    [
        (True, True, "shutting_down", "shutting down"),
        (False, False, "spool_full", "tollbook spool list"),
        # Nobody who is sent away by a stopping gateway should look for a full disk.
        (True, False, "shutting_down", "shutting down"),
    ],
)
def test_each_refusal_has_a_reason(draining: bool, room: bool, code: str, words: str) -> None:
    with pytest.raises(Overloaded, match=words) as refused:
        require_admission(draining=draining, spool_has_room=room)
    assert (refused.value.status, refused.value.code) == (503, code)

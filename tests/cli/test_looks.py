"""How often a waiting command looks, and when it looks for the last time. The clock is a script."""

from pathlib import Path

import pytest

from gateway.cli import looks as looking
from gateway.cli.looks import looks
from gateway.cli.place import Place
from gateway.settings import Settings
from tests.streams.builders import START, FakeClock


class House:
    """Time goes on by sleeping, and by `reading` at each look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, reading: float = 0.0) -> None:
        self.clock, self.reading = FakeClock(), reading
        self.looked = 0
        monkeypatch.setattr(looking, "SystemClock", lambda: self.clock)
        monkeypatch.setattr(looking, "views_of", self.views_of)
        monkeypatch.setattr("gateway.cli.looks.time.sleep", self.clock.advance)

    def views_of(self, place: Place) -> dict[tuple[str, str], object]:
        self.looked += 1
        self.clock.advance(self.reading)
        return {}


PLACE = Place(Path("nowhere"), Settings())


@pytest.mark.parametrize(
    ("seconds", "reading", "at"),
    [
        (0.0, 0.0, [0.0]),
        (3.0, 0.0, [0.0, 1.0, 2.0, 3.0]),
        (2.5, 0.0, [0.0, 1.0, 2.0, 2.5]),
        (2.0, 0.25, [0.25, 1.5, 2.25]),
        (1.0, 5.0, [5.0]),
    ],
)
def test_the_last_look_is_at_the_end(
    monkeypatch: pytest.MonkeyPatch, seconds: float, reading: float, at: list[float]
) -> None:
    house = House(monkeypatch, reading=reading)
    seen = list(looks(PLACE, 1.0, seconds))
    assert [look.waited_seconds for look in seen] == at
    assert house.looked == len(at)
    assert [(look.now - START).total_seconds() for look in seen] == at


def test_without_an_end_it_looks_for_as_long_as_somebody_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House(monkeypatch)
    for look in looks(PLACE, 0.5):
        if look.waited_seconds >= 10:
            break
    assert house.looked == 21, "one at once, and one after each half second"

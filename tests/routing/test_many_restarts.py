"""The short form of `python -m tests.routing.restarts`, and its drawings."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.routing.restarts import (
    HEIGHT,
    LEFT,
    SPEEDS,
    TOP,
    WIDTH,
    Played,
    Restart,
    draw,
    moves_drawing,
    play,
    shares_drawing,
)

SVG = "{http://www.w3.org/2000/svg}"
WINDOW = 400
POINTS_MAX = 8.0
"""On a machine that is busy with other tests so few answers scatter by some points. The bound of 5
is held by `test_restarts.py` and by the long form."""

parts = st.dictionaries(st.sampled_from(sorted(SPEEDS)), st.floats(0, 1), min_size=1)
restarts = st.lists(st.builds(Restart, st.just("SIGTERM"), parts, parts), min_size=1, max_size=60)


@pytest.mark.e2e
def test_a_gateway_that_was_ended_and_one_that_was_killed_go_on_with_the_same_shares(
    tmp_path: Path,
) -> None:
    played = play(tmp_path, 2, window=WINDOW)
    assert [one.how for one in played.restarts] == ["SIGTERM", "kill -9"]
    assert played.furthest <= POINTS_MAX, played.words()
    assert played.off == () and played.audit.startswith("clean")
    for one in played.restarts:
        assert one.after.keys() == SPEEDS.keys()
        assert one.after["quick"] > 2 * one.after["slow"], "shares differ, so that it is remembered"
    last = played.restarts[-1].before
    for name, share in played.remembered.items():
        # Told at most two seconds before a kill, of up to a minute: not just what clients saw last.
        assert share == pytest.approx(last[name], abs=0.1), played.remembered
    draw(played, tmp_path / "plots")
    drawn = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert drawn == ["restarts-moves.svg", "restarts-shares.svg"]


def test_the_furthest_move_is_of_any_server_and_of_one_that_came_or_went_too() -> None:
    even = Restart("SIGTERM", {"a": 0.5, "b": 0.5}, {"a": 0.48, "b": 0.52})
    gone = Restart("kill -9", {"a": 0.5, "b": 0.5}, {"a": 0.9, "c": 0.1})
    assert Played((even,), (), "", {}).furthest == pytest.approx(2)
    assert gone.moves() == pytest.approx({"a": 40, "b": -50, "c": 10})
    assert "1 of them by kill -9" in Played((even, gone), (), "clean", {}).words()


@given(restarts)
def test_drawings_are_xml_with_every_dot_inside_its_field(found: list[Restart]) -> None:
    for text in (shares_drawing(found), moves_drawing(found)):
        dots = list(ElementTree.fromstring(text).iter(f"{SVG}circle"))
        field = [dot for dot in dots if float(dot.attrib["cy"]) >= TOP - 1]
        assert field
        for dot in field:
            assert LEFT <= float(dot.attrib["cx"]) <= LEFT + WIDTH
            assert float(dot.attrib["cy"]) <= TOP + HEIGHT + 0.1

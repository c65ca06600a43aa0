"""`tollbook shares`: what it makes of views, on this disk and from Kafka, and its drawing."""

import asyncio
import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.output import csv_text, table_text
from gateway.cli.share_facts import (
    ALL,
    off,
    shared,
    shares_drawing,
    shares_json,
    shares_table,
)
from ledger.clock import SystemClock
from ledger.folds.routing import RoutingView, view_bytes
from streams.kafka.access import KafkaAccess
from tests.cli.books import run, run_json
from tests.gateway.doors import ask, backend, door, new_key
from tests.support.derived import put
from tests.support.events import START, after
from tests.support.kafka import settings_file
from tests.support.processes import backend as fake
from tests.support.processes import call, wait_until

CALLS = 40
SVG = "{http://www.w3.org/2000/svg}"


def view(backend_id: str, picks: int | None, gateway: str = "g1", **more: Any) -> RoutingView:
    values: Mapping[str, Any] = {
        "up": True,
        "source": f"/gateway/{gateway}/1",
        "sequence": 7,
        "observed_at": START,
        "expires_at": after(10),
        "appended_ms": 0,
        "offset": 0,
        "picks": picks,
        "expected": None if picks is None else "50",
        "picks_us": 58_000_000,
    }
    return RoutingView(backend_id=backend_id, gateway=gateway, **{**values, **more})


def test_shares_are_parts_of_what_one_gateway_picked() -> None:
    views = [view("b-2", 30), view("b-1", 70, expected="49.5", share_before="0.5")]
    (group,) = shared(views, START)
    assert (group.gateway, group.picks, group.seconds) == ("g1", 100, 58)
    first, second = group.parts
    assert (first.backend_id, first.measured, first.before) == ("b-1", 0.7, 0.5)
    assert first.expected == pytest.approx(49.5 / 99.5) and second.measured == 0.3
    assert off([group]) == []


def test_several_gateways_stand_together_first_and_each_alone() -> None:
    views = [view("b-1", 90), view("b-2", 10), view("b-1", 0, "g2"), view("b-2", 100, "g2")]
    groups = shared(views, START)
    assert [group.gateway for group in groups] == [ALL, "g1", "g2"]
    assert [part.measured for part in groups[0].parts] == [0.45, 0.55]
    assert [part.expected for part in groups[0].parts] == [0.5, 0.5]


def test_views_that_ran_out_or_tell_no_shares_are_left_out_unless_asked_for() -> None:
    views = [view("b-1", 3, expires_at=START), view("b-1", None, "old")]
    assert shared(views, START) == []
    assert [group.gateway for group in shared(views, START, ended=True)] == ["g1"]


def test_backends_that_were_removed_are_left_out_though_their_views_are_kept() -> None:
    views = [view("b-1", 30), view("b-2", 70), view("b-1", 9, "g2"), view("b-2", 9, "g2")]
    groups = shared(views, START, gone={"b-1"})
    assert [[part.backend_id for part in group.parts] for group in groups] == [["b-2"]] * 3
    assert groups[1].parts[0].measured == 1.0 and groups[1].picks == 70
    # Taken out of the settings: the gateway's later process tells nothing of it.
    later = view("b-2", 50, source="/gateway/g1/2", observed_at=after(1))
    (group,) = shared([views[0], later], START, ended=True)
    assert [(part.backend_id, part.measured) for part in group.parts] == [("b-2", 1.0)]


def test_a_gateway_without_picks_has_no_shares_and_not_zero() -> None:
    (group,) = shared([view("b-1", 0, expected="0"), view("b-2", 0, expected="0")], START)
    assert [(part.measured, part.expected) for part in group.parts] == [(None, None)] * 2
    assert "–" in table_text(shares_table([group]))
    assert "no picks" in shares_drawing([group], START)


def test_a_share_that_is_off_is_named_with_its_reason() -> None:
    groups = shared([view("b-1", 90, share_off="it got 90%"), view("b-2", 10)], START)
    assert off(groups) == ["g1: b-1 is off: it got 90%"]
    table = shares_table(groups)
    assert csv_text(table).splitlines()[1] == "g1,b-1,90,90.0%,50.0%,,off"
    assert table.notes == ("g1: b-1 is off: it got 90%",)
    told: Any = shares_json(groups)
    assert [one["off"] for one in told["gateways"][0]["backends"]] == ["it got 90%", None]


names = st.text(min_size=1, max_size=40)


@given(st.lists(st.tuples(names, st.integers(0, 10**9), st.sampled_from(["g1", "<g&2>"]))))
def test_a_drawing_is_xml_whatever_names_say_and_every_bar_is_inside(
    rows: list[tuple[str, int, str]],
) -> None:
    views = {(name, gateway): view(name, picks, gateway) for name, picks, gateway in rows}
    groups = shared(views.values(), START)
    text = shares_drawing(groups, START)
    assert text == shares_drawing(groups, START)
    drawing = ElementTree.fromstring(text)
    width, height = float(drawing.attrib["width"]), float(drawing.attrib["height"])
    for box in drawing.iter(f"{SVG}rect"):
        assert float(box.attrib["x"]) + float(box.attrib["width"]) <= width
        assert float(box.attrib["y"]) + float(box.attrib["height"]) <= height


def test_bars_are_as_long_as_the_shares() -> None:
    groups = shared([view("b-1", 75), view("b-2", 25)], START)
    drawing = ElementTree.fromstring(shares_drawing(groups, START))
    bars = [box for box in drawing.iter(f"{SVG}rect") if box.attrib["height"] == "14"]
    first, second = (float(bar.attrib["width"]) for bar in bars)
    assert first == 3 * second > 0


def test_without_a_data_directory_there_is_nothing_to_show(tmp_path: Path) -> None:
    shown = run("shares", "--data", str(tmp_path / "none"))
    assert shown.exit_code == 0
    assert shown.stdout == "no gateway that runs tells of its shares\n"


@pytest.mark.e2e
def test_a_running_gateway_tells_its_shares_and_they_are_drawn(tmp_path: Path) -> None:
    with (
        fake(tmp_path) as one,
        fake(tmp_path) as two,
        door(tmp_path, [backend(one.url, "b-1"), backend(two.url, "b-2")]) as gateway,
    ):
        data = tmp_path / "data"
        key = new_key(data, "alice")
        wait_until("the key is known", lambda: ask(gateway, key, "fake", script="n1").status == 200)
        for _ in range(CALLS - 1):
            assert ask(gateway, key, "fake", script="n1").status == 200

        def told() -> Any:
            (found,) = run_json("shares", "--data", str(data))["gateways"] or [{"picks": 0}]
            return found if found["picks"] == CALLS else None

        parts = wait_until("all picks are told", told)["backends"]
        assert sum(part["picks"] for part in parts) == CALLS
        assert [part["expected"] for part in parts] == pytest.approx([0.5, 0.5], abs=0.1)
        assert all(part["off"] is None and part["before_start"] is None for part in parts)
        metrics = call(gateway.url + "/metrics").body.decode()
        assert 'tollbook_share_off{backend="b-1"} 0.0' in metrics
        assert 'tollbook_share_expected{backend="b-2"} 0.' in metrics
        drawn = run("shares", "--data", str(data), "--plot", str(tmp_path / "shares.svg"))
        assert drawn.exit_code == 0 and "as it should be" in drawn.stdout
        assert "b-2" in (tmp_path / "shares.svg").read_text()


@pytest.mark.e2e
def test_on_kafka_they_come_from_all_gateways_and_one_that_is_off_is_exit_code_1(
    tmp_path: Path, kafka: KafkaAccess
) -> None:
    now = SystemClock().now()
    fresh = {"observed_at": now, "expires_at": now + timedelta(minutes=5)}
    views = [
        view("b-1", 90, "g1", share_off="it got 90%", **fresh),
        view("b-2", 10, "g1", **fresh),
        view("b-1", 50, "g2", **fresh),
        view("b-2", 50, "g2", **fresh),
    ]
    values = {f"{one.backend_id}/{one.gateway}": view_bytes(one) for one in views}
    asyncio.run(put(kafka, "routing-state", values))
    config = settings_file(tmp_path, kafka)
    where = ("--config", str(config), "--data", str(tmp_path / "none"))
    shown = run("shares", "--json", *where)
    groups = json.loads(shown.stdout)["gateways"]
    assert shown.exit_code == 1
    assert [group["gateway"] for group in groups] == [ALL, "g1", "g2"]
    assert groups[0]["backends"][0]["measured"] == 0.7
    assert "g1: b-1 is off: it got 90%" in run("shares", *where).stdout

"""The usage and costs APIs over a real gateway, by the official client, and what they refuse."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from ledger.clock import SystemClock
from tests.gateway.doors import SOON_SECONDS, Key, ask, backend, checked_error, door, new_key
from tests.support import processes
from tests.support.processes import Answer, Gateway, call, tollbook, tollbook_json, wait_until

MODEL = "fake-n3-c5"
USAGE, COSTS, OWN = "/v1/organization/usage/completions", "/v1/organization/costs", "/v1/usage"
DAY = 86_400


class Open(msgspec.Struct):
    """A gateway with an admin key and two others."""

    data: Path
    gateway: Gateway
    admin: Key
    ann: Key
    bo: Key


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    with opened(tmp_path_factory.mktemp("usage")) as found:
        yield found


@contextmanager
def opened(directory: Path, *args: str) -> Iterator[Open]:
    data = directory / "data"
    admin, ann, bo = new_key(data, "boss", "--admin"), new_key(data, "ann"), new_key(data, "bo")
    prices = ("--in", "0.5", "--out", "1.25", "--cached-in", "0.05", "--rerate", "first price")
    tollbook(data, "prices", "set", MODEL, *prices, "--from", "2026-01-01")
    with processes.backend(directory) as server:
        wide = [backend(server.url, "b")]
        with door(directory, wide, *args, gateway={"models": ["*"]}) as gateway:
            for key in (ann, ann, bo):
                assert ask(gateway, key, MODEL).status == 200
            assert ask(gateway, bo, "fake-n4").status == 200
            found = Open(data, gateway, admin, ann, bo)
            wait_until("all is told", lambda: total(found) == 4, SOON_SECONDS)
            yield found


def today() -> int:
    """The second at which this UTC day began, or the one before if it has only just begun."""
    now = int(SystemClock().now().timestamp()) - 600
    return now - now % DAY


def get(place: Open, path: str, key: Key | None, **query: Any) -> Answer:
    pairs = [
        f"{name}={one}"
        for name, value in query.items()
        for one in (value if isinstance(value, list) else [value])
    ]
    url = f"{place.gateway.url}{path}?{'&'.join(pairs)}"
    return call(url, key=key.secret if key else None)


def total(place: Open) -> int:
    answer = get(place, USAGE, place.admin, start_time=today())
    if answer.status != 200:
        return -1
    results = [one for bucket in answer.json()["data"] for one in bucket["results"]]
    return sum(one["num_model_requests"] for one in results)


def admin_client(place: Open) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{place.gateway.url}/v1",
        api_key="none",
        admin_api_key=place.admin.secret,
        max_retries=0,
    )


def test_the_official_client_reads_usage_by_key_and_model(place: Open) -> None:
    with admin_client(place) as api:
        page = api.admin.organization.usage.completions(
            start_time=today(), bucket_width="1d", group_by=["api_key_id", "model"]
        )
    assert not page.has_more and page.next_page is None
    found = {
        (one.api_key_id, one.model): (
            one.num_model_requests,
            one.input_tokens,
            one.input_cached_tokens,
            one.input_uncached_tokens,
            one.output_tokens,
        )
        for bucket in page.data
        for one in bucket.results
        if one.object == "organization.usage.completions.result"
    }
    assert found == {
        (place.ann.id, MODEL): (2, 24, 10, 14, 6),
        (place.bo.id, MODEL): (1, 12, 5, 7, 3),
        (place.bo.id, "fake-n4"): (1, 12, 0, 12, 4),
    }


def test_the_official_client_reads_costs(place: Open) -> None:
    with admin_client(place) as api:
        raw = api.admin.organization.usage.with_raw_response.costs(
            start_time=today(), group_by=["api_key_id"]
        )
    page = raw.parse()
    amounts = {
        one.api_key_id: (one.amount.value, one.amount.currency)
        for bucket in page.data
        for one in bucket.results
        if one.object == "organization.costs.result" and one.amount is not None
    }
    # 7 of 0.5, 5 of 0.05 and 3 of 1.25 a million: 7.5 millionths for each request.
    assert amounts == {place.ann.id: (0.000015, "usd"), place.bo.id: (0.0000075, "usd")}
    results = msgspec.json.decode(raw.content)["data"][0]["results"]
    exact = {one["api_key_id"]: one["x_amount_exact"] for one in results if one["amount"]}
    assert exact == {place.ann.id: "0.000015", place.bo.id: "0.0000075"}
    assert b'"value":0.0000075' in raw.content, "the number has its own digits"
    unpriced = [one for one in results if one["amount"] is None]
    assert [(one["api_key_id"], one["x_unpriced"]) for one in unpriced] == [
        (place.bo.id, ["uncached_in", "other_out"])
    ], "what has no price is shown, and is not zero"


def test_line_items_add_up_to_the_same_costs_as_the_bill(place: Open) -> None:
    answer = get(place, COSTS, place.admin, start_time=today(), **{"group_by[]": "line_item"})
    items = {
        one["line_item"]: (Decimal(one["x_amount_exact"]), one["quantity"], one["quantity_unit"])
        for bucket in answer.json()["data"]
        for one in bucket["results"]
        if one["x_amount_exact"] is not None
    }
    assert items == {
        f"{MODEL}, uncached_in": (Decimal("0.0000105"), 21, "tokens"),
        f"{MODEL}, cached_in": (Decimal("0.00000075"), 15, "tokens"),
        f"{MODEL}, other_out": (Decimal("0.00001125"), 9, "tokens"),
    }
    rows = tollbook_json(place.data, "bill")["rows"]
    billed = sum(Decimal(row["cost"]) for row in rows if row["cost"] is not None)
    assert sum(cost for cost, _, _ in items.values()) == billed
    one_item = get(
        place, COSTS, place.admin, start_time=today(), line_items=f"{MODEL},%20other_out"
    )
    (result,) = one_item.json()["data"][0]["results"]
    assert result["x_amount_exact"] == "0.00001125" and result["line_item"] is None


def test_pages_of_buckets_cover_the_time_once(place: Open) -> None:
    start, seen, page = today() - 2 * DAY, [], None
    query = {"start_time": start, "end_time": today() + DAY, "bucket_width": "1h", "limit": 10}
    while True:
        more: dict[str, Any] = {} if page is None else {"page": page}
        answer = get(place, USAGE, place.admin, **query, **more).json()
        seen += answer["data"]
        page = answer["next_page"]
        assert answer["has_more"] is (page is not None)
        if page is None:
            break
    assert [bucket["start_time"] for bucket in seen] == list(range(start, today() + DAY, 3600))
    assert all(bucket["end_time"] - bucket["start_time"] == 3600 for bucket in seen)
    requests = [one["num_model_requests"] for bucket in seen for one in bucket["results"]]
    assert sum(requests) == 4
    other = get(place, USAGE, place.admin, **query, page=cursor(place, **query), models="x")
    assert "another question" in checked_error(other, 400, "invalid_parameter")


def cursor(place: Open, **query: Any) -> str:
    found: str = get(place, USAGE, place.admin, **query).json()["next_page"]
    return found


def test_minutes_tell_the_same_as_days(place: Open) -> None:
    now = int(SystemClock().now().timestamp())
    query = {"start_time": now - 1200, "bucket_width": "1m", "limit": 1440}
    answer = get(place, USAGE, place.admin, **query).json()
    requests = [one["num_model_requests"] for b in answer["data"] for one in b["results"]]
    assert sum(requests) == 4 and answer["data"][0]["start_time"] == now - 1200
    assert all(bucket["end_time"] % 60 == 0 for bucket in answer["data"][:-1])


def test_filters(place: Open) -> None:
    def count(**query: Any) -> int:
        data = get(place, USAGE, place.admin, start_time=today(), **query).json()["data"]
        return sum(one["num_model_requests"] for bucket in data for one in bucket["results"])

    assert count(api_key_ids=place.ann.id) == 2
    assert count(**{"api_key_ids[]": [place.ann.id, place.bo.id]}) == 4
    assert count(models=MODEL) == 3
    assert count(models=MODEL, api_key_ids=place.bo.id) == 1
    assert count(project_ids="proj_none") == 0
    assert count(batch="true") == count(user_ids="u") == 0
    assert count(batch="false") == 4


def test_a_key_reads_its_own_usage_and_no_more(place: Open) -> None:
    answer = get(place, OWN, place.bo, start_time=today(), group_by=["model", "api_key_id"])
    (bucket,) = [one for one in answer.json()["data"] if one["results"]]
    found = {(one["api_key_id"], one["model"]): one["input_tokens"] for one in bucket["results"]}
    assert found == {(place.bo.id, MODEL): 12, (place.bo.id, "fake-n4"): 12}
    wrong = get(place, OWN, place.bo, start_time=today(), api_key_ids=place.ann.id)
    assert "api_key_ids" in checked_error(wrong, 400, "unknown_parameter")
    for path in (USAGE, COSTS):
        refused = get(place, path, place.bo, start_time=today())
        assert "no admin key" in checked_error(refused, 403, "admin_key_required")
        checked_error(get(place, path, None, start_time=today()), 401, "missing_api_key")
    checked_error(ask(place.gateway, place.admin, MODEL), 403, "model_not_allowed")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({}, "start_time: it must be given"),
        ({"start_time": "x"}, "start_time: 'x' is no whole number"),
        ({"start_time": 1_780_000_000_000}, "not in milliseconds"),
        ({"start_time": 10, "end_time": 1_780_000_000_000}, "end_time: times are in seconds"),
        ({"start_time": 10, "end_time": 10}, "end_time: it must be after start_time"),
        ({"start_time": 10, "limit": 32}, "limit: of buckets of 1d a page has 1 to 31, not 32"),
        ({"start_time": 10, "limit": 0}, "limit: of buckets of 1d"),
        ({"start_time": 10, "limit": 169, "bucket_width": "1h"}, "1 to 168"),
        ({"start_time": 10, "bucket_width": "1w"}, "bucket_width: '1w' is none of 1m, 1h, 1d"),
        ({"start_time": 10, "group_by": "modell"}, "did you mean model?"),
        ({"start_time": 10, "grup_by": "model"}, "did you mean group_by?"),
        ({"start_time": 10, "page": "page_x"}, "page: it is no next_page"),
    ],
)
def test_a_wrong_question_is_told_why(place: Open, query: dict[str, Any], said: str) -> None:
    answer = get(place, USAGE, place.admin, **query)
    code = "unknown_parameter" if "grup_by" in query else "invalid_parameter"
    assert said in checked_error(answer, 400, code)


def test_an_answer_is_told_within_two_seconds(place: Open) -> None:
    """The clock runs from the end of the answer to the answer of the API that has it."""
    late = []
    for _ in range(5):
        before = total(place)
        assert ask(place.gateway, place.ann, MODEL).status == 200
        began = time.monotonic()
        wait_until("it is told", lambda was=before: total(place) == was + 1, SOON_SECONDS)
        late.append(time.monotonic() - began)
    assert max(late) < 2.0, late


def readers(gateway: Gateway) -> set[int]:
    return {pid for pid, line in gateway.descendants().items() if " reader " in line}


def test_without_its_reader_the_api_says_so_and_serving_goes_on(tmp_path: Path) -> None:
    """Two workers, and a directory whose path is longer than the address of a socket."""
    directory = tmp_path / ("d" * 60) / ("e" * 60)
    directory.mkdir(parents=True)
    with opened(directory, "--workers", "2") as place:
        (reader,) = readers(place.gateway)
        os.kill(reader, signal.SIGKILL)
        seen: list[Answer] = []

        def gone_and_back() -> bool:
            seen.append(get(place, USAGE, place.admin, start_time=today()))
            assert ask(place.gateway, place.ann, MODEL).status == 200
            return any(one.status == 503 for one in seen) and seen[-1].status == 200

        wait_until("it is away, and back", gone_and_back, SOON_SECONDS)
        away = next(one for one in seen if one.status == 503)
        assert "try again soon" in checked_error(away, 503, "ledger_unavailable")
        assert away.headers["retry-after"] == "1"
        assert len(readers(place.gateway) - {reader}) == 1
        assert (place.data / "reader.sock").stat().st_mode & 0o777 == 0o600
    assert not (place.data / "reader.sock").exists()


def test_with_the_ledger_away_the_api_says_so_and_serving_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path) as place:
        ledger = place.data / "ledger.db"
        ledger.rename(place.data / "elsewhere.db")
        away = get(place, USAGE, place.admin, start_time=today())
        assert "ledger.db" in checked_error(away, 503, "ledger_unavailable")
        assert ask(place.gateway, place.ann, MODEL).status == 200
        (place.data / "elsewhere.db").rename(ledger)
        wait_until("it is told again", lambda: total(place) >= 4, SOON_SECONDS)


def test_days_without_use_are_there(place: Open) -> None:
    start = int(datetime(2025, 1, 1, tzinfo=UTC).timestamp())
    answer = get(place, COSTS, place.admin, start_time=start, limit=180).json()
    assert len(answer["data"]) == 180 and answer["has_more"]
    assert {bucket["x_period"] for bucket in answer["data"]} == {"open"}
    assert all(bucket["results"] == [] for bucket in answer["data"])

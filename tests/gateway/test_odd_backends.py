"""Backends that fail, lie, stall or speak no HTTP, behind a real gateway over real sockets."""

import gzip
import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ledger.events import RequestAttempted
from tests.gateway.doors import (
    CHAT,
    SOON_SECONDS,
    ask,
    backend,
    checked_error,
    door,
    ended,
    new_key,
    told,
)
from tests.gateway.house import BODY_BYTES_MAX, USAGE, House, raw_answer
from tests.support import processes
from tests.support.fake_backend import KEY
from tests.support.processes import call, wait_until


def test_a_401_of_a_backend_is_our_own_fault(house: House) -> None:
    answer = ask(house.strict, house.key, "raw-401")
    message = checked_error(answer, 502, "backend_key_refused")
    assert "Your key is fine" in message
    assert "www-authenticate" not in answer.headers
    assert ended(house.data, answer.headers["x-request-id"]).status == 401


def test_a_redirect_of_a_backend_is_not_followed_and_not_shown(house: House) -> None:
    answer = ask(house.strict, house.key, "raw-redirect")
    assert "redirect" in checked_error(answer, 502, "backend_redirects")
    assert "10.9.8.7" not in answer.body.decode() + str(answer.headers)


@pytest.mark.parametrize("model", ["raw-silence", "raw-garbage", "raw-half-head", "raw-short-body"])
def test_a_backend_that_speaks_no_http_is_a_502(house: House, model: str) -> None:
    answer = ask(house.strict, house.key, model)
    checked_error(answer, 502, answer.json()["error"]["code"])
    assert "127.0.0.1" not in answer.body.decode()
    end = ended(house.data, answer.headers["x-request-id"])
    assert end.outcome in ("backend_lost", "backend_unreachable")
    assert end.basis == "none"


def test_a_stream_that_breaks_ends_with_an_error_event(house: House) -> None:
    answer = ask(house.strict, house.key, "raw-cut-chunk", stream=True)
    assert answer.status == 200
    assert b'"code":"backend_lost"' in answer.body
    assert b"[DONE]" not in answer.body
    end = ended(house.data, answer.headers["x-request-id"])
    assert end.outcome == "backend_lost"
    assert (end.basis, end.usage.other_out, answer.body.count(b"first one")) == ("counted", 1, 1)


@pytest.mark.parametrize("model", ["raw-deep", "raw-absurd", "raw-big"])
def test_an_answer_that_cannot_be_counted_passes_and_says_so(house: House, model: str) -> None:
    answer = ask(house.strict, house.key, model)
    assert answer.status == 200
    assert answer.body == raw_answer(model, b"").partition(b"\r\n\r\n")[2]
    end = ended(house.data, answer.headers["x-request-id"])
    assert (end.outcome, end.basis) == ("completed", "none")


def test_a_packed_answer_is_inflated_and_counted(house: House) -> None:
    answer = ask(house.strict, house.key, "raw-zipped")
    assert (answer.status, answer.body) == (200, USAGE)
    assert "content-encoding" not in answer.headers
    assert answer.headers["content-length"] == str(len(USAGE))
    end = ended(house.data, answer.headers["x-request-id"])
    assert (end.basis, end.usage.uncached_in, end.usage.other_out) == ("reported", 3, 4)
    answer = ask(house.strict, house.key, "raw-zipped-stream", stream=True)
    assert b"first one" in answer.body
    assert "content-encoding" not in answer.headers
    end = ended(house.data, answer.headers["x-request-id"])
    assert (end.basis, end.usage.uncached_in, end.usage.other_out) == ("reported", 3, 4)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("raw-zip-cut", "breaks off in the middle of its gzip"),
        ("raw-zip-none", "is not the deflate that it says it is"),
        ("raw-brotli", "only gzip and deflate are read"),
    ],
)
def test_a_packed_answer_that_cannot_be_read_is_a_502(house: House, model: str, why: str) -> None:
    answer = ask(house.strict, house.key, model)
    assert why in checked_error(answer, 502, answer.json()["error"]["code"])
    assert ended(house.data, answer.headers["x-request-id"]).basis == "none"


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_request_may_come_packed(house: House, coding: str) -> None:
    said = json.dumps({"model": "fake-n2", "messages": [], coding: "y" * BODY_BYTES_MAX}).encode()
    packed = gzip.compress(said) if coding == "gzip" else zlib.compress(said)
    headers = {"content-encoding": coding}
    answer = call(house.wide.url + CHAT, packed, house.key.secret, headers)
    assert answer.status == 200
    last = [seen for server in (house.one, house.two) for seen in server.stats()["last"]]
    sent = next(seen for seen in last if coding in seen["body"])
    assert sent["body"] == json.loads(said)
    assert "content-encoding" not in sent["headers"]
    # The same is too large where the limit is smaller, however small it came.
    refused = call(house.strict.url + CHAT, packed, house.key.secret, headers)
    assert "body_bytes_max" in checked_error(refused, 413, "request_too_large")
    spoilt = call(house.wide.url + CHAT, packed[:-1], house.key.secret, headers)
    assert "breaks off" in checked_error(spoilt, 400, "invalid_content_encoding")


def test_a_request_in_another_coding_is_refused(house: House) -> None:
    answer = call(house.wide.url + CHAT, b"x", house.key.secret, {"content-encoding": "zstd"})
    message = checked_error(answer, 415, "unsupported_content_encoding")
    assert "only gzip and deflate are read" in message


def test_headers_of_a_backend_pass_unless_they_are_ours_to_set(house: House) -> None:
    answer = ask(house.strict, house.key, "raw-headers")
    assert answer.headers["openai-processing-ms"] == "7"
    assert answer.headers["x-tollbook-backend"] == "raw"
    assert answer.headers["x-request-id"].startswith("req_")
    assert not {"server", "www-authenticate"} & answer.headers.keys()


LIMITS = {"first_byte_seconds": 1.2, "between_chunks_seconds": 0.9, "total_seconds": 2.4}
SILENT = (("fake-h1", False), ("fake-h1", True), ("fake-d4000", False))
STALLED = (
    ("fake-n9-g3", "silence", 3),
    ("fake-n100-i100000", "whole request", None),
    # aiohttp says nothing of a chunk whose length is no number: the limit ends the wait.
    ("raw-bad-chunk", "silence", 1),
)


def test_a_dead_backend_is_a_502_and_a_stalled_one_a_504(house: House, tmp_path: Path) -> None:
    nobody = processes.free_port()
    data = tmp_path / "data"
    key = new_key(data, "k")
    alive = [model for model, *_ in (*SILENT, *STALLED) if model.startswith("fake")]
    tables = [
        backend(f"http://127.0.0.1:{nobody}", "dead", models=["m"]),
        backend(house.one.url, "alive", models=alive),
        backend(house.raw.url, "raw", models=["raw-bad-chunk"]),
    ]
    with door(tmp_path, tables, timeouts=LIMITS, spool={"flush_milliseconds": 50}) as gateway:
        ready = call(gateway.url + "/health/ready").json()
        assert ready["backends"]["dead"].startswith("down: the port refuses")
        assert ready["backends"]["alive"] == "up"
        answer = ask(gateway, key, "m")
        assert "refused" in checked_error(answer, 502, "backend_unreachable")
        assert str(nobody) not in answer.body.decode()
        assert answer.headers["x-tollbook-backend"] == "dead"
        end = ended(data, answer.headers["x-request-id"])
        assert (end.outcome, end.basis) == ("backend_unreachable", "none")
        with ThreadPoolExecutor() as pool:
            silent = [pool.submit(ask, gateway, key, m, stream=s) for m, s in SILENT]
            stalled = [pool.submit(ask, gateway, key, m, stream=True) for m, *_ in STALLED]
        for late in silent:
            answer = late.result()
            assert "first byte" in checked_error(answer, 504, "backend_timeout")
            end = ended(data, answer.headers["x-request-id"])
            assert (end.outcome, end.basis) == ("timeout", "none")
        for late, (model, reason, out) in zip(stalled, STALLED, strict=True):
            answer = late.result()
            assert answer.status == 200
            last = answer.body.strip().split(b"\n\n")[-1]
            assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "backend_timeout"
            end = ended(data, answer.headers["x-request-id"])
            # The raw server has no tokenizer to ask.
            basis = "counted" if model.startswith("raw") else "tokenized"
            assert (end.outcome, end.basis) == ("timeout", basis)
            assert reason in end.reason
            assert end.usage.other_out == (out or answer.body.count(b'"content":" t'))


def _condition(house: House, backend_id: str) -> str:
    said = call(house.wide.url + "/health/ready").json()["backends"][backend_id]
    assert isinstance(said, str)
    return said


def test_a_failure_before_the_first_byte_is_tried_once_elsewhere(house: House) -> None:
    seen = set()
    for flag in ("e500", "e503"):
        # What the tests before did to it may have opened its breaker: it is back within a probe,
        # at first with a tenth of its share.
        wait_until("it is back", lambda: _condition(house, "one").startswith("up"), SOON_SECONDS)
        call(house.one.url + "/_next", [flag])
        # The queue of the failing backend is used up by the first call that reaches it.
        for number in range(400):
            answer = ask(house.wide, house.key, f"fake-n3-p{number}")
            assert (answer.status, answer.json()["usage"]["completion_tokens"]) == (200, 3)
            attempts = [
                said
                for said in told(house.data, answer.headers["x-request-id"])
                if isinstance(said, RequestAttempted)
            ]
            if len(attempts) == 2:
                assert [said.backend_id for said in attempts] == ["one", "two"]
                assert answer.headers["x-tollbook-backend"] == "two"
                seen.add(attempts[1].after)
                break
        else:
            pytest.fail(f"{flag} never reached the backend")
        call(house.one.url + "/_reset")
    assert seen == {"status 500", "status 503"}


def test_an_answer_that_breaks_in_its_middle_is_not_made_twice(house: House) -> None:
    answer = ask(house.wide, house.key, "fake-n6-k3")
    checked_error(answer, 502, "backend_lost")
    end = ended(house.data, answer.headers["x-request-id"])
    assert (end.outcome, end.basis, end.attempts) == ("backend_lost", "none", 1)


def test_a_5xx_of_the_last_backend_passes(house: House) -> None:
    answer = ask(house.wide, house.key, "fake-e500")
    assert (answer.status, answer.json()["error"]["message"]) == (500, "scripted 500")
    end = ended(house.data, answer.headers["x-request-id"])
    assert (end.attempts, end.status) == (2, 500)


@pytest.mark.parametrize("model", ["raw-echo-error", "raw-echo-stream"])
def test_no_secret_comes_back_even_if_the_backend_echoes_it(house: House, model: str) -> None:
    answer = ask(house.strict, house.key, model, stream="stream" in model)
    assert b"Bearer [server key]" in answer.body
    shown = answer.body.decode() + str(answer.headers)
    assert KEY not in shown
    assert not {"x-echo", "set-cookie"} & answer.headers.keys()
    assert house.key.secret.encode() not in house.raw.requests[-1]

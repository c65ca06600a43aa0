"""The doors over real sockets: a real `tollbook serve`, real backends, every refusal in words."""

import json
import re
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.http.client_ids import CLIENT_ID_BYTES_MAX
from gateway.routing.refusals import REFUSED
from ledger.events import RequestAccepted, RequestAttempted, RequestRejected
from tests.gateway.doors import (
    CHAT,
    COMPLETIONS,
    Key,
    RawClient,
    ask,
    checked_error,
    ended,
    facts,
    new_key,
    revoke,
    spool_bytes,
    told,
)
from tests.gateway.house import BODY_BYTES_MAX, RAW_MODELS, House
from tests.support.fake_backend import KEY
from tests.support.processes import Gateway, call

EFFECTIVE_SECONDS_MAX = 1.0
"""How soon a running gateway must know of a change to its keys."""

CLIENT_ID = "client-made-this-id-7f3a"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("secret", "code", "words"),
    [
        (None, "missing_api_key", "No API key was given"),
        ("", "invalid_api_key", "'Bearer KEY'"),
        ("sk-tb-nobody-has-this", "invalid_api_key", "not known here"),
        ("revoked", "revoked_api_key", "was revoked at"),
    ],
)
def test_401(house: House, path: str, secret: str | None, code: str, words: str) -> None:
    used = house.revoked.secret if secret == "revoked" else secret
    # A wrong key is refused before its body is read: what it asks for does not matter.
    answer = call(house.wide.url + path, b"{", used)
    message = checked_error(answer, 401, code)
    assert words in message
    assert not used or used not in message
    assert answer.headers["x-tollbook-overhead-ms"]


def test_the_server_key_opens_the_back_door_only(house: House) -> None:
    checked_error(call(house.wide.url + CHAT, {"model": "fake"}, KEY), 401, "invalid_api_key")
    assert call(house.one.url + CHAT, {"model": "fake"}, house.key.secret).status == 401
    assert call(house.one.url + CHAT, {"model": "fake"}, KEY).status == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_403(house: House, path: str) -> None:
    answer = ask(house.strict, house.few, "other", path)
    assert "can use: fake." in checked_error(answer, 403, "model_not_allowed")
    assert answer.json()["error"]["param"] == "model"
    # A key that may not use a model does not learn whether it is there.
    answer = ask(house.strict, house.few, "not-there", path)
    assert "can use: fake." in checked_error(answer, 403, "model_not_allowed")


def test_404(house: House) -> None:
    message = checked_error(ask(house.strict, house.key, "not-there"), 404, "model_not_found")
    assert "'not-there'" in message
    assert "fake, other" in message
    message = checked_error(ask(house.strict, house.few, "nobody-has-it"), 404, "model_not_found")
    assert "can use: fake." in message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"model":"fake",}', "byte 16"),
        (b'{"model":"fake"', "byte 15"),
        (b"", "byte 0"),
        (b"[]", "Expected `object`"),
        (b'{"messages":[]}', "`model`"),
        (b'{"model":"fake","stream":"yes"}', "`$.stream`"),
        (b'{"model":"fake","x":' + b"[" * 60_000, "nested too deeply"),
        (b'{"model":"\xff"}', "byte 10"),
    ],
)
def test_400(house: House, body: bytes, words: str) -> None:
    # urllib sends no body at all for an empty one, unless it is told its length.
    answer = call(
        house.strict.url + CHAT, body, house.key.secret, {"content-length": str(len(body))}
    )
    message = checked_error(answer, 400, answer.json()["error"]["code"])
    assert words in message
    assert answer.headers["x-tollbook-overhead-ms"]
    assert "x-tollbook-backend" not in answer.headers
    assert "x-tollbook-route" not in answer.headers


def test_413_before_the_body_is_read_where_its_length_is_announced(house: House) -> None:
    client = RawClient(house.strict.port)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {house.key.secret}\r\n"
    client.socket.sendall(f"{head}Content-Length: {BODY_BYTES_MAX + 1}\r\n\r\n".encode())
    answer = client.read_until(b'"request_too_large"')
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()
    assert f"limit is {BODY_BYTES_MAX}".encode() in answer
    client.break_off()


def test_413_where_it_is_not_announced_and_the_limit_itself_passes(house: House) -> None:
    start = b'{"model":"fake","messages":[],"x":"'
    fits = start + b"y" * (BODY_BYTES_MAX - len(start) - 2) + b'"}'
    assert len(fits) == BODY_BYTES_MAX
    assert call(house.strict.url + CHAT, fits, house.key.secret).status == 200
    client = RawClient(house.strict.port)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {house.key.secret}\r\n"
    client.socket.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
    client.socket.sendall(b"%x\r\n%b\r\n" % (len(fits) + 1, fits + b" "))
    assert client.read_until(b'"request_too_large"').startswith(b"HTTP/1.1 413 ")
    client.break_off()


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/v1/images/generations", 404, "unknown_path"),
        ("POST", "/v1/responses/resp_1", 404, "unknown_path"),
        ("POST", "/v1/chat/completions/", 404, "unknown_path"),
        ("POST", "/chat/completions", 404, "unknown_path"),
        ("POST", "//v1/chat/completions", 404, "unknown_path"),
        ("GET", "/", 404, "unknown_path"),
        ("GET", "/_stats", 404, "unknown_path"),
        ("GET", "/v1/models/fake", 404, "unknown_path"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
    ],
)
def test_what_is_not_metered_is_not_passed_on(
    house: House, method: str, path: str, status: int, code: str
) -> None:
    before = house.one.stats()["requests"] + house.two.stats()["requests"]
    client = RawClient(house.wide.port)
    client.socket.sendall(
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {house.key.secret}\r\n"
        "Content-Length: 2\r\nConnection: close\r\n\r\n{}".encode()
    )
    answer = client.read_until(b"never comes")
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    said = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert (said["code"], said["type"]) == (code, "invalid_request_error")
    assert b"x-request-id: req_" in answer.lower()
    if status == 405:
        assert client.header("allow")
    client.break_off()
    assert house.one.stats()["requests"] + house.two.stats()["requests"] == before


@pytest.mark.parametrize("model", ["fake-e400", "fake-e404", "fake-e422", "fake-e429", "fake-e418"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_backends_own_4xx_passes_as_it_is(house: House, model: str, stream: bool) -> None:
    answer = ask(house.wide, house.key, model, stream=stream)
    status = int(model[-3:])
    assert answer.status == status
    assert answer.json() == {
        "error": {
            "message": f"scripted {status}",
            "type": "invalid_request_error",
            "param": None,
            "code": status,
        }
    }
    assert answer.headers["x-tollbook-backend"] in ("one", "two")
    end = ended(house.data, answer.headers["x-request-id"])
    attempts = 2 if status in REFUSED else 1
    assert (end.outcome, end.status, end.basis) == ("completed", status, "none")
    assert end.attempts == attempts, "what may be of one server alone is tried on the other, too"


def test_a_key_works_and_stops_within_a_second(house: House) -> None:
    key = new_key(house.data, "new")
    made = time.monotonic()
    while (answer := ask(house.wide, key, "fake-n1")).status != 200:
        checked_error(answer, 401, "invalid_api_key")
        assert time.monotonic() - made < EFFECTIVE_SECONDS_MAX
        time.sleep(0.02)
    revoke(house.data, key)
    gone = time.monotonic()
    while ask(house.wide, key, "fake-n1").status == 200:
        assert time.monotonic() - gone < EFFECTIVE_SECONDS_MAX
        time.sleep(0.02)
    checked_error(ask(house.wide, key, "fake-n1"), 401, "revoked_api_key")


def test_models_are_listed_for_each_key(house: House) -> None:
    def names(gateway: Gateway, key: Key) -> list[str]:
        answer = call(gateway.url + "/v1/models", key=key.secret)
        assert answer.status == 200
        assert answer.headers["x-tollbook-overhead-ms"]
        assert answer.headers["x-request-id"].startswith("req_")
        return [model["id"] for model in answer.json()["data"]]

    assert names(house.wide, house.key) == ["fake", "other"]
    assert names(house.wide, house.few) == ["fake"]
    assert names(house.strict, house.key) == sorted(["fake", "other", *RAW_MODELS])
    assert names(house.strict, house.few) == ["fake"]
    checked_error(call(house.wide.url + "/v1/models"), 401, "missing_api_key")
    checked_error(
        call(house.wide.url + "/v1/models", key=house.revoked.secret), 401, "revoked_api_key"
    )


def test_health(house: House) -> None:
    assert call(house.wide.url + "/health/live").json() == {"status": "alive"}
    ready = call(house.wide.url + "/health/ready")
    assert ready.status == 200
    assert ready.json() == {
        "ready": True,
        "waiting_for": [],
        "backends": {"one": "up", "two": "up"},
    }


def test_metrics_parse_and_count(house: House) -> None:
    def value(name: str, **labels: str) -> float:
        text = call(house.wide.url + "/metrics").body.decode()
        samples = [s for f in text_string_to_metric_families(text) for s in f.samples]
        found = [s.value for s in samples if s.name == name and labels.items() <= s.labels.items()]
        return sum(found)

    watched = {
        "tollbook_requests_finished_total": {"endpoint": "completions", "outcome": "completed"},
        "tollbook_requests_rejected_total": {"code": "invalid_json"},
        "tollbook_requests_unauthorized_total": {},
        "tollbook_tokens_total": {"bucket": "other_out"},
        "gen_ai_server_request_duration_seconds_count": {},
    }
    before = {name: value(name, **labels) for name, labels in watched.items()}
    ask(house.wide, house.key, "fake-n7", COMPLETIONS)
    call(house.wide.url + CHAT, b"{", house.key.secret)
    ask(house.wide, None, "fake")
    added = {name: value(name, **labels) - before[name] for name, labels in watched.items()}
    assert list(added.values()) == [1, 1, 1, 7, 1]
    assert value("tollbook_backend_up") == 2
    assert value("tollbook_process_up", process="runner") == 1
    assert value("tollbook_requests_open") == 0
    text = call(house.wide.url + "/metrics").body.decode()
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    assert all(family.documentation for family in families)
    assert house.key.id not in text


def test_every_answer_says_what_it_was_and_what_it_cost(house: House) -> None:
    ids = set()
    for path in (CHAT, COMPLETIONS):
        for stream in (False, True):
            answer = ask(house.wide, house.key, "fake-d80-n3", path, stream=stream)
            assert answer.status == 200
            ids.add(answer.headers["x-request-id"])
            assert answer.headers["x-tollbook-backend"] in ("one", "two")
            score, _, reasons = answer.headers["x-tollbook-route"].partition("; ")
            said = told(house.data, answer.headers["x-request-id"])
            (tried,) = [one for one in said if isinstance(one, RequestAttempted)]
            assert score == f"score={tried.score}" and float(tried.score or "nan") >= 0
            assert reasons.split(", ") == tried.reasons and "2 of 2 backends fit" in tried.reasons
            # The backend waits 80 ms; what is left is ours.
            assert 0 <= float(answer.headers["x-tollbook-overhead-ms"]) < 60
            end = ended(house.data, answer.headers["x-request-id"])
            assert end.overhead_us < 60_000
            assert end.duration_us > 80_000
            assert (end.usage.uncached_in, end.usage.other_out) == (12, 3)
    assert len(ids) == 4


def test_a_clients_own_id_is_given_back_and_only_its_hash_is_kept(house: House) -> None:
    answer = ask(house.wide, house.key, "fake-n1", headers={"X-Request-ID": CLIENT_ID})
    assert answer.headers["x-client-request-id"] == CLIENT_ID
    assert answer.headers["x-request-id"] != CLIENT_ID
    again = ask(house.wide, house.key, "fake-n1", headers={"X-Request-ID": CLIENT_ID})
    hashes = set()
    for one in (answer, again):
        accepted = told(house.data, one.headers["x-request-id"])[0]
        assert isinstance(accepted, RequestAccepted)
        hashes.add(accepted.client_request)
    assert len(hashes) == 1
    assert re.fullmatch(r"[0-9a-f]{32}", str(hashes.pop()))
    assert CLIENT_ID.encode() not in spool_bytes(house.data)
    refused = call(house.wide.url + CHAT, b"{", house.key.secret, {"x-request-id": CLIENT_ID})
    assert refused.headers["x-client-request-id"] == CLIENT_ID
    listed = call(house.wide.url + "/v1/models", None, house.key.secret, {"x-request-id": "x"})
    assert listed.headers["x-client-request-id"] == "x"


def test_what_goes_on_to_the_backend_and_what_stays_here(house: House) -> None:
    kept = b'{ "model" : "fake-n2-p33","messages":[], "temperature":0.70,"x":{"a":[1e3]} }'
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    sent = {"traceparent": trace, "cookie": "c=1", "openai-organization": "o", "x-request-id": "i"}
    answer = call(house.wide.url + CHAT, kept, house.key.secret, sent)
    assert answer.status == 200
    last = next(
        seen
        for server in (house.one, house.two)
        for seen in server.stats()["last"]
        if seen["body"]["model"] == "fake-n2-p33"
    )
    assert last["body"] == json.loads(kept)
    headers = last["headers"]
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["traceparent"] == trace
    assert headers["x-request-id"] == answer.headers["x-request-id"]
    assert headers["content-length"] == str(len(kept))
    assert not {"cookie", "openai-organization"} & headers.keys()
    assert house.key.secret not in str(last)


def test_no_secret_is_in_any_event_log_or_page(house: House) -> None:
    for model in ("raw-echo-error", "raw-echo-stream", "raw-401"):
        ended(house.data, ask(house.strict, house.key, model).headers["x-request-id"])
    secrets = [KEY, house.key.secret, house.few.secret, house.revoked.secret]
    pages = [
        call(gateway.url + page, key=house.key.secret).body.decode()
        for gateway in (house.wide, house.strict)
        for page in ("/health/ready", "/health/live", "/metrics", "/v1/models", "/nothing")
    ]
    kept = [
        path.read_bytes().decode("latin-1")
        for path in house.data.rglob("*")
        if path.is_file() and path.parent.name != "secrets"
    ]
    logs = [house.wide.output(), house.strict.output()]
    for secret in secrets:
        assert not any(secret in text for text in (*pages, *kept, *logs))


def test_refusals_are_told_to_the_ledger_only_with_a_key(house: House) -> None:
    answer = ask(house.strict, house.key, "not-there")
    request_id = answer.headers["x-request-id"]
    (rejected,) = told(house.data, request_id)
    assert isinstance(rejected, RequestRejected)
    assert (rejected.status, rejected.code, rejected.model) == (404, "model_not_found", "not-there")
    unknown = ask(house.strict, None, "fake").headers["x-request-id"]
    assert told(house.data, unknown) == []


def test_a_long_id_of_a_client_is_cut(house: House) -> None:
    answer = ask(house.wide, house.key, "fake-n1", headers={"x-request-id": "i" * 3000})
    assert answer.headers["x-client-request-id"] == "i" * CLIENT_ID_BYTES_MAX


def test_a_large_body_arrives_whole(house: House) -> None:
    body = json.dumps({"model": "fake-n1-p55", "messages": [], "x": "y" * (3 << 20)}).encode()
    assert call(house.wide.url + CHAT, body, house.key.secret).status == 200
    seen = [*house.one.stats()["last"], *house.two.stats()["last"]]
    last = next(one for one in seen if one["body"]["model"] == "fake-n1-p55")
    assert last["headers"]["content-length"] == str(len(body))
    assert last["body"] == json.loads(body)


def test_a_client_that_waits_to_be_asked_for_its_body(house: House) -> None:
    body = b'{"model":"fake-n3","messages":[],"stream":true}'
    head = f"Host: x\r\nAuthorization: Bearer {house.key.secret}\r\nContent-Length: {len(body)}\r\n"
    polite = RawClient(house.wide.port)
    polite.socket.sendall(f"POST {CHAT} HTTP/1.1\r\n{head}Expect: 100-continue\r\n\r\n".encode())
    assert polite.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
    polite.socket.sendall(body)
    assert b"HTTP/1.1 200 OK" in polite.read_until(b"[DONE]")
    polite.break_off()


def test_many_calls_on_one_connection(house: House) -> None:
    client = RawClient(house.wide.port)
    for number in range(5):
        client.seen = b""
        client.send(CHAT, house.key, {"model": "fake-n2", "stream": number % 2 == 1})
        mark = b"0\r\n\r\n" if number % 2 else b'"prompt_tokens_details"'
        assert client.read_until(mark).startswith(b"HTTP/1.1 200 ")
        time.sleep(0.02)
    client.break_off()


def test_a_client_that_leaves_before_its_body_is_whole_costs_nothing(house: House) -> None:
    before = len(facts(house.data))
    errors = house.wide.output().count("Traceback")
    client = RawClient(house.wide.port)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {house.key.secret}\r\n"
    client.socket.sendall(f'{head}Content-Length: 50\r\n\r\n{{"model":'.encode())
    time.sleep(0.1)
    client.break_off(reset=True)
    time.sleep(0.2)
    assert len(facts(house.data)) == before
    assert house.wide.output().count("Traceback") == errors

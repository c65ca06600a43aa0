"""What the tests of the doors share: two fake backends, an odd one, and two gateways."""

import gzip
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from ledger.events import RequestAccepted, RequestFinished
from tests.gateway.doors import (
    PAUSE,
    SOON_SECONDS,
    Key,
    RawServer,
    backend,
    door,
    facts,
    new_key,
    raw_server,
    revoke,
)
from tests.support import processes
from tests.support.fake_backend import KEY
from tests.support.processes import Backend, Gateway, wait_until

BODY_BYTES_MAX = 65_536

USAGE = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}'
"""The answer, or the last event, of an odd backend that has a usage to tell."""


class House(msgspec.Struct):
    """What the tests of this file share. `wide` passes any model on, `strict` what is listed."""

    data: Path
    one: Backend
    two: Backend
    raw: RawServer
    wide: Gateway
    strict: Gateway
    key: Key
    few: Key
    revoked: Key


def raw_answer(model: str, request: bytes) -> bytes:
    """What the odd backend sends to a call of `model`."""
    echo = request.replace(b"\r\n", b" ")
    json_head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nConnection: close\r\n"
    stream_head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
    chunked = stream_head + b"Transfer-Encoding: chunked\r\n\r\n"
    event = b'data: {"choices":[{"index":0,"delta":{"content":"first one"}}]}\n\n'
    chunk = b"%x\r\n%b\r\n" % (len(event), event) + PAUSE
    match model:
        case "raw-echo-error":
            return json_head % 400 + b"X-Echo: %b\r\nSet-Cookie: a=b\r\n\r\n" % echo + echo
        case "raw-echo-stream":
            text = json.dumps({"choices": [{"delta": {"content": echo.decode()}}]}).encode()
            return stream_head + b"X-Echo: %b\r\n\r\ndata: %b\n\ndata: [DONE]\n\n" % (echo, text)
        case "raw-headers":
            ours = b"X-Request-Id: theirs\r\nX-Tollbook-Backend: theirs\r\nServer: engine/1\r\n"
            kept = b"OpenAI-Processing-Ms: 7\r\nWWW-Authenticate: Basic\r\n"
            return json_head % 200 + ours + kept + b"\r\n{}"
        case "raw-401":
            return json_head % 401 + b"\r\n" + b'{"error":"bad key ' + KEY.encode() + b'"}'
        case "raw-redirect":
            return json_head % 307 + b"Location: http://10.9.8.7/v1\r\n\r\nsee http://10.9.8.7/v1"
        case "raw-silence":
            return b""
        case "raw-garbage":
            return b"SSH-2.0-OpenSSH_9.6\r\n\r\n"
        case "raw-half-head":
            return b"HTTP/1.1 200 OK\r\nContent-Ty"
        case "raw-short-body":
            return json_head % 200 + b"Content-Length: 500\r\n\r\n{}"
        case "raw-bad-chunk":
            return chunked + chunk + b"zz\r\nnot a length\r\n"
        case "raw-cut-chunk":
            return chunked + chunk
        case "raw-deep":
            return json_head % 200 + b'\r\n{"usage":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        case "raw-absurd":
            return json_head % 200 + b'\r\n{"usage":{"prompt_tokens":1' + b"0" * 30 + b"}}"
        case "raw-zipped":
            return json_head % 200 + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(USAGE)
        case "raw-zipped-stream":
            zipped = b"Content-Encoding: gzip\r\n\r\n"
            return stream_head + zipped + gzip.compress(event + b"data: " + USAGE + b"\n\n")
        case "raw-zip-cut":
            return json_head % 200 + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(USAGE)[:-1]
        case "raw-zip-none":
            return json_head % 200 + b"Content-Encoding: deflate\r\n\r\n" + USAGE
        case "raw-brotli":
            return json_head % 200 + b"Content-Encoding: br\r\n\r\n" + USAGE
        case "raw-big":
            return json_head % 200 + b'\r\n{"x":"' + b"y" * (8 << 20) + b'"}'
    return json_head % 200 + b"\r\n{}"


RAW_MODELS = re.findall(r'case "(raw-[a-z0-9-]+)"', Path(__file__).read_text())


@contextmanager
def open_house(directory: Path) -> Iterator[House]:
    """The house with its doors open, until the block ends."""
    data = directory / "data"
    key, few = new_key(data, "all"), new_key(data, "few", "--models", "fake,nobody-has-it")
    revoked = new_key(data, "gone")
    revoke(data, revoked)
    with ExitStack() as stack:
        one = stack.enter_context(processes.backend(directory, models="fake,other"))
        two = stack.enter_context(processes.backend(directory, models="fake"))
        raw = stack.enter_context(raw_server(raw_answer))
        both = [backend(one.url, "one"), backend(two.url, "two")]
        wide = stack.enter_context(door(directory, both, gateway={"models": ["*"]}))
        listed = [backend(one.url, "one"), backend(raw.url, "raw", models=RAW_MODELS)]
        strict = stack.enter_context(
            door(directory, listed, gateway={"body_bytes_max": BODY_BYTES_MAX, "name": "strict"})
        )
        yield House(data, one, two, raw, wide, strict, key, few, revoked)


def check_settled(house: House) -> None:
    """Nothing that the tests did was left open or told twice, and no log has a trace of a fault."""

    def unsettled() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for _, said in facts(house.data):
            if isinstance(said, RequestAccepted | RequestFinished):
                found.setdefault(said.request_id, []).append(type(said).__name__)
        settled = [RequestAccepted.__name__, RequestFinished.__name__]
        return {request_id: kinds for request_id, kinds in found.items() if kinds != settled}

    wait_until("every accepted request has one end", lambda: not unsettled(), SOON_SECONDS)
    audit = processes.tollbook(house.data, "audit", check=False)
    assert audit.returncode == 0, audit.stdout
    assert "Traceback" not in house.wide.output() + house.strict.output()

"""A refusal in the two shapes that clients know."""

import json

import pytest

from gateway.errors import (
    ApiError,
    BadRequest,
    Forbidden,
    NotFound,
    Overloaded,
    OwnFault,
    Shape,
    TooLarge,
    TooLate,
    TooSlow,
    Unauthorized,
    Upstream,
    WrongCoding,
)

ANTHROPIC = {
    BadRequest: (400, "invalid_request_error"),
    Unauthorized: (401, "authentication_error"),
    Forbidden: (403, "permission_error"),
    NotFound: (404, "not_found_error"),
    TooLate: (408, "invalid_request_error"),
    TooLarge: (413, "request_too_large"),
    WrongCoding: (415, "invalid_request_error"),
    OwnFault: (500, "api_error"),
    Upstream: (502, "api_error"),
    Overloaded: (503, "overloaded_error"),
    TooSlow: (504, "timeout_error"),
}


def made(kind: type[ApiError]) -> ApiError:
    return OwnFault() if kind is OwnFault else kind("What went wrong.", code="some_code", param="p")


def test_every_refusal_has_a_line_here() -> None:
    assert set(ApiError.__subclasses__()) == set(ANTHROPIC)


@pytest.mark.parametrize("kind", ANTHROPIC)
def test_a_refusal_in_anthropics_shape(kind: type[ApiError]) -> None:
    error = made(kind)
    status, name = ANTHROPIC[kind]
    assert error.status == status
    assert json.loads(error.body("anthropic", "req_1")) == {
        "type": "error",
        "error": {"type": name, "message": error.message},
        "request_id": "req_1",
    }


@pytest.mark.parametrize("kind", ANTHROPIC)
def test_a_refusal_in_openais_shape_names_no_request(kind: type[ApiError]) -> None:
    error = made(kind)
    said = json.loads(error.body("openai", "req_1"))
    assert error.body() == error.body("openai", "req_1")
    assert said == {
        "error": {
            "message": error.message,
            "type": "server_error" if error.status >= 500 else "invalid_request_error",
            "param": error.param,
            "code": error.code,
        }
    }


@pytest.mark.parametrize(("shape", "head"), [("openai", b""), ("anthropic", b"event: error\n")])
def test_a_refusal_within_a_stream_is_one_event(shape: Shape, head: bytes) -> None:
    error = TooSlow("Two\nlines.")
    event = error.event(shape, "req_1")
    assert event == head + b"data: " + error.body(shape, "req_1") + b"\n\n"
    assert event.count(b"\n\n") == 1 and event.endswith(b"\n\n")

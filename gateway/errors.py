"""Every refusal that a caller of the API can meet: its status, in OpenAI's or Anthropic's shape.

ApiError
├── BadRequest 400          the body is not what the endpoint takes
├── Unauthorized 401        no key, or one that is not known
├── Forbidden 403           the key may not use this model
├── NotFound 404            no such path, or a model that nobody here serves
├── TooLate 408             the body did not arrive in time
├── TooLarge 413            the body is over the limit
├── WrongCoding 415         the body is compressed in a way that is not read here
├── OwnFault 500            the gateway itself failed
├── Upstream 502            no backend could be reached, or it broke off before its first byte
├── Overloaded 503          no backend left, the spool is full, or the gateway is stopping
└── TooSlow 504             a backend let a time limit pass
"""

from typing import Final, Literal

import msgspec

Shape = Literal["openai", "anthropic"]
"""In whose form a refusal is written, by the endpoint that was asked."""

_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's name of an error by status; any other is `invalid_request_error` below 500 and
`api_error` from there on."""


class ApiError(Exception):
    """A refusal. `message` tells a person what to do; `code` is stable and for programs."""

    status = 500
    type = "server_error"
    code = "internal_error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.param = param

    def body(self, shape: Shape = "openai", request_id: str | None = None) -> bytes:
        """The JSON body that the clients of `shape` understand; only Anthropic's names the request
        in it."""
        if shape == "anthropic":
            kind = "invalid_request_error" if self.status < 500 else "api_error"
            return anthropic_error_body(
                self.message, _ANTHROPIC_TYPES.get(self.status, kind), request_id
            )
        return error_body(self.message, self.type, self.param, self.code)

    def event(self, shape: Shape = "openai", request_id: str | None = None) -> bytes:
        """The same as one event of a stream that has begun."""
        name = b"event: error\n" if shape == "anthropic" else b""
        return name + b"data: " + self.body(shape, request_id) + b"\n\n"


def error_body(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    """`{"error": {...}}` with exactly the four members of OpenAI's error object."""
    return msgspec.json.encode(
        {"error": {"message": message, "type": kind, "param": param, "code": code}}
    )


def anthropic_error_body(message: str, kind: str, request_id: str | None) -> bytes:
    """`{"type": "error", "error": {...}, "request_id": ...}`, as Anthropic's clients read it."""
    return msgspec.json.encode(
        {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}
    )


class BadRequest(ApiError):
    """The body is not what the endpoint takes."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_request"


class Unauthorized(ApiError):
    """No key was given, or one that is not known here."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class Forbidden(ApiError):
    """The key is good, but not for this."""

    status = 403
    type = "invalid_request_error"
    code = "model_not_allowed"


class NotFound(ApiError):
    """No such path, or a model that no backend here serves."""

    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class TooLate(ApiError):
    """The body did not arrive in time."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class TooLarge(ApiError):
    """The body is over the limit."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class WrongCoding(ApiError):
    """The body is compressed in a way that is not read here."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_content_encoding"


class OwnFault(ApiError):
    """The gateway itself failed, which is a bug: the log has its trace."""

    def __init__(self) -> None:
        super().__init__(
            "The gateway failed while it handled this request; its log has the cause. Nothing that "
            "was not delivered is billed."
        )


class Upstream(ApiError):
    """No backend could be reached, or it broke off before its first byte."""

    status = 502
    code = "backend_unreachable"


class Overloaded(ApiError):
    """Not now: no backend is left, the spool is full, or the gateway is stopping."""

    status = 503
    code = "no_backend"


class TooSlow(ApiError):
    """A backend let a time limit pass."""

    status = 504
    code = "backend_timeout"


class Misconfigured(msgspec.Struct, frozen=True):
    """An answer that is about the gateway's settings and none of the caller's business."""

    code: str
    reason: str
    message: str


MISCONFIGURED: Final = {
    401: Misconfigured(
        "backend_key_refused",
        "the backend refused the server key",
        "The backend refused this gateway's own key. Your key is fine; whoever runs this gateway "
        "must correct the 'key' of the backend.",
    ),
    3: Misconfigured(
        "backend_redirects",
        "the backend answered with a redirect",
        "The backend answered with a redirect, which is not followed. Whoever runs this gateway "
        "must correct the 'url' of the backend.",
    ),
}
"""By status, or by its first digit."""

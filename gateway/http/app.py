"""The routes. `create_app` takes what it needs; nothing happens at import."""

from collections.abc import Callable

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.access import bearer_of, key_of, visible
from gateway.errors import ApiError, error_body
from gateway.http.doors import Desk, Door, client_id_of, hash_of
from gateway.http.reply import AsgiReply
from gateway.metrics import CONTENT_TYPE
from gateway.wire.models import model_list
from ledger.identity import mint_id


class Readiness(msgspec.Struct, frozen=True):
    """Whether new requests are welcome. `waiting_for` says in words what is missing."""

    ready: bool
    waiting_for: tuple[str, ...]
    backends: dict[str, str]


def create_app(
    desk: Desk, *, readiness: Callable[[], Readiness], metrics: Callable[[], bytes]
) -> Starlette:
    """The gateway's whole HTTP surface."""

    async def live(request: Request) -> Response:
        return _json(200, {"status": "alive"})

    async def ready(request: Request) -> Response:
        now = readiness()
        return _json(200 if now.ready else 503, msgspec.to_builtins(now))

    async def prometheus(request: Request) -> Response:
        return Response(metrics(), headers={"content-type": CONTENT_TYPE})

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", Door(desk, "chat/completions"), methods=["POST"]),
            Route("/v1/completions", Door(desk, "completions"), methods=["POST"]),
            Route("/v1/models", Models(desk), methods=["GET"]),
            Route("/health/live", live, methods=["GET"]),
            Route("/health/ready", ready, methods=["GET"]),
            Route("/metrics", prometheus, methods=["GET"]),
        ],
        exception_handlers={404: _no_such_path, 405: _wrong_method, 500: _own_fault},
    )
    # A redirect to the path without its slash would answer what is not served here.
    app.router.redirect_slashes = False
    return app


class Models:
    """`GET /v1/models`: what the asking key can call right now."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        desk = self._desk
        started = desk.clock.monotonic()
        headers = dict(scope["headers"])
        reply = AsgiReply(send, f"req_{mint_id()}", client_id_of(headers))
        try:
            key = key_of(desk.book(), hash_of(bearer_of(headers.get(b"authorization"))))
        except ApiError as error:
            desk.stats.unauthorized += 1
            status, body = error.status, error.body()
        else:
            status, body = 200, model_list(visible(key, desk.pool.served()))
        spent = b"%.3f" % ((desk.clock.monotonic() - started) * 1000)
        await reply.whole(status, body, [(b"x-tollbook-overhead-ms", spent)])


def _json(status: int, content: object) -> Response:
    body = msgspec.json.encode(content)
    return Response(body, status, headers={"content-type": "application/json"})


async def _no_such_path(request: Request, error: Exception) -> Response:
    message = (
        f"There is no {request.method} {request.url.path} here. A path that cannot be metered is "
        "not passed on; served are POST /v1/chat/completions, POST /v1/completions and "
        "GET /v1/models."
    )
    return _refusal(404, message, "unknown_path")


async def _wrong_method(request: Request, error: Exception) -> Response:
    headers = error.headers if isinstance(error, HTTPException) else None
    allow = (headers or {}).get("Allow", "")
    message = f"{request.url.path} does not take {request.method}; it takes {allow}."
    answer = _refusal(405, message, "method_not_allowed")
    answer.headers["allow"] = allow
    return answer


async def _own_fault(request: Request, error: Exception) -> Response:
    """Starlette raises `error` again behind this answer, so that the server's log has its trace."""
    body = error_body(
        "The gateway failed while it handled this request; its log has the cause. Nothing that was "
        "not delivered is billed.",
        "server_error",
        None,
        "internal_error",
    )
    return Response(body, 500, headers=_own_headers())


def _refusal(status: int, message: str, code: str) -> Response:
    body = error_body(message, "invalid_request_error", None, code)
    return Response(body, status, headers=_own_headers())


def _own_headers() -> dict[str, str]:
    return {"content-type": "application/json", "x-request-id": f"req_{mint_id()}"}

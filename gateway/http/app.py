"""The routes. `create_app` takes what it needs; nothing happens at import."""

from collections.abc import Awaitable, Callable, Mapping

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.access import key_of, secret_of, visible
from gateway.books import Books
from gateway.errors import ApiError, OwnFault, error_body
from gateway.http.client_ids import client_id_of
from gateway.http.doors import Desk, Door, hash_of
from gateway.http.organization import PATHS, Told
from gateway.http.reply import AsgiReply
from gateway.metrics import CONTENT_TYPE
from gateway.wire.endpoints import ENDPOINTS
from gateway.wire.models import model_list
from ledger.clock import Clock
from ledger.identity import mint_id


class Readiness(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether new requests are welcome. `waiting_for` says in words what is missing, `notes` what
    somebody should know all the same."""

    ready: bool
    waiting_for: tuple[str, ...]
    backends: dict[str, str]
    notes: tuple[str, ...] = ()


def create_app(
    desk: Desk,
    *,
    readiness: Callable[[], Readiness],
    metrics: Callable[[], bytes],
    books: Books,
) -> ASGIApp:
    """The gateway's whole HTTP surface."""
    pages = Pages(desk.clock, readiness, metrics)
    doors: dict[str, ASGIApp] = {path: Door(desk, endpoint) for path, endpoint in ENDPOINTS.items()}
    app = Starlette(
        routes=[
            *(Route(path, door, methods=["POST"]) for path, door in doors.items()),
            Route("/v1/models", Models(desk), methods=["GET"]),
            *(
                Route(path, Told(desk, books, kind), methods=["GET"])
                for path, kind in PATHS.items()
            ),
            Route("/health/live", pages.live, methods=["GET"]),
            Route("/health/ready", pages.ready, methods=["GET"]),
            Route("/metrics", pages.prometheus, methods=["GET"]),
        ],
        exception_handlers={
            404: pages.no_such_path,
            405: pages.wrong_method,
            500: pages.own_fault,
        },
    )
    # A redirect to the path without its slash would answer what is not served here.
    app.router.redirect_slashes = False
    return Shortcut(app, doors)


class Shortcut:
    """Calls to the metered doors, without the way through Starlette's layers and routes, which
    would take as long as all that the spool does. Every other call, and every other method, goes
    on to them."""

    def __init__(self, app: ASGIApp, doors: Mapping[str, ASGIApp]) -> None:
        self._app = app
        self._doors = doors

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        # It hands on the door's own awaitable: every wake-up of a request would go through a
        # coroutine around it.
        door = None
        if scope["type"] == "http" and scope["method"] == "POST":
            door = self._doors.get(scope["path"])
        return (door or self._app)(scope, receive, send)


class Pages:
    """What needs no key: health, metrics, and the refusals of what is not served here."""

    def __init__(
        self, clock: Clock, readiness: Callable[[], Readiness], metrics: Callable[[], bytes]
    ) -> None:
        self._clock = clock
        self._readiness = readiness
        self._metrics = metrics

    async def live(self, request: Request) -> Response:
        """200 as long as the event loop runs."""
        return self._answer(200, lambda: msgspec.json.encode({"status": "alive"}))

    async def ready(self, request: Request) -> Response:
        """200 if new requests are welcome, else 503 with what is missing."""
        now = self._readiness()
        return self._answer(200 if now.ready else 503, lambda: msgspec.json.encode(now))

    async def prometheus(self, request: Request) -> Response:
        """Every metric of this process."""
        return self._answer(200, self._metrics, CONTENT_TYPE)

    async def no_such_path(self, request: Request, error: Exception) -> Response:
        """What cannot be metered is not passed on."""
        return self._refusal(
            404,
            f"There is no {request.method} {request.url.path} here. A path that cannot be metered "
            f"is not passed on; served are GET /v1/models, {', '.join(PATHS)}, and POST to "
            f"{', '.join(ENDPOINTS)}.",
            "unknown_path",
        )

    async def wrong_method(self, request: Request, error: Exception) -> Response:
        """The path is right, and the answer says which methods it takes."""
        headers = error.headers if isinstance(error, HTTPException) else None
        allow = (headers or {}).get("Allow", "")
        message = f"{request.url.path} does not take {request.method}; it takes {allow}."
        answer = self._refusal(405, message, "method_not_allowed")
        answer.headers["allow"] = allow
        return answer

    async def own_fault(self, request: Request, error: Exception) -> Response:
        """Starlette raises `error` again behind this answer, so that the log has its trace."""
        own = OwnFault()
        return self._answer(own.status, own.body)

    def _refusal(self, status: int, message: str, code: str) -> Response:
        return self._answer(
            status, lambda: error_body(message, "invalid_request_error", None, code)
        )

    def _answer(
        self, status: int, make: Callable[[], bytes], content_type: str = "application/json"
    ) -> Response:
        """An answer of our own, with the headers that every answer carries."""
        began = self._clock.monotonic()
        body = make()
        spent = (self._clock.monotonic() - began) * 1000
        headers = {
            "content-type": content_type,
            "x-request-id": f"req_{mint_id()}",
            "x-tollbook-overhead-ms": f"{spent:.3f}",
        }
        return Response(body, status, headers=headers)


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
            key = key_of(desk.book(), hash_of(secret_of(headers)))
        except ApiError as error:
            desk.stats.unauthorized += 1
            status, body = error.status, error.body()
        else:
            status, body = 200, model_list(visible(key, desk.pool.served()))
        spent = b"%.3f" % ((desk.clock.monotonic() - started) * 1000)
        await reply.whole(status, body, [(b"x-tollbook-overhead-ms", spent)])

"""The metered doors: one ASGI endpoint for each path that can be counted.

Plain ASGI, because Starlette's request and response objects cost more than all of the metering.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from gateway.access import (
    NAMES_SHOWN_MAX,
    fallbacks_of,
    key_of,
    require_model,
    secret_of,
    visible,
)
from gateway.admission import require_admission
from gateway.backends.pool import Pool
from gateway.call import Call
from gateway.errors import ApiError, BadRequest, OwnFault
from gateway.http.arrivals import Arrivals, ClientGoneError
from gateway.http.client_ids import client_id_of, client_request_of, client_retry_of
from gateway.http.hang_up import HangUpWatch
from gateway.http.reply import AsgiReply, Headers
from gateway.relay import Relay
from gateway.stats import Stats
from gateway.wire.endpoints import Endpoint
from gateway.wire.requests import Asked, asked
from ledger.clock import Clock
from ledger.folds.book import Book, Key
from ledger.identity import mint_id
from streams.log.port import Journal

_PASSED_ON = frozenset((b"traceparent", b"tracestate", b"anthropic-version", b"anthropic-beta"))
"""A client's headers that a backend gets to see. All others end here, the user's key first."""

JSON = b"application/json"


class Desk:
    """What every door needs: who may enter, whether there is room, and who serves."""

    def __init__(
        self,
        *,
        relay: Relay,
        pool: Pool,
        journal: Journal,
        clock: Clock,
        stats: Stats,
        book: Callable[[], Book],
        hash_key: bytes,
        body_bytes_max: int,
        fallbacks: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.relay = relay
        self.pool = pool
        self.journal = journal
        self.clock = clock
        self.stats = stats
        self.book = book
        self.hash_key = hash_key
        self.arrivals = Arrivals(clock, body_bytes_max)
        self.fallbacks = fallbacks or {}
        self.draining = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def current_task(self) -> asyncio.Task[Any]:
        """The task that asks. To look up its loop each time is a system call in Python 3.11."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        task = asyncio.current_task(self._loop)
        assert task is not None, "a request is served by a task, and all of them by one loop"
        return task

    def hashed(self, client_id: bytes) -> str:
        """A keyed hash of an id that a client gave, so that an event can name it."""
        return client_request_of(client_id, self.hash_key)


class Door:
    """`POST` to one endpoint: authenticate, read, look, and hand over to the relay."""

    def __init__(self, desk: Desk, endpoint: Endpoint) -> None:
        self._desk = desk
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        desk, endpoint = self._desk, self._endpoint
        task = desk.current_task()
        started = desk.clock.monotonic()
        request_id = f"req_{mint_id()}"
        heads = dict(scope["headers"])  # of a repeated one the last
        client_id = client_id_of(heads)
        reply = AsgiReply(send, request_id, client_id)
        key_id, model, call = None, None, None
        watch: HangUpWatch | None = None
        try:
            key = key_of(desk.book(), hash_of(secret_of(heads)))
            key_id = key.key_id
            length, coding = heads.get(b"content-length"), heads.get(b"content-encoding")
            body = await desk.arrivals.body(task, receive, length, started, coding)
            kind = heads.get(b"content-type", JSON) if endpoint.form == "multipart" else JSON
            wish = self._wish(key, asked(body, endpoint, kind))
            model = wish.model
            fallbacks = self._admitted(key, model)
            require_admission(draining=desk.draining, spool_has_room=desk.journal.room())
            call = Call(
                request_id,
                key_id,
                endpoint,
                wish,
                started,
                task,
                body=body,
                content_type=kind,
                fallbacks=fallbacks,
            )
            watch = HangUpWatch(receive, partial(desk.relay.client_gone, call))
            call.watch = watch.begin
            passed = {"content-type": kind.decode("latin-1"), "x-request-id": request_id}
            for name in _PASSED_ON:
                if name in heads:
                    passed[name.decode()] = heads[name].decode("latin-1")
            await desk.relay.serve(
                call,
                passed,
                reply,
                client=desk.hashed(client_id) if client_id else None,
                retry=client_retry_of(heads),
            )
        except ApiError as error:
            self._refused(request_id, key_id, model, call, error)
            said = error.body(endpoint.errors, request_id)
            await reply.whole(error.status, said, self._error_headers(call, error, started))
        except ClientGoneError:
            return
        except Exception:
            fault = OwnFault()
            if not reply.started:
                headers = self._error_headers(call, fault, started)
                said = fault.body(endpoint.errors, request_id)
                await reply.whole(fault.status, said, headers)
            raise
        finally:
            if watch is not None:
                watch.end()

    def _wish(self, key: Key, wish: Asked) -> Asked:
        """`wish` with its model. Where the engine asks for none it may be left out, if there is
        only one that `key` can call; raises `BadRequest` if there are more."""
        if wish.model:
            return wish
        models = visible(key, self._desk.pool.served())
        if len(models) != 1:
            raise BadRequest(
                f"{self._endpoint.path} must name a model here: this key can use "
                f'{", ".join(models[:NAMES_SHOWN_MAX]) or "none right now"}. Add "model".',
                param="model",
            )
        return msgspec.structs.replace(wish, model=models[0])

    def _admitted(self, key: Key, model: str) -> tuple[str, ...]:
        """The models that may answer in place of `model`, which `key` may call. Raises `ApiError`
        if it may not, or nobody here serves it or one of those."""
        desk = self._desk
        fallbacks: tuple[str, ...] = ()
        if desk.fallbacks and self._endpoint.may_fall_back:
            fallbacks = fallbacks_of(key, model, desk.fallbacks)
        served = desk.pool.served()
        known = desk.pool.any_model or any(name in served for name in fallbacks)
        require_model(key, model, served, any_model=known)
        return fallbacks

    def _refused(
        self,
        request_id: str,
        key_id: str | None,
        model: str | None,
        call: Call | None,
        error: ApiError,
    ) -> None:
        if key_id is None:
            self._desk.stats.unauthorized += 1
        elif call is None or call.accepted_at is None:
            self._desk.relay.reject(request_id, key_id, model, error)

    def _error_headers(self, call: Call | None, error: ApiError, started: float) -> Headers:
        now = self._desk.clock.monotonic()
        spent = call.overhead(now) if call else now - started
        headers: Headers = [(b"x-tollbook-overhead-ms", b"%.3f" % (spent * 1000))]
        if call is not None:
            headers += call.route_headers()
        if error.status == 503:
            headers.append((b"retry-after", b"1"))
        if error.status in (408, 413):
            headers.append((b"connection", b"close"))
        return headers


def hash_of(secret: bytes) -> str:
    """The form in which the registry knows a key's secret."""
    return hashlib.sha256(secret).hexdigest()

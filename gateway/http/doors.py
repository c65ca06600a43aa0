"""The metered doors: one ASGI endpoint for each path that can be counted.

Plain ASGI, because Starlette's request and response objects cost more than all of the metering.
"""

import asyncio
import hashlib
from collections.abc import Callable
from functools import partial

from starlette.types import Receive, Scope, Send

from gateway.access import bearer_of, key_of, require_model
from gateway.admission import require_admission
from gateway.backends.pool import Pool
from gateway.call import Call, Endpoint
from gateway.errors import ApiError, OwnFault
from gateway.http.arrivals import Arrivals, ClientGoneError
from gateway.http.hang_up import HangUpWatch
from gateway.http.reply import AsgiReply, Headers
from gateway.relay import Relay
from gateway.stats import Stats
from gateway.wire.requests import asked
from ledger.clock import Clock
from ledger.folds.book import Book
from ledger.identity import mint_id
from streams.log.port import Journal

_PASSED_ON = frozenset((b"traceparent", b"tracestate"))
"""A client's headers that a backend gets to see. All others end here, the user's key first."""

CLIENT_ID_BYTES_MAX = 256
"""A longer id of a client is cut before it is given back."""


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
    ) -> None:
        self.relay = relay
        self.pool = pool
        self.journal = journal
        self.clock = clock
        self.stats = stats
        self.book = book
        self.hash_key = hash_key
        self.arrivals = Arrivals(clock, body_bytes_max)
        self.draining = False

    def hashed(self, client_id: bytes) -> str:
        """A keyed hash of an id that a client gave, so that an event can name it."""
        return hashlib.blake2b(client_id, key=self.hash_key, digest_size=16).hexdigest()


class Door:
    """`POST /v1/<endpoint>`: authenticate, read, look, and hand over to the relay."""

    def __init__(self, desk: Desk, endpoint: Endpoint) -> None:
        self._desk = desk
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        desk = self._desk
        task = asyncio.current_task()
        assert task is not None, "a request is served by a task"
        started = desk.clock.monotonic()
        request_id = f"req_{mint_id()}"
        heads = dict(scope["headers"])  # of a repeated one the last
        client_id = client_id_of(heads)
        reply = AsgiReply(send, request_id, client_id)
        key_id, model, call = None, None, None
        watch: HangUpWatch | None = None
        try:
            secret = bearer_of(heads.get(b"authorization"))
            key = key_of(desk.book(), hash_of(secret))
            key_id = key.key_id
            body = await desk.arrivals.body(task, receive, heads.get(b"content-length"), started)
            wish = asked(body)
            model = wish.model
            pool = desk.pool
            require_model(key, model, pool.served(), any_model=pool.any_model)
            require_admission(draining=desk.draining, spool_has_room=desk.journal.room())
            call = Call(request_id, key_id, self._endpoint, wish, started, task)
            watch = HangUpWatch(receive, partial(desk.relay.client_gone, call))
            call.watch = watch.begin
            passed = {"content-type": "application/json", "x-request-id": request_id}
            for name in _PASSED_ON:
                if name in heads:
                    passed[name.decode()] = heads[name].decode("latin-1")
            await desk.relay.serve(
                call, body, passed, desk.hashed(client_id) if client_id else None, reply
            )
        except ApiError as error:
            self._refused(request_id, key_id, model, call, error)
            await reply.whole(error.status, error.body(), self._error_headers(call, error, started))
        except ClientGoneError:
            return
        except Exception:
            fault = OwnFault()
            if not reply.started:
                headers = self._error_headers(call, fault, started)
                await reply.whole(fault.status, fault.body(), headers)
            raise
        finally:
            if watch is not None:
                watch.end()

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
        if call is not None and call.backend is not None:
            headers.append((b"x-tollbook-backend", call.backend.backend_id.encode()))
        if error.status == 503:
            headers.append((b"retry-after", b"1"))
        if error.status in (408, 413):
            headers.append((b"connection", b"close"))
        return headers


def hash_of(secret: bytes) -> str:
    """The form in which the registry knows a key's secret."""
    return hashlib.sha256(secret).hexdigest()


def client_id_of(headers: dict[bytes, bytes]) -> bytes | None:
    """The client's own id of its request, as far as it is given back."""
    client_id = headers.get(b"x-request-id")
    return None if client_id is None else client_id[:CLIENT_ID_BYTES_MAX]

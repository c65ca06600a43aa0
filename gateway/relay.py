"""The life of one request: choose, call, relay, count, append. The only orchestration.

Two rules hold whatever happens: `request.accepted` is on the spool before a backend is called, and
`request.finished` is on it before the client gets the last bytes. Whoever ends a request from
outside (the client left, a time limit, a failed spool) sets `call.cut` and cancels its task.
"""

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from typing import Protocol

import msgspec

from gateway.backends.pool import Backend, Pool
from gateway.backends.port import Answer, BackendFailed, Client
from gateway.call import Call, Cut
from gateway.errors import ApiError, Overloaded, TooSlow, Upstream
from gateway.routing.policy import Wanted, choose
from gateway.settings import TimeoutSettings
from gateway.stats import Stats
from gateway.wire.requests import forwarded
from gateway.wire.sse import StreamMeter
from gateway.wire.usage import usage_of_answer
from ledger.clock import Clock
from ledger.events import Basis, Draft, RequestRejected, Usage
from ledger.events.requests import Outcome
from ledger.events.usage import NOTHING_KNOWN
from streams.errors import SpoolFailed, SpoolFull
from streams.log.port import Journal

log = logging.getLogger("tollbook.relay")

ATTEMPTS_MAX = 2
"""A failure before the first byte is tried once on another backend, and not more: a request that
fails two servers is more likely to be at fault itself."""

DRAFTS_IN_ONE_APPEND = 200
"""A heartbeat's events go out in appends of this many: a log takes 1 MiB in one, which the running
totals of some 2,000 streams would exceed, and the ends of 400 requests with the longest names."""

_CUT: dict[Cut, tuple[Outcome, str]] = {
    "client_gone": ("client_gone", "the client hung up"),
    "client_stalled": ("client_gone", "the client stopped reading beyond the time limit"),
    "first_byte": ("timeout", "no first byte within the time limit"),
    "between_chunks": ("timeout", "silence within the stream beyond the time limit"),
    "total": ("timeout", "the whole request beyond the time limit"),
    "spool_failed": ("spool_failed", "the usage spool could not take a write"),
}


class _Misconfigured(msgspec.Struct, frozen=True):
    """An answer that is about the gateway's settings and none of the caller's business."""

    code: str
    reason: str
    message: str


_MISCONFIGURED = {
    401: _Misconfigured(
        "backend_key_refused",
        "the backend refused the server key",
        "The backend refused this gateway's own key. Your key is fine; whoever runs this gateway "
        "must correct the 'key' of the backend.",
    ),
    3: _Misconfigured(
        "backend_redirects",
        "the backend answered with a redirect",
        "The backend answered with a redirect, which is not followed. Whoever runs this gateway "
        "must correct the 'url' of the backend.",
    ),
}
"""By status, or by its first digit."""


class Reply(Protocol):
    """Where the answer goes. Neither method raises if the client has left."""

    def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> Awaitable[None]:
        """Send the head of the answer."""
        ...

    def body(self, data: bytes, *, more: bool) -> Awaitable[None]:
        """Send bytes of the body; `more=False` ends the answer."""
        ...


class Relay:
    """Serves requests of one gateway process."""

    def __init__(
        self,
        journal: Journal,
        pool: Pool,
        client: Client,
        clock: Clock,
        timeouts: TimeoutSettings,
        stats: Stats,
        *,
        wait_durable: bool,
    ) -> None:
        self._journal = journal
        self._pool = pool
        self._client = client
        self._clock = clock
        self._timeouts = timeouts
        self._wait_durable = wait_durable
        self._stats = stats
        self._unwritten: list[Draft] = []
        self.open: dict[str, Call] = {}

    async def serve(
        self, call: Call, body: bytes, headers: Mapping[str, str], client: str | None, reply: Reply
    ) -> None:
        """Serve `call`, in its task, to its end. Raises `ApiError` only while nothing was sent to
        the client."""
        backend = self._choose(call, ())
        if backend is None:
            raise Overloaded(
                f"No backend is left for the model {call.wish.model!r}. Try again shortly; whoever "
                "runs this gateway sees at GET /health/ready what each backend lacks."
            )
        self._accept(call, backend, len(body), client)
        self.open[call.request_id] = call
        try:
            if self._wait_durable:
                await self._journal.durable()
            answer = await self._first_answer(call, backend, body, headers)
            if answer.content_type.startswith("text/event-stream"):
                await self._stream(call, answer, reply)
            else:
                await self._plain(call, answer, reply)
        except asyncio.CancelledError:
            await self._ended_from_outside(call, reply)
        except BackendFailed as failed:
            await self._backend_broke(call, failed, reply)
        except SpoolFailed as failed:
            self._end(call, "spool_failed", str(failed))
            reason = _CUT["spool_failed"][1]
            cut = Overloaded(f"The answer was cut: {reason}.", code="spool_failed")
            await self._say_failure(call, reply, cut)
        except Exception as fault:
            self._end(call, "gateway_failed", type(fault).__name__)
            raise
        finally:
            del self.open[call.request_id]
            call.lease(None)
            if call.answer is not None:
                call.answer.close()
            call.let_go()

    @property
    def owes(self) -> bool:
        """True while the end of some request could not be written yet."""
        return bool(self._unwritten)

    def client_gone(self, call: Call) -> None:
        """The client of `call` hung up: stop the backend and bill what was produced."""
        self._cut(call, "client_gone")

    def tick(self) -> None:
        """Once in each flush interval: tell running totals, keep limits, write what is owed."""
        now = self._clock.now()
        drafts: list[Draft] = []
        for call in self.open.values():
            if call.watch is not None:
                call.watch()
                call.watch = None
            if (draft := call.delivered(now)) is not None:
                drafts.append(draft)
        try:
            while self._unwritten:
                self._journal.append(*self._unwritten[:DRAFTS_IN_ONE_APPEND])
                del self._unwritten[:DRAFTS_IN_ONE_APPEND]
            for start in range(0, len(drafts), DRAFTS_IN_ONE_APPEND):
                self._journal.append(*drafts[start : start + DRAFTS_IN_ONE_APPEND])
        except SpoolFailed as failed:
            log.error("the spool takes no more, open requests are cut: %s", failed)
            for call in list(self.open.values()):
                self._cut(call, "spool_failed")
        self._keep_limits()

    def reject(self, request_id: str, key_id: str, model: str | None, error: ApiError) -> None:
        """Tell the ledger that an authenticated request was refused, unless the spool is full."""
        self._stats.rejected[error.code] += 1
        if not self._journal.room():
            return
        refused = RequestRejected(
            request_id=request_id,
            key_id=key_id,
            status=error.status,
            code=error.code,
            model=model,
        )
        now = self._clock.now()
        try:
            self._journal.append(Draft(f"{request_id}/rejected", key_id, now, refused))
        except SpoolFailed as failed:
            log.error("a refusal could not be written: %s", failed)

    def _choose(self, call: Call, tried: tuple[str, ...]) -> Backend | None:
        choice = choose(Wanted(call.request_id, call.wish.model, tried), self._pool.views())
        return None if choice is None else self._pool.backends[choice.backend_id]

    def _accept(self, call: Call, backend: Backend, size: int, client: str | None) -> None:
        now = self._clock.now()
        try:
            self._journal.append(
                call.accepted(now, self._timeouts.total_seconds, size, client),
                call.attempted(now, backend, None),
            )
        except SpoolFull as full:
            call.accepted_at = None
            raise Overloaded(f"Not metered, so not served: {full}", code="spool_full") from full
        except SpoolFailed as failed:
            call.accepted_at = None
            raise Overloaded(
                f"Not metered, so not served: {failed}", code="spool_failed"
            ) from failed

    async def _first_answer(
        self, call: Call, backend: Backend, body: bytes, headers: Mapping[str, str]
    ) -> Answer:
        """The head of the first answer that is no failure, or of the last one there is."""
        tried: tuple[str, ...] = ()
        while True:
            tried = (*tried, backend.backend_id)
            failure: BackendFailed | None = None
            answer: Answer | None = None
            try:
                answer = await self._call(call, backend, body, headers)
            except BackendFailed as failed:
                if failed.reason == "own_limit":
                    raise
                backend.failed(str(failed))
                failure = failed
            if answer is not None and answer.status < 500:
                return answer
            why = failure.reason if failure else f"status {answer.status if answer else 0}"
            self._stats.attempts_failed[backend.backend_id, why] += 1
            backend.failures += 1
            other = self._choose(call, tried) if len(tried) < ATTEMPTS_MAX else None
            if other is None:
                if answer is not None:
                    return answer
                assert failure is not None, "an attempt ends in an answer or in a failure"
                raise failure
            if answer is not None:
                answer.close()
                call.answer = None
            backend = other
            self._journal.append(call.attempted(self._clock.now(), backend, why))

    async def _call(
        self, call: Call, backend: Backend, body: bytes, headers: Mapping[str, str]
    ) -> Answer:
        call.lease(backend)
        call.sent = self._clock.monotonic()
        try:
            call.answer = await self._client.open(
                backend,
                f"/v1/{call.endpoint}",
                forwarded(body, call.wish, backend.engine),
                headers,
            )
        finally:
            call.upstream += self._clock.monotonic() - call.sent
        return call.answer

    async def _plain(self, call: Call, answer: Answer, reply: Reply) -> None:
        sent = self._clock.monotonic()
        body = await answer.read_all()
        call.upstream += self._clock.monotonic() - sent
        body = _veiled(body, call)
        if answer.status >= 300:
            await self._error_answer(call, answer, body, reply)
            return
        usage = usage_of_answer(body)
        counted: tuple[Basis, Usage] = (
            ("none", NOTHING_KNOWN) if usage is None else ("reported", usage)
        )
        self._finish(call, "completed", status=answer.status, counted=counted)
        await self._send_whole(call, answer, body, reply)

    async def _error_answer(self, call: Call, answer: Answer, body: bytes, reply: Reply) -> None:
        """A backend's own error passes as it is, except one that is about the gateway's settings:
        a refused server key, or a redirect, which would show the caller where the backend is."""
        wrong = _MISCONFIGURED.get(401 if answer.status == 401 else answer.status // 100)
        self._finish(
            call,
            "completed",
            status=answer.status,
            reason=wrong.reason if wrong else "the backend's own error",
            counted=("none", NOTHING_KNOWN),
        )
        if wrong is not None:
            raise Upstream(wrong.message, code=wrong.code)
        await self._send_whole(call, answer, body, reply)

    async def _send_whole(self, call: Call, answer: Answer, body: bytes, reply: Reply) -> None:
        if self._wait_durable:
            await self._journal.durable()
        headers = self._head(call, answer)
        headers.append((b"content-length", b"%d" % len(body)))
        call.head_sent = True
        await reply.start(answer.status, headers)
        await reply.body(body, more=False)

    async def _stream(self, call: Call, answer: Answer, reply: Reply) -> None:
        backend, monotonic = call.backend, self._clock.monotonic
        assert backend is not None, "an answer comes from a backend"
        meter = StreamMeter(call.wish, backend.engine, chat=call.endpoint == "chat/completions")
        call.begin_stream(meter, monotonic())
        secret = backend.secret
        await reply.start(answer.status, self._head(call, answer))
        while data := await answer.read():
            call.heard = monotonic()
            passed = meter.feed(data)
            if call.first_token is None and meter.chunks:
                call.first_token = call.heard
            if meter.complete and not call.finished:
                self._finish(call, "completed", status=answer.status, counted=meter.counted())
                if self._wait_durable:
                    await self._journal.durable()
            if secret is not None and passed.rfind(secret) >= 0:
                passed = _veiled(passed, call)
            if passed:
                call.sending = True
                await reply.body(passed, more=True)
                call.sending = False
        rest = _veiled(meter.rest(), call)
        if not call.finished:
            self._finish(
                call,
                "completed",
                status=answer.status,
                reason=None if meter.complete else "the stream ended without [DONE]",
                counted=meter.counted(),
            )
        await reply.body(rest, more=False)

    def _head(self, call: Call, answer: Answer) -> list[tuple[bytes, bytes]]:
        """The backend's headers and ours: which backend it was, and what the gateway cost."""
        assert call.backend is not None, "an answer comes from a backend"
        overhead = call.overhead(self._clock.monotonic()) * 1000
        secret, headers = call.backend.secret, answer.headers
        if secret is not None:
            headers = [header for header in headers if secret not in header[1]]
        return [
            *headers,
            (b"x-tollbook-backend", call.backend.backend_id.encode()),
            (b"x-tollbook-overhead-ms", b"%.3f" % overhead),
        ]

    def _finish(
        self,
        call: Call,
        outcome: Outcome,
        *,
        status: int | None = None,
        reason: str | None = None,
        counted: tuple[Basis, Usage],
    ) -> None:
        """Write the end of `call`. If the spool fails, the end is owed and `SpoolFailed` raised."""
        monotonic = self._clock.monotonic()
        draft = call.finish(
            self._clock.now(), monotonic, outcome, status=status, reason=reason, counted=counted
        )
        self._count(call, monotonic, outcome, counted)
        try:
            self._journal.append(draft)
        except SpoolFailed:
            said = msgspec.structs.replace(
                draft.payload, outcome="spool_failed", reason=_CUT["spool_failed"][1]
            )
            self._unwritten.append(Draft(draft.id, draft.subject, draft.time, said))
            self._stats.finish_delayed += 1
            raise

    def _end(self, call: Call, outcome: Outcome, reason: str) -> None:
        """End a call that did not complete; its last bytes will not be sent, so nothing raises."""
        if call.finished:
            return
        try:
            self._finish(call, outcome, reason=reason, counted=call.counted())
        except SpoolFailed as failed:
            log.error("request %s: its end is owed to the spool: %s", call.request_id, failed)

    def _count(
        self, call: Call, monotonic: float, outcome: Outcome, counted: tuple[Basis, Usage]
    ) -> None:
        stats = self._stats
        basis, usage = counted
        stats.finished[call.endpoint, outcome] += 1
        stats.basis[basis] += 1
        stats.count(usage)
        stats.duration.observe(monotonic - call.started)
        stats.overhead.observe(call.overhead(monotonic))
        if call.first_token is not None:
            stats.first_token.observe(call.first_token - call.started)
            if call.backend is not None:
                call.backend.first_token(call.first_token - call.started)
        if call.meter is not None:
            stats.chunks += call.meter.chunks

    def _cut(self, call: Call, why: Cut) -> None:
        if call.cut is not None or call.task is None:
            return
        if call.finished and (call.meter is None or why == "spool_failed"):
            return  # it is billed and its last bytes are on the way: they are owed to the client
        call.cut = why
        call.task.cancel()

    def _keep_limits(self) -> None:
        limits, now = self._timeouts, self._clock.monotonic()
        for call in list(self.open.values()):
            if now - call.started > limits.total_seconds and not call.finished:
                self._cut(call, "total")
            elif call.heard is None:
                if now - call.sent > limits.first_byte_seconds:
                    self._cut(call, "first_byte")
            elif now - call.heard > limits.between_chunks_seconds:
                self._cut(call, "client_stalled" if call.sending else "between_chunks")

    async def _ended_from_outside(self, call: Call, reply: Reply) -> None:
        """The task was cancelled: by whoever set `call.cut`, else because the server stops."""
        cut = call.cut
        outcome, reason = _CUT[cut] if cut else ("shutdown", "the gateway stopped")
        billed = call.finished
        self._end(call, outcome, reason)
        assert call.task is not None, "a call is served by a task"
        call.task.uncancel()
        if outcome == "client_gone":
            return
        if billed:
            # All of it was passed on; only the backend did not end what it had finished.
            if call.meter is not None:
                await reply.body(b"", more=False)
            return
        words = f"The answer was cut: {reason}."
        late = outcome == "timeout"
        error = TooSlow(words) if late else Overloaded(words, code=outcome)
        await self._say_failure(call, reply, error)

    async def _backend_broke(self, call: Call, failed: BackendFailed, reply: Reply) -> None:
        if failed.reason == "own_limit":
            self._end(call, "gateway_failed", str(failed))
            raise Overloaded(f"Too much at once: {failed}. Try again.", code="own_limit")
        outcome: Outcome = "backend_lost" if call.answer else "backend_unreachable"
        self._end(call, outcome, str(failed))
        begun = "broke off its answer" if call.answer else "could not be reached"
        raised = Upstream(f"The backend {begun}: {failed}. Try again.", code=outcome)
        await self._say_failure(call, reply, raised)

    async def _say_failure(self, call: Call, reply: Reply, error: ApiError) -> None:
        """Raise `error` while that can still be the answer, else end the stream with it."""
        if not call.head_sent:
            raise error
        if call.meter is not None:
            await reply.body(b"data: " + error.body() + b"\n\n", more=True)
        await reply.body(b"", more=False)


def _veiled(data: bytes, call: Call) -> bytes:
    """A backend must not show its key to a user, whatever it writes."""
    secret = call.backend.secret if call.backend else None
    return data if secret is None else data.replace(secret, b"[server key]")

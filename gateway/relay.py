"""The life of one request: choose, call, relay, count, append. The only orchestration.

Two rules hold whatever happens: `request.accepted` is on the spool before a backend is called, and
`request.finished` is on it before the client gets the last bytes. Whoever ends a request from
outside (the client left, a time limit, a failed spool) sets `call.cut` and cancels its task.
"""

import asyncio
import logging
from collections.abc import Awaitable, Collection, Mapping
from typing import Protocol

from gateway.attempts import Attempts
from gateway.backends.pool import Backend, Pool
from gateway.backends.port import Answer, BackendFailed, Client
from gateway.call import Call
from gateway.chooser import Chooser
from gateway.cuts import (
    DRAINED,
    EMPTY,
    POLICIES,
    Cause,
    Cut,
    fault_of_cut,
    reads_on,
)
from gateway.ends import DRAFTS_IN_ONE_APPEND, Ends
from gateway.errors import MISCONFIGURED, ApiError, Overloaded, TooSlow, Upstream
from gateway.keeping import Allowance, Kept
from gateway.routing.policy import Ruling
from gateway.settings import TimeoutSettings
from gateway.stats import Stats
from gateway.tokenizers import Tokenizers
from gateway.wire.faults import ClientFault
from gateway.wire.meters import make_meter
from gateway.wire.usage import usage_of_answer
from ledger.clock import Clock
from ledger.events import Basis, Draft, RequestRejected, Usage
from ledger.events.usage import NOTHING_KNOWN
from streams.errors import SpoolFailed, SpoolFull
from streams.log.port import Journal

log = logging.getLogger("tollbook.relay")

SAY_SECONDS_MAX = 5.0
"""How long a client may take to read that its answer failed."""

ANY_RULING = Ruling()

NO_END = "the stream ended without its closing event"
"""The reason of an answer that came to a clean end and did not say so itself."""


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
        drain_to_end: Collection[str] = (),
        ruling: Ruling = ANY_RULING,
    ) -> None:
        self._journal = journal
        self._pool = pool
        self._clock = clock
        self._timeouts = timeouts
        self._wait_durable = wait_durable
        self._stats = stats
        self._drain_to_end = frozenset(drain_to_end)
        self._chooser = Chooser(pool, stats, ruling)
        self._attempts = Attempts(self._chooser, client, clock, journal, stats)
        self._allowance = Allowance()
        self._ends = Ends(journal, clock, stats, Tokenizers(pool, client, clock))
        self.open: dict[str, Call] = {}

    async def serve(
        self,
        call: Call,
        headers: Mapping[str, str],
        reply: Reply,
        *,
        client: str | None = None,
        retry: int | None = None,
    ) -> None:
        """Serve `call`, in its task, to its end. `client` is the hash of the client's own id and
        `retry` its count of tries before. Raises `ApiError` only while nothing was sent to the
        client."""
        backend = self._chooser.choose(call, ())
        if backend is None:
            raise Overloaded(
                f"No backend is left for the model {call.wish.model!r}. Try again shortly; whoever "
                "runs this gateway sees at GET /health/ready what each backend lacks."
            )
        self._accept(call, backend, client, retry)
        self.open[call.request_id] = call
        try:
            call.lease(backend)
            if self._wait_durable:
                await self._journal.durable()
            answer = await self._attempts.first_answer(call, backend, headers)
            if call.endpoint.dialect is not None and answer.status < 300 and streams(answer):
                await self._stream(call, answer, reply)
            else:
                await self._plain(call, answer, reply)
        except asyncio.CancelledError:
            await self._ended_from_outside(call, reply)
        except BackendFailed as failed:
            await self._backend_broke(call, failed, reply)
        except SpoolFailed as failed:
            words = f"The answer was cut: {POLICIES['spool_failed'].reason}."
            await self._fail(
                call, reply, "spool_failed", Overloaded(words, code="spool_failed"), str(failed)
            )
        except Exception as fault:
            await self._ends.cut(call, "gateway_failed", type(fault).__name__)
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
        return self._ends.owed

    def client_gone(self, call: Call) -> None:
        """The client of `call` hung up: stop the backend and bill what was produced, or read its
        answer to the end where that is set for its model or stopping is of no use."""
        engine = None if call.backend is None else call.backend.engine
        if call.cut is None and call.called and reads_on(call.wish, engine, self._drain_to_end):
            call.client_left = True
            return
        self._cut(call, "client_gone")

    def give_up(self, call: Call) -> None:
        """Whoever made `call` waits for its first byte no longer."""
        self._cut(call, "first_byte")

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
            self._ends.write_owed()
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

    def _accept(self, call: Call, backend: Backend, client: str | None, retry: int | None) -> None:
        now = self._clock.now()
        try:
            self._journal.append(
                call.accepted(now, self._timeouts.total_seconds, client, retry),
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

    async def _plain(self, call: Call, answer: Answer, reply: Reply) -> None:
        sent = self._clock.monotonic()
        body = await answer.read_all()
        call.upstream += self._clock.monotonic() - sent
        body = _veiled(body, call)
        if answer.status >= 300:
            await self._error_answer(call, answer, body, reply)
            return
        assert call.backend is not None, "an answer comes from a backend"
        now = self._clock.monotonic()
        call.answered(now)
        call.backend.succeeded(now)
        usage = usage_of_answer(body, call.endpoint, call.backend.engine)
        if usage is None:
            counted = await self._ends.count(call, ("none", NOTHING_KNOWN), body)
        else:
            counted = "reported", usage
        self._complete(call, answer, None, counted)
        await self._send_whole(call, answer, body, reply)

    def _complete(
        self, call: Call, answer: Answer, reason: str | None, counted: tuple[Basis, Usage]
    ) -> None:
        """Write the end of an answer that is whole, whether or not its client still waits."""
        left = call.client_left
        self._ends.finish(
            call,
            "client_gone" if left else "completed",
            status=answer.status,
            reason=DRAINED if left else reason,
            counted=counted,
        )

    async def _error_answer(self, call: Call, answer: Answer, body: bytes, reply: Reply) -> None:
        """A backend's own error passes as it is, except one that is about the gateway's settings:
        a refused server key, or a redirect, which would show the caller where the backend is."""
        wrong = MISCONFIGURED.get(401 if answer.status == 401 else answer.status // 100)
        reason = wrong.reason if wrong else "the backend's own error"
        self._complete(call, answer, reason, ("none", NOTHING_KNOWN))
        if wrong is not None:
            raise Upstream(wrong.message, code=wrong.code)
        await self._send_whole(call, answer, body, reply)

    async def _send_whole(self, call: Call, answer: Answer, body: bytes, reply: Reply) -> None:
        await self._durable(call)
        headers = self._head(call, answer)
        headers.append((b"content-length", b"%d" % len(body)))
        call.head_sent = True
        await reply.start(answer.status, headers)
        await reply.body(body, more=False)

    async def _stream(self, call: Call, answer: Answer, reply: Reply) -> None:
        backend, monotonic = call.backend, self._clock.monotonic
        assert backend is not None, "an answer comes from a backend"
        meter = make_meter(call.endpoint, call.wish, backend.engine)
        call.begin_stream(meter, monotonic())
        kept = call.kept = Kept(self._allowance)
        secret = backend.secret
        await reply.start(answer.status, self._head(call, answer))
        while data := await answer.read():
            call.heard = backend.heard_at = monotonic()
            passed = meter.feed(data)
            if call.first_token is None and meter.chunks:
                call.first_token = call.heard
                call.answered(call.heard)
            if kept.whole:
                if meter.covered:
                    kept.let_go()
                else:
                    kept.add(data)
            if meter.complete and not call.finished:
                await self._end_stream(call, answer)
            if secret is not None and passed.rfind(secret) >= 0:
                passed = _veiled(passed, call)
            if passed and not call.client_left:
                call.sending = True
                await reply.body(passed, more=True)
                call.sending = False
        rest = _veiled(meter.rest(), call)
        if not call.finished:
            await self._end_stream(call, answer)
        await reply.body(rest, more=False)

    async def _end_stream(self, call: Call, answer: Answer) -> None:
        """Write the end of a stream that has ended by itself. Raises `SpoolFailed`."""
        meter, backend, now = call.meter, call.backend, self._clock.monotonic()
        assert meter is not None and backend is not None, "a stream has a meter and a backend"
        if meter.fault is not None:
            if not isinstance(meter.fault, ClientFault):
                backend.faulty(f"within a stream it told of an error: {meter.fault}", now)
            await self._ends.cut(call, "backend_error")
        else:
            if meter.complete:
                call.answered(now)
            # Some servers never send a closing event: with text in it, a clean end is a good one.
            if meter.complete or meter.chunks:
                backend.succeeded(now)
            else:
                backend.faulty(EMPTY, now)
            counted = meter.counted()
            if counted[0] not in ("reported", "running"):
                sent = None if call.kept is None else call.kept.bytes()
                counted = await self._ends.count(call, counted, sent)
            self._complete(call, answer, None if meter.complete else NO_END, counted)
        await self._durable(call)

    async def _durable(self, call: Call) -> None:
        """Wait until the end of `call` is as durable as it is asked for. Raises `SpoolFailed`."""
        if self._wait_durable:
            call.withheld = True
            await self._journal.durable()
            call.withheld = False

    def _head(self, call: Call, answer: Answer) -> list[tuple[bytes, bytes]]:
        """The backend's headers and ours: which backend it was and why, what the gateway cost."""
        assert call.backend is not None, "an answer comes from a backend"
        overhead = call.overhead(self._clock.monotonic()) * 1000
        secret, headers = call.backend.secret, answer.headers
        if secret is not None:
            headers = [header for header in headers if secret not in header[1]]
        spent = (b"x-tollbook-overhead-ms", b"%.3f" % overhead)
        return [*headers, *call.route_headers(), spent]

    def _cut(self, call: Call, why: Cut) -> None:
        if call.cut is not None or call.task is None or call.ending:
            return
        if call.finished and (call.meter is None or why == "spool_failed"):
            return  # it is billed and its last bytes are on the way: they are owed to the client
        call.cut = why
        call.task.cancel()

    def _keep_limits(self) -> None:
        limits, now = self._timeouts, self._clock.monotonic()
        for call in list(self.open.values()):
            # A client that is slow to read what is finished has a limit of its own, below.
            if now - call.started > limits.total_seconds and not (call.finished and call.sending):
                self._cut(call, "total")
            elif call.heard is None:
                if now - call.sent > limits.first_byte_seconds:
                    self._cut(call, "first_byte")
            elif now - call.heard > limits.between_chunks_seconds:
                self._cut(call, "client_stalled" if call.sending else "between_chunks")

    async def _ended_from_outside(self, call: Call, reply: Reply) -> None:
        """The task was cancelled: by whoever set `call.cut`, else because the server stops."""
        cause: Cause = call.cut or "shutdown"
        policy = POLICIES[cause]
        fault = fault_of_cut(call.cut, heard=call.heard is not None)
        if fault is not None and call.backend is not None and not call.finished:
            call.backend.faulty(fault, self._clock.monotonic())
        assert call.task is not None, "a call is served by a task"
        call.task.uncancel()
        if call.client_left or policy.outcome == "client_gone":
            await self._ends.cut(call, cause)
            return
        if call.finished and not call.withheld:
            # All of it was passed on; only the backend did not end what it had finished.
            if call.meter is not None:
                await self._say(call, reply, b"", more=False)
            return
        words = f"The answer was cut: {policy.reason}."
        late, code = policy.outcome == "timeout", policy.outcome
        await self._fail(
            call, reply, cause, TooSlow(words) if late else Overloaded(words, code=code)
        )

    async def _backend_broke(self, call: Call, failed: BackendFailed, reply: Reply) -> None:
        if failed.reason == "own_limit":
            await self._ends.cut(call, "gateway_failed", str(failed))
            raise Overloaded(f"Too much at once: {failed}. Try again.", code="own_limit")
        if call.finished and call.meter is not None:
            # It broke behind the end of its answer: all of it was counted and passed on.
            await self._say(call, reply, b"", more=False)
            return
        if call.answer is not None and call.backend is not None:
            call.backend.faulty(str(failed), self._clock.monotonic())
        cause: Cause = "backend_lost" if call.answer else "backend_unreachable"
        begun = "broke off its answer" if call.answer else "could not be reached"
        words = f"The backend {begun}: {failed}. Try again."
        code = POLICIES[cause].outcome
        await self._fail(call, reply, cause, Upstream(words, code=code), str(failed))

    async def _fail(
        self, call: Call, reply: Reply, cause: Cause, error: ApiError, more: str | None = None
    ) -> None:
        """End `call` for `cause`. In a stream the client hears of it before the count is made, and
        the end of the answer comes after it."""
        if not call.head_sent:
            await self._ends.cut(call, cause, more)
            try:
                raise error
            finally:
                del error  # as above: nobody who waits for it may hold it, either
        if call.meter is not None and not call.client_left:
            event = error.event(call.endpoint.errors, call.request_id)
            await self._say(call, reply, event, more=True)
        await self._ends.cut(call, cause, more)
        await self._say(call, reply, b"", more=False)

    async def _say(self, call: Call, reply: Reply, data: bytes, *, more: bool) -> None:
        """Tell the client of a failure, for a while: a client that does not read, and a server that
        stops, must not keep the end of the request from being written."""
        call.ending = True
        try:
            async with asyncio.timeout(SAY_SECONDS_MAX):
                await reply.body(data, more=more)
        except TimeoutError:
            log.info("request %s: its client did not read that it failed", call.request_id)
        except asyncio.CancelledError:
            assert call.task is not None, "a call is served by a task"
            call.task.uncancel()


def _veiled(data: bytes, call: Call) -> bytes:
    """A backend must not show its key to a user, whatever it writes."""
    secret = call.backend.secret if call.backend else None
    return data if secret is None else data.replace(secret, b"[server key]")


def streams(answer: Answer) -> bool:
    """True if the answer is a stream of events."""
    return answer.content_type.startswith("text/event-stream")

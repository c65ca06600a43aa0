"""One request in flight: what is known of it, and the events that tell it. It does no I/O."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec

from gateway.backends.pool import Backend
from gateway.backends.port import Answer
from gateway.cuts import Cut
from gateway.keeping import Kept
from gateway.routing.policy import Choice
from gateway.wire.endpoints import Endpoint
from gateway.wire.metering import Meter
from gateway.wire.requests import Asked, renamed
from ledger.events import (
    Basis,
    Draft,
    RequestAccepted,
    RequestAttempted,
    RequestFinished,
    TokensDelivered,
    Usage,
)
from ledger.events.requests import Outcome
from ledger.events.usage import NOTHING_KNOWN

BYTES_PER_TOKEN = 4
"""A rough guess of the prompt's tokens, for holding an estimate until the engine has counted."""

MICROSECONDS = 1_000_000


class Call:
    """The state of one request, served by `task`. Times are seconds of the monotonic clock,
    `accepted_at` is UTC."""

    __slots__ = (
        "_overhead",
        "accepted_at",
        "answer",
        "asked_model",
        "attempts",
        "backend",
        "body",
        "called",
        "choice",
        "client_left",
        "content_type",
        "cut",
        "ending",
        "endpoint",
        "fallbacks",
        "finished",
        "first_token",
        "flushed",
        "flushes",
        "head_sent",
        "heard",
        "kept",
        "key_id",
        "leased",
        "meter",
        "only",
        "pick",
        "request_id",
        "sending",
        "sent",
        "started",
        "task",
        "trial",
        "upstream",
        "watch",
        "wish",
        "withheld",
    )

    def __init__(
        self,
        request_id: str,
        key_id: str,
        endpoint: Endpoint,
        wish: Asked,
        started: float,
        task: asyncio.Task[Any] | None = None,
        *,
        body: bytes = b"",
        content_type: bytes = b"application/json",
        only: str | None = None,
        fallbacks: tuple[str, ...] = (),
    ) -> None:
        self.request_id = request_id
        self.key_id = key_id
        self.endpoint = endpoint
        self.wish = wish
        self.body = body
        self.content_type = content_type
        self.only = only  # the one backend that may serve it; null: any
        self.fallbacks = fallbacks  # models that may answer in place of the one asked for
        self.asked_model: str | None = None  # that one, once another is to answer
        self.started = started
        self.accepted_at: datetime | None = None
        self.backend: Backend | None = None  # the last one called
        self.leased: Backend | None = None  # the one that counts it as in flight
        self.pick = 0  # its number among the picks of that one
        self.trial: int | None = None  # of which period of that one it is a trial; null: it is none
        self.answer: Answer | None = None
        self.meter: Meter | None = None
        self.kept: Kept | None = None  # a stream's bytes, while its engine has not said a usage
        self.task = task
        self.attempts = 0
        self.called = False  # true once a backend was asked
        self.choice: Choice | None = None  # why the backend of the attempt was chosen
        self.upstream = 0.0  # seconds spent waiting for a backend
        self.sent = started  # when a backend was last called
        self.heard: float | None = None  # when bytes of a stream last came
        self.first_token: float | None = None
        self.flushed: tuple[int, bytes | None] = (0, None)  # told by the last tokens.delivered
        self.flushes = 0
        self.cut: Cut | None = None
        self.client_left = False  # and its answer is read to the end all the same
        self.ending = False  # true while its count is made: no limit and no hang-up matters then
        self.head_sent = False
        self.sending = False  # true while the client's connection takes no more
        self.finished = False
        self.withheld = False  # true while the last bytes wait for the disk
        self.watch: Callable[[], None] | None = None  # begins to look out for a hang-up
        self._overhead: float | None = None

    def lease(self, backend: Backend | None) -> None:
        """Count the call as in flight at `backend` and nowhere else; null gives it back.

        It counts from the choice on and not from the call, so that of a burst each request sees
        those before it.
        """
        if self.leased is not None:
            if self.cut == "client_gone" and self.called and self.heard is None:
                self.leased.left(self.sent)
            self.leased.give_back(self.trial)
            self.leased.signals.ended(self.pick)
        self.trial = None
        if backend is not None:
            self.trial, self.pick = backend.take(), backend.signals.pick()
        self.leased = backend

    def answered(self, now: float) -> None:
        """The backend has made a token: if this was a trial of it, it is over, and went well."""
        if self.backend is not None:
            self.backend.answered(self.trial, now)
            self.trial = None

    def fall_back(self, model: str) -> None:
        """Ask for `model`, one of `fallbacks`, from now on: it answers, and it is billed."""
        self.asked_model = self.asked_model or self.wish.model
        self.fallbacks = self.fallbacks[self.fallbacks.index(model) + 1 :]
        self.body = renamed(self.body, model)
        self.wish = msgspec.structs.replace(self.wish, model=model)

    def let_go(self) -> None:
        """At the very end: give up what refers back to this call.

        Such a circle would keep the whole request in memory until a collection of garbage, and new
        ones would go where no cache knows the memory: that cost a fifth of all requests/s.
        """
        self.answer = self.task = self.watch = None
        self.drop_kept()

    def drop_kept(self) -> None:
        """Keep none of a stream's bytes any more."""
        if self.kept is not None:
            self.kept.let_go()
            self.kept = None

    def overhead(self, monotonic: float) -> float:
        """Seconds spent in the gateway itself so far; of a stream, up to its head."""
        if self._overhead is not None:
            return self._overhead
        return max(monotonic - self.started - self.upstream, 0.0)

    def route_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that tell which backend it was and why, and which model if it is another than
        was asked for; none before one was chosen."""
        backend, choice = self.backend, self.choice
        if backend is None or choice is None:
            return []
        headers = [*_route_headers(backend.backend_id, choice.score_text, choice.reasons)]
        if self.asked_model is not None:
            headers.append((b"x-tollbook-fallback", _header_text(self.wish.model)))
        return headers

    def begin_stream(self, meter: Meter, monotonic: float) -> None:
        """The head of a stream is about to go out: from now on waiting is no overhead."""
        self._overhead = self.overhead(monotonic)
        self.meter = meter
        self.head_sent = True

    def counted(self) -> tuple[Basis, Usage]:
        """The best count of a stream so far; nothing is known of a plain answer before its end."""
        return ("none", NOTHING_KNOWN) if self.meter is None else self.meter.counted()

    @property
    def chunks(self) -> int:
        """Pieces of a streamed answer with text that were seen so far."""
        return 0 if self.meter is None else self.meter.chunks

    def accepted(
        self, now: datetime, total_seconds: float, client: str | None, retry: int | None
    ) -> Draft:
        """The event that must be on the spool before any backend is called. `client` is the hash
        of the client's own id, `retry` its count of tries before this one."""
        self.accepted_at = now
        return Draft(
            f"{self.request_id}/accepted",
            self.key_id,
            now,
            RequestAccepted(
                request_id=self.request_id,
                key_id=self.key_id,
                model=self.asked_model or self.wish.model,
                endpoint=self.endpoint.name,
                stream=self.wish.stream,
                deadline=now + _span(total_seconds),
                held_in=len(self.body) // BYTES_PER_TOKEN,
                held_out=self.wish.held_out,
                client_request=client,
                client_retry=retry,
                answers=self.wish.answers if self.wish.answers > 1 else None,
            ),
        )

    def attempted(self, now: datetime, backend: Backend, after: str | None) -> Draft:
        """The event for the call that is about to be made to `backend`."""
        self.attempts += 1
        self.backend, choice = backend, self.choice
        return Draft(
            f"{self.request_id}/attempted/{self.attempts}",
            self.key_id,
            now,
            RequestAttempted(
                request_id=self.request_id,
                attempt=self.attempts,
                backend_id=backend.backend_id,
                after=after,
                score=None if choice is None else choice.score_text,
                reasons=[] if choice is None else list(choice.reasons),
                model=None if self.asked_model is None else self.wish.model,
            ),
        )

    def delivered(self, now: datetime) -> Draft | None:
        """The running totals, if they moved since they were last told."""
        meter = self.meter
        if meter is None or self.finished or self.flushed == (meter.chunks, meter.raw):
            return None
        self.flushed = meter.chunks, meter.raw
        self.flushes += 1
        basis, usage = meter.counted()
        return Draft(
            f"{self.request_id}/delivered/{self.flushes}",
            self.key_id,
            now,
            TokensDelivered(
                request_id=self.request_id, chunks=meter.chunks, basis=basis, usage=usage
            ),
        )

    def finish(
        self,
        now: datetime,
        monotonic: float,
        outcome: Outcome,
        *,
        status: int | None = None,
        reason: str | None = None,
        counted: tuple[Basis, Usage],
    ) -> Draft:
        """The event that bills the request. It must be on the spool before the last bytes leave."""
        assert not self.finished, f"request {self.request_id} ends once"
        assert self.accepted_at is not None, f"request {self.request_id} ends after it was accepted"
        self.finished = True
        basis, usage = counted
        return Draft(
            f"{self.request_id}/finished",
            self.key_id,
            now,
            RequestFinished(
                request_id=self.request_id,
                key_id=self.key_id,
                model=self.wish.model,
                endpoint=self.endpoint.name,
                stream=self.wish.stream,
                accepted_at=self.accepted_at,
                outcome=outcome,
                basis=basis,
                usage=usage,
                status=status,
                reason=reason,
                backend_id=self.backend.backend_id if self.backend else None,
                attempts=self.attempts,
                chunks=self.chunks,
                first_token_us=_us(self.first_token - self.started) if self.first_token else None,
                duration_us=_us(monotonic - self.started),
                asked_model=self.asked_model,
                overhead_us=_us(self.overhead(monotonic)),
            ),
        )


_span = lru_cache(maxsize=16)(lambda seconds: timedelta(seconds=seconds))


@lru_cache(maxsize=1024)
def _route_headers(
    backend_id: str, score: str, reasons: tuple[str, ...]
) -> tuple[tuple[bytes, bytes], ...]:
    """Most choices are made for reasons that were had before."""
    return (
        (b"x-tollbook-backend", backend_id.encode()),
        (b"x-tollbook-route", _header_text(f"score={score}; {', '.join(reasons)}")),
    )


def _header_text(text: str) -> bytes:
    """`text` as a header can hold it: a model's name may have any characters."""
    if text.isascii() and text.isprintable():
        return text.encode()
    return ascii(text)[1:-1].encode()


def _us(seconds: float) -> int:
    return round(seconds * MICROSECONDS)

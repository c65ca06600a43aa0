"""The first answer to a request: a backend is called, judged by the head of its answer, and another
one is tried once if need be, before the client has a byte."""

from collections.abc import Mapping
from typing import Final

from gateway.backends.pool import Backend
from gateway.backends.port import Answer, BackendFailed, Client
from gateway.call import Call
from gateway.chooser import Chooser
from gateway.cuts import fault_of_status
from gateway.routing.refusals import NONE, REFUSED
from gateway.stats import Stats
from gateway.wire.requests import forwarded
from ledger.clock import Clock
from streams.log.port import Journal

ATTEMPTS_MAX: Final = 2
"""A failure before the first byte is tried once on another backend, and not more: a request that
fails two servers is more likely to be at fault itself."""


class Attempts:
    """Calls backends for the requests of one gateway process."""

    def __init__(
        self, chooser: Chooser, client: Client, clock: Clock, journal: Journal, stats: Stats
    ) -> None:
        self._chooser = chooser
        self._client = client
        self._clock = clock
        self._journal = journal
        self._stats = stats

    async def first_answer(
        self, call: Call, backend: Backend, headers: Mapping[str, str]
    ) -> Answer:
        """The head of the first answer that is no failure, or of the last one there is.

        One that refuses (`REFUSED`) may be full, or have another model by now: it is tried again
        only where another backend of the model is fit. Raises `BackendFailed` and `SpoolFailed`.
        """
        tried: tuple[str, ...] = ()
        while True:
            tried = (*tried, backend.backend_id)
            failure: BackendFailed | None = None
            answer: Answer | None = None
            try:
                answer = await self._call(call, backend, headers)
            except BackendFailed as failed:
                if failed.reason == "own_limit":
                    raise
                failure = failed
            self._judge(backend, answer, failure)
            refused = answer is not None and answer.status in REFUSED
            if answer is not None and answer.status < 500 and not refused:
                return answer
            again = len(tried) < ATTEMPTS_MAX and not call.client_left
            other = self._chooser.choose(call, tried, fit=refused) if again else None
            why = failure.reason if failure else f"status {answer.status if answer else 0}"
            if other is not None or not refused:
                self._stats.attempts_failed[backend.backend_id, why] += 1
            if other is None:
                if answer is not None:
                    return answer
                assert failure is not None, "an attempt ends in an answer or in a failure"
                try:
                    raise failure
                finally:
                    del failure  # its trace leads here: a circle, which `let_go` tells of
            if answer is not None:
                answer.close()
                call.answer = None
            backend = other
            call.lease(backend)
            self._journal.append(call.attempted(self._clock.now(), backend, why))

    def _judge(
        self, backend: Backend, answer: Answer | None, failure: BackendFailed | None
    ) -> None:
        """Tell the backend if the head of its answer, or that there is none, is a fault of it, and
        whether it refused."""
        fault = str(failure) if answer is None else fault_of_status(answer.status)
        if fault is not None:
            sure = failure is not None and failure.reason == "unreachable"
            backend.faulty(fault, self._clock.monotonic(), sure=sure)
        elif answer is not None and answer.status in REFUSED:
            backend.refused(self._clock.monotonic())
        elif backend.refusals is not NONE:
            backend.took(self._clock.monotonic())

    async def _call(self, call: Call, backend: Backend, headers: Mapping[str, str]) -> Answer:
        call.sent = self._clock.monotonic()
        call.called = True
        try:
            call.answer = await self._client.open(
                backend,
                call.endpoint.path,
                forwarded(call.body, call.wish, backend.engine, call.endpoint, call.content_type),
                headers,
            )
        finally:
            call.upstream += self._clock.monotonic() - call.sent
        return call.answer

"""Writes the end of every request: once, and never given up if the spool fails."""

import asyncio
import logging

import msgspec

from gateway.call import Call
from gateway.cuts import POLICIES, Cause, bettered, billed, wants_tokens
from gateway.stats import Stats
from gateway.tokenizers import Tokenizers
from ledger.clock import Clock
from ledger.events import Basis, Draft, Usage
from ledger.events.requests import Outcome
from streams.errors import SpoolFailed
from streams.log.port import Journal

log = logging.getLogger("tollbook.relay")

DRAFTS_IN_ONE_APPEND = 200
"""A heartbeat's events go out in appends of this many: a log takes 1 MiB in one, which the running
totals of some 2,000 streams would exceed, and the ends of 400 requests with the longest names."""


class Ends:
    """The ends of the requests of one gateway process."""

    def __init__(
        self, journal: Journal, clock: Clock, stats: Stats, tokenizers: Tokenizers
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._stats = stats
        self._tokenizers = tokenizers
        self._unwritten: list[Draft] = []

    @property
    def owed(self) -> bool:
        """True while the end of some request could not be written yet."""
        return bool(self._unwritten)

    def write_owed(self) -> None:
        """Write what is owed. Raises `SpoolFailed`."""
        while self._unwritten:
            self._journal.append(*self._unwritten[:DRAFTS_IN_ONE_APPEND])
            del self._unwritten[:DRAFTS_IN_ONE_APPEND]

    async def count(
        self, call: Call, counted: tuple[Basis, Usage], answer: bytes | None
    ) -> tuple[Basis, Usage]:
        """The best count of an answer that is whole: `counted`, or by a tokenizer if the engine
        gave none. `answer` is all that it sent, null if that was not kept."""
        if not wants_tokens(None, counted[0], call.chunks):
            return counted
        call.lease(None)
        return await self._bettered(call, counted, answer)

    def finish(
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
            policy = POLICIES["spool_failed"]
            said = msgspec.structs.replace(
                draft.payload, outcome=policy.outcome, reason=policy.reason
            )
            self._unwritten.append(Draft(draft.id, draft.subject, draft.time, said))
            self._stats.finish_delayed += 1
            raise

    async def cut(self, call: Call, cause: Cause, more: str | None = None) -> None:
        """End a call that did not end well, billed by the policy of `cause`. `more` says what is
        known of it beyond the policy's reason.

        First its backend is let go. The last bytes of its answer must not be sent before this is
        done; other bytes may. A failed spool is logged, and the end is owed.
        """
        if call.finished:
            return
        in_time = POLICIES[cause].tokenized
        if call.client_left:
            # Who has left pays as one who leaves, whatever ended the reading of the rest.
            cause, more = "client_gone", POLICIES[cause].reason
        policy = POLICIES[cause]
        call.lease(None)
        # Behind its own error a backend ends the stream by itself: those bytes are the client's.
        if call.answer is not None and cause != "backend_error":
            call.answer.close()
        counted = billed(policy, call.counted(), call.chunks)
        if in_time and call.called and wants_tokens(policy, counted[0], call.chunks):
            counted = await self._bettered(call, counted, _sent(call))
        reason = policy.reason if more is None else f"{policy.reason}: {more}"
        try:
            self.finish(call, policy.outcome, reason=reason, counted=counted)
        except SpoolFailed as failed:
            log.error("request %s: its end is owed to the spool: %s", call.request_id, failed)

    async def _bettered(
        self, call: Call, counted: tuple[Basis, Usage], answer: bytes | None
    ) -> tuple[Basis, Usage]:
        call.ending = True
        try:
            found = await self._tokenizers.count(call, answer)
        except asyncio.CancelledError:
            # The server stops and waits no longer: what is counted so far stands.
            assert call.task is not None, "a call is served by a task"
            call.task.uncancel()
            return counted
        finally:
            # The end is written next, and then limits hold again: its backend may go on, or stall.
            call.ending = False
            if call.heard is not None:
                call.heard = self._clock.monotonic()
        return bettered(counted[1], found, call.chunks) or counted

    def _count(
        self, call: Call, monotonic: float, outcome: Outcome, counted: tuple[Basis, Usage]
    ) -> None:
        stats = self._stats
        basis, usage = counted
        stats.finished[call.endpoint.name, outcome] += 1
        stats.basis[basis] += 1
        stats.count(usage)
        stats.duration.observe(monotonic - call.started)
        stats.overhead.observe(call.overhead(monotonic))
        if call.first_token is not None:
            stats.first_token.observe(call.first_token - call.started)
            if call.backend is not None:
                call.backend.first_token(call.first_token - call.started)
                made = (usage.reasoning_out or 0) + (usage.other_out or 0)
                # Only the engine's own count: it was known when the last bytes came.
                if call.heard is not None and basis in ("reported", "running") and made > 1:
                    call.backend.between_tokens((call.heard - call.first_token) / (made - 1))
        stats.chunks += call.chunks


def _sent(call: Call) -> bytes | None:
    """The bytes of an answer that broke off; null if they are not known, as those of a plain one
    that nobody got."""
    if call.meter is None:
        return b"" if call.wish.stream else None
    return None if call.kept is None else call.kept.bytes()

"""What runs at a backend that is being drained, and how long that may still take."""

from collections.abc import Iterable
from typing import Final

from gateway.backends.pool import Backend
from gateway.call import MICROSECONDS, Call
from gateway.routing.drain import Running, longest_wait_us
from ledger.events import Usage

_SEEN_MIN: Final = 8
"""Tokens after which an answer's own pace is taken for its interval: the first come in bursts."""


def drain_us(
    backend: Backend, calls: Iterable[Call], monotonic: float, total_seconds: float
) -> int | None:
    """The longest that one of `calls` at `backend` may still take; null if none is there, or it is
    not being drained."""
    if not backend.draining:
        return None
    return longest_wait_us(
        running(call, backend, monotonic, total_seconds) for call in calls if call.leased is backend
    )


def running(call: Call, backend: Backend, monotonic: float, total_seconds: float) -> Running:
    """What is known of `call`, which is at `backend`."""
    answers = max(call.wish.answers * call.wish.prompts, 1)
    produced = max(_output(call.counted()[1]) or 0, call.chunks)
    held = call.wish.held_out
    # Several answers come side by side, so each has its part of the limit, rounded up.
    left = None if held is None else max(-(-(held - produced) // answers), 0)
    interval = backend.between_tokens_us
    waited = monotonic - call.sent
    before = max((backend.first_token_us or 0) - int(waited * MICROSECONDS), 0)
    if call.first_token is not None:
        before = 0
        if produced >= _SEEN_MIN * answers:
            took = (monotonic - call.first_token) * MICROSECONDS
            interval = max(int(took * answers / produced), 1)
    limit = (call.started + total_seconds - monotonic) * MICROSECONDS
    return Running(left, interval, before, max(int(limit), 0))


def _output(usage: Usage) -> int | None:
    if usage.reasoning_out is None and usage.other_out is None:
        return None
    return (usage.reasoning_out or 0) + (usage.other_out or 0)

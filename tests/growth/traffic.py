"""Requests of many months from a seed: what gateways would have said of each, and the ledger's rows
of it.

Made as text and tuples, because ten million of anything slower take hours. `test_traffic.py` holds
a small number of them against what the ledger's own writer makes of the same events.
"""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from ledger.clock import EPOCH, to_us
from ledger.folds.requests import ABANDONED_REASON

HOUR_US = 3_600_000_000
KEYS = tuple(f"key_{n:02}{n:030x}" for n in range(1, 41))
MODELS = ("llama-70b", "qwen-32b", "gemma-27b", "mistral-24b", "qwen-7b", "gemma-270m")
BACKENDS = tuple(f"gpu-{n}" for n in range(1, 9))
GATEWAYS = 2
REFUSED = "connection refused"
_HALF_HOUR = timedelta(minutes=30)

Cell = tuple[int, str, str, str]
"""Hour, key, model and basis: a cell of the hourly roll-up."""


class Made(NamedTuple):
    """One request: the rows of its events, of itself and of its attempts, in column order; and the
    cell that it counts in, with its tokens (null: unknown), how many of its calls failed and how
    many microseconds it was with a backend (null: unknown)."""

    events: list[tuple[object, ...]]
    request: tuple[object, ...]
    attempts: list[tuple[object, ...]]
    cell: Cell
    tokens: tuple[int | None, ...]
    failed: int
    busy_us: int | None


class Month(NamedTuple):
    """A month of traffic: its name, its first instant and the first after it, and its requests."""

    name: str
    first_us: int
    after_us: int
    rows: int


class Source:
    """One incarnation of a gateway, or of the runner that ends what a gateway left open."""

    def __init__(self, name: str, started_us: int, bits: int) -> None:
        self.name = f"{name}/{_uuid7(started_us, bits)}"
        self.last = 0

    def next(self) -> int:
        self.last += 1
        return self.last


def months_of(first: str, count: int, rows: int) -> list[Month]:
    """`count` months from `first` on (`2026-01`, in UTC), with `rows` spread evenly over them."""
    year, number = (int(part) for part in first.split("-"))
    made = []
    for n in range(count):
        here, following = (
            datetime(year + m // 12, m % 12 + 1, 1, tzinfo=UTC)
            for m in (number - 1 + n, number + n)
        )
        share = rows // count + (n < rows % count)
        made.append(Month(f"{here:%Y-%m}", to_us(here), to_us(following), share))
    return made


class Traffic:
    """The requests of one month; the same for the same seed. Iterate once."""

    def __init__(self, month: Month, seed: int) -> None:
        self.month = month
        # Text, because a seed of other kinds is hashed by rules that may differ between versions.
        self._chance = random.Random(f"{seed} {month.name}")
        self.gateways = [
            Source(f"/gateway/gate-{n + 1}", month.first_us, self._chance.getrandbits(74))
            for n in range(GATEWAYS)
        ]
        self.runner = Source("/runner/local", month.first_us, self._chance.getrandbits(74))

    def __iter__(self) -> Iterator[Made]:
        bits_of = self._chance.getrandbits
        first, rows = self.month.first_us, self.month.rows
        step = (self.month.after_us - first) // max(rows, 1)
        for n in range(rows):
            bits = bits_of(192)
            # Odd, so that no instant is a whole second, which is written without a fraction.
            accepted_us = (first + n * step + (bits & 0xFFFFFFFF) % step) | 1
            yield self._request(accepted_us, bits >> 32)

    def _request(self, accepted_us: int, bits: int) -> Made:
        kind = (bits & 0xFFFF) % 1000
        key, model = _skewed(KEYS, bits >> 16 & 0xFFFF), _skewed(MODELS, bits >> 32 & 0xFFFF)
        request_id = f"req_{_uuid7(accepted_us, bits >> 48)}"
        gateway = self.gateways[bits >> 48 & 0xFF & (GATEWAYS - 1)]
        life = _Life(request_id, key, model, accepted_us, bits >> 56, gateway)
        life.accept()
        life.attempt(1)
        if kind < 5:
            life.abandon(self.runner)
        elif kind < 25:
            life.attempt(2, after=REFUSED)
            life.finish("completed", known=True)
        elif kind < 35:
            life.finish("client_gone", known=False)
        else:
            life.finish("completed", known=True)
        return life.made()


class _Life:
    """Writes the events of one request down, and keeps what its row says."""

    def __init__(
        self,
        request_id: str,
        key: str,
        model: str,
        accepted_us: int,
        bits: int,
        gateway: Source,
    ) -> None:
        self._id, self._key, self._model = request_id, key, model
        self._us, self._bits, self._gateway = accepted_us, bits, gateway
        self._time = _text(accepted_us)
        self._tried = 0
        self._backend = ""
        self._events: list[tuple[object, ...]] = []
        self._attempts: list[tuple[object, ...]] = []
        self._tail: tuple[object, ...] = ()
        self._state = self._basis = ""
        self._tokens: tuple[int | None, ...] = (None,) * 5
        self._busy_us: int | None = None

    def _say(self, source: Source, name: str, kind: str, after_us: int, data: str) -> None:
        at = self._us + after_us
        self._events.append(
            (
                *(source.name, "requests", source.next(), f"{self._id}/{name}"),
                *(f"tollbook.request.{kind}.v1", self._key, at, at + 150, None, data),
            )
        )

    def accept(self) -> None:
        held = 16 + (self._bits & 0xFFF)
        deadline = _text(self._us + _HALF_HOUR // timedelta(microseconds=1))
        self._say(
            *(self._gateway, "accepted", "accepted", 0),
            f'{{"request_id":"{self._id}","key_id":"{self._key}","model":"{self._model}",'
            f'"endpoint":"chat","stream":true,"deadline":"{deadline}",'
            f'"held_in":{held},"held_out":1024}}',
        )

    def attempt(self, number: int, *, after: str | None = None) -> None:
        self._tried = number
        self._backend = BACKENDS[(self._bits >> 12) + number & 7]
        why = "" if after is None else f',"after":"{after}"'
        at = 900 * number
        self._say(
            *(self._gateway, f"attempted/{number}", "attempted", at),
            f'{{"request_id":"{self._id}","attempt":{number},"backend_id":"{self._backend}"{why},'
            f'"score":"{self._bits & 0xFF}.25",'
            '"reasons":["2 running, 0 waiting","0.75 of the prompt is cached there"]}',
        )
        if after is not None:
            self._attempts[-1] = (*self._attempts[-1][:4], after)
        self._attempts.append((self._id, number, self._backend, self._us + at, None))

    def finish(self, outcome: str, *, known: bool) -> None:
        bits = self._bits >> 16
        first_token = 40_000 + (bits & 0x1FFFF)
        duration, overhead = first_token + 200_000 + (bits & 0x3FFFFFF), 300 + (bits & 0xFF)
        chunks = 8 + (bits & 0x1FF) if known else 0
        self._state, self._basis = "finished", "reported" if known else "none"
        if known:
            cached = (bits >> 8 & 0x7FF) if bits & 1 else 0
            reasoning = (bits >> 20 & 0x1FF) if bits & 6 == 6 else 0
            self._tokens = (16 + (bits >> 4 & 0xFFF), cached, 0, reasoning, chunks)
        status = 200 if known else 499
        self._tail = (outcome, status, None, first_token, duration, overhead, None, None)
        self._say(
            *(self._gateway, "finished", "finished", duration),
            f'{{{self._head()},"outcome":"{outcome}","basis":"{self._basis}"'
            f'{self._usage()},"status":{status},"backend_id":"{self._backend}",'
            f'"attempts":{self._tried}{_count("chunks", chunks)},"first_token_us":{first_token},'
            f'"duration_us":{duration},"overhead_us":{overhead}}}',
        )
        self._chunks = chunks
        self._busy_us = duration - overhead

    def abandon(self, runner: Source) -> None:
        self._state, self._basis = "abandoned", "running"
        self._chunks = 1 + (self._bits & 0x3F)
        self._tokens = (16 + (self._bits >> 6 & 0xFFF), 0, 0, 0, self._chunks)
        self._tail = ("abandoned", None, ABANDONED_REASON, None, None, None, None, None)
        self._say(
            *(runner, "abandoned", "abandoned", 90_000_000),
            f'{{{self._head()},"abandoned_source":"{self._gateway.name}",'
            f'"basis":"running"{self._usage()},"backend_id":"{self._backend}",'
            f'"attempts":{self._tried},"chunks":{self._chunks}}}',
        )

    def _head(self) -> str:
        return (
            f'"request_id":"{self._id}","key_id":"{self._key}","model":"{self._model}",'
            f'"endpoint":"chat","stream":true,"accepted_at":"{self._time}"'
        )

    def _usage(self) -> str:
        if self._tokens[0] is None:
            return ""
        a, b, c, d, e = self._tokens
        return (
            f',"usage":{{"uncached_in":{a},"cached_in":{b},"cache_write_in":{c},'
            f'"reasoning_out":{d},"other_out":{e}}}'
        )

    def made(self) -> Made:
        request = (
            *(self._id, self._state, self._gateway.name, self._key, self._model, "chat", True),
            *(self._us, self._backend, self._tried, self._chunks, self._basis),
            *self._tokens,
            *self._tail,
        )
        cell = (self._us - self._us % HOUR_US, self._key, self._model, self._basis)
        failed = self._tried - 1
        return Made(
            self._events, request, self._attempts, cell, self._tokens, failed, self._busy_us
        )


def _count(name: str, count: int) -> str:
    """A field that is left out where it is zero."""
    return f',"{name}":{count}' if count else ""


def _skewed(names: tuple[str, ...], bits: int) -> str:
    """One of `names`, the first ones more often: 16 bits, squared."""
    return names[bits * bits * len(names) >> 32]


def _uuid7(us: int, bits: int) -> str:
    """A UUIDv7 of that microsecond with 74 of `bits`, in 32 hex digits."""
    return (
        f"{us // 1000:012x}7{bits & 0xFFF:03x}"
        f"{8 | bits >> 12 & 3:x}{bits >> 14 & 0xFFFFFFFFFFFFFFF:015x}"
    )


def _text(us: int) -> str:
    """An instant as events write it."""
    return f"{(EPOCH + timedelta(microseconds=us)).isoformat()[:26]}Z"

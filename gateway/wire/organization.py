"""The usage and costs APIs in OpenAI's shapes: what a query asks, and the page it gets. Pure.

Buckets are whole minutes, hours or days of UTC, cut to the time that was asked for. What OpenAI has
and nobody here knows (users, batches, tiers) is null; what we add begins with `x_`.
"""

import base64
import binascii
import difflib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from gateway.errors import BadRequest
from ledger.events import BUCKETS
from ledger.folds.usage import Totals

Kind = Literal["usage", "own", "costs"]
Width = Literal["1m", "1h", "1d"]

SECONDS: Final[Mapping[str, int]] = {"1m": 60, "1h": 3600, "1d": 86_400}
LIMITS: Final[Mapping[str, tuple[int, int]]] = {"1m": (60, 1440), "1h": (24, 168), "1d": (7, 31)}
"""How many buckets a page has if nobody says it, and at most."""
COST_LIMITS: Final = (7, 180)

USAGE_GROUPS: Final = (
    "project_id",
    "api_key_id",
    "model",
    "user_id",
    "batch",
    "service_tier",
    "api_source",
)
COST_GROUPS: Final = ("project_id", "api_key_id", "line_item", "user_id", "api_source")
LISTS: Final = ("group_by", "project_ids", "api_key_ids", "models", "user_ids", "line_items")
"""Parameters that may be given several times, with and without the `[]` of OpenAI's clients."""

_COMMON: Final = ("start_time", "end_time", "bucket_width", "limit", "page", "group_by")
KNOWN: Final[Mapping[Kind, tuple[str, ...]]] = {
    "usage": (*_COMMON, "project_ids", "api_key_ids", "models", "user_ids", "batch"),
    "costs": (*_COMMON, "project_ids", "api_key_ids", "user_ids", "line_items"),
    "own": (*_COMMON, "models", "batch"),
}

FILTER_MAX: Final = 500
"""Values of one filter: they become a list in SQL."""

TIME_MAX: Final = 32_503_680_000
"""The year 3000; a time in milliseconds lies beyond it."""


class Ask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One question for one page. Times are seconds since 1970 UTC, `start` (of the page) included
    and `end` (of all pages) not. A filter that is null lets all pass; an empty one lets none."""

    kind: Kind
    start: int
    end: int
    width: Width
    limit: int
    group_by: tuple[str, ...] = ()
    projects: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    items: tuple[str, ...] | None = None

    def only(self, key_id: str) -> "Ask":
        """The same of one key alone; where nothing fits, nothing does of that key either."""
        return self if self.keys == () else msgspec.structs.replace(self, keys=(key_id,))

    def buckets(self) -> list[tuple[int, int]]:
        """Start and end of each bucket of the page."""
        step, at = SECONDS[self.width], self.start
        found: list[tuple[int, int]] = []
        while at < self.end and len(found) < self.limit:
            following = min(self.end, at - at % step + step)
            found.append((at, following))
            at = following
        return found


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a costs page. `cost` and `quantity` are exact decimals; a null cost is what has
    no price, and `unpriced` names the buckets that lack one. `unknown` counts requests whose use
    nobody knows, so that they cost what nobody knows."""

    start: int
    project: str | None = None
    key: str | None = None
    item: str | None = None
    currency: str | None = None
    cost: str | None = None
    quantity: str | None = None
    unit: str | None = None
    unpriced: tuple[str, ...] = ()
    unknown: int = 0


def asked(kind: Kind, pairs: Sequence[tuple[str, str]], now: int) -> Ask:
    """What the parameters of a query string ask. `now`, in seconds, is the end if none is given.

    Raises `BadRequest` that names the parameter, why, and what would be right.
    """
    given = _given(kind, pairs)
    width = given.one("bucket_width", "1d")
    widths = ("1d",) if kind == "costs" else tuple(SECONDS)
    if width not in widths:
        raise _wrong("bucket_width", f"{width!r} is none of {', '.join(widths)}")
    usual, most = COST_LIMITS if kind == "costs" else LIMITS[width]
    limit = given.number("limit", usual)
    if not 1 <= limit <= most:
        raise _wrong("limit", f"of buckets of {width} a page has 1 to {most}, not {limit}")
    if "start_time" not in given.single:
        raise _wrong("start_time", "it must be given, in seconds since 1970 UTC")
    start, end = given.number("start_time", 0), given.number("end_time", now)
    for name, time in (("start_time", start), ("end_time", end)):
        if time > TIME_MAX:
            raise _wrong(name, "times are in seconds since 1970 UTC, not in milliseconds")
    if start >= end:
        raise _wrong("end_time", f"it must be after start_time, and {end} is not after {start}")
    ask = Ask(
        kind=kind,
        start=start,
        end=end,
        width=width,
        limit=limit,
        group_by=given.groups(COST_GROUPS if kind == "costs" else USAGE_GROUPS),
        projects=given.many("project_ids"),
        keys=given.many("api_key_ids"),
        models=given.many("models"),
        items=given.many("line_items"),
    )
    if given.many("user_ids") is not None or given.flag("batch"):
        # No request here is of a user or of a batch, so no model's name fits.
        ask = msgspec.structs.replace(ask, keys=())
    return ask if "page" not in given.single else _at_page(ask, given.single["page"])


class _Given:
    """The parameters by name, each checked as it is asked for."""

    def __init__(self, single: dict[str, str], lists: dict[str, list[str]]) -> None:
        self.single = single
        self._lists = lists

    def one(self, name: str, usual: Width) -> Width:
        found: str = self.single.get(name, usual)
        if found not in SECONDS:
            raise _wrong(name, f"{found!r} is none of {', '.join(SECONDS)}")
        return found  # type: ignore[return-value]

    def number(self, name: str, usual: int) -> int:
        text = self.single.get(name)
        if text is None:
            return usual
        if not (text.isascii() and text.isdigit() and len(text) <= 15):
            raise _wrong(name, f"{text[:40]!r} is no whole number from 0 up")
        return int(text)

    def flag(self, name: str) -> bool:
        text = self.single.get(name, "false").lower()
        if text not in ("true", "false"):
            raise _wrong(name, f"{text[:40]!r} is neither true nor false")
        return text == "true"

    def many(self, name: str) -> tuple[str, ...] | None:
        values = self._lists.get(name)
        if values is None:
            return None
        if len(values) > FILTER_MAX:
            raise _wrong(name, f"{len(values)} values are given; at most {FILTER_MAX} are taken")
        return tuple(sorted(set(values)))

    def groups(self, known: Sequence[str]) -> tuple[str, ...]:
        wanted = self.many("group_by") or ()
        for name in wanted:
            if name not in known:
                raise _wrong("group_by", _unknown(name, known))
        return tuple(name for name in known if name in wanted)


def _given(kind: Kind, pairs: Sequence[tuple[str, str]]) -> _Given:
    single: dict[str, str] = {}
    lists: dict[str, list[str]] = {}
    for written, value in pairs:
        name = written.removesuffix("[]")
        if name not in KNOWN[kind]:
            raise _wrong(written[:64], _unknown(name[:64], KNOWN[kind]), "unknown_parameter")
        if name in LISTS:
            lists.setdefault(name, []).append(value)
        elif name in single:
            raise _wrong(name, "it is given twice")
        else:
            single[name] = value
    return _Given(single, lists)


def _unknown(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    return f"{name!r} is not known here; {hint}"


def _wrong(name: str, why: str, code: str = "invalid_parameter") -> BadRequest:
    return BadRequest(f"{name}: {why}.", param=name, code=code)


def cursor_of(ask: Ask, start: int) -> str:
    """The `page` that goes on at `start`. It holds the end too, so that pages of a question without
    `end_time` belong together, and tells which question it is of."""
    text = f"{start}.{ask.end}.{_digest(ask)}"
    return "page_" + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _at_page(ask: Ask, page: str) -> Ask:
    wrong = _wrong("page", "it is no next_page that was given here; begin without it")
    coded = page.removeprefix("page_")
    try:
        text = base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode("ascii")
    except (binascii.Error, UnicodeError, ValueError):
        raise wrong from None
    start, _, rest = text.partition(".")
    end, _, digest = rest.partition(".")
    if not (start.isdigit() and end.isdigit() and len(start) + len(end) <= 30):
        raise wrong
    found = msgspec.structs.replace(ask, end=int(end))
    if digest != _digest(found):
        raise _wrong("page", "it belongs to another question; repeat all other parameters as given")
    if not found.start <= int(start) < found.end:
        raise wrong
    return msgspec.structs.replace(found, start=int(start))


def _digest(ask: Ask) -> str:
    # Without the times: the start moves from page to page, and the end stands in the cursor.
    same = msgspec.structs.replace(ask, start=0, end=0, limit=0)
    return hashlib.blake2b(msgspec.json.encode(same), digest_size=8).hexdigest()


UsedRow = tuple[int, str, str, str, Totals]
"""Start of the bucket in seconds, project, key, model, and what was used; an empty text where it is
not told apart, and for no project."""


def usage_page(ask: Ask, used: Iterable[UsedRow]) -> bytes:
    """The page of usage that `ask` asks for, in OpenAI's shape."""
    results: dict[int, list[dict[str, object]]] = {}
    for start, project, key, model, totals in used:
        results.setdefault(start, []).append(_used(ask, project, key, model, totals))
    return _page(ask, results)


def costs_page(ask: Ask, spent: Iterable[Spent], open_from: int | None) -> bytes:
    """The page of costs. Every bucket tells whether its month is closed; `open_from` is the second
    from which on none is (null: none ever was)."""
    results: dict[int, list[dict[str, object]]] = {}
    for one in spent:
        results.setdefault(one.start, []).append(_spent(ask, one))
    return _page(ask, results, open_from or 0)


def _page(
    ask: Ask, results: Mapping[int, list[dict[str, object]]], open_from: int | None = None
) -> bytes:
    buckets = ask.buckets()
    reached = buckets[-1][1]
    more = reached < ask.end
    data = []
    for start, end in buckets:
        bucket: dict[str, object] = {
            "object": "bucket",
            "start_time": start,
            "end_time": end,
            "results": results.get(start, []),
        }
        if open_from is not None:
            bucket["x_period"] = "open" if end > open_from else "closed"
        data.append(bucket)
    return msgspec.json.encode(
        {
            "object": "page",
            "data": data,
            "has_more": more,
            "next_page": cursor_of(ask, reached) if more else None,
        }
    )


def _used(ask: Ask, project: str, key: str, model: str, totals: Totals) -> dict[str, object]:
    uncached, cached, cache_write, reasoning, other = totals.tokens
    unknown = {
        name: totals.requests - known
        for name, known in zip(BUCKETS, totals.known, strict=True)
        if known < totals.requests
    }
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": uncached + cached + cache_write,
        "output_tokens": reasoning + other,
        "num_model_requests": totals.requests,
        "input_cached_tokens": cached,
        "input_uncached_tokens": uncached,
        "input_cache_write_tokens": cache_write,
        "input_audio_tokens": None,
        "output_audio_tokens": None,
        "project_id": project or None,
        "api_key_id": key or None,
        "model": model or None,
        **_of_nobody(ask),
        "batch": False if "batch" in ask.group_by else None,
        "service_tier": None,
        "x_output_reasoning_tokens": reasoning,
        "x_unknown_requests": unknown,
    }


def _spent(ask: Ask, one: Spent) -> dict[str, object]:
    amount = None
    if one.cost is not None:
        # The number's own digits: a float would not hold a millionth of a cent of a large sum.
        value, currency = msgspec.Raw(one.cost.encode()), (one.currency or "").lower()
        amount = {"value": value, "currency": currency}
    return {
        "object": "organization.costs.result",
        "amount": amount,
        "x_amount_exact": one.cost,
        "line_item": one.item,
        "project_id": one.project,
        "api_key_id": one.key,
        **_of_nobody(ask),
        "quantity": None if one.quantity is None else msgspec.Raw(one.quantity.encode()),
        "quantity_unit": one.unit,
        "x_unpriced": one.unpriced,
        "x_unknown_requests": one.unknown,
    }


def _of_nobody(ask: Ask) -> dict[str, object]:
    """What OpenAI can tell apart and here is the same for all."""
    return {
        "user_id": None,
        "api_source": "unlabeled" if "api_source" in ask.group_by else None,
    }

"""What the ledger must say of a script, given the backend's books and what the client got. Pure.

Every rule gives a complaint in words; none is good.
"""

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from gateway.keeping import STREAM_BYTES_MAX
from tests.proof.client import Got
from tests.proof.direct import Direct, events, received, unasked
from tests.proof.plans import CHAT, INPUT_ONLY, MESSAGES, RESPONSES, SPEECH, SPOKEN, TEXT, Plan
from tests.support.fake.books import Served
from tests.support.script import LATE

Row = dict[str, Any]
"""A row of the ledger's table `requests`."""

Fate = Literal["well", "status", "hang", "left_early", "left", "cut", "stall", "error", "late"]

BUCKETS = ("uncached_in", "cached_in", "cache_write_in", "reasoning_out", "other_out")

_OUTCOMES: dict[Fate, str] = {
    "well": "completed",
    "status": "completed",
    "hang": "timeout",
    "left_early": "client_gone",
    "left": "client_gone",
    "cut": "backend_lost",
    "stall": "timeout",
    "error": "backend_lost",
    "late": "completed",
}


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A script that was played, and everything that is known of it."""

    plan: Plan
    direct: Direct
    served: Served
    got: Got
    row: Row

    @property
    def fate(self) -> Fate:
        """What became of the request."""
        script, client = self.plan.script, self.plan.client
        if script.status is not None:
            return "status"
        if script.hang:
            return "hang"
        if client == "leaves_early":
            return "left_early"
        if client in ("leaves_there", "leaves_sometime"):
            return "left"
        if LATE in (script.cut, script.stall):
            return "late"
        if script.cut is not None:
            return "cut"
        if script.error is not None:
            return "error"
        return "stall" if script.stall is not None else "well"

    @property
    def ins(self) -> int | None:
        known = [self.row[name] for name in BUCKETS[:3] if self.row[name] is not None]
        return sum(known) if known else None

    @property
    def outs(self) -> int | None:
        known = [self.row[name] for name in BUCKETS[3:] if self.row[name] is not None]
        return sum(known) if known else None


def complaints(case: Case) -> Iterator[str]:
    """Everything that is wrong with `case`."""
    row, plan = case.row, case.plan
    if case.got.late:
        yield "the client waited in vain"
    if row["outcome"] != _OUTCOMES[case.fate]:
        yield f"the outcome is {row['outcome']}, not {_OUTCOMES[case.fate]}: {row['reason']}"
    if case.fate not in ("well", "status", "late") and not row["reason"]:
        yield "a request that did not end well has no reason"
    yield from _identity(case)
    allowed = _bases(case)
    if row["basis"] not in allowed:
        yield f"the basis is {row['basis']}, none of {sorted(allowed)}"
    yield from _counts(case)
    if row["basis"] == "reported" and plan.script.wrong == 0:
        yield from _buckets(case)
    told = row["basis"] == "running" and plan.engine == "llamacpp"
    if told and row["cached_in"] != case.served.cached:
        # Its timings tell the cache from the first token on; the others tell it at the end.
        yield f"cached_in is {row['cached_in']}, the backend has {case.served.cached}"
    yield from _chunks(case)
    yield from _bytes(case)


def _identity(case: Case) -> Iterator[str]:
    """Whose request it was, and what was asked."""
    plan, row = case.plan, case.row
    wanted = {
        "model": f"m-{plan.server}",
        "endpoint": plan.path.removeprefix("/v1/"),
        "backend_id": plan.server,
        "attempts": 1,
        "request_id": case.got.headers.get("x-request-id", row["request_id"]),
    }
    for name, value in wanted.items():
        if row[name] != value:
            yield f"{name} is {row[name]}, not {value}"
    if case.fate in ("well", "late") and row["status"] != 200:
        yield f"the status is {row['status']}"


def _running(plan: Plan) -> bool:
    """True if this engine tells usage during such a stream, where the gateway asks for it."""
    if not plan.stream:
        return False
    if plan.path in (CHAT, TEXT):
        return plan.engine != "fake"
    # llama.cpp would tell it at /v1/responses too, but nothing could be stripped there again.
    return plan.path in SPOKEN and plan.engine == "vllm"


def _final(plan: Plan) -> bool:
    """True if a whole answer of this kind carries its usage."""
    if plan.script.usage == 2:
        return False
    if plan.path == RESPONSES and plan.stream:
        return plan.script.done
    if not plan.stream and (plan.path == SPEECH or (plan.path in SPOKEN and plan.engine == "vllm")):
        return False
    # llama.cpp tells of several choices only the first one's tokens.
    several = plan.choices > 1 and not plan.stream
    return not (several and plan.engine == "llamacpp")


def _bases(case: Case) -> set[str]:
    """The bases that the row may have: in most cases the best that there is and no other."""
    plan, fate = case.plan, case.fate
    if fate in ("status", "hang"):
        return {"none"}
    if plan.script.wrong > 1:
        return {"reported", "running", "tokenized", "counted", "none"}
    if fate in ("well", "late"):
        return _whole_bases(case)
    if fate == "left_early":
        if plan.mute:
            return {"none"}
        return {"tokenized", "none"} if _mute(plan) else {"tokenized"}
    if not plan.stream or (fate != "left" and not case.row["chunks"]):
        return {"none"}
    if _running(plan):
        return {"running"} if case.row["chunks"] else {"running", "tokenized", "none"}
    nothing = {"none"} if plan.path in SPOKEN and not case.row["chunks"] else set()
    return {"counted", "none"} if plan.path == SPEECH else _by_text(case) | nothing


def _whole_bases(case: Case) -> set[str]:
    plan = case.plan
    if plan.path == "/v1/rerank" and (plan.engine == "sglang" or plan.script.usage == 2):
        return {"reported", "tokenized", "none"}
    if _final(plan):
        return {"reported"}
    if _running(plan):
        return {"running", "reported"}
    if plan.path == SPEECH:
        return {"counted", "tokenized", "none"}
    if plan.engine == "llamacpp" and plan.path in (CHAT, TEXT):
        return {"reported", "tokenized"}
    return _by_text(case)


def _by_text(case: Case) -> set[str]:
    """By the tokenizer, unless there is none or the text was too long to be kept for it."""
    if case.plan.mute:
        return {"counted"} if case.row["chunks"] else {"counted", "none"}
    if not case.plan.stream or len(case.direct.stream()) <= STREAM_BYTES_MAX:
        return {"tokenized"}
    return {"counted"} if len(case.got.body) > STREAM_BYTES_MAX else {"counted", "tokenized"}


def _mute(plan: Plan) -> bool:
    """True if no tokenizer can count the prompt: sound, or SGLang with a chat."""
    chat = plan.path in (CHAT, RESPONSES, MESSAGES)
    return plan.path in (*SPOKEN, SPEECH, "/v1/rerank") or (chat and plan.engine == "sglang")


def _counts(case: Case) -> Iterator[str]:
    """The numbers themselves, against the backend's own."""
    row, plan, served = case.row, case.plan, case.served
    ins, outs, produced = case.ins, case.outs, served.completion
    if row["basis"] == "none":
        if ins is not None or outs is not None:
            yield "a count without a basis"
        return
    if row["basis"] in ("reported", "running") and ins != served.prompt:
        yield f"{ins} tokens in, the backend read {served.prompt}"
    if ins not in (None, plan.prompt_tokens()):
        yield f"{ins} tokens in, the prompt has {plan.prompt_tokens()}"
    if ins is None and row["basis"] == "tokenized" and not _mute(plan):
        yield "the prompt was not tokenized"
    # The name of a tool is text too, as is the JSON around its input, of which the fake makes none.
    names = (2 if plan.path == MESSAGES else plan.choices) if plan.script.tools else 0
    names = names if row["basis"] == "tokenized" else 0
    if outs is not None and outs > produced + names:
        yield f"{outs} tokens out, the backend produced only {produced}"
    if outs is None:
        if plan.stream or case.fate == "well":
            yield "no tokens out are known"
        return
    chunks, count = received(plan, case.got.body)
    least = chunks if row["basis"] == "counted" or plan.path == SPEECH else count
    if outs < least:
        yield f"{outs} tokens out, the client received {least}"
    exact = row["basis"] != "counted" and plan.client != "leaves_sometime"
    if exact and not produced <= outs <= produced + names:
        yield f"{outs} tokens out by {row['basis']}, the backend produced {produced}"


def _buckets(case: Case) -> Iterator[str]:
    """Where the engine tells it, each bucket has its own."""
    plan, served, row = case.plan, case.served, case.row
    if plan.path in INPUT_ONLY or plan.path in SPOKEN or plan.path == SPEECH:
        return
    hides_cache = plan.path == MESSAGES and plan.engine == "vllm"
    hides_thoughts = plan.path == MESSAGES or plan.engine == "llamacpp"
    wanted = {
        "cached_in": 0 if hides_cache else served.cached,
        "cache_write_in": served.written,
        "reasoning_out": 0 if hides_thoughts else served.reasoning,
    }
    for name, value in wanted.items():
        if (row[name] or 0) != value:
            yield f"{name} is {row[name]}, the backend has {value}"


def _chunks(case: Case) -> Iterator[str]:
    chunks, _ = received(case.plan, case.got.body)
    if not chunks <= case.row["chunks"] <= case.served.completion:
        yield (
            f"{case.row['chunks']} chunks in the row; the client got {chunks}, the backend made "
            f"{case.served.completion} tokens"
        )


def _bytes(case: Case) -> Iterator[str]:
    """The client gets what the backend sent, less what the gateway had asked for itself."""
    plan, got = case.plan, case.got
    if case.fate in ("status", "hang", "left_early") or not got.status:
        if case.fate == "status" and got.status != plan.script.status:
            yield f"the client got {got.status}, the backend said {plan.script.status}"
        return
    if not plan.stream:
        if case.fate == "well" and got.body != case.direct.plain():
            yield f"other bytes: {got.body[:300]!r}, not {case.direct.plain()[:300]!r}"
        return
    mine, theirs = _seen(events(got.body), plan), _seen(case.direct.sent(), plan)
    whole = case.fate in ("well", "error", "late") and not got.left
    if whole and not got.whole and case.fate != "late":
        yield "the answer did not end in order"
    if not whole:
        mine = [item for item in mine if not _ours(item)]
        if mine and isinstance(mine[-1], str) and mine[-1] != "[DONE]":
            mine.pop()
    if mine != (theirs if whole else theirs[: len(mine)]):
        pairs = enumerate(zip(mine, theirs, strict=False))
        place = next((n for n, (a, b) in pairs if a != b), min(len(mine), len(theirs)))
        yield (
            f"from event {place} on: {str(mine[place : place + 2])[:300]} of {len(mine)}, the "
            f"backend sent {str(theirs[place : place + 2])[:300]} of {len(theirs)}"
        )
    yield from _asked_for(case, whole)
    raw = plan.path not in (CHAT, TEXT, *SPOKEN) and plan.engine != "llamacpp"
    if whole and raw and got.body != case.direct.stream():
        yield "other bytes within the same events"


def _asked_for(case: Case, whole: bool) -> Iterator[str]:
    """A client gets a usage that it asked for, and none that it did not ask for."""
    plan, body = case.plan, case.got.body
    script = plan.script
    if (
        plan.path not in (CHAT, TEXT)
        or script.usage not in (0, 1)
        or script.running
        or script.wrong
    ):
        return
    options = plan.body("").get("stream_options") or {}
    asked, there = bool(options.get("include_usage")), b'"usage":{' in body
    if whole and case.fate == "well" and asked and not there:
        yield "the client asked for usage and got none"
    if not asked and there and plan.engine != "llamacpp":
        yield "the client got a usage that it did not ask for"


def _seen(items: list[Any], plan: Plan) -> list[Any]:
    if plan.path == RESPONSES and plan.engine == "llamacpp":
        return [
            {name: value for name, value in item.items() if name != "timings"}
            for item in items
            if isinstance(item, dict)
        ]
    return unasked(items)


def _ours(item: Any) -> bool:
    """True for the event by which the gateway tells that it had to cut an answer."""
    if not isinstance(item, dict):
        return False
    error = item.get("error")
    code = error.get("code") or error.get("type") if isinstance(error, dict) else None
    return item.get("type") == "error" or isinstance(code, str)

"""What one random script is: an endpoint, an engine, a backend's script and a client's behaviour.

A plan is drawn from dice and written as one line, so that a failing one can be repeated; `simpler`
gives the plans that a failing one is shrunk through. Pure.
"""

import random
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from tests.support.fake.dialects import DIALECTS
from tests.support.fake.plain import templated, words
from tests.support.script import LATE, Script, parse, spell
from tests.support.shapes import ENGINES, Engine

Client = Literal["stays", "leaves_early", "leaves_there", "leaves_sometime", "leaves_after"]
"""What the client does.

stays            reads to the end, whatever that is
leaves_early     hangs up while the backend is silent before its first byte
leaves_there     hangs up where the backend stands still, having read all that it sent
leaves_sometime  hangs up at some chunk of a stream that goes on
leaves_after     reads the last event of the stream and then breaks off
"""

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
SPEECH = "/v1/audio/speech"
SPOKEN = ("/v1/audio/transcriptions", "/v1/audio/translations")
INPUT_ONLY = ("/v1/embeddings", "/v1/rerank")

_DOORS = (CHAT, TEXT, RESPONSES, MESSAGES, *INPUT_ONLY, *SPOKEN, SPEECH)
_WEIGHTS = (40, 16, 14, 14, 5, 3, 4, 2, 2)

MUTE = "mute"

LATE_KINDS = ("cut", "stall")
"""What a backend does behind the last event of its stream: `cut`, `stall`."""

WISHES: tuple[dict[str, Any], ...] = (
    {},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"stream_options": {"include_usage": False}, "timings_per_token": True},
)
"""What callers of chats and completions ask for themselves."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One script. `wish` is a place in `WISHES`; `hangs_at` is the chunk for `leaves_sometime`;
    `words` are those of the prompt; `limit` is the client's own limit of tokens, 0 for none;
    `mute` is a backend without a tokenizer."""

    path: str
    engine: Engine
    stream: bool = True
    script: Script = Script()
    client: Client = "stays"
    hangs_at: int = 0
    reset: bool = False
    choices: int = 1
    wish: int = 0
    logprobs: bool = False
    words: int = 3
    limit: int = 0
    mute: bool = False

    def line(self) -> str:
        """The plan in one line, which `read` takes back."""
        said = msgspec.to_builtins(self) | {"script": spell(self.script)}
        plain = {field.name: field.default for field in msgspec.structs.fields(Plan)}
        return " ".join(f"{name}={value}" for name, value in said.items() if value != plain[name])

    @property
    def server(self) -> str:
        """The name of the backend, also in the model's."""
        return MUTE if self.mute else self.engine

    @property
    def chatty(self) -> bool:
        """True where the caller may ask for usage within the stream."""
        return self.path in (CHAT, TEXT)

    @property
    def prompt_text(self) -> str:
        return " ".join(f"w{place}" for place in range(self.words))

    def prompt_tokens(self) -> int:
        """The tokens of the prompt by the fake's own tokenizer; its script says the same."""
        if self.path in (CHAT, RESPONSES, MESSAGES):
            return words(templated({"messages": [{"role": "user", "content": self.prompt_text}]}))
        return self.words + (1 if self.path == "/v1/rerank" else 0)

    def body(self, tag: str) -> dict[str, Any]:
        """The body as the client sends it; a form's fields where the endpoint takes a form."""
        script = msgspec.structs.replace(self.script, prompt=self.prompt_tokens())
        said: dict[str, Any] = {"model": f"m-{self.server}", "user": tag, "script": spell(script)}
        if self.stream and self.path == SPEECH:
            said["stream_format"] = "sse"
        elif self.stream:
            said["stream"] = "true" if self.path in SPOKEN else True
        if self.chatty and self.stream:
            said |= WISHES[self.wish]
        if self.choices > 1:
            said["n"] = self.choices
        if self.logprobs:
            said["logprobs"] = True
        said |= self._asked()
        if self.limit:
            said["max_output_tokens" if self.path == RESPONSES else "max_tokens"] = self.limit
        return said

    def _asked(self) -> dict[str, Any]:
        text = self.prompt_text
        message = {"role": "user", "content": text}
        match self.path:
            case "/v1/chat/completions":
                return {"messages": [message]}
            case "/v1/messages":
                return {"messages": [message], "max_tokens": 5000}
            case "/v1/completions":
                return {"prompt": text}
            case "/v1/rerank":
                return {"query": "what", "documents": [text]}
            case _:
                return {"input": text}


def read(line: str) -> Plan:
    """The plan that `Plan.line` wrote."""
    values: dict[str, Any] = dict(part.split("=", 1) for part in line.split(" "))
    script = parse(f"-{values.pop('script', '')}")
    return msgspec.structs.replace(msgspec.convert(values, Plan, strict=False), script=script)


def drawn(dice: random.Random) -> Plan:
    """One plan."""
    path = dice.choices(_DOORS, _WEIGHTS)[0]
    engine = dice.choice(ENGINES)
    if path in (*SPOKEN, SPEECH):
        # llama.cpp speaks of texts alone.
        engine = dice.choice(("fake", "vllm"))
    stream = path not in INPUT_ONLY and dice.random() < 0.75
    plan = Plan(
        path=path,
        engine=engine,
        stream=stream,
        script=_script(dice, path, engine),
        choices=dice.choice((1, 1, 1, 1, 1, 2, 3)) if path in (CHAT, TEXT) else 1,
        wish=dice.randrange(len(WISHES)) if path in (CHAT, TEXT) and stream else 0,
        logprobs=path in (CHAT, TEXT) and dice.random() < 0.15,
        reset=dice.random() < 0.5,
        words=dice.randrange(1, 30),
        mute=engine == "fake" and dice.random() < 0.4,
    )
    if engine == "llamacpp" and plan.choices > 1 and plan.script.usage == 3:
        # It tells each answer's usage apart, and none of them twice.
        plan = msgspec.structs.replace(plan, choices=1)
    if path in (CHAT, TEXT, RESPONSES, MESSAGES) and dice.random() < 0.1:
        return msgspec.structs.replace(plan, limit=dice.randrange(1, 8))
    return _broken(dice, plan)


def _script(dice: random.Random, path: str, engine: Engine) -> Script:
    """How a backend answers when all goes well."""

    def rarely(value: int, share: float = 0.15) -> int:
        return value if dice.random() < share else 0

    chunks = dice.choice((1, 2, 3, 5, 9, 30))
    cached = rarely(1, 0.4)
    big = rarely(dice.choice((64, 1024)), 0.04)
    return Script(
        chunks=chunks,
        per_chunk=dice.choice((1, 1, 1, 2, 5)),
        cached=cached if path not in (*INPUT_ONLY, *SPOKEN, SPEECH) else 0,
        written=rarely(1) if cached and path in (CHAT, MESSAGES) and engine == "fake" else 0,
        reasoning=rarely(dice.randrange(1, 4), 0.25) if path in (CHAT, RESPONSES, MESSAGES) else 0,
        per_write=dice.choice((1, 1, 2, 7)),
        slice_bytes=rarely(dice.choice((1, 7, 64))) if chunks < 9 and not big else 0,
        big_kib=big if path != SPEECH else 0,
        packed=rarely(dice.choice((1, 2)), 0.1),
        usage=dice.choice((0, 0, 0, 1, 2, 3, 4)),
        wrong=rarely(dice.choice((1, 2, 3, 4)), 0.06) if path in (CHAT, TEXT) else 0,
        details=engine == "fake" and dice.random() < 0.2,
        running=engine == "vllm" and dice.random() < 0.1,
        tools=path in (CHAT, RESPONSES, MESSAGES) and dice.random() < 0.1,
        accents=dice.random() < 0.2,
        crlf=dice.random() < 0.15,
        open_end=dice.random() < 0.1,
        pings=dice.random() < 0.15,
        done=dice.random() > 0.1,
    )


def _broken(dice: random.Random, plan: Plan) -> Plan:
    """The plan with something that goes wrong, or with nothing."""
    script, steps = plan.script, plan.script.chunks * plan.choices
    at = dice.choice((0, dice.randrange(steps + 1), steps))
    if plan.path in INPUT_ONLY:
        kind = dice.choice(("well", "well", "status", "cut", "leaves_early"))
    elif plan.stream:
        kinds = ("well", "leaves_there", "leaves_sometime", "cut", "error", "leaves_early")
        more = ("leaves_after", "stall", "status", "hang", "late")
        kind = dice.choices((*kinds, *more), (30, 18, 8, 12, 10, 4, 6, 4, 3, 1, 3))[0]
    else:
        kind = dice.choice(("well", "well", "well", "cut", "status", "leaves_early"))
    changed: dict[str, Any] = {}
    client: Client = "stays"
    match kind:
        case "cut":
            changed["cut"] = min(at, script.chunks) if not plan.stream else at
        case "error":
            changed["error"] = at
        case "stall":
            changed["stall"] = at
        case "status":
            changed["status"] = dice.choice((400, 429, 500, 503))
        case "late":
            changed |= {"done": True, "open_end": False}
            changed[dice.choice(LATE_KINDS)] = LATE
        case "hang":
            changed["hang"] = True
        case "leaves_early":
            changed["delay_ms"] = 20_000
            client = "leaves_early"
        case "leaves_there":
            changed["stall"] = at
            client = "leaves_there"
        case "leaves_sometime":
            changed |= {"chunks": 400, "interval_us": 4000, "per_write": 1, "slice_bytes": 0}
            client = "leaves_sometime"
        case "leaves_after":
            client = "leaves_after"
    hangs_at = dice.randrange(1, 40) if client == "leaves_sometime" else 0
    script = msgspec.structs.replace(script, **changed)
    return msgspec.structs.replace(plan, script=script, client=client, hangs_at=hangs_at)


def simpler(plan: Plan) -> Iterator[Plan]:
    """Plans with one thing less that is out of the ordinary, the largest steps first."""
    return (one for one in _simpler(plan) if one != plan and _sensible(one))


def _simpler(plan: Plan) -> Iterator[Plan]:
    replace, script = msgspec.structs.replace, plan.script
    yield replace(plan, script=Script(**{name: getattr(script, name) for name in _KEPT}))
    for field in msgspec.structs.fields(Script):
        if field.name not in _KEPT:
            yield replace(plan, script=replace(script, **{field.name: field.default}))
    for field in msgspec.structs.fields(Plan):
        if field.name in ("choices", "wish", "logprobs", "reset", "limit", "mute"):
            yield replace(plan, **{field.name: field.default})
    for chunks in (1, 2, script.chunks // 2, script.chunks - 1):
        if 0 < chunks < script.chunks:
            yield replace(plan, script=replace(script, chunks=chunks))
    yield replace(plan, words=1)


def _sensible(plan: Plan) -> bool:
    """True if what is to go wrong still does."""
    script, steps = plan.script, plan.script.chunks * plan.choices
    places = [place or 0 for place in (script.cut, script.stall, script.error) if place != LATE]
    return max(places, default=0) <= steps and (not plan.hangs_at or plan.hangs_at < steps - 50)


_KEPT = ("chunks", "cut", "stall", "error", "status", "hang", "delay_ms", "interval_us")
"""What makes a script the fault that it is."""

assert set(_DOORS) == set(DIALECTS), "every endpoint that generates is proven"

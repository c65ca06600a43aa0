"""What the engines say, byte for byte where it matters: answers, streams, usage, errors. Pure.

The llama.cpp shapes were taken from a real server (xllamacpp 2026.10), those of vLLM and SGLang
from their documentation.
"""

import json
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from tests.support.script import Script

Engine = Literal["fake", "vllm", "sglang", "llamacpp"]
ENGINES: tuple[Engine, ...] = ("fake", "vllm", "sglang", "llamacpp")
Json = dict[str, Any]


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the backend understood it. `chunks` is the script's, cut by `max_tokens`."""

    script: Script
    engine: Engine
    chat: bool
    model: str
    number: int
    chunks: int
    limited: bool
    include_usage: bool = False
    running: bool = False
    timings: bool = False

    @property
    def reasoning(self) -> int:
        """How many of the completion tokens are reasoning."""
        return min(self.script.reasoning, self.chunks)


def call_of(body: Json, engine: Engine, number: int, chat: bool, script: Script) -> Call:
    """What `body` asks for, under `script`."""
    options = body.get("stream_options") or {}
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    chunks = script.chunks if limit is None else min(script.chunks, int(limit))
    runs = engine in ("vllm", "sglang") and options.get("continuous_usage_stats") is True
    return Call(
        script=script,
        engine=engine,
        chat=chat,
        model=str(body.get("model", "")),
        number=number,
        chunks=chunks,
        limited=chunks < script.chunks,
        include_usage=script.usage != 2
        and (options.get("include_usage") is True or script.usage in (1, 3)),
        running=runs or script.running,
        timings=engine == "llamacpp" and body.get("timings_per_token") is True,
    )


def usage_of(call: Call, produced: int, *, details: bool = True) -> Any:
    """The usage object after `produced` completion tokens, false where the script says so."""
    script = call.script
    usage: Json = {
        "prompt_tokens": script.prompt,
        "total_tokens": script.prompt + produced,
        "completion_tokens": produced,
    }
    if details:
        usage["prompt_tokens_details"] = {"cached_tokens": script.cached}
        if call.reasoning:
            counted = min(call.reasoning, produced)
            usage["completion_tokens_details"] = {"reasoning_tokens": counted}
    match script.wrong:
        case 1:
            usage["prompt_tokens_details"] = {"cached_tokens": script.prompt + 7}
        case 2:
            usage["completion_tokens"] = -5
        case 3:
            usage["prompt_tokens"] = "twelve"
        case 4:
            return "a lot"
        case 5:
            usage["completion_tokens"] = 1
    return usage


def timings_of(call: Call, produced: int) -> Json:
    """llama.cpp's own counts: `prompt_n` is what was processed, `cache_n` what was found."""
    return {
        "cache_n": call.script.cached,
        "prompt_n": call.script.prompt - call.script.cached,
        "prompt_ms": 1.5,
        "predicted_n": produced,
        "predicted_ms": 2.5,
    }


def word(call: Call, index: int) -> str:
    """The text of token `index`: clients check that none is lost or out of order."""
    return f" t{index}"


def _head(call: Call, kind: str) -> Json:
    prefix = "chatcmpl" if call.chat else "cmpl"
    return {"id": f"{prefix}-{call.number}", "object": kind, "created": 1, "model": call.model}


def _finish(call: Call) -> str:
    return "length" if call.limited else "stop"


def whole(call: Call) -> Json:
    """The answer to a call that was not streamed."""
    texts = [word(call, i) for i in range(call.chunks)]
    said = "".join(texts[call.reasoning :])
    choice: Json = {"index": 0, "finish_reason": _finish(call)}
    if call.chat:
        choice["message"] = {"role": "assistant", "content": said}
        if call.reasoning:
            choice["message"]["reasoning_content"] = "".join(texts[: call.reasoning])
    else:
        choice["text"] = said
    answer = _head(call, "chat.completion" if call.chat else "text_completion")
    answer["choices"] = [choice]
    if call.script.usage != 2:
        answer["usage"] = usage_of(call, call.chunks)
    if call.engine == "llamacpp":
        answer["timings"] = timings_of(call, call.chunks)
    return answer


def _chunk(call: Call, produced: int, choices: list[Json], **more: Any) -> Json:
    chunk = _head(call, "chat.completion.chunk" if call.chat else "text_completion")
    chunk["choices"] = choices
    if call.running:
        chunk["usage"] = usage_of(call, produced, details=False)
    elif call.include_usage and call.engine == "fake":
        # OpenAI itself puts a null on every chunk but the last; the engines leave the field out.
        chunk["usage"] = None
    return chunk | more


def opening(call: Call) -> list[Json]:
    """What comes before the first token: the role of a chat, null content from llama.cpp."""
    if not call.chat:
        return []
    content = None if call.engine == "llamacpp" else ""
    delta = {"role": "assistant", "content": content}
    return [_chunk(call, 0, [{"index": 0, "delta": delta, "finish_reason": None}])]


def token(call: Call, index: int) -> Json:
    """The chunk that carries token `index`, counted from 0."""
    text = word(call, index)
    choice: Json = {"index": 0, "finish_reason": None}
    if not call.chat:
        choice["text"] = text
    elif index < call.reasoning:
        choice["delta"] = {"reasoning_content": text}
    else:
        choice["delta"] = {"content": text}
    more = {"timings": timings_of(call, index + 1)} if call.timings else {}
    return _chunk(call, index + 1, [choice], **more)


def closing(call: Call) -> list[Json]:
    """The finishing chunk, and the usage wherever this engine puts it."""
    choice: Json = {"index": 0, "finish_reason": _finish(call)}
    choice["delta" if call.chat else "text"] = {} if call.chat else ""
    last = _chunk(call, call.chunks, [choice])
    asked, llamacpp = call.include_usage, call.engine == "llamacpp"
    if llamacpp and not call.chat:
        # Measured: llama.cpp puts it on the finishing chunk itself, asked or not.
        if call.script.usage != 2:
            last["usage"] = usage_of(call, call.chunks)
        return [last | {"timings": timings_of(call, call.chunks)}]
    if llamacpp and not asked:
        return [last | {"timings": timings_of(call, call.chunks)}]
    if not asked:
        return [last]
    if call.script.usage == 3:
        last["usage"] = usage_of(call, call.chunks, details=False)
    extra = _chunk(call, call.chunks, []) | {"usage": usage_of(call, call.chunks)}
    if llamacpp:
        extra["timings"] = timings_of(call, call.chunks)
    return [last, extra]


def sse(call: Call, item: Json | str) -> bytes:
    """One event of the stream, with the line ends that the script wants."""
    text = item if isinstance(item, str) else json.dumps(item, separators=(",", ":"))
    end = "\r\n" if call.script.crlf else "\n"
    ping = f": ping{end}{end}" if call.script.pings else ""
    return f"{ping}data: {text}{end}{end}".encode()


def error_of(status: int, message: str) -> Json:
    """An error body in OpenAI's shape, with the code as a number as the engines have it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def metrics_of(engine: Engine, prompt: int, cached: int, completion: int, running: int) -> str:
    """The counters under the engine's own names. llama.cpp counts only what it processed."""

    def lines() -> Iterator[str]:
        if engine == "llamacpp":
            yield f"llamacpp:prompt_tokens_total {prompt - cached}"
            yield f"llamacpp:prompt_tokens_cached_total {cached}"
            yield f"llamacpp:tokens_predicted_total {completion}"
            yield f"llamacpp:requests_processing {running}"
            return
        name = "sglang" if engine == "sglang" else "vllm"
        yield f'{name}:prompt_tokens_total{{model_name="fake"}} {prompt}'
        yield f'{name}:generation_tokens_total{{model_name="fake"}} {completion}'
        yield f'{name}:num_requests_running{{model_name="fake"}} {running}'

    return "\n".join(lines()) + "\n"

"""What the engines say, byte for byte where it matters: chats and completions, errors. Pure.

The llama.cpp shapes were taken from a real server (xllamacpp 2026.10), those of vLLM and SGLang
from their sources. What other endpoints say is in `tests.support.fake`.
"""

import json
from typing import Any, Literal

import msgspec

from tests.support.script import Script

Engine = Literal["fake", "vllm", "sglang", "llamacpp"]
ENGINES: tuple[Engine, ...] = ("fake", "vllm", "sglang", "llamacpp")
Json = dict[str, Any]

CHOICES_MAX = 16


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the backend understood it. `chunks` is the script's, cut by `max_tokens`.

    `tokens` is what one choice has; `named` is true where the events of a stream have names, as
    those of `/v1/responses` and `/v1/messages` do.
    """

    script: Script
    engine: Engine
    chat: bool
    model: str
    number: int
    chunks: int
    tokens: int
    limited: bool
    choices: int = 1
    named: bool = False
    include_usage: bool = False
    running: bool = False
    timings: bool = False
    logprobs: bool = False

    @property
    def reasoning(self) -> int:
        """How many of the completion tokens of one choice are reasoning."""
        return min(self.script.reasoning, self.tokens)

    @property
    def produced(self) -> int:
        """The completion tokens of the whole answer."""
        return self.tokens * self.choices

    def until(self, index: int) -> int:
        """The tokens of one choice once its chunk `index` is out."""
        return min((index + 1) * self.script.per_chunk, self.tokens)


def call_of(
    body: Json, engine: Engine, number: int, chat: bool, script: Script, *, named: bool = False
) -> Call:
    """What `body` asks for, under `script`."""
    options = body.get("stream_options") or {}
    limit = (
        body.get("max_completion_tokens") or body.get("max_output_tokens") or body.get("max_tokens")
    )
    wanted = script.chunks * script.per_chunk
    tokens = wanted if limit is None else min(wanted, int(limit))
    runs = engine in ("vllm", "sglang") and options.get("continuous_usage_stats") is True
    return Call(
        script=script,
        engine=engine,
        chat=chat,
        model=str(body.get("model", "")),
        number=number,
        chunks=-(-tokens // script.per_chunk),
        tokens=tokens,
        limited=tokens < wanted,
        choices=min(int(body.get("n") or 1), CHOICES_MAX),
        named=named,
        include_usage=script.usage != 2
        and (options.get("include_usage") is True or script.usage in (1, 3, 4)),
        running=runs or script.running,
        timings=engine == "llamacpp" and body.get("timings_per_token") is True,
        logprobs=bool(body.get("logprobs")),
    )


def usage_of(
    call: Call, produced: int, *, details: bool = True, reasoning: int | None = None
) -> Any:
    """The usage object after `produced` completion tokens, false where the script says so."""
    script = call.script
    usage: Json = {
        "prompt_tokens": script.prompt,
        "total_tokens": script.prompt + produced,
        "completion_tokens": produced,
    }
    if details:
        usage["prompt_tokens_details"] = {"cached_tokens": script.cached}
        if script.written:
            usage["prompt_tokens_details"]["cache_write_tokens"] = script.written
        counted = min(call.reasoning, produced) if reasoning is None else reasoning
        if call.engine == "sglang":
            # Read in its source: beside the totals. llama.cpp tells none at all.
            usage["reasoning_tokens"] = counted
        elif call.reasoning and call.engine != "llamacpp":
            usage["completion_tokens_details"] = {"reasoning_tokens": counted}
        if script.details and call.engine == "fake":
            usage["prompt_tokens_details"] |= {"audio_tokens": 3, "image_tokens": 2}
            more = {"audio_tokens": 1, "accepted_prediction_tokens": 2}
            more |= {"rejected_prediction_tokens": 1, "text_tokens": produced}
            usage["completion_tokens_details"] = usage.get("completion_tokens_details", {}) | more
    return _falsified(usage, script)


def _falsified(usage: Json, script: Script) -> Any:
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


def final_usage(call: Call, *, details: bool = True) -> Any:
    """The usage of the whole answer: what all choices produced."""
    reasoning = call.reasoning * call.choices
    return usage_of(call, call.produced, details=details, reasoning=reasoning)


def timings_of(call: Call, produced: int) -> Json:
    """llama.cpp's own counts: `prompt_n` is what was processed, `cache_n` what was found."""
    return {
        "cache_n": call.script.cached,
        "prompt_n": call.script.prompt - call.script.cached,
        "prompt_ms": 1.5,
        "predicted_n": produced,
        "predicted_ms": 2.5,
    }


def word(call: Call, index: int, choice: int = 0) -> str:
    """The text of token `index`: clients check that none is lost or out of order.

    It is one word, so that the fake's tokenizer makes one token of it again.
    """
    text = f" t{index}" if choice == 0 else f" c{choice}t{index}"
    if call.script.accents:
        text += "é\U0001f600"
    if index == 0 and call.script.big_kib:
        text += "x" * (call.script.big_kib * 1024)
    return text


def texts(call: Call, start: int, end: int, choice: int = 0) -> tuple[str, str]:
    """(reasoning, other): the words of the tokens from `start` to `end` of one choice."""
    edge = min(max(call.reasoning, start), end)
    thought = "".join(word(call, i, choice) for i in range(start, edge))
    return thought, "".join(word(call, i, choice) for i in range(edge, end))


def _head(call: Call, kind: str) -> Json:
    prefix = "chatcmpl" if call.chat else "cmpl"
    return {"id": f"{prefix}-{call.number}", "object": kind, "created": 1, "model": call.model}


def _finish(call: Call) -> str:
    if call.limited:
        return "length"
    return "tool_calls" if call.script.tools and call.chat else "stop"


def _logprobs(call: Call, start: int, end: int, choice: int) -> Json:
    """Alternatives as an engine lists them: their texts look like content and are none."""
    words = [word(call, i, choice) for i in range(start, end)]
    if not call.chat:
        return {"tokens": words, "token_logprobs": [-0.5] * len(words), "top_logprobs": None}
    tops = [{"token": "content", "logprob": -0.5, "bytes": [34]}, {"token": '"', "logprob": -2.0}]
    return {"content": [{"token": w, "logprob": -0.5, "top_logprobs": tops} for w in words]}


def _tool_call(call: Call, index: int, arguments: str) -> Json:
    named = {"id": f"call-{call.number}", "type": "function"} if index == 0 else {}
    function = {"arguments": arguments} | ({"name": "look_up"} if index == 0 else {})
    return {"index": 0, **named, "function": function}


def whole(call: Call) -> Json:
    """The answer to a call that was not streamed."""
    answer = _head(call, "chat.completion" if call.chat else "text_completion")
    answer["choices"] = [_whole_choice(call, choice) for choice in range(call.choices)]
    if call.engine == "llamacpp":
        # Measured: of `n` choices it tells only what the first one has.
        answer["timings"] = timings_of(call, call.tokens)
        usage = usage_of(call, call.tokens)
    else:
        usage = final_usage(call)
    if call.script.usage != 2:
        answer["usage"] = usage
    return answer


def _whole_choice(call: Call, index: int) -> Json:
    thought, said = texts(call, 0, call.tokens, index)
    choice: Json = {"index": index, "finish_reason": _finish(call)}
    if call.chat:
        choice["message"] = {"role": "assistant", "content": said}
        if call.script.tools:
            arguments = _tool_call(call, 0, said)
            choice["message"] |= {"content": None, "tool_calls": [arguments]}
        if thought:
            choice["message"]["reasoning_content"] = thought
    else:
        # It has no place for thoughts, so its words begin behind them.
        choice["text"] = said
    if call.logprobs:
        choice["logprobs"] = _logprobs(call, 0, call.tokens, index)
    return choice


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
    delta = {"role": "assistant", "content": None if call.engine == "llamacpp" else ""}
    return [
        _chunk(call, 0, [{"index": choice, "delta": delta, "finish_reason": None}])
        for choice in range(call.choices)
    ]


def token(call: Call, index: int, choice: int = 0) -> Json:
    """The chunk `index`, counted from 0, of one choice. Its running usage is of this choice alone,
    as in all three engines."""
    start, end = index * call.script.per_chunk, call.until(index)
    thought, said = texts(call, start, end, choice)
    one: Json = {"index": choice, "finish_reason": None}
    if not call.chat:
        one["text"] = thought + said
    else:
        one["delta"] = {"reasoning_content": thought} if thought else {}
        if said and call.script.tools:
            one["delta"]["tool_calls"] = [_tool_call(call, max(start - call.reasoning, 0), said)]
        elif said:
            one["delta"]["content"] = said
    if call.logprobs:
        one["logprobs"] = _logprobs(call, start, end, choice)
    more = {"timings": timings_of(call, end)} if call.timings else {}
    return _chunk(call, end, [one], **more)


def closing(call: Call) -> list[Json]:
    """The finishing chunks, and the usage wherever this engine puts it."""
    ends = [_finishing(call, choice) for choice in range(call.choices)]
    if call.engine == "llamacpp":
        return [item for end in ends for item in _llamacpp_end(call, end)]
    if not call.include_usage:
        return ends
    if call.script.usage == 3:
        ends[-1]["usage"] = final_usage(call, details=False)
    extra = _chunk(call, call.produced, []) | {"usage": final_usage(call)}
    if call.script.usage == 4:
        del extra["choices"]
    return [*ends, extra]


def _finishing(call: Call, index: int) -> Json:
    choice: Json = {"index": index, "finish_reason": _finish(call)}
    choice["delta" if call.chat else "text"] = {} if call.chat else ""
    return _chunk(call, call.tokens, [choice])


def _llamacpp_end(call: Call, end: Json) -> list[Json]:
    """Measured: llama.cpp ends each choice on its own, with the usage of this choice alone."""
    timings = timings_of(call, call.tokens)
    if not call.chat:
        # It puts the usage on the finishing chunk itself, asked or not.
        usage = {} if call.script.usage == 2 else {"usage": usage_of(call, call.tokens)}
        return [end | usage | {"timings": timings}]
    if not call.include_usage:
        return [end | {"timings": timings}]
    if call.script.usage == 3:
        end["usage"] = usage_of(call, call.tokens, details=False)
    extra = _chunk(call, call.tokens, []) | {"usage": usage_of(call, call.tokens)}
    if call.script.usage == 4:
        del extra["choices"]
    return [end, extra | {"timings": timings}]


def sse(call: Call, item: Json | str) -> bytes:
    """One event of the stream, with the line ends that the script wants."""
    script = call.script
    raw = not script.accents
    text = (
        item if isinstance(item, str) else json.dumps(item, separators=(",", ":"), ensure_ascii=raw)
    )
    end = "\r\n" if script.crlf else "\n"
    ping = f": ping{end}{end}" if script.pings else ""
    name = f"event: {item['type']}{end}" if call.named and isinstance(item, dict) else ""
    return f"{ping}{name}data: {text}{end}{end}".encode()


def error_of(status: int, message: str) -> Json:
    """An error body in OpenAI's shape, with the code as a number as the engines have it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}

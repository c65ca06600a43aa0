"""What the engines say at `/v1/messages`: Anthropic's events, with a usage that differs. Pure.

llama.cpp (measured), Anthropic and the newest SGLang leave what was cached out of `input_tokens`;
vLLM (read in its source) puts the whole prompt there and says nothing of its cache.
"""

from typing import Any

from tests.support.shapes import Call, Json, texts


def _input(call: Call) -> Json:
    script = call.script
    if call.engine == "vllm":
        return {"input_tokens": script.prompt}
    told = {"input_tokens": script.prompt - script.cached}
    if call.engine == "llamacpp" or (call.engine == "sglang" and script.cached):
        told["cache_read_input_tokens"] = script.cached
    if call.engine == "fake":
        told["input_tokens"] -= script.written
        told["cache_read_input_tokens"] = script.cached
        told["cache_creation_input_tokens"] = script.written
    return told


def usage_of(call: Call) -> Json | None:
    """The usage of the answer; null where the script gives none."""
    return None if call.script.usage == 2 else _input(call) | {"output_tokens": call.produced}


def _message(call: Call, content: list[Json], stop: str | None, usage: Json | None) -> Json:
    message: Json = {
        "id": f"msg-{call.number}",
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": call.model,
        "stop_reason": stop,
        "stop_sequence": None,
    }
    return message if usage is None else message | {"usage": usage}


def _stop(call: Call) -> str:
    if call.limited:
        return "max_tokens"
    return "tool_use" if call.script.tools else "end_turn"


def whole(call: Call) -> Json:
    """The answer to a call that was not streamed."""
    thought, said = texts(call, 0, call.tokens)
    content: list[Json] = [{"type": "thinking", "thinking": thought, "signature": "s"}]
    if not thought:
        content.clear()
    if call.script.tools:
        content.append({"type": "tool_use", "id": "t", "name": "look_up", "input": {"a": said}})
    else:
        content.append({"type": "text", "text": said})
    return _message(call, content, _stop(call), usage_of(call))


def _event(kind: str, **more: Any) -> Json:
    return {"type": kind, **more}


def _begin(call: Call, block: int) -> Json:
    if call.reasoning and block == 0:
        content: Json = {"type": "thinking", "thinking": ""}
    elif call.script.tools:
        content = {"type": "tool_use", "id": "t", "name": "look_up", "input": {}}
    else:
        content = {"type": "text", "text": ""}
    return _event("content_block_start", index=block, content_block=content)


def opening(call: Call) -> list[Json]:
    """The start, which tells the input: nothing of the output has been made yet."""
    usage = None if call.script.usage == 2 else _input(call) | {"output_tokens": 0}
    start = _event("message_start", message=_message(call, [], None, usage))
    ping = [_event("ping")] if call.engine == "fake" else []
    return [start, *ping, _begin(call, 0)]


def token(call: Call, index: int, choice: int = 0) -> list[Json]:
    """The events of chunk `index`; where reasoning ends, its block does too."""
    start, end = index * call.script.per_chunk, call.until(index)
    thought, said = texts(call, start, end, choice)
    events = []
    if thought:
        delta = {"type": "thinking_delta", "thinking": thought}
        events.append(_event("content_block_delta", index=0, delta=delta))
    if said:
        block = 1 if call.reasoning else 0
        if block and start <= call.reasoning < end:
            events += [_event("content_block_stop", index=0), _begin(call, 1)]
        kind, name = ("text_delta", "text")
        if call.script.tools:
            kind, name = "input_json_delta", "partial_json"
        events.append(_event("content_block_delta", index=block, delta={"type": kind, name: said}))
    return events


def closing(call: Call) -> list[Json]:
    """The end, with the output: cumulative, and llama.cpp tells nothing else there."""
    usage = usage_of(call)
    if usage is not None and call.engine == "llamacpp":
        usage = {"output_tokens": usage["output_tokens"]}
    delta = _event("message_delta", delta={"stop_reason": _stop(call), "stop_sequence": None})
    if usage is not None:
        delta["usage"] = usage
    block = 1 if call.reasoning and call.tokens > call.reasoning else 0
    events = [_event("content_block_stop", index=block), delta]
    return [*events, _event("message_stop")] if call.script.done else events


def fault(call: Call, message: str) -> list[Json | str]:
    """How a fault is told within the stream; vLLM ends it as it ends a chat."""
    error = _event("error", error={"type": "api_error", "message": message})
    return [error, "[DONE]"] if call.engine == "vllm" else [error]

"""What the engines say at `/v1/responses`: named events, the usage within the last one. Pure.

llama.cpp's shapes were taken from a real server; it tells running `timings` where they are asked
for. vLLM, SGLang and OpenAI tell nothing before the end.
"""

from typing import Any

from tests.support.shapes import Call, Json, texts, timings_of


def usage_of(call: Call) -> Json | None:
    """The usage of the answer; null where the script gives none."""
    script = call.script
    if script.usage == 2:
        return None
    usage: Json = {
        "input_tokens": script.prompt,
        "output_tokens": call.produced,
        "total_tokens": script.prompt + call.produced,
        "input_tokens_details": {"cached_tokens": script.cached},
    }
    if call.engine == "fake" and script.written:
        usage["input_tokens_details"]["cache_write_tokens"] = script.written
    if call.engine != "llamacpp":
        usage["output_tokens_details"] = {"reasoning_tokens": call.reasoning}
    return usage


def whole(call: Call) -> Json:
    """The answer to a call that was not streamed, also the last event's `response`."""
    thought, said = texts(call, 0, call.tokens)
    output: list[Json] = []
    if thought:
        parts = [{"type": "reasoning_text", "text": thought}]
        output.append({"type": "reasoning", "id": "rs", "summary": [], "content": parts})
    if call.script.tools:
        output.append({"type": "function_call", "name": "look_up", "arguments": said})
    else:
        part = {"type": "output_text", "annotations": [], "logprobs": [], "text": said}
        output.append({"type": "message", "role": "assistant", "content": [part]})
    cut = call.limited and call.engine == "fake"
    answer = _response(call, "incomplete" if cut else "completed") | {"output": output}
    if (usage := usage_of(call)) is not None:
        answer["usage"] = usage
    return answer


def _response(call: Call, status: str) -> Json:
    return {
        "id": f"resp-{call.number}",
        "object": "response",
        "created_at": 1,
        "model": call.model,
        "status": status,
    }


def _event(call: Call, kind: str, **more: Any) -> Json:
    numbered = {} if call.engine == "llamacpp" else {"sequence_number": 1}
    return {"type": f"response.{kind}", **numbered, **more}


def opening(call: Call) -> list[Json]:
    begun = _response(call, "in_progress")
    item = {"type": "message", "id": "msg", "role": "assistant", "content": []}
    part = {"type": "output_text", "text": ""}
    return [
        _event(call, "created", response=begun),
        _event(call, "in_progress", response=begun),
        _event(call, "output_item.added", item=item),
        _event(call, "content_part.added", item_id="msg", part=part),
    ]


def token(call: Call, index: int, choice: int = 0) -> list[Json]:
    """The events of chunk `index`: one, or two where reasoning ends within it."""
    end = call.until(index)
    thought, said = texts(call, index * call.script.per_chunk, end, choice)
    kind = "function_call_arguments" if call.script.tools else "output_text"
    deltas = [("reasoning_text", thought), (kind, said)]
    more = {"timings": timings_of(call, end)} if call.timings else {}
    return [
        _event(call, f"{name}.delta", item_id="msg", delta=text, **more)
        for name, text in deltas
        if text
    ]


def closing(call: Call) -> list[Json]:
    """The texts once more, as a whole, and the event that ends the stream."""
    _, said = texts(call, 0, call.tokens)
    response = whole(call)
    end = _event(call, str(response["status"]), response=response)
    if call.engine == "llamacpp":
        end["timings"] = timings_of(call, call.tokens)
    said_whole = [
        _event(call, "output_text.done", item_id="msg", text=said),
        _event(call, "output_item.done", item=response["output"][-1]),
    ]
    return [*said_whole, end] if call.script.done else said_whole


def fault(call: Call, message: str) -> list[Json]:
    """How a fault is told within the stream."""
    error = {"code": "server_error", "message": message}
    if call.engine == "fake":
        return [_event(call, "failed", response=_response(call, "failed") | {"error": error})]
    return [{"type": "error", **error, "param": None}]

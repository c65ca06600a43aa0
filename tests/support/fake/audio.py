"""What the engines say at `/v1/audio/*`: texts of what was spoken, and sound. Pure.

vLLM writes a transcription as a chat is written (read in its source), OpenAI in events of their
own; a plain transcription of vLLM tells seconds and no tokens.
"""

import base64

from tests.support.shapes import Call, Json, texts, usage_of


def _tokens(call: Call, kind: str | None = None) -> Json:
    prompt = call.script.prompt
    usage: Json = {"type": kind} if kind else {}
    usage |= {"input_tokens": prompt, "output_tokens": call.produced}
    usage["total_tokens"] = prompt + call.produced
    if kind:
        usage["input_token_details"] = {"text_tokens": 0, "audio_tokens": prompt}
    return usage


def _text(call: Call, start: int, end: int) -> str:
    return "".join(texts(call, start, end))


def _chunked(call: Call) -> bool:
    return call.engine != "fake"


def transcript(call: Call) -> Json:
    """A transcription that was not streamed."""
    answer: Json = {"text": _text(call, 0, call.tokens)}
    if call.script.usage == 2 or call.engine == "sglang":
        return answer
    if _chunked(call):
        return answer | {"usage": {"type": "duration", "seconds": 3}}
    return answer | {"usage": _tokens(call, "tokens")}


def translation(call: Call) -> Json:
    """A translation that was not streamed: vLLM tells no usage at all."""
    answer = transcript(call)
    return {"text": answer["text"]} if _chunked(call) else answer


def _chunk(call: Call, choices: list[Json]) -> Json:
    return {
        "id": f"transcribe-{call.number}",
        "object": "transcription.chunk",
        "created": 1,
        "model": call.model,
        "choices": choices,
    }


def spoken_opening(call: Call) -> list[Json]:
    return []


def spoken(call: Call, index: int, choice: int = 0) -> list[Json]:
    """The event of chunk `index` of a transcription."""
    end = call.until(index)
    text = _text(call, index * call.script.per_chunk, end)
    if not _chunked(call):
        return [{"type": "transcript.text.delta", "delta": text}]
    chunk = _chunk(call, [{"delta": {"content": text}}])
    if call.running:
        chunk["usage"] = usage_of(call, end, details=False)
    return [chunk]


def spoken_closing(call: Call) -> list[Json]:
    """The end of a streamed transcription."""
    if not _chunked(call):
        done: Json = {"type": "transcript.text.done", "text": _text(call, 0, call.tokens)}
        if call.script.usage != 2:
            done["usage"] = _tokens(call, "tokens")
        return [done]
    last = _chunk(call, [{"delta": {"content": ""}, "finish_reason": "stop", "stop_reason": None}])
    if not call.include_usage:
        return [last]
    return [last, _chunk(call, []) | {"usage": usage_of(call, call.produced, details=False)}]


def sound(call: Call) -> bytes:
    """Speech as it is without `stream_format`: bytes, and no word of tokens."""
    return b"\xff\xfb\x90\x00" + bytes(range(256)) * call.tokens


def speech(call: Call, index: int, choice: int = 0) -> list[Json]:
    """The event of chunk `index` of speech."""
    audio = base64.b64encode(bytes(range(64)) * call.script.per_chunk).decode()
    return [{"type": "speech.audio.delta", "audio": audio}]


def speech_closing(call: Call) -> list[Json]:
    """The end of streamed speech."""
    done: Json = {"type": "speech.audio.done"}
    return [done if call.script.usage == 2 else done | {"usage": _tokens(call)}]

"""Answers that are never streamed: embeddings, ranks, token counts; and the fake's tokenizer. Pure.

A token is a word. So the text of an answer has as many tokens as the fake says that it produced.
"""

import json
from typing import Any

from tests.support.shapes import Call, Engine, Json

CONTEXT = 8192


def words(text: str) -> int:
    """The tokens of `text`."""
    return len(text.split())


def text_of(content: Any) -> str:
    """The text of a message's content, be it one string or parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return " ".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def templated(body: Json) -> str:
    """The prompt that a chat becomes: each message behind a mark, and a mark for the answer."""
    system = text_of(body.get("system"))
    said = [f"<system> {system}"] if system else []
    said += [f"<{m.get('role')}> {text_of(m.get('content'))}" for m in body.get("messages") or []]
    if body.get("tools"):
        said.insert(0, "<tools> " + json.dumps(body["tools"]))
    return " ".join([*said, "<assistant>"])


def tokenized(engine: Engine, body: Json) -> Json | None:
    """What `/tokenize` says, in the engine's own shape; null for a body that it does not take.

    llama.cpp reads `content` and takes anything else for an empty text (measured); SGLang reads
    only `prompt` (its source); vLLM reads `messages` too.
    """
    if engine == "llamacpp":
        return {"tokens": list(range(words(str(body.get("content", "")))))}
    if "messages" in body and engine != "sglang":
        count = words(templated(body))
    elif isinstance(body.get("prompt"), str):
        count = words(body["prompt"])
    elif engine == "fake" and "content" in body:
        count = words(str(body["content"]))
    else:
        return None
    answer: Json = {"count": count, "max_model_len": CONTEXT, "tokens": list(range(count))}
    return answer | {"token_strs": None} if engine == "vllm" else answer


def embeddings(call: Call) -> Json:
    """The answer of `/v1/embeddings`; an embedding costs its input and nothing else."""
    data = [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5]}]
    answer: Json = {"object": "list", "model": call.model, "data": data}
    return answer | _input_only(call, {"completion_tokens": 0, "prompt_tokens_details": None})


def rerank(call: Call) -> Json | list[Json]:
    """The answer of `/v1/rerank`: SGLang's is a bare list with the tokens of each document."""
    prompt = call.script.prompt
    if call.engine == "sglang":
        parts = (prompt - prompt // 2, prompt // 2)
        return [
            {"score": 0.5, "index": place, "meta_info": {"id": "r", "prompt_tokens": part}}
            for place, part in enumerate(parts)
        ]
    results = [{"index": place, "relevance_score": 0.5 - place / 10} for place in range(2)]
    answer: Json = {"model": call.model, "results": results}
    if call.engine == "fake" and call.script.usage != 2:
        return answer | {"usage": {"total_tokens": prompt}}
    return answer | _input_only(call, {})


def _input_only(call: Call, more: Json) -> Json:
    if call.script.usage == 2:
        return {}
    prompt = call.script.prompt
    usage: Json = {"prompt_tokens": prompt, "total_tokens": prompt}
    return {"usage": usage | (more if call.engine in ("vllm", "sglang") else {})}

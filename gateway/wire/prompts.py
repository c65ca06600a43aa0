"""What of a request body is its prompt, as tokenizers and chat templates take it. Pure."""

from typing import Any, Final

import msgspec

from gateway.wire.endpoints import Endpoint
from gateway.wire.usage import UNREADABLE

Json = dict[str, Any]

TEXTS_MAX: Final = 64
"""Each text of a prompt costs its tokenizer a call."""


BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""A larger body has pictures or sound in it, or more than any context holds; to look at each of a
million messages would hold up everybody for a second."""


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt of one request; exactly one of its forms is there, beside `ids`.

    `chat` has at least `messages`, in the shape of chats. `texts` are (text, how often it counts);
    `ids` are tokens that the caller gave as numbers. `messages` is a body for Anthropic's
    `count_tokens`, which engines that have it count exactly.
    """

    model: str
    chat: Json | None = None
    messages: Json | None = None
    texts: tuple[tuple[str, int], ...] = ()
    ids: int = 0
    special: bool = True


def prompt_of(endpoint: Endpoint, body: bytes) -> Prompt | None:
    """The prompt in `body`; null if no tokenizer can tell what it comes to: it has pictures or
    sound in it, goes on from an answer that only the server knows, or is too much."""
    if len(body) > BODY_BYTES_MAX:
        return None
    try:
        asked = msgspec.json.decode(body)
    except UNREADABLE:
        return None
    if not isinstance(asked, dict):
        return None
    model = str(asked.get("model") or "")
    match endpoint.name:
        case "chat/completions":
            return _chat(model, asked)
        case "completions":
            return _completion(model, asked)
        case "embeddings" if "messages" in asked:
            return _chat(model, asked)
        case "embeddings":
            return _texts(model, asked.get("input", asked.get("content")), special=True)
        case "rerank":
            return _ranking(model, asked)
        case "responses":
            return _response(model, asked)
        case "messages":
            return _message(model, asked)
    return None


_TEMPLATE_KEYS: Final = (
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
)
"""Members of a chat that change its prompt, under the names that vLLM's `/tokenize` takes."""

_TEMPLATE_ARGUMENTS: Final = ("documents", "reasoning_effort")
"""Those that vLLM gives to the template of a chat, but takes under no name at `/tokenize`."""


def _chat(model: str, asked: Json) -> Prompt | None:
    messages = asked.get("messages")
    if not isinstance(messages, list) or not all(_is_text(message) for message in messages):
        return None
    chat = {name: asked[name] for name in _TEMPLATE_KEYS if asked.get(name) is not None}
    more = {name: asked[name] for name in _TEMPLATE_ARGUMENTS if asked.get(name) is not None}
    if more:
        chat["chat_template_kwargs"] = more | dict(chat.get("chat_template_kwargs") or {})
    return Prompt(model=model, chat={"messages": messages, **chat})


_TEXT_KINDS: Final = frozenset(
    (
        "input_text",
        "output_text",
        "redacted_thinking",
        "reasoning_text",
        "refusal",
        "summary_text",
        "text",
        "thinking",
        "tool_reference",
        "tool_result",
        "tool_use",
    )
)


def _is_text(message: object) -> bool:
    """True if a message, or a part of one, has nothing but text in it."""
    if isinstance(message, str):
        return True
    if not isinstance(message, dict):
        return False
    if "role" not in message and message.get("type", "text") not in _TEXT_KINDS:
        return False
    content = message.get("content")
    return not isinstance(content, list) or all(_is_text(part) for part in content)


def _completion(model: str, asked: Json) -> Prompt | None:
    if asked.get("suffix") or asked.get("prompt_embeds"):
        return None
    return _texts(model, asked.get("prompt"), special=asked.get("add_special_tokens") is not False)


def _texts(model: str, given: object, *, special: bool) -> Prompt | None:
    """Of one text, one list of tokens, or a list of either."""
    parts = given if isinstance(given, list) else [given]
    if parts and all(type(part) is int for part in parts):
        return Prompt(model=model, ids=len(parts), special=special)
    texts: list[tuple[str, int]] = []
    ids = 0
    for part in parts:
        if isinstance(part, str):
            texts.append((part, 1))
        elif isinstance(part, list) and all(type(token) is int for token in part):
            ids += len(part)
        else:
            return None
    if not (texts or ids) or len(texts) > TEXTS_MAX:
        return None
    return Prompt(model=model, texts=tuple(texts), ids=ids, special=special)


def _ranking(model: str, asked: Json) -> Prompt | None:
    """The query is read once with each document."""
    query, documents = asked.get("query"), asked.get("documents")
    if not isinstance(query, str) or not isinstance(documents, list):
        return None
    texts = [part.get("text") if isinstance(part, dict) else part for part in documents]
    if not 0 < len(texts) <= TEXTS_MAX or not all(isinstance(text, str) for text in texts):
        return None
    return Prompt(model=model, texts=((query, len(texts)), *((str(text), 1) for text in texts)))


def _response(model: str, asked: Json) -> Prompt | None:
    if asked.get("previous_response_id") or asked.get("prompt") or asked.get("conversation"):
        return None
    given = asked.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list):
        return None
    messages: list[Json] = []
    if isinstance(instructions := asked.get("instructions"), str) and instructions:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        message = _message_of_item(item)
        if message is None:
            return None
        messages += message
    return _of_parts(model, messages, _functions(asked.get("tools"), "parameters"))


def _message_of_item(item: object) -> list[Json] | None:
    """One item of a response's input as messages of a chat; null if it is no text."""
    if not isinstance(item, dict):
        return None
    match item.get("type", "message"):
        case "message":
            if not _is_text(item):
                return None
            return [{"role": item.get("role", "user"), "content": _joined(item.get("content"))}]
        case "reasoning":
            return []
        case "function_call":
            call = _call(item.get("call_id"), item.get("name"), item.get("arguments"))
            return [{"role": "assistant", "content": None, "tool_calls": [call]}]
        case "function_call_output" if _is_text({"role": "", "content": item.get("output")}):
            content = _joined(item.get("output"))
            return [{"role": "tool", "tool_call_id": item.get("call_id"), "content": content}]
    return None


_COUNTED_KEYS: Final = ("messages", "system", "tools", "tool_choice", "thinking")


def _message(model: str, asked: Json) -> Prompt | None:
    given = asked.get("messages")
    if not isinstance(given, list) or not all(_is_text(message) for message in given):
        return None
    messages: list[Json] = []
    if system := _joined(asked.get("system"), ""):
        messages.append({"role": "system", "content": system})
    for message in given:
        if not isinstance(message, dict):
            return None
        messages += _messages_of_blocks(message)
    prompt = _of_parts(model, messages, _functions(asked.get("tools"), "input_schema"))
    counted = {name: asked[name] for name in _COUNTED_KEYS if asked.get(name) is not None}
    return msgspec.structs.replace(prompt, messages=counted)


def _messages_of_blocks(message: Json) -> list[Json]:
    """One message of Anthropic's shape as messages of a chat."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    results: list[Json] = []
    calls: list[Json] = []
    for block in blocks:
        if not isinstance(block, dict):
            continue
        if block.get("type") == "tool_use":
            arguments = msgspec.json.encode(block.get("input") or {}).decode()
            calls.append(_call(block.get("id"), block.get("name"), arguments))
        elif block.get("type") == "tool_result":
            said = _joined(block.get("content"))
            call_id = block.get("tool_use_id")
            results.append({"role": "tool", "tool_call_id": call_id, "content": said})
    text = _joined([block for block in blocks if _kind(block) == "text"], "")
    if not text and not calls:
        return results
    said_by: Json = {"role": message.get("role", "user"), "content": text}
    return [*results, said_by | ({"tool_calls": calls} if calls else {})]


def _kind(block: object) -> object:
    return block.get("type", "text") if isinstance(block, dict) else None


def _call(call_id: object, name: object, arguments: object) -> Json:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _functions(tools: object, schema: str) -> list[Json]:
    """The tools of a response or a message as a chat has them; others are the server's own."""
    functions = []
    for tool in tools if isinstance(tools, list) else []:
        if isinstance(tool, dict) and "name" in tool:
            function = {name: tool[name] for name in ("name", "description") if name in tool}
            function["parameters"] = tool.get(schema)
            functions.append({"type": "function", "function": function})
    return functions


def _of_parts(model: str, messages: list[Json], tools: list[Json]) -> Prompt:
    return Prompt(model=model, chat={"messages": messages} | ({"tools": tools} if tools else {}))


def _joined(content: object, between: str = "\n") -> str:
    """The text of a content, be it one string or parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part if isinstance(part, str) else part.get("text") for part in parts]
    return between.join(text for text in texts if isinstance(text, str))

"""What the gateway must know of a request body, and the body that goes on to the backend. Pure.

Nothing is checked that the gateway does not need: fields that it does not know pass untouched, byte
for byte. Only `stream_options` (and llama.cpp's `timings_per_token`) are ever added; to a form for
vLLM the two fields that stand there for `stream_options`.
"""

from typing import Final, Literal

import msgspec

from gateway.errors import BadRequest
from gateway.wire.endpoints import CHAT, COMPLETIONS, Endpoint
from gateway.wire.forms import form_of, with_fields
from ledger.events.envelope import COUNT_MAX

Engine = Literal["vllm", "sglang", "llamacpp", "openai"]
"""How a backend speaks; `openai` is any server that knows no more than OpenAI's own fields."""


class Asked(msgspec.Struct, frozen=True):
    """What a caller asked for. `held_out` is the caller's limit of output tokens, of all answers.

    `model`: empty if it was left out where that is allowed. `usage`: wants the usage chunk;
    `continuous`: usage on every chunk; `timings`: llama.cpp's. `own`: the body names a field that
    the gateway may have to add, with whatever value. `answers`: how many to each of `prompts`.
    """

    model: str
    stream: bool
    usage: bool
    continuous: bool
    timings: bool
    held_out: int | None
    own: bool = False
    answers: int = 1
    prompts: int = 1


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Body(msgspec.Struct):
    model: str
    stream: bool | None = None
    stream_options: _StreamOptions | msgspec.UnsetType | None = msgspec.UNSET
    # The backend judges these; the gateway only estimates with them, so any value is let through.
    timings_per_token: object = msgspec.UNSET
    max_tokens: object = None
    max_completion_tokens: object = None
    n: object = None
    n_cmpl: object = None  # llama.cpp's own name


class _Text(_Body):
    prompt: msgspec.Raw = msgspec.Raw(b"null")


class _Other(msgspec.Struct):
    """A body of any endpoint but chat and text completions."""

    model: str | None = None
    stream: bool | None = None
    background: bool | None = None
    stream_format: object = None
    timings_per_token: object = msgspec.UNSET
    max_tokens: object = None
    max_output_tokens: object = None


_decoder = msgspec.json.Decoder(_Body)
_text = msgspec.json.Decoder(_Text)
_other = msgspec.json.Decoder(_Other)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list = msgspec.json.Decoder(list[msgspec.Raw])
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_MODEL_CHARACTERS_MAX = 256
"""A model's name stands on events and bill lines; no engine needs a longer one."""


def asked(
    body: bytes, endpoint: Endpoint = CHAT, content_type: bytes = b"application/json"
) -> Asked:
    """What `body` asks `endpoint` for. Raises `BadRequest` that names the place of the fault."""
    if endpoint is not CHAT and endpoint is not COMPLETIONS:
        if endpoint.form == "multipart":
            return _asked_form(body, endpoint, content_type)
        return _asked_other(body, endpoint)
    try:
        found = _decoder.decode(body) if endpoint is CHAT else _text.decode(body)
    except _UNREADABLE as wrong:
        raise _refusal(wrong, body) from wrong
    if not 0 < len(found.model) <= _MODEL_CHARACTERS_MAX or not found.model.isprintable():
        raise _unfit_model()
    options = found.stream_options or None
    limit = found.max_completion_tokens or found.max_tokens
    wish = Asked(
        model=found.model,
        stream=bool(found.stream),
        usage=bool(options and options.include_usage),
        continuous=bool(options and options.continuous_usage_stats),
        timings=bool(found.timings_per_token),
        held_out=_held(limit, found.n),
        own=found.stream_options is not msgspec.UNSET
        or found.timings_per_token is not msgspec.UNSET,
    )
    if endpoint is CHAT and found.n is None and found.n_cmpl is None:
        return wish
    prompts = _prompts(found.prompt) if isinstance(found, _Text) else 1
    return msgspec.structs.replace(
        wish,
        answers=_answers(found.n, found.n_cmpl),
        prompts=prompts,
        held_out=_held(wish.held_out, prompts),
    )


def _answers(*said: object) -> int:
    """How many answers a backend may read out of `n`; vLLM takes a text of digits for a number."""
    counts = [1]
    for count in said:
        if isinstance(count, str) and count.strip().isdecimal() and len(count) < 16:
            count = int(count)
        if isinstance(count, int | float) and 1 < count < COUNT_MAX:
            counts.append(int(count))
    return max(counts)


def _prompts(prompt: msgspec.Raw) -> int:
    """How many prompts a text completion has: a list of them, unless it is one prompt as tokens."""
    said = bytes(prompt)
    # Tokens may be a million, and to look at each would hold up everybody.
    if not said.startswith(b"[") or said[1:].lstrip()[:1].isdigit():
        return 1
    parts = _list.decode(said)
    # llama.cpp takes texts and tokens mixed for one prompt.
    tokens = any(bytes(part)[:1] not in (b'"', b"[", b"{") for part in parts)
    return 1 if tokens else max(1, len(parts))


def _asked_other(body: bytes, endpoint: Endpoint) -> Asked:
    """As `asked`, of the other JSON bodies."""
    try:
        found = _other.decode(body)
    except _UNREADABLE as wrong:
        raise _refusal(wrong, body) from wrong
    if endpoint.dialect == "responses" and found.background:
        raise BadRequest(
            "An answer in the background comes later and by another path, where nobody would count "
            "its tokens. Send the request without 'background', streamed if it takes long.",
            code="cannot_be_metered",
            param="background",
        )
    if endpoint.dialect is None and found.stream:
        raise BadRequest(
            f"Answers of {endpoint.path} are not streamed. Send the request without 'stream'.",
            param="stream",
        )
    limit = found.max_output_tokens or found.max_tokens
    return Asked(
        model=_model(found.model, endpoint),
        stream=bool(found.stream)
        or (endpoint.dialect == "speech" and found.stream_format == "sse"),
        usage=False,
        continuous=False,
        timings=bool(found.timings_per_token),
        held_out=_held(limit, 1) if endpoint.generates else 0,
        own=found.timings_per_token is not msgspec.UNSET,
    )


_YES: Final = frozenset(("1", "on", "t", "true", "y", "yes"))
_NO: Final = frozenset(("", "0", "f", "false", "n", "no", "off"))
"""How a form says yes or no: as pydantic reads it, with which vLLM and SGLang check forms."""

_FLAT: Final = ("stream_include_usage", "stream_continuous_usage_stats")
"""Forms are flat, so vLLM takes the members of `stream_options` under these names."""


def _asked_form(body: bytes, endpoint: Endpoint, content_type: bytes) -> Asked:
    """As `asked`, of a form."""
    form = form_of(body, content_type)
    limit = form.value("max_completion_tokens") or ""
    usage, continuous = (form.value(name) for name in _FLAT)
    return Asked(
        model=_model(form.value("model"), endpoint),
        stream=_yes(form.value("stream"), "stream"),
        usage=_yes(usage, _FLAT[0]),
        continuous=_yes(continuous, _FLAT[1]),
        timings=False,
        held_out=_held(int(limit), 1) if limit.isdecimal() and len(limit) < 20 else None,
        own=usage is not None or continuous is not None,
    )


def _yes(value: str | None, name: str) -> bool:
    """Whether a form says yes."""
    said = (value or "").strip().lower()
    if said not in _YES and said not in _NO:
        raise BadRequest(f"The field '{name}' must be true or false.", param=name)
    return said in _YES


def _model(model: str | None, endpoint: Endpoint) -> str:
    """The model's name, empty if it was left out where that is allowed."""
    if model is None and endpoint.model_needed:
        raise _unfit("Object missing required field `model`")
    if model is None:
        return ""
    if not 0 < len(model) <= _MODEL_CHARACTERS_MAX or not model.isprintable():
        raise _unfit_model()
    return model


def _unfit_model() -> BadRequest:
    return BadRequest(
        f"model must have 1 to {_MODEL_CHARACTERS_MAX} characters, all of them printable.",
        param="model",
    )


def _refusal(wrong: Exception, body: bytes) -> BadRequest:
    """What is told of a body that cannot be read, with the place of the fault."""
    if isinstance(wrong, msgspec.ValidationError):
        return _unfit(str(wrong))
    if isinstance(wrong, RecursionError):
        return _malformed("it is nested too deeply")
    return _malformed(_placed(str(wrong), body))


def _held(limit: object, choices: object) -> int | None:
    """`limit` tokens for each of `choices` answers, as far as an event can hold the number."""
    if type(limit) is not int or limit <= 0:
        return None
    times = choices if type(choices) is int and choices > 1 else 1
    return min(limit * times, COUNT_MAX)


def _malformed(fault: str) -> BadRequest:
    return BadRequest(
        f"The request body is not valid JSON: {fault}. Send one JSON object.", code="invalid_json"
    )


def _placed(fault: str, body: bytes) -> str:
    """msgspec's message with the place, which it leaves out of two of its faults."""
    if "(byte " in fault:
        return fault
    try:
        body.decode()
    except UnicodeDecodeError as wrong:
        return f"{fault} (byte {wrong.start})"
    return f"{fault} (byte {len(body)})"


def _unfit(fault: str) -> BadRequest:
    """A readable form of msgspec's message: what was expected, what was found, and where."""
    param = None
    if "`$." in fault:
        param = fault.rsplit("`$.", 1)[1].rstrip("`")
    elif "required field `" in fault:
        param = fault.rsplit("required field `", 1)[1].rstrip("`")
    return BadRequest(f"The request body does not fit: {fault}.", param=param)


def forwarded(
    body: bytes,
    wish: Asked,
    engine: Engine,
    endpoint: Endpoint = CHAT,
    content_type: bytes = b"application/json",
) -> bytes:
    """The body for the backend: `body` with what the gateway needs to count, where it streams."""
    if not wish.stream:
        return body
    if endpoint is not CHAT and endpoint is not COMPLETIONS:
        return _forwarded_other(body, wish, engine, endpoint, content_type)
    added: dict[str, bytes] = {}
    options: dict[str, bool] = {}
    if not wish.usage:
        options["include_usage"] = True
    if engine in ("vllm", "sglang") and not wish.continuous:
        options["continuous_usage_stats"] = True
    if options:
        added["stream_options"] = msgspec.json.encode(options)
    if engine == "llamacpp" and not wish.timings:
        added["timings_per_token"] = b"true"
    if not added:
        return body
    if wish.own:
        return _merged(body, added, options)
    return _spliced(body, added)


def _forwarded_other(
    body: bytes, wish: Asked, engine: Engine, endpoint: Endpoint, content_type: bytes
) -> bytes:
    """As `forwarded`, where there are no `stream_options`."""
    if endpoint.form != "multipart" or engine != "vllm" or (wish.usage and wish.continuous):
        return body
    # Behind all others, because of two equal fields vLLM reads the last.
    return with_fields(body, content_type, dict.fromkeys(_FLAT, "true"))


def renamed(body: bytes, model: str) -> bytes:
    """A JSON body that names another model; the values of all its other members stay."""
    fields = _fields.decode(body)
    fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(fields)


def _spliced(body: bytes, added: dict[str, bytes]) -> bytes:
    """`added` behind the first brace; every byte of the caller's own stays where it was."""
    brace = body.index(b"{")
    members = b"".join(b'"%s":%s,' % (name.encode(), value) for name, value in added.items())
    return b"".join((body[: brace + 1], members, body[brace + 1 :]))


def _merged(body: bytes, added: dict[str, bytes], options: dict[str, bool]) -> bytes:
    """The rare form, where the caller sent some of these fields: the values of all others stay."""
    fields = _fields.decode(body)
    theirs = fields.get("stream_options")
    if options and theirs is not None and bytes(theirs) != b"null":
        merged = _fields.decode(theirs)
        merged.update({name: msgspec.Raw(msgspec.json.encode(on)) for name, on in options.items()})
        added["stream_options"] = msgspec.json.encode(merged)
    fields.update({name: msgspec.Raw(value) for name, value in added.items()})
    return msgspec.json.encode(fields)

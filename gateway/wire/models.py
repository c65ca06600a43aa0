"""`/v1/models`: what a backend's list says of it, and the list that a caller gets. Pure."""

from collections.abc import Iterable

import msgspec

from gateway.wire.requests import Engine
from gateway.wire.usage import UNREADABLE


class Listed(msgspec.Struct, frozen=True):
    """What a backend's own list tells: its models and, by `owned_by`, which engine it is."""

    models: tuple[str, ...]
    engine: Engine


class _Model(msgspec.Struct):
    id: str
    owned_by: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


_OWNERS: dict[str, Engine] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}
_decoder = msgspec.json.Decoder(_Models)


def listed(body: bytes) -> Listed | None:
    """What the list in `body` says; null if it is no model list."""
    try:
        found = _decoder.decode(body)
    except UNREADABLE:
        return None
    engines = {_OWNERS.get((model.owned_by or "").lower(), "openai") for model in found.data}
    engine: Engine = engines.pop() if len(engines) == 1 else "openai"
    return Listed(tuple(model.id for model in found.data), engine)


def model_list(models: Iterable[str]) -> bytes:
    """The list in OpenAI's shape. Nothing of a backend but the model's name is shown."""
    data = [
        {"id": model, "object": "model", "created": 0, "owned_by": "tollbook"} for model in models
    ]
    return msgspec.json.encode({"object": "list", "data": data})

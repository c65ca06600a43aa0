"""What llama.cpp's page `/slots` says: how many of its places work, and how full they are. Pure.

It stands in for what its metrics lack: a share of the KV cache in use since May 2025, and all of
them where the server was started without `--metrics`.
"""

from typing import Final

import msgspec

from gateway.wire.usage import UNREADABLE
from ledger.events.envelope import COUNT_MAX


class Slots(msgspec.Struct, frozen=True):
    """`running`: slots at work, one request each. `kv_usage`: tokens that these hold, as a share
    of what all slots can hold, 0 to 1; null in versions that do not tell the tokens."""

    running: int
    kv_usage: float | None


class _Slot(msgspec.Struct):
    """One slot, as far as it is read. `state` is what versions before 2024-10 said: 0 is idle.

    `n_prompt_tokens` counts what was generated, too, as long as the slot works.
    """

    is_processing: bool | None = None
    state: int | None = None
    n_ctx: int = 0
    n_prompt_tokens: int | None = None

    def works(self) -> bool:
        """True while a request has this slot."""
        return bool(self.state) if self.is_processing is None else self.is_processing


_decoder: Final = msgspec.json.Decoder(list[_Slot])


def read_slots(page: bytes) -> Slots | None:
    """What `page` says; null if it is no such page. It never raises.

    Slots that share one cache each tell of all of it, so the share is then too small by their
    number. It is so for all servers that are started alike, and is only compared.
    """
    try:
        slots = _decoder.decode(page)
    except UNREADABLE:
        return None
    if not slots or any(slot.is_processing is None and slot.state is None for slot in slots):
        return None
    at_work = [slot for slot in slots if slot.works()]
    room = sum(slot.n_ctx for slot in slots)
    held = [slot.n_prompt_tokens for slot in at_work if slot.n_prompt_tokens is not None]
    tokens = sum(held)
    if not (0 < room <= COUNT_MAX and 0 <= tokens <= COUNT_MAX):
        return Slots(len(at_work), None)
    if len(held) < len(at_work) or min(held, default=0) < 0:
        return Slots(len(at_work), None)
    return Slots(len(at_work), min(tokens / room, 1.0))

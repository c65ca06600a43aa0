"""How the fake backend is to treat one request: read from the model's name. Pure.

A model name such as `fake-d20-n200-i5000-k50` is a base name and then flags, a letter and a number
each, so that any gateway which passes the name on can be driven without a word of configuration.
"""

import re

import msgspec

LATE = 9999
"""As `cut` or `stall`: behind the last event of a stream, whose end then never comes."""

FLAG = re.compile(r"([a-z])(\d+)")


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """One request's treatment. Null means that this does not happen; the letter is the flag.

    `usage` is 0 as asked, 1 always, 2 never, 3 twice (the first without details, as vLLM may), 4 in
    an event without choices of its own. `wrong` makes the usage a lie: 1 more cached than prompt
    tokens, 2 a negative count, 3 text for a number, 4 no object at all, 5 too few completion
    tokens. `k`, `g` and `x` may be the number of all chunks: then it happens behind the last token
    and before the usage. `LATE` is behind all of it.
    """

    delay_ms: int = 0  # d: before the first byte
    chunks: int = 4  # n: content chunks of each choice
    per_chunk: int = 1  # t: completion tokens in a chunk, as speculative decoding has it
    interval_us: int = 0  # i: between two chunks; 0 is as fast as the socket takes them
    prompt: int = 12  # p: prompt tokens
    cached: int = 0  # c: of these, found in the cache
    written: int = 0  # v: of these, written into a cache
    reasoning: int = 0  # r: of the completion tokens of each choice, the first that are reasoning
    per_write: int = 1  # b: chunks in one write
    slice_bytes: int = 0  # s: send each write in slices of so many bytes; 0 is whole
    big_kib: int = 0  # m: the first token's text is so many KiB long
    packed: int = 0  # j: the answer is compressed although nobody asked: 1 gzip, 2 deflate
    usage: int = 0  # u
    wrong: int = 0  # w
    details: bool = False  # f1: the usage also tells audio and prediction tokens
    running: bool = False  # q1: running usage on every chunk although nobody asked
    tools: bool = False  # l1: the tokens that are no reasoning are a tool call's arguments
    accents: bool = False  # a1: words hold characters of two and of four bytes, not escaped
    crlf: bool = False  # y1, y3: events end with CRLF CRLF
    open_end: bool = False  # y2, y3: the last event of a stream has no line end
    pings: bool = False  # o1: a comment line before every chunk
    done: bool = True  # z1: the closing [DONE], or the event that ends the stream, never comes
    status: int | None = None  # e: answer with this HTTP status instead
    cut: int | None = None  # k: break the connection off after so many chunks
    stall: int | None = None  # g: send nothing more after so many chunks, connection stays open
    error: int | None = None  # x: an error event after so many chunks, inside the 200
    hang: bool = False  # h1: never answer


_NUMBERS = {
    "d": "delay_ms",
    "n": "chunks",
    "t": "per_chunk",
    "i": "interval_us",
    "p": "prompt",
    "c": "cached",
    "v": "written",
    "r": "reasoning",
    "b": "per_write",
    "s": "slice_bytes",
    "m": "big_kib",
    "j": "packed",
    "u": "usage",
    "w": "wrong",
    "e": "status",
    "k": "cut",
    "g": "stall",
    "x": "error",
}
_SWITCHES = {
    "q": "running",
    "o": "pings",
    "h": "hang",
    "f": "details",
    "l": "tools",
    "a": "accents",
}


def parse(model: str) -> Script:
    """The script that the name `model` spells; what is no flag in it says nothing."""
    found = {m[1]: int(m[2]) for part in model.split("-") if (m := FLAG.fullmatch(part))}
    values: dict[str, int | bool] = {
        field: found[letter] for letter, field in _NUMBERS.items() if letter in found
    }
    values |= {field: bool(found[letter]) for letter, field in _SWITCHES.items() if letter in found}
    if "z" in found:
        values["done"] = not found["z"]
    if "y" in found:
        values |= {"crlf": bool(found["y"] & 1), "open_end": bool(found["y"] & 2)}
    return msgspec.convert(values, Script)


def spell(script: Script) -> str:
    """The flags that `parse` reads as `script`, as short as they can be."""
    plain = Script()
    flags = []
    for letter, field in (_NUMBERS | _SWITCHES | {"z": "done"}).items():
        value = getattr(script, field)
        if value != getattr(plain, field):
            flags.append(f"{letter}{int(not value) if letter == 'z' else int(value)}")
    if script.crlf or script.open_end:
        flags.append(f"y{script.crlf + 2 * script.open_end}")
    return "-".join(flags)

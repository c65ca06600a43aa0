"""How the fake backend is to treat one request: read from the model's name. Pure.

A model name such as `fake-d20-n200-i5000-k50` is a base name and then flags, a letter and a number
each, so that any gateway which passes the name on can be driven without a word of configuration.
"""

import re

import msgspec

FLAG = re.compile(r"([a-z])(\d+)")


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """One request's treatment. Null means that this does not happen; the letter is the flag.

    `usage` is 0 as asked, 1 always, 2 never, 3 twice (the first without details, as vLLM may).
    `wrong` makes the usage a lie: 1 more cached than prompt tokens, 2 a negative count, 3 text for
    a number, 4 no object at all, 5 too few completion tokens.
    """

    delay_ms: int = 0  # d: before the first byte
    chunks: int = 4  # n: content chunks, which is also the number of completion tokens
    interval_us: int = 0  # i: between two chunks; 0 is as fast as the socket takes them
    prompt: int = 12  # p: prompt tokens
    cached: int = 0  # c: of these, found in the cache
    reasoning: int = 0  # r: of the completion tokens, the first that are reasoning
    per_write: int = 1  # b: chunks in one write
    slice_bytes: int = 0  # s: send each write in slices of so many bytes; 0 is whole
    usage: int = 0  # u
    wrong: int = 0  # w
    running: bool = False  # q1: running usage on every chunk although nobody asked
    crlf: bool = False  # y1: events end with CRLF CRLF
    pings: bool = False  # o1: a comment line before every chunk
    done: bool = True  # z1: the closing [DONE] never comes
    status: int | None = None  # e: answer with this HTTP status instead
    cut: int | None = None  # k: break the connection off after so many chunks
    stall: int | None = None  # g: send nothing more after so many chunks, connection stays open
    error: int | None = None  # x: an error event after so many chunks, inside the 200
    hang: bool = False  # h1: never answer


def parse(model: str) -> Script:
    """The script that the name `model` spells; what is no flag in it says nothing."""
    found = {m[1]: int(m[2]) for part in model.split("-") if (m := FLAG.fullmatch(part))}
    numbers = {
        "d": "delay_ms",
        "n": "chunks",
        "i": "interval_us",
        "p": "prompt",
        "c": "cached",
        "r": "reasoning",
        "b": "per_write",
        "s": "slice_bytes",
        "u": "usage",
        "w": "wrong",
        "e": "status",
        "k": "cut",
        "g": "stall",
        "x": "error",
    }
    switches = {"q": "running", "y": "crlf", "o": "pings", "h": "hang"}
    values: dict[str, int | bool] = {
        field: found[letter] for letter, field in numbers.items() if letter in found
    }
    values |= {field: bool(found[letter]) for letter, field in switches.items() if letter in found}
    if "z" in found:
        values["done"] = not found["z"]
    return msgspec.convert(values, Script)

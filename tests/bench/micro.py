"""What the parts of the request path cost on their own: `python -m tests.bench.micro`.

Microseconds, the best of five repetitions. The stream meter is given reads of 1, 10 and 100 chunks.
"""

import tempfile
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from gateway.backends.pool import Backend
from gateway.call import Call
from gateway.routing.policy import BackendView, Wanted, choose
from gateway.wire.endpoints import BY_NAME, CHAT
from gateway.wire.meters import make_meter
from gateway.wire.requests import Asked, Engine, asked
from gateway.wire.usage import usage_of_answer
from ledger.clock import SystemClock
from ledger.events import Usage
from streams.log.spool import SpoolWriter

BODY = b'{"model":"fake-n16","messages":[{"role":"user","content":"hello"}],"max_tokens":512}'
ANSWER = (
    b'{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":" tok tok tok tok"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":12,"completion_tokens":4,"total_tokens":16}}'
)
CHUNK = (
    b'data: {"id":"chatcmpl-b0-1abcdefghijkl","object":"chat.completion.chunk",'
    b'"created":1795973691,"model":"fake-n500","choices":[{"index":0,'
    b'"delta":{"content":" t123"},"logprobs":null,'
    b'"finish_reason":null}]}\n\n'
)
RUNNING = CHUNK[:-3] + b',"usage":{"prompt_tokens":12,"total_tokens":17,"completion_tokens":5}}\n\n'
TIMED = CHUNK[:-3] + (
    b',"timings":{"cache_n":3,"prompt_n":9,"prompt_ms":1.5,"predicted_n":5,"predicted_ms":2.5}}\n\n'
)
RESPONSE = (
    b"event: response.output_text.delta\ndata: "
    b'{"type":"response.output_text.delta","sequence_number":17,"item_id":"msg_0123456789abcdef",'
    b'"output_index":0,"content_index":0,"delta":" t123","logprobs":[]}\n\n'
)
MESSAGE = (
    b"event: content_block_delta\ndata: "
    b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" t123"}}\n\n'
)
TRANSCRIPT = b'data: {"type":"transcript.text.delta","delta":" t123"}\n\n'
SPEECH = b'data: {"type":"speech.audio.delta","audio":"' + b"A" * 4096 + b'"}\n\n'
ONE = Asked("m", stream=True, usage=False, continuous=False, timings=False, held_out=None)
TWO = msgspec.structs.replace(ONE, answers=2)
STREAMS: tuple[tuple[str, str, Engine, Asked, bytes], ...] = (
    ("chat, openai", "chat/completions", "openai", ONE, CHUNK),
    ("chat, vllm", "chat/completions", "vllm", ONE, RUNNING),
    ("chat, llamacpp", "chat/completions", "llamacpp", ONE, TIMED),
    ("chat of two answers, vllm", "chat/completions", "vllm", TWO, RUNNING),
    ("responses", "responses", "vllm", ONE, RESPONSE),
    ("messages", "messages", "vllm", ONE, MESSAGE),
    ("transcription", "audio/transcriptions", "openai", ONE, TRANSCRIPT),
    ("speech, 4 KiB each", "audio/speech", "openai", ONE, SPEECH),
)
NUMBER, REPEAT = 5_000, 5
BACKENDS = 64


def main() -> None:
    """Measure and print."""
    table = Table(title="parts of the request path, µs")
    table.add_column("part")
    table.add_column("µs", justify="right")
    with tempfile.TemporaryDirectory() as place:
        spool = SpoolWriter.create(
            Path(place) / "a1", "/gateway/bench/a1", clock=SystemClock(), limit_bytes=4 << 30
        )
        for name, part in parts(spool).items():
            seconds = min(timeit.repeat(part, number=NUMBER, repeat=REPEAT)) / NUMBER
            table.add_row(name, f"{seconds * 1e6:.2f}")
        spool.close()
    for kind, name, engine, wish, chunk in STREAMS:
        for count in (1, 10, 100):
            table.add_row(
                f"meter, {kind}, {count} chunks a read, per chunk",
                f"{meter_seconds(name, engine, wish, chunk, count) * 1e6:.2f}",
            )
    Console().print(table)


def parts(spool: SpoolWriter) -> dict[str, Callable[[], object]]:
    """Each part as a call without arguments."""
    wish, now = asked(BODY), SystemClock().now()
    backend = Backend("b", "http://x", key=None, engine=None, models=None, any_model=True)
    call = Call("req_" + "a" * 32, "key_" + "b" * 32, CHAT, wish, 1.0, body=BODY)
    call.choice = choose(Wanted("r", "m"), [backend.view(0.0)])
    accepted = call.accepted(now, 1800.0, None, None)
    attempted = call.attempted(now, backend, None)
    usage = Usage(uncached_in=12, cached_in=0, cache_write_in=0, reasoning_out=0, other_out=4)
    finished = call.finish(now, 2.0, "completed", status=200, counted=("reported", usage))
    return {
        "look at the request body": lambda: asked(BODY),
        "choose among one backend": lambda: choose(Wanted("r", "m"), [backend.view(0.0)]),
        **{
            f"choose among {BACKENDS} backends, {name}": partial(choose, Wanted("r", "m"), views)
            for name, views in crowds().items()
        },
        f"views of {BACKENDS} backends": lambda: [backend.view(0.0) for _ in range(BACKENDS)],
        "append accepted and attempted": lambda: spool.append(accepted, attempted),
        "usage of a plain answer": lambda: usage_of_answer(ANSWER),
        "append finished": lambda: spool.append(finished),
    }


def crowds() -> dict[str, list[BackendView]]:
    """Backends among which it is not easy to choose."""
    models = frozenset(("m",))
    idle = [BackendView(f"b-{n:02}", models, up=True, in_flight=0) for n in range(BACKENDS)]
    change, numbered = msgspec.structs.replace, list(enumerate(idle))
    busy = [
        change(one, in_flight=n % 7, running=9, waiting=n % 3, kv_usage=n / 100, picked=2)
        for n, one in numbered
    ]
    rising = [change(one, weight=100 - n % 8) for n, one in enumerate(busy)]
    mixed = [change(one, waiting=None, kv_usage=None, weight=100 - n) for n, one in enumerate(busy)]
    return {
        "all equal and silent": idle,
        "one best by what engines tell": busy,
        "of eight weights": rising,
        "each of its own weight and silent": mixed,
    }


def meter_seconds(name: str, engine: Engine, wish: Asked, chunk: bytes, count: int) -> float:
    """Seconds for one chunk, when `count` of them come in one read."""
    meter = make_meter(BY_NAME[name], wish, engine)
    read, number = chunk * count, max(1, NUMBER // count)
    taken = timeit.repeat(lambda: meter.feed(read), number=number, repeat=REPEAT)
    return min(taken) / number / count


if __name__ == "__main__":
    main()

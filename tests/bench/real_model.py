"""The measurement on a real llama.cpp server: does the gateway slow a real answer down?

The same prompt, greedy, direct and through the gateway in turns; tokens per second from the request
to the last byte. Two cores serve the engine, the gateway and this program, so the engine is given
one thread: what is measured is then the gateway and not a fight for the second core.
"""

import http.client
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlparse

from tests.bench.machinery import BACKEND_KEY, Served, tollbook
from tests.bench.measures import Figure
from tests.support.llama import llama_server

TOKENS = 96
PAIRS_PER_ROUND = 8
PROMPT = "Write a long story about a lighthouse keeper who counts the ships that pass."


def figures(place: Path, rounds: int, say: Callable[[str], None]) -> list[Figure]:
    """Tokens per second through the gateway as a share of direct, the median over all pairs."""
    say("the real llama.cpp server, direct and through the gateway in turns …")
    with llama_server(key=BACKEND_KEY, threads=1) as url:
        direct = Served("direct", url, BACKEND_KEY, 0)
        with tollbook(direct, place / "model") as ours:
            sides = (direct, ours)
            for side in sides:
                _tokens_per_second(side)
            pairs: list[tuple[float, float]] = []
            for number in range(rounds * PAIRS_PER_ROUND):
                order = sides if number % 2 == 0 else sides[::-1]
                speed = {side.name: _tokens_per_second(side) for side in order}
                pairs.append((speed["direct"], speed["tollbook"]))
    return [
        Figure(
            f"llama.cpp tokens/s, {len(pairs)} pairs",
            statistics.median(one for one, _ in pairs),
            None,
            statistics.median(other for _, other in pairs),
            statistics.median(other / one for one, other in pairs),
            0.997,
            at_most=False,
        )
    ]


def _tokens_per_second(side: Served) -> float:
    """One streamed answer of `TOKENS` tokens."""
    place = urlparse(side.url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=120)
    body = {
        "model": "gemma-3-270m",
        "prompt": PROMPT,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"authorization": f"Bearer {side.key}", "content-type": "application/json"}
    began = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    answer = connection.getresponse().read()
    lasted = time.perf_counter() - began
    connection.close()
    usage = [
        json.loads(line[6:]).get("usage")
        for line in answer.decode().splitlines()
        if line.startswith("data: {")
    ]
    made = next(said["completion_tokens"] for said in reversed(usage) if said)
    if made != TOKENS:
        raise SystemExit(f"the model made {made} tokens instead of {TOKENS}")
    return float(made) / lasted

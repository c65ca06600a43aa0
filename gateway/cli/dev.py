"""`tollbook dev`: everything that several machines would run, on this one, until Ctrl-C."""

import asyncio
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gateway.cli.demo import watch
from gateway.cli.options import NAMES
from gateway.cli.output import pairs_text
from gateway.cli.place import place_of
from gateway.settings import cache_folder
from ledger.clock import SystemClock

if TYPE_CHECKING:
    from gateway.dev.world import World
    from gateway.wards.ward import Ward

DATA_DEFAULT: Final = Path("tollbook-dev")
PORT_DEFAULT: Final = 8080
HOST: Final = "127.0.0.1"


@click.command("dev", short_help="Run Kafka, Postgres and all processes on this machine.")
@click.option(
    "--kafka",
    "with_kafka",
    is_flag=True,
    help="Start Apache Kafka and Postgres; what needs neither is `tollbook serve`.",
)
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="URL",
    help="A model server, with or without /v1. Without one, no gateway is started.",
)
@click.option(
    "--backend-key", "keys", multiple=True, metavar="KEY", help="As for `tollbook serve`."
)
@click.option("--models", type=NAMES, metavar="A,B", help="As for `tollbook serve`.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT_DEFAULT,
    show_default=True,
    metavar="N",
    help="Port of the gateway; 0: a free one.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=DATA_DEFAULT,
    show_default=True,
    metavar="DIR",
    help="Where everything is kept; a second run goes on with it.",
)
def command(
    with_kafka: bool,
    backends: tuple[str, ...],
    keys: tuple[str, ...],
    models: tuple[str, ...] | None,
    port: int,
    data: Path,
) -> int:
    """Run a real Kafka, a real Postgres, the ledger writer, a worker and a gateway on this machine,
    until Ctrl-C. Needs the extra `dev`; Kafka's jars are fetched once."""
    if not with_kafka:
        raise click.UsageError(
            "nothing to start; give --kafka, or run `tollbook serve`, which needs neither"
        )
    from gateway.dev.world import world
    from gateway.wards.ports import take_port

    data = data.absolute()
    data.mkdir(parents=True, exist_ok=True)
    typed = [f"--backend={url}" for url in backends] + [f"--backend-key={key}" for key in keys]
    typed += [f"--models={','.join(models)}"] if models else []
    # Also where a shell that started this in the background has SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    # Here Ctrl-C is the way to end it, and no failure.
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        port = take_port(HOST, port, "--port") if backends else port
        servers = stack.enter_context(world(data, cache_folder(), tell))
        make_topics(data, servers)
        wards = [stack.enter_context(process(data, servers, "write"))]
        wards.append(stack.enter_context(process(data, servers, "worker")))
        if backends:
            options = [*typed, f"--port={port}", f"--data={data / 'gateway'}"]
            wards.append(stack.enter_context(process(data, servers, "serve", *options)))
            tell("waiting until the gateway is ready")
            wait_for_gateway(wards[-1], port)
        click.echo(text(servers, data, port if backends else None))
        watch(wards)
    return 0


def tell(what: str) -> None:
    """Say which step is at work."""
    click.echo(f"tollbook dev: {what}", err=True)


def make_topics(data: Path, servers: "World") -> None:
    """Make the topics that are missing."""
    from streams.kafka.admin import create_topics

    tell("making topics")
    access = place_of(data, servers.config, None, None).need_kafka()
    asyncio.run(create_topics(access))


@contextmanager
def process(data: Path, servers: "World", verb: str, *options: str) -> Iterator["Ward"]:
    """`tollbook VERB` for the length of the block; what it says is in a file beside its data."""
    from gateway.wards.ward import leashed

    tell(f"starting tollbook {verb}")
    tollbook = [sys.executable, "-m", "gateway.cli", verb, f"--config={servers.config}"]
    # Said again, because TOLLBOOK_KAFKA and TOLLBOOK_LEDGER, which may name other servers than
    # those that were started here, stand over a file.
    tollbook += [f"--kafka={servers.kafka}", f"--ledger={servers.ledger}"]
    if verb != "serve":
        options = (*options, f"--data={data / 'gateway'}")
    log = data / f"{verb}.log"
    with leashed(f"tollbook {verb}", [*tollbook, *options], log) as started:
        yield started


def wait_for_gateway(gateway: "Ward", port: int) -> None:
    """Until its door is ready. Raises `WardFailed` if it ends or takes too long."""
    from gateway.demo.clients import fetch

    def ready() -> bool:
        try:
            return fetch(f"http://{HOST}:{port}/health/ready", None)[0] == 200
        except OSError:
            return False

    gateway.wait_until(ready, SystemClock())


def text(servers: "World", data: Path, port: int | None) -> str:
    """Where everything is, and how commands reach it. Pure."""
    config, own = shlex.quote(str(servers.config)), shlex.quote(str(data / "gateway"))
    where = f"--config {config} --data {own}"
    door = "not started: give --backend URL" if port is None else f"http://{HOST}:{port}/v1"
    return "\n".join(
        (
            pairs_text(
                [
                    ("gateway", door),
                    ("Kafka", servers.kafka),
                    ("ledger", servers.ledger),
                    ("logs", f"{data}/*.log, {data}/*/*.log"),
                ]
            ),
            "",
            "Ctrl-C ends everything. Until then:",
            f"  tollbook keys create --name me {where}",
            f"  tollbook bill {where}",
            f"  tollbook topics check {where}",
        )
    )

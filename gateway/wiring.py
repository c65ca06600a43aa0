"""Settings to real objects and processes: with the worker's entry, the only place that does it.

One worker: this process serves. Several: it binds the door, starts a process for each worker and
only watches them. Either way it keeps alive what empties the spools: the embedded runner, or the
relay to Kafka.
"""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec
import uvloop

from gateway.books import Books
from gateway.http.server import BACKLOG
from gateway.kafka_access import access_of
from gateway.reconciled import reconcile_gauges
from gateway.registry import KafkaFed, LocalRegistry, Registry
from gateway.relayed import relay_gauges, relay_missing
from gateway.secrets import hash_key
from gateway.service import Service, backends_of
from gateway.settings import Settings, resolve_secret
from gateway.start_line import start_line
from gateway.supervisor.child import Child
from ledger.clock import Clock, SystemClock
from ledger.identity import mint_id
from streams.errors import KafkaError, TopicsWrong
from streams.local.layout import Layout
from streams.local.routed import RoutedFile
from streams.log.registry import RegistryTail
from streams.log.spool import SpoolWriter

log = logging.getLogger("tollbook")

RUNNER_STOP_SECONDS_MAX = 20.0
"""At the end the runner or relay takes the rest of the spool; that is seconds at most."""

READER_STOP_SECONDS_MAX = 3.0
"""The reader holds nothing; a question that it still answers has lost its client by then."""

ENDING_SECONDS_MAX = 10.0
"""Beyond a worker's grace: closing its spool and its connections."""

UNREAD_SECONDS_MAX = 300
"""A client that takes no byte of its answer for this long has its connection ended by the kernel:
what is written for it would else stay in memory for as long as it likes."""

KAFKA_SECONDS_MAX = 10.0
"""At the start, for the check of the topics; a Kafka that is away must not keep the door closed."""

OPEN_FILES_WANTED = 65_536
"""A request in flight takes two, and most systems begin with a soft limit of 1,024: from some 500
streams on no backend could be reached any more."""

GC_OBJECTS = 20_000
"""New objects between two collections of the youngest generation; Python's own default is 700."""


def serve(settings: Settings, data: Path) -> int:
    """Serve until SIGTERM or Ctrl-C. Returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="tollbook: %(message)s", stream=sys.stderr)
    try:
        doors = open_doors(settings.gateway.host, settings.gateway.port, settings.gateway.workers)
    except OSError as refused:
        print(f"tollbook: {_no_door(settings, refused)}", file=sys.stderr)
        return 1
    for backend in settings.backends:
        if backend.key is not None:
            resolve_secret(backend.key)
    check_kafka(settings)
    Layout(data).make()
    raise_file_limit()
    main = _serve_here if settings.gateway.workers == 1 else _serve_by_workers
    with contextlib.ExitStack() as stack:
        for door in doors:
            stack.enter_context(door)
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        runner.run(main(settings, data, doors))
    return 0


def check_kafka(settings: Settings) -> None:
    """Raises `TopicsWrong` if topics are not as the table says. With Kafka away it says so and goes
    on: the gateway serves from its snapshot, and spools."""
    access = access_of(settings.kafka)
    if access is None:
        return
    # Only here: an embedded installation needs no Kafka client.
    from streams.kafka.admin import check_topics

    async def check() -> None:
        async with asyncio.timeout(KAFKA_SECONDS_MAX):
            await check_topics(access)

    try:
        asyncio.run(check())
    except TopicsWrong:
        raise
    except (KafkaError, TimeoutError) as away:
        said = str(away) or f"Kafka at {access.where} does not answer"
        log.warning("%s; serving begins without it", said)


def open_doors(host: str, port: int, workers: int) -> list[socket.socket]:
    """One listening socket for each worker, all on one port. Raises `OSError` if it is taken.

    Linux spreads connections evenly over sockets of their own; of one shared socket a worker takes
    all that wait whenever it looks. The first is bound alone, to see whether the port is free.
    """
    first = bind(host, port)
    if workers == 1 or sys.platform != "linux":
        return [first] * workers
    port = first.getsockname()[1]
    first.close()
    return [bind(host, port, shared=True) for _ in range(workers)]


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket; `shared` lets others that ask for it have the same port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    door = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Without this a restart would wait for connections of the last run to fade out; a door
        # that somebody listens on stays taken all the same.
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Both are inherited by every connection that comes in.
        door.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sys.platform == "linux":
            door.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_SECONDS_MAX * 1000)
        if shared:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        door.bind((host, port))
        door.listen(BACKLOG)
    except OSError:
        door.close()
        raise
    return door


def raise_file_limit() -> None:
    """Take as many open files as this user may have, up to `OPEN_FILES_WANTED`; children inherit
    it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Some systems refuse what they say they allow; then it stays as it was.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def make_service(
    settings: Settings,
    data: Path,
    clock: Clock,
    children: Iterable[Child] = (),
    number: int | None = None,
) -> Service:
    """The parts of one serving process, the `number`th of several, or the only one. Call it inside
    the running event loop."""
    layout = Layout(data)
    incarnation = mint_id()
    journal = SpoolWriter.create(
        layout.spool(incarnation),
        f"/gateway/{settings.gateway.name}/{incarnation}",
        clock=clock,
        limit_bytes=settings.spool.limit_bytes,
        reserve_bytes=settings.spool.reserve_bytes,
        durability=settings.spool.durability,
    )

    def gauges() -> Iterable[tuple[str, str, dict[str, str], float]]:
        for child in children:
            label = {"process": child.name}
            yield "tollbook_process_up", "1 if the process runs.", label, child.alive
            yield "tollbook_process_restarts", "Times it was restarted.", label, child.restarts
        if settings.kafka.bootstrap:
            yield from relay_gauges(data, clock)
        else:
            yield from reconcile_gauges(data, clock)

    def missing() -> Iterable[str]:
        return relay_missing(data) if settings.kafka.bootstrap else ()

    return Service(
        settings,
        journal,
        registry_of(settings, layout, clock),
        backends_of(settings, resolve_secret),
        clock,
        hash_key(data),
        gauges,
        settings.gateway.name if number is None else f"{settings.gateway.name}#{number}",
        missing,
        books=Books(layout.reader_socket if knows_ledger(settings) else None),
        leads=number in (None, 0),
    )


def registry_of(settings: Settings, layout: Layout, clock: Clock) -> Registry:
    """Where this installation's keys and prices come from."""
    access = access_of(settings.kafka)
    if access is None:
        return LocalRegistry(RegistryTail(layout.registry_log), RoutedFile(layout))
    # Only here: an embedded installation needs no Kafka client.
    from streams.kafka.feed import Feed

    return KafkaFed(Feed(access, layout.feed, clock))


def emptier(settings: Settings, data: Path, clock: Clock) -> Child:
    """What empties the data directory's spools: the relay if Kafka is set, else the runner."""
    make = relay_child if settings.kafka.bootstrap else runner_child
    return make(settings, data, clock)


def relay_child(settings: Settings, data: Path, clock: Clock) -> Child:
    """The data directory's relay: spools to Kafka, in its own process."""
    argv = [sys.executable, "-m", "gateway.cli", "relay", "--data", str(data)]
    return Child(
        "relay",
        [*argv, "--settings-on-stdin", "--stop-on-stdin-eof"],
        clock,
        first_line=msgspec.json.encode(settings) + b"\n",
    )


def runner_child(settings: Settings, data: Path, clock: Clock) -> Child:
    """The data directory's runner: spools to ledger, in its own process."""
    argv = [sys.executable, "-m", "gateway.cli", "runner", "--data", str(data)]
    argv += ["--keep-bytes", str(settings.spool.keep_bytes)]
    argv += ["--durability", settings.spool.durability, "--name", settings.gateway.name]
    if settings.ledger.url is not None:
        argv += ["--ledger", settings.ledger.url]
    return Child("runner", [*argv, "--stop-on-stdin-eof"], clock)


def knows_ledger(settings: Settings) -> bool:
    """True unless only Kafka is set: then others keep the ledger, and nobody said where."""
    return not settings.kafka.bootstrap or settings.ledger.url is not None


def readers(settings: Settings, data: Path, clock: Clock) -> list[Child]:
    """The process that looks into the ledger for the usage APIs; none where there is no ledger."""
    if not knows_ledger(settings):
        return []
    argv = [sys.executable, "-m", "gateway.cli", "reader", "--data", str(data)]
    if settings.ledger.url is not None:
        argv += ["--ledger", settings.ledger.url]
    return [Child("reader", [*argv, "--stop-on-stdin-eof"], clock)]


async def _serve_here(settings: Settings, data: Path, doors: list[socket.socket]) -> None:
    (door,) = doors
    clock = SystemClock()
    runner, reading = emptier(settings, data, clock), readers(settings, data, clock)
    service = make_service(settings, data, clock, [runner, *reading])
    tune_garbage_collection()
    for child in (runner, *reading):
        child.start()

    def ready(service: Service) -> None:
        models, backends = service.models_shown(), service.backend_count()
        print(start_line(settings, door.getsockname()[1], models, backends), flush=True)

    try:
        await service.run(door, ready)
    finally:
        await _stop(runner, reading)


async def _stop(runner: Child, reading: Iterable[Child]) -> None:
    await asyncio.gather(
        runner.stop(RUNNER_STOP_SECONDS_MAX),
        *(reader.stop(READER_STOP_SECONDS_MAX) for reader in reading),
    )


async def _serve_by_workers(settings: Settings, data: Path, doors: list[socket.socket]) -> None:
    clock = SystemClock()
    runner, reading = emptier(settings, data, clock), readers(settings, data, clock)
    workers = [
        Child(
            f"worker {number}",
            [sys.executable, "-m", "gateway.worker", str(door.fileno()), str(data), str(number)],
            clock,
            first_line=msgspec.json.encode(settings) + b"\n",
            pass_fds=[door.fileno()],
        )
        for number, door in enumerate(doors)
    ]
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    for child in (runner, *reading, *workers):
        child.start()
    print(start_line(settings, doors[0].getsockname()[1], None), flush=True)
    await stopped.wait()
    for door in doors:
        door.close()
    grace = settings.gateway.shutdown_seconds_max + ENDING_SECONDS_MAX
    await asyncio.gather(*(worker.stop(grace) for worker in workers))
    await _stop(runner, reading)


async def serve_as_worker(settings: Settings, data: Path, door: socket.socket, number: int) -> None:
    """One of several serving processes: ends at SIGTERM, or when its parent is gone."""
    service = make_service(settings, data, SystemClock(), number=number)
    tune_garbage_collection()
    loop = asyncio.get_running_loop()

    def parent_may_be_gone() -> None:
        with contextlib.suppress(BlockingIOError):
            if not os.read(sys.stdin.fileno(), 1024):
                loop.remove_reader(sys.stdin.fileno())
                service.server.stop()

    os.set_blocking(sys.stdin.fileno(), False)
    loop.add_reader(sys.stdin.fileno(), parent_may_be_gone)
    await service.run(door, lambda _: None)


def tune_garbage_collection() -> None:
    """Collect seldom. A request leaves few cycles behind, and looking for them cost 6 % of the CPU.

    What exists now lives as long as the process and need never be looked at again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_OBJECTS, 20, 50)


def _no_door(settings: Settings, refused: OSError) -> str:
    host, port = settings.gateway.host, settings.gateway.port
    if refused.errno == errno.EADDRINUSE:
        advice = (
            "If another program has this port (perhaps a gateway that is still running), stop it "
            "or give another one by --port; --port 0 takes a free one"
        )
    elif refused.errno in (errno.EACCES, errno.EPERM):
        advice = "This user may not have this port; give one from 1024 up by --port"
    else:
        advice = (
            "Give by --host an address of this machine, without brackets: 127.0.0.1 or ::1 for "
            "this machine alone, 0.0.0.0 or :: for every network that it is on"
        )
    return f"cannot listen on {host}:{port}: {refused.strerror}. {advice}."

"""Backends of the registry with a real Kafka: two gateways without any of their own follow what a
command says, each resolves the server's key for itself, and a drain waits for both."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from streams.kafka.access import KafkaAccess
from tests.support.fake_backend import KEY
from tests.support.kafka import named_places, settings_file
from tests.support.processes import (
    backend,
    chat,
    gateway,
    role,
    tollbook,
    tollbook_json,
    wait_until,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


def test_two_gateways_follow_the_registry_and_a_drain_waits_for_both(
    kafka: KafkaAccess, tmp_path: Path
) -> None:
    places = named_places(tmp_path, settings_file(tmp_path, kafka).read_text(), "a", "b")
    here = tmp_path / "none"
    (tmp_path / "key").write_text(KEY)
    with ExitStack() as stack:
        server = stack.enter_context(backend(tmp_path))
        stack.enter_context(role("worker", tmp_path, *places[0]))
        doors = [
            stack.enter_context(gateway(tmp_path / f"data-{n}", [], *place, backend_key=""))
            for n, place in enumerate(places)
        ]
        key = tollbook_json(tmp_path / "keys", "keys", "create", "--name", "ann", *places[0])["key"]
        said = ("gpu", "--url", server.url, "--key", f"file:{tmp_path}/key", *places[0])
        tollbook(here, "backends", "add", *said)
        for door in doors:
            wait_until("it serves", lambda door=door: chat(door.url, key).status == 200)

        def seen() -> bool:
            (one,) = tollbook_json(here, "backends", "list", *places[1])["backends"]
            return [view["gateway"] for view in one["gateways"] if view["up"]] == ["a", "b"]

        wait_until("both tell of it", seen)
        drained = tollbook_json(here, "backends", "drain", "gpu", *places[1])
        assert drained["safe"] and not drained["unaware"] and not drained["silent"]
        assert [chat(door.url, key).status for door in doors] == [503, 503]
        tollbook(here, "backends", "undrain", "gpu", *places[0])
        for door in doors:
            wait_until("it serves again", lambda door=door: chat(door.url, key).status == 200)
        assert KEY not in "".join(door.output() for door in doors)

"""Clients that call gateways over and over, each with one connection, and remember every answer."""

import contextlib
import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from tests.gateway.doors import CHAT, SOON_SECONDS, Key
from tests.routing.street import TAG
from tests.support.processes import Gateway, wait_until

AGAIN_SECONDS = 0.02


class Said(msgspec.Struct, frozen=True):
    """One answer: which backend gave it (empty: the gateway itself), and what it said. `began` is
    when it was asked for, by the monotonic clock."""

    began: float
    status: int
    backend: str
    body: bytes
    route: str
    model: str | None

    @property
    def good(self) -> bool:
        whole = self.body.endswith(b"data: [DONE]\n\n") or self.body.endswith(b"}")
        return self.status == 200 and whole and b'"error"' not in self.body


class Crowd:
    """`clients` threads that call `doors` in turn, and rest for `rest` seconds in between.

    With `patient` a client whose gateway is away, or about to go, asks again until it is answered.
    """

    def __init__(
        self,
        doors: Sequence[Gateway],
        key: Key,
        clients: int,
        *,
        model: str = "fake",
        script: str | None = "n1",
        stream: bool = False,
        rest: float = 0.0,
        patient: bool = False,
    ) -> None:
        self.ports = [one.port for one in doors]
        self.answers: list[Said] = []
        self._key, self._rest, self._patient = key, rest, patient
        body = {"model": model, "messages": [], "user": TAG, "stream": stream}
        self._body = json.dumps(body | ({} if script is None else {"script": script})).encode()
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._client, args=(number,), daemon=True)
            for number in range(clients)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """No new calls; those that run are waited for."""
        self._ended.set()
        for thread in self._threads:
            thread.join(2 * SOON_SECONDS)
        assert not any(thread.is_alive() for thread in self._threads), "a client has no answer"

    def more(self, count: int, seconds: float = 2 * SOON_SECONDS) -> list[Said]:
        """The next answers, at least `count`."""
        begin = len(self.answers)
        wait_until(f"{count} answers", lambda: len(self.answers) >= begin + count, seconds)
        return self.answers[begin:]

    def go_to(self, *doors: Gateway) -> None:
        """Call these gateways from now on; answers of those before are forgotten."""
        self.ports[:] = [one.port for one in doors]
        self.answers.clear()

    def _client(self, number: int) -> None:
        line: http.client.HTTPConnection | None = None
        while not self._ended.is_set():
            port = self.ports[number % len(self.ports)]
            if line is None or line.port != port:
                line = http.client.HTTPConnection("127.0.0.1", port, timeout=2 * SOON_SECONDS)
            began = time.monotonic()
            try:
                said = self._ask(line)
            except (OSError, http.client.HTTPException) as broken:
                line.close()
                line = None
                if self._patient:
                    time.sleep(AGAIN_SECONDS)
                    continue
                said = Said(began, 0, "", repr(broken).encode(), "", None)
            if self._patient and said.status == 503 and not said.backend:
                time.sleep(AGAIN_SECONDS)
                continue
            self.answers.append(said)
            if self._rest:
                time.sleep(self._rest)
        if line is not None:
            line.close()

    def _ask(self, line: http.client.HTTPConnection) -> Said:
        headers = {
            "authorization": f"Bearer {self._key.secret}",
            "content-type": "application/json",
        }
        began = time.monotonic()
        line.request("POST", CHAT, self._body, headers)
        answer = line.getresponse()
        body = answer.read()
        return Said(
            began,
            answer.status,
            answer.getheader("x-tollbook-backend") or "",
            body,
            answer.getheader("x-tollbook-route") or "",
            answer.getheader("x-tollbook-fallback"),
        )


@contextlib.contextmanager
def crowd(
    doors: Sequence[Gateway],
    key: Key,
    clients: int,
    *,
    model: str = "fake",
    script: str | None = "n1",
    stream: bool = False,
    rest: float = 0.0,
    patient: bool = False,
) -> Iterator[Crowd]:
    """Clients at work for as long as the block."""
    calling = Crowd(
        doors, key, clients, model=model, script=script, stream=stream, rest=rest, patient=patient
    )
    calling.start()
    try:
        yield calling
    finally:
        calling.end()


def backends(answers: Sequence[Said]) -> Counter[str]:
    """Answers by backend. None of them failed."""
    bad = [answer for answer in answers if not answer.good]
    assert not bad, f"{len(bad)} of {len(answers)} failed, first: {bad[0]}"
    return Counter(answer.backend for answer in answers)

"""Events of older versions are read by the newest code: step by step, without being rewritten."""

import json

import msgspec
import pytest

from ledger.errors import MalformedEvent, UnknownEvent
from ledger.events import RequestRejected, payload_of
from ledger.events.registry import UPCASTERS
from tests.support.events import Scribe, rejected

OLDEST, OLDER = "tollbook.request.rejected.v-1", "tollbook.request.rejected.v0"


def from_oldest(data: bytes) -> tuple[str, bytes]:
    said = json.loads(data)
    said["key_id"] = said.pop("key")
    return OLDER, json.dumps(said).encode()


def from_older(data: bytes) -> tuple[str, bytes]:
    said = json.loads(data)
    said["status"] = int(said["status"])
    return RequestRejected.TYPE, json.dumps(said).encode()


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(UPCASTERS, OLDEST, from_oldest)
    monkeypatch.setitem(UPCASTERS, OLDER, from_older)


def event(kind: str, data: bytes) -> object:
    made = Scribe().write(rejected("r"))
    return payload_of(msgspec.structs.replace(made, type=kind, data=msgspec.Raw(data)))


def test_an_old_event_goes_through_every_step_to_the_newest() -> None:
    wanted = RequestRejected(request_id="r", key_id="k", status=404, code="model_not_found")
    oldest = b'{"request_id":"r","key":"k","status":"404","code":"model_not_found"}'
    older = oldest.replace(b'"key"', b'"key_id"')
    assert event(OLDEST, oldest) == event(OLDER, older) == wanted


def test_an_old_event_that_does_not_fit_is_malformed_and_a_newer_one_unknown() -> None:
    with pytest.raises(MalformedEvent):
        event(OLDER, b'{"request_id":"r","key_id":"k","status":"1","code":null}')
    with pytest.raises(UnknownEvent, match="upgrade this reader"):
        event("tollbook.request.rejected.v2", b"{}")

"""What clients of either kind send and expect around their bodies, over sockets."""

from typing import Any

import pytest

from gateway.wire.endpoints import ENDPOINTS
from ledger.events import RequestAccepted, RequestRejected
from tests.gateway.doors import CHAT, told
from tests.gateway.house import House
from tests.support.processes import Answer, call

MESSAGES = "/v1/messages"
ANTHROPIC = sorted(path for path, one in ENDPOINTS.items() if one.errors == "anthropic")


def asking(house: House, path: str, headers: dict[str, str], **fields: Any) -> Answer:
    body = {"model": "fake-n1", "messages": [], "max_tokens": 5, **fields}
    return call(house.wide.url + path, body, None, headers)


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_key_may_come_as_anthropics_clients_send_it(house: House, path: str) -> None:
    answer = asking(house, path, {"x-api-key": house.key.secret})
    assert answer.status == 200, answer.body
    (accepted, *_) = told(house.data, answer.headers["x-request-id"])
    assert accepted.key_id == house.key.id
    last = [seen for server in (house.one, house.two) for seen in server.stats()["last"]]
    assert house.key.secret not in str(last), "the user's key ends here"
    assert asking(house, path, {"x-api-key": "sk-tb-unknown"}).status == 401
    assert asking(house, path, {"x-api-key": house.revoked.secret}).status == 401


def test_models_are_listed_to_either_kind_of_client(house: House) -> None:
    listed = call(house.strict.url + "/v1/models", None, None, {"x-api-key": house.key.secret})
    assert listed.status == 200 and listed.json()["data"]


@pytest.mark.parametrize("path", ANTHROPIC)
@pytest.mark.parametrize(
    ("headers", "fields", "status", "kind"),
    [
        ({"x-api-key": "sk-tb-unknown"}, {}, 401, "authentication_error"),
        ({}, {}, 401, "authentication_error"),
        ({"x-api-key": "few"}, {"model": "fake-n9"}, 403, "permission_error"),
        ({"x-api-key": "all"}, {"model": 5}, 400, "invalid_request_error"),
        ({"x-api-key": "all", "content-encoding": "br"}, {}, 415, "invalid_request_error"),
        ({"x-api-key": "all", "content-encoding": "gzip"}, {}, 400, "invalid_request_error"),
    ],
)
def test_a_refusal_is_in_anthropics_shape_at_anthropics_doors(
    house: House,
    path: str,
    headers: dict[str, str],
    fields: dict[str, Any],
    status: int,
    kind: str,
) -> None:
    secrets = {"all": house.key.secret, "few": house.few.secret}
    sent = {name: secrets.get(value, value) for name, value in headers.items()}
    answer = asking(house, path, sent, **fields)
    assert answer.status == status, answer.body
    request_id = answer.headers["x-request-id"]
    said = answer.json()
    assert said.keys() == {"type", "error", "request_id"}
    assert (said["type"], said["request_id"]) == ("error", request_id)
    assert said["error"].keys() == {"type", "message"} and said["error"]["type"] == kind
    facts = told(house.data, request_id)
    if status == 401:
        assert facts == []
    else:
        (rejected,) = facts
        assert isinstance(rejected, RequestRejected) and rejected.status == status


def test_retries_of_a_client_library_are_requests_of_their_own_joined_by_its_id(
    house: House,
) -> None:
    said = []
    for name, retry in (
        ("x-client-request-id", None),
        ("x-request-id", "0"),
        ("Idempotency-Key", "1"),
        ("idempotency-key", "two"),
    ):
        headers = {"authorization": f"Bearer {house.key.secret}", name: "the-clients-own-id"}
        if retry is not None:
            headers["x-stainless-retry-count"] = retry
        answer = asking(house, CHAT, headers)
        assert answer.headers["x-client-request-id"] == "the-clients-own-id"
        (accepted, *_) = told(house.data, answer.headers["x-request-id"])
        assert isinstance(accepted, RequestAccepted)
        said.append(accepted)
    assert [one.client_retry for one in said] == [None, 0, 1, None]
    assert len({one.client_request for one in said}) == 1
    assert len({one.request_id for one in said}) == len(said)

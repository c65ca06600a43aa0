"""Which of its headers is a client's own id, and what it may say of its retries."""

import pytest

from gateway.http.client_ids import CLIENT_ID_BYTES_MAX, ID_HEADERS, client_id_of, client_retry_of


def test_the_first_header_that_says_something_is_the_clients_id() -> None:
    headers = {name: b"by " + name for name in ID_HEADERS}
    for name in ID_HEADERS:
        assert client_id_of(headers) == b"by " + name
        headers[name] = b""
    assert client_id_of(headers) is None
    assert client_id_of({}) is None


def test_the_order_is_the_documented_one() -> None:
    assert ID_HEADERS == (b"x-client-request-id", b"x-request-id", b"idempotency-key")


def test_an_id_is_cut_to_what_is_given_back() -> None:
    assert client_id_of({b"idempotency-key": b"i" * 3000}) == b"i" * CLIENT_ID_BYTES_MAX


@pytest.mark.parametrize(
    ("said", "number"),
    [
        (b"0", 0),
        (b"2", 2),
        (b"999999", 999_999),
        (b"1000000", None),
        (b"9" * 5000, None),
        (b"", None),
        (b"-1", None),
        (b"+1", None),
        (b" 1", None),
        (b"1.0", None),
        (b"1_0", None),
        (b"\xb2", None),
        (b"two", None),
    ],
)
def test_a_retry_is_a_plain_number_or_nothing(said: bytes, number: int | None) -> None:
    assert client_retry_of({b"x-stainless-retry-count": said}) == number


def test_a_client_that_does_not_count_says_nothing_of_retries() -> None:
    assert client_retry_of({b"x-request-id": b"1"}) is None

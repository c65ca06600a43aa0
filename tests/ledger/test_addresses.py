"""Two ways to write the address of one server are one address, and two servers are two."""

import itertools

import pytest

from ledger.addresses import door_of

SAME = (
    (
        "http://localhost:8000",
        "http://127.0.0.1:8000",
        "http://[::1]:8000",
        "http://LocalHost:8000",
    ),
    ("http://localhost", "http://127.0.0.1:80", "http://[::1]", "http://[::1]:80"),
    ("https://gpu", "https://gpu:443", "https://GPU:0443", "HTTPS://gpu"),
    ("http://gpu", "http://gpu:80"),
    ("https://gpu/qwen", "https://gpu:443/qwen"),
    ("http://[fe80::1]:9", "http://[FE80::1]:9"),
)


@pytest.mark.parametrize("urls", SAME)
def test_one_server_is_one_door_however_it_is_written(urls: tuple[str, ...]) -> None:
    assert len({door_of(url) for url in urls}) == 1


def test_two_servers_are_two_doors() -> None:
    each = [urls[0] for urls in SAME]
    each += ["https://gpu:80", "http://gpu:443", "http://gpu/QWEN", "http://127.0.0.2", "http://g"]
    for one, other in itertools.combinations(each, 2):
        assert door_of(one) != door_of(other)

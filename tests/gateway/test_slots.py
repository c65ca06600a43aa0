"""llama.cpp's page of slots: recorded from the real server, from an older one, and damaged.

The pages of 2026 are the real server's own, idle, with three requests at work, and after them; that
of 2024 is what the sources of that time write.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.slots import Slots, read_slots

PAGES = Path(__file__).parent / "slots"

READ = {
    "llamacpp-2026.10-idle": Slots(0, 0.0),
    "llamacpp-2026.10-busy": Slots(3, (164 + 164 + 165) / 8192),
    "llamacpp-2026.10-after": Slots(0, 0.0),
    "llamacpp-2024.06": Slots(1, None),
}


def test_every_page_has_a_line_here() -> None:
    assert {path.stem for path in PAGES.iterdir()} == set(READ)


@pytest.mark.parametrize("name", READ)
def test_a_page_is_read(name: str) -> None:
    assert read_slots((PAGES / f"{name}.json").read_bytes()) == READ[name]


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"[]",
        b"{}",
        b"[1]",
        b"[{}]",
        b'[{"n_ctx":4096}]',
        b'{"error":{"code":501,"message":"This server does not support slots endpoint."}}',
        b'[{"is_processing":"yes"}]',
        b"\xff\xfe",
        pytest.param(b'[{"is_processing":true,"x":' + b"[" * 100_000, id="nested too deep"),
    ],
)
def test_what_is_no_page_of_slots_says_nothing(page: bytes) -> None:
    assert read_slots(page) is None


def test_more_tokens_than_room_are_a_full_cache() -> None:
    page = b'[{"is_processing":true,"n_ctx":100,"n_prompt_tokens":130}]'
    assert read_slots(page) == Slots(1, 1.0)


@pytest.mark.parametrize("tokens", [b"-5", b"null", b"9" * 400], ids=["below 0", "null", "huge"])
def test_tokens_that_cannot_be_are_not_known(tokens: bytes) -> None:
    page = b'[{"is_processing":true,"n_ctx":100,"n_prompt_tokens":%b}]' % tokens
    assert read_slots(page) == Slots(1, None)


@given(st.binary(max_size=200))
def test_garbage_is_read_without_complaint(page: bytes) -> None:
    assert read_slots(page) is None

"""From an Authorization header to a key, and from a key to the models that it may call."""

import hashlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access import allowed, bearer_of, key_of, require_model, secret_of, visible
from gateway.errors import ApiError, Forbidden, NotFound, Unauthorized
from gateway.http.doors import hash_of
from ledger.folds.book import Book, Key

NOW = datetime(2026, 11, 3, tzinfo=UTC)
NAMES = ("a", "b", "c", "d")


def key(models: tuple[str, ...] | None = None, *, revoked: bool = False) -> Key:
    return Key(
        key_id="key-1",
        version=1,
        hash=hash_of(b"secret"),
        issued_at=NOW,
        models=models,
        revoked_at=NOW if revoked else None,
    )


def book(*keys: Key) -> Book:
    return Book(keys={k.key_id: k for k in keys}, by_hash={k.hash: k for k in keys})


@pytest.mark.parametrize(
    ("header", "secret"),
    [
        (b"Bearer tb-abc", b"tb-abc"),
        (b"bearer tb-abc", b"tb-abc"),
        (b"BEARER   tb-abc  ", b"tb-abc"),
        (b"Bearer a b", b"a b"),
    ],
)
def test_a_bearer_token_is_read_however_it_is_spelled(header: bytes, secret: bytes) -> None:
    assert bearer_of(header) == secret


@pytest.mark.parametrize(
    "header", [b"", b"Bearer", b"Bearer ", b"Basic abc", b"tb-abc", b"Bearertb"]
)
def test_another_header_is_refused_with_the_form_to_use(header: bytes) -> None:
    with pytest.raises(Unauthorized, match="'Bearer KEY'") as refused:
        bearer_of(header)
    assert refused.value.code == "invalid_api_key"


@pytest.mark.parametrize(
    ("headers", "secret"),
    [
        ({b"authorization": b"Bearer tb-abc"}, b"tb-abc"),
        ({b"x-api-key": b"tb-abc"}, b"tb-abc"),
        ({b"x-api-key": b" tb-abc "}, b"tb-abc"),
        ({b"authorization": b"Bearer tb-abc", b"x-api-key": b"tb-other"}, b"tb-abc"),
        ({b"authorization": b"Basic abc", b"x-api-key": b"tb-abc"}, b"tb-abc"),
        ({b"authorization": b"Bearer ", b"x-api-key": b"tb-abc"}, b"tb-abc"),
        ({b"authorization": b"Bearer tb-abc", b"x-api-key": b""}, b"tb-abc"),
    ],
)
def test_a_key_is_found_where_either_client_puts_it(
    headers: dict[bytes, bytes], secret: bytes
) -> None:
    assert secret_of(headers) == secret


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "missing_api_key"),
        ({b"x-api-key": b""}, "missing_api_key"),
        ({b"x-api-key": b"  "}, "missing_api_key"),
        ({b"authorization": b"Basic abc", b"x-api-key": b" "}, "invalid_api_key"),
    ],
)
def test_no_key_in_either_place_is_refused(headers: dict[bytes, bytes], code: str) -> None:
    with pytest.raises(Unauthorized, match="KEY") as refused:
        secret_of(headers)
    assert refused.value.code == code


def test_no_header_says_where_a_key_comes_from() -> None:
    with pytest.raises(Unauthorized, match="tollbook keys create") as refused:
        bearer_of(None)
    assert refused.value.code == "missing_api_key"


@given(header=st.none() | st.binary(max_size=30))
def test_any_header_is_read_or_refused(header: bytes | None) -> None:
    try:
        secret = bearer_of(header)
    except Unauthorized as refused:
        # A caller's key, even a mistyped one, is not repeated.
        shown = (header or b"").partition(b" ")[2].strip().decode("latin-1")
        assert len(shown) < 8 or shown not in refused.message
    else:
        assert secret == secret.strip()


def test_a_key_is_found_by_the_hash_of_its_secret() -> None:
    assert hash_of(b"secret") == hashlib.sha256(b"secret").hexdigest()
    assert key_of(book(key()), hash_of(b"secret")).key_id == "key-1"


def test_an_unknown_key_and_a_revoked_one_are_refused_in_different_words() -> None:
    with pytest.raises(Unauthorized, match="not known here") as refused:
        key_of(book(key()), hash_of(b"other"))
    assert refused.value.code == "invalid_api_key"
    with pytest.raises(Unauthorized, match="key-1 was revoked at 2026-11-03") as refused:
        key_of(book(key(revoked=True)), hash_of(b"secret"))
    assert refused.value.code == "revoked_api_key"
    assert refused.value.status == 401


@pytest.mark.parametrize(
    ("models", "model", "any_model", "refusal"),
    [
        (None, "a", False, None),
        (None, "z", False, NotFound),
        (None, "z", True, None),
        (("a",), "a", False, None),
        (("a",), "b", False, Forbidden),
        # An allow list does not tell what else there is: 403 whether or not somebody serves it.
        (("a",), "z", False, Forbidden),
        (("a",), "z", True, Forbidden),
        (("z",), "z", False, NotFound),
        (("z",), "z", True, None),
        ((), "a", False, Forbidden),
    ],
)
def test_who_may_call_what(
    models: tuple[str, ...] | None, model: str, any_model: bool, refusal: type[ApiError] | None
) -> None:
    holder = key(models)
    if refusal is None:
        require_model(holder, model, {"a", "b"}, any_model=any_model)
        return
    with pytest.raises(refusal) as refused:
        require_model(holder, model, {"a", "b"}, any_model=any_model)
    assert refused.value.param == "model"
    assert repr(model) in refused.value.message
    offered = refused.value.message.partition("can use: ")[2].rstrip(".")
    assert offered == ("a, b" if models is None else "a" if models == ("a",) else "")


def test_a_refusal_says_what_to_use_instead_and_not_too_much() -> None:
    many = {f"model-{number:03}" for number in range(50)}
    with pytest.raises(NotFound, match=r"model-000, model-001.* and 30 more"):
        require_model(key(), "z", many, any_model=False)
    with pytest.raises(Forbidden, match="can use: mine"):
        require_model(key(("mine",)), "z", many, any_model=False)
    with pytest.raises(NotFound, match="No model is available"):
        require_model(key(), "z", (), any_model=False)


@given(
    models=st.none() | st.sets(st.sampled_from(NAMES)).map(lambda found: tuple(sorted(found))),
    served=st.sets(st.sampled_from(NAMES)),
)
def test_what_is_listed_can_be_called_and_nothing_else(
    models: tuple[str, ...] | None, served: set[str]
) -> None:
    holder = key(models)
    shown = visible(holder, served)
    assert shown == sorted(set(shown))
    for name in NAMES:
        try:
            require_model(holder, name, served, any_model=False)
            called = True
        except (Forbidden, NotFound):
            called = False
        assert called == (name in shown) == (name in served and allowed(holder, name))

"""Form bodies: what is read of them, what is refused, and what vLLM gets on top."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from python_multipart import parse_form

from gateway.errors import BadRequest
from gateway.wire import forms
from gateway.wire.endpoints import BY_NAME
from gateway.wire.forms import form_of, with_fields
from gateway.wire.requests import asked, forwarded
from tests.gateway.answers import ENGINES

ENDPOINT = BY_NAME["audio/transcriptions"]
TYPE = b"multipart/form-data; boundary=xyz"
SOUND = b"RIFF\r\n--xy\r\n\x00\xff--xyz-"


def form(*fields: tuple[str, str], file: bytes = SOUND, boundary: str = "xyz") -> bytes:
    """A form with these fields and one file among them, as curl writes it."""
    mark = f"--{boundary}\r\n".encode()
    parts = [
        mark + f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields
    ]
    head = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n'
    parts.insert(1, mark + head + b"Content-Type: audio/wav\r\n\r\n" + file + b"\r\n")
    return b"".join(parts) + f"--{boundary}--\r\n".encode()


def read(body: bytes) -> tuple[list[tuple[str, str]], bytes]:
    """What a server reads: the fields in order, and the file."""
    fields: list[tuple[str, str]] = []
    files: list[bytes] = []

    def on_field(field: object) -> None:
        name, value = getattr(field, "field_name", b""), getattr(field, "value", b"")
        fields.append((name.decode(), (value or b"").decode()))

    def on_file(file: object) -> None:
        stream = file.file_object  # type: ignore[attr-defined]
        stream.seek(0)
        files.append(stream.read())

    class Body:
        def __init__(self) -> None:
            self.left = body

        def read(self, size: int = -1) -> bytes:
            taken, self.left = self.left, b""
            return taken

    headers = {"Content-Type": TYPE, "Content-Length": str(len(body)).encode()}
    parse_form(headers, Body(), on_field, on_file)
    return fields, b"".join(files)


def test_what_a_form_asks_for_is_read() -> None:
    body = form(("model", "whisper"), ("stream", "True"), ("max_completion_tokens", "64"))
    found = asked(body, ENDPOINT, TYPE)
    assert (found.model, found.stream, found.held_out) == ("whisper", True, 64)
    assert not asked(form(("model", "m"), ("stream", "0")), ENDPOINT, TYPE).stream
    assert not asked(form(("model", "m")), ENDPOINT, TYPE).stream


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        (b"", TYPE, "invalid_form"),
        (b'{"model":"m"}', b"application/json", "invalid_form"),
        (form(("model", "m")), b"multipart/form-data", "invalid_form"),
        (form(("model", "m")), b"multipart/form-data; boundary=other", "invalid_form"),
        (form(("model", "m"))[:-8], TYPE, "invalid_form"),
        (form(("model", "m"))[:40], TYPE, "invalid_form"),
        (form(("stream", "true")), TYPE, "invalid_request"),
        (form(("model", "")), TYPE, "invalid_request"),
        (form(("model", "m\n")), TYPE, "invalid_request"),
        (form(("model", "m"), ("stream", "perhaps")), TYPE, "invalid_request"),
        # Servers disagree about which of two they read: nobody gets to another model that way.
        (form(("model", "m"), ("model", "n")), TYPE, "invalid_request"),
    ],
)
def test_what_is_no_readable_form_is_refused(body: bytes, kind: bytes, code: str) -> None:
    with pytest.raises(BadRequest) as refused:
        asked(body, ENDPOINT, kind)
    assert refused.value.code == code


def test_a_model_that_is_a_file_is_no_model() -> None:
    body = form(("x", "y")).replace(b'name="file"', b'name="model"')
    with pytest.raises(BadRequest, match="model"):
        asked(body, ENDPOINT, TYPE)


def test_a_form_of_too_many_parts_is_refused() -> None:
    many = tuple((f"f{number}", "") for number in range(forms.PARTS_MAX))
    with pytest.raises(BadRequest, match="1,000 parts"):
        form_of(form(*many), TYPE)
    assert len(form_of(form(*many[:-1]), TYPE).fields) == forms.PARTS_MAX - 1


def test_a_long_value_is_kept_only_in_part() -> None:
    found = form_of(form(("prompt", "p" * 1_000_000)), TYPE)
    assert len(found.value("prompt") or "") == forms.VALUE_BYTES_MAX


def test_vllm_is_asked_for_the_usage_of_a_stream_and_nobody_else_is() -> None:
    body = form(("model", "m"), ("stream", "true"))
    wish = asked(body, ENDPOINT, TYPE)
    for engine in ENGINES:
        sent = forwarded(body, wish, engine, ENDPOINT, TYPE)
        assert (sent is body) is (engine != "vllm")
    fields, file = read(forwarded(body, wish, "vllm", ENDPOINT, TYPE))
    assert fields == [
        ("model", "m"),
        ("stream", "true"),
        ("stream_include_usage", "true"),
        ("stream_continuous_usage_stats", "true"),
    ]
    assert file == SOUND
    plain = form(("model", "m"))
    assert forwarded(plain, asked(plain, ENDPOINT, TYPE), "vllm", ENDPOINT, TYPE) is plain


def test_a_caller_cannot_say_no_to_the_count_and_one_who_said_yes_is_known() -> None:
    no = form(("model", "m"), ("stream", "true"), ("stream_include_usage", "false"))
    wish = asked(no, ENDPOINT, TYPE)
    assert (wish.usage, wish.own) == (False, True)
    fields, _ = read(forwarded(no, wish, "vllm", ENDPOINT, TYPE))
    assert dict(fields)["stream_include_usage"] == "true"  # FastAPI reads the last of two
    usage, continuous = ("stream_include_usage", "1"), ("stream_continuous_usage_stats", "yes")
    yes = form(("model", "m"), ("stream", "true"), usage, continuous)
    wish = asked(yes, ENDPOINT, TYPE)
    assert (wish.usage, wish.continuous) == (True, True)
    assert forwarded(yes, wish, "vllm", ENDPOINT, TYPE) is yes


values = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=30)


@given(value=values, sound=st.binary(max_size=200), tail=st.binary(max_size=20))
def test_added_fields_stand_behind_the_callers_own(value: str, sound: bytes, tail: bytes) -> None:
    if b"\r\n--xyz" in sound:
        return
    body = form(("model", "m"), ("prompt", value), file=sound) + tail
    sent = with_fields(body, TYPE, {"a": "1", "b": "2"})
    fields, file = read(sent)
    assert fields == [("model", "m"), ("prompt", value), ("a", "1"), ("b", "2")]
    assert file == sound
    assert form_of(sent, TYPE).fields == tuple(fields)


@given(body=st.binary(max_size=120))
def test_any_bytes_are_a_form_or_refused(body: bytes) -> None:
    for bytes_ in (body, form(("model", "m"))[:-4] + body, b"--xyz\r\n" + body):
        try:
            found = asked(bytes_, ENDPOINT, TYPE)
        except BadRequest:
            continue
        forwarded(bytes_, found, "vllm", ENDPOINT, TYPE)

"""Settings: the defaults, the limits, and words for everything that can be wrong in a file."""

import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.init import config_text
from gateway.kafka_access import access_of
from gateway.settings import (
    LISTS,
    SECTIONS,
    BackendSettings,
    LedgerSettings,
    PolicySettings,
    Settings,
    SettingsError,
    fields,
    ledger_url_of,
    load_settings,
    normal_url,
    parse_size,
    resolve_secret,
    settings_from,
    size_text,
)
from streams.kafka.access import KafkaAccess


def test_without_a_file_the_defaults_hold() -> None:
    assert load_settings(None) == Settings()


def test_every_field_is_in_the_table_with_words() -> None:
    table = {(field.section, field.name): field for field in fields()}
    declared = {
        (section, field.name)
        for section, cls in SECTIONS.items()
        for field in msgspec.structs.fields(cls)
    }
    assert set(table) == declared
    for field in table.values():
        assert field.about.endswith("."), field
        assert field.kind != "choice" or field.choices, field


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "tollbook.toml"
    file.write_text(
        """
        [gateway]
        port = 9000
        models = ["*"]
        body_bytes_max = 65536
        [[backends]]
        url = "http://127.0.0.1:8000/v1/"
        key = "file:keys/one"
        engine = "vllm"
        [[backends]]
        url = "https://gpu.example/models/v1"
        name = "gpu"
        key = "env:GPU_KEY"
        [timeouts]
        connect_seconds = 2
        [spool]
        limit_bytes = "64 MiB"
        """
    )
    settings = load_settings(file)
    assert settings.gateway.port == 9000
    assert settings.gateway.models == ("*",)
    assert settings.gateway.body_bytes_max == 65536
    assert [backend.url for backend in settings.backends] == [
        "http://127.0.0.1:8000",
        "https://gpu.example/models",
    ]
    assert settings.backends[0].key == f"file:{tmp_path / 'keys/one'}"
    assert settings.backends[1].key == "env:GPU_KEY"
    assert settings.backends[1].id == "gpu"
    assert settings.timeouts.connect_seconds == 2.0
    assert settings.spool.limit_bytes == 64 * 1024 * 1024


def test_a_backends_id_is_stable_and_shows_no_address() -> None:
    one = BackendSettings(url="http://10.1.2.3:8000/v1")
    assert one.id == BackendSettings(url="http://10.1.2.3:8000").id
    assert one.id.startswith("b-") and len(one.id) == 10
    assert one.id != BackendSettings(url="http://10.1.2.3:8001").id


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[gatway]", ["gatway", "did you mean gateway?"]),
        ("[gateway]\nprot = 1", ["gateway.prot", "did you mean gateway.port?"]),
        ("[zzzz]", ["zzzz", "known here: gateway, backends, routing, policies, fallbacks"]),
        ("[spool]\nlimit_byte = 1", ["did you mean spool.limit_bytes?"]),
        ('[[backends]]\nurl = "http://a"\nurll = 1', ["backends[1].urll", "backends[1].url?"]),
        ('[gateway]\nport = "80"', ["gateway.port", "expected int, got str"]),
        ("[gateway]\nport = 70000", ["gateway.port", "<= 65535"]),
        ("[gateway]\nport = true", ["gateway.port", "got bool"]),
        ("[gateway]\nworkers = 0", ["gateway.workers", ">= 1"]),
        ('[gateway]\nname = "a b"', ["'a b' is no name"]),
        ('[gateway]\nhost = ""', ["host is empty"]),
        ('[gateway]\nmodels = ["*", "a"]', ['"*" alone already means any name']),
        ('[gateway]\nmodels = [""]', ["empty name"]),
        ("gateway = 3", ["gateway is a table", "[gateway]"]),
        ("[backends]\nurl = 'http://a'", ["[[backends]]"]),
        ("[policies]\nmodel = 'm'", ["write [[policies]]"]),
        ("[[policies]]\nmodel = 'm'\n[[policies]]\nmodel = 'm'", ["two policies", "model m"]),
        ("[[policies]]\nmodel = ''", ["policies[1]", "empty name"]),
        ("[routing]\npolicy = 'fastest'", ["routing.policy", "fewest_waiting, round_robin"]),
        ("[routing]\nexplore_percent = 51", ["routing.explore_percent", "<= 50"]),
        ("[[backends]]\nname = 'x'", ["backends[1]", "must be given: url"]),
        ("[[backends]]\nurl = 'a'", ["'a' is not the address of a backend"]),
        ("[[backends]]\nurl = 'http://a:b'", ["not the address of a backend"]),
        ("[[backends]]\nurl = 'http://a?b=c'", ["after ? or #"]),
        ("[[backends]]\nurl = 'http://a'\nengine = 'vlm'", ["backends[1].engine", "vllm, sglang"]),
        ("[timeouts]\nconnect_seconds = 0", ["timeouts.connect_seconds", "> 0"]),
        ("[timeouts]\nconnect_seconds = nan", ["timeouts.connect_seconds"]),
        ("[timeouts]\nconnect_seconds = inf", ["timeouts.connect_seconds", "<= 86400"]),
        ('[spool]\nlimit_bytes = "7 MB"', ["spool.limit_bytes", "'7 MB' is not a size", "MiB"]),
        ('[spool]\nlimit_bytes = "4 MiB"', ["more than half", "raise the limit"]),
        ('[spool]\ndurability = "none"', ["spool.durability", "process, power"]),
        ('[ledger]\nurl = "postgresql+psycopg://a:hush@b/c"', ["holds a password", "env:NAME"]),
        ('[ledger]\nurl = "postgresql+psycopg://a@b/c?password=hush"', ["holds a password"]),
        ('[ledger]\nurl = "mysql://b/c"', ["begins with postgresql+psycopg://"]),
        ('[kafka]\nbootstrap = ["a"]', ["'a' is not the address of a broker", "HOST:PORT"]),
        ('[kafka]\nbootstrap = ["a:1"]\nsecurity = "sasl_ssl"', ["sasl_username must be given"]),
        ('[kafka]\ncert_file = "a"', ["belong together"]),
        ('[kafka]\nsasl_password = "hush"', ["the password for Kafka", "env:NAME"]),
        ('[kafka]\nprefix = "a.b"', ["cannot begin a topic's name"]),
        ("[kafka]\npartitions = 0", ["kafka.partitions", ">= 1"]),
        ("x = = 1", ["not valid TOML", "line 1"]),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    file = tmp_path / "tollbook.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(file)
    assert str(caught.value).startswith(str(file))
    for word in words:
        assert word in str(caught.value)
    assert "hush" not in str(caught.value)


def test_two_backends_are_told_apart() -> None:
    with pytest.raises(SettingsError, match="two backends have the address http://a"):
        settings_from({"backends": [{"url": "http://a"}, {"url": "http://a/v1"}]})
    same = {"backends": [{"url": "http://localhost"}, {"url": "http://[::1]:80"}]}
    with pytest.raises(SettingsError, match=r"localhost, also written http://\[::1\]:80; remove"):
        settings_from(same)
    with pytest.raises(SettingsError, match="two backends have the name x"):
        settings_from(
            {"backends": [{"url": "http://a", "name": "x"}, {"url": "http://b", "name": "x"}]}
        )


def test_a_file_that_is_not_there_and_one_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="tollbook init"):
        load_settings(tmp_path / "none.toml")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(tmp_path / "bytes")
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(tmp_path)


@pytest.mark.parametrize(
    "key", ["sk-very-secret", "env:", "file:", "env:A-B", "vault:sk-very-secret"]
)
def test_a_key_in_the_file_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(SettingsError, match="env:NAME or file:PATH") as caught:
        settings_from({"backends": [{"url": "http://a", "key": key}]})
    assert "secret" not in str(caught.value)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(SettingsError) as caught:
        settings_from({"backends": [{"url": "http://me:hunter2@a"}]})
    assert "hunter2" not in str(caught.value)


def test_secrets_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "one")
    (tmp_path / "key").write_text("two\n")
    assert resolve_secret("env:A_KEY") == "one"
    assert resolve_secret(f"file:{tmp_path / 'key'}") == "two"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"hush\nhush", "one line"),
        (b"hush\xff", "not text"),
        (b"h" * 5000, "at most 4096"),
        ("hüsh".encode(), "plain characters"),
    ],
)
def test_a_file_that_holds_no_key(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(SettingsError, match=words) as caught:
        resolve_secret(f"file:{tmp_path / 'key'}")
    assert "hush" not in str(caught.value) and "hhhh" not in str(caught.value)


def test_a_secret_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_KEY", raising=False)
    with pytest.raises(SettingsError, match="NO_KEY is not set"):
        resolve_secret("env:NO_KEY")
    with pytest.raises(SettingsError, match="No such file"):
        resolve_secret(f"file:{tmp_path / 'none'}")


def test_the_written_file_loads_to_exactly_the_defaults(tmp_path: Path) -> None:
    text = config_text(fields())
    file = tmp_path / "tollbook.toml"
    file.write_text(text)
    assert load_settings(file) == Settings()
    live = tomllib.loads(text)
    for section, cls in SECTIONS.items():
        if section not in LISTS:
            defaults = {
                field.name for field in msgspec.structs.fields(cls) if field.default is not None
            }
            assert set(live[section]) == defaults


def test_the_written_examples_of_settings_without_a_default_load_too(tmp_path: Path) -> None:
    names = {field.name for field in fields() if field.section in ("ledger", "kafka")}
    _, _, text = config_text(fields()).partition("[ledger]")
    lines = ["[ledger]"] + [
        line.removeprefix("# ") if line.removeprefix("# ").split(" = ")[0] in names else line
        for line in text.splitlines()
    ]
    file = tmp_path / "tollbook.toml"
    file.write_text("\n".join(lines))
    settings = load_settings(file)
    assert settings.ledger.url == "postgresql+psycopg://tollbook@db.example/tollbook"
    assert settings.kafka.sasl_password == "env:KAFKA_PASSWORD"
    assert settings.kafka.ca_file == str(tmp_path / "kafka-ca.pem")


def test_the_whole_block_of_kafka_reaches_its_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "hush")
    file = tmp_path / "tollbook.toml"
    file.write_text(
        """
        [kafka]
        bootstrap = ["a:9093", "b:9093"]
        security = "sasl_ssl"
        ca_file = "ca.pem"
        cert_file = "c.pem"
        key_file = "/k.pem"
        sasl_mechanism = "SCRAM-SHA-256"
        sasl_username = "me"
        sasl_password = "env:KAFKA_PASSWORD"
        prefix = "east"
        partitions = 12
        replication = 2
        """
    )
    settings = load_settings(file)
    access = access_of(settings.kafka)
    assert access == KafkaAccess(
        bootstrap=("a:9093", "b:9093"),
        security="sasl_ssl",
        ca_file=str(tmp_path / "ca.pem"),
        cert_file=str(tmp_path / "c.pem"),
        key_file="/k.pem",
        sasl_mechanism="SCRAM-SHA-256",
        username="me",
        password="hush",
        prefix="east",
        partitions=12,
        replication=2,
    )
    assert "hush" not in repr(settings) + repr(access)
    monkeypatch.delenv("KAFKA_PASSWORD")
    with pytest.raises(SettingsError, match="the password for Kafka is said to be in it"):
        access_of(settings.kafka)
    assert access_of(Settings().kafka) is None


def test_the_address_of_the_ledger_may_stand_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "postgresql+psycopg://me:hush@db/books"
    monkeypatch.setenv("BOOKS", secret)
    (tmp_path / "url").write_text(f"{secret}\n")
    assert ledger_url_of(LedgerSettings(url="env:BOOKS")) == secret
    assert ledger_url_of(LedgerSettings(url=f"file:{tmp_path / 'url'}")) == secret
    assert ledger_url_of(LedgerSettings()) is None
    plain = "postgresql+psycopg://me@db/books"
    assert ledger_url_of(LedgerSettings(url=plain)) == plain
    with pytest.raises(SettingsError, match="the address of the ledger is said to be in it"):
        ledger_url_of(LedgerSettings(url="env:NO_BOOKS"))


def test_the_written_examples_of_lists_load_too(tmp_path: Path) -> None:
    lines = config_text(fields()).splitlines()
    for section in LISTS:
        begin = lines.index(f"# [[{section}]]")
        end = lines.index("", begin)
        lines[begin:end] = [line.removeprefix("# ") for line in lines[begin:end]]
    file = tmp_path / "tollbook.toml"
    file.write_text("\n".join(lines))
    settings = load_settings(file)
    assert settings.backends == (BackendSettings(url="http://127.0.0.1:8000"),)
    assert settings.policies == (PolicySettings(model="llama"),)
    whole = [line.removeprefix("# ") if " = " in line else line for line in lines]
    file.write_text("\n".join(whole))
    assert load_settings(file).backends[0].name == "gpu-1"


@given(st.integers(min_value=1, max_value=1 << 50))
def test_sizes_round_trip(count: int) -> None:
    assert parse_size(size_text(count)) == count
    assert parse_size(str(count)) == count


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_a_typed_error(text: str) -> None:
    for candidate in (text, f"http://{text}"):
        try:
            url = normal_url(candidate)
        except SettingsError:
            continue
        assert normal_url(url) == url or url.endswith("/v1")
        assert url.startswith(("http", "HTTP"))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from([*SECTIONS, "url", "port", "key", "limit_bytes", "x"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_tables_are_settings_or_a_typed_error(raw: object) -> None:
    if not isinstance(raw, dict):
        raw = {"gateway": raw}
    try:
        assert isinstance(settings_from(raw), Settings)
    except SettingsError as wrong:
        assert str(wrong)

"""Accounts, money and books on the command line: what is written, shown, refused and forgotten."""

import csv
import io
import subprocess
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path

import pytest

from gateway.cli.account_facts import assigned
from ledger.clock import SystemClock
from ledger.identity import mint_id
from streams.kafka.access import KafkaAccess
from streams.local.layout import Layout
from streams.log.registry import RegistryLog
from tests.cli.books import dead_spool, run, run_json
from tests.support import events as say
from tests.support.events import START
from tests.support.kafka import settings_file
from tests.support.processes import (
    CLI,
    backend,
    call,
    environment,
    gateway,
    tollbook,
    tollbook_json,
    wait_until,
)

Where = tuple[str, ...]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def where(data: Path) -> Where:
    return ("--data", str(data))


def tenants(where: Where) -> tuple[str, str]:
    """One organization and one project in it: their ids."""
    payer = run_json("accounts", "create-organization", "Uni", "--tag", "cost=4711", *where)
    made = run_json("accounts", "create-project", "Vision", "--organization", "Uni", *where)
    assert made["organization"] == payer["id"]
    return payer["id"], made["id"]


def refused(*args: str) -> str:
    """What a command says that is refused for what the books hold."""
    done = run(*args)
    assert (done.exit_code, done.stdout) == (1, ""), done.output
    assert done.stderr.startswith("tollbook: ")
    return done.stderr


def priced(data: Path) -> None:
    """A unit of EUR for a million tokens of any kind of model m, from START on."""
    draft = say.price(
        "p1", {"uncached_in": "1", "cached_in": "1", "other_out": "1"}, currency="EUR"
    )
    RegistryLog(Layout(data).registry, f"/cli/t/{mint_id()}", clock=SystemClock()).append(
        lambda book: draft
    )


def test_a_tree_of_accounts(where: Where) -> None:
    payer, id_ = tenants(where)
    key = run_json("keys", "create", "--name", "Ada", "--project", "Vision", "--tag", "a=1", *where)
    assert (key["project"], key["tags"], key["scope"]) == (id_, {"a": "1"}, None)
    loose = run_json("keys", "create", "--name", "Bob", *where)
    tree = run_json("accounts", "list", *where)
    (node,) = tree["organizations"]
    assert (node["id"], node["name"], node["tags"]) == (payer, "Uni", {"cost": "4711"})
    assert [(one["name"], [k["name"] for k in one["keys"]]) for one in node["projects"]] == [
        ("Vision", ["Ada"])
    ]
    assert [one["id"] for one in tree["keys_without_project"]] == [loose["id"]]
    shown = run("accounts", "list", "--csv", "--keys", *where)
    rows = list(csv.DictReader(io.StringIO(shown.stdout)))
    assert [(row["kind"], row["name"], row["belongs to"], row["tags"]) for row in rows] == [
        ("organization", "Uni", "", "cost=4711"),
        ("project", "Vision", payer, ""),
        ("key", "Ada", id_, "a=1"),
        ("key", "Bob", "", ""),
    ]
    assert "1 key belongs to no project" in run("accounts", "list", *where).stdout
    listed = run_json("keys", "list", *where)["keys"]
    assert [(one["name"], one["project"]) for one in listed] == [("Ada", id_), ("Bob", None)]
    assert "Vision" in run("keys", "list", *where).stdout


def test_a_key_moves_on_the_command_line(where: Where) -> None:
    _, id_ = tenants(where)
    key = run_json("keys", "create", "--name", "Ada", *where)["id"]
    assert run_json("keys", "move", "Ada", "--project", "Vision", *where)["project"] == id_
    assert "already" in refused("keys", "move", "Ada", "--project", id_, *where)
    assert run_json("keys", "move", key, "--no-project", *where)["project"] is None
    system = run_json("keys", "move", "key_system", "--project", "Vision", *where)
    assert (system["id"], system["project"]) == ("key_system", id_)
    assert run("keys", "move", "Ada", *where).exit_code == 2
    assert "did you mean 'Vision'" in refused("keys", "move", "Ada", "--project", "visoin", *where)


def test_tags_names_and_closing(where: Where) -> None:
    _, id_ = tenants(where)
    run_json("keys", "create", "--name", "Ada", "--project", "Vision", *where)
    assert run_json("accounts", "tag", "Vision", "team=a", "x=1", *where)["tags"] == {
        "team": "a",
        "x": "1",
    }
    assert run_json("accounts", "tag", "Vision", "--remove", "x", *where)["tags"] == {"team": "a"}
    assert run("accounts", "tag", "Vision", *where).exit_code == 2
    assert "called 'Vision' already" in refused(
        "accounts", "create-project", "Vision", "--organization", "Uni", *where
    )
    assert "would go on as before" in refused("accounts", "close", "Vision", *where)
    run_json("keys", "revoke", "Ada", *where)
    assert run_json("accounts", "close", "Vision", *where)["closed"] is True
    closed = refused("keys", "create", "--name", "Eve", "--project", "Vision", *where)
    assert "--reopen" in closed
    assert [key["name"] for key in run_json("keys", "list", *where)["keys"]] == ["Ada"]
    assert run_json("accounts", "close", "Vision", "--reopen", *where)["closed"] is False
    run_json("accounts", "rename", "Vision", "Seeing", *where)
    assert run_json("accounts", "tag", "Seeing", "x=2", *where)["id"] == id_


def test_a_name_is_forgotten_and_all_that_was_counted_stays(data: Path, where: Where) -> None:
    tenants(where)
    key = run_json("keys", "create", "--name", "Ada Lovelace", "--project", "Vision", *where)["id"]
    priced(data)
    dead_spool(data, *say.life("r1", key_id=key))
    before = run_json("bill", "--month", "2026-11", *where)["rows"]
    assert before[0]["name"] == "Ada Lovelace"
    run_json("accounts", "forget", "Ada Lovelace", *where)
    assert "has no name" in refused("accounts", "forget", key, *where)
    (row,) = run_json("bill", "--month", "2026-11", *where)["rows"]
    assert row == before[0] | {"name": None}
    for verb in ("audit", "rebuild"):
        assert run(verb, *where).exit_code == 0
    for path in data.rglob("*"):
        if path.is_file():
            assert b"Lovelace" not in path.read_bytes(), f"{path} holds a name"


def test_an_admin_key_uses_no_model(where: Where) -> None:
    key = run_json("keys", "create", "--name", "root", "--admin", *where)
    assert (key["scope"], key["models"]) == ("admin", [])
    both = run("keys", "create", "--name", "root", "--admin", "--models", "m", *where)
    assert both.exit_code == 2 and "uses no model" in both.stderr
    assert run_json("keys", "revoke", "root", *where)["scope"] == "admin"
    assert " admin " in run("keys", "list", *where).stdout


def test_money_comes_in_is_used_and_is_left(data: Path, where: Where) -> None:
    payer, id_ = tenants(where)
    key = run_json("keys", "create", "--name", "Ada", *where)["id"]
    registry = RegistryLog(Layout(data).registry, f"/cli/t/{mint_id()}", clock=SystemClock())
    registry.append(lambda book: assigned(book, key, id_, {}, START))
    priced(data)
    money = ("--currency", "eur", "--reason", "invoice 7", "--from", "2026-11-01", *where)
    first = run_json("credits", "top-up", "Uni", "100.00", *money)
    assert first["postings"] == [
        {"account": f"organization/{payer}", "currency": "EUR", "amount": "100"},
        {"account": "cash", "currency": "EUR", "amount": "-100"},
    ]
    run_json("credits", "transfer", "Uni", "Vision", "40", *money)
    wrong = run_json("credits", "adjust", "Vision", "-3.5", *money)
    run_json("credits", "undo", wrong["entry"], "--reason", "typing error", *where)
    assert "undone already" in refused("credits", "undo", wrong["entry"], "--reason", "x", *where)
    run_json("credits", "refund", "Uni", "10", *money)
    run_json("credits", "grant", "Vision", "1", *money)
    plan = ("--currency", "EUR", "--reason", "plan", "--month", "2026-11", *where)
    run_json("credits", "budget", "Vision", "0.00001", *plan)
    # 12 tokens in and 4 out, of which none is free.
    dead_spool(data, *say.life("r1", key_id=key))
    found = {one["account"]: one for one in run_json("credits", "balance", *where)["accounts"]}
    assert found[f"organization/{payer}"]["balance"] == "50"
    assert found[f"project/{id_}"] == {
        "account": f"project/{id_}",
        "name": "Vision",
        "currency": "EUR",
        "moved": "41",
        "used": "0.000016",
        "balance": "40.999984",
        "unpriced_tokens": 0,
        "unknown_requests": 0,
    }
    before = run_json("credits", "balance", "Vision", "--at", "2026-11-02", *where)["accounts"]
    assert [one["balance"] for one in before] == ["41"]
    listed = run_json("credits", "list", "Vision", *where)
    assert [one["kind"] for one in listed["entries"]] == [
        "adjustment",
        "adjustment",
        "adjustment",
        "grant",
        "budget",
    ]
    (budget,) = listed["budgets"]
    assert (budget["used"], budget["left"], budget["open"]) == ("0.000016", "-0.000006", True)
    assert "2026-11 is open" in run("credits", "list", *where).stdout
    assert "no month is closed yet" in run("credits", "balance", *where).stdout
    rows = list(csv.DictReader(io.StringIO(run("credits", "list", "--csv", *where).stdout)))
    assert [row["left"] for row in rows if row["kind"] == "budget"] == ["-0.000006"]
    assert len(rows) == 8
    assert run("audit", *where).exit_code == 0


@pytest.mark.parametrize("amount", ["1e3", "0", "-1", "1,50", "1.0000000000001", "ten"])
def test_what_is_no_amount_changes_nothing(where: Where, amount: str) -> None:
    tenants(where)
    done = run(
        "credits", "grant", "Vision", "--currency", "EUR", "--reason", "x", *where, "--", amount
    )
    assert done.exit_code == 2 and "amount" in done.stderr
    assert run_json("credits", "list", *where) == {"entries": [], "budgets": []}


def test_a_movement_needs_a_reason_and_a_known_account(where: Where) -> None:
    tenants(where)
    money = ("--currency", "EUR", *where)
    assert "missing option '--reason'" in run("credits", "grant", "Vision", "1", *money).output
    assert run("credits", "grant", "Vision", "1", "--reason", " ", *money).exit_code == 2
    unknown = refused("credits", "grant", "Vison", "1", "--reason", "x", *money)
    assert "did you mean 'Vision'" in unknown
    assert "credits list" in refused("credits", "undo", "budget/9", "--reason", "x", *where)


def test_how_the_books_are_kept(where: Where) -> None:
    assert run("books", "set", *where).exit_code == 2
    wrong = run("books", "set", "--zone", "Europe/Berln", *where)
    assert wrong.exit_code == 2 and "did you mean Europe/Berlin?" in wrong.stderr
    told = run_json("books", "set", "--zone", "Europe/Berlin", "--issuer", "The Lab", *where)
    assert told == run_json("books", "show", *where)
    assert told == {
        "zone": "Europe/Berlin",
        "rounding": "half_even",
        "issuer": "The Lab",
        "version": 1,
        "closed_up_to": None,
    }
    assert "nothing was written" in refused("books", "set", "--rounding", "half_even", *where)
    assert "The Lab" in run("books", "show", *where).stdout


def test_money_that_comes_in_at_once_is_all_there(data: Path, where: Where) -> None:
    """Commands race for the registry; none is lost, and of equal budgets only one has an effect."""
    tenants(where)
    money = ("--currency", "EUR", "--reason", "at once", "--data", str(data))
    commands = [("credits", "top-up", "Vision", str(10**n), *money) for n in range(3)]
    commands += [("credits", "budget", "Vision", "7", *money)] * 2
    with ExitStack() as stack:
        waiting = [
            stack.enter_context(
                subprocess.Popen(
                    (*CLI, *command),
                    env=environment(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for command in commands
        ]
        said = [process.communicate(timeout=60)[0] for process in waiting]
    codes = [process.returncode for process in waiting]
    assert codes[:3] == [0, 0, 0] and sorted(codes[3:]) == [0, 1], said
    (found,) = run_json("credits", "balance", *where)["accounts"]
    assert found["balance"] == "111"
    (budget,) = run_json("credits", "list", *where)["budgets"]
    assert budget["budget"] == "7"


@pytest.mark.e2e
def test_accounts_and_money_where_the_registry_is_on_kafka(
    tmp_path: Path, kafka: KafkaAccess, postgres_url: str
) -> None:
    config = settings_file(tmp_path, kafka, postgres_url)
    where = "--config", str(config), "--data", str(tmp_path / "none")
    payer, id_ = tenants(where)
    key = run_json("keys", "create", "--name", "Ada", "--project", "Vision", *where)
    assert key["project"] == id_
    money = ("--currency", "EUR", "--reason", "invoice 7", *where)
    entry = run_json("credits", "top-up", "Vision", "25", *money)["entry"]
    run_json("credits", "undo", entry, "--reason", "it bounced", *where)
    assert "undone already" in refused("credits", "undo", entry, "--reason", "again", *where)
    run_json("credits", "budget", "Vision", "10", *money)
    assert "nothing was written" in refused("credits", "budget", "Vision", "10", *money)
    run_json("books", "set", "--zone", "Europe/Berlin", *where)
    (node,) = run_json("accounts", "list", *where)["organizations"]
    assert (node["id"], [one["name"] for one in node["projects"]]) == (payer, ["Vision"])
    assert [one["name"] for one in node["projects"][0]["keys"]] == ["Ada"]
    kinds = [one["kind"] for one in run_json("credits", "list", *where)["entries"]]
    assert kinds == ["top_up", "adjustment", "budget"]


@pytest.mark.e2e
def test_money_of_a_gateway_that_serves(tmp_path: Path, data: Path) -> None:
    """Real processes: a key's use leaves its project's balance, and an admin's key uses nothing."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    tollbook_json(data, "accounts", "create-organization", "Uni")
    tollbook_json(data, "accounts", "create-project", "Vision", "--organization", "Uni")
    priced(data)
    with backend(tmp_path, models="m") as server, gateway(data, [server.url]) as door:
        key = tollbook_json(data, "keys", "create", "--name", "Ada", "--project", "Vision")["key"]
        admin = tollbook_json(data, "keys", "create", "--name", "root", "--admin")["key"]
        money = ("--currency", "EUR", "--reason", "invoice 7")
        tollbook_json(data, "credits", "top-up", "Vision", "5", *money)

        def asked(secret: str) -> int:
            return call(f"{door.url}/v1/chat/completions", body, key=secret).status

        wait_until("the new key opens", lambda: asked(key) == 200, seconds=2)
        wait_until("the admin's key is known", lambda: asked(admin) != 401, seconds=2)
        assert asked(admin) == 403
        door.kill()
    (line,) = tollbook_json(data, "bill")["rows"]
    (found,) = tollbook_json(data, "credits", "balance")["accounts"]
    assert line["cost"] == found["used"] != "0"
    assert Decimal(found["balance"]) == 5 - Decimal(line["cost"])
    assert tollbook(data, "audit").returncode == 0

"""The outcome of the last comparison with the engines reaches the metrics."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

from gateway.cli.write import COMPARE_SECONDS, Comparing
from gateway.reconciled import gauges_of, reconcile_gauges
from ledger.events import Draft
from ledger.folds.reconcile import Checked
from ledger.sql.session import open_ledger
from streams.local.layout import Layout
from streams.local.reckoned import RECKONED, read_reckoned, write_reckoned
from streams.local.runner import Runner
from tests.ledger.ledgers import Feeder, scribed
from tests.support import events as say
from tests.support.events import SOURCE, START

NAME = "tollbook_reconcile_difference_tokens"
AGE = "tollbook_reconcile_checked_seconds"


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds


def told(out: int) -> list[Draft]:
    """One request of 4 tokens, and an engine that counted `out` meanwhile."""
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    first, last = dict(zip(names, (0, 0), strict=True)), dict(zip(names, (12, out), strict=True))
    return [
        say.counted("b-1", 1, say.after(-700), first),
        *say.life("r", say.after(-300), duration_us=1_000_000, first_token_us=1000),
        say.counted("b-1", 2, say.after(-60), last),
        say.mark(SOURCE, 1, say.after(-30), {}),
    ]


def values(gauges: Iterable[tuple[str, str, dict[str, str], float]]) -> dict[str, float]:
    return {" ".join([name, *labels.values()]): value for name, _, labels, value in gauges}


def test_the_runner_leaves_what_it_found_for_the_gateway(tmp_path: Path) -> None:
    layout, clock = Layout(tmp_path), Clock()
    layout.make()
    assert not list(reconcile_gauges(tmp_path, clock))
    with open_ledger(layout.ledger) as ledger:
        runner = Runner(layout, ledger, clock, say=print, name="test")
        runner.step()
        assert read_reckoned(tmp_path) is None
        Feeder(ledger).feed(scribed(told(out=104)))
        runner.step()
        assert read_reckoned(tmp_path) is None, "not more often than it should"
        clock.seconds = 200
        runner.step()
        runner.close()
    found = read_reckoned(tmp_path)
    assert found == Checked(clock.now(), {"b-1": {"in": 0, "out": 100}})
    clock.seconds = 230
    shown = values(reconcile_gauges(tmp_path, clock))
    assert shown == {f"{NAME} b-1 in": 0, f"{NAME} b-1 out": 100, AGE: 30}


def test_the_writer_compares_when_it_is_asked_and_not_too_often(tmp_path: Path) -> None:
    path, clock = tmp_path / "ledger.db", Clock()
    compare = Comparing(path, clock)
    assert not list(compare.gauges()), "there is no ledger yet"
    with open_ledger(path) as ledger:
        Feeder(ledger).feed(scribed(told(out=1)))
    assert not list(compare.gauges())
    clock.seconds = COMPARE_SECONDS
    assert values(compare.gauges())[f"{NAME} b-1 out"] == -3
    path.unlink()
    clock.seconds = 3 * COMPARE_SECONDS
    assert values(compare.gauges())[AGE] == 2 * COMPARE_SECONDS


def test_half_a_file_is_none(tmp_path: Path) -> None:
    write_reckoned(tmp_path, Checked(START, {"b": {"out": 7}}))
    assert read_reckoned(tmp_path) == Checked(START, {"b": {"out": 7}})
    (tmp_path / RECKONED).write_bytes(b'{"at":"20')
    assert read_reckoned(tmp_path) is None
    assert not list(gauges_of(None, START))

"""What is said of every failure: the place, the reason, the way out; a bug keeps its traceback."""

import errno

import click
import pytest

from gateway.cli.failure import EXTRAS, KNOWN, explain, usage_text
from gateway.cli.main import main
from gateway.cli.progress import DELAY_SECONDS, Progressing, progress
from gateway.settings import SettingsError
from ledger.errors import LedgerUnavailable
from streams.errors import LogCorrupt


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (LedgerUnavailable("the ledger is away"), "the ledger is away"),
        (LogCorrupt("broken"), "broken"),
        (SettingsError("port"), "port"),
        (OSError(errno.ENOSPC, "No space left", "/d/x"), "/d/x: No space left; the disk takes"),
        (PermissionError(errno.EACCES, "Permission denied", "/d"), "as the user who owns it"),
        (FileNotFoundError(errno.ENOENT, "No such file", "/d"), "/d: No such file"),
        (OSError("odd"), "odd"),
        (ModuleNotFoundError("no", name="pyarrow.parquet"), 'pip install "tollbook[export]"'),
    ],
)
def test_a_known_failure_has_words(wrong: Exception, words: str) -> None:
    assert isinstance(wrong, KNOWN)
    assert words in (explain(wrong) or "")


def test_a_module_of_ours_that_is_missing_is_a_bug() -> None:
    assert explain(ModuleNotFoundError("no", name="ledger.nowhere")) is None
    assert set(EXTRAS.values()) == {
        "ledger",
        "export",
        "gateway",
        "kafka",
        "postgres",
        "demo",
        "dev",
    }


def test_a_usage_error_says_where_its_help_is() -> None:
    context = click.Context(click.Command("list"), info_name="tollbook keys list")
    text = usage_text(click.UsageError("No such option: --x.", ctx=context))
    assert text == "tollbook: no such option: --x\nSee `tollbook keys list --help`."


def test_a_bug_keeps_its_traceback_and_ctrl_c_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bug(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(click.Group, "main", bug)
    with pytest.raises(ZeroDivisionError):
        main([])

    def interrupted(*_: object, **__: object) -> None:
        raise click.Abort

    monkeypatch.setattr(click.Group, "main", interrupted)
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 130 and "interrupted" in capsys.readouterr().err


def test_progress_shows_nothing_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("work") as tell:
        tell(1, 2)
        tell.step("other work", 3)
    assert capsys.readouterr().err == ""


def test_progress_appears_after_a_while_and_goes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    told = Progressing("work", visible=False)
    told(1, 1000)
    told._show()
    told.step("other [work]", 1234, 2000)
    told.end()
    assert "other [work]" in capsys.readouterr().err
    told._show()
    assert capsys.readouterr().err == "", "work that has ended is not shown"


def test_progress_of_short_work_never_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DELAY_SECONDS >= 1
    shown = []
    monkeypatch.setattr(Progressing, "_show", lambda told: shown.append(told))
    told = Progressing("work", visible=True)
    told.end()
    told._timer.join(5)
    assert not told._timer.is_alive() and not shown

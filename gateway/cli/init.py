"""`tollbook init`: a commented tollbook.toml, written from the table of settings."""

import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

import click

from gateway.cli.failure import Stop
from gateway.settings import CONFIG_DEFAULT, LISTS, Field, fields

_WIDTH: Final = 96

_HEAD: Final = """\
# tollbook.toml: everything that Tollbook can be told. Every value below is the default, so
# a line may be removed. Sizes are bytes or text such as "256 MiB". docs/configuration.md has more.
"""

_LISTS: Final = {
    "backends": "One block for each model server; take away the first sign of each line to use it.",
    "policies": "One block for each model that goes by rules of its own.",
    "fallbacks": "One block for each model for which others may answer.",
}
"""What stands above the example of a table that there may be several of."""

_EXAMPLES: Final = {
    ("backends", "url"): '"http://127.0.0.1:8000"',
    ("backends", "name"): '"gpu-1"',
    ("backends", "key"): '"env:BACKEND_KEY"',
    ("policies", "model"): '"llama"',
    ("fallbacks", "model"): '"llama"',
    ("fallbacks", "to"): '["llama-q4"]',
    ("ledger", "url"): '"postgresql+psycopg://tollbook@db.example/tollbook"',
    ("kafka", "ca_file"): '"kafka-ca.pem"',
    ("kafka", "cert_file"): '"tollbook.pem"',
    ("kafka", "key_file"): '"tollbook.key"',
    ("kafka", "sasl_username"): '"tollbook"',
    ("kafka", "sasl_password"): '"env:KAFKA_PASSWORD"',
}
"""What stands, as a comment, for the settings that have no default."""


@click.command("init", short_help="Write a commented tollbook.toml.")
@click.argument(
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=CONFIG_DEFAULT,
    metavar="[PATH]",
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def command(path: Path, force: bool) -> None:
    """Write a commented tollbook.toml with every setting and its default."""
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(config_text(fields()))
    except FileExistsError:
        raise Stop(
            f"{path} is already there and was left as it is; "
            "give another path, or --force to replace it"
        ) from None
    except FileNotFoundError:
        raise Stop(f"there is no directory {path.parent}; make it first") from None
    click.echo(f"wrote {path}; add a [[backends]] block, then run `tollbook serve`")


def config_text(table: Iterable[Field]) -> str:
    """The text of a tollbook.toml that loads to exactly the defaults. Pure."""
    parts = [_HEAD]
    for section, group in groupby(table, key=lambda field: field.section):
        if section in LISTS:
            lines = "\n".join(_lines(group))
            example = textwrap.indent(f"[[{section}]]\n{lines}", "# ", lambda line: True)
            parts.append(
                f"# {_LISTS[section]}\n" + "\n".join(line.rstrip() for line in example.split("\n"))
            )
        else:
            parts.append("\n".join([f"[{section}]", *_lines(group)]))
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _lines(table: Iterable[Field]) -> Iterator[str]:
    for field in table:
        choices = f" One of: {', '.join(field.choices)}." if field.choices else ""
        for line in textwrap.wrap(field.about + choices, _WIDTH):
            yield f"# {line}"
        value = field.default or _EXAMPLES[field.section, field.name]
        # In a block that is itself a comment, what need not be given stays one when it is used.
        optional = field.default is None or field.section in LISTS
        yield f"{'# ' if optional and not field.required else ''}{field.name} = {value}"

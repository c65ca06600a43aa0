"""Options that name tags, projects and organizations; several verbs share them."""

from typing import Final

import click

from gateway.cli.account_facts import parse_tag
from gateway.cli.options import Command, Parsed

TAG: Final = Parsed("name=value", parse_tag)


def tag_option(command: Command) -> Command:
    """`--tag NAME=VALUE`, as often as there are tags."""
    return click.option(
        "--tag",
        "tags",
        type=TAG,
        multiple=True,
        metavar="NAME=VALUE",
        help="A tag; it stands in facts that are kept for ever, so it is no place for a person's "
        "name. May be given several times.",
    )(command)

"""Command lines as click reads them, without running anything."""

from collections.abc import Iterator

import click

from gateway.cli.main import main


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command that is not hidden."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        elif not command.hidden:
            yield (*path, name)


def parse(words: list[str]) -> None:
    """Parse a command line as click would, without running it; raises click's `UsageError`."""
    group: click.Command = main
    path = "tollbook"
    while isinstance(group, click.Group) and words:
        name, *words = words
        if name in ("--help", "--version"):
            return
        found = group.get_command(click.Context(group), name)
        if found is None:
            raise click.UsageError(f"{path} has no command {name}")
        group, path = found, f"{path} {name}"
    group.make_context(path, words)

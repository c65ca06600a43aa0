"""The command `tollbook`: finds the verb, runs it, and says in words what went wrong.

A verb's module is imported only when the verb is used, and what is heavy only in its body, so that
a machine needs only the extra of its role and `tollbook keys list` answers at once. A verb parses,
calls and prints; it decides nothing about numbers.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import click

from gateway.cli.failure import EXIT_FAILED, EXIT_INTERRUPTED, KNOWN, explain, usage_text
from gateway.setting_values import nearest

VERBS: Final = {
    "init": "gateway.cli.init",
    "serve": "gateway.cli.serve",
    "keys": "gateway.cli.keys",
    "prices": "gateway.cli.prices",
    "books": "gateway.cli.books",
    "accounts": "gateway.cli.accounts",
    "credits": "gateway.cli.credits",
    "backends": "gateway.cli.backends",
    "shares": "gateway.cli.shares",
    "bill": "gateway.cli.bill",
    "invoice": "gateway.cli.invoice",
    "close": "gateway.cli.close",
    "periods": "gateway.cli.periods",
    "correct": "gateway.cli.correct",
    "export": "gateway.cli.export",
    "query": "gateway.cli.query",
    "explain": "gateway.cli.explain",
    "audit": "gateway.cli.audit",
    "verify": "gateway.cli.verify",
    "reconcile": "gateway.cli.reconcile",
    "rebuild": "gateway.cli.rebuild",
    "spool": "gateway.cli.spool",
    "sources": "gateway.cli.sources",
    "topics": "gateway.cli.topics",
    "write": "gateway.cli.write",
    "worker": "gateway.cli.worker",
    "dead-letters": "gateway.cli.dead_letters",
    "move": "gateway.cli.move",
    "dev": "gateway.cli.dev",
    "demo": "gateway.cli.demo",
    "runner": "gateway.cli.runner",
    "relay": "gateway.cli.relay",
    "reader": "gateway.cli.reader",
}
"""Verb to the module that holds it as `command`, in the order of the help text."""


class Verbs(click.Group):
    """The top of the command line: lazy verbs, and one way to report every failure."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(VERBS[cmd_name]).command
        assert isinstance(command, click.Command), f"{VERBS[cmd_name]} holds a verb as `command`"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        verb = args[0]
        if verb not in VERBS and not verb.startswith("-"):
            near = nearest(verb, VERBS)
            hint = f"did you mean {near}?" if near else "`tollbook --help` lists the commands"
            raise click.UsageError(f"there is no command {verb!r}; {hint}", ctx=None)
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run one command line and exit: 0 well, 1 refused or a difference, 2 wrong usage."""
        sys.exit(self._run(args, prog_name or "tollbook", complete_var, **extra))

    def _run(
        self, args: Sequence[str] | None, name: str, complete_var: str | None, **extra: Any
    ) -> int:
        try:
            code: object = super().main(args, name, complete_var, standalone_mode=False, **extra)
        except click.UsageError as wrong:
            click.echo(usage_text(wrong), err=True)
            return wrong.exit_code
        except click.ClickException as wrong:
            click.echo(f"tollbook: {wrong.format_message()}", err=True)
            return wrong.exit_code
        except click.Abort:
            click.echo("tollbook: interrupted", err=True)
            return EXIT_INTERRUPTED
        except KNOWN as wrong:
            said = explain(wrong)
            if said is None:
                raise
            click.echo(f"tollbook: {said}", err=True)
            return EXIT_FAILED
        return code if isinstance(code, int) else 0


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    # Loaded only here: it reads the package's files on disk.
    from importlib.metadata import PackageNotFoundError, version

    try:
        click.echo(f"tollbook {version('tollbook')}")
    except PackageNotFoundError:
        click.echo("tollbook, run from its source without being installed")
    ctx.exit()


@click.group(
    cls=Verbs,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """The gateway that keeps the books for your own LLM servers.

    One OpenAI-compatible door in front of vLLM, llama.cpp and SGLang servers, and a bill that adds
    up. Begin with `tollbook demo`, or with `tollbook serve --backend http://127.0.0.1:8000`.
    """

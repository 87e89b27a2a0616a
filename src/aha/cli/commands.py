"""The command `aha` and its subcommands, of which only those are imported that are asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache, partial
from importlib import import_module
from typing import Annotated

import typer

from aha import __version__
from aha.cli.completion import answer_bash, asked_by_bash_about_a_colon

# Subcommand -> the module and the name of its function or of its own subcommands, in the order of the help.
_COMMANDS = {
    "explain": "explain:explain",
    "evaluate": "evaluate:evaluate",
    "bench": "bench:bench",
    "recommend": "recommend:recommend",
    "audit": "audit:audit",
    "report": "bench:report",
    "compare": "bench:compare",
    "merge": "bench:merge",
    "train": "train:train",
    "export": "train:export",
    "explainers": "explainers:app",
    "list": "listing:list_things",
    "doctor": "doctor:doctor",
    "demo": "demo:demo",
    "serve": "serve:serve",
}


def with_commands(names: Iterable[str]) -> typer.Typer:
    """The command `aha` with these subcommands; typer reads the options of all that it is given."""
    made = typer.Typer(
        name="aha",
        no_args_is_help=True,
        pretty_exceptions_enable=False,  # tracebacks are for --debug, and then plain ones
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(describe)
    for name in names:
        place, _, function = _COMMANDS[name].partition(":")
        found = getattr(import_module(f"aha.cli.{place}"), function)
        if isinstance(found, typer.Typer):  # a command of several
            made.add_typer(found, name=name)
        else:
            made.command(name)(found)
    return made


@cache
def whole_app() -> typer.Typer:
    """The command with all that it can do."""
    return with_commands(_COMMANDS)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"aha {__version__}")
        raise typer.Exit


def describe(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """See which pixels an image classifier relies on, and measure how far to trust the answer."""


def main() -> None:
    """Entry point of the command `aha`."""
    if asked_by_bash_about_a_colon():
        answer_bash(partial(whole_app(), prog_name="aha"))
        return
    asked = sys.argv[1:2]
    app = with_commands(asked) if asked and asked[0] in _COMMANDS else whole_app()
    app(prog_name="aha")

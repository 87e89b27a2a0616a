"""The command `aha` and its subcommands."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from aha import __version__
from aha.cli.bench import bench, compare, merge, report
from aha.cli.completion import answer_bash, asked_by_bash_about_a_colon
from aha.cli.demo import demo
from aha.cli.doctor import doctor
from aha.cli.evaluate import evaluate
from aha.cli.explain import explain
from aha.cli.listing import list_things
from aha.cli.recommend import recommend
from aha.cli.serve import serve
from aha.cli.train import export, train

app = typer.Typer(
    name="aha",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # tracebacks are for --debug, and then plain ones
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(explain)
app.command()(evaluate)
app.command()(bench)
app.command()(recommend)
app.command()(report)
app.command()(compare)
app.command()(merge)
app.command()(train)
app.command()(export)
app.command("list")(list_things)
app.command()(doctor)
app.command()(demo)
app.command()(serve)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"aha {__version__}")
        raise typer.Exit


@app.callback()
def describe(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Which pixels does an image classifier really rely on?"""


def main() -> None:
    """Entry point of the command `aha`."""
    if asked_by_bash_about_a_colon():
        answer_bash(partial(app, prog_name="aha"))
    else:
        app(prog_name="aha")

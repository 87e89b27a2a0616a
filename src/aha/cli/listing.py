"""`aha list`: models, methods, metrics, protocols and scores."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aha.cli.options import Debug, Json, Quiet
from aha.cli.reporting import print_json, reported
from aha.cli.texts import check_texts, complete_model

if TYPE_CHECKING:
    from aha.catalogue import Entry


class Kind(StrEnum):
    """What can be listed."""

    MODELS = "models"
    METHODS = "methods"
    METRICS = "metrics"
    PROTOCOLS = "protocols"
    SCORES = "scores"


def list_things(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    pattern: Annotated[str | None, typer.Argument(help="Part of the name, or a pattern such as 'vit_*_224'.")] = None,
    source: Annotated[str | None, typer.Option(help="Models of one source only: timm, torchvision, ...")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Only methods that work on this model (built with random weights).", autocompletion=complete_model
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """List models, methods, metrics, protocols or scores."""
    if source is not None and kind is not Kind.MODELS:
        raise typer.BadParameter("only models have a source", param_hint="--source")
    if model is not None and kind is not Kind.METHODS:
        raise typer.BadParameter("only methods depend on a model", param_hint="--model")
    with reported(debug=debug, quiet=quiet):
        from aha import catalogue

        check_texts(models=[] if model is None else [model])
        if kind is Kind.MODELS:
            entries = catalogue.models(source)
        elif kind is Kind.METHODS:
            entries = catalogue.methods(model)
        else:
            listed = {
                Kind.METRICS: catalogue.metrics,
                Kind.PROTOCOLS: catalogue.protocols,
                Kind.SCORES: catalogue.scores,
            }
            entries = listed[kind]()
        entries = [entry for entry in entries if catalogue.matches(entry.name, pattern)]
        if json:
            print_json([entry.as_dict() for entry in entries])
        elif kind is Kind.MODELS or quiet:
            # Over a thousand: plain lines, for grep and pipes.
            typer.echo("".join(f"{entry.name}\n" for entry in entries), nl=False)
        else:
            _print_table(entries)


def _print_table(entries: list[Entry]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # rows stay whole in files and pipes
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("name", "family", "needs", "summary"):
        table.add_column(title, no_wrap=title in ("name", "family"))
    for entry in entries:
        cells: list[Any] = [entry.name, entry.family, ", ".join(entry.needs), entry.summary]
        table.add_row(*map(Text, cells))
    console.print(table)

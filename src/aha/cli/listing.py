"""`aha list`: models, methods, metrics, protocols, references and scores."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from aha.cli.completion import complete_model
from aha.cli.options import Debug, Json, Quiet
from aha.cli.reporting import print_json, reported
from aha.cli.texts import check_texts

if TYPE_CHECKING:
    from aha.catalogue import Entry


class Kind(StrEnum):
    """What can be listed."""

    MODELS = "models"
    METHODS = "methods"
    METRICS = "metrics"
    PROTOCOLS = "protocols"
    REFERENCES = "references"
    SCORES = "scores"


# Kind -> what stands over each column, and what stands in it.
_COLUMNS = {
    Kind.METHODS: {
        "name": "name",
        "passes": "cost",
        "what it does": "summary",
        "needs": "needs",
        "parameters": "usage",
    },
    Kind.METRICS: {"name": "name", "what it measures": "summary", "needs": "needs", "parameters": "usage"},
    Kind.PROTOCOLS: {"name": "name", "what it measures": "summary", "needs": "needs"},
    Kind.REFERENCES: {"name": "name", "what removed pixels show": "summary", "parameters": "usage"},
    Kind.SCORES: {"name": "name", "what it is": "summary", "gives": "family"},
}


def list_things(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    pattern: Annotated[str | None, typer.Argument(help="Part of the name, or a pattern such as 'vit_*_224'.")] = None,
    source: Annotated[str | None, typer.Option(help="Models of one source only: timm, torchvision, ...")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Only methods that fit this model (built with random weights).", autocompletion=complete_model
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """List models, methods, metrics, protocols, references or scores.

    Passes are images that go forwards and backwards through a miniature network for one map with the default
    parameters; on real ones score_cam, ablation_cam, tis, caap and vit_cx take more.
    """
    if source is not None and kind is not Kind.MODELS:
        raise typer.BadParameter("only models have a source", param_hint="--source")
    if model is not None and kind is not Kind.METHODS:
        raise typer.BadParameter("only methods depend on a model", param_hint="--model")
    with reported(debug=debug, quiet=quiet):
        from aha import catalogue
        from aha.errors import UnknownName

        check_texts(models=[] if model is None else [model])
        options = {Kind.MODELS: [source], Kind.METHODS: [model]}.get(kind, [])
        entries: list[Entry] = getattr(catalogue, kind)(*options)
        entries = [entry for entry in entries if catalogue.matches(entry.name, pattern)]
        if not entries:
            raise UnknownName(_nothing_found(kind, pattern, source, model))
        if json:
            print_json([entry.as_dict() for entry in entries])
        elif kind is Kind.MODELS or quiet:
            # Over a thousand: plain lines, for grep and pipes.
            typer.echo("".join(f"{entry.name}\n" for entry in entries), nl=False)
        else:
            _print_table(entries, _COLUMNS[kind])


def _nothing_found(kind: Kind, pattern: str | None, source: str | None, model: str | None) -> str:
    """Why a list is empty, for people and scripts."""
    if source in ("hf", "clip", "python"):
        return f"{source} models cannot be listed; name a repository, a folder or a function"
    where = f" of {source}" * (source is not None) + f" that fit {model}" * (model is not None)
    return f"no {kind}{where} match {pattern!r}; `aha list {kind}` shows all"


def _print_table(entries: list[Entry], columns: Mapping[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # rows stay whole in files and pipes
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in columns:
        # A default longer than its column goes on in the next line: what is cut off cannot be typed.
        table.add_column(title, no_wrap=title == "name", overflow="fold")
    for entry in entries:
        cells = (entry.as_dict()[name] for name in columns.values())
        table.add_row(*(Text(cell if isinstance(cell, str) else ", ".join(cell)) for cell in cells))
    console.print(table)

"""`aha explainers`: those on this machine, and what becomes of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aha.cli.options import Debug, Json, Quiet
from aha.cli.reporting import answer, print_json, reported

if TYPE_CHECKING:
    from aha.learned.library import KnownExplainer

app = typer.Typer(no_args_is_help=True, help="Explainers on this machine: list, show or forget them.")

Named = Annotated[str, typer.Argument(metavar="EXPLAINER", help="Start of its digest, or its model.")]


@app.command("list")
def list_explainers(json: Json = False, quiet: Quiet = False, debug: Debug = False) -> None:
    """List what `--method aha` can use, in order of preference: remembered, shipped, universal."""
    with reported(debug=debug, quiet=quiet):
        from aha.learned.library import known_explainers

        entries = list(known_explainers())
        answer(lambda: [_facts(entry) for entry in entries], lambda: _lines(entries), json=json, quiet=quiet)


@app.command()
def show(explainer: Named, json: Json = False, quiet: Quiet = False, debug: Debug = False) -> None:
    """Show what an explainer was trained on, how, and its scores."""
    with reported(debug=debug, quiet=quiet):
        from aha.learned.explainer import model_card
        from aha.learned.library import find_entry

        entry = find_entry(explainer)
        if json:
            print_json({**_facts(entry), "config": asdict(entry.explainer.config)})
        elif not quiet:
            typer.echo(f"{entry.folder}\n\n{model_card(entry.explainer.config)}")


@app.command()
def forget(explainer: Named, quiet: Quiet = False, debug: Debug = False) -> None:
    """Remove a remembered explainer; `--method aha` then uses the shipped or the universal one again."""
    with reported(debug=debug, quiet=quiet):
        from aha.learned.library import find_entry
        from aha.learned.library import forget as remove

        entry = find_entry(explainer)
        remove(entry)
        if not quiet:
            typer.echo(f"Forgotten: {entry.explainer.config.target}")


def _facts(entry: KnownExplainer) -> dict[str, Any]:
    config = entry.explainer.config
    return {
        "digest": entry.explainer.digest,
        "origin": entry.origin,
        "model": config.target,
        "model_digest": config.target_digest,
        "form": config.form,
        "scores": dict(config.scores),
        "folder": str(entry.folder),
    }


def _lines(entries: list[KnownExplainer]) -> str:
    if not entries:
        return "none"
    rows = []
    for entry in entries:
        config = entry.explainer.config
        score = config.scores.get("ins_del")
        measured = "" if score is None else f"Ins-Del {score:.3f}"
        rows.append(f"{entry.explainer.digest[:8]}  {entry.origin:10}  {config.form:6}  {measured:14}  {config.target}")
    return "\n".join(rows)

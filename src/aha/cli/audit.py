"""`aha audit`: one method on one model and data, part by part, with verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aha.cli.bench import show_estimates
from aha.cli.limits import check_cost
from aha.cli.options import (
    NOT_STATED,
    Data,
    Debug,
    Device,
    Force,
    Json,
    Model,
    Quiet,
    Seed,
    Stated,
    out_folder,
    with_model_options,
)
from aha.cli.outlook import run_with_bar
from aha.cli.recommend import written
from aha.cli.reporting import answer, reported
from aha.cli.texts import check_paths, check_texts, complete_method

if TYPE_CHECKING:
    from aha.auditing.audit import Audit


@with_model_options()
def audit(
    model: Model,
    data: Data,
    method: Annotated[str, typer.Option(help="The method to audit.", autocompletion=complete_method)],
    against: Annotated[
        str | None,
        typer.Option(help="Compare the maps with: an explainer's folder, a run with maps, saved maps, or a method."),
    ] = None,
    thresholds: Annotated[
        Path | None, typer.Option(help="TOML file with your thresholds.", show_default="shipped")
    ] = None,
    headroom: Annotated[
        int | None, typer.Option(min=1, help="Also judge the headroom, by a search of so many images per map.")
    ] = None,
    out: Annotated[Path, out_folder(help="Audit folder; the same command resumes it.")] = Path("audit"),
    target: Annotated[str, typer.Option(help="Explained class: top1, label, an index or a name.")] = "top1",
    limit: Annotated[int, typer.Option(min=1, help="Number of images, a random sample by the seed.")] = 40,
    steps: Annotated[
        int, typer.Option(min=2, help="Steps of deletion and insertion, for each of six references.")
    ] = 16,
    options: Stated = NOT_STATED,
    batch_size: Annotated[int, typer.Option(min=1, help="Maximum batch size.")] = 8,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, try one image, and print the expected cost.")
    ] = False,
    seed: Seed = 0,
    device: Device = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Audit a method: fidelity, repeatability, stability, sensitivity, shortcuts, each with a verdict; one page.

    The exit code is 0 if all parts that could be judged passed, and 1 if one failed.
    """
    with reported(debug=debug, quiet=quiet):
        check_texts(models=[model], methods=[method], options=options)
        check_paths([data])

        from aha.auditing.run import prepare
        from aha.auditing.thresholds import read_thresholds
        from aha.models import load_model

        read_thresholds(thresholds)  # a slip in the file is said before the model is loaded
        loaded = load_model(model, device=device, **options)
        prepared = prepare(
            loaded,
            data,
            method,
            against=against,
            headroom=headroom,
            thresholds=thresholds,
            out=out,
            limit=limit,
            target=target,
            steps=steps,
            seed=seed,
            batch_size=batch_size,
            model_text=written(model, options),
        )
        for run in prepared.runs:
            check_cost(run.work.methods, run.model, force=force)
        if dry_run:
            show_estimates(prepared.runs, json=json)
            return
        said = f"finished results are in {out}; run the same command to resume"
        for run in prepared.begin():
            run_with_bar(run, lambda: said, quiet=quiet)
        conclude(prepared.settle(), json=json, quiet=quiet)


def conclude(found: Audit, *, json: bool, quiet: bool) -> None:
    """Says what an audit found; the exit code tells whether a part failed."""
    answer(found.as_dict, lambda: f"{found.to_text()}\n\npage: {found.page}", json=json, quiet=quiet)
    if not found.passed:
        raise typer.Exit(1)

"""`aha audit`: one method on one model and data, part by part, with verdicts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from aha.cli.bench import show_estimates
from aha.cli.limits import check_cost
from aha.cli.options import (
    Debug,
    Device,
    Engine,
    Fit,
    Force,
    ImageSize,
    Json,
    Mean,
    Model,
    NoPretrained,
    Precision,
    Quiet,
    Score,
    Seed,
    Std,
    Texts,
    Weights,
    named_folder,
    numbers,
)
from aha.cli.outlook import expected_seconds_of_run
from aha.cli.recommend import written
from aha.cli.reporting import INTERRUPTED, answer, bench_bar, reported, say_error
from aha.cli.texts import check_paths, check_texts, complete_method

if TYPE_CHECKING:
    from aha.auditing.audit import Audit


def audit(
    model: Model,
    data: Annotated[str, typer.Option(help="Your images: folder, CSV, tar shards, or KIND:PLACE as in `aha bench`.")],
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
    out: Annotated[
        Path, typer.Option(parser=named_folder, metavar="PATH", help="Audit folder; the same command resumes it.")
    ] = Path("audit"),
    target: Annotated[str, typer.Option(help="Explained class: top1, label, an index or a name.")] = "top1",
    limit: Annotated[int, typer.Option(min=1, help="Number of images, a random sample by the seed.")] = 40,
    steps: Annotated[
        int, typer.Option(min=2, help="Steps of deletion and insertion, for each of six references.")
    ] = 16,
    text: Texts = None,
    weights: Weights = None,
    no_pretrained: NoPretrained = False,
    img_size: ImageSize = None,
    mean: Mean = None,
    std: Std = None,
    fit: Fit = None,
    score: Score = None,
    precision: Precision = "float32",
    engine: Engine = "eager",
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
        check_texts(models=[model], methods=[method], scores=[score] if score else [])
        check_paths([data])

        from aha.auditing.run import prepare
        from aha.auditing.thresholds import read_thresholds
        from aha.models import load_model

        read_thresholds(thresholds)  # a slip in the file is said before the model is loaded
        options: dict[str, Any] = {
            "weights": None if weights is None else str(weights),
            "texts": text or None,
            "img_size": img_size,
            "mean": numbers(mean, "--mean"),
            "std": numbers(std, "--std"),
            "fit": fit,
            "score": score,
        }
        loaded = load_model(
            model,
            **options,
            pretrained=not no_pretrained,
            device=device,
            precision=cast("Any", precision),  # checked where it is used
            engine=cast("Any", engine),  # checked there too
        )
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
            model_text=written(
                model,
                **options,
                pretrained=False if no_pretrained else None,
                precision=None if precision == "float32" else precision,
                engine=None if engine == "eager" else engine,
            ),
        )
        for run in prepared.runs:
            check_cost(run.work.methods, run.model, force=force)
        if dry_run:
            show_estimates(prepared.runs, json=json)
            return
        for run in prepared.begin():
            cells = run.total // max(1, run.num_images)
            try:
                expected = partial(expected_seconds_of_run, run)
                with bench_bar(run.pending, cells, shown=not quiet, expected=expected) as advance:
                    run.run(advance)
            except KeyboardInterrupt:
                say_error(f"interrupted; finished results are in {out}; run the same command to resume")
                raise typer.Exit(INTERRUPTED) from None
        conclude(prepared.settle(), json=json, quiet=quiet)


def conclude(found: Audit, *, json: bool, quiet: bool) -> None:
    """Says what an audit found; the exit code tells whether a part failed."""
    answer(found.as_dict, lambda: f"{found.to_text()}\n\npage: {found.page}", json=json, quiet=quiet)
    if not found.passed:
        raise typer.Exit(1)

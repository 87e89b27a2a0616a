"""`aha evaluate`: how far maps can be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from aha.cli.options import (
    BatchSize,
    Debug,
    Device,
    Engine,
    ImageSize,
    Json,
    NoPretrained,
    Precision,
    Quiet,
    Seed,
    Weights,
)
from aha.cli.reporting import INTERRUPTED, print_json, progress_bar, reported, say_error
from aha.cli.texts import check_texts, complete_method, complete_metric, complete_model, complete_score

if TYPE_CHECKING:
    from aha.models.preprocessing import Fit
    from aha.results.score_table import Scores

_SHOWN_FAILURES = 20


def evaluate(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", help="Pictures, folders, or CSV files with labels, masks or boxes.")
    ],
    model: Annotated[
        str, typer.Option(help="SOURCE:NAME, as `aha list models` shows them.", autocompletion=complete_model)
    ],
    out: Annotated[Path, typer.Option(help="Folder for scores.csv and summary.csv; finished images are skipped.")],
    method: Annotated[
        list[str] | None, typer.Option(help="Repeatable; a method to judge.", autocompletion=complete_method)
    ] = None,
    maps: Annotated[Path | None, typer.Option(help="Folder of maps saved earlier (.npz, .npy) to judge.")] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(help="Repeatable; a protocol or a metric.", autocompletion=complete_metric, show_default="quick"),
    ] = None,
    target: Annotated[str, typer.Option(help="Explained classes: top1, top5, label, an index or a name.")] = "top1",
    weights: Weights = None,
    no_pretrained: NoPretrained = False,
    img_size: ImageSize = None,
    fit: Annotated[str | None, typer.Option(help="How pictures fit the input: crop, squash or pad.")] = None,
    score: Annotated[
        str, typer.Option(help="What is measured, as `aha list scores` shows.", autocompletion=complete_score)
    ] = "softmax",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many images.")] = None,
    precision: Precision = "float32",
    engine: Engine = "eager",
    seed: Seed = 0,
    device: Device = None,
    batch_size: BatchSize = 32,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure explanations: what the model says when the marked pixels go, or come first, and more.

    Finished images are skipped, so that the same command continues an interrupted run.
    """
    with reported(debug=debug, quiet=quiet):
        check_texts(models=[model], methods=method or [], metrics=metrics or [], scores=[score])

        from aha.bench.evaluation import EvaluationRun
        from aha.core.disk import check_writable
        from aha.data.labelled import find_labelled
        from aha.errors import SpecError
        from aha.methods import load_method
        from aha.metrics.protocols import load_protocols
        from aha.models import load_model
        from aha.models.scores import load_score
        from aha.results.saved_maps import find_maps

        if not method and maps is None:
            raise SpecError("nothing to judge; name a --method, or a folder of --maps")
        methods = [load_method(text) for text in method or []]
        protocols = load_protocols(metrics or ["quick"])
        chosen_score = load_score(score)
        check_writable(out)
        images = find_labelled(paths)[:limit]
        saved = [] if maps is None else find_maps(maps, [image.path for image in images])
        loaded = load_model(
            model,
            weights=weights,
            pretrained=not no_pretrained,
            img_size=img_size,
            fit=cast("Fit | None", fit),  # checked where it is used
            score=chosen_score,
            device=device,
            precision=cast("Any", precision),  # checked there too
            engine=cast("Any", engine),
            batch_size=batch_size,
        )
        run = EvaluationRun(loaded, images, methods, saved, protocols, out, target=target, seed=seed)
        try:
            with progress_bar("evaluating", run.pending, shown=not quiet) as advance:
                run.run(batch_size, advance)
        except KeyboardInterrupt:
            say_error(f"interrupted; {len(run.scores)} scores are in {out}; the same command continues")
            raise typer.Exit(INTERRUPTED) from None
        _report(run.scores, out, json=json, quiet=quiet)


def _report(scores: Scores, out: Path, *, json: bool, quiet: bool) -> None:
    if json:
        print_json(
            {
                "scores": str(out / "scores.csv"),
                "summary": [row._asdict() for row in scores.summary()],
                "failures": [failure._asdict() for failure in scores.failures],
            }
        )
    elif scores.rows and not quiet:
        typer.echo(scores.to_markdown())
        typer.echo(f"\n{len(scores)} scores: {out / 'scores.csv'}")
    for failure in scores.failures[:_SHOWN_FAILURES]:
        say_error(" ".join(part for part in (failure.method, failure.metric, failure.reason) if part))
    if len(scores.failures) > _SHOWN_FAILURES:
        say_error(f"and {len(scores.failures) - _SHOWN_FAILURES} more; --json lists all of them")
    if scores.failures:
        raise typer.Exit(1)

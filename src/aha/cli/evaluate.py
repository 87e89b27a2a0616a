"""`aha evaluate`: how far maps can be trusted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aha.cli.limits import check_cost
from aha.cli.options import (
    NOT_STATED,
    BatchSize,
    Debug,
    Device,
    Force,
    Json,
    Limit,
    Model,
    Quiet,
    Seed,
    Stated,
    out_folder,
    with_model_options,
)
from aha.cli.outlook import run_with_bar
from aha.cli.reporting import print_json, reported, say_error
from aha.cli.texts import check_paths, check_texts, complete_method, complete_metric

if TYPE_CHECKING:
    from aha.results.score_table import Failure, Scores

_SHOWN_FAILURES = 20


@with_model_options()
def evaluate(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Images, folders, CSV files with labels, masks or boxes, or data sets."),
    ],
    model: Model,
    out: Annotated[Path, out_folder(help="Run folder, with scores.csv and summary.csv.")],
    method: Annotated[
        list[str] | None, typer.Option(help="Repeatable; a method to measure.", autocompletion=complete_method)
    ] = None,
    maps: Annotated[Path | None, typer.Option(help="Folder of saved maps (.npz, .npy) to measure.")] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(help="Repeatable; a protocol or a metric.", autocompletion=complete_metric, show_default="quick"),
    ] = None,
    target: Annotated[
        str, typer.Option(help="Explained classes: top1, top5, label, an index or a name; or another target's text.")
    ] = "top1",
    options: Stated = NOT_STATED,
    limit: Limit = None,
    seed: Seed = 0,
    device: Device = None,
    batch_size: BatchSize = 32,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure explanations: how the score changes as the top pixels are removed or put back, and more.

    A run of `aha bench` without its page; `aha report` makes that of it. Finished images are skipped, so that the same
    command continues an interrupted run.
    """
    with reported(debug=debug, quiet=quiet):
        check_texts(models=[model], methods=method or [], metrics=metrics or [], options=options)
        check_paths(paths)

        from aha.bench.plan import make_plans
        from aha.bench.reporting.exports import write_tables
        from aha.bench.runner import BenchRun
        from aha.errors import SpecError

        if not method and maps is None:
            raise SpecError("nothing to measure; name a --method, or a folder of --maps")
        (plan,) = make_plans(
            {
                "model": model,
                "data": paths,
                "methods": method or [],
                "saved": "" if maps is None else str(maps),
                "metrics": metrics or ["quick"],
                "targets": [target],
                **options,
                "limit": limit,
                "seed": seed,
                "batch_size": batch_size,
            },
            source="the command",
        )
        run = BenchRun(plan, out, device=device)
        check_cost(run.work.methods, run.model, force=force)
        run_with_bar(
            run, lambda: f"{len(write_tables(run))} scores are in {out}; run the same command to resume", quiet=quiet
        )
        _report(write_tables(run), out, json=json, quiet=quiet)


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
        typer.echo(scores.to_text())
        typer.echo(f"\n{len(scores)} scores: {out / 'scores.csv'}")
    if scores.failures and not scores.rows:
        say_error("nothing could be measured:")
    lines = _lines(scores.failures)
    for line in lines[:_SHOWN_FAILURES]:
        say_error(line)
    if len(lines) > _SHOWN_FAILURES:
        say_error(f"and {len(lines) - _SHOWN_FAILURES} more; --json lists all of them")
    if scores.failures:
        raise typer.Exit(1)


def _lines(failures: Sequence[Failure]) -> list[str]:
    """Failures for people; what fails for several methods alike, such as reading a picture, is said once."""
    methods: dict[tuple[str, str], set[str]] = defaultdict(set)
    for failure in failures:
        methods[failure.metric, failure.reason].add(failure.method)
    lines = []
    for (metric, reason), names in methods.items():
        what = " ".join([*(names if len(names) == 1 else ()), *([metric] if metric else ())])
        lines.append(f"{what}: {reason}" if what else reason)
    return lines

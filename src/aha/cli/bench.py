"""`aha bench`, `aha report`, `aha compare`, `aha merge`: benchmarks from a plan to a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aha.cli.completion import complete_model
from aha.cli.limits import check_cost
from aha.cli.options import (
    MAX_SEED,
    NOT_STATED,
    Debug,
    Device,
    Force,
    Json,
    Limit,
    On,
    Quiet,
    Stated,
    Workers,
    out_folder,
    with_model_options,
)
from aha.cli.outlook import run_with_bar
from aha.cli.reporting import answer, fail, print_json, reported
from aha.cli.texts import check_paths, check_place, check_texts, complete_method, complete_metric
from aha.core.progress_line import duration
from aha.errors import OutputError, deprecated

TRUTH = "truth:"
"""Before the name of a generated set."""

if TYPE_CHECKING:
    from aha.bench.estimate import Estimate
    from aha.bench.plan import Plan
    from aha.bench.run_reader import Run
    from aha.bench.runner import BenchRun


@with_model_options()
def bench(
    plan: Annotated[
        str | None,
        typer.Argument(help="A plan (TOML), a published table (paper:aha-table1) or a generated set (truth:list)."),
    ] = None,
    out: Annotated[Path | None, out_folder(help="Run folder; finished results in it are skipped.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Repeatable; SOURCE:NAME; see `aha list models`.", autocompletion=complete_model),
    ] = None,
    weights: Annotated[list[str] | None, typer.Option(help="Weights file; one per model, in their order.")] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Folder, CSV, tar shards, or KIND:PLACE "
            "(imagenet, imagenet-s, imagenet-segmentation, pets, funnybirds, coco, hf)."
        ),
    ] = None,
    imagenet: Annotated[Path | None, typer.Option(help="ImageNet's folder; short for --data imagenet:DIR.")] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Repeatable; a method to measure.", autocompletion=complete_method)
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(help="Repeatable; a protocol or a metric.", autocompletion=complete_metric, show_default="quick"),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="Repeatable, reported separately: top1, label, top5, or another target's text.", show_default="top1"
        ),
    ] = None,
    limit: Limit = None,
    keep: Annotated[
        str | None, typer.Option("--filter", help="Image filter: none, or mda (the rule of MDA's code).")
    ] = None,
    keep_maps: Annotated[
        str | None,
        typer.Option(help="Maps to keep for the report: few, none, or all as float16 or float32.", show_default="few"),
    ] = None,
    maps: Annotated[str | None, typer.Option(hidden=True)] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=MAX_SEED, help="Random seed.", show_default="0")] = None,
    options: Stated = NOT_STATED,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum batch size; halved if memory runs out.", show_default="32"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, try one image, and print the expected cost.")
    ] = False,
    no_report: Annotated[
        bool, typer.Option("--no-report", help="Skip the report; `aha report` writes it later.")
    ] = False,
    on: On = None,
    workers: Workers = 2,
    device: Device = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure methods on a model and a data set. Options override the plan; the same command resumes a run.

    Runs as it is in one process, and under `torchrun`, `accelerate launch` or with `--on ray` in many, each with its
    share.
    """
    with reported(debug=debug, quiet=quiet):
        check_texts(models=model or [], methods=method or [], metrics=metrics or [], options=options)
        check_place(on)
        if maps is not None:
            deprecated("aha bench --maps", since="0.2", use="--keep-maps")
        check_paths(str(place) for place in (data, imagenet) if place is not None)
        from aha.bench.papers import PREFIX, paper_plans
        from aha.bench.plan import make_plans, read_plans
        from aha.bench.runner import BenchRun
        from aha.core.launch import launched_share
        from aha.errors import SpecError

        is_paper = plan is not None and plan.startswith(PREFIX)
        given: dict[str, Any] = {
            "model": model,
            "weights": weights,
            "data": data or (f"imagenet:{imagenet}" if imagenet and not is_paper else None),
            "methods": method,
            "metrics": metrics,
            "targets": target,
            "limit": limit,
            "filter": keep,
            "maps": keep_maps or maps,
            "seed": seed,
            "batch_size": batch_size,
            **options,
        }
        changes = {name: value for name, value in given.items() if value not in (None, [])}
        if plan is not None and plan.startswith(TRUTH):
            if on is not None:
                raise SpecError(f"{plan} runs in one process; leave out --on")
            _run_truth(plan, changes, out, dry_run=dry_run, with_report=not no_report, json=json, quiet=quiet)
            return
        if plan is None and not changes:
            raise SpecError(
                "name a plan (PLAN.toml), a published table (paper:NAME), a generated set (truth:NAME), "
                "or --model, --data and --method"
            )
        if plan is None:
            plans = make_plans(changes, source="the command")
        elif is_paper:
            plans = paper_plans(plan, changes, imagenet)
        else:
            plans = read_plans(Path(plan), changes)
        if out is None and not dry_run:
            raise SpecError("name the output folder: --out RUN")
        place = out or Path("bench-run")
        share = launched_share()

        def made() -> Iterator[BenchRun]:
            """One after the other, since several large models may not fit into memory together."""
            for each in plans:
                run = BenchRun(each, place, device=device, share=share)
                check_cost(run.work.methods, run.model, force=force)
                yield run

        if dry_run:
            show_estimates(made(), json=json)
            return
        if len(plans) > 1 or on is not None:
            for _ in made():  # all are checked before the first of them works
                pass
        if on is not None:
            from aha.interop.ray import share_out

            share_out(partial(_run_share, plans, place.absolute(), device), workers=workers)
        else:
            for each in made():
                _run(each, place, quiet=quiet)
        _finish(place, share, with_report=not no_report, json=json, quiet=quiet)


def _run(made: BenchRun, out: Path, *, quiet: bool) -> None:
    run_with_bar(made, lambda: f"finished results are in {out}; run the same command to resume", quiet=quiet)


def _run_truth(
    text: str,
    changes: dict[str, Any],
    out: Path | None,
    *,
    dry_run: bool,
    with_report: bool,
    json: bool,
    quiet: bool,
) -> None:
    """Trains the networks of a generated set, has their maps scored, and writes one table of it all."""
    from tempfile import TemporaryDirectory

    from aha.bench.reporting.report import write_report
    from aha.bench.run_reader import read_run
    from aha.errors import SpecError
    from aha.truth.run import TruthRun, as_text

    def say(line: str) -> None:
        if not quiet:
            typer.echo(line, err=True)

    if dry_run:  # the first network is trained, since nothing is known without it
        with TemporaryDirectory() as folder:
            truth = TruthRun(text, changes, Path(folder))
            say(f"{text}: {len(truth.trials)} networks; trying the first")
            show_estimates(islice(truth.runs(), 1), json=json)
        return
    if out is None:
        raise SpecError("name the output folder: --out RUN")
    truth = TruthRun(text, changes, out)
    for made in truth.runs(say):
        _run(made, out, quiet=quiet)
    read = read_run(out) if any(found.data for found in truth.prepared) else None
    lines = truth.lines(read)
    table = truth.write(lines)
    page = write_report(out) if with_report and read is not None else None
    answer(
        lambda: (
            {"run": str(out), "table": str(table), "report": None if page is None else str(page)}
            | {"refused": truth.refused, "lines": [line._asdict() for line in lines]}
        ),
        lambda: f"{as_text(lines, truth.refused)}\ntable: {table}" + (f"\nreport: {page}" if page else ""),
        json=json,
        quiet=quiet,
    )


def _run_share(plans: Sequence[Plan], out: Path, device: str | None, share: tuple[int, int]) -> None:
    """What one of several workers does."""
    from aha.bench.runner import BenchRun

    for plan in plans:
        BenchRun(plan, out, device=device, share=share).run()


def show_estimates(runs: Iterable[BenchRun], *, json: bool) -> None:
    """Tries one image of each run and says what the runs will cost."""
    from aha.bench.estimate import estimate

    costs = []
    for made in runs:
        cost = estimate(made)
        costs.append({"model": made.model.spec, "left_out": made.work.left_out, **asdict(cost)})
        if not json:
            _show_estimate(made, cost)
    if json:
        print_json(costs)


def _show_estimate(made: BenchRun, cost: Estimate) -> None:
    typer.echo(
        f"{made.model.spec} on {made.model.device}: {cost.images} images, {len(made.work.methods)} methods, "
        f"{len(made.work.protocols)} protocols, {' and '.join(made.target_kinds)}: {cost.cells} results to compute"
    )
    typer.echo(
        f"  {cost.forward:,.0f} images forward, {cost.backward:,.0f} backward, {cost.bytes / 1e6:,.1f} MB, "
        f"about {duration(cost.seconds)} in one process"
    )
    for method, seconds in sorted(cost.by_method.items(), key=lambda item: -item[1]):
        typer.echo(f"  {seconds:8.2f} s per image  {method}")
    for reason in made.work.left_out.values():
        typer.echo(f"  skipped: {reason}")
    for failure in dict.fromkeys(cost.failures):
        typer.echo(f"  failed on the image that was tried: {failure}")


def _finish(out: Path, share: tuple[int, int], *, with_report: bool, json: bool, quiet: bool) -> None:
    """Reports; of several processes, the one that finds everything done."""
    from aha.bench.reporting.report import write_report
    from aha.bench.run_reader import read_run

    read = read_run(out)
    if share[1] > 1 and any(group.missing for group in read.groups):
        return
    page = write_report(out) if with_report else None
    answer(lambda: _as_json(read, page), lambda: _as_text(read, page), json=json, quiet=quiet)
    if not any(group.scores.rows for group in read.groups):
        fail("nothing could be measured")


def _as_text(read: Run, page: Path | None) -> str:
    lines = []
    for group in read.groups:
        lines.append(group.scores.to_text() + "\n")
        if group.missing:
            lines.append(f"{group.missing} results are missing; run the same command to compute them")
        if group.scores.failures:
            lines.append(f"{len(group.scores.failures)} measurements failed; the report says which and why")
    lines.append(f"report: {page}" if page else f"rows: {read.folder}; write the report with: aha report {read.folder}")
    return "\n".join(lines)


def _as_json(read: Run, page: Path | None) -> dict[str, Any]:
    return {
        "run": str(read.folder),
        "report": None if page is None else str(page),
        "groups": [
            {
                "model": group.model,
                "target_kind": group.target_kind,
                "missing": group.missing,
                "failures": len(group.scores.failures),
                "summary": [row._asdict() for row in group.scores.summary()],
            }
            for group in read.groups
        ],
    }


def report(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    out: Annotated[Path | None, out_folder(help="Folder for the report; the run folder by default.")] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write the report, tables and figures of a run from its stored rows, without a model; of an audit, its page too.

    The thresholds of an audit are those in its folder; where a part fails, the exit code is 1.
    """
    with reported(debug=debug, quiet=quiet):
        _check_there(run)
        from aha.auditing.record import is_audit
        from aha.bench.reporting.report import write_report
        from aha.bench.run_reader import read_run

        page = write_report(run, out)
        if is_audit(run):
            from aha.auditing.page import write_audit
            from aha.cli.audit import conclude

            conclude(write_audit(run, out), json=json, quiet=quiet)
            return
        answer(lambda: _as_json(read_run(run), page), lambda: f"report: {page}", json=json, quiet=quiet)


def compare(
    first: Annotated[Path, typer.Argument(help="Run folder.")],
    second: Annotated[Path, typer.Argument(help="Another run folder.")],
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare two runs on their common images: differences with standard errors and paired tests."""
    with reported(debug=debug, quiet=quiet):
        _check_there(first, second)
        from aha.bench.reporting.compare import as_text, compare_runs

        found = compare_runs(first, second)
        rows = [{**row._asdict(), "verdict": row.verdict} for row in found]
        answer(lambda: rows, lambda: as_text(found), json=json, quiet=quiet)


def merge(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders.")],
    out: Annotated[Path, out_folder(help="Folder of the merged run.")],
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Merge the results of several runs into one, without duplicates."""
    with reported(debug=debug, quiet=quiet):
        _check_there(*runs)
        from aha.bench.run_reader import merge_runs

        cells = merge_runs(runs, out)
        answer(lambda: {"run": str(out), "cells": cells}, lambda: f"{cells} results: {out}", json=json, quiet=quiet)


def _check_there(*runs: Path) -> None:
    """Refuses a misspelt name at once; to read a run takes seconds of imports first."""
    for run in runs:
        if not run.is_dir():
            raise OutputError(f"{run} is not the folder of a run")

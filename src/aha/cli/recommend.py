"""`aha recommend`: which explanation to use for a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aha.cli.options import (
    NOT_STATED,
    Data,
    Debug,
    Device,
    Json,
    Model,
    Quiet,
    Seed,
    Stated,
    out_folder,
    with_model_options,
)
from aha.cli.reporting import answer, print_json, reported, resumable
from aha.cli.texts import check_paths, check_texts, complete_method
from aha.core.progress_line import duration

if TYPE_CHECKING:
    from aha.bench.recommendation.race import Progress
    from aha.bench.recommendation.recommend import Outlook


@with_model_options()
def recommend(
    model: Model,
    data: Data,
    out: Annotated[Path, out_folder(help="Run folder; the same command resumes it.")] = Path("recommendation"),
    budget: Annotated[str | None, typer.Option(help="Time limit: 30min, 90s, 2h.", show_default="30min")] = None,
    passes: Annotated[
        int | None, typer.Option(min=1, help="Limit on images through the model, forward and backward.")
    ] = None,
    must_be_below: Annotated[str | None, typer.Option(help="Longest time for one map, such as 100ms.")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Repeatable; methods to compare.",
            autocompletion=complete_method,
            show_default="all that fit the model, except wrappers and search",
        ),
    ] = None,
    target: Annotated[
        str, typer.Option(help="Explained class: top1, label, an index or a name; or another target's text.")
    ] = "top1",
    limit: Annotated[int | None, typer.Option(min=1, help="Number of images, a random sample by the seed.")] = None,
    options: Stated = NOT_STATED,
    batch_size: Annotated[int, typer.Option(min=1, help="Maximum batch size.")] = 8,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the expected cost and stop.")] = False,
    seed: Seed = 0,
    device: Device = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare the methods that fit a model on your images, within a budget, and recommend one."""
    with reported(debug=debug, quiet=quiet):
        check_texts(models=[model], methods=method or [], options=options)
        check_paths([data])

        from aha.bench.recommendation.recommend import outlook, prepare, settle
        from aha.models import load_model

        loaded = load_model(model, device=device, **options)
        racing = prepare(
            loaded,
            data,
            budget=budget,
            passes=passes,
            methods=method,
            must_be_below=must_be_below,
            out=out,
            limit=limit,
            target=target,
            seed=seed,
            batch_size=batch_size,
            model_text=written(model, options),
            on_step=(lambda progress: None) if quiet or json else _say,
        )
        if dry_run:
            cost = outlook(racing)
            answer(lambda: _plain(cost), lambda: _outlook(cost), json=json, quiet=quiet)
            return
        with resumable(lambda: f"finished results are in {out}; run the same command to resume"):
            found = settle(racing)
        if json:
            print_json(found.as_dict())
        elif not quiet:
            typer.echo(f"{found.to_markdown()}\n\npage: {found.page}\nreport: {found.report}")


def written(model: str, options: Stated) -> str:
    """The model as Python writes it, with the options that were given."""
    given = [f"{name}={value!r}" for name, value in options.items()]
    return f'aha.load_model("{model}", {", ".join(given)})' if given else f'"{model}"'


def _say(progress: Progress) -> None:
    typer.echo(f"{progress.passes:>9,} passes, {duration(progress.seconds):>6}  {progress.what}", err=True)


def _plain(cost: Outlook) -> dict[str, Any]:
    return {**vars(cost), "budget": vars(cost.budget)}


def _outlook(cost: Outlook) -> str:
    if cost.is_finished:
        return f"finished: nothing to compute; {cost.spent:,} passes were spent"
    most = []
    if cost.budget.passes is not None:
        most.append(f"{cost.budget.passes:,} passes (about {duration(cost.budget.passes * cost.forward_seconds)})")
    if cost.budget.seconds is not None:
        most.append(f"{duration(cost.budget.seconds)} (about {cost.budget.seconds / cost.forward_seconds:,.0f} passes)")
    return (
        f"{cost.methods} methods, {cost.images} images; at most {' and '.join(most)}, {cost.spent:,} passes spent\n"
        f"one image through the model takes {cost.forward_seconds * 1000:.0f} ms; a first round of all methods takes "
        f"about {cost.first_passes:,} passes; if that exceeds the budget, only the cheapest are tried"
    )

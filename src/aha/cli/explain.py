"""`aha explain`: attribution maps of files and folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    On,
    Quiet,
    Seed,
    Stated,
    Workers,
    out_folder,
    with_model_options,
)
from aha.cli.outlook import expected_seconds
from aha.cli.reporting import print_json, progress_bar, reported, resumable, say_error
from aha.cli.texts import check_paths, check_place, check_texts, complete_method
from aha.errors import SpecError

if TYPE_CHECKING:
    from aha.explain_folder import FileRun
    from aha.interop.shards import ShardRun
    from aha.results.folder import MapRecord

_METHOD = "aha"
_SHOWN_FAILURES = 20
_SHOWN_MAPS = 10
_CARD = ("image", "method", "class", "card")


@with_model_options()
def explain(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Images, folders of images, CSV files, or data sets.")
    ],
    model: Model,
    out: Annotated[
        Path | None,
        out_folder(
            help="Folder for the results; finished images in it are skipped.", show_default="NAME-aha next to it"
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help='Repeatable; "smooth(gradient, n=20)" sets parameters.',
            autocompletion=complete_method,
            show_default=_METHOD,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Classes to explain: top1, top5, label, indices or names; or another target: "
            "contrast(A, B), region(...), box(...), similarity(...), value(I), neuron(LAYER, CHANNEL).",
            show_default="top1, or those compared",
        ),
    ] = None,
    contrast: Annotated[
        str | None,
        typer.Option(help='Classes to contrast, such as "lynx, cougar" or "287,286"; wraps every method in var.'),
    ] = None,
    card: Annotated[
        bool, typer.Option("--card", help="Also measure how far each map can be trusted, and print it; takes longer.")
    ] = False,
    options: Stated = NOT_STATED,
    class_names: Annotated[Path | None, typer.Option(help="Text file with one class name per line.")] = None,
    limit: Limit = None,
    seed: Seed = 0,
    device: Device = None,
    batch_size: BatchSize = 8,
    force: Force = False,
    on: On = None,
    workers: Workers = 2,
    shards: Annotated[
        str | None,
        typer.Option(
            help="Write shards (parquet or webdataset) instead of a folder of overlays; launched processes share "
            "the work.",
            show_default="parquet with --on ray",
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Explain images: which pixels are evidence for a class, as drawings and as numbers.

    Finished images are skipped, so the same command resumes an interrupted run.
    """
    with reported(debug=debug, quiet=quiet):
        check_texts(models=[model], methods=method or [], options=options)
        check_place(on)
        check_paths(paths)
        from aha.explain_folder import read_class_names

        named = {} if class_names is None else {"class_names": read_class_names(class_names)}
        chosen = {**options, **named, "device": device, "batch_size": batch_size}
        if on is not None or shards is not None:
            if card or contrast is not None:
                raise SpecError("--shards cannot be combined with --card or --contrast")
            if on is not None and limit is not None:
                raise SpecError("--limit cannot be combined with --on")
            chosen |= {"methods": method or [_METHOD], "target": target or "top1", "seed": seed}
            chosen["form"] = shards or "parquet"
            shared = _into_shards(paths, out, model, chosen, limit, on, workers, force=force, quiet=quiet)
            _report(shared, json=json, quiet=quiet)
            return

        from aha.core.disk import check_writable
        from aha.core.launch import launched_device, launched_share, parts_of
        from aha.data.datasets import choose
        from aha.data.targets import class_list
        from aha.explain_folder import FileRun, check_apart, find_pictures, folder_beside
        from aha.explaining import Asked
        from aha.methods import check_fit, default_method, load_method
        from aha.methods.var import Var
        from aha.models import load_model

        # What costs nothing is checked first, what needs the model next, and all of it before any work.
        methods = [load_method(text) for text in method or []]
        place = folder_beside(paths[0]) if out is None else out
        check_writable(place)
        check_apart(paths, place)
        loaded = load_model(model, **{**chosen, "device": device or launched_device()})
        loaded.stated_preprocessing()  # what comes is pictures
        asked = target or contrast or "top1"
        viewed = Asked.of(loaded, asked).model
        methods = methods or [default_method(viewed)]
        if contrast is not None:
            compared = tuple(class_list(contrast, loaded))
            methods = [Var(inner, classes=compared) for inner in methods]
        for each in methods:
            check_fit(each, viewed)
        check_cost(methods, viewed, force=force)
        pictures = choose(find_pictures(paths, place, viewed), limit, seed)
        share = launched_share()
        own = [pictures[index] for index in parts_of(len(pictures), share)]
        is_shared = share[1] > 1
        run = FileRun(loaded, own, methods, asked, place, seed=seed, card=card, shared=is_shared)

        def expected() -> float:
            return expected_seconds(methods, viewed, run.maps_per_image * len(run.pending))

        is_shown = not quiet and share[0] == 0
        with (
            resumable(lambda: f"{_counts(run)}; run the same command to resume"),
            progress_bar("explaining", len(run.pending), shown=is_shown, expected=expected) as advance,
        ):
            run.run(batch_size, advance)
        _report(run, json=json, quiet=quiet)


def _into_shards(
    paths: list[str],
    out: Path | None,
    model: str,
    options: dict[str, Any],
    limit: int | None,
    on: str | None,
    workers: int,
    *,
    force: bool,
    quiet: bool,
) -> ShardRun:
    from aha.core.launch import launched_device, launched_share, parts_of
    from aha.data.datasets import choose
    from aha.explain_folder import check_apart, find_pictures, folder_beside
    from aha.interop.shards import ShardRun

    place = folder_beside(paths[0]) if out is None else out
    check_apart(paths, place)
    if on is not None:
        from aha.interop.ray import write_shards

        run = ShardRun(place, model, **options)
        check_cost(run.methods, run.model, force=force)  # here, where a refusal is one line
        write_shards(run, paths, workers=workers)
        return run
    share = launched_share()
    run = ShardRun(place, model, **{**options, "device": options["device"] or launched_device()})
    check_cost(run.methods, run.model, force=force)
    images = choose(find_pictures(paths, place, run.model), limit, options["seed"])
    own = len(parts_of(len(images), share))

    def expected() -> float:
        return expected_seconds(run.methods, run.model, own)

    with progress_bar("explaining", own, shown=not quiet and share[0] == 0, expected=expected) as advance:
        run.run(images, share, on_progress=advance)
    return run


def _report(run: FileRun | ShardRun, *, json: bool, quiet: bool) -> None:
    cards: list[tuple[str, str, str, str]] = getattr(run, "cards", [])  # shards have none, nor a page
    index: Path | None = getattr(run, "index", None)
    if json:
        print_json(
            {
                "manifest": None if run.manifest is None else str(run.manifest),
                **({} if index is None else {"index": str(index)}),
                "done": run.done,
                "skipped": run.skipped,
                "failed": len(run.failures),
                "failures": [{"image": failure.image, "error": failure.reason} for failure in run.failures],
            }
            | ({"cards": [dict(zip(_CARD, card, strict=True)) for card in cards]} if cards else {})
        )
    elif run.manifest is not None and not quiet:
        for image, chosen, label, sentence in cards:
            typer.echo(f"{image}, {label}, {chosen}: {sentence}")
        _say_maps(getattr(run, "maps", []), run.manifest.parent)
        typer.echo(f"{_counts(run)}: {run.manifest}")
        if index is not None:
            typer.echo(f"all maps on one page: {index}")
    for failure in run.failures[:_SHOWN_FAILURES]:
        say_error(failure.reason)
    if len(run.failures) > _SHOWN_FAILURES:
        say_error(f"and {len(run.failures) - _SHOWN_FAILURES} more; --json lists all of them")
    if run.failures:
        raise typer.Exit(1)


def _say_maps(maps: Sequence[MapRecord], folder: Path) -> None:
    """What each image was taken for, and where its map is."""
    from aha.results.index_page import caption

    for record in maps[:_SHOWN_MAPS]:
        drawn = record.get("slices", record["overlay"])
        typer.echo(f"{record['image']}: {caption(record)}, {record['method']}: {folder / drawn}")
    if len(maps) > _SHOWN_MAPS:
        typer.echo(f"and {len(maps) - _SHOWN_MAPS} more maps")


def _counts(run: FileRun | ShardRun) -> str:
    parts = [f"{run.done} explained"]
    parts += [f"{run.skipped} already done"] * bool(run.skipped)
    parts += [f"{len(run.failures)} failed"] * bool(run.failures)
    return ", ".join(parts)

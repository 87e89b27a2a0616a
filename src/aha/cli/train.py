"""`aha train` and `aha export`: an explainer of your model, and its portable form."""

from __future__ import annotations

import shlex
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any

import typer

from aha.cli.completion import complete_model
from aha.cli.options import (
    NOT_STATED,
    Debug,
    Device,
    Json,
    NoPretrained,
    Quiet,
    Stated,
    Weights,
    with_model_options,
)
from aha.cli.reporting import print_json, reported, resumable, training_bar
from aha.cli.texts import check_paths, check_texts
from aha.errors import SpecError


@with_model_options("fit", "engine")
def train(
    model: Annotated[
        list[str],
        typer.Option(
            help="SOURCE:NAME, as `aha list models` shows them. Several take turns, for a universal explainer.",
            autocompletion=complete_model,
        ),
    ],
    data: Annotated[
        Path, typer.Option(help="Images: a folder, one folder per class, a CSV (file, label), or tar shards.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the run; the explainer will be in OUT/explainer.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the preset, such as steps=2000.")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="small (thousands of images, a CPU), adapt (hundreds, from the universal explainer), universal "
            "(several models), paper, or smoke.",
            show_default="small; adapt with --start universal; universal for several models",
        ),
    ] = None,
    validation: Annotated[
        Path | None, typer.Option(help="Images to measure on; some of --data are held out by default.")
    ] = None,
    start: Annotated[
        str | None, typer.Option(help="Explainer to start from: universal, a folder, or a hub repository.")
    ] = None,
    weights: Annotated[
        list[Path] | None,
        typer.Option(help="Weights file: .safetensors, or torch:FILE. One for each --model, in their order."),
    ] = None,
    options: Stated = NOT_STATED,
    precision: Annotated[
        str | None,
        typer.Option(help="float32, bfloat16 or float16 for the frozen networks.", show_default="bfloat16 on a GPU"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in OUT.")] = False,
    remember: Annotated[
        bool, typer.Option("--remember", help="Use this explainer for --method aha from now on.")
    ] = False,
    device: Device = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Images per step; short for batch_size=N.", show_default="the preset's")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train an explainer once; `aha explain --method "aha('OUT/explainer')"` then draws each map in a single pass.

    Runs as it is on one device, and under `accelerate launch` or `torchrun` on many.
    """
    with reported(debug=debug, quiet=quiet):
        options = {**options, **({"precision": precision} if precision else {})}
        check_texts(models=model, options=options)
        check_paths(str(place) for place in (data, validation) if place is not None)
        if weights and len(weights) != len(model):
            raise SpecError(f"{len(weights)} weights files for {len(model)} models; name one for each, in their order")
        if remember and len(model) > 1:
            raise SpecError("--remember is for the explainer of one model; name that of several: aha('OUT/explainer')")

        from aha.core.disk import check_writable
        from aha.core.launch import launched_device
        from aha.learned.settings import load_settings
        from aha.learned.training.loop import BEST, METRICS, default_preset
        from aha.learned.training.loop import train as run
        from aha.models import load_model
        from aha.models.loading.sources import default_device

        given = [] if batch_size is None else [f"batch_size={batch_size}"]
        chosen = load_settings(preset or default_preset(len(model), start), [*(settings or []), *given])
        check_writable(out)
        place = device or launched_device() or default_device()
        faster = "bfloat16" if str(place).startswith("cuda") else "float32"
        targets = [
            load_model(name, weights=file, device=place, **{"precision": faster, **options})
            for name, file in zip(model, weights or repeat(None, len(model)), strict=True)
        ]
        with (
            resumable(lambda: f"continue with --resume and the same command: {out}"),
            training_bar(chosen.training, shown=not quiet) as advance,
        ):
            explainer = run(
                targets,
                data,
                out,
                settings=chosen,
                validation=validation,
                start=start,
                resume=resume,
                remember=remember,
                on_step=advance,
                progress=False,
            )
        scores = explainer.config.scores
        result: dict[str, Any] = {
            "explainer": str(out / BEST),
            "metrics": str(out / METRICS),
            "steps": chosen.training.steps,
            "remembered": remember,
            "validation": {name: round(value, 4) for name, value in scores.items()},
        }
        if json:
            print_json(result)
        elif not quiet:
            typer.echo(f"Explainer: {out / BEST}")
            typer.echo(
                f"{scores['images']:.0f} held-out images: Deletion {scores['deletion']:.3f}, Insertion "
                f"{scores['insertion']:.3f}, Ins-Del {scores['ins_del']:.3f} ± {scores['ins_del_error']:.3f}; "
                f"Grad-CAM's Ins-Del {scores['grad_cam']:.3f}"
            )
            if start is not None and not explainer.config.training["finished"]:
                typer.echo(f"No step improved on {start}: this explainer is the one that training started from")
            if remember:
                typer.echo(f"Remembered: --method aha now means this explainer for {model[0]}")
            same = _same_model(model[0], weights, options)
            typer.echo(f"Use it: aha explain IMAGE {same} --method \"aha('{out / BEST}')\"")


def _same_model(model: str, weights: list[Path] | None, options: Stated) -> str:
    """The options that name the model again: an explainer is of use for these weights alone."""
    stated = {
        "--model": [model],
        "--weights": (weights or [])[:1],
        "--input-size": [_listed(options["input_size"])] if "input_size" in options else [],
        **{f"--{name}": [_listed(options[name])] for name in ("mean", "std") if name in options},
        "--text": options.get("texts", ()),
    }
    said = [str(part) for option, values in stated.items() for value in values for part in (option, value)]
    return shlex.join([*said, *([] if options.get("pretrained", True) else ["--no-pretrained"])])


def _listed(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def export(
    explainer: Annotated[str, typer.Argument(help="Folder or hub repository of the explainer.")],
    onnx: Annotated[Path, typer.Option(help="The file to write.")],
    model: Annotated[
        str | None, typer.Option(help="The explained model; the one the explainer names by default.")
    ] = None,
    weights: Weights = None,
    no_pretrained: NoPretrained = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write model and explainer as one ONNX file: image and class in, map out."""
    with reported(debug=debug, quiet=quiet):
        from aha.learned.explainer import Explainer
        from aha.learned.export import export_onnx
        from aha.models import load_model, refuse_code

        loaded = Explainer.from_pretrained(explainer)
        if model is None:
            refuse_code(loaded.config.target, "the explainer")
        target = load_model(model or loaded.config.target, weights=weights, pretrained=not no_pretrained, device="cpu")
        difference = export_onnx(loaded, target, onnx)
        if json:
            print_json({"onnx": str(onnx), "largest_difference": difference})
        elif not quiet:
            typer.echo(f"{onnx}: agrees with PyTorch within {difference:.1e} of the map's range")

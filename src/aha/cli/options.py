"""Options that several commands share, so that they are spelled and explained once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aha.cli.completion import complete_model
from aha.cli.texts import complete_score

MAX_SEED = 2**32 - 1

Json = Annotated[bool, typer.Option("--json", help="Print only the result, as JSON, to stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings and errors.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")]
Seed = Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Random seed.")]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1, mps; the fastest available by default.", show_default=False)
]
BatchSize = Annotated[int, typer.Option(min=1, help="Maximum batch size; halved if memory runs out.")]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="Number of images, a random sample by the seed; a larger limit contains a smaller one."),
]
Model = Annotated[str, typer.Option(help="SOURCE:NAME; see `aha list models`.", autocompletion=complete_model)]
Weights = Annotated[Path | None, typer.Option(help="Weights file: .safetensors, or torch:FILE.")]
NoPretrained = Annotated[bool, typer.Option("--no-pretrained", help="Random weights, no download.")]
Force = Annotated[bool, typer.Option("--force", help="Run even if the estimated cost is too high for this machine.")]
Precision = Annotated[str, typer.Option(help="float32, or bfloat16 or float16 for passes without gradients.")]
Engine = Annotated[
    str,
    typer.Option(
        help="Engine for passes without gradients: eager, compiled, onnxruntime, openvino, or auto (the fastest)."
    ),
]
Texts = Annotated[list[str] | None, typer.Option("--text", "--texts", help="Repeatable; the classes of a clip: model.")]
Mean = Annotated[
    str | None, typer.Option(help="Mean of the normalisation, such as 0.5,0.5,0.5; for models that do not state it.")
]
Std = Annotated[str | None, typer.Option(help="Standard deviation of the normalisation, in the same form.")]
Fit = Annotated[str | None, typer.Option(help="How images are fitted to the input: crop, squash or pad.")]
Score = Annotated[
    str | None,
    typer.Option(
        help="Score to explain and measure; see `aha list scores`.",
        autocompletion=complete_score,
        show_default="the model's own",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        help="ray: run on a Ray cluster, or on Ray workers of this machine; by default, in this process.",
        show_default=False,
    ),
]
Workers = Annotated[int, typer.Option(min=1, help="Number of workers, with --on.")]
ImageSize = Annotated[
    int | None, typer.Option(min=1, help="Side of the model input in pixels; the model's own by default.")
]


def named_folder(text: str | Path) -> Path:
    """A folder for results; an empty name, as of a variable that is not set, is none."""
    if not str(text).strip():
        raise typer.BadParameter("the folder name is empty; give one")
    return Path(text)


def numbers(text: str | None, option: str) -> list[float] | None:
    """The numbers of a text such as `0.5,0.5,0.5`."""
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of numbers such as 0.5,0.5,0.5", param_hint=option) from None

"""Options that several commands share, so that they are spelled and explained once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, get_args

import typer

from aha.cli.completion import complete_model
from aha.cli.texts import complete_score
from aha.core.model_options import ModelOptions
from aha.core.validation import hints_of

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
Data = Annotated[str, typer.Option(help="Your images: folder, CSV, tar shards, or KIND:PLACE as in `aha bench`.")]
Model = Annotated[str, typer.Option(help="SOURCE:NAME; see `aha list models`.", autocompletion=complete_model)]
Force = Annotated[bool, typer.Option("--force", help="Run even if the estimated cost is too high for this machine.")]
On = Annotated[
    str | None,
    typer.Option(
        help="ray: run on a Ray cluster, or on Ray workers of this machine; by default, in this process.",
        show_default=False,
    ),
]
Workers = Annotated[int, typer.Option(min=1, help="Number of workers, with --on.")]


def named_folder(text: str | Path) -> Path:
    """A folder for results; an empty name, as of a variable that is not set, is none."""
    if not str(text).strip():
        raise typer.BadParameter("the folder name is empty; give one")
    return Path(text)


out_folder = partial(typer.Option, parser=named_folder, metavar="PATH")


def numbers(text: str) -> list[float]:
    """The numbers of a text such as `0.5,0.5,0.5`."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of numbers such as 0.5,0.5,0.5") from None


def sides(text: str) -> int | list[int]:
    """The side of a square input, or all sides of an input: `224`, `3,224,224` or `1,16,64,64`."""
    found = whole_numbers(text)
    if not all(side > 0 for side in found):
        raise typer.BadParameter(f"{text!r} is not in the range of sizes: each is at least 1")
    return found[0] if len(found) == 1 else found


def whole_numbers(text: str) -> list[int]:
    """The whole numbers of a text such as `3,2,1`."""
    try:
        return [int(part) for part in str(text).split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of whole numbers such as 3,2,1") from None


_HELP: dict[str, str] = {name: get_args(hint)[1] for name, hint in hints_of(ModelOptions).items()}
Weights = Annotated[Path | None, typer.Option(help=_HELP["weights"])]
NoPretrained = Annotated[bool, typer.Option("--no-pretrained", help=_HELP["pretrained"])]
_Numbers = partial(typer.Option, parser=numbers, metavar="TEXT")
# Options of a model -> how a command line takes them.
_MODEL_OPTIONS: dict[str, Any] = {
    "texts": Annotated[list[str] | None, typer.Option("--text", "--texts", help=_HELP["texts"])],
    "weights": Weights,
    "pretrained": NoPretrained,
    "input_size": Annotated[
        Any, typer.Option("--input-size", "--img-size", parser=sides, metavar="SIZE", help=_HELP["input_size"])
    ],
    "mean": Annotated[Any, _Numbers(help=_HELP["mean"])],
    "std": Annotated[Any, _Numbers(help=_HELP["std"])],
    "fit": Annotated[str | None, typer.Option(help=_HELP["fit"])],
    "bands": Annotated[Any, typer.Option(parser=whole_numbers, metavar="R,G,B", help=_HELP["bands"])],
    "score": Annotated[
        str | None,
        typer.Option(help=_HELP["score"], autocompletion=complete_score, show_default="the model's own"),
    ],
    "precision": Annotated[str | None, typer.Option(help=_HELP["precision"], show_default=ModelOptions.precision)],
    "engine": Annotated[str | None, typer.Option(help=_HELP["engine"], show_default=ModelOptions.engine)],
}
Stated = Mapping[str, Any]
NOT_STATED: Stated = MappingProxyType({})


def with_model_options(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of a model: it gets those that are stated as `options`, for `aha.load_model`.

    Those that it has a parameter for itself, or that are named here, are left out.
    """

    def extended(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        names = [name for name in _MODEL_OPTIONS if name not in without and name not in signature.parameters]
        added = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=kind)
            for name, kind in _MODEL_OPTIONS.items()
            if name in names
        ]

        @wraps(command)
        def called(**values: Any) -> None:
            given = {name: value for name in names if (value := values.pop(name)) not in (None, False, [])}
            if "pretrained" in given:  # as --no-pretrained
                given["pretrained"] = False
            if "weights" in given:
                given["weights"] = str(given["weights"])
            command(**values, options=given)

        parameters = [
            new for own in signature.parameters.values() for new in (added if own.name == "options" else [own])
        ]
        called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return called

    return extended

"""`aha serve`: the explorer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from aha.cli.completion import complete_model
from aha.cli.options import BatchSize, Debug, Device, NoPretrained, Quiet
from aha.cli.reporting import reported
from aha.cli.texts import check_paths, check_texts


def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(help="Repeatable; SOURCE:NAME.", autocompletion=complete_model, show_default="the demo's model"),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(help="Repeatable; one FILE per model, in their order, or MODEL=FILE."),
    ] = None,
    no_pretrained: NoPretrained = False,
    explainer: Annotated[list[Path] | None, typer.Option(help="Repeatable; folder of a trained explainer.")] = None,
    run: Annotated[
        list[Path] | None, typer.Option(help="Repeatable; run folder of `aha evaluate` or `aha bench`.")
    ] = None,
    images: Annotated[
        list[Path] | None, typer.Option(help="Repeatable; folder of images to offer.", show_default="the demo's")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback requires a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8642,
    token: Annotated[
        str, typer.Option(help="Secret that visitors must enter.", show_default="generated if required")
    ] = "",
    cache: Annotated[
        Path | None,
        typer.Option(help="Folder for cached results and images.", show_default="in the user's cache folder"),
    ] = None,
    device: Device = None,
    batch_size: BatchSize = 16,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Start the explorer: view maps, scrub through deletion and insertion, compare classes, browse runs."""
    with reported(debug=debug, quiet=quiet):
        check_texts(models=model or [])
        files = _by_model(model or [], weights or [])
        check_paths(str(place) for given in (files, explainer, run, images) for place in given or () if place)
        try:
            from aha.web import serving
        except ModuleNotFoundError as error:
            if error.name not in ("starlette", "uvicorn", "anyio"):
                raise
            from aha.errors import MissingExtra

            raise MissingExtra("the explorer", "web") from None

        settings = serving.ServerSettings(
            models=model or (),
            weights=files,
            pretrained=not no_pretrained,
            explainers=explainer or (),
            runs=run or (),
            images=images or (),
            cache=cache,
            device=device,
            batch_size=batch_size,
        )
        secret = serving.chosen_token(host, token)
        app = serving.make_app(settings, token=secret, report=lambda line: typer.echo(f"problem: {line}", err=True))
        ending = f"?token={secret}" if secret else ""
        serving.serve(app, host, port, lambda address: typer.echo(f"explorer: {address}{ending} (stop with Ctrl-C)"))


def _by_model(models: Sequence[str], weights: Sequence[str]) -> list[Path | None]:
    """A weights file for each model, None where it has its own: `MODEL=FILE` for one, others in the order of models."""
    named = [(text, next((m for m in models if text.startswith(f"{m}=")), None)) for text in weights]
    chosen = {models.index(m): text.removeprefix(f"{m}=") for text, m in named if m is not None}
    free = (place for place in count() if place not in chosen)
    ordered = [text for text, m in named if m is None]
    chosen |= dict(zip(free, ordered, strict=False))
    return [Path(chosen[place]) if place in chosen else None for place in range(max(chosen, default=-1) + 1)]

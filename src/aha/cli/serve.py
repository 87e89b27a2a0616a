"""`aha serve`: the explorer."""

from __future__ import annotations

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
        list[Path] | None, typer.Option(help="Repeatable; weights files of the models, in their order.")
    ] = None,
    no_pretrained: NoPretrained = False,
    explainer: Annotated[list[Path] | None, typer.Option(help="Repeatable; folder of a trained explainer.")] = None,
    run: Annotated[
        list[Path] | None, typer.Option(help="Repeatable; folder that `aha evaluate` or `aha bench` wrote.")
    ] = None,
    images: Annotated[
        list[Path] | None, typer.Option(help="Repeatable; folder of pictures to offer.", show_default="the demo's")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback requires a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8642,
    token: Annotated[
        str, typer.Option(help="A secret that visitors must give.", show_default="made up where one is needed")
    ] = "",
    cache: Annotated[
        Path | None, typer.Option(help="Folder for results and pictures.", show_default="in the user's cache folder")
    ] = None,
    device: Device = None,
    batch_size: BatchSize = 16,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Open the explorer: look at maps, scrub through deletion and insertion, compare classes, browse runs."""
    with reported(debug=debug, quiet=quiet):
        check_texts(models=model or [])
        check_paths(str(place) for given in (weights, explainer, run, images) for place in given or ())
        try:
            from aha.web import serving
        except ModuleNotFoundError as error:
            if error.name not in ("starlette", "uvicorn", "anyio"):
                raise
            from aha.errors import MissingExtra

            raise MissingExtra("the explorer", "web") from None

        settings = serving.Settings(
            models=model or (),
            weights=weights or (),
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
        serving.serve(app, host, port, lambda address: typer.echo(f"explorer: {address}{ending} (Ctrl-C ends it)"))

"""`aha demo`: real photographs, a real network, a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aha.cli.options import BatchSize, Debug, Device, Json, Quiet, Seed, out_folder
from aha.cli.reporting import print_json, progress_bar, reported


def demo(
    out: Annotated[Path, out_folder(help="Folder for the gallery and the results.")] = Path("demo-gallery"),
    seed: Seed = 0,
    device: Device = None,
    batch_size: BatchSize = 4,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Explain a few photographs with a small ImageNet model, offline, and write one HTML page."""
    with reported(debug=debug, quiet=quiet):
        from aha.demo import EXPLAINED, METHODS, run_demo

        with progress_bar("explaining", len(METHODS) * len(EXPLAINED), shown=not quiet) as advance:
            made = run_demo(out, seed=seed, device=device, batch_size=batch_size, on_progress=advance)
        if json:
            print_json(
                {
                    "gallery": str(made.gallery),
                    "manifest": str(made.manifest),
                    "sheet": str(made.sheet),
                    "seconds": round(made.seconds, 2),
                }
            )
        elif not quiet:
            typer.echo(f"gallery: {made.gallery} ({made.seconds:.0f} s; open it in a browser)")

"""Draws `images/volumes.jpg`: the clip of `examples/volume.py` and its map, slice by slice.

    python docs/draw_volumes.py WEIGHTS

WEIGHTS is a .safetensors file of timm's resnet18; the photographs come with scikit-image.
"""

from __future__ import annotations

import runpy
import sys
import tempfile
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).parent


def main(weights: Path) -> None:
    """Runs the example and keeps its picture."""
    example = runpy.run_path(str(DOCS.parent / "examples" / "volume.py"))
    with tempfile.TemporaryDirectory() as folder:
        example["main"](Path(folder), weights)
        picture = Image.open(Path(folder) / "volume.png").convert("RGB")
    picture.save(DOCS / "images" / "volumes.jpg", quality=85, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Maps saved earlier, by Aha or by another tool, found again by their images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aha.errors import MetricError
from aha.results.folder import MANIFEST


@dataclass(frozen=True)
class SavedMap:
    """A map on disk: whose, of which image and class. `target` is None where the file does not say."""

    image: Path
    method: str
    target: int | None
    path: Path

    def read(self) -> NDArray[np.float32]:
        """The map (H, W), at the model's resolution where the file has it."""
        try:
            loaded = np.load(self.path, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded.astype(np.float32)
            with loaded:
                name = next((n for n in ("model_map", "map", "arr_0") if n in loaded), None)
                if name is None:
                    raise MetricError(f"{self.path} has no array named model_map or map")
                found: NDArray[np.float32] = loaded[name].astype(np.float32)
                return found
        except (OSError, ValueError) as error:
            raise MetricError(f"cannot read the map {self.path}: {error}") from None


def find_maps(folder: Path, images: Sequence[Path]) -> list[SavedMap]:
    """Maps of the images in a folder: listed in its manifest, or `.npz` and `.npy` files named like the images."""
    if not folder.is_dir():
        raise MetricError(f"{folder} is not a folder of maps")
    manifest = folder / MANIFEST
    known = {path.resolve(): path for path in images}
    if manifest.is_file():
        try:
            items = json.loads(manifest.read_text(encoding="utf-8"))["items"]
            found = [(Path(i["image"]).resolve(), str(i["method"]), int(i["target"]), folder / i["map"]) for i in items]
        except (ValueError, KeyError, TypeError):
            raise MetricError(f"{manifest} is not a manifest of ours") from None
        maps = [SavedMap(known[image], method, target, path) for image, method, target, path in found if image in known]
    else:
        files = {file.stem: file for suffix in ("npz", "npy") for file in folder.glob(f"*.{suffix}")}
        maps = [SavedMap(image, folder.name, None, files[image.stem]) for image in images if image.stem in files]
    if not maps:
        raise MetricError(f"{folder} has no maps of these images")
    return maps

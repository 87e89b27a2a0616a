"""Maps saved earlier, by Aha or by another tool, found again by their images."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from aha.core.ledger import checksum
from aha.errors import MetricError
from aha.results.folder import JOURNAL, MANIFEST, read_items


@dataclass(frozen=True)
class SavedMap:
    """A map on disk: whose, of which image and class. `target` is None where the file does not say."""

    image: Path
    method: str
    target: int | None
    path: Path
    check: str = ""  # its checksum, where one is known

    def read(self) -> NDArray[np.float32]:
        """The map (H, W), at the model's resolution where the file has it."""
        try:
            content = self.path.read_bytes()
            if self.check and checksum(content) != self.check:
                raise MetricError(f"the map {self.path} is damaged; run aha explain again")
            loaded = np.load(io.BytesIO(content), allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded.astype(np.float32)
            with loaded:
                name = next((n for n in ("model_map", "map", "arr_0") if n in loaded), None)
                if name is None:
                    raise MetricError(f"{self.path} has no array named model_map or map")
                found: NDArray[np.float32] = loaded[name].astype(np.float32)
                return found
        except (OSError, ValueError, EOFError, BadZipFile, zlib.error, struct.error) as error:
            raise MetricError(f"cannot read the map {self.path}: {error}") from None


def find_maps(folder: Path, images: Sequence[Path]) -> list[SavedMap]:
    """Maps of the images in a folder: listed in its manifest, or `.npz` and `.npy` files named like the images."""
    if not folder.is_dir():
        raise MetricError(f"{folder} is not a folder of maps")
    known = {path.resolve(): path for path in images}
    if (folder / MANIFEST).is_file() or (folder / JOURNAL).is_file():
        found = [(Path(item["image"]).resolve(), item) for item in read_items(folder).current()]
        maps = [
            SavedMap(known[image], i["method"], i["target"], folder / i["map"], i.get("sums", {}).get("map", ""))
            for image, i in found
            if image in known
        ]
    else:
        files = {file.stem: file for suffix in ("npz", "npy") for file in folder.glob(f"*.{suffix}")}
        maps = [SavedMap(image, folder.name, None, files[image.stem]) for image in images if image.stem in files]
    if not maps:
        raise MetricError(f"{folder} has no maps of these images")
    return maps

"""Maps saved earlier, by Aha or by another tool, found again by their images."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aha.core.arrays import read_arrays
from aha.core.disk import check_regular, readable
from aha.core.store import checksum
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
            check_regular(self.path)
            content = self.path.read_bytes()
            if self.check and checksum(content) != self.check:
                raise MetricError(f"the map {self.path} is damaged; run aha explain again")
            arrays = read_arrays(content)
        except (OSError, ValueError) as error:
            raise MetricError(f"cannot read the map {self.path}: {error}") from None
        name = next((n for n in ("model_map", "map", "arr_0", "") if n in arrays), None)
        if name is None:
            raise MetricError(f"{self.path} has no array named model_map or map")
        return usable_map(arrays[name], str(self.path))


def usable_map(values: NDArray[Any], what: str) -> NDArray[np.float32]:
    """A map from elsewhere as single-precision numbers, some of which may be unknown (NaN), or a refusal."""
    if values.dtype.kind not in "fiub":
        raise MetricError(f"{what} holds {values.dtype} values; a map has one real number per pixel")
    if values.ndim not in (2, 3) or values.size == 0:
        raise MetricError(f"{what} has the shape {values.shape}; a map is (height, width), of a volume (depth, ...)")
    with np.errstate(over="ignore"):
        found: NDArray[np.float32] = values.astype(np.float32)
    if np.isinf(found).any():
        raise MetricError(f"{what} has values that are infinite, or beyond the range of single precision; rescale it")
    if np.isnan(found).all():
        raise MetricError(f"{what} has only NaN values")
    return found


def find_maps(folder: Path, images: Sequence[Path]) -> list[SavedMap]:
    """Maps of the images in a folder: listed in its manifest, or `.npz` and `.npy` files named like the images.

    A map in a folder of its own, `cats/001.npy`, is that of an image in a folder of the same name.
    """
    if not folder.is_dir():
        raise MetricError(f"{folder} is not a folder of maps")
    known = {readable(path.resolve()): path for path in images}
    if (folder / MANIFEST).is_file() or (folder / JOURNAL).is_file():
        found = [(readable(Path(item["image"]).resolve()), item) for item in read_items(folder)]
        maps = [
            SavedMap(known[image], i["method"], i["target"], folder / i["map"], i["files"][i["map"]])
            for image, i in found
            if image in known
        ]
    else:
        maps = [SavedMap(image, folder.name, None, path) for image, path in _named_alike(folder, images).items()]
    if not maps:
        raise MetricError(f"{folder} has no maps of these images")
    return maps


def _named_alike(folder: Path, images: Sequence[Path]) -> dict[Path, Path]:
    """Image -> the map whose path inside the folder is the end of the image's, as long an end as there is."""
    files: dict[tuple[str, ...], list[Path]] = defaultdict(list)
    for file in sorted(folder.rglob("*.np[yz]")):
        files[file.relative_to(folder).with_suffix("").parts].append(file)
    owners: dict[Path, Path] = {}
    for image in images:
        parts = image.absolute().with_suffix("").parts
        own = next((files[parts[n:]] for n in range(len(parts)) if parts[n:] in files), [])
        if not own:
            continue
        path = own[0]
        if len(own) > 1:
            raise MetricError(f"{path} and {own[1]} could both be the map of {image}; keep one of them")
        if path in owners:
            raise MetricError(
                f"{path} could be the map of {owners[path]} and of {image}; put maps into folders like the images' "
                f"({'/'.join(parts[-2:])}{path.suffix}), or measure these images apart"
            )
        owners[path] = image
    return {image: path for path, image in owners.items()}

"""Images of any number of bands and volumes, from arrays, tensors and files: what photographs cannot hold.

Read are NumPy's `.npy` and `.npz` (never unpickled), TIFF with any number of bands (extra `bands`), NIfTI and DICOM
series (extra `volumes`). Bytes become pixels from 0 to 1, as in photographs; all other values stay in the units of
their file, and so do the model's `mean` and `std`.

Shapes: values (C, H, W), or (C, D, H, W) of a volume.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aha.core.arrays import read_arrays
from aha.core.disk import check_regular
from aha.core.pictures import MAX_PIXELS, missing
from aha.data.images import walked
from aha.errors import ImageError, MissingExtra
from aha.models.loading.preprocessing import Preprocessing

_ARRAYS, _TIFF, _NIFTI, _DICOM = (".npy", ".npz"), (".tif", ".tiff"), (".nii", ".nii.gz"), (".dcm", ".dicom")


def find_measured(path: Path) -> list[Path]:
    """The files at a path and below it; a folder with DICOM files is one series, and so one volume.

    Raises:
        ImageError: The folder has none.
    """
    if not path.is_dir():
        return [path]
    found: list[Path] = []
    for folder, files in walked(path):
        present = [file for file in files if file.is_file()]
        if any(_is_dicom(file) for file in present):
            found.append(folder)
        else:
            found += [file for file in present if file.name.lower().endswith(_ARRAYS + _TIFF + _NIFTI)]
    if not found:
        raise ImageError(f"no arrays in the folder {path}; looked for {' '.join(_ARRAYS + _TIFF + _NIFTI + _DICOM)}")
    return sorted(found)


def read_measured(source: Any, name: str, wanted: Preprocessing) -> Tensor:
    """Values (C, H, W) or (C, D, H, W), with as many channels and axes as the model states.

    Raises:
        ImageError: It cannot be read, or has another shape.
    """
    if isinstance(source, str | Path):
        values = _from_path(Path(source), name)
    elif isinstance(source, Tensor):
        values = source.detach().cpu().float().numpy() if source.is_floating_point() else source.cpu().numpy()
    elif isinstance(source, np.ndarray):
        values = source
    else:
        raise ImageError(
            f"{name}: the model reads {wanted.reads}; give an array or a file, not {type(source).__name__}"
        )
    if values.dtype.kind not in "fiub" or values.size == 0:
        raise ImageError(f"{name} holds {values.size} values of {values.dtype}; expected numbers")
    _check_size(values.shape, name)
    ordered = _channels_first(values, len(wanted.mean), len(wanted.places), name)
    found = torch.from_numpy(np.ascontiguousarray(ordered, dtype=np.float32))
    if values.dtype == np.uint8:
        found = found / 255
    if not bool(found.isfinite().all()):
        raise ImageError(f"{name} has values that are not finite; replace NaN and infinity first")
    return found


def _channels_first(values: NDArray[Any], channels: int, axes: int, name: str) -> NDArray[Any]:
    """Channels may be the last axis, as in files, or the first, as in tensors; a single one may be missing."""
    if values.ndim == axes and channels == 1:
        return values[None]
    if values.ndim == axes + 1 and values.shape[-1] == channels:
        return np.moveaxis(values, -1, 0)
    if values.ndim == axes + 1 and values.shape[0] == channels:
        return values
    places = "H, W" if axes == 2 else "D, H, W"
    raise ImageError(
        f"{name} has the shape {values.shape}; the model reads {channels} channels, ({places}, {channels}) or "
        f"({channels}, {places})"
    )


def _check_size(shape: Sequence[int], name: str) -> None:
    if prod(shape) > 4 * MAX_PIXELS:
        raise ImageError(f"{name} has the shape {tuple(shape)}, more than {4 * MAX_PIXELS:,} values; make it smaller")


def _from_path(path: Path, name: str) -> NDArray[Any]:
    ending = path.name.lower()
    if not path.exists():
        raise ImageError(missing(name))
    try:
        if path.is_dir() or _is_dicom(path):
            return _dicom(path, name)
        check_regular(path)
        if ending.endswith(_ARRAYS):
            return _array(path, name)
        if ending.endswith(_TIFF):
            return _tiff(path, name)
        if ending.endswith(_NIFTI):
            return _nifti(path, name)
    except (ImageError, MissingExtra):
        raise
    except Exception as error:  # damaged files make decoders raise all kinds of errors
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ImageError(f"{name} cannot be read ({reason}); the file is damaged or of another kind") from error
    raise ImageError(f"{name} is no array; give {', '.join(_ARRAYS + _TIFF + _NIFTI)} or a folder of DICOM files")


def _array(path: Path, name: str) -> NDArray[Any]:
    arrays = read_arrays(path.read_bytes())
    if len(arrays) != 1:
        raise ImageError(f"{name} has {len(arrays)} arrays ({', '.join(sorted(arrays))}); save one per file")
    return next(iter(arrays.values()))


def _tiff(path: Path, name: str) -> NDArray[Any]:
    try:
        import tifffile
    except ImportError:
        raise MissingExtra(f"{name}: TIFF of bands", "bands") from None
    with tifffile.TiffFile(path) as file:
        series = file.series[0]
        _check_size(series.shape, name)
        return np.asarray(series.asarray())


def _nifti(path: Path, name: str) -> NDArray[Any]:
    """As slices from foot to head: (S, A, R), or (S, A, R, C); each axis rises in the scanner's coordinates."""
    try:
        import nibabel
    except ImportError:
        raise MissingExtra(f"{name}: NIfTI", "volumes") from None
    image: Any = nibabel.load(path)
    _check_size(image.shape, name)
    canonical = nibabel.as_closest_canonical(image)  # type: ignore[no-untyped-call]
    values = np.asarray(canonical.dataobj, dtype=np.float32)
    return np.swapaxes(values.squeeze(), 0, 2)


def _is_dicom(path: Path) -> bool:
    if path.is_dir() or path.name.lower().endswith(_DICOM):
        return not path.is_dir()
    if path.suffix:
        return False
    with path.open("rb") as file:  # archives often name files without an ending
        return file.read(132)[128:] == b"DICM"


def _dicom(path: Path, name: str) -> NDArray[Any]:
    """The slices (D, H, W) of one series in the order of their places, in its units (Hounsfield units for CT)."""
    try:
        import pydicom
    except ImportError:
        raise MissingExtra(f"{name}: DICOM", "volumes") from None
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.is_file() and _is_dicom(file))
    if not files:
        raise ImageError(f"no DICOM files in the folder {name}")
    slices = [pydicom.dcmread(file) for file in files]
    series = {str(one.get("SeriesInstanceUID", "")) for one in slices}
    if len(series) > 1:
        raise ImageError(f"{name} has slices of {len(series)} series; give one series per folder")
    _check_size((len(slices), int(slices[0].Rows), int(slices[0].Columns)), name)
    slices.sort(key=_place)
    values = [
        one.pixel_array * float(one.get("RescaleSlope", 1)) + float(one.get("RescaleIntercept", 0)) for one in slices
    ]
    if len({one.shape for one in values}) > 1:
        raise ImageError(f"{name} has slices of different sizes; give one series per folder")
    return np.asarray(values[0] if len(values) == 1 and values[0].ndim > 2 else np.stack(values), dtype=np.float32)


def _place(one: Any) -> float:
    """Along the normal of its plane; the number of the slice where its place is not given."""
    if "ImagePositionPatient" not in one or "ImageOrientationPatient" not in one:
        return float(one.get("InstanceNumber", 0))
    rows, columns = np.array(one.ImageOrientationPatient, dtype=float).reshape(2, 3)
    return float(np.cross(rows, columns) @ np.array(one.ImagePositionPatient, dtype=float))

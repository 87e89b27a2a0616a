"""Batches of model inputs from anything a caller hands in.

Pictures (paths, folders, PIL images, arrays, uint8 tensors) go through the model's preprocessing. Float tensors and
what a DataLoader gives are model inputs already, normalised by the caller, and pass as they are. A Dataset may hold
either, alone or with labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from aha.core.axes import is_volume
from aha.core.disk import readable
from aha.core.pictures import read_named
from aha.data.images import LabelledImage, Pictures, find_images, given_images, is_folder, named_images
from aha.data.measured import find_measured, read_measured
from aha.errors import ImageError, TargetError
from aha.models import TargetModel
from aha.models.loading.preprocessing import Geometry

T = TypeVar("T")


@dataclass(frozen=True)
class Subject:
    """One image as a model sees it: its name, its picture in full size, and where the model input lies in it.

    No image of a data set: it is read, and bound to a model's preprocessing. Maps are drawn on it.

    Of a volume, `frames` are all slices, of which `image` is the one in the middle.
    """

    name: str
    image: Image.Image
    geometry: Geometry
    path: Path | None = None
    frames: Sequence[Image.Image] = ()


@dataclass(frozen=True)
class Batch:
    """Model inputs (B, C, H, W) with their pictures and, where known, their true classes (B,).

    `positions` are the places of the images in what the caller handed in, where some of it is left out; `outputs` is
    what the model says (B, K) about them, where that is known already.
    """

    inputs: Tensor
    subjects: list[Subject]
    labels: Tensor | None = None
    positions: list[int] | None = None
    outputs: Tensor | None = None

    def part(self, rows: list[int]) -> Batch:
        """Some of the images; nothing is copied where they are all."""
        if rows == list(range(len(self.inputs))):
            return self
        return Batch(
            self.inputs[rows],
            [self.subjects[row] for row in rows],
            None if self.labels is None else self.labels[rows],
            None if self.positions is None else [self.positions[row] for row in rows],
            None if self.outputs is None else self.outputs[rows],
        )


Images: TypeAlias = Pictures | Dataset[Any] | DataLoader[Any] | Batch
"""A path, folder, PIL image, array, tensor, a list of these, a torch Dataset, a DataLoader, or a batch."""


def count_images(images: Images, model: TargetModel | None = None) -> int | None:
    """How many images the caller handed in, if that is known without reading them."""
    stated, axes = None if model is None else model.preprocessing, 3 if model is None else _axes_of(model)
    if stated is not None and stated.is_measured and not isinstance(images, Batch | Dataset | DataLoader):
        if (inputs := _as_inputs(images, axes)) is not None:
            return len(inputs)
        return len(list(_measured_sources(images, axes)))
    if isinstance(images, Batch):
        return len(images.inputs)
    if isinstance(images, Tensor):
        return 1 if images.dim() == axes else len(images)
    if isinstance(images, str | Path):
        return len(find_images(Path(images))) if is_folder(images) else 1
    if isinstance(images, list | tuple):
        folders = [item for item in images if isinstance(item, str | Path) and is_folder(item)]
        return len(images) - len(folders) + sum(len(find_images(Path(folder))) for folder in folders)
    if isinstance(images, DataLoader | IterableDataset):
        return None
    return len(images) if isinstance(images, Dataset) else 1  # type: ignore[arg-type]  # those that are indexed have one


def iter_batches(
    model: TargetModel,
    images: Images,
    batch_size: int,
    labels: Sequence[int] | Tensor | None = None,
    on_error: Callable[[str, ImageError], None] | None = None,
) -> Iterator[Batch]:
    """Batches of at most `batch_size` images, read as they are needed."""
    if isinstance(images, Batch):
        batches = iter((images,))
    elif isinstance(images, Dataset):
        batches = _from_dataset(model, images, batch_size, on_error)
    elif isinstance(images, DataLoader):
        batches = _from_loader(model, images)
    elif (inputs := _as_inputs(images, _axes_of(model))) is not None:
        batches = _from_inputs(model, inputs, batch_size)
    else:
        batches = _from_pictures(model, images, batch_size, on_error)
    return batches if labels is None else _labelled(batches, labels, count_images(images, model))


def _axes_of(model: TargetModel) -> int:
    """Of one input: those of an image (C, H, W), or of a volume (C, D, H, W) where the model states such a size."""
    return 3 if model.preprocessing is None else 1 + len(model.preprocessing.places)


def _as_inputs(images: Pictures, axes: int = 3) -> Tensor | None:
    """Float tensors (B, C, H, W), (C, H, W) or a list of the latter, as one batch; None for pictures.

    Volumes (B, C, D, H, W); one alone is known by the `axes` that the model states.
    """
    if isinstance(images, list | tuple) and images and all(_is_float_tensor(item) for item in images):
        if len({item.shape for item in images}) > 1:
            raise ImageError("tensors of different shapes cannot form a batch; explain them one by one")
        images = torch.stack(list(images))
    if not isinstance(images, Tensor) or not images.is_floating_point():
        return None
    if images.dim() not in (axes, axes + 1, 5) or images.numel() == 0:
        wanted = "(C, H, W) or (B, C, H, W)" if axes == 3 else "(C, D, H, W) or (B, C, D, H, W)"
        raise ImageError(f"a tensor of shape {tuple(images.shape)} is not {wanted}")
    return images[None] if images.dim() == axes else images


def _is_float_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _from_inputs(model: TargetModel, inputs: Tensor, batch_size: int, first: int = 0) -> Iterator[Batch]:
    stated = model.preprocessing
    if stated is not None and inputs.shape[1] != len(stated.mean):
        raise ImageError(f"inputs have {inputs.shape[1]} channels; {model.spec} expects {len(stated.mean)}")
    for start in range(0, len(inputs), batch_size):
        part = inputs[start : start + batch_size].detach()
        part = part.to(torch.promote_types(part.dtype, torch.float32))  # gradients of half inputs would be half too
        # A sum is finite only if all of its terms are, and much sooner found than whether each of them is.
        finite = part.flatten(1).sum(dim=1).isfinite()
        if not finite.all() and not (finite := part.isfinite().flatten(1).all(dim=1)).all():
            raise ImageError(f"image-{first + start + int(finite.int().argmin())} has pixels that are not finite")
        pixels = part if stated is None else model.to_pixels(part)
        subjects = [viewed(model, f"image-{first + start + i}", values) for i, values in enumerate(pixels)]
        yield Batch(part, subjects)


def as_input(model: TargetModel, source: Any, name: str, path: Path | None = None) -> tuple[Tensor, Subject]:
    """One photograph, or array of bands or of a volume, as the model's input and as what its maps are drawn on.

    Raises:
        ImageError: It cannot be read, or is not what the model reads.
    """
    preprocess, known_as = model.stated_preprocessing(), readable(source) if isinstance(source, Path) else name
    if preprocess.is_measured:
        values = read_measured(source, known_as, preprocess)
        inputs, geometry = preprocess.of_values(values)
        return inputs, viewed(model, name, values, geometry, path)
    picture = read_named(source, known_as)
    inputs, geometry = preprocess(picture)
    return inputs, Subject(name, preprocess.drawn_on(picture, inputs), geometry, path)


def viewed(
    model: TargetModel, name: str, pixels: Tensor, geometry: Geometry | None = None, path: Path | None = None
) -> Subject:
    """An image (C, H, W), or the slices of a volume (C, D, H, W), as pictures.

    RGB and grey are stretched if the model's normalisation is not known. Of other channels, the three that `bands`
    names are drawn, or their mean, in grey; these and volumes are stretched from the 1st to the 99th percentile, one
    range for all slices, unless they are pixels from 0 to 1.
    """
    has_depth = is_volume(pixels.shape)
    is_measured = has_depth or len(pixels) not in (1, 3)
    pixels = pixels.float()
    if model.bands is not None:
        pixels = pixels[list(model.bands)]
    elif len(pixels) not in (1, 3):
        pixels = pixels.mean(dim=0, keepdim=True)
    if model.preprocessing is None or (is_measured and not _is_pixels(pixels)):
        pixels = _stretched(pixels, by_percentiles=is_measured)
    slices = pixels if has_depth else pixels[:, None]  # (C, D, H, W)
    shades = (slices.clamp(0, 1) * 255).byte().expand(3, -1, -1, -1).permute(1, 2, 3, 0)  # (D, H, W, 3)
    frames = [Image.fromarray(frame) for frame in shades.contiguous().cpu().numpy()]
    place = geometry or Geometry.identity((pixels.shape[-2], pixels.shape[-1]))
    return Subject(name, frames[len(frames) // 2], place, path, frames if has_depth else ())


def _is_pixels(values: Tensor) -> bool:
    """Do they fill the range from 0 to 1, as pixels do, up to rounding?"""
    low, high = float(values.min()), float(values.max())
    return low >= -0.01 and 0.2 <= high <= 1.01


def _stretched(pixels: Tensor, *, by_percentiles: bool) -> Tensor:
    """Values (C, ...) from 0 to 1: all by one range, or each channel between its percentiles."""
    if not by_percentiles:
        low, high = pixels.amin(), pixels.amax()
        return (pixels - low) / (high - low).clamp(min=1e-12)
    found = []
    for channel in pixels:
        few = channel.flatten()[:: max(1, channel.numel() // 2**20)]  # quantile takes no more than 2^24
        low, high = few.quantile(0.01), few.quantile(0.99)
        found.append((channel - low) / (high - low).clamp(min=1e-12))
    return torch.stack(found)


def _from_loader(model: TargetModel, loader: DataLoader[Any]) -> Iterator[Batch]:
    first = 0
    for item in loader:
        inputs, labels = _split(item)
        for batch in _from_inputs(model, inputs, max(1, len(inputs)), first):
            yield Batch(batch.inputs, batch.subjects, labels)
        first += len(inputs)


def _from_dataset(
    model: TargetModel,
    items: Dataset[Any],
    batch_size: int,
    on_error: Callable[[str, ImageError], None] | None,
) -> Iterator[Batch]:
    """Pictures or inputs, item by item, read as they are needed; labels where all items of a batch have one."""
    source = iter(items) if isinstance(items, IterableDataset) else (items[i] for i in range(len(items)))  # type: ignore[arg-type]
    first = 0
    for part in _in_lists(map(_parts, source), batch_size):
        images, labels = [image for image, _ in part], [label for _, label in part]
        known = None if None in labels else torch.tensor(labels)
        inputs = _as_inputs(images, _axes_of(model))
        batches = (
            _from_pictures(model, images, batch_size, on_error, first)
            if inputs is None
            else _from_inputs(model, inputs, batch_size, first)
        )
        for batch in batches:
            places = batch.positions or list(range(len(batch.inputs)))
            own = None if known is None else known[places]
            yield replace(batch, labels=own, positions=[first + place for place in places])
        first += len(part)


def _in_lists(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while part := list(islice(items, size)):
        yield part


def _parts(item: Any) -> tuple[Any, int | None]:
    """The image and the label of a Dataset's item."""
    image, label = _image_and_label(item)
    is_label = isinstance(label, int | np.integer) or (isinstance(label, Tensor) and label.dim() == 0)
    is_label = is_label and not (isinstance(label, Tensor) and label.is_floating_point())
    return image, int(label) if is_label else None


def _image_and_label(item: Any) -> tuple[Any, Any]:
    """What an item of a loader or a Dataset consists of: an image, (image, label, ...), or a dict with usual names."""
    if isinstance(item, Mapping):
        image: Any = next((item[k] for k in ("pixel_values", "image", "images", "img", "inputs") if k in item), None)
        return image, next((item[k] for k in ("labels", "label", "target", "targets") if k in item), None)
    image, label, *_ = [*item, None] if isinstance(item, list | tuple) else [item, None]
    return image, label


def _split(item: Any) -> tuple[Tensor, Tensor | None]:
    """Inputs and labels of a loader's item."""
    inputs, labels = _image_and_label(item)
    if not _is_float_tensor(inputs) or inputs.dim() not in (4, 5):
        raise ImageError("the DataLoader must give float images (B, C, H, W) or volumes (B, C, D, H, W)")
    has_labels = isinstance(labels, Tensor) and labels.dim() == 1 and not labels.is_floating_point()
    return inputs, labels if has_labels else None


def _from_pictures(
    model: TargetModel,
    images: Pictures,
    batch_size: int,
    on_error: Callable[[str, ImageError], None] | None,
    first: int = 0,
) -> Iterator[Batch]:
    """Batches of pictures, or arrays of bands or of volumes; those from memory are named by number, from `first`."""
    inputs: list[Tensor] = []
    subjects: list[Subject] = []
    positions: list[int] = []
    for index, image in enumerate(_sources(model, images, first)):
        try:
            tensor, subject = as_input(model, image.read(), image.id, image.path)
        except ImageError as error:
            if on_error is None:
                raise
            on_error(image.id, error)
            continue
        inputs.append(tensor)
        subjects.append(subject)
        positions.append(index)
        if len(inputs) == batch_size:
            yield Batch(torch.stack(inputs), subjects, positions=positions)
            inputs, subjects, positions = [], [], []
    if inputs:
        yield Batch(torch.stack(inputs), subjects, positions=positions)


def _sources(model: TargetModel, images: Pictures, first: int) -> Iterator[LabelledImage]:
    if model.stated_preprocessing().is_measured:
        return named_images(_measured_sources(images, _axes_of(model)), first)
    return given_images(list(images) if isinstance(images, Tensor) and images.dim() == 4 else images, first)


def _measured_sources(images: Any, axes: int) -> Iterator[Any]:
    """One after the other; an array or tensor with an axis more than one input holds several."""
    if isinstance(images, list | tuple):
        for one in images:
            yield from _measured_sources(one, axes)
    elif isinstance(images, str | Path):
        yield from find_measured(Path(images))
    elif isinstance(images, Tensor | np.ndarray) and images.ndim == axes + 1:
        yield from images
    else:
        yield images


def _labelled(batches: Iterator[Batch], labels: Sequence[int] | Tensor, total: int | None) -> Iterator[Batch]:
    try:
        known = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError also of numbers beyond 64 bits
        known = torch.empty(0)
    if known.dim() != 1 or known.is_floating_point():
        raise TargetError("labels must be whole numbers, one per image")
    if total is not None and len(known) != total:
        raise TargetError(f"{len(known)} labels for {total} images; give one per image")
    first = 0
    for batch in batches:
        positions = batch.positions or list(range(first, first + len(batch.inputs)))
        if positions[-1] >= len(known):
            raise TargetError(f"{len(known)} labels are too few; image number {len(known) + 1} has none")
        yield replace(batch, labels=known[positions], positions=positions)
        first += len(batch.inputs)

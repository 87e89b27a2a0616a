"""From a picture to the tensor a model expects, and from the model's maps back to the picture.

Every number a model sees and every pixel a map is drawn on depends on the two classes here: `Preprocessing`
does what timm and torchvision do in evaluation, `Geometry` remembers where each model pixel came from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from aha.core.model_options import Fit
from aha.core.pictures import MAX_PIXELS
from aha.errors import ImageError, ModelError

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]

_RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


@dataclass(frozen=True)
class Geometry:
    """Where a model's input lies in its picture.

    Coordinates are continuous: pixel i of a row covers [i, i + 1] and its centre is i + 0.5.

    Attributes:
        original: Height and width of the picture.
        model: Height and width of the model's input.
        box: Top, left, bottom and right of the window of the picture that the input covers. It reaches
            beyond the picture where the input was padded.
        depth: Of a volume, how many slices it has, and how many the input.
    """

    original: tuple[int, int]
    model: tuple[int, int]
    box: tuple[float, float, float, float]
    depth: tuple[int, int] | None = None

    @classmethod
    def identity(cls, size: tuple[int, int]) -> Geometry:
        """The geometry of a picture that is the model's input as it is."""
        height, width = size
        return cls(size, size, (0.0, 0.0, float(height), float(width)))

    def to_original(self, maps: Tensor) -> Tensor:
        """Brings maps over the model's input to the picture's own pixels.

        Args:
            maps: Shape (..., H, W). Integer maps come back as float32.

        Returns:
            Shape (..., H0, W0), sampled bilinearly at the pixel centres; NaN where the model saw nothing.
        """
        if tuple(maps.shape[-2:]) != self.model:
            raise ValueError(f"maps of shape {tuple(maps.shape)} do not end in the input size {self.model}")
        values = maps if maps.is_floating_point() else maps.float()
        top, left, bottom, right = self.box
        if self.depth is not None and self.depth[0] != self.depth[1]:
            deep = self.depth[0]
            lines = values.movedim(-3, -1)
            values = _resample(lines, -1, deep, 0, deep).movedim(-1, -3)
        rows = _resample(values, -2, self.original[0], top, bottom)
        sampled = _resample(rows, -1, self.original[1], left, right)
        return sampled.masked_fill(~self.seen().to(maps.device), torch.nan)

    def to_model(self, values: Tensor) -> Tensor:
        """Brings values over the picture's pixels to the model's input: (..., H0, W0) to (..., H, W).

        Each pixel of the input takes the value of the pixel under its centre, zero outside the picture: right for
        masks, whose values must not be mixed.
        """
        if tuple(values.shape[-2:]) != self.original:
            raise ValueError(f"values of shape {tuple(values.shape)} do not end in the image's size {self.original}")
        top, left, bottom, right = self.box
        rows = _centres(self.model[0]) * ((bottom - top) / self.model[0]) + top
        columns = _centres(self.model[1]) * ((right - left) / self.model[1]) + left
        inside = _within(rows, self.original[0])[:, None] & _within(columns, self.original[1])[None, :]
        picked = values.index_select(-2, _pixel_at(rows, self.original[0]).to(values.device))
        picked = picked.index_select(-1, _pixel_at(columns, self.original[1]).to(values.device))
        return picked.masked_fill(~inside.to(values.device), 0)

    def boxes_to_model(self, boxes: Tensor) -> Tensor:
        """Boxes (n, 4) as x0, y0, x1, y1 in the picture's pixels, in pixels of the model's input and clipped to it."""
        top, left, bottom, right = self.box
        height, width = self.model
        start = boxes.new_tensor([left, top, left, top], dtype=torch.float64)
        scale = boxes.new_tensor([width / (right - left), height / (bottom - top)] * 2, dtype=torch.float64)
        limit = boxes.new_tensor([width, height, width, height], dtype=torch.float64)
        return torch.minimum(((boxes.double() - start) * scale).clamp(min=0), limit).float()

    def seen(self) -> Tensor:
        """Which pixels of the picture the model saw: bool, shape (H0, W0); a pixel counts by its centre."""
        top, left, bottom, right = self.box
        rows = _inside(self.original[0], top, bottom)
        columns = _inside(self.original[1], left, right)
        return rows[:, None] & columns[None, :]


def resized_before_cut(size: tuple[int, int], rule: Callable[[int], int]) -> int | tuple[int, int]:
    """`Preprocessing.resize_to` by a rule for one side; oblong inputs have one for each, or the cut would stick out."""
    height, width = map(rule, size)
    return height if size[0] == size[1] else (height, width)


@dataclass(frozen=True)
class Preprocessing:
    """How pictures become the inputs of one model.

    Attributes:
        size: Height and width of the input.
        mean: Per channel, subtracted from pixels in [0, 1]; its length is the number of channels: 3,
            1 for a model of greyscale pictures, or as many as arrays have that are read by `of_values`.
        std: Per channel, divided by after the mean was subtracted.
        fit: `crop` keeps the shape of things and cuts the centre, `squash` resizes to the exact size, `pad`
            shows all of the picture between bars of the mean colour.
        resize_to: For `crop`, the length of the picture's short side before the cut, or the (height, width)
            that the resized picture just covers. None is just enough to cover `size`. For `squash`, the exact
            (height, width) before the cut; None is `size` itself, and nothing is cut.
        interpolation: Resampling filter; all but `nearest` smooth when they shrink.
        centre: Where a cut with half a pixel too many starts: `round` to even as in torchvision and timm, or `down`
            as in transformers.
    """

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fit: Fit = "crop"
    resize_to: int | tuple[int, int] | None = None
    interpolation: Interpolation = "bicubic"
    centre: Literal["round", "down"] = "round"

    def __post_init__(self) -> None:
        if not all(isinstance(value, int | float) and math.isfinite(value) for value in (*self.mean, *self.std)):
            raise ModelError(f"mean {self.mean} and std {self.std} must be finite numbers")
        if not self.mean or len(self.std) != len(self.mean):
            raise ModelError(f"mean {self.mean} and std {self.std} have different numbers of channels")
        if min(self.std) <= 0:
            raise ModelError(f"std {self.std} must be positive")
        if min(self.size) < 1:
            raise ModelError(f"the input size {self.size} must be positive")
        if self.fit not in ("crop", "squash", "pad"):
            raise ModelError(f"unknown fit {self.fit!r}; known: crop, squash, pad")
        if self.interpolation not in _RESAMPLING:
            raise ModelError(f"unknown interpolation {self.interpolation!r}; known: {', '.join(_RESAMPLING)}")

    def __call__(self, image: Image.Image) -> tuple[Tensor, Geometry]:
        """Turns one picture into a normalised float32 input (C, H, W) and its geometry.

        Raises:
            ImageError: The picture is so elongated that resizing it would exhaust the memory.
        """
        if self.is_measured:
            raise ImageError(f"the model reads {self.reads}, not photographs; give an array of that many channels")
        original = (image.height, image.width)
        (height, width), (top, left, bottom, right), geometry = self._cut(original)
        if height * width > MAX_PIXELS:
            shape = f"{image.width} x {image.height}"
            raise ImageError(f"an image of {shape} pixels is too elongated to crop; use pad or squash")
        picture = image.convert("L" if len(self.mean) == 1 else "RGB")
        if (height, width) != original:
            picture = picture.resize((width, height), _RESAMPLING[self.interpolation])
        if self.fit == "pad":
            # Padded after normalising, where the mean is exactly zero instead of its nearest 8-bit colour.
            inputs = F.pad(self.normalise(_pixels(picture)), (-left, right - width, -top, bottom - height))
        else:
            inputs = self.normalise(_pixels(picture.crop((left, top, right, bottom))))
        return inputs, geometry

    @property
    def places(self) -> tuple[int, ...]:
        """The axes of an input behind its channels: (H, W), or (D, H, W) of a volume."""
        return self.size

    @property
    def is_measured(self) -> bool:
        """Are its inputs arrays of bands or volumes, not photographs?"""
        return len(self.mean) not in (1, 3) or len(self.places) > 2

    @property
    def reads(self) -> str:
        """What one input is, in words."""
        kind = "volumes" if len(self.places) > 2 else "images"
        return f"{kind} of {len(self.mean)} channel{'s' * (len(self.mean) > 1)}"

    def of_values(self, values: Tensor) -> tuple[Tensor, Geometry]:
        """Values (C, H, W), in the units of `mean`, as an input, resized, cut and padded as photographs are."""
        (height, width), (top, left, bottom, right), geometry = self._cut((values.shape[-2], values.shape[-1]))
        inputs = self.normalise(_resized_linearly(values, (height, width)))
        return F.pad(inputs, (-left, right - width, -top, bottom - height)), geometry

    def drawn_on(self, image: Image.Image, inputs: Tensor) -> Image.Image:
        """The picture that maps are drawn on: the original one, or, where no geometry leads back, the model's view."""
        return image

    def normalise(self, pixels: Tensor) -> Tensor:
        """Pixels (..., C, H, W) in [0, 1] to inputs, on their device and in their precision."""
        mean, std = self._statistics(pixels)
        return (pixels - mean) / std

    def denormalise(self, inputs: Tensor) -> Tensor:
        """Inputs (..., C, H, W) back to pixels in [0, 1]."""
        mean, std = self._statistics(inputs)
        return inputs * std + mean

    def _statistics(self, like: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = (like.new_tensor(values).view(-1, *[1] * len(self.places)) for values in (self.mean, self.std))
        return mean, std

    def _cut(self, original: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int, int, int], Geometry]:
        """The size (H, W) after resizing, top, left, bottom and right of the window in it, and where that lies."""
        height, width = self._resized(original)
        top, left = (self._offset(length, target) for length, target in zip((height, width), self.size, strict=True))
        window = top, left, top + self.size[0], left + self.size[1]
        # Multiplied before dividing: where the window ends at the picture's edge this is exact.
        y0, x0, y1, x1 = (place * original[axis % 2] / (height, width)[axis % 2] for axis, place in enumerate(window))
        return (height, width), window, Geometry(original, self.size, (y0, x0, y1, x1))

    def _resized(self, original: tuple[int, int]) -> tuple[int, int]:
        """Height and width after resizing, before the window is cut."""
        if self.fit == "squash":
            return self.resize_to if isinstance(self.resize_to, tuple) else self.size
        if self.fit == "pad":
            return _scaled(original, max(original[0] / self.size[0], original[1] / self.size[1]))
        cover = self.resize_to or self.size
        if isinstance(cover, int):
            cover = (cover, cover)
        if cover[0] == cover[1]:
            # torchvision truncates the long side, and timm leaves square inputs to torchvision.
            short = min(original)
            height, width = (int(cover[0] * length / short) for length in original)
            return height, width
        return _scaled(original, min(original[0] / cover[0], original[1] / cover[1]))

    def _offset(self, length: int, target: int) -> int:
        """Start of the window of `target` pixels on a side of `length`, negative where it starts outside."""
        if self.fit == "crop" and length < target:
            # torchvision's CenterCrop rounds differently when it has to pad.
            return -((target - length) // 2)
        return round((length - target) / 2) if self.centre == "round" else (length - target) // 2


@dataclass(frozen=True)
class VolumePreprocessing(Preprocessing):
    """How arrays become volumes (C, D, H, W).

    Attributes:
        depth: Slices of the input, or frames.
    """

    depth: int = 1

    @property
    def places(self) -> tuple[int, ...]:
        """Depth, height and width."""
        return (self.depth, *self.size)

    def of_values(self, values: Tensor) -> tuple[Tensor, Geometry]:
        """Values (C, D0, H0, W0), in the units of `mean`, as an input, resized as a whole."""
        height, width = values.shape[-2:]
        inputs = self.normalise(_resized_linearly(values, self.places))
        box = (0.0, 0.0, float(height), float(width))
        return inputs, Geometry((height, width), self.size, box, (values.shape[1], self.depth))


def preprocessing_of(size: Sequence[int], mean: Sequence[float], std: Sequence[float], fit: Fit) -> Preprocessing:
    """Of images (H, W) or volumes (D, H, W)."""
    height, width = size[-2:]
    if len(size) == 2:
        return Preprocessing((height, width), tuple(mean), tuple(std), fit=fit)
    return VolumePreprocessing((height, width), tuple(mean), tuple(std), fit=fit, depth=size[0])


def _resized_linearly(values: Tensor, size: tuple[int, ...]) -> Tensor:
    if values.shape[1:] == size:
        return values
    if len(size) == 2:
        return F.interpolate(values[None], size, mode="bilinear", align_corners=False, antialias=True)[0]
    return F.interpolate(values[None], size, mode="trilinear", align_corners=False)[0]


def _scaled(original: tuple[int, int], ratio: float) -> tuple[int, int]:
    # A side never vanishes, however elongated the picture.
    return max(1, round(original[0] / ratio)), max(1, round(original[1] / ratio))


def _pixels(image: Image.Image) -> Tensor:
    """The image as float32 in [0, 1], shape (C, H, W)."""
    pixels = torch.from_numpy(np.array(image))
    if pixels.ndim == 2:
        pixels = pixels.unsqueeze(-1)
    return pixels.permute(2, 0, 1).contiguous().float().div(255)


def _centres(length: int) -> Tensor:
    # In double precision on the CPU: float32 is too coarse for large pictures, and MPS has no doubles.
    return torch.arange(length, dtype=torch.float64) + 0.5


def _within(places: Tensor, length: int) -> Tensor:
    return (places >= 0) & (places <= length)


def _pixel_at(places: Tensor, length: int) -> Tensor:
    return places.floor().long().clamp(0, length - 1)


def _inside(length: int, start: float, stop: float) -> Tensor:
    centres = _centres(length)
    return (centres >= start) & (centres <= stop)


def _resample(values: Tensor, dim: int, length: int, start: float, stop: float) -> Tensor:
    """Linear interpolation along one dimension, whose pixels fill [start, stop], at `length` unit pixels."""
    count = values.shape[dim]
    places = ((_centres(length) - start) * (count / (stop - start)) - 0.5).clamp(0, count - 1)
    lower = places.floor().long()
    upper = (lower + 1).clamp(max=count - 1)
    shape = (-1, 1) if dim == -2 else (-1,)
    weight = (places - lower).to(values.device, values.dtype).view(shape)
    first = values.index_select(dim, lower.to(values.device))
    second = values.index_select(dim, upper.to(values.device))
    return torch.lerp(first, second, weight.expand_as(first))

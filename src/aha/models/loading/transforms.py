"""Pictures made inputs by a caller's own transform: what it does to sizes, colours and places is found by trying.

Shapes: inputs (C, H, W).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from aha.errors import ImageError, ModelError
from aha.models.loading.preprocessing import Geometry, Preprocessing

Transform = Callable[[Image.Image], Any]
"""A picture in RGB -> its input (C, H, W), alone, as a batch of one, or in a dict of the usual names."""

_TRIED = (256, 256)  # pixels of the pictures that a transform is tried on
_INNER = slice(0.1, 0.9)  # where edges do not matter
_BENT = 3 / 255  # how far a ramp may come out from a straight line: rounding to bytes, before and after


@dataclass(frozen=True)
class Transformed(Preprocessing):
    """What a caller's transform does.

    Black and white become the ends of each channel, so that `normalise` and `denormalise` speak of the picture as the
    model sees it. Where the transform only scales, shifts and cuts, maps are drawn on the original picture, else on
    the model's view of it.
    """

    described: str = ""

    @classmethod
    def by(cls, transform: Transform, mean: Sequence[float] | None, std: Sequence[float] | None) -> Transformed:
        """Tries the transform on a few pictures; mean and std replace what is found of its colours."""
        noise = np.random.default_rng(0).integers(0, 256, (*_TRIED, 3), dtype=np.uint8)
        first, again, black, white = (
            _run(transform, Image.fromarray(picture))
            for picture in (noise, noise, np.zeros_like(noise), np.full_like(noise, 255))
        )
        if first.shape != again.shape or not torch.equal(first, again):
            raise ModelError("transform= turns the same image into different inputs; pass one without augmentation")
        height, width = first.shape[-2:]
        low, high = (values[:, height // 2, width // 2].double() for values in (black, white))
        if mean is None or std is None:
            if bool((high <= low).any()):
                raise ModelError(
                    "transform= makes black as bright as white, so its colours are unknown: state mean, std"
                )
            std = tuple((1 / (high - low)).tolist())
            mean = tuple((-low / (high - low)).tolist())
        found = cls((height, width), _rounded(mean), _rounded(std), described=_described(transform))
        object.__setattr__(found, "_transform", transform)  # no field: it has no text to be compared and saved by
        object.__setattr__(found, "_windows", {})
        return found

    def __call__(self, image: Image.Image) -> tuple[Tensor, Geometry]:
        """The transform's input (C, H, W) and where it lies in the picture, or in itself where that is lost."""
        transform = self.__dict__.get("_transform")
        if transform is None:  # a copy with another size, which the transform does not give
            return super().__call__(image)
        inputs = _run(transform, image)
        if tuple(inputs.shape[-2:]) != self.size:
            expected, given = ("x".join(map(str, size)) for size in (self.size, inputs.shape[-2:]))
            raise ImageError(
                f"transform= gives {given} for an image of {image.width}x{image.height}, {expected} for a square one; "
                "let it end in a crop or an exact size"
            )
        window = self._window(image.size)
        if window is None:
            return inputs, Geometry.identity(self.size)
        return inputs, Geometry((image.height, image.width), self.size, window)

    def drawn_on(self, image: Image.Image, inputs: Tensor) -> Image.Image:
        """The original picture, or what the transform made of it."""
        if "_transform" not in self.__dict__ or self._window(image.size) is not None:
            return image
        bytes_ = (self.denormalise(inputs).clamp(0, 1) * 255).round().byte()  # (C, H, W)
        return Image.fromarray(bytes_.expand(3, -1, -1).permute(1, 2, 0).numpy())

    def _window(self, size: tuple[int, int]) -> tuple[float, float, float, float] | None:
        """Top, left, bottom, right of what the input shows of a picture (W, H); None where no window explains it."""
        known: dict[tuple[int, int], tuple[float, float, float, float] | None] = self.__dict__["_windows"]
        if size not in known:
            width, height = size
            across = self._ends(_ramp(height, width), width, dim=1)
            down = self._ends(_ramp(width, height).T, height, dim=0)
            known[size] = None if across is None or down is None else (down[0], across[0], down[1], across[1])
        return known[size]

    def _ends(self, ramp: NDArray[np.uint8], length: int, dim: int) -> tuple[float, float] | None:
        """Where, in a picture that brightens evenly along one dimension, the input starts and ends."""
        picture = Image.fromarray(np.repeat(ramp[:, :, None], 3, axis=2))
        inputs = _run(self.__dict__["_transform"], picture)
        if tuple(inputs.shape[-2:]) != self.size:
            return None
        values = self.denormalise(inputs).mean(dim=0).double()  # (H, W) of the input
        values = values if dim == 1 else values.T
        rows, columns = (_inside(count) for count in values.shape)
        line = values[rows].mean(dim=0)  # (columns,)
        places = torch.arange(values.shape[1], dtype=torch.float64) + 0.5
        slope, start = _straight(places[columns], line[columns])
        bent = (values[rows][:, columns] - (slope * places[columns] + start)).abs().max()
        if slope <= 0 or float(bent) > _BENT:
            return None
        return start * length, (start + slope * values.shape[1]) * length


def _run(transform: Transform, image: Image.Image) -> Tensor:
    try:
        found = transform(image)
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(f"transform= fails on an RGB image: {type(error).__name__}: {reason}") from error
    if isinstance(found, Mapping):
        found = next((found[key] for key in ("pixel_values", "image", "images") if key in found), None)
    if isinstance(found, np.ndarray):
        found = torch.from_numpy(found)
    if isinstance(found, Tensor) and found.dim() == 4 and len(found) == 1:
        found = found[0]
    if not isinstance(found, Tensor) or found.dim() != 3 or not found.is_floating_point():
        shape = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ModelError(f"transform= must turn an image into a float tensor (C, H, W), not {shape}")
    return found.detach().float()


def _ramp(height: int, width: int) -> NDArray[np.uint8]:
    """Bytes (H, W) that rise evenly from left to right; rows round at different places, so that their mean is exact."""
    places = (np.arange(width) + 0.5) / width * 255
    dither = (np.arange(height) * 0.618034) % 1
    return np.floor(places[None, :] + dither[:, None]).clip(0, 255).astype(np.uint8)


def _inside(count: int) -> slice:
    return slice(int(_INNER.start * count), max(int(_INNER.stop * count), int(_INNER.start * count) + 2))


def _straight(places: Tensor, values: Tensor) -> tuple[float, float]:
    """Slope and value at zero of the line through the points."""
    centred = places - places.mean()
    slope = float((centred * values).sum() / centred.square().sum().clamp(min=1e-12))
    return slope, float(values.mean()) - slope * float(places.mean())


def _rounded(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(float(value), 6) for value in values)


def _described(transform: Transform) -> str:
    """A text that is the same from run to run."""
    text = " ".join(repr(transform).split())
    return getattr(transform, "__qualname__", type(transform).__qualname__) if " at 0x" in text else text

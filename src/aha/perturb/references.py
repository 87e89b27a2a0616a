"""What stands in for removed pixels, always given in pixels of [0, 1].

A reference is a spec like a method: `black`, `blur(kernel=31, sigma=10)`. Zero after normalisation is not black: it is
the mean colour, and both have a name here because published protocols use both. Those that are made of patches are in
`rearranged.py`, those that depend on which pixels are removed in `filling.py`.

Shapes: pixels and references (B, C, H, W); classes (B,).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from aha.core.axes import is_volume, per_image, place_axes
from aha.core.registry import Registry
from aha.core.seeds import generator_of
from aha.core.spec import Spec, parse
from aha.errors import SpecError
from aha.models import TargetModel
from aha.models.loading.preprocessing import preprocessing_of
from aha.models.scores import SCORES

IMAGENET_MEAN = (0.485, 0.456, 0.406)

REFERENCES: Registry[type[Reference]] = Registry("reference")

R = TypeVar("R", bound="type[Reference]")


@dataclass(frozen=True)
class Reference(Spec):
    """Base of all references.

    Attributes:
        is_pixels: it is made of pixel values, so that the model's normalisation must be known; the others follow from
            the image, whatever its normalisation.
        for_volumes: it can be made of volumes (B, C, D, H, W) too.
    """

    is_pixels: ClassVar[bool] = True
    for_volumes: ClassVar[bool] = True

    @abstractmethod
    def __call__(self, model: TargetModel, pixels: Tensor, classes: Tensor) -> Tensor:
        """The reference (B, C, H, W) of each image; NaN for an image that has none."""


def reference(name: str) -> Callable[[R], R]:
    """Class decorator that registers a reference under its name."""

    def add(cls: R) -> R:
        cls.name = name
        REFERENCES.register(name)(cls)
        return cls

    return add


def load_reference(spec: str | Reference) -> Reference:
    """A reference from its text; a reference passes through."""
    return spec if isinstance(spec, Reference) else parse(spec, REFERENCES)


def reference_inputs(chosen: Reference, model: TargetModel, inputs: Tensor, classes: Tensor) -> Tensor:
    """What stands in for removed pixels, as model inputs (B, C, H, W): the one way from a reference to inputs."""
    check_reference(chosen, model, inputs.shape[1:])
    if isinstance(chosen, ZerosNormalised):
        return torch.zeros_like(inputs)  # exactly, which the way to pixels and back is not
    model = with_normalisation(model, inputs)
    found = model.to_inputs(chosen(model, model.to_pixels(inputs), classes))
    if not found.isfinite().all():
        raise SpecError(f"{chosen} does not hide the class of every image; choose another reference, such as blur")
    return found


def with_normalisation(model: TargetModel, inputs: Tensor) -> TargetModel:
    """The model, or one that takes inputs for pixels: any normalisation will do for what follows from the image."""
    if model.preprocessing is None:
        model = copy(model)  # the wrapper only: the module, its lock and its counts are shared
        places = inputs.shape[2:] if inputs.dim() > 3 else inputs.shape[1:]  # of a batch, or of one image
        model.preprocessing = preprocessing_of(places, mean=(0.0,), std=(1.0,), fit="crop")
    return model


def check_reference(chosen: Reference, model: TargetModel, size: Sequence[int] = ()) -> None:
    """Refuses pixel values for a module that states no normalisation: whether its 0 is black must not be guessed.

    For inputs of `size` (C, D, H, W), also what is made of images alone.
    """
    if is_volume(size) and not chosen.for_volumes:
        raise SpecError(f"the reference {chosen} is made for images, not for volumes; use blur or zeros_normalised")
    if chosen.is_pixels and model.preprocessing is None:
        raise SpecError(
            f"the reference {chosen} is made of pixels; state input_size, mean and std in load_model, or use blur or "
            "zeros_normalised"
        )


@reference("black")
@dataclass(frozen=True)
class Black(Reference):
    """Pixel value 0."""

    def __call__(self, model: TargetModel, pixels: Tensor, classes: Tensor) -> Tensor:
        """Zeros."""
        return torch.zeros_like(pixels)


@reference("white")
@dataclass(frozen=True)
class White(Reference):
    """Pixel value 1."""

    def __call__(self, model: TargetModel, pixels: Tensor, classes: Tensor) -> Tensor:
        """Ones."""
        return torch.ones_like(pixels)


@reference("mean")
@dataclass(frozen=True)
class Mean(Reference):
    """One colour, the mean of ImageNet by default; its average for greyscale models, the model's mean for bands."""

    colour: tuple[float, ...] = IMAGENET_MEAN

    def __call__(self, model: TargetModel, pixels: Tensor, classes: Tensor) -> Tensor:
        """The colour everywhere."""
        channels = pixels.shape[1]
        if self.colour == IMAGENET_MEAN and channels not in (1, 3):
            return ZerosNormalised()(model, pixels, classes)
        if len(self.colour) not in (channels, 3) or (len(self.colour) != channels and channels != 1):
            raise SpecError(f"mean has {len(self.colour)} values; the images have {channels} channels")
        colour = pixels.new_tensor(self.colour if len(self.colour) == channels else [float(np.mean(self.colour))])
        return per_image(colour[None], pixels).expand_as(pixels)


@reference("own_mean")
@dataclass(frozen=True)
class OwnMean(Reference):
    """The mean colour of the image itself."""

    is_pixels: ClassVar[bool] = False

    def __call__(self, model: TargetModel, pixels: Tensor, classes: Tensor) -> Tensor:
        """The colour everywhere."""
        return own_mean(pixels)


def own_mean(pixels: Tensor) -> Tensor:
    """Each picture's mean colour, at every pixel (B, C, H, W)."""
    return pixels.mean(dim=place_axes(pixels), keepdim=True).expand_as(pixels)


@reference("zeros_normalised")
@dataclass(frozen=True)
class ZerosNormalised(Reference):
    """Zero after the model's normalisation: its mean colour (what RISE, TIS and MDA code call black)."""

    is_pixels: ClassVar[bool] = False

    def __call__(self, model: TargetModel, pixels: Tensor, classes: Tensor) -> Tensor:
        """The model's mean everywhere."""
        return model.to_pixels(torch.zeros_like(pixels))


@reference("blur")
@dataclass(frozen=True)
class Blur(Reference):
    """Gaussian blur with reflected borders."""

    is_pixels: ClassVar[bool] = False

    kernel: int = 31
    sigma: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_kernel(self.name, self.kernel, self.sigma)

    def __call__(self, model: TargetModel, pixels: Tensor, classes: Tensor) -> Tensor:
        """The blurred image."""
        return blurred(pixels, self.kernel, self.sigma)


def blurred(pixels: Tensor, kernel: int, sigma: float) -> Tensor:
    """Pixels (B, C, H, W) under a Gaussian."""
    from torchvision.transforms.functional import gaussian_blur  # here: a seconds' import, for those who blur

    # Reflection cannot reach beyond the opposite border; tiny images get the largest kernel that fits.
    size = min(kernel, 2 * min(pixels.shape[-2:]) - 1)
    # Along one side and then the other: with both at once, the work would grow with the kernel's area.
    flat = pixels.flatten(1, -3)  # slices of a volume as channels
    across = gaussian_blur(flat, [size, 1], [sigma, sigma])
    found: Tensor = gaussian_blur(across, [1, size], [sigma, sigma]).view_as(pixels)
    if not is_volume(pixels.shape[1:]):
        return found
    deep = min(size, 2 * pixels.shape[2] - 1)
    lines = found.movedim(2, -1)  # (B, C, H, W, D)
    along: Tensor = gaussian_blur(lines.flatten(1, -3), [deep, 1], [sigma, sigma]).view_as(lines)
    return along.movedim(-1, 2)


@reference("rise_blur")
@dataclass(frozen=True)
class RiseBlur(Reference):
    """The blur of the RISE code: a kernel that sums to one but is cut off, on the normalised image, zero padding.

    For sigma >= kernel / 2 it is nearly a box; the borders fade to the model's mean colour.
    """

    is_pixels: ClassVar[bool] = False
    for_volumes: ClassVar[bool] = False

    kernel: int = 11
    sigma: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_kernel(self.name, self.kernel, self.sigma)

    def __call__(self, model: TargetModel, pixels: Tensor, classes: Tensor) -> Tensor:
        """The blurred image."""
        return rise_blurred(model, pixels, self.kernel, self.sigma)


@reference("adaptive_blur")
@dataclass(frozen=True)
class AdaptiveBlur(Reference):
    """MDA's blur: the RISE kernel with kernel = sigma, grown by 2 until the class's probability is `threshold`.

    An image whose class survives `largest` has no reference: its result is NaN, and metrics leave it out, as the
    published code drops the image.
    """

    is_pixels: ClassVar[bool] = False
    for_volumes: ClassVar[bool] = False

    smallest: int = 31
    largest: int = 101
    threshold: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_kernel(self.name, self.smallest, float(self.smallest))
        if self.largest < self.smallest:
            raise SpecError(f"{self.name}: largest={self.largest} is below smallest={self.smallest}")

    def __call__(self, model: TargetModel, pixels: Tensor, classes: Tensor) -> Tensor:
        """The first blur that hides the class."""
        if not model.score.splits_single:
            raise SpecError(
                f"{self.name} hides a class, and a regression has none; use another reference, such as blur"
            )
        probability = model.score if model.score.is_probability else SCORES["softmax"]
        result = torch.full_like(pixels, torch.nan)
        open_rows = torch.arange(len(pixels), device=pixels.device)
        for size in range(self.smallest, self.largest + 1, 2):
            blurred = rise_blurred(model, pixels[open_rows], size, float(size))
            outputs = model.outputs(model.to_inputs(blurred))
            hidden = probability(outputs, classes[open_rows]) <= self.threshold
            result[open_rows[hidden]] = blurred[hidden]
            open_rows = open_rows[~hidden]
            if not len(open_rows):
                break
        return result


@reference("noise")
@dataclass(frozen=True)
class Noise(Reference):
    """Uniform noise per pixel and channel, the same for every image of one size."""

    seed: int = 0

    def __call__(self, model: TargetModel, pixels: Tensor, classes: Tensor) -> Tensor:
        """The noise."""
        generator = generator_of(self.seed)
        return torch.rand(pixels.shape[1:], generator=generator).to(pixels).expand_as(pixels)


@reference("blurred_noise")
@dataclass(frozen=True)
class BlurredNoise(Reference):
    """Uniform noise, blurred and stretched to the full range again; the same for every image of one size."""

    kernel: int = 31
    sigma: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_kernel(self.name, self.kernel, self.sigma)

    def __call__(self, model: TargetModel, pixels: Tensor, classes: Tensor) -> Tensor:
        """The blurred noise."""
        noise = Noise(self.seed)(model, pixels[:1], classes[:1])
        smooth = Blur(self.kernel, self.sigma)(model, noise, classes[:1])
        low, high = smooth.amin(), smooth.amax()
        return ((smooth - low) / (high - low).clamp(min=1e-12)).expand_as(pixels)


@reference("image")
@dataclass(frozen=True)
class ReferenceImage(Reference):
    """An image of the user's, brought to the model's input like any other."""

    for_volumes: ClassVar[bool] = False

    path: str

    def __call__(self, model: TargetModel, pixels: Tensor, classes: Tensor) -> Tensor:
        """The picture, for every image."""
        return picture_pixels(model, self.path, pixels).expand_as(pixels)


def picture_pixels(model: TargetModel, path: str, like: Tensor) -> Tensor:
    """A picture of the user's as pixels (C, H, W), which must fit images (B, C, H, W)."""
    from aha.core.pictures import read_image

    inputs, _ = model.stated_preprocessing()(read_image(path))
    picture = model.to_pixels(inputs).to(like)
    if picture.shape != like.shape[1:]:
        raise SpecError(f"the reference {path} gives {tuple(picture.shape)}, the images {tuple(like.shape[1:])}")
    return picture


def rise_blurred(model: TargetModel, pixels: Tensor, kernel: int, sigma: float) -> Tensor:
    """Pixels (B, C, H, W) blurred as RISE does: after normalisation, with zeros around."""
    weights = torch.from_numpy(rise_kernel(kernel, sigma)).to(pixels)  # (k,)
    channels = pixels.shape[1]
    inputs = model.to_inputs(pixels)
    across = weights.view(1, 1, 1, -1).expand(channels, 1, 1, -1)
    inputs = F.conv2d(inputs, across, padding=(0, kernel // 2), groups=channels)
    inputs = F.conv2d(inputs, across.transpose(2, 3), padding=(kernel // 2, 0), groups=channels)
    return model.to_pixels(inputs)


@cache
def rise_kernel(size: int, sigma: float) -> NDArray[np.float64]:
    """One axis (k,) of the RISE kernel: a centred impulse, filtered by a Gaussian that is reflected at the window."""
    from scipy.ndimage import gaussian_filter1d

    impulse = np.zeros(size)
    impulse[size // 2] = 1
    found: NDArray[np.float64] = gaussian_filter1d(impulse, sigma)
    return found


def _check_kernel(name: str, kernel: int, sigma: float) -> None:
    if kernel < 1 or kernel % 2 == 0 or sigma <= 0:
        raise SpecError(f"{name}: kernel must be odd and positive and sigma positive, not {kernel} and {sigma}")

"""References that follow from the pixels that are left: the holes are filled in from what surrounds them.

They depend on which pixels are removed, so that they are made anew for every perturbed image (`filled` in
`perturbation.py`; `filled_softly` in training, whose masks are soft). Where there is no mask to go by, at the start of
integrated gradients, they show what they show when nothing is left: the picture's mean colour.

Shapes: pixels (R, C, H, W); keep (R, H, W), True where a pixel is left.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from aha.core.seeds import generator_of
from aha.core.validation import NonNegativeFloat, PositiveInt
from aha.errors import MissingExtra
from aha.models import TargetModel
from aha.perturb.imputation import imputed
from aha.perturb.references import Reference, own_mean, reference


@dataclass(frozen=True)
class Filling(Reference):
    """Base of the references that depend on what is removed."""

    is_pixels: ClassVar[bool] = False
    for_volumes: ClassVar[bool] = False

    def __call__(self, model: TargetModel, pixels: Tensor, classes: Tensor) -> Tensor:
        """The picture with nothing left of it."""
        return self.fill(pixels, torch.zeros_like(pixels[:, 0], dtype=torch.bool))

    def fill(self, pixels: Tensor, keep: Tensor) -> Tensor:
        """The pictures with their holes filled; what is half there or more counts as left."""
        keep = keep if keep.dtype == torch.bool else keep >= 0.5
        found = pixels.detach().clone()
        some, whole = keep.flatten(1).any(dim=1), keep.flatten(1).all(dim=1)
        if bool((~some).any()):
            found[~some] = own_mean(pixels[~some]).detach()
        between = some & ~whole
        if bool(between.any()):
            found[between] = self.between(pixels[between].detach(), keep[between])
        return self.finish(found, keep)

    @abstractmethod
    def between(self, pixels: Tensor, keep: Tensor) -> Tensor:
        """The pictures, filled in, of each of which something is left and something is missing."""

    def finish(self, pixels: Tensor, keep: Tensor) -> Tensor:
        """A last change to filled pictures."""
        return pixels


@reference("imputed")
@dataclass(frozen=True)
class Imputed(Filling):
    """ROAD's noisy linear imputation (Rong et al., ICML 2022): the weighted mean of the neighbours, and noise.

    Attributes:
        noise: standard deviation of the noise on removed pixels, of a pixel value in [0, 1].
        seed: of the noise, which is the same for every image of one size.
    """

    noise: NonNegativeFloat = 0.01
    seed: int = 0

    def between(self, pixels: Tensor, keep: Tensor) -> Tensor:
        """By one linear system for each picture."""
        return imputed(pixels, keep)

    def finish(self, pixels: Tensor, keep: Tensor) -> Tensor:
        """With noise on what was removed."""
        noise = torch.randn(pixels.shape[1:], generator=generator_of(self.seed)).to(pixels)
        return torch.where(keep[:, None], pixels, pixels + self.noise * noise)


@reference("inpainted")
@dataclass(frozen=True)
class Inpainted(Filling):
    """Biharmonic inpainting by scikit-image: smooth surfaces that continue what surrounds the holes. Slow.

    Attributes:
        shrink: the filling is found on a picture so many times smaller, and enlarged: 4 takes a fifth of a second for
            224 pixels, 1 several seconds.
    """

    shrink: PositiveInt = 4

    def between(self, pixels: Tensor, keep: Tensor) -> Tensor:
        """One picture after the other."""
        try:
            from skimage.restoration import inpaint_biharmonic
        except ImportError:
            raise MissingExtra("inpainted", "superpixels") from None
        size, shrink = (pixels.shape[-2], pixels.shape[-1]), min(self.shrink, *pixels.shape[-2:])
        known = keep[:, None].to(pixels)
        share = F.avg_pool2d(known, shrink, ceil_mode=True)  # (R, 1, h, w)
        small = F.avg_pool2d(pixels * known, shrink, ceil_mode=True) / share.clamp(min=1e-12)
        filled = [
            inpaint_biharmonic(picture.permute(1, 2, 0).double().cpu().numpy(), hole.cpu().numpy(), channel_axis=-1)
            for picture, hole in zip(small, share[:, 0] == 0, strict=True)
        ]
        coarse = torch.stack([torch.from_numpy(picture).to(pixels).permute(2, 0, 1) for picture in filled])
        # From whole blocks to pixels; the last block of a side may reach beyond it.
        large = F.interpolate(coarse, scale_factor=shrink, mode="bilinear", align_corners=False)
        return torch.where(keep[:, None], pixels, large[..., : size[0], : size[1]])


def filled_softly(pixels: Tensor, blanks: Tensor, keep: Tensor, kinds: Sequence[Reference]) -> Tensor:
    """What stands in for each pixel under soft masks, whose gradient asks it of the pixels that are left, too.

    A removed pixel follows from those that are left. A pixel that is left has nothing to be filled in; what it would be
    is taken from the pixels that are removed, as if the two had changed sides.

    Args:
        pixels: the images (R, C, H, W).
        blanks: what stands in for them where that does not depend on the mask, as `pixels`.
        keep: soft keep masks (R, H, W); one half or more counts as left.
        kinds: the reference of each row.
    """
    found = blanks
    for kind in {one for one in kinds if isinstance(one, Filling)}:
        rows = torch.tensor([one == kind for one in kinds], device=pixels.device)
        left, found = keep[rows].detach() >= 0.5, found.clone()
        found[rows] = torch.where(left[:, None], kind.fill(pixels[rows], ~left), kind.fill(pixels[rows], left))
    return found


__all__ = ["Filling", "Imputed", "Inpainted", "filled_softly"]

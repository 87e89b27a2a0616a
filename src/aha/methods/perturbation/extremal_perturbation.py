"""Extremal perturbations: smooth masks of given area that keep the score as high as they can."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from aha.core.progress import in_parts
from aha.core.validation import Fraction, PositiveInt, Range
from aha.errors import SpecError
from aha.methods.base import Method, method
from aha.methods.cost import Cost
from aha.models import TargetModel
from aha.perturb.masking import MaskedModel, Scale, explain_each
from aha.perturb.references import Blur, Reference, RiseBlur, reference_inputs

STEP, SIGMA, COLDNESS = 7, 21, 20.0  # pixels between mask parameters, reach of each in pixels, of the smooth maximum
MARGIN = (
    SIGMA // STEP
)  # parameters' worth of mask around the image, without which its border would be the cheapest area
REACH = 1 + MARGIN  # parameters to each side that a pixel looks at
RATE, MOMENTUM = 0.01, 0.9
AREA_WEIGHT, AREA_GROWTH = 300.0, 1.0035  # at the start, and per step: the area is enforced more and more strictly


@method("extremal_perturbation", family="perturbation", needs={"gradients"}, citation="Fong et al., ICCV 2019")
@dataclass(frozen=True)
class ExtremalPerturbation(Method):
    """Mean, over several areas a, of the smooth mask that maximises `score(mask) - weight |sorted(mask) - r_a|^2`.

    r_a is 0 for the share 1 - a of the places and 1 for the rest, so the sorted mask must nearly be hard and cover just
    the area (section 3.1). Masks are smooth maxima of parameters spread by a kernel (section 3.2), and their area is
    taken with a margin of one sigma around the image. All of it, constants and the mirrored image of every second step
    included, is the published code's (TorchRay); the areas are those of the paper's pointing game, whose smoothing of
    the finished masks is left out.

    Reads: the gradients of the input.
    Cost: `steps` forward and backward passes for each area.
    Example: `extremal_perturbation(areas=[0.1], steps=200)`.

    Attributes:
        areas: shares of the image and its margin that the masks cover.
        steps: of gradient ascent.
        reference: what removed pixels show. A blur grows weaker with the mask, in `levels` degrees; any other reference
            is mixed in.
        levels: degrees of blur, the image itself being the last.
        score: what is kept high.
    """

    areas: tuple[Fraction, ...] = (0.025, 0.05, 0.1, 0.2)
    steps: PositiveInt = 800
    reference: Reference = RiseBlur(kernel=161, sigma=20.0)
    levels: Annotated[int, Range(2)] = 8
    score: Scale = "logit"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.areas:
            raise SpecError("extremal_perturbation: at least one area is needed")

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        pixels, places = 4 * 3 * size[0] * size[1], (size[0] + 2 * SIGMA) * (size[1] + 2 * SIGMA)
        around = 4 * 4 * (2 * REACH + 1) ** 2 * places  # of one mask at a time, with its gradient
        return Cost(2 * self.steps * len(self.areas), (8 * len(self.areas) + self.levels) * pixels + around)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        return explain_each(self._explain, model, images, classes, self.reference, self.score)

    def _explain(self, masked: MaskedModel) -> Tensor:
        # One class at a time: many steps would blow up the rounding differences between batches of different sizes.
        return torch.stack(
            [self._masks(masked, chosen).mean(dim=0) for chosen in in_parts([*masked.classes])]
        )  # (k, H, W)

    def _masks(self, masked: MaskedModel, chosen: Tensor) -> Tensor:
        """The masks (areas, H, W) of one class."""
        image = masked.image
        degrees = self._degrees(masked, chosen)  # (levels, C, H, W)
        parameters = image.new_ones(len(self.areas), *(math.ceil(side / STEP) for side in masked.size))
        velocity, weight = torch.zeros_like(parameters), AREA_WEIGHT
        for step in in_parts(range(self.steps)):
            masks = torch.cat([smooth_masks(row) for row in parameters[:, None]])  # (areas, H', W')
            shown = between(degrees, cropped(masks, masked.size))  # (areas, C, H, W)
            slopes = self._slopes(masked, shown, chosen, mirrored=step % 2 == 0)
            rows = zip(self.areas, parameters[:, None], slopes, strict=True)
            gradient = torch.cat([_ascent(area, row, degrees, slope, weight) for area, row, slope in rows])
            velocity = gradient if step == 0 else MOMENTUM * velocity + (1 - MOMENTUM) * gradient
            parameters = (parameters + RATE * velocity).clamp(0, 1)
            weight *= AREA_GROWTH
        return cropped(masks, masked.size)  # those that were looked at last, as in the published code

    def _degrees(self, masked: MaskedModel, chosen: Tensor) -> Tensor:
        """From the reference (C, H, W) to the image: the degrees of a blur, or just these two."""
        if not isinstance(self.reference, Blur | RiseBlur):
            return torch.stack([masked.blank, masked.image])
        sigmas = [self.reference.sigma * (1 - level / (self.levels - 1)) for level in range(1, self.levels - 1)]
        image, label = masked.image[None], chosen[None]
        weaker = [reference_inputs(replace(self.reference, sigma=s), masked.model, image, label) for s in sigmas]
        return torch.cat([masked.blank[None], *weaker, image])

    def _slopes(self, masked: MaskedModel, shown: Tensor, chosen: Tensor, *, mirrored: bool) -> Tensor:
        """Gradients (areas, C, H, W) of the score with respect to the masked images, seen straight or mirrored."""
        seen = shown.flip(-1) if mirrored else shown
        slopes = masked.model.input_gradients(seen, chosen.repeat(len(seen)), masked.score)
        return slopes.flip(-1) if mirrored else slopes


def _ascent(area: float, parameters: Tensor, degrees: Tensor, slopes: Tensor, weight: float) -> Tensor:
    """Gradient (1, h, w) of the objective of one mask, from the score's with respect to what it shows (C, H, W)."""
    with torch.enable_grad():
        leaf = parameters.detach().requires_grad_()
        mask = smooth_masks(leaf)
        goal = sorted_goal(area, mask.numel()).to(mask)
        misfit = (mask.flatten().sort().values - goal).square().mean()
        shown = between(degrees, cropped(mask, (slopes.shape[-2], slopes.shape[-1])))
        (gradient,) = torch.autograd.grad((shown * slopes).sum() - weight * misfit, leaf)
    return gradient


def smooth_masks(parameters: Tensor) -> Tensor:
    """Masks (m, H', W') with their margin: at each pixel the smooth maximum of the parameters (m, h, w) around it.

    Parameters lie STEP pixels apart and fade with their distance. The pixels from one parameter to the next look at the
    same ones, those within REACH of the first.
    """
    count, height, width = parameters.shape
    pixel, offset = torch.arange(STEP), STEP * torch.arange(-REACH, REACH + 1)
    apart = (pixel[:, None] - offset).to(parameters) / SIGMA  # (STEP, window): along one side
    distance = (apart[:, None, :, None] ** 2 + apart[:, None] ** 2).sqrt()  # (STEP, STEP, window, window)
    kernel = (-2 * (distance - 0.5).clamp(min=0) ** 2).exp().flatten(2).flatten(0, 1)  # one within half of sigma
    around = F.unfold(parameters[:, None], 2 * REACH + 1, padding=REACH + MARGIN)  # (m, window^2, cells)
    faded = around[..., None] * kernel.T[:, None]  # (m, window^2, cells, STEP^2)
    weights = (COLDNESS * faded).exp()  # at most exp(20): no need to take the maximum off first
    found = (faded * weights).sum(dim=1) / weights.sum(dim=1)  # (m, cells, STEP^2)
    cells = found.view(count, height + 2 * MARGIN, width + 2 * MARGIN, STEP, STEP)
    return cells.transpose(2, 3).flatten(3, 4).flatten(1, 2)[:, : 1 - STEP, : 1 - STEP]  # ends at the last parameter


def cropped(masks: Tensor, size: tuple[int, ...]) -> Tensor:
    """Masks (m, H, W) without their margin."""
    return masks[:, SIGMA : SIGMA + size[0], SIGMA : SIGMA + size[1]]


def between(degrees: Tensor, masks: Tensor) -> Tensor:
    """What masks (m, H, W) show (m, C, H, W): of degrees (L, C, H, W), 0 the first and 1 the last, linear between."""
    place = masks[:, None] * (len(degrees) - 1)  # (m, 1, H, W)
    lower = place.detach().floor().clamp(max=len(degrees) - 2)
    index = lower.long().expand(-1, degrees.shape[1], -1, -1)  # (m, C, H, W)
    below, above = degrees.gather(0, index), degrees.gather(0, index + 1)
    return torch.lerp(below, above, place - lower)


def sorted_goal(area: float, places: int) -> Tensor:
    """What a mask's values should be when sorted (places,): zeros, then its area's share of ones."""
    return (torch.arange(places) >= int(places * (1 - area))).double()

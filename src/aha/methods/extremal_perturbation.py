"""Extremal perturbations: smooth masks of given area that keep the score as high as they can."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from aha.core.progress import in_parts
from aha.errors import SpecError
from aha.methods.base import Method, method
from aha.methods.cost import Cost
from aha.models import TargetModel
from aha.perturb.masking import MaskedModel, Scale, explain_each
from aha.perturb.perturbation import blend
from aha.perturb.references import Blur, Reference

STEP, SIGMA, COLDNESS = 7, 21.0, 20.0  # pixels between mask parameters, reach of each in pixels, of the smooth maximum
RATE, MOMENTUM = 0.01, 0.9
AREA_WEIGHT, AREA_GROWTH = 300.0, 1.0035  # at the start, and per step: the area is enforced more and more strictly


@method("extremal_perturbation", family="perturbation", needs={"gradients"}, citation="Fong et al., ICCV 2019")
@dataclass(frozen=True)
class ExtremalPerturbation(Method):
    """Mean, over several areas a, of the smooth mask that maximises `score(mask) - weight |sorted(mask) - r_a|^2`.

    r_a is 0 for the share 1 - a of the places and 1 for the rest, so the sorted mask must nearly be hard and cover just
    the area (section 3.1). Masks are smooth maxima of parameters spread by a kernel (section 3.2). Optimiser, kernel
    and constants are those of the published code, every second step looking at the mirrored image as there; the areas
    are those of the paper's pointing game. Removed pixels show the reference, mixed in by the mask; the published code
    blends through eight degrees of blur instead, the strongest of which is the default here. Masks are computed at one
    value per parameter and enlarged bilinearly.
    """

    areas: tuple[float, ...] = (0.025, 0.05, 0.1, 0.2)
    steps: int = 800
    reference: Reference = Blur(kernel=81, sigma=20.0)
    score: Scale = "logit"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1 or not self.areas or not all(0 < area < 1 for area in self.areas):
            raise SpecError("extremal_perturbation: steps must be at least 1, and areas one or more shares in (0, 1)")

    def cost(self, model: TargetModel, size: tuple[int, int]) -> Cost:
        pixels = 4 * 3 * size[0] * size[1]
        return Cost(2 * self.steps * len(self.areas), 8 * len(self.areas) * pixels)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        return explain_each(self._explain, model, images, classes, self.reference, self.score)

    def _explain(self, masked: MaskedModel) -> Tensor:
        # One class at a time: many steps would blow up the rounding differences between batches of different sizes.
        return torch.stack(
            [self._masks(masked, chosen).mean(dim=0) for chosen in in_parts([*masked.classes])]
        )  # (k, h, w)

    def _masks(self, masked: MaskedModel, chosen: Tensor) -> Tensor:
        """The masks (areas, h, w) of one class."""
        image, count = masked.image, len(self.areas)
        height, width = (math.ceil(side / STEP) for side in masked.size)
        parameters = image.new_ones(count, height, width)
        goals = sorted_goals(self.areas, height * width).to(image)  # (areas, h w)
        velocity, weight = torch.zeros_like(parameters), AREA_WEIGHT
        for step in in_parts(range(self.steps)):
            with torch.enable_grad():
                leaf = parameters.requires_grad_()
                masks = smooth_masks(leaf)
                large = F.interpolate(masks[:, None], size=masked.size, mode="bilinear")[:, 0]
                shown = blend(image, masked.blank, large)  # (areas, C, H, W)
                misfit = (masks.flatten(1).sort(dim=1).values - goals).square().mean(dim=1).sum()
                slopes = self._slopes(masked, shown.detach(), chosen, mirrored=step % 2 == 0)
                gain = (shown * slopes).sum() - weight * misfit  # has the gradient of the objective
                (gradient,) = torch.autograd.grad(gain, leaf)
            velocity = gradient if step == 0 else MOMENTUM * velocity + (1 - MOMENTUM) * gradient
            parameters = (parameters.detach() + RATE * velocity).clamp(0, 1)
            weight *= AREA_GROWTH
        return smooth_masks(parameters)

    def _slopes(self, masked: MaskedModel, shown: Tensor, chosen: Tensor, *, mirrored: bool) -> Tensor:
        """Gradients (areas, C, H, W) of the score with respect to the masked images, seen straight or mirrored."""
        seen = shown.flip(-1) if mirrored else shown
        slopes = masked.model.input_gradients(seen, chosen.repeat(len(seen)), masked.score)
        return slopes.flip(-1) if mirrored else slopes


def smooth_masks(parameters: Tensor) -> Tensor:
    """Masks (m, h, w): at each place the smooth maximum of the parameters (m, h, w) around it, faded by distance."""
    reach = 1 + math.ceil(SIGMA / STEP)
    offsets = torch.arange(-reach, reach + 1).to(parameters) * STEP / SIGMA
    distance = (offsets[:, None] ** 2 + offsets**2).sqrt()
    kernel = (-2 * (distance - 0.5).clamp(min=0) ** 2).exp()  # one within half of sigma
    around = F.unfold(parameters[:, None], 2 * reach + 1, padding=reach)  # (m, window, h w)
    faded = kernel.flatten()[:, None] * around
    return (faded * (COLDNESS * faded).softmax(dim=1)).sum(dim=1).view_as(parameters)


def sorted_goals(areas: tuple[float, ...], places: int) -> Tensor:
    """What the values of each mask should be when sorted (areas, places): zeros, then its area's share of ones."""
    zeros = torch.tensor([int(places * (1 - area)) for area in areas])
    return (torch.arange(places) >= zeros[:, None]).double()

"""More looks: a map moves along the slope of its own Deletion and Insertion.

Each round of two looks cuts the image, softly, at a share of the map's pixels, and asks the model, forward and
backward, about the image without these pixels and about them alone. The backward passes say which cells should have
been among them: the slope of the objective (eq. 9-10) in the map. The map takes a step of fixed length against it.

Nothing is learned here and no weight moves, so it works with any network and any map to start from. Refinement as
printed (`refinement.py`) moves the decoder's weights by the mean slope over many shares; here each step uses one share
and one reference, and the steps between them see all. For the same gain that takes half of the passes.

Shapes: images (B, C, H, W); maps (B, H, W); what is added to them (B, 1, h, w), a value per `STRIDE` pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from aha.core.progress import in_parts
from aha.learned.decoder import patch_means
from aha.learned.evidence import is_token_model, standardised_maps
from aha.learned.loss import ObjectiveConfig, objective
from aha.learned.regions import grid_regions
from aha.models import TargetModel
from aha.perturb.references import Black, Blur, Mean, Reference

REFERENCES: tuple[Reference, ...] = (Black(), Mean(), Blur())
"""They take turns."""
STRIDE, CELL = 8, 4  # pixels per value that is added, and per cell that is ordered
RATE = 0.1  # length of a step, in deviations of the map
TEMPERATURE = 0.03  # of the soft order
LARGEST_SHARE = 0.6  # of the pixels, where rounds cut: beyond it curves hardly move
OBJECTIVE = ObjectiveConfig(noise=0.0, order="lapsum")
_LEAST_SLOPE = 1e-9  # below it, slopes are rounding errors, which must not become steps
_GOLDEN = (math.sqrt(5) - 1) / 2


def share_of(number: int) -> float:
    """Where round 0, 1, ... cuts: the multiples of the golden ratio leave no part of the curves out for long."""
    return LARGEST_SHARE * ((number + 0.5) * _GOLDEN % 1)


def moved(target: TargetModel, inputs: Tensor, classes: Tensor, maps: Tensor, rounds: int) -> Tensor:
    """Maps (B, H, W) after so many rounds, each of which costs two forward and two backward passes per image.

    Each image goes its own way, whatever the images beside it.
    """
    height, width = int(maps.shape[-2]), int(maps.shape[-1])
    with torch.inference_mode(False), torch.no_grad():
        pixels, maps = target.to_pixels(inputs.clone()), maps[:, None].clone()  # inference's own have no slope
        references = [reference(target, pixels, classes) for reference in REFERENCES]
        unit = standardised_maps(maps.float())  # (B, 1, H, W)
        enlarged = partial(_enlarged, size=(height, width), patches=_patches(target, inputs.shape[1:]))
        added = unit.new_zeros(len(unit), 1, math.ceil(height / STRIDE), math.ceil(width / STRIDE))
        regions = grid_regions((height, width), min(height, width) // CELL, (0.0, 0.0), unit)
        for number in in_parts(range(rounds)):
            count = torch.tensor([share_of(number) * regions.count]).round().long().clamp(1, regions.count - 1)
            with torch.enable_grad():
                added = added.detach().requires_grad_()
                maps_now = (unit + enlarged(added))[:, 0]
                shown = (target, pixels, classes, references[number % len(references)])
                losses = objective(*shown, maps_now, regions, count, TEMPERATURE, OBJECTIVE)["loss"]
                slope = torch.autograd.grad(losses.sum(), added)[0]
            length = slope.square().mean(dim=(1, 2, 3), keepdim=True).sqrt()
            added = added - RATE * slope / length.clamp(min=_LEAST_SLOPE)
        deviation = maps.std(dim=(2, 3), keepdim=True, correction=0)
        return (maps + torch.where(deviation > 0, deviation, 1) * enlarged(added))[:, 0]


def _enlarged(added: Tensor, size: tuple[int, int], patches: tuple[int, int] | None) -> Tensor:
    """What is added to each pixel (B, 1, H, W); where the model reads patches, the mean over the patch again."""
    fine = F.interpolate(added, size, mode="bilinear", align_corners=False)
    return fine if patches is None else fine + patch_means(fine, patches)


def _patches(target: TargetModel, size: Sequence[int]) -> tuple[int, int] | None:
    """The grid of a plain transformer's patches: it reads them whole."""
    if not is_token_model(target, size):
        return None
    height, width = target.structure(size).blocks[0].layout.grid
    return height, width

"""The references of a training: which there are, checked before the first step, and which one each image gets.

An image draws one of the list, and its own seed for it: noise and moved patches are others for every image, as they
would not be if a metric drew them. Both follow from the run's seed and the image's place in the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import islice

import torch
from torch import Tensor

from aha.data.images import LabelledImage, read_image
from aha.data.targets import top_classes
from aha.errors import SpecError
from aha.learned.seeds import HOLD_OUT, REFERENCE, generator_for
from aha.learned.settings import TrainConfig
from aha.learned.training.data import readable
from aha.models import TargetModel
from aha.perturb.filling import Filling
from aha.perturb.rearranged import Neighbours
from aha.perturb.references import AdaptiveBlur, Reference, check_reference

_MOST_FILES = 64  # images of the data that lend their patches; each image draws some of them
_SEEDED = "seed"


def usable_references(
    references: Sequence[Reference], samples: Sequence[LabelledImage], target: TargetModel, seed: int
) -> tuple[Reference, ...]:
    """The references as training uses them, each tried on one image: neighbours without files come from the data."""
    if any(isinstance(one, AdaptiveBlur) for one in references):
        raise SpecError("some images have no adaptive_blur, and training needs one of each; use blur")
    found = tuple(_with_files(one, samples, seed) for one in references)
    image = next(iter(readable(samples)), None)
    if image is None:
        return found  # what is wrong with the images is said when they are read
    inputs = target.stated_preprocessing()(read_image(image.read()))[0][None].to(target.device)
    pixels, left = target.to_pixels(inputs), torch.zeros_like(inputs[:, 0])
    left[:, : left.shape[1] // 2] = 1
    for one in found:
        check_reference(one, target, inputs.shape[1:])
        one(target, pixels, top_classes(target.outputs(inputs), 1, target.num_classes)[:, 0])
        if isinstance(one, Filling):
            one.fill(pixels, left)
    return found


def _with_files(chosen: Reference, samples: Sequence[LabelledImage], seed: int) -> Reference:
    if not isinstance(chosen, Neighbours) or chosen.files:
        return chosen
    order = torch.randperm(len(samples), generator=generator_for(seed, HOLD_OUT, REFERENCE)).tolist()
    files = (samples[place] for place in order)
    found = list(islice(readable(one for one in files if one.file is not None), _MOST_FILES))
    if len(found) < 2:
        raise SpecError(
            "neighbours takes patches of image files, and these data have fewer than two; name some, or a folder of "
            "them: neighbours(files=('FOLDER',))"
        )
    return replace(chosen, files=tuple(one.source for one in found))


def drawn_references(config: TrainConfig, places: Sequence[int], drawn: Tensor) -> list[Reference]:
    """The reference of each image: the `drawn` (b,) ones of the list, with the seeds that belong to the places."""
    found = []
    for place, index in zip(places, drawn.tolist(), strict=True):
        chosen = config.references[index]
        if any(field.name == _SEEDED for field in fields(chosen)):
            seed = torch.randint(2**31, (), generator=generator_for(config.seed, REFERENCE, place))
            chosen = replace(chosen, **{_SEEDED: int(seed)})
        found.append(chosen)
    return found


def blanks_of(target: TargetModel, pixels: Tensor, classes: Tensor, chosen: Sequence[Reference]) -> Tensor:
    """What each image's reference shows (b, C, H, W)."""
    blanks = torch.empty_like(pixels)
    for reference in dict.fromkeys(chosen):
        rows = torch.tensor([one == reference for one in chosen], device=pixels.device)
        blanks[rows] = reference(target, pixels[rows], classes[rows])
    return blanks


__all__ = ["blanks_of", "drawn_references", "usable_references"]

"""What an explainer of every network reads: class evidence that means the same in all of them, and the picture.

An explainer that reads a network's features and class vectors belongs to that network. This reading has no channel and
no class in it. Evidence is summed over channels and sorted by *stride*, 4, 8, 16 and 32, whatever stages the network
has; a level that it lacks is zero and marked as missing. A plain transformer has one grid and many blocks instead: its
blocks are shared out among the four levels and pooled, so that depth and width do not matter. Facts about the answer
(how sure, how much evidence cancels) say how the evidence is to be read.

So one decoder, trained on many networks, reads networks that it has never met.

Of volumes, evidence is computed over all voxels: products, means of gradients, ranks and standardisation. Each slice is
then drawn as an image, from its own part of that evidence and of the volume. No explainer was ever trained on volumes.

Shapes: features F and their gradients G (B, C, h, w); evidence of a level (B, E, h, w); facts (B, FACTS).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from aha.core.axes import is_volume, place_axes
from aha.learned.decoder import Given, at_stride
from aha.learned.evidence import LOG_ODDS, blocks_of_levels, is_token_model, standardised_maps, token_blocks
from aha.models import Captures, TargetModel
from aha.models.scores import Score
from aha.models.tracing import Trace

Reading = Literal["stages", "tokens"]

STRIDES = (4, 8, 16, 32)
MAPS: dict[Reading, int] = {"stages": 7, "tokens": 8}
"""Maps of evidence at each level."""
_ANSWER = 4
FACTS = _ANSWER + 2 * len(STRIDES)

_ROUNDING = 1e-3
_SURE = 5.0  # log-odds of a confident answer: facts are of the order of one


def reading_of(target: TargetModel, size: Sequence[int] | None = None) -> Reading:
    """Whether evidence comes from the blocks of a plain transformer, or from stages of features."""
    return "tokens" if is_token_model(target, size) else "stages"


def stages_by_stride(target: TargetModel, size: Sequence[int]) -> tuple[int | None, ...]:
    """For each of the four strides the deepest stage that comes nearest to it, for inputs of this size (C, H, W).

    Stages behind which no place reaches the outputs are left out, and so is what is coarser than a deeper stage, such
    as maps inside attention. Strides beyond both ends count as the last ones, so that a network of two fine stages has
    a level at least.
    """
    found: dict[int, int] = {}
    for index in reversed(range(target.cam_stage(size) + 1)):
        h, w = target.structure(size).stages[index].layout.grid[-2:]
        octave = round(0.5 * math.log2(size[-2] * size[-1] / (h * w)))
        octave = min(max(octave, 2), 5)
        if octave < min(found, default=6):
            found[octave] = index
    return tuple(found.get(octave) for octave in range(2, 6))


def captures(target: TargetModel, size: Sequence[int]) -> Captures:
    """What is read of a forward pass of inputs of this size (C, H, W)."""
    if reading_of(target, size) == "tokens":
        return Captures(tokens=True, attention=True)
    return Captures(features=tuple(stage for stage in stages_by_stride(target, size) if stage is not None))


@dataclass(frozen=True)
class Evidence:
    """Of all levels, shallow to deep.

    Attributes:
        levels: (B, E, h, w) each; zero where the network has no such level.
        is_there: which levels the network has.
        balance: (B, 4), for each level the sum of its evidence over the sum of its sizes: how little of it cancels.
        start: the map (B, h, w) that is corrected.
    """

    levels: list[Tensor]
    is_there: tuple[bool, ...]
    balance: Tensor
    start: Tensor


def given(target: TargetModel, trace: Trace, inputs: Tensor, classes: Tensor, dropped: Collection[int] = ()) -> Given:
    """What the decoder takes, by one backward pass; as if the network lacked the levels that are dropped."""
    read = _of_tokens if trace.attention else _of_stages
    trace.score = explaining_score(target, trace)
    evidence = read(target, trace, inputs.shape[1:], classes, dropped)
    facts = torch.cat([answer_facts(target, trace.outputs.detach().float(), classes), *_level_facts(evidence)], dim=1)
    found = Given([], facts, evidence.levels, evidence.start, picture(target, inputs))
    return of_slices(found) if is_volume(inputs.shape[1:]) else found


def of_slices(given: Given) -> Given:
    """What is given of volumes (B, ..., D, h, w) as that of their slices (B D, ..., h, w), one after another."""
    levels = [level.movedim(2, 1).flatten(0, 1) for level in given.evidence]
    facts = given.vectors.repeat_interleave(given.image.shape[2], dim=0)
    return Given([], facts, levels, given.start.flatten(0, 1), given.image.movedim(2, 1).flatten(0, 1))


def explaining_score(target: TargetModel, trace: Trace) -> Score:
    """The score whose gradient is the evidence."""
    if not trace.tokens and target.score.name == "softmax" and trace.outputs.shape[1] > 1:
        return LOG_ODDS  # what the probability follows; starts .005 higher on CNNs, and not on transformers
    return target.score.differentiated()


def answer_facts(target: TargetModel, outputs: Tensor, classes: Tensor) -> Tensor:
    """How sure the model is (B, 4): whether that is known, log-odds, probability, and entropy over the classes."""
    if not target.score.is_probability:
        return outputs.new_zeros(len(outputs), _ANSWER)
    p = target.score(outputs, classes)
    odds = torch.logit(p, eps=1e-4) / _SURE
    per_class = target.score.per_class(outputs).log_softmax(dim=1)
    entropy = -(per_class.exp() * per_class).sum(dim=1) / math.log(max(2, per_class.shape[1]))
    return torch.stack([torch.ones_like(p), odds, p, entropy], dim=1)


def _level_facts(evidence: Evidence) -> tuple[Tensor, Tensor]:
    """Which levels are there, and their balance; each (B, 4)."""
    there = torch.tensor(evidence.is_there).to(evidence.balance).expand_as(evidence.balance)
    return there, evidence.balance


def picture(target: TargetModel, inputs: Tensor) -> Tensor:
    """The picture (B, 3, H, W) in one scale for all networks; of other than three channels, their mean."""
    stated = target.preprocessing
    pixels = inputs.float() if stated is None else target.to_pixels(inputs).float()
    if stated is None or (stated.is_measured and not _are_pixels(pixels)):
        pixels = _stretched(pixels)
    if pixels.shape[1] != 3:
        pixels = pixels.mean(dim=1, keepdim=True).expand(-1, 3, *pixels.shape[2:])
    return (pixels - 0.5) / 0.25


def _are_pixels(values: Tensor) -> bool:
    """Do values lie between 0 and 1? Bands and volumes come in any units."""
    return bool(values.min() >= -_ROUNDING) and bool(values.max() <= 1 + _ROUNDING)


def _stretched(values: Tensor) -> Tensor:
    """Values (B, C, H, W) in units that are not known, each image from 0 to 1."""
    dims = tuple(range(1, values.dim()))
    low, high = values.amin(dim=dims, keepdim=True), values.amax(dim=dims, keepdim=True)
    return (values - low) / (high - low).clamp(min=1e-12)


def _of_stages(
    target: TargetModel, trace: Trace, size: Sequence[int], classes: Tensor, dropped: Collection[int]
) -> Evidence:
    stages = stages_by_stride(target, size)
    shown = [level for level, stage in enumerate(stages) if stage is not None]
    kept = [level for level in shown if level not in dropped] or shown[-1:]
    features = [trace.features[stages[level]] for level in kept]  # type: ignore[index]
    gradients = trace.gradients(classes, *features)
    grids = (at_stride((size[-2], size[-1]), stride) for stride in STRIDES)
    deep = size[1:-2]  # of volumes, as many slices as they have
    levels = [features[0].new_zeros(len(classes), MAPS["stages"], *deep, *grid, dtype=torch.float32) for grid in grids]
    balance = levels[0].new_zeros(len(classes), len(STRIDES))
    for level, f, g in zip(kept, features, gradients, strict=True):
        maps, balance[:, level] = stage_maps(f.detach().float(), g.float())
        levels[level] = F.interpolate(maps, (*deep, *maps.shape[-2:]), mode="trilinear") if deep else maps
    is_there = tuple(level in kept for level in range(len(STRIDES)))
    return Evidence(levels, is_there, balance, levels[kept[-1]][:, 0])


def stage_maps(features: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Evidence (B, 7, h, w) of a stage, each map standardised, and its balance (B,); of volumes, (B, 7, d, h, w).

    Over channels: the sum of F G; of its positive part; the root of the sum of |F G|; F times the mean of G over all
    places, as in Grad-CAM; the lengths of F and of G; and the rank of the first, which no single strong place upsets.
    """
    product = features * gradients
    total, size = product.sum(dim=1), product.abs().sum(dim=1)
    maps = [
        total,
        product.relu().sum(dim=1),
        size.sqrt(),
        (features * gradients.mean(dim=place_axes(features), keepdim=True)).sum(dim=1),
        features.square().sum(dim=1).sqrt(),
        _lengths(gradients),
        ranked(total),
    ]
    balance = total.flatten(1).sum(dim=1) / size.flatten(1).sum(dim=1).clamp(min=1e-30)
    return standardised_maps(torch.stack(maps, dim=1)), balance


def _lengths(gradients: Tensor) -> Tensor:
    """Length over channels (B, h, w); scaled first, since squares of tiny gradients vanish."""
    scaled = gradients / gradients.abs().amax(dim=tuple(range(1, gradients.dim())), keepdim=True).clamp(min=1e-30)
    return scaled.square().sum(dim=1).sqrt()


def ranked(maps: Tensor) -> Tensor:
    """Each place's rank (B, h, w), from 0 on; equal voxels (B, d, h, w) share theirs, as those of equal slices do."""
    flat = maps.flatten(1)
    if maps.dim() > 3:
        rising = flat.sort(dim=1).values
        below = torch.searchsorted(rising, flat) + torch.searchsorted(rising, flat, right=True) - 1
        return (below.to(maps.dtype) / 2).view_as(maps)
    return flat.argsort(dim=1).argsort(dim=1).to(maps.dtype).view_as(maps)


def _of_tokens(
    _target: TargetModel, trace: Trace, _size: Sequence[int], classes: Tensor, dropped: Collection[int]
) -> Evidence:
    blocks, start = token_blocks(trace, classes)  # each (B, 4, h, w)
    kept = [level for level in range(len(STRIDES)) if level not in dropped] or [len(STRIDES) - 1]
    levels = [torch.zeros_like(torch.cat([blocks[0], blocks[0]], dim=1)) for _ in STRIDES]
    shares = blocks_of_levels(len(blocks), len(STRIDES))
    for level in kept:
        if shares[level]:  # fewer blocks than levels
            part = torch.stack([blocks[index] for index in shares[level]])  # (blocks, B, 4, h, w)
            levels[level] = torch.cat([part.mean(dim=0), part.amax(dim=0)], dim=1)
    is_there = tuple(level in kept and bool(shares[level]) for level in range(len(STRIDES)))
    return Evidence(levels, is_there, start.new_zeros(len(start), len(STRIDES)), start)

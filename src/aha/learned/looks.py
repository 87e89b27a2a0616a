"""Two more looks: a map is corrected by what the model says of the image without its top pixels, and of them alone.

A look is a forward and a backward pass. After the first one, the image is cut at a share of the map's pixels, and both
parts are looked at. What giving a location back would add, (F(x) - F(m)) G(m), shows what the map has missed (in
the image without its top pixels) and what it has taken for granted (in the top pixels alone). A decoder of the
universal kind reads these beside the evidence of the first look, and adds a correction to the map. One decoder serves
all networks of a kind, and the maps of any explainer: it reads no features and no classes. Further looks need none
(`slopes.py`).

Shapes: features F and gradients G (B, C, h, w); maps A (B, H, W); masked images m, both parts of each (2 B, C, H, W).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor, nn

from aha.learned import universal
from aha.learned.decoder import DecoderConfig, Given, at_stride, resized
from aha.learned.evidence import blocks_of_levels, standardised_maps, traced
from aha.models import Captures, TargetModel
from aha.models.tracing import Trace
from aha.perturb.perturbation import blend, rank_pixels
from aha.perturb.references import Blur, Mean

SHARE = 0.2
"""Of the pixels, where the image is cut."""

_PART = 3  # maps of each part: what giving back would add, the positive part of it, and what is there
_MAPS = 2 * _PART + 2  # both parts, the map as it is, and where it is cut
_FACTS = 5  # log-odds and probability of both parts, and the share


def revision_config(form: universal.Reading, width: int, stride: int, cohesion: float) -> DecoderConfig:
    """Sizes of the decoder that corrects maps."""
    evidence = (universal.MAPS[form] + _MAPS,) * len(universal.STRIDES)
    return DecoderConfig((), universal.FACTS + _FACTS, evidence, 3, width, stride, cohesion)


@dataclass(frozen=True)
class Whole:
    """What is known of the whole images from the first look.

    Attributes:
        given: what a universal explainer reads.
        features: of each level (B, C, h, w); None where the network has no such level.
    """

    given: Given
    features: list[Tensor | None]

    @classmethod
    def read(
        cls, target: TargetModel, trace: Trace, inputs: Tensor, classes: Tensor, given: Given | None = None
    ) -> Whole:
        """From a forward pass of inputs (B, C, H, W) that captured `universal.captures`, and what was read of it."""
        features, as_maps = _levels(target, trace, inputs.shape[1:])
        given = given or universal.given(target, trace, inputs, classes)
        return cls(given, [None if f is None else as_maps(f.detach().float()) for f in features])


def revised(
    decoder: nn.Module, target: TargetModel, inputs: Tensor, classes: Tensor, maps: Tensor, whole: Whole
) -> Tensor:
    """Corrected maps (B, H, W); gradients of the decoder flow."""
    pixels, maps = target.to_pixels(inputs), maps.detach()
    blank = 0.5 * (Mean()(target, pixels, classes) + Blur()(target, pixels, classes))
    with torch.no_grad():
        given = _looked_again(target, pixels, blank, classes, maps, whole)
    correction: Tensor = decoder(given, (int(maps.shape[-2]), int(maps.shape[-1])))
    return maps + maps.std(dim=(1, 2), keepdim=True) * correction


def _looked_again(
    target: TargetModel, pixels: Tensor, blank: Tensor, classes: Tensor, maps: Tensor, whole: Whole
) -> Given:
    """What the decoder reads: two more looks at each image."""
    top = top_pixels(maps, SHARE)  # (B, H, W)
    shown = torch.cat([blend(pixels, blank, 1 - top), blend(pixels, blank, top)])  # without them, with them alone
    inputs, both = target.to_inputs(shown), torch.cat([classes, classes])
    parts, answers = part_evidence(target, inputs, both, whole)
    unit = standardised_maps(maps[:, None])
    levels = []
    for stride, first, part in zip(universal.STRIDES, whole.given.evidence, parts, strict=True):
        grid = at_stride((maps.shape[-2], maps.shape[-1]), stride)
        here = [resized(one, grid) for one in (first, *part.chunk(2), unit, top[:, None])]
        levels.append(torch.cat(here, dim=1))
    odds, p = answers[:, 1:3].unbind(dim=1)  # (2 B,) each
    facts = [whole.given.vectors, *(rearrange(one, "(part b) -> b part", part=2) for one in (odds, p))]
    cut = torch.full_like(facts[0][:, :1], SHARE)
    nothing = torch.zeros_like(whole.given.start)  # it is the map itself that is corrected
    return Given([], torch.cat([*facts, cut], dim=1), levels, nothing, whole.given.image)


def top_pixels(maps: Tensor, share: float) -> Tensor:
    """1 at the share of the pixels that maps (B, H, W) put first, 0 elsewhere."""
    count = round(share * maps[0].numel())
    return torch.stack([(rank_pixels(one) < count).to(maps) for one in maps])


def part_evidence(target: TargetModel, inputs: Tensor, classes: Tensor, whole: Whole) -> tuple[list[Tensor], Tensor]:
    """Evidence (2 B, 3, h, w) of each level of both parts of the images, and the facts of their answers (2 B, 4)."""
    size = inputs.shape[1:]
    wanted = universal.captures(target, size)
    trace = traced(target, inputs, Captures(features=wanted.features, tokens=wanted.tokens))
    trace.score = universal.explaining_score(target, trace)
    features, as_maps = _levels(target, trace, size)
    there = [f for f in features if f is not None]
    gradients = iter(trace.gradients(classes, *there))
    levels = []
    for own, before, first in zip(features, whole.features, whole.given.evidence, strict=True):
        if own is None or before is None:
            levels.append(first.new_zeros(len(classes), _PART, *first.shape[-2:]))
            continue
        f, g = as_maps(own.detach().float()), as_maps(next(gradients).float())
        levels.append(contrast_maps(torch.cat([before, before]), f, g))
    return levels, universal.answer_facts(target, trace.outputs.detach().float(), classes)


def contrast_maps(whole: Tensor, part: Tensor, gradients: Tensor) -> Tensor:
    """Standardised (B, 3, h, w): sums over channels of (F(x) - F(m)) G(m), of its positive part, and of F(m) G(m)."""
    back = (whole - part) * gradients
    maps = [back.sum(dim=1), back.relu().sum(dim=1), (part * gradients).sum(dim=1)]
    return standardised_maps(torch.stack(maps, dim=1))


def _levels(
    target: TargetModel, trace: Trace, size: Sequence[int]
) -> tuple[list[Tensor | None], Callable[[Tensor], Tensor]]:
    """The traced tensor of each level, None where there is none, and how such a tensor becomes (B, C, h, w).

    Of a transformer, the tokens that enter the last block of each quarter of its depth.
    """
    if not trace.tokens:
        return [None if i is None else trace.features[i] for i in universal.stages_by_stride(target, size)], _as_is
    shares = blocks_of_levels(len(trace.tokens) - 1, len(universal.STRIDES))
    layout = trace.structure.blocks[0].layout
    h, w = layout.grid

    def as_maps(tokens: Tensor) -> Tensor:
        return rearrange(tokens[:, layout.prefix :], "b (h w) d -> b d h w", h=h, w=w)

    return [trace.tokens[share[-1]] if share else None for share in shares], as_maps


def _as_is(features: Tensor) -> Tensor:
    return features

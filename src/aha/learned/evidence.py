"""Class evidence: what one backward pass of the class says at every level of the target.

A classifier's weights speak about its deepest features only. The gradient of the class's output speaks about every
stage: features times gradient is what each place contributes to the class, to first order. These maps are the backward
half of the *hybrid* attribution; the decoder learns how to read them together with the forward features.

Shapes: features and their gradients (B, C, h, w); tokens (B, T, D); attention (B, heads, T, T); evidence (B, E, h, w).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from aha.core.axes import place_axes
from aha.models import Captures, TargetModel
from aha.models.scores import SCORES, Score
from aha.models.tracing import Trace

OF_STAGE, OF_BLOCK = 3, 4  # maps of evidence per stage of a pyramid, and per transformer block

LOGIT = SCORES["logit"]
LOG_ODDS = SCORES["log_odds"]


def is_token_model(target: TargetModel, size: Sequence[int] | None = None) -> bool:
    """Does the evidence come from attention and tokens? Else it comes from the features of stages."""
    return {"attention", "tokens"} <= target.structure(size).capabilities


def evidence_channels(target: TargetModel, levels: int, size: Sequence[int] | None = None) -> tuple[int, ...]:
    """How many maps of evidence each level of the decoder gets."""
    if not is_token_model(target, size):
        return (OF_STAGE,) * levels
    return tuple(OF_BLOCK * len(blocks) for blocks in blocks_of_levels(len(target.structure(size).blocks), levels))


def blocks_of_levels(blocks: int, levels: int) -> list[range]:
    """Transformer blocks shared out evenly among the levels, shallow to deep."""
    edges = [round(index * blocks / levels) for index in range(levels + 1)]
    return [range(first, last) for first, last in pairwise(edges)]


def captures(target: TargetModel, size: Sequence[int], features: Sequence[int], evidence: Sequence[int]) -> Captures:
    """The given feature stages, and what the evidence is made of, for inputs of this size (C, H, W)."""
    if is_token_model(target, size):
        return Captures(features=tuple(features), tokens=True, attention=True)
    return Captures(features=tuple(sorted({*features, *evidence})))


def traced(target: TargetModel, inputs: Tensor, wanted: Captures) -> Trace:
    """One forward pass that keeps what is wanted of it."""
    return target.trace(
        inputs,
        features=wanted.features,
        tokens=wanted.tokens,
        attention=wanted.attention,
        in_full_precision=False,
    )


def class_evidence(trace: Trace, classes: Tensor, stages: Sequence[int], score: Score) -> tuple[list[Tensor], Tensor]:
    """Evidence (B, E, h, w) for every level, and the map (B, h, w) from which learning starts; one backward pass."""
    trace.score = score
    if trace.attention:
        return _of_tokens(trace, classes, len(stages))
    features = [trace.features[stage] for stage in stages]
    gradients = trace.gradients(classes, *features)
    levels = [stage_evidence(f.float(), g.float()) for f, g in zip(features, gradients, strict=True)]
    return levels, levels[-1][:, 0]


def stage_evidence(features: Tensor, gradients: Tensor) -> Tensor:
    """Standardised (B, 3, h, w): the sum over channels of F * G, of its positive part, and the root of its size."""
    product = features.detach() * gradients
    return standardised_maps(
        torch.stack([product.sum(dim=1), product.relu().sum(dim=1), product.abs().sum(dim=1).sqrt()], dim=1)
    )


def _of_tokens(trace: Trace, classes: Tensor, levels: int) -> tuple[list[Tensor], Tensor]:
    blocks, start = token_blocks(trace, classes)
    return [torch.cat([blocks[i] for i in part], dim=1) for part in blocks_of_levels(len(blocks), levels)], start


def token_blocks(trace: Trace, classes: Tensor) -> tuple[list[Tensor], Tensor]:
    """Evidence (B, 4, h, w) of every block, standardised, and the map (B, h, w) from which learning starts."""
    tokens, count = trace.tokens[:-1], len(trace.attention)  # a block's input: its last output may reach no class
    found = trace.gradients(classes, *trace.attention, *tokens)
    slopes = [slope.float() for slope in found[:count]]
    drawn = [(a.detach().float() * s).relu().mean(dim=1) for a, s in zip(trace.attention, slopes, strict=True)]
    flows = class_flows(trace, drawn)
    values = [
        block_evidence(trace, slope, matrix, x, pull, flow)
        for slope, matrix, x, pull, flow in zip(slopes, drawn, tokens, found[count:], flows, strict=True)
    ]
    blocks = [torch.stack([trace.to_grid(row) for row in rows], dim=1) for rows in values]  # each (B, 4, h, w)
    unit = [standardised_maps(block) for block in blocks]
    rows = standardised_maps(torch.stack([block[:, 1] for block in blocks]).mean(dim=0)[:, None])
    return unit, standardised_maps(rows + unit[0][:, 3:])[:, 0]


def class_flows(trace: Trace, drawn: Sequence[Tensor]) -> list[Tensor]:
    """For each block l, what of its tokens (B, T) flows into the class: the read row of `(I + C^L) ... (I + C^l) - I`.

    `C^l` (B, T, T) is what tokens draw from each other for the class. From the last block down it takes vectors alone;
    the identity is never added, so that small values survive. That of the first block is the map of `grad_rollout`.
    """
    flow = torch.zeros_like(drawn[-1][:, 0])
    flows = []
    for matrix in reversed(drawn):
        flow = flow + trace.read(matrix) + torch.einsum("bt,bts->bs", flow, matrix)
        flows.append(flow)
    return flows[::-1]


def block_evidence(
    trace: Trace, slopes: Tensor, drawn: Tensor, tokens: Tensor, pull: Tensor, flow: Tensor
) -> list[Tensor]:
    """Four values (B, T) for each token of a block.

    What attending to it would add for the class (the positive gradient, mean over heads and queries); what the
    classifier's own row draws from it; the token times its gradient; and what of it flows into the class through this
    and all later blocks.
    """
    return [
        slopes.relu().mean(dim=(1, 2)),
        trace.read(drawn),
        (tokens.detach().float() * pull.float()).sum(dim=-1),
        flow,
    ]


def standardised_maps(maps: Tensor) -> Tensor:
    """Each map of (B, E, h, w), or volume of (B, E, d, h, w), with mean 0 and deviation 1; a flat one becomes 0."""
    places = place_axes(maps)
    centred = maps - maps.mean(dim=places, keepdim=True)
    size = centred.abs().amax(dim=places, keepdim=True).clamp(min=1e-30)  # first: squares of tiny numbers vanish
    centred = centred / size
    return centred / centred.square().mean(dim=places, keepdim=True).clamp(min=1e-12).sqrt()

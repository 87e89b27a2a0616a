"""Single passes of a model with its inside in hand: tensors that are captured, or handed in.

Shapes: images (B, C, H, W) model inputs; tokens (B, T, D); features (B, C, h, w); outputs (B, K).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from aha.models.introspection.structure import Structure
from aha.models.running.blocks import stepped
from aha.models.running.hooks import autograd, has_backward_hooks
from aha.models.running.runnable import RunnableModel
from aha.models.tracing import Captures, Trace, Tracer

NO_STRUCTURE = Structure((), (), ())
"""Enough for a pass of which nothing inside the network is captured."""


def captured(model: RunnableModel, structure: Structure, images: Tensor, captures: Captures) -> Trace:
    """One forward pass with what is to be captured, ready for gradients."""

    def forward_from(records_all: bool) -> Trace:
        trace = Trace(model.score.differentiated(), structure, passes=model.passes)
        with autograd(records_all):
            leaf = images.detach().to(model.device, model.dtype).clone().requires_grad_(captures.inputs)
            trace.inputs = leaf if captures.inputs else None
            model.spend("forward", len(leaf))
            return Tracer(model.module, trace).run(lambda: model.forward(leaf), len(leaf), captures)

    with model.undisturbed():
        trace = forward_from(records_all=captures.inputs or has_backward_hooks(model.module))
        if captures.are_internal and not trace.outputs.requires_grad:
            # The model switched recording off again after a captured tensor (its own no_grad part).
            trace = forward_from(records_all=True)
    return trace


def features_of(
    model: RunnableModel, structure: Structure, images: Tensor, stages: Sequence[int]
) -> tuple[list[Tensor], Tensor]:
    """Maps (B, C, h, w) of the given stages and the outputs (B, K), in one pass without a graph."""
    trace = Trace(model.score.differentiated(), structure, passes=model.passes)
    model.spend("forward", len(images))
    with model.without_graph():
        tracer = Tracer(model.module, trace, with_graph=False)
        tracer.run(lambda: model.forward(images), len(images), Captures(tuple(stages)))
    return [trace.features[stage] for stage in stages], trace.outputs


def outputs_from_tokens(model: RunnableModel, structure: Structure, images: Tensor, tokens: Tensor) -> Tensor:
    """Outputs (B, K) that the model gives when its last block returns `tokens`; differentiable in them.

    The blocks are skipped: the first hands in the tokens, the others pass them on.
    """

    def hand_in(index: int, before: Tensor, _block: object) -> Tensor:
        return tokens if index == 0 else before

    with model.undisturbed(), autograd(tokens.requires_grad), stepped(model.module, structure, hand_in):
        return model.forward(images.to(model.device))

"""Integrated gradients of attention: what papers on vision transformers call IG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from aha.core.progress import in_parts
from aha.core.validation import Range
from aha.methods.base import Method, method
from aha.methods.cost import Cost
from aha.models import TargetModel, Trace

PathSteps = Annotated[int, Range(2)]
"""Steps of a path that has both of its ends."""


@method(
    "attention_ig",
    family="attention",
    needs={"attention", "gradients"},
    citation="Yuan et al., NeurIPS XAI workshop 2021 (after Sundararajan et al., ICML 2017)",
)
@dataclass(frozen=True)
class AttentionIG(Method):
    """`mean over heads of ReLU(mean over a in [0, 1] of d score(a x) / d A)`, of the last block, at the tokens read.

    The path begins at zero after normalisation, the mean colour. Neither attention nor image is multiplied in: as it is
    in the code behind the tables of MDA, InFlow and others, and not to be compared with `integrated_gradients`.

    Reads: the gradients of the last block's attention.
    Cost: `steps` forward and backward passes.
    Example: `attention_ig(steps=50)`.

    Attributes:
        steps: places on the path, both ends included.
    """

    steps: PathSteps = 20

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        return Cost(2 * self.steps)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        feedback, trace = reasoning_feedback(model, images, classes, self.steps)  # (B, T, T)
        return trace.to_grid(trace.read(feedback))  # (B, h, w)


def reasoning_feedback(model: TargetModel, images: Tensor, classes: Tensor, steps: int) -> tuple[Tensor, Trace]:
    """Positive mean gradient (B, T, T) of the last attention along the path from zero to the images, heads averaged.

    Also a trace, which reads and lays out such matrices.
    """
    traces: list[Trace] = []
    stride = max(1, model.chunks.size // len(images))  # small batches take several steps per pass
    total: Tensor | None = None
    for first in in_parts(range(0, steps, stride)):
        places = torch.arange(first, min(first + stride, steps)).to(images) / (steps - 1)  # (S,)
        points = (places.view(-1, 1, 1, 1, 1) * images).flatten(0, 1)  # (S*B, C, H, W)
        repeated = classes.repeat(len(places))

        def slopes_of(part: slice, points: Tensor = points, repeated: Tensor = repeated) -> Tensor:
            trace = model.trace(points[part], attention=True)
            traces[:] = [trace]
            return trace.gradients(repeated[part], trace.attention[-1])[0]  # (S*B, heads, T, T)

        slopes = torch.cat(model.chunks.run(slopes_of, len(points)))
        sums = slopes.view(len(places), len(images), *slopes.shape[1:]).sum(dim=0)  # (B, heads, T, T)
        total = sums if total is None else total + sums
    assert total is not None
    return (total / steps).relu().mean(dim=1), traces[0]

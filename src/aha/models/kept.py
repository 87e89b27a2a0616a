"""A forward pass that is kept for a while: questions about the same images are answered from it.

Shapes: images (U, C, H, W) model inputs; outputs (U, K).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from torch import Tensor

from aha.core.rows import matching_rows
from aha.models.tracing import Captures, SharedTrace, Trace


@dataclass(frozen=True)
class KeptPass:
    """What a forward pass gave.

    Attributes:
        images: as they were handed in.
        outputs: without a graph.
        trace: with what was captured, ready for gradients; None where nothing was.
        captures: what that is.
        nanoseconds: how long the pass took.
        spared: where it is written down what was taken from here instead of being computed.
    """

    images: Tensor
    outputs: Tensor
    trace: Trace | None
    captures: Captures
    nanoseconds: int
    spared: Counter[str]

    def places(self, images: Tensor) -> Tensor:
        """For each image the row in which it is kept, or -1; as a tensor (B,)."""
        return matching_rows(images, self.images)

    def covers(self, images: Tensor, captures: Captures) -> bool:
        """Are all of the images kept, with all that is asked for?"""
        return self.captures.covers(captures) and bool((self.places(images) >= 0).all())

    def outputs_at(self, places: Tensor) -> Tensor:
        """Outputs (B, K) of rows that are kept."""
        self._note(len(places))
        return self.outputs[places]

    def traced(self, images: Tensor, captures: Captures) -> Trace | None:
        """The trace as a batch of these images would have given it; None where a pass of their own is better."""
        if self.trace is None or not self.captures.covers(captures):
            return None
        places = self.places(images)
        distinct = len(set(places.tolist()))
        # Going back through the kept pass takes as long as it is: not for a few of its images.
        if bool((places < 0).any()) or 2 * distinct < len(self.images):
            return None
        self._note(distinct)
        view = replace(self.trace)  # whoever gets it may set its score
        is_same = len(places) == len(self.images) and bool((places.diff() == 1).all())
        return view if is_same else SharedTrace.of(view, places)

    def features_at(self, images: Tensor, stages: tuple[int, ...]) -> tuple[list[Tensor], Tensor] | None:
        """Maps (B, C, h, w) of the given stages and the outputs (B, K), without a graph; None unless all are kept."""
        if self.trace is None or not self.covers(images, Captures(features=stages)):
            return None
        places = self.places(images)
        self._note(len(places))
        return [self.trace.features[stage].detach()[places] for stage in stages], self.outputs[places]

    def _note(self, images: int) -> None:
        self.spared["forward"] += images
        self.spared["nanoseconds"] += self.nanoseconds * images // len(self.images)

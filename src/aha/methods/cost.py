"""What a map costs, said before it is computed: passes through the model, and memory of the method's own."""

from __future__ import annotations

from typing import NamedTuple

from aha.errors import AhaError
from aha.models import TargetModel

CHANNELS = 2048
"""Of a feature map, where nothing is known: as many as the widest networks have."""


def channels_read(model: TargetModel) -> int:
    """As many as the last linear layer reads, which is how many the last feature map has, as a rule."""
    try:
        return int(model.class_vectors.shape[1])
    except AhaError:
        return CHANNELS


class Cost(NamedTuple):
    """The cost of one map, as far as it follows from the method's parameters.

    Attributes:
        passes: images sent through the model, forwards and backwards together.
        bytes: memory of the method's own tensors at their most. Not the model's, whose batches are halved when memory
            runs out.
    """

    passes: int = 2
    bytes: int = 0

    def times(self, count: int) -> Cost:
        """The same, one after the other."""
        return Cost(self.passes * count, self.bytes)

    def then(self, other: Cost) -> Cost:
        """This and then another, whose memory does not add up."""
        return Cost(self.passes + other.passes, max(self.bytes, other.bytes))

    def within(self, limit: Cost) -> bool:
        """Is neither more than the limit?"""
        return self.passes <= limit.passes and self.bytes <= limit.bytes

    def __str__(self) -> str:
        size = f"{self.bytes / 2**30:,.1f} GB" if self.bytes >= 2**29 else f"{self.bytes / 2**20:,.0f} MB"
        return f"{self.passes:,} passes and {size}"

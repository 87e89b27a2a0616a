"""A trial: pictures whose truth is known, and the network that is trained on them.

Shapes: pictures (n, C, S, S) in [0, 1], in steps of 1 / 255, so that a PNG file holds them exactly; labels (n,); truth
(n, S, S), bool.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

Answer = Callable[[Tensor], Tensor]
"""Pictures (n, C, S, S) to the classes (n,) that a network gives them."""


class Examples(NamedTuple):
    """Pictures with their labels and, where it has a place, what matters in them."""

    pictures: Tensor
    labels: Tensor
    truth: Tensor | None = None


def quantised(pictures: Tensor) -> Tensor:
    """What is left of the pictures in eight bits."""
    return (pictures.clamp(0, 1) * 255).round() / 255


def accuracy(answers: Tensor, labels: Tensor) -> float:
    """The share of answers (n,) that is right, mean over the classes: to say the most frequent one is chance."""
    return float(torch.stack([(answers[labels == k] == k).float().mean() for k in set(labels.tolist())]).mean())


@dataclass(frozen=True)
class Trial(ABC):
    """One network on one set of pictures.

    Attributes:
        name: of the set, and in a run of the network.
        seed: of everything that is drawn.
    """

    name: str
    seed: int = field(default=0, kw_only=True)

    @abstractmethod
    def network(self) -> nn.Module:
        """The untrained network."""

    @property
    @abstractmethod
    def settings(self) -> tuple[object, ...]:
        """What the trained network depends on."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Batches to train on."""

    @property
    @abstractmethod
    def least(self) -> float:
        """Accuracy on new pictures below which the network has not learned, so that its maps say nothing."""

    @abstractmethod
    def batch(self, generator: torch.Generator) -> Examples:
        """Pictures to train on."""

    @abstractmethod
    def unseen(self) -> Examples:
        """New pictures, on which the accuracy is measured."""

    def explained(self) -> Examples:
        """Pictures that are explained, as far as the network is right about them."""
        return self.unseen()

    def facts(self, answer: Answer) -> dict[str, float]:
        """What else is measured of the trained network."""
        return {}

"""What is drawn for the images of a training step: mirrored or not, which class, which of the references.

Each image's choices follow from the run's seed and the image's place in the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aha.learned.seeds import IMAGE, LEVELS, generator_for
from aha.learned.settings import TrainConfig


@dataclass(frozen=True)
class Choices:
    """What is drawn for each image of a batch.

    Attributes:
        flips: mirrored? (b,)
        kinds: 0 the predicted class, 1 the label, 2 the runner-up (b,).
        references: which reference (b,).
        generators: one per image, for the noise.
    """

    flips: Tensor
    kinds: Tensor
    references: Tensor
    generators: list[torch.Generator]

    @classmethod
    def drawn(cls, config: TrainConfig, places: Sequence[int]) -> Choices:
        """The choices that belong to these places of the run."""
        generators = [generator_for(config.seed, IMAGE, place) for place in places]
        flips, kinds, references = torch.stack([torch.rand(3, generator=g) for g in generators]).unbind(dim=1)
        chances = torch.tensor(config.classes).cumsum(dim=0)
        return cls(
            (flips < 0.5) & config.flip,
            torch.searchsorted(chances / chances[-1], kinds.contiguous(), right=True).clamp(max=2),
            (references * len(config.references)).long(),
            generators,
        )


def dropped_levels(config: TrainConfig, step: int, levels: int) -> frozenset[int]:
    """The levels of evidence that a universal explainer does without in a step."""
    drawn = torch.rand(levels, generator=generator_for(config.seed, LEVELS, step))
    return frozenset(torch.nonzero(drawn < config.drop).flatten().tolist())


def explained_classes(outputs: Tensor, labels: Tensor, kinds: Tensor) -> Tensor:
    """One class (b,) per image, by one output (b, K) per class.

    The predicted one; the label, or the predicted one if it is unknown; or the runner-up.
    """
    top = outputs.topk(min(2, outputs.shape[1]), dim=1).indices
    labels, kinds = labels.to(top.device), kinds.to(top.device)
    known = torch.where(labels < 0, top[:, 0], labels)
    return torch.stack([top[:, 0], known, top[:, -1]], dim=1).gather(1, kinds[:, None])[:, 0]

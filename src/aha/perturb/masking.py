"""What a model says to masked copies of an image: the engine of the methods that treat it as a black box.

Several classes of one image share its forward passes: the batch is split into its distinct images, and every masked
copy is run once and read for all the classes that are asked about. Images are dealt with one after the other, so that
a map cannot depend on its neighbours in the batch.

Shapes: images and blanks (B, C, H, W) model inputs; masks (m, H, W), 1 keeps the image and 0 shows the blank; scores
(m, k), one column per class asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from aha.core.progress import in_parts
from aha.models import TargetModel
from aha.models.scores import Score
from aha.perturb.perturbation import blend, filled
from aha.perturb.references import Reference, ZerosNormalised, reference_inputs

Scale = Literal["score", "logit"]
"""What is explained: the score that the model reports (a probability as a rule), or the logit behind it."""

Masks = Callable[[slice], Tensor]
"""Masks (m, H, W), boolean or soft, of a slice of all the rows: only those that are run exist at a time."""


@dataclass(frozen=True)
class MaskedModel:
    """One image (C, H, W), what stands in for its removed pixels (C, H, W), and the classes (k,) asked about.

    Attributes:
        reference: what the blank is made by, since some references depend on the mask too.
    """

    model: TargetModel
    image: Tensor
    blank: Tensor
    classes: Tensor
    score: Score
    reference: Reference = field(default_factory=ZerosNormalised)

    @property
    def size(self) -> tuple[int, ...]:
        """Height and width; of a volume, depth before them."""
        return tuple(self.image.shape[1:])

    def answers(self, masks: Masks, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Masks (m, H, W) and the scores (m, k) of what they leave of the image, in chunks that fit into memory."""

        def run(part: slice) -> tuple[Tensor, Tensor]:
            keep = masks(part).to(self.image)
            blank = filled(self.model, self.image, self.blank, keep, [self.reference])
            return keep, self.read(self.model.outputs(blend(self.image[None], blank, keep)))

        return self.model.chunks.stream(run, count)

    def scores(self, masks: Masks, count: int) -> Tensor:
        """All scores (count, k)."""
        found = [scores for _, scores in self.answers(masks, count)]
        return torch.cat(found) if found else self.image.new_zeros(0, len(self.classes))

    def scores_at(self, *shares: float) -> Tensor:
        """Scores (s, k) of the whole image mixed with its blank: 0 is the blank, 1 the image."""
        uniform = self.image.new_tensor(shares).view(-1, *[1] * len(self.size)).expand(-1, *self.size)  # (s, H, W)
        return self.scores(lambda part: uniform[part], len(shares))

    def read(self, outputs: Tensor) -> Tensor:
        """Scores (m, k) of the classes in outputs (m, K)."""
        rows = outputs.repeat_interleave(len(self.classes), dim=0)
        return self.score(rows, self.classes.repeat(len(outputs))).view(len(outputs), -1)


def explain_each(
    explain: Callable[[MaskedModel], Tensor],
    model: TargetModel,
    images: Tensor,
    classes: Tensor,
    reference: Reference | None = None,
    scale: Scale = "score",
) -> Tensor:
    """Maps (B, h, w) of a batch from `explain`, which gives those (k, h, w) of one image and all its classes."""
    chosen = reference or ZerosNormalised()
    blanks = reference_inputs(chosen, model, images, classes)
    score = model.score if scale == "score" else model.score.differentiated()
    # Several classes of one image arrive as copies that follow each other. Some references depend on the class: then
    # the copies have different blanks and are different questions.
    is_new = ((images[1:] != images[:-1]) | (blanks[1:] != blanks[:-1])).flatten(1).any(dim=1)  # (B - 1,)
    bounds = [0, *(is_new.nonzero().flatten() + 1).tolist(), len(images)]
    rows = in_parts([*pairwise(bounds)])
    return torch.cat(
        [explain(MaskedModel(model, images[i], blanks[i], classes[i:end], score, chosen)) for i, end in rows]
    )

"""LIME: a local linear model of how the score depends on which parts of the image are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from aha.core.validation import PositiveFloat, Range
from aha.methods.base import Method, method, seeded_generator
from aha.methods.cost import Cost
from aha.models import TargetModel
from aha.perturb.masking import MaskedModel, Scale, explain_each
from aha.perturb.partitions import Partition, Patches
from aha.perturb.references import Reference, ZerosNormalised

RIDGE = 1.0  # penalty on the coefficients, as in the published code


@method("lime", family="perturbation", volumes=True, citation="Ribeiro et al., KDD 2016")
@dataclass(frozen=True)
class LIME(Method):
    """Coefficients of a ridge regression of the score on the presence of the parts, near samples weighing more (eq. 1).

    Each sample keeps every part with probability 1/2; the first keeps all. Its weight is `exp(-d^2 / (2 w^2))` with the
    cosine distance d of its presence vector to that of the whole image. Samples, kernel width and ridge are those of
    the published code, which divides images by quickshift and paints removed parts in their mean colour; here parts
    are patches unless `parts=slic(...)`, and removed parts show the reference.

    Formula: `argmin over w of sum over z of k(z) (score(z) - w z - b)^2 + penalty |w|^2`.
    Reads: outputs alone.
    Cost: `n` forward passes.
    Example: `lime(n=500, parts=slic(n=50))`.
    """

    n: Annotated[int, Range(2)] = 1000
    parts: Partition = Patches()
    kernel_width: PositiveFloat = 0.25
    reference: Reference = ZerosNormalised()
    score: Scale = "score"
    seed: int | None = None

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        count = self.parts.count(size)
        return Cost(self.n, 29 * self.n * count + 2 * 8 * count**2)  # the draws, and the regression

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        return explain_each(self._explain, model, images, classes, self.reference, self.score)

    def _explain(self, masked: MaskedModel) -> Tensor:
        index = self.parts(masked.model, masked.image)  # (H, W)
        count = int(index.max()) + 1
        present = torch.rand(self.n, count, generator=seeded_generator(self.seed)) < 0.5
        present[0] = True
        present = present.to(index.device)  # (n, K)
        scores = masked.scores(lambda part: present[part][:, index], self.n)  # (n, k)
        weights = nearness(present, self.kernel_width)  # (n,)
        values = ridge(present.double(), scores.double(), weights, RIDGE)  # (K, k)
        return self.parts.as_map(values.T.to(scores), index)


def nearness(present: Tensor, width: float) -> Tensor:
    """Weights (n,) of presence vectors (n, K) by their cosine distance to the vector of ones."""
    distances = 1 - present.double().mean(dim=1).sqrt()
    return (-(distances**2) / (2 * width**2)).exp()


def ridge(features: Tensor, targets: Tensor, weights: Tensor, penalty: float) -> Tensor:
    """Coefficients (K, k) of weighted ridge regressions of targets (n, k) on features (n, K); the intercept is free."""
    shares = (weights / weights.sum())[:, None]
    x = features - (shares * features).sum(dim=0)
    y = targets - (shares * targets).sum(dim=0)
    weighted = weights[:, None] * x
    penalties = penalty * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    found: Tensor = torch.linalg.solve(x.T @ weighted + penalties, weighted.T @ y)
    return found

"""KernelSHAP: Shapley values of the parts of an image as the solution of one weighted regression."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Annotated

import torch
from torch import Tensor

from aha.core.validation import Range
from aha.errors import SpecError
from aha.methods.base import Method, method, seeded_generator
from aha.methods.cost import Cost
from aha.models import TargetModel
from aha.perturb.masking import MaskedModel, Scale, explain_each
from aha.perturb.partitions import Partition, Patches
from aha.perturb.references import Reference, ZerosNormalised


@method("kernel_shap", family="perturbation", volumes=True, citation="Lundberg & Lee, NeurIPS 2017")
@dataclass(frozen=True)
class KernelSHAP(Method):
    """Regression of the score on the presence of the parts under the Shapley kernel (theorem 2).

    The values sum to the score of the image minus that of the reference: that constraint is kept exactly, by
    eliminating one part from the regression. Coalitions are drawn with the kernel's probabilities, each together with
    its complement, which halves the noise at no cost; where `n` allows all of them, all are taken, with their exact
    weights, and the result is the Shapley value itself.

    Formula: `argmin over w of sum over z of k(z) (score(z) - w z)^2`, `k(z) = (K - 1) / (C(K, |z|) |z| (K - |z|))`.
    Reads: outputs alone.
    Cost: `n` + 2 forward passes; 2442 for 14 x 14 patches.
    Example: `kernel_shap(n=500, parts=slic(n=50))`.

    Attributes:
        n: number of coalitions; by default `2 K + 2048` for K parts, as in the shap library.
        parts: what the image is divided into.
        reference: what removed parts show.
        score: the reported score, or the logit.
    """

    n: Annotated[int, Range(2)] | None = None
    parts: Partition = Patches()
    reference: Reference = ZerosNormalised()
    score: Scale = "score"
    seed: int | None = None

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        count = self.parts.count(size)
        wanted = min(2 * count + 2048 if self.n is None else self.n, 2 ** min(count, 62))
        return Cost(wanted + 2, 36 * wanted * count + 3 * 8 * count**2)  # the draws, then the regression

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        return explain_each(self._explain, model, images, classes, self.reference, self.score)

    def _explain(self, masked: MaskedModel) -> Tensor:
        index = self.parts(masked.model, masked.image)  # (H, W)
        count = int(index.max()) + 1
        present, weights = self._coalitions(count)
        present = present.to(index.device)  # (n, K)
        blank, whole = masked.scores_at(0.0, 1.0).double()  # (k,)
        gains = masked.scores(lambda part: present[part][:, index], len(present)).double() - blank  # (n, k)
        values = shapley_regression(present.double(), gains, weights.to(gains), whole - blank)  # (K, k)
        return self.parts.as_map(values.T.to(masked.image), index)

    def _coalitions(self, count: int) -> tuple[Tensor, Tensor]:
        wanted = 2 * count + 2048 if self.n is None else self.n
        if count < 63 and 2**count - 2 <= wanted:
            return all_coalitions(count)
        if wanted < 2 * count:
            raise SpecError(f"kernel_shap: n={wanted} is too few for {count} parts; use at least {2 * count}")
        return drawn_coalitions(count, wanted, seeded_generator(self.seed))


def all_coalitions(count: int) -> tuple[Tensor, Tensor]:
    """Every coalition (n, K) but the empty and the full one, with its weight (n,) in the Shapley kernel."""
    numbers = torch.arange(1, 2**count - 1)
    present = (numbers[:, None] >> torch.arange(count)) & 1  # (n, K)
    kernel = [(count - 1) / (comb(count, size) * size * (count - size)) for size in range(1, count)]
    return present.bool(), torch.tensor(kernel, dtype=torch.float64)[present.sum(dim=1) - 1]


def drawn_coalitions(count: int, wanted: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """`wanted` random coalitions (n, K), rounded up to pairs of complements, and their weights (n,), all one."""
    sizes = torch.arange(1, count, dtype=torch.float64)
    chances = 1 / (sizes * (count - sizes))  # of a size: the kernel times the number of coalitions of that size
    pairs = (wanted + 1) // 2
    drawn = 1 + torch.multinomial(chances, pairs, replacement=True, generator=generator)  # (n / 2,)
    places = torch.rand(pairs, count, generator=generator).argsort(dim=1).argsort(dim=1)  # a random order each
    present = places < drawn[:, None]
    return torch.stack([present, ~present], dim=1).flatten(0, 1), torch.ones(2 * pairs, dtype=torch.float64)


def shapley_regression(present: Tensor, gains: Tensor, weights: Tensor, total: Tensor) -> Tensor:
    """Values (K, k), summing to `total` (k,), that best explain the gains (n, k) of coalitions (n, K)."""
    last = present[:, -1:]
    x = present[:, :-1] - last  # (n, K - 1): the last part's value is what the others leave of the total
    y = gains - last * total
    weighted = weights[:, None] * x
    others = torch.linalg.pinv(x.T @ weighted, hermitian=True) @ (weighted.T @ y)  # (K - 1, k)
    return torch.cat([others, total[None] - others.sum(dim=0, keepdim=True)])

"""Shapley values of the parts of an image, by sampling the orders in which they arrive."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aha.core.validation import PositiveInt
from aha.methods.base import Method, method, seeded_generator
from aha.methods.cost import Cost
from aha.models import TargetModel
from aha.perturb.masking import MaskedModel, Scale, explain_each
from aha.perturb.partitions import Partition, Patches
from aha.perturb.references import Reference, ZerosNormalised


@method("shapley_sampling", family="perturbation", volumes=True, citation="Castro et al., Computers & OR 2009")
@dataclass(frozen=True)
class ShapleySampling(Method):
    """Mean gain of the score when a part arrives, over random orders of arrival (ApproShapley).

    The values sum to the score of the image minus that of the reference. The 25 orders are captum's default and the 49
    parts MDA's ("SHAP"), who explains the logit; the cost is one forward pass per order and part.

    Formula: `phi_i = mean over orders of score(S + i) - score(S)`, S being the parts that come before i.
    Reads: outputs alone.
    Cost: at most `orders` times parts, + 2, forward passes.
    Example: `shapley_sampling(orders=10)`.

    Attributes:
        orders: number of random orders.
        parts: what the image is divided into.
        reference: what parts show before they arrive.
        score: the reported score, or the logit.
    """

    orders: PositiveInt = 25
    parts: Partition = Patches(grid=7)
    reference: Reference = ZerosNormalised()
    score: Scale = "score"
    seed: int | None = None

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        count = self.parts.count(size)
        return Cost(self.orders * count + 2, 48 * self.orders * count)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        return explain_each(self._explain, model, images, classes, self.reference, self.score)

    def _explain(self, masked: MaskedModel) -> Tensor:
        index = self.parts(masked.model, masked.image)  # (H, W)
        count = int(index.max()) + 1
        generator = seeded_generator(self.seed)
        orders = torch.rand(self.orders, count, generator=generator).argsort(dim=1).to(index.device)  # (R, K)
        arrivals = orders.argsort(dim=1)  # when each part arrives
        blank, whole = masked.scores_at(0.0, 1.0)  # (k,)

        def masks(part: slice) -> Tensor:
            """After 1 .. K - 1 arrivals of the first order, then of the second, and so on."""
            steps = torch.arange(self.orders * (count - 1), device=index.device)[part]
            present = arrivals[steps // (count - 1)] <= (steps % (count - 1))[:, None]  # (m, K)
            return present[:, index]

        between = masked.scores(masks, self.orders * (count - 1))  # (R (K - 1), k)
        first, last = (end.expand(self.orders, 1, -1) for end in (blank, whole))
        curves = torch.cat([first, between.view(self.orders, count - 1, len(blank)), last], dim=1)  # (R, K + 1, k)
        gains = torch.zeros_like(curves[:, 1:])
        gains.scatter_(1, orders[:, :, None].expand_as(gains), curves.diff(dim=1))  # back to the parts' own numbers
        return self.parts.as_map(gains.mean(dim=0).T, index)

"""SaCo: do groups of pixels with more mass matter more, and by how much of the mass?"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import torch
from torch import Tensor

from aha.core.validation import Range
from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case, Part, Perturbation, without
from aha.metrics.curves.base import References, averaged
from aha.perturb.perturbation import Ties, step_counts
from aha.perturb.references import OwnMean, Reference


@dataclass(frozen=True)
class Ranks(Part):
    """The pixels of the ranks from `first` up to, but not with, `end`."""

    first: int
    end: int
    ties: Ties

    def removed(self, case: Case) -> Tensor:
        """Their places."""
        ranks = case.ranks(ties=self.ties)
        return (ranks >= self.first) & (ranks < self.end)


@metric("saco", columns={"saco": "higher"}, bounds=(-1.0, 1.0), citation="Wu et al., CVPR 2024")
@dataclass(frozen=True)
class SaCo(Metric):
    """Salience-guided faithfulness coefficient: pairs of groups in the right order, weighted by how their mass differs.

    The pixels are divided by rank into equal groups, and each group is removed alone. Of two groups the one with more
    mass should matter at least as much: then their difference in mass counts for the map, otherwise against it. 1 if
    all pairs are right, -1 if all are wrong, about 0 for a map that knows nothing, and 0 for one that is the same
    everywhere. 10 images for each map and reference.

    Attributes:
        groups: how many.
        references: what stands in for a removed group; as published, the image's own mean colour.
        ties: order among equal values: "random" (seeded) or "raster".
    """

    groups: Annotated[int, Range(2)] = 10
    references: References = (OwnMean(),)
    ties: Ties = "random"

    def perturbations(self, case: Case) -> Iterable[Perturbation]:
        for reference in self.references:
            yield from self._without_each(case, reference)

    def questions(self) -> dict[Hashable, int]:
        return {(self.name, self.groups, reference): self.groups for reference in self.references}

    def __call__(self, case: Case) -> list[Value]:
        mass = torch.stack([case.values[group.removed(case)].double().sum() for group in self._groups(case)]).cpu()
        values = []
        for reference in self.references:
            drops = -case.scores(case.outputs(self._without_each(case, reference))).double().cpu()
            values.append(Value(self.name, coefficient(mass, drops), str(reference)))
        return averaged(values)

    def _groups(self, case: Case) -> list[Ranks]:
        bounds = step_counts(case.num_pixels, self.groups)
        return [Ranks(first, end, self.ties) for first, end in pairwise(bounds)]

    def _without_each(self, case: Case, reference: Reference) -> list[Perturbation]:
        return [without(reference, group) for group in self._groups(case)]


def coefficient(mass: Tensor, drops: Tensor) -> float:
    """SaCo of groups with these masses (K,), heaviest first, and drops of the score (K,)."""
    first, second = torch.triu_indices(len(mass), len(mass), offset=1)
    weights = mass[first] - mass[second]
    signs = torch.where(drops[first] >= drops[second], 1.0, -1.0).double()
    total = float(weights.abs().sum())
    return float((signs * weights).sum()) / total if total else 0.0

"""Fidelity by the removal of small random shares, of the top pixels and of the others (F-Fidelity)."""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from aha.core.seeds import generator_of
from aha.core.validation import FILLED, PositiveInt, Range
from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case, Part, Perturbation, without
from aha.metrics.curves.base import References, averaged
from aha.perturb.perturbation import Ties
from aha.perturb.references import Reference, ZerosNormalised

Share = Annotated[float, Range(0, 1, above=True)]


@dataclass(frozen=True)
class RandomShare(Part):
    """Each of the first `count` pixels, or of the last, with a probability; the draws are those of the case's seed."""

    is_first: bool
    count: int
    probability: float
    draw: int
    ties: Ties

    def removed(self, case: Case) -> Tensor:
        """The pixels that the draw takes."""
        ranks = case.ranks(ties=self.ties)
        inside = ranks < self.count if self.is_first else ranks >= case.num_pixels - self.count
        seed = zlib.crc32(f"{case.seed} {self.draw}".encode())
        chance = torch.rand(ranks.shape, generator=generator_of(seed)).to(ranks.device)
        return inside & (chance < self.probability)


@metric(
    "fidelity_bounded",
    columns={
        "fidelity_bounded": "higher",
        "fidelity_bounded_plus": "higher",
        "fidelity_bounded_minus": "lower",
    },
    bounds=(-1.0, 1.0),
    citation="Zheng et al., ICLR 2025",
)
@dataclass(frozen=True)
class FidelityBounded(Metric):
    """Mean drop when few random pixels of the top go (plus), and when as many of the bottom go (minus).

    Of the top share of the pixels each is removed with probability `alpha`, or with a smaller one, so that no more than
    `beta` of the image is expected to go: perturbed images stay near real ones, and shares of all sizes can be
    compared. `fidelity_bounded` is the difference of the two, zero for an order that knows nothing. The paper first
    fine-tunes its models on randomly masked images: hand in such a model for its numbers. The draws are the same for
    both ends, for all shares and for all maps. 2 images for each share, draw and reference: 50 by default.

    Attributes:
        shares: sizes of the top and of the bottom, as shares of the pixels; the mean over them is reported.
        alpha: share of the top, or of the bottom, that is removed at most.
        beta: share of the image that is removed at most.
        samples: draws; 50 in the published code.
        accuracy: what drops is whether the class is recognised, as in the published code, instead of the score.
        references: what stands in for removed pixels.
        ties: order among equal values: "random" (seeded) or "raster".
    """

    shares: Annotated[tuple[Share, ...], FILLED] = (0.1, 0.3, 0.5, 0.7, 0.9)
    alpha: Share = 0.5
    beta: Share = 0.1
    samples: PositiveInt = 5
    accuracy: bool = False
    references: References = (ZerosNormalised(),)
    ties: Ties = "random"

    def perturbations(self, case: Case) -> Iterable[Perturbation]:
        for reference in self.references:
            for is_first in (True, False):
                yield from self._along(case, reference, is_first)

    def questions(self) -> dict[Hashable, int]:
        choices = (self.name, self.shares, self.alpha, self.beta, self.samples)
        return {(*choices, reference): 2 * self.samples * len(self.shares) for reference in self.references}

    def __call__(self, case: Case) -> list[Value]:
        clean = float(self._read(case, case.sample.clean[None]))
        values = []
        for reference in self.references:
            plus, minus = (
                clean - float(self._read(case, case.outputs(self._along(case, reference, is_first))))
                for is_first in (True, False)
            )
            numbers = {"": plus - minus, "_plus": plus, "_minus": minus}
            values += [Value(f"{self.name}{which}", number, str(reference)) for which, number in numbers.items()]
        return averaged(values)

    def _read(self, case: Case, outputs: Tensor) -> Tensor:
        """The mean over outputs (S, K)."""
        found = case.recognised(outputs, case.target) if self.accuracy else case.scores(outputs)
        return found.double().mean()

    def _along(self, case: Case, reference: Reference, is_first: bool) -> Sequence[Perturbation]:
        parts = []
        for share in self.shares:
            count = max(1, round(share * case.num_pixels))
            probability = min(self.alpha, self.beta * case.num_pixels / count)
            parts += [RandomShare(is_first, count, probability, draw, self.ties) for draw in range(self.samples)]
        return [without(reference, part) for part in parts]

"""Magnitude Aligned Scoring: insertion and deletion that also score the sizes of the attributions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from aha.errors import SpecError
from aha.metrics.base import Value, metric
from aha.metrics.case import Case, Kind
from aha.metrics.curves.base import Curve, CurveMetric, References, refuse_partial, rescaled
from aha.perturb.perturbation import area
from aha.perturb.references import AdaptiveBlur, ZerosNormalised


@metric(
    "mas",
    columns={
        "mas_insertion": "higher",
        "mas_deletion": "lower",
        "mas": "higher",
        "mas_insertion_response": "higher",
        "mas_deletion_response": "lower",
        "mas_insertion_penalty": "lower",
        "mas_deletion_penalty": "lower",
    },
    bounds=(-1.0, 1.0),
    citation="Walker et al., IJCAI 2024",
)
@dataclass(frozen=True)
class MAS(CurveMetric):
    """Area of the response, minus (insertion) or plus (deletion) its distance from the map's cumulative mass.

    The response is rescaled and monotone (`rescaled` of `aha.metrics.curves.base`), the mass is that of |map|. The raw
    parts, response area and mean penalty, are reported too.

    Attributes:
        references: the one of the deletion.
        insert_into: the one of the insertion.
        final_minmax: rescale the penalised curve to [0, 1] as the published code does (its paper does not say so).
    """

    references: References = (ZerosNormalised(),)
    insert_into: References = (AdaptiveBlur(),)
    final_minmax: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_partial(self)
        if len(self.references) != 1 or len(self.insert_into) != 1:
            raise SpecError("mas: one reference to delete into and one to insert into are needed")

    def _sequences(self) -> Iterable[tuple[Kind, References]]:
        return (("delete", self.references), ("insert", self.insert_into))

    def __call__(self, case: Case) -> list[Value]:
        inserted = self._parts(case, self.curve(case, "insert", self.insert_into[0]))
        deleted = self._parts(case, self.curve(case, "delete", self.references[0]))
        into, out_of = str(self.insert_into[0]), str(self.references[0])
        return [
            Value("mas_insertion", inserted[0], into),
            Value("mas_deletion", deleted[0], out_of),
            Value("mas", inserted[0] - deleted[0], f"{out_of} / {into}"),
            Value("mas_insertion_response", inserted[1], into),
            Value("mas_deletion_response", deleted[1], out_of),
            Value("mas_insertion_penalty", inserted[2], into),
            Value("mas_deletion_penalty", deleted[2], out_of),
        ]

    def _parts(self, case: Case, curve: Curve) -> tuple[float, float, float]:
        """MAS score, area of the response, mean alignment penalty."""
        rising = curve.kind == "insert"
        answers = case.scores(curve.outputs).cpu()
        response = rescaled(answers, rising=rising)
        density = cumulative_mass(case, curve.fractions).to(response)
        density = density if rising else 1 - density
        penalty = (response - density).abs()
        score = (response - penalty if rising else response + penalty).clamp(0, 1)
        if self.final_minmax:
            score = _stretched(score, rising)
        fractions = curve.fractions.to(response)
        return float(area(fractions, score)), float(area(fractions, response)), float(area(fractions, penalty))


def cumulative_mass(case: Case, fractions: Tensor) -> Tensor:
    """Share (S,) of the map's absolute mass in its most important pixels, at each share of pixels.

    Pixels of signed maps come in the order of their values; the published code takes absolute ones for that as well.
    """
    ordered = torch.empty(case.num_pixels, dtype=torch.float64)
    ordered[case.ranks().flatten().cpu()] = case.values.abs().flatten().double().cpu()
    total = torch.cat([torch.zeros(1, dtype=torch.float64), ordered.cumsum(0)])
    if total[-1] == 0:
        return fractions
    return total[(fractions.double() * case.num_pixels).round().long()] / total[-1]


def _stretched(score: Tensor, rising: bool) -> Tensor:
    low, high = score.min(), score.max()
    if low == high:  # a constant curve counts as a straight line, as in the published code
        line = torch.linspace(0, 1, len(score)).to(score)
        return line if rising else 1 - line
    return (score - low) / (high - low)

"""ROAD: score and accuracy while pixels go and are imputed, most important or least important first."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from aha.core.validation import FILLED, Fraction
from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case, Kind, Perturbation
from aha.metrics.curves.base import References, averaged
from aha.metrics.curves.positive import Against, class_against
from aha.perturb.filling import Imputed
from aha.perturb.perturbation import Ties
from aha.perturb.references import Reference

TENTHS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@metric(
    "road",
    columns={
        "road": "higher",
        "road_morf": "lower",
        "road_lerf": "higher",
        "road_morf_accuracy": "lower",
        "road_lerf_accuracy": "higher",
    },
    bounds=(-1.0, 1.0),
    citation="Rong et al., ICML 2022",
)
@dataclass(frozen=True)
class Road(Metric):
    """Mean score and accuracy with 10 to 90 % of the pixels imputed: most (MoRF) or least relevant first (LeRF).

    `road` is LeRF minus MoRF of the score: zero for an order that knows nothing, twice the ROADCombined of
    pytorch-grad-cam. The parts lie in [0, 1]. The accuracies are left out where the model is no classifier. 18 images
    for each map and reference; to impute them may take longer than to show them.

    Attributes:
        fractions: the shares of removed pixels; the mean over them is reported.
        references: what stands in for removed pixels; ROAD's own is `imputed`.
        against: the class that counts as recognised: the explained one, or the true label.
        ties: order among equal values: "random" (seeded) or "raster".
    """

    fractions: Annotated[tuple[Fraction, ...], FILLED] = TENTHS
    references: References = (Imputed(),)
    against: Against = "target"
    ties: Ties = "random"

    def perturbations(self, case: Case) -> Iterable[Perturbation]:
        for reference in self.references:
            for kind in ("delete", "insert"):
                yield from self._along(case, kind, reference)

    def questions(self) -> dict[Hashable, int]:
        return {(self.name, self.fractions, reference): 2 * len(self.fractions) for reference in self.references}

    def __call__(self, case: Case) -> list[Value]:
        values = []
        for reference in self.references:
            morf, lerf = (case.outputs(self._along(case, kind, reference)) for kind in ("delete", "insert"))
            values += [Value(column, number, str(reference)) for column, number in self._numbers(case, morf, lerf)]
        return averaged(values)

    def _numbers(self, case: Case, morf: Tensor, lerf: Tensor) -> Iterable[tuple[str, float]]:
        first, last = (float(case.scores(outputs).double().mean()) for outputs in (morf, lerf))
        yield from (("road", last - first), ("road_morf", first), ("road_lerf", last))
        if case.model.score.is_probability:
            label = class_against(case, self.against)
            for name, outputs in (("road_morf_accuracy", morf), ("road_lerf_accuracy", lerf)):
                yield name, float(case.recognised(outputs, label).double().mean())

    def _along(self, case: Case, kind: Kind, reference: Reference) -> list[Perturbation]:
        """Without the first pixels, or without the last: with the first of the others alone."""
        counts = [round(share * case.num_pixels) for share in self.fractions]
        shown = counts if kind == "delete" else [case.num_pixels - count for count in counts]
        return [Perturbation(kind, reference, count, ties=self.ties) for count in shown]

"""Average Drop: the share of confidence lost when the image is seen through its map."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aha.errors import MetricError
from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case, Perturbation
from aha.metrics.curves.base import References, averaged
from aha.perturb.references import Black, Blur, Mean, Reference

SMALLEST = 1e-8  # below this too low for a relative drop


@dataclass(frozen=True)
class BlendMetric(Metric):
    """Base of the metrics that show the image where the map is high and the reference where it is low.

    The image is `I * M + I0 * (1 - M)` with the map scaled to [0, 1]: AHA's tables differ between references, so the
    reference must enter, although its text only says "element-wise product".

    Attributes:
        references: the I0; black alone is the original product of image and map.
    """

    references: References = (Black(), Mean(), Blur())

    def perturbations(self, case: Case) -> Iterable[Perturbation]:
        return [Perturbation("insert", reference, None) for reference in self.references]

    def confidences(self, case: Case) -> list[tuple[Reference, float, float]]:
        """Reference, score of the clean image, score through the map."""
        before = float(case.scores(case.sample.clean[None])[0])
        after = case.scores(case.outputs(list(self.perturbations(case)))).tolist()
        return [(reference, before, float(score)) for reference, score in zip(self.references, after, strict=True)]


@metric(
    "average_drop",
    columns={"average_drop": "lower", "map_mean": "neither"},
    bounds=(0.0, 100.0),
    citation="Chattopadhay et al., WACV 2018",
)
@dataclass(frozen=True)
class AverageDrop(BlendMetric):
    """`100 * max(0, y - o) / y` in percent. It favours dense maps, so the mean of the scaled map is reported too."""

    def __call__(self, case: Case) -> list[Value]:
        values = []
        for reference, before, after in self.confidences(case):
            if before < SMALLEST:
                raise MetricError(
                    f"{case.sample.name}: class {case.target} has the score {before:.1e}; too low for a relative drop"
                )
            values.append(Value("average_drop", 100 * max(0.0, before - after) / before, str(reference)))
        return [*averaged(values), Value("map_mean", float(case.unit_map().mean()))]

"""Answer stability: does the map stay the same under small changes of the image that do not change the answer?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aha.core.validation import PositiveFloat, PositiveInt
from aha.errors import MetricError
from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case
from aha.metrics.sanity.stability import noisy_copies
from aha.metrics.statistics import spearman

_BRIGHTNESS = 0.05  # share by which pixels become brighter and darker


def shifted(values: Tensor, by: int) -> Tensor:
    """Values (..., H, W) moved to the right by some pixels; the left edge is repeated."""
    return torch.cat([values[..., :1].expand(*values.shape[:-1], by), values[..., :-by]], dim=-1)


@metric(
    "answer_stability",
    columns={"answer_stability": "higher", "answer_stability_least": "higher", "answers_kept": "neither"},
    bounds=(-1.0, 1.0),
    needs={"method"},
    citation="Agarwal et al., arXiv 2203.06877",
)
@dataclass(frozen=True)
class AnswerStability(Metric):
    """Spearman correlation between the map and the maps of slightly changed copies that have the same top class.

    The copies are: two with noise, a brighter and a darker one, and one that is moved to the right, whose map is moved
    back before it is compared. Copies whose top class is another are left out, as in relative stability (Agarwal et
    al.): there the map may change with the answer. `answers_kept` is the share of copies that count. Random methods use
    the same seed for all copies. A map that ignores the image is perfectly stable, so this means something only next to
    `randomisation`.

    Attributes:
        sigma: deviation of the noise as a share of the input's value range.
        shift: pixels.
    """

    sigma: PositiveFloat = 0.02
    shift: PositiveInt = 2

    def __call__(self, case: Case) -> list[Value]:
        if case.explain is None:
            raise MetricError(f"{case.sample.name}: answer_stability needs the method, not only its map")
        if bool(case.values.min() == case.values.max()):
            raise MetricError(f"{case.sample.name}: the map of {case.method} is constant, so it has no ranks")
        copies = self._copies(case)  # (n, C, H, W), the shifted one last
        kept = self._answers(case, case.model.outputs(copies)) == self._answers(case, case.sample.clean[None])  # (n,)
        if not bool(kept.any()):
            raise MetricError(f"{case.sample.name}: every small change gave another top class")
        places = kept.nonzero().flatten().tolist()
        classes = torch.full((len(places),), case.target, device=case.model.device)
        maps = case.explain(case.model, copies[kept], classes).to(case.values)  # (k, H, W)
        if not bool(maps.isfinite().all()):
            raise MetricError(f"{case.sample.name}: maps of {case.method} for changed copies are not finite")
        found = []
        for place, values in zip(places, maps, strict=True):
            clean = case.values
            if place == len(copies) - 1:  # only what both maps show
                clean, values = clean[..., : -self.shift], values[..., self.shift :]
            found.append(float(spearman(clean.flatten(), values.flatten()).nan_to_num(0.0)))
        return [
            Value("answer_stability", sum(found) / len(found)),
            Value("answer_stability_least", min(found)),
            Value("answers_kept", len(found) / len(copies)),
        ]

    def _copies(self, case: Case) -> Tensor:
        model, inputs = case.model, case.sample.inputs
        pixels = case.sample.pixels
        lights = [model.to_inputs((pixels * factor).clamp(0, 1)) for factor in (1 + _BRIGHTNESS, 1 - _BRIGHTNESS)]
        return torch.stack([*noisy_copies(inputs, 2, self.sigma, case.seed), *lights, shifted(inputs, self.shift)])

    def _answers(self, case: Case, outputs: Tensor) -> Tensor:
        """The top class (n,) of outputs (n, K); of a single output, on which side it is."""
        return case.model.score.per_class(outputs).argmax(dim=1) if outputs.shape[1] > 1 else outputs[:, 0] > 0

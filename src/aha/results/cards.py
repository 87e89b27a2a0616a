"""The faithfulness card: an explanation's own curves beside those of maps that know nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aha.methods import load_method
from aha.metrics import Case, Sample
from aha.metrics.curves import CurveMetric
from aha.metrics.ins_del import InsDel
from aha.models import TargetModel
from aha.perturb.perturbation import area
from aha.perturb.references import Black, Blur, Mean

BASELINES = ("random_map", "center_map", "edge_map")
PROTOCOL = InsDel(steps=20, references=(Black(), Mean(), Blur()))
_SHOWN = 0.1  # the share of pixels that the sentence speaks of; on a step of the protocol


@dataclass(frozen=True)
class Curves:
    """Class score while the top pixels are deleted and inserted, averaged over the references.

    Attributes:
        fractions: share of pixels changed (S,).
        deletion: score (S,).
        insertion: score (S,).
    """

    fractions: tuple[float, ...]
    deletion: tuple[float, ...]
    insertion: tuple[float, ...]

    @property
    def ins_del(self) -> float:
        """Insertion minus Deletion."""
        fractions, deletion, insertion = (torch.tensor(x) for x in (self.fractions, self.deletion, self.insertion))
        return float(area(fractions, insertion - deletion))

    def joined(self, other: Curves) -> Curves:
        """All points of both, in their order; no point may be on both."""
        points = [*zip(self.fractions, self.deletion, self.insertion, strict=True)]
        points += zip(other.fractions, other.deletion, other.insertion, strict=True)
        fractions, deletion, insertion = zip(*sorted(points), strict=True)
        return Curves(fractions, deletion, insertion)

    def score_without(self, share: float) -> float:
        """Score after deleting the top `share` of the pixels."""
        return self.deletion[min(range(len(self.fractions)), key=lambda i: abs(self.fractions[i] - share))]


@dataclass(frozen=True)
class Card:
    """How far one map can be trusted: its curves, and those of the baselines.

    Attributes:
        curves: of the map.
        baselines: of random_map, center_map and edge_map.
        protocol: text of the protocol.
        score_name: what the scores are, for the sentence.
    """

    curves: Curves
    baselines: Mapping[str, Curves]
    protocol: str
    score_name: str

    @property
    def sentence(self) -> str:
        """The card in words."""
        before, after = self.curves.deletion[0], self.curves.score_without(_SHOWN)
        random_after = self.baselines["random_map"].score_without(_SHOWN)
        verb = "drops" if after < before else "moves"
        best = max(self.baselines, key=lambda name: self.baselines[name].ins_del)
        beats = self.curves.ins_del > self.baselines[best].ins_del
        verdict = (
            f"Ins-Del {two_digits(self.curves.ins_del)}, {'above' if beats else 'not above'} the best baseline "
            f"({best} {two_digits(self.baselines[best].ins_del)})"
        )
        return (
            f"Removing the top {_SHOWN:.0%} of pixels {verb} the {self.score_name} from {before:.2f} to {after:.2f}; "
            f"random pixels: to {random_after:.2f}. {verdict}."
        )


def two_digits(value: float) -> str:
    """A score for people: two digits, and no minus sign before a zero."""
    text = f"{value:.2f}"
    return "0.00" if text == "-0.00" else text


class CardMaker:
    """Makes cards; the baselines of an image and class are measured once, however many maps are scored."""

    def __init__(self, model: TargetModel, *, protocol: CurveMetric = PROTOCOL, seed: int = 0) -> None:
        self.model = model
        self.protocol = protocol
        self.seed = seed
        self._baselines: dict[tuple[int, int], dict[str, Curves]] = {}
        self._samples: list[Sample] = []  # kept alive, since baselines are filed under their identity

    def card(self, sample: Sample, target: int, values: Tensor, method: str) -> Card:
        """The card of a map (H, W) for a class of a sample."""
        score = self.model.score
        return Card(
            curves=self._curves(sample, target, values, method),
            baselines=self._baseline_curves(sample, target),
            protocol=str(self.protocol),
            score_name="probability" if score.is_probability else score.name,
        )

    def _baseline_curves(self, sample: Sample, target: int) -> dict[str, Curves]:
        key = (id(sample), target)
        if key not in self._baselines:
            self._samples.append(sample)
            classes = torch.tensor([target], device=self.model.device)
            self._baselines[key] = {
                name: self._curves(
                    sample,
                    target,
                    load_method(name).seeded(self.seed)(self.model, sample.inputs[None], classes)[0],
                    name,
                )
                for name in BASELINES
            }
        return self._baselines[key]

    def _curves(self, sample: Sample, target: int, values: Tensor, method: str) -> Curves:
        case = Case(sample, target, values.to(self.model.device), method, seed=self.seed)
        return average_curves(list(reference_curves(case, self.protocol).values()))


def reference_curves(case: Case, protocol: CurveMetric) -> dict[str, Curves]:
    """The curves of a case for each reference of a protocol, by the reference's text; one stream of full batches."""
    case.prepare(protocol.perturbations(case))
    found = {}
    for reference in protocol.references:
        deletion, insertion = (protocol.curve(case, kind, reference) for kind in ("delete", "insert"))
        scores = (tuple(case.scores(curve.outputs).tolist()) for curve in (deletion, insertion))
        found[str(reference)] = Curves(tuple(deletion.fractions.tolist()), *scores)
    return found


def average_curves(curves: Sequence[Curves]) -> Curves:
    """The mean of curves with the same fractions."""
    means = (
        tuple(torch.tensor([getattr(curve, kind) for curve in curves]).mean(dim=0).tolist())
        for kind in ("deletion", "insertion")
    )
    return Curves(curves[0].fractions, *means)

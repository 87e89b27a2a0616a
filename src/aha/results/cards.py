"""The faithfulness card: a map's own curves next to those of maps that know nothing, and what they say in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from aha.perturb.perturbation import area
from aha.results.headroom import share

_BASELINE_WORDS = {"random_map": "random pixels", "center_map": "a blob in the centre", "edge_map": "edges"}
BASELINES = tuple(_BASELINE_WORDS)
_SURE = 2.0  # errors that a lead must exceed to be called one


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
        return self.mean_insertion - self.mean_deletion

    def joined(self, other: Curves) -> Curves:
        """All points of both, in their order; no point may be on both."""
        points = [*zip(self.fractions, self.deletion, self.insertion, strict=True)]
        points += zip(other.fractions, other.deletion, other.insertion, strict=True)
        fractions, deletion, insertion = zip(*sorted(points), strict=True)
        return Curves(fractions, deletion, insertion)

    @property
    def mean_deletion(self) -> float:
        """The area under the curve of deletion."""
        return self._area(self.deletion)

    @property
    def mean_insertion(self) -> float:
        """The area under the curve of insertion."""
        return self._area(self.insertion)

    def _area(self, scores: tuple[float, ...]) -> float:
        return float(area(torch.tensor(self.fractions), torch.tensor(scores)))


class Lead(NamedTuple):
    """How much more Ins-Del a map has than a baseline: the mean over references, and its standard error."""

    mean: float
    error: float

    @property
    def is_sure(self) -> bool:
        """Does it differ from zero by more than its error?"""
        return self.mean > _SURE * self.error

    def __str__(self) -> str:
        return f"{two_digits(self.mean)} ± {two_digits(self.error)}"


@dataclass(frozen=True)
class Card:
    """How far one map can be trusted: its curves, and those of the baselines.

    Attributes:
        curves: of the map.
        baselines: of random_map, center_map and edge_map.
        leads: over each baseline, reference by reference.
        protocol: text of the protocol.
        score_name: what the scores are, for the sentence.
        oracle: of the best order that a search found, where one was asked for.
        oracle_name: the search, which says what it was allowed to spend.
    """

    curves: Curves
    baselines: Mapping[str, Curves]
    leads: Mapping[str, Lead]
    protocol: str
    score_name: str
    oracle: Curves | None = None
    oracle_name: str = ""

    @property
    def headroom(self) -> float | None:
        """How much of what is possible the map reaches: 0 is a random map, 1 the oracle; None where neither says."""
        if self.oracle is None:
            return None
        shown = ("", 0)
        floor, ceiling = ({shown: curves.ins_del} for curves in (self.baselines["random_map"], self.oracle))
        return share(self.curves.ins_del, shown, floor, ceiling)

    @property
    def sentence(self) -> str:
        """The card in words: what the whole curves say, no louder than their errors allow."""
        beaten = [name for name, lead in self.leads.items() if lead.is_sure and self._is_seen(lead)]
        others = [name for name in self.leads if name not in beaten]
        if "random_map" in others:
            verdict = f"This map is no better than chance here: Ins-Del {self._over('random_map')} over random pixels"
        else:
            verdict = f"Better than {_listed([self._by(name) for name in beaten])}"
            if others:
                verdict += f", but not than {_listed([self._by(name) for name in others])}"
        own, random = self.curves, self.baselines["random_map"]
        return (
            f"{verdict}. While the top pixels are removed, the {self.score_name} averages "
            f"{two_digits(own.mean_deletion)} ({two_digits(random.mean_deletion)} with random pixels); "
            "while they are put back, "
            f"{two_digits(own.mean_insertion)} ({two_digits(random.mean_insertion)}).{self._reached}"
        )

    def _is_seen(self, lead: Lead) -> bool:
        """A lead of less than a hundredth of a probability is nothing to praise, however sure."""
        return self.score_name != "probability" or two_digits(lead.mean) != "0.00"

    def _over(self, name: str) -> str:
        return f"{'+' if self.leads[name].mean > 0 else ''}{self.leads[name]}"

    def _by(self, name: str) -> str:
        return f"{_BASELINE_WORDS.get(name, name)} (Ins-Del {self._over(name)})"

    @property
    def _reached(self) -> str:
        if self.oracle is None:
            return ""
        best = f"{self.oracle_name} finds an order with {two_digits(self.oracle.ins_del)}"
        if self.headroom is None:
            return f" {best}: hardly more than random pixels, so there is no headroom to measure."
        return f" {best}; the map reaches {self.headroom:.0%} of the way there from random pixels."


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def two_digits(value: float) -> str:
    """A score for people: two digits, and no minus sign before a zero."""
    text = f"{value:.2f}"
    return "0.00" if text == "-0.00" else text


def average_curves(curves: Sequence[Curves]) -> Curves:
    """The mean of curves with the same fractions."""
    means = (
        tuple(torch.tensor([getattr(curve, kind) for curve in curves]).mean(dim=0).tolist())
        for kind in ("deletion", "insertion")
    )
    return Curves(curves[0].fractions, *means)


def lead_over(own: Sequence[Curves], others: Sequence[Curves]) -> Lead:
    """How much Ins-Del one map has more than another, over the references of both."""
    differences = torch.tensor([a.ins_del - b.ins_del for a, b in zip(own, others, strict=True)], dtype=torch.float64)
    error = float(differences.std() / len(differences) ** 0.5) if len(differences) > 1 else math.inf
    return Lead(float(differences.mean()), error)

"""How the methods of a race stand: differences to the best with their errors, sanity checks, agreement of metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import torch

from aha.bench.recommendation.ranking import faithfulness, last_round, median, ranking
from aha.bench.recommendation.record import Race
from aha.bench.reporting.significance import LEVEL
from aha.bench.reporting.tables import against_best, better, values_by_image
from aha.bench.run_reader import Group
from aha.metrics.statistics import spearman
from aha.results.score_table import summarise

METRIC_OF = {
    "faithfulness": "ins_del",
    "class": "class_sensitivity",
    "stability": "stability_spearman",
    "randomisation": "randomisation_spearman",
}
LEAST_COMMON = 4
"""Methods that two metrics must both have scored for their ranks to be compared."""


@dataclass(frozen=True)
class Standing:
    """How one method did.

    Attributes:
        n: images on which its faithfulness was measured.
        mean, low, high: Ins-Del and its 95 % interval.
        common: images that the best was measured on too; where there are none, it is not compared with the best.
        behind, behind_error: mean difference to the best on these, and its error; NaN for the best itself.
        p: corrected p-value of that difference (`against_best`).
        seconds, passes: median time of a map, and images through the model for it.
        checks: sanity metrics by their short names, where the budget allowed them.
        out: why it left the race, if it did.
    """

    method: str
    n: int
    mean: float
    low: float
    high: float
    common: int
    behind: float
    behind_error: float
    p: float
    seconds: float
    passes: float
    checks: Mapping[str, float] = field(default_factory=dict)
    out: str = ""

    @property
    def is_significant(self) -> bool:
        """Is it behind the best by more than chance?"""
        return self.p < LEVEL


def standings_of(group: Group, race: Race) -> list[Standing]:
    """All scored methods; those that were ruled out stand behind those that were not."""
    values = faithfulness(group)
    fits = ranking(values, [m for m in race.methods if m not in race.out])
    others = ranking(values, [m for m in race.methods if m in race.out])
    order = [*fits, *others]
    if not order:
        return []
    gaps = against_best(values, order, last_round(values, fits or others))
    checks = _checks(group)
    found = []
    for method in order:
        own = summarise(method, "", "", "", values_by_image(values[method]))
        apart = gaps[method].differences if method in gaps else []
        gap = summarise(method, "", "", "", apart) if apart else None
        cost = [median(costs.get(method, ())) for costs in (group.seconds, group.forward, group.backward)]
        found.append(
            Standing(
                method,
                own.n,
                own.mean,
                own.low,
                own.high,
                len(apart) if method in gaps else own.n,
                math.nan if gap is None else gap.mean,
                math.nan if gap is None else gap.standard_error,
                gaps[method].p if method in gaps else math.nan,
                cost[0] or 0.0,
                (cost[1] or 0.0) + (cost[2] or 0.0),
                checks.get(method, {}),
                race.out.get(method, ""),
            )
        )
    return found


def _checks(group: Group) -> dict[str, dict[str, float]]:
    """Method -> short name of a sanity metric -> its mean."""
    found: dict[str, dict[str, float]] = {}
    for name, metric in METRIC_OF.items():
        for (_, column), values in group.values.items():
            if column[0] == metric and name != "faithfulness":
                for method, own in values.items():
                    known = [value for value in own.values() if not math.isnan(value)]
                    if known:
                        found.setdefault(method, {})[name] = math.fsum(known) / len(known)
    return found


def scores_by(standings: Sequence[Standing], name: str) -> dict[str, float]:
    """Method -> a number that is larger for the better."""
    if name == "faithfulness":
        return {s.method: s.behind if not math.isnan(s.behind) else 0.0 for s in standings if s.common}
    if name == "cost":
        return {s.method: -s.passes for s in standings}
    sign = 1 if better(METRIC_OF[name]) == "higher" else -1
    return {s.method: sign * s.checks[name] for s in standings if name in s.checks}


def agreement_of(standings: Sequence[Standing]) -> dict[tuple[str, str], float]:
    """Rank correlation of pairs of metrics over the methods that both have scored."""
    found = {}
    for a, b in combinations([*METRIC_OF, "cost"], 2):
        first, second = scores_by(standings, a), scores_by(standings, b)
        common = [method for method in first if method in second]
        if len(common) >= LEAST_COMMON:
            rho = float(spearman(*(torch.tensor([scores[m] for m in common]) for scores in (first, second))))
            if not math.isnan(rho):
                found[a, b] = rho
    return found

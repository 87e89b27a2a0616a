"""The one sentence in which a race ends: which method to use, by how much it leads, and what speaks against it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from aha.bench.recommendation.standings import LEAST_COMMON, METRIC_OF, Standing, scores_by
from aha.errors import AhaError
from aha.methods import load_method

_CHEAPER = 4  # times, for a cost to be worth a word
_DISPUTED = 0.7  # of all places, between a method's best and worst rank
# What it means to be among the first by a metric, and among the last.
_MEANING = {
    "faithfulness": (
        "its top pixels carry more of the prediction",
        "its top pixels carry less of the prediction",
    ),
    "class": ("its maps change more with the class", "its maps change less with the class"),
    "stability": ("its maps change less under noise", "its maps change more under noise"),
    "randomisation": (
        "its maps change more when the weights are randomised",
        "its maps change less when the weights are randomised",
    ),
}
_UNIT = {"faithfulness": "Ins-Del"}  # the others are rank correlations


def sentence(standings: Sequence[Standing]) -> str:
    """What the standings, the best first, come to."""
    best, rest = standings[0], [s for s in standings[1:] if not s.out]
    if best.out:
        return f"No method is left; the best was {best.method}: {best.out}."
    if _family(best.method) == "baseline":
        start = f"No method beats {best.method}, which ignores the model, on {_images(best.n)}"
    else:
        start = f"Use {best.method}"
    parts = [start + _lead(best, next((s for s in rest if s.common), None))]
    faster = [s for s in rest if s.seconds * _CHEAPER <= best.seconds and _family(s.method) != "baseline"]
    if faster:
        needed, instead = _time(_rounded_up(faster[0].seconds)), _time(best.seconds)
        parts.append(f"{faster[0].method} if you need a map in under {needed} ({best.method} takes {instead})")
    if disputed := _disputed(standings):
        parts.append(disputed)
    return "; ".join(parts) + "."


def _lead(best: Standing, following: Standing | None) -> str:
    if following is None:
        return f": no other method was scored on its images; Ins-Del {best.mean:.3f} on {_images(best.n)}"
    if not following.is_significant:
        known = "" if math.isnan(following.behind) else f" ({lag(following)} behind)"
        return (
            f": Ins-Del {best.mean:.3f}, but not significantly better than {following.method}{known} on "
            f"{_images(following.common)}"
        )
    cost = ""
    if best.passes and following.passes / best.passes >= _CHEAPER:
        cost = f" and {following.passes / best.passes:.0f} times more expensive"
    elif following.passes and best.passes / following.passes >= _CHEAPER:
        cost = f", {best.passes / following.passes:.0f} times cheaper"
    return (
        f": {following.method}, the runner-up, is {lag(following)} Ins-Del behind{cost} "
        f"(n = {following.common}, p = {following.p:.2g})"
    )


def lag(standing: Standing) -> str:
    """How far a method is behind the best, with its error where there is one: the same text wherever it is told."""
    error = "" if math.isnan(standing.behind_error) else f" ± {standing.behind_error:.3f}"
    return f"{-standing.behind:.3f}{error}"


def _images(count: int) -> str:
    return "1 image" if count == 1 else f"{count} images"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.2g} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"


def _rounded_up(seconds: float) -> float:
    """To 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(max(seconds, 1e-6)))
    return next(digit * power for digit in (1, 2, 5, 10) if seconds <= digit * power or digit == 10)


def _disputed(standings: Sequence[Standing]) -> str:
    """The best method about which the metrics disagree, if there is one, and what it is that they see."""
    ranks: dict[str, dict[str, float]] = {}
    for name in METRIC_OF:
        scores = scores_by(standings, name)
        order = sorted(scores, key=lambda method: -scores[method])
        if len(order) >= LEAST_COMMON:
            for place, method in enumerate(order):
                ranks.setdefault(method, {})[name] = place / (len(order) - 1)
    spreads = {m: max(own.values()) - min(own.values()) for m, own in ranks.items() if _family(m) != "baseline"}
    disputed = [s.method for s in standings if spreads.get(s.method, 0.0) >= _DISPUTED]
    if not disputed:
        return ""
    method = disputed[0]
    high, low = (pick(ranks[method], key=lambda name: ranks[method][name]) for pick in (min, max))
    return (
        f"the metrics disagree about {method}: {_MEANING[high][0]} than other methods' do "
        f"({_beside_others(method, standings, high)}), but {_MEANING[low][1]} "
        f"({_beside_others(method, standings, low)})"
    )


def _beside_others(method: str, standings: Sequence[Standing], name: str) -> str:
    values = {s.method: s.mean if name == "faithfulness" else s.checks.get(name, math.nan) for s in standings}
    others = [
        value
        for other, value in values.items()
        if other != method and not math.isnan(value) and _family(other) != "baseline"
    ]
    unit = _UNIT.get(name, "rank correlation")
    beside = f", median of the others {statistics.median(others):.2f}" if others else ""
    return f"{unit} {values[method]:.2f}{beside}"


def _family(method: str) -> str:
    try:
        return load_method(method).family
    except AhaError:
        return ""

"""Are two methods told apart by these images? Paired tests, since all methods see the same ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

LEVEL = 0.05


def paired_p(differences: Sequence[float]) -> float:
    """Two-sided p-value of Student's paired test; NaN for fewer than two differences."""
    n = len(differences)
    if n < 2:
        return math.nan
    mean = math.fsum(differences) / n
    variance = math.fsum((d - mean) ** 2 for d in differences) / (n - 1)
    if variance == 0:
        return 1.0 if mean == 0 else 0.0
    return student_tail(mean / math.sqrt(variance / n), n - 1)


def student_tail(t: float, freedom: int) -> float:
    """Probability that Student's t is farther from zero than `t`."""
    return _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function, by its continued fraction on the side where that converges fast."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    tiny = 1e-300
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), tiny)
    fraction = d
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / (1 + term * d or tiny)
            c = 1 + term / c or tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * fraction / a


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction for looking at several comparisons at once; NaN stays NaN."""
    known = sorted((p, name) for name, p in p_values.items() if not math.isnan(p))
    corrected, largest = dict(p_values), 0.0
    for place, (p, name) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - place)))
        corrected[name] = largest
    return corrected

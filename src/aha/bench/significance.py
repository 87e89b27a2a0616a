"""Do two methods really differ on these images? Paired tests, since all methods see the same ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from scipy.special import stdtr

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
    return 2 * float(stdtr(freedom, -abs(t)))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction for looking at several comparisons at once; NaN stays NaN."""
    known = sorted((p, name) for name, p in p_values.items() if not math.isnan(p))
    corrected, largest = dict(p_values), 0.0
    for place, (p, name) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - place)))
        corrected[name] = largest
    return corrected

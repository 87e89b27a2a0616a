"""Do two methods really differ on these images? Paired tests, since all methods see the same ones."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from scipy.stats import ttest_1samp

LEVEL = 0.05
ROUNDING = 1e-9
"""Differences that vary by no more than this share of themselves are equal."""

K = TypeVar("K", bound=Hashable)


def paired_p(differences: Sequence[float]) -> float:
    """Two-sided p-value of Student's paired test; NaN for fewer than two differences.

    Equal differences have no variance from which Student's test could tell what chance does: they have the p-value of
    the sign test, 2 to the power of 1 - n, so that three of them are no proof.
    """
    n = len(differences)
    if n < 2:
        return math.nan
    largest = max(abs(d) for d in differences)
    if max(differences) - min(differences) <= ROUNDING * largest:
        return 1.0 if largest == 0 else 2.0 ** (1 - n)
    return float(ttest_1samp(differences, 0.0).pvalue)


def holm(p_values: Mapping[K, float]) -> dict[K, float]:
    """Holm's correction for looking at several comparisons at once; NaN stays NaN."""
    known = sorted((p for p in p_values.items() if not math.isnan(p[1])), key=lambda pair: pair[1])
    corrected, largest = dict(p_values), 0.0
    for place, (name, p) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - place)))
        corrected[name] = largest
    return corrected

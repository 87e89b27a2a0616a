"""How well a number tells two kinds apart."""

from __future__ import annotations

from collections.abc import Sequence


def area_under_roc(is_positive: Sequence[bool], values: Sequence[float]) -> float | None:
    """How often a positive has the larger value, ties counted half; None where one kind is missing."""
    yes = [value for value, there in zip(values, is_positive, strict=True) if there]
    no = [value for value, there in zip(values, is_positive, strict=True) if not there]
    if not yes or not no:
        return None
    wins = sum((a > b) + 0.5 * (a == b) for a in yes for b in no)
    return wins / (len(yes) * len(no))

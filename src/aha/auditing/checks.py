"""A check compares one measured number with its threshold; a part of an audit is a question with its checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from aha.auditing.thresholds import Limit
from aha.results.score_table import by_image, summarise

Verdict = Literal["passed", "failed", "not judged"]
Shown = tuple[str, int]
"""An image and a class of it."""


@dataclass(frozen=True)
class AuditCheck:
    """One number and its threshold.

    Attributes:
        name: the entry of the thresholds, and more where one entry serves several checks.
        meaning: what was measured.
        side: whether the number has to be at "least" or at "most" the limit.
        limit: the threshold; False where it is not judged.
        shipped: the threshold that is shipped.
        value: what is compared; None if it could not be measured.
        low, high: 95 % interval of the mean, where there is one.
        n: number of images.
        why: why there is no value.
        has_failed: there is no value because measuring failed, and not because something was not given.
    """

    name: str
    meaning: str
    side: Literal["least", "most"]
    limit: Limit
    shipped: Limit
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    why: str = ""
    has_failed: bool = False

    @property
    def verdict(self) -> Verdict:
        """What cannot be measured although it should have been has failed; what is not given is not judged."""
        if self.limit is False:
            return "not judged"
        if self.value is None:
            return "failed" if self.has_failed else "not judged"
        return (
            "passed" if (self.value >= self.limit) == (self.side == "least") or self.value == self.limit else "failed"
        )

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {**vars(self), "verdict": self.verdict}


@dataclass(frozen=True)
class AuditPart:
    """One question of an audit.

    Attributes:
        name: as in the thresholds.
        question: in a sentence.
        checks: what answers it.
        notes: what a reader has to know besides.
    """

    name: str
    question: str
    checks: Sequence[AuditCheck]
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def verdict(self) -> Verdict:
        """A part fails with one of its checks, and passes if all of those that are to be judged passed.

        A check that could not be judged for want of something keeps the part from passing; one that the thresholds
        switch off does not.
        """
        wanted = [check.verdict for check in self.checks if check.limit is not False]
        if "failed" in wanted:
            return "failed"
        return "passed" if wanted and set(wanted) == {"passed"} else "not judged"

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.name,
            "question": self.question,
            "verdict": self.verdict,
            "checks": [check.as_dict() for check in self.checks],
            "notes": list(self.notes),
        }


def averaged(
    values: Mapping[Shown, float], reasons: Sequence[str], by: Literal["mean", "low"] = "mean", **about: Any
) -> AuditCheck:
    """A check of the mean over images, or of the lower end of its 95 % interval; `about` is the rest of the check."""
    if not values:
        why = reasons[0] if reasons else "it was not measured"
        return AuditCheck(**about, why=why, has_failed=bool(reasons))
    found = summarise("", "", "", "", by_image((image, value) for (image, _), value in values.items()))
    has_interval = found.n > 1
    if by == "low" and not has_interval:
        return AuditCheck(**about, n=found.n, why="one image gives no interval")
    low, high = (found.low, found.high) if has_interval else (None, None)
    return AuditCheck(**about, value=found.low if by == "low" else found.mean, low=low, high=high, n=found.n)

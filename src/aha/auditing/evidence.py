"""What an audit's run found, as its parts look at it. No model is touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aha.auditing.checks import Shown
from aha.auditing.record import AuditRequest
from aha.auditing.thresholds import Thresholds
from aha.bench.run_reader import Group, Run
from aha.metrics import load_metric
from aha.results.cards import BASELINES


@dataclass(frozen=True)
class Agreement:
    """How the audited maps agree with those of something else.

    Attributes:
        what: what they were compared with.
        values: rank correlation by image and class.
        by_chance: the same with the other's map of another image.
        why: why there are none.
    """

    what: str
    values: Mapping[Shown, float]
    by_chance: Mapping[Shown, float]
    why: str = ""


@dataclass(frozen=True)
class AuditEvidence:
    """All numbers of one audit.

    Attributes:
        asked: what was asked for.
        run: the run folder, read.
        group: its only group of scores.
        thresholds: what the parts are judged by.
        shipped: the thresholds that are shipped.
        agreement: with other maps, where some were given.
    """

    asked: AuditRequest
    run: Run
    group: Group
    thresholds: Thresholds
    shipped: Thresholds
    agreement: Agreement | None = None

    def values(self, column: str, protocol: str, reference: str = "", method: str | None = None) -> dict[Shown, float]:
        """One column of the audited method, or of another one."""
        key = str(load_metric(protocol)), (column, reference)
        return dict(self.group.values.get(key, {}).get(method or self.asked.method, {}))

    def reasons(self, protocol: str, method: str | None = None) -> list[str]:
        """Why a metric of the audited method, or of another one, has no value, for each image that it failed on."""
        name, whose = load_metric(protocol).name, method or self.asked.method
        own = (failure for failure in self.group.scores.failures if failure.method == whose)
        return [failure.reason for failure in own if failure.metric in ("", name)]


def missing(evidence: AuditEvidence) -> int:
    """Images on which the method or a baseline has not been measured yet, as after an interrupt; each counts for each.

    By the plans of the number of images that is asked for: an earlier audit of more of them may stay unfinished.
    """
    plans = [plan for plan in evidence.run.plans if plan["plan"].get("limit") == evidence.asked.limit]
    wanted = max((plan["images"] for plan in plans), default=0)
    seen: dict[str, set[str]] = {method: set() for method in (evidence.asked.method, *BASELINES)}
    scores = evidence.group.scores
    measured = [(row.method, row.image) for row in scores.rows]
    for method, image in (*measured, *((failure.method, failure.image) for failure in scores.failures)):
        if method in seen:
            seen[method].add(image)
    return sum(max(0, wanted - len(images)) for images in seen.values())


def paired(first: Mapping[Shown, float], second: Mapping[Shown, float]) -> dict[Shown, float]:
    """Differences on what both have."""
    return {name: value - second[name] for name, value in first.items() if name in second}


def names_of(values: Sequence[str]) -> str:
    """A list in words."""
    return " and ".join([", ".join(values[:-1]), values[-1]] if len(values) > 1 else values)

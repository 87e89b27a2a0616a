"""Failures: how many measurements could not be made?"""

from __future__ import annotations

from collections import Counter

from aha.auditing.checks import AuditCheck, AuditPart
from aha.auditing.evidence import AuditEvidence, missing

_MOST_REASONS = 12


def failures(evidence: AuditEvidence) -> AuditPart:
    """The share of the audited method's measurements that failed, over images and metrics."""
    scores, method = evidence.group.scores, evidence.asked.method
    failed = {(f.image, f.metric, f.reason) for f in scores.failures if f.method == method}
    made = {(row.image, row.protocol) for row in scores.rows if row.method == method}
    count = len(failed) + len(made)
    return AuditPart(
        "failures",
        "Could everything be measured?",
        [
            AuditCheck(
                "share",
                "share of the measurements of the method that failed",
                "most",
                evidence.thresholds.failures.share,
                evidence.shipped.failures.share,
                value=len(failed) / count if count else 1.0,
                n=len({image for image, *_ in (*failed, *made)}),
            ),
            AuditCheck(
                "missing",
                "images on which the method or a baseline has not been measured yet; the same command measures them",
                "most",
                0.0,
                0.0,
                value=float(missing(evidence)),
            ),
        ],
    )


def reasons(evidence: AuditEvidence) -> list[tuple[str, str, str, int]]:
    """Method, metric, reason without the image's name, and how often; the most frequent first."""
    counts = Counter(
        (f.method, f.metric, f.reason.removeprefix(f"{f.image}: ")) for f in evidence.group.scores.failures
    )
    return [(*about, count) for about, count in counts.most_common(_MOST_REASONS)]

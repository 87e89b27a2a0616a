"""Repeatability: does the same call give the same map?"""

from __future__ import annotations

from aha.auditing.checks import AuditPart, averaged
from aha.auditing.evidence import AuditEvidence
from aha.auditing.plans import REPEATABILITY

_MEANINGS = {
    "again": "the same map made again",
    "seeds": "maps by other seeds",
    "batch": "the map made in a batch of other images",
    "precision": "the map with passes without gradients in bfloat16",
}


def repeatability(evidence: AuditEvidence) -> AuditPart:
    """Rank correlations with maps that were made again."""
    limits, shipped = evidence.thresholds.repeatability, evidence.shipped.repeatability
    return AuditPart(
        "repeatability",
        "Does the same question give the same map?",
        [
            averaged(
                evidence.values(f"repeat_{name}", REPEATABILITY),
                evidence.reasons(REPEATABILITY),
                name=name,
                meaning=f"rank correlation with {meaning}",
                side="least",
                limit=getattr(limits, name),
                shipped=getattr(shipped, name),
            )
            for name, meaning in _MEANINGS.items()
        ],
        ("A method that draws nothing has 1 for the seeds; one that reads gradients alone has 1 for the precision.",),
    )

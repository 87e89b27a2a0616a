"""Sensitivity: does the map depend on the class and on what the network has learned?"""

from __future__ import annotations

from aha.auditing.checks import AuditPart, averaged
from aha.auditing.evidence import AuditEvidence
from aha.auditing.plans import OTHER_CLASS, WEIGHTS


def sensitivity(evidence: AuditEvidence) -> AuditPart:
    """Rank correlations with maps of another class, and of random weights."""
    limits, shipped = evidence.thresholds.sensitivity, evidence.shipped.sensitivity
    constant = evidence.values("randomisation_constant", WEIGHTS).values()
    notes = []
    if any(constant):
        notes.append(
            f"With random weights, {100 * sum(constant) / len(constant):.0f} % of the maps are constant and count as a "
            "correlation of 0."
        )
    return AuditPart(
        "sensitivity",
        "Does the map depend on the class, and on what the network has learned?",
        [
            averaged(
                evidence.values("class_sensitivity", OTHER_CLASS),
                evidence.reasons(OTHER_CLASS),
                name="other_class",
                meaning="rank correlation with the map of the least probable class",
                side="most",
                limit=limits.other_class,
                shipped=shipped.other_class,
            ),
            averaged(
                evidence.values("randomisation_spearman", WEIGHTS),
                evidence.reasons(WEIGHTS),
                name="weights",
                meaning="rank correlation with the map of the same network with random weights",
                side="most",
                limit=limits.weights,
                shipped=shipped.weights,
            ),
        ],
        notes,
    )

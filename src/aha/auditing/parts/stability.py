"""Stability: does the map stay the same where the answer does?"""

from __future__ import annotations

from aha.auditing.checks import AuditPart, averaged
from aha.auditing.evidence import AuditEvidence
from aha.auditing.plans import STABILITY


def stability(evidence: AuditEvidence) -> AuditPart:
    """Rank correlation under small changes that keep the top class."""
    kept = evidence.values("answers_kept", STABILITY).values()
    notes = ["The changes: slight noise (twice), 5 % brighter and darker, two pixels to the right."]
    if kept:
        notes.append(
            f"{100 * sum(kept) / len(kept):.0f} % of the changed images keep the top class; the others do not count."
        )
    return AuditPart(
        "stability",
        "Does the map stay the same under small changes that do not change the answer?",
        [
            averaged(
                evidence.values("answer_stability", STABILITY),
                evidence.reasons(STABILITY),
                name="answer",
                meaning="rank correlation with the maps of slightly changed images of the same top class",
                side="least",
                limit=evidence.thresholds.stability.answer,
                shipped=evidence.shipped.stability.answer,
            )
        ],
        notes,
    )

"""Reproducibility: does another training of the explainer, or a neighbouring checkpoint, give the same map?"""

from __future__ import annotations

from aha.auditing.checks import AuditCheck, AuditPart, averaged
from aha.auditing.evidence import AuditEvidence


def reproducibility(evidence: AuditEvidence) -> AuditPart:
    """Rank correlation with the maps of `--against`."""
    other = evidence.agreement
    limit, shipped = evidence.thresholds.reproducibility.agreement, evidence.shipped.reproducibility.agreement
    if other is None or not other.values:
        what = "with the maps of another training or checkpoint" if other is None else f"with {other.what}"
        why = "nothing was given with --against" if other is None else other.why
        check = AuditCheck("agreement", f"rank correlation {what}", "least", limit, shipped, why=why)
        return AuditPart("reproducibility", _QUESTION, [check])
    check = averaged(
        other.values,
        [],
        name="agreement",
        meaning=f"rank correlation with {other.what}",
        side="least",
        limit=limit,
        shipped=shipped,
    )
    chance = other.by_chance.values()
    notes = []
    if chance:
        notes.append(f"With the other's map of a different image: {sum(chance) / len(chance):.2f} on average.")
    if min(other.values.values()) > _SAME:
        notes.append("All maps are the same: look whether the other training or checkpoint really is another one.")
    return AuditPart("reproducibility", _QUESTION, [check], notes)


_SAME = 1 - 1e-6
_QUESTION = "Does another training, or a neighbouring checkpoint, give the same map?"

"""The parts of an audit, one file each: from its numbers to a question with its checks."""

from __future__ import annotations

from aha.auditing.checks import AuditPart
from aha.auditing.evidence import AuditEvidence
from aha.auditing.parts.failures import failures
from aha.auditing.parts.fidelity import fidelity
from aha.auditing.parts.repeatability import repeatability
from aha.auditing.parts.reproducibility import reproducibility
from aha.auditing.parts.sensitivity import sensitivity
from aha.auditing.parts.shortcuts import shortcuts
from aha.auditing.parts.stability import stability

_PARTS = (fidelity, repeatability, reproducibility, stability, sensitivity, shortcuts, failures)


def all_parts(evidence: AuditEvidence) -> list[AuditPart]:
    """Every part, in the order of the page."""
    return [judge(evidence) for judge in _PARTS]

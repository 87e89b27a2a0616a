"""The parts of an audit, one file each: from its numbers to a question with its checks."""

from __future__ import annotations

from aha.auditing.checks import Part
from aha.auditing.evidence import Evidence
from aha.auditing.parts.failures import failures
from aha.auditing.parts.fidelity import fidelity
from aha.auditing.parts.repeatability import repeatability
from aha.auditing.parts.reproducibility import reproducibility
from aha.auditing.parts.sensitivity import sensitivity
from aha.auditing.parts.shortcuts import shortcuts
from aha.auditing.parts.stability import stability

_PARTS = (fidelity, repeatability, reproducibility, stability, sensitivity, shortcuts, failures)


def all_parts(evidence: Evidence) -> list[Part]:
    """Every part, in the order of the page."""
    return [judge(evidence) for judge in _PARTS]

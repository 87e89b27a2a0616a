"""What was explained: digests, versions, seeds and data, by which an audit can be repeated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aha.auditing.evidence import AuditEvidence
from aha.core.disk import result_key


def subject(evidence: AuditEvidence) -> dict[str, Any]:
    """Facts by name."""
    return dict(_facts(evidence))


def _facts(evidence: AuditEvidence) -> Iterator[tuple[str, Any]]:
    asked, group = evidence.asked, evidence.group
    plan = next((plan for plan in evidence.run.plans if group.is_of(plan)), None)
    yield "model", asked.model
    yield "weights digest", asked.digest
    yield "method", asked.in_full
    yield from ((name.replace("_", " "), fact) for name, fact in asked.facts.items())
    yield "data", asked.data
    yield "images", len(group.contents)
    yield "digest of the images", result_key(*sorted(group.contents.values()))
    yield "explained class", {"top1": "the predicted one", "label": "the true one"}.get(asked.target, asked.target)
    known = {image: facts.label == target for (image, target), facts in group.facts.items() if facts.label is not None}
    if known and asked.target == "top1":
        yield (
            "accuracy on these images",
            f"{100 * sum(known.values()) / len(known):.0f} % of {len(known)} with a true class",
        )
    yield "seed", asked.seed
    if plan is not None:
        settings: dict[str, Any] = dict(plan.get("settings", {}))
        yield from (
            (name, settings[name]) for name in ("score", "precision", "engine", "preprocessing") if name in settings
        )
        yield "device", plan.get("device", "")
        yield "versions", ", ".join(f"{name} {number}" for name, number in plan.get("versions", {}).items())
    yield "begun", asked.begun

"""What an audit measures: two plans of the bench in one folder, of the method and of what it has to beat."""

from __future__ import annotations

from collections.abc import Sequence

from aha.auditing.record import AuditRequest
from aha.bench.plan import Plan
from aha.data.images import LabelledImage
from aha.results.cards import BASELINES

REPEATABILITY, STABILITY = "repeatability", "answer_stability"
OTHER_CLASS, WEIGHTS = "class_sensitivity", "randomisation(stages=1)"
BORDER, TEXT = "border_mass", "text_mass"
KNOWN = ("black", "mean", "blur")
"""References with which explainers are trained where nothing else is asked for."""
UNSEEN = ("noise", "shuffled", "own_mean")


def ins_del(references: Sequence[str], steps: int) -> str:
    """Insertion minus Deletion with some references, as the text of a metric."""
    return _with("ins_del", references, steps)


def curves(references: Sequence[str], steps: int) -> list[str]:
    """The two curves of which `ins_del` is the difference; together, they ask the model no more."""
    return [_with(name, references, steps) for name in ("deletion", "insertion")]


def _with(name: str, references: Sequence[str], steps: int) -> str:
    return f"{name}(steps={steps}, references=({', '.join(references)}))"


def _fidelity(asked: AuditRequest) -> list[str]:
    """With references that explainers are trained with, and with others."""
    each = (KNOWN, UNSEEN)
    return [text for own in each for text in (ins_del(own, asked.steps), *curves(own, asked.steps))]


def search_of(asked: AuditRequest) -> str:
    """The search that says what is possible; empty where none was asked for."""
    return f"search(budget={asked.headroom})" if asked.headroom else ""


def truth_metric(images: Sequence[LabelledImage]) -> str:
    """The metric that looks at masks, or else boxes, if all images have them."""
    if images and all(image.mask is not None for image in images):
        return "mass_in_truth"
    return "energy_in_box" if images and all(image.boxes for image in images) else ""


def plans_of(asked: AuditRequest, batch_size: int, num_classes: int) -> list[Plan]:
    """The plans, that of the audited method first."""
    truth = (asked.truth,) if asked.truth else ()
    own = [*_fidelity(asked), REPEATABILITY, STABILITY, WEIGHTS, BORDER, TEXT, *truth]
    if num_classes > 1:
        own.insert(-1, OTHER_CLASS)
    others = [*(name for name in BASELINES if name != asked.method), *filter(None, [search_of(asked)])]
    common = {
        "model": asked.model,
        "data": asked.data,
        "targets": (asked.target,),
        "limit": asked.limit,
        "seed": asked.seed,
        "batch_size": batch_size,
        "title": f"Audit of {asked.method} on {asked.model}",
    }
    return [
        Plan(methods=(asked.method,), metrics=tuple(own), maps="float16", **common),  # type: ignore[arg-type]
        Plan(methods=tuple(others), metrics=(*_fidelity(asked), *truth), maps="none", **common),  # type: ignore[arg-type]
    ]

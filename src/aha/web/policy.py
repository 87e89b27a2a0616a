"""Which texts a visitor may name.

Texts are parsed by `aha.core.spec`, so nothing is executed. But some methods read files that their text names, and any
of them can be made to work for a year: both are refused here, before anything is computed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields
from typing import Any

from aha.core.spec import Spec
from aha.errors import SpecError
from aha.learned.library import UNIVERSAL
from aha.methods import Method, load_method
from aha.methods.aha import AHA
from aha.methods.cost import Cost
from aha.models import TargetModel
from aha.perturb.filling import Inpainted
from aha.perturb.rearranged import Neighbours
from aha.perturb.references import (
    Black,
    Blur,
    Mean,
    Noise,
    Reference,
    ReferenceImage,
    White,
    ZerosNormalised,
    load_reference,
)
from aha.targets.base import Objective, read_target
from aha.targets.embeddings import Similarity
from aha.targets.regions import Region

REFERENCES = ("black", "mean", "blur", "white", "noise")
"""References that the page offers; `average` of the first three is what Ins-Del is reported for."""

# Made without asking the model, and from the picture alone.
_PLAIN_REFERENCES = (Black, Mean, Blur, White, Noise, ZerosNormalised)
_LARGEST_NUMBER = 5000
BUDGET = Cost(passes=20_000, bytes=2**30)
"""Of one map. Numbers that are modest one by one can be monstrous together."""
_DEEPEST = 4
_LARGEST_COORDINATE = 100_000
_EXAMPLES = "contrast(281, 282), value(3) or box(10, 20, 90, 80)"
_LARGEST_KERNEL = 301


def allowed_method(text: str, explainers: Collection[str]) -> Method:
    """The method of a text, if visitors may use it: no files but the explainers named at the start, no huge numbers.

    Raises:
        SpecError: It cannot be understood, or is not for visitors.
    """
    method = load_method(text)
    for spec, depth in specs_in(method):
        _check(spec, explainers, depth)
    return method


def check_budget(method: Method, model: TargetModel, size: tuple[int, ...]) -> None:
    """Refuses a method whose map of an image of this size, (H, W) or (D, H, W), would take too long or too much memory.

    Raises:
        SpecError: It would; the figures are named.
    """
    cost = method.cost(model, size)
    if not cost.within(BUDGET):
        raise SpecError(
            f"{str(method)[:80]} needs about {cost} for one map; the explorer allows {BUDGET}; "
            "choose fewer samples or a coarser grid, or use the command line"
        )


def allowed_target(text: str, model: TargetModel) -> Objective:
    """The target of a text, if it reads no file and its numbers are modest.

    Raises:
        AhaError: It cannot be understood, or is not for visitors.
    """
    target = read_target(text, model)
    if not isinstance(target, Objective):
        raise SpecError(f"{text[:80]!r} is no target such as {_EXAMPLES}; classes have views of their own")
    if isinstance(target, Similarity) and (target.picture is not None or isinstance(target.vector, str)):
        raise SpecError("the explorer does not read files that a target names; give text= or the numbers of vector=")
    if isinstance(target, Region) and target.mask is not None:
        raise SpecError("the explorer does not read files that a target names; brush the region")
    _check(target, (), 1)
    return target


def allowed_reference(text: str) -> Reference:
    """The reference of a text, if it is made from the picture alone."""
    reference = load_reference(text)
    if not isinstance(reference, _PLAIN_REFERENCES):
        raise SpecError(f"the explorer has no reference {text[:40]!r}; it has {', '.join(REFERENCES)}")
    if isinstance(reference, Blur) and reference.kernel > _LARGEST_KERNEL:
        raise SpecError(f"the explorer blurs with kernels up to {_LARGEST_KERNEL}")
    return reference


def specs_in(spec: Spec) -> Iterator[tuple[Spec, int]]:
    """A spec and all specs inside it, each with its depth."""
    yield spec, 1
    for field in fields(spec):
        for value in _flat(getattr(spec, field.name)):
            if isinstance(value, Spec):
                yield from ((inner, depth + 1) for inner, depth in specs_in(value))


def _check(spec: Spec, explainers: Collection[str], depth: int) -> None:
    if depth > _DEEPEST:
        raise SpecError(f"the explorer allows methods inside methods, {_DEEPEST} deep at most")
    if isinstance(spec, ReferenceImage | Neighbours):
        raise SpecError("the explorer does not read files that a method names")
    if isinstance(spec, Inpainted):
        raise SpecError("inpainted takes too long for the explorer; imputed is quicker")
    if isinstance(spec, AHA) and spec.explainer not in ("", UNIVERSAL, *explainers):
        raise SpecError("the explorer knows only explainers that were named when it was started: --explainer FOLDER")
    most = _LARGEST_COORDINATE if isinstance(spec, Objective) else _LARGEST_NUMBER
    for field in fields(spec):
        for value in _flat(getattr(spec, field.name)):
            if isinstance(value, int | float) and field.name != "seed" and not abs(value) <= most:
                raise SpecError(f"{spec.name}: {field.name} is beyond {most}, too much for the explorer")


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for element in value:
            yield from _flat(element)
    else:
        yield value

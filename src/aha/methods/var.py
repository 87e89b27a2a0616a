"""VAR: the maps of several classes compete at every place, and the explained class keeps what it wins."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor

from aha.core.progress import in_parts
from aha.core.rows import distinct_rows
from aha.errors import CapabilityError, SpecError
from aha.methods.base import Method, method
from aha.methods.cost import Cost
from aha.methods.distribution import Distribution
from aha.models import Captures, TargetModel

Competition = Literal["shared_scale", "divide", "absolute"]


@method("var", family="wrapper", citation="Walter et al., arXiv:2503.07346")
@dataclass(frozen=True)
class Var(Method):
    """`H'_c = H_c * q_c * 1[q_c > 1/K]` (section 3.3), `q` being a softmax over the maps of K classes (eq. 2).

    `q` is the mean over temperatures t of `softmax over k of t * H_k / s`, with one scale `s`, the largest absolute
    value in the image's K maps, for all classes: so it does not depend on the unit of the maps. The paper writes
    `softmax(H_k / t)` of the maps as they are, which for most methods is 1/K almost everywhere; its published code
    multiplies absolute values, `softmax(10 |H_k|)`, and asks for a margin of 0.01:
    `var(METHOD, temperatures=[10], competition='absolute', threshold=0.01)`.

    The base maps of all classes share the forward passes. A method that gives every class the same map gives nothing.

    Reads: what the inner method reads.
    Cost: one forward pass, and the inner method's for each class that competes; maps of an image share passes.
    Example: `var(grad_cam, classes='top3')`.

    Attributes:
        inner: the base method.
        classes: which classes compete: "top5" (or any number), "top5+min" with the least probable besides,
            "best_vs_worst", a list of indices or names, or "grid" for those that are explained together, as the
            classes of a mosaic are. The explained class always takes part; if need be it replaces the last of the top
            ones, or joins the list.
        temperatures: factors of which the mean is taken.
        threshold: keep a place only where `q_c > 1/K`; a number asks for `q_c - 1/K` above it; False keeps all.
        competition: "shared_scale" as above, "divide" for eq. 2 as it is written, "absolute" as in the code.
    """

    inner: Method
    classes: str | tuple[int | str, ...] = "top5"
    temperatures: tuple[float, ...] = (1, 5, 100)
    threshold: bool | float = True
    competition: Competition = "shared_scale"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.classes, str):
            _rule(self.classes)
        elif len(set(self.classes)) < max(2, len(self.classes)):
            raise SpecError("var: classes must be at least two, each named once")
        if not self.temperatures or min(self.temperatures) <= 0:
            raise SpecError("var: temperatures must be positive, and at least one")
        if not isinstance(self.threshold, bool) and not 0 <= self.threshold < 1:
            raise SpecError(f"var: threshold is True, False or a margin in [0, 1), not {self.threshold}")

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        count = len(self.classes) if not isinstance(self.classes, str) else sum(_rule(self.classes))
        return self.inner.cost(model, size).times(count + 1)

    def among(self, classes: Sequence[int]) -> Self:
        inner = super().among(classes)
        if self.classes != "grid":
            return inner
        if len(set(classes)) < 2:
            raise SpecError("var: classes='grid' compares the classes explained together; explain at least two")
        return replace(inner, classes=tuple(sorted(set(classes))))

    def reads(self, model: TargetModel, size: Sequence[int]) -> Captures:
        return self.inner.reads(model, size)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        return self.with_distributions(model, images, classes)[0]

    def with_distributions(
        self, model: TargetModel, images: Tensor, classes: Tensor
    ) -> tuple[Tensor, list[Distribution]]:
        found = self.distributions(model, images, classes)
        return torch.stack([distribution.discriminative() for distribution in found]), found  # (B, h, w)

    def distributions(self, model: TargetModel, images: Tensor, classes: Tensor) -> list[Distribution]:
        """The competition for each image's class: B distributions, from one forward pass where the method allows."""
        first, where = distinct_rows(images)  # an image may be there for several classes
        with model.caching():
            rivals = self._rivals(model, images, classes)
            wanted = dict.fromkeys((i, c) for i, row in zip(where.tolist(), rivals, strict=True) for c in row)
            maps = self._base_maps(model, images[first], sorted(wanted))
        margin = None if self.threshold is False else 0.0 if self.threshold is True else self.threshold
        results = []
        for image, row, target in zip(where.tolist(), rivals, classes.tolist(), strict=True):
            own = torch.stack([maps[image, c] for c in row])  # (K, h, w)
            shares = class_shares(own, self.temperatures, self.competition)
            labels = tuple(model.class_name(c) for c in row)
            results.append(Distribution(tuple(row), row.index(target), own, shares, labels, margin))
        return results

    def _base_maps(
        self, model: TargetModel, images: Tensor, wanted: list[tuple[int, int]]
    ) -> dict[tuple[int, int], Tensor]:
        """Base maps (h, w) by image and class, about as many rows at once as the model takes, whole images each."""
        maps: dict[tuple[int, int], Tensor] = {}
        most = max(Counter(image for image, _ in wanted).values())
        stride = max(1, model.chunks.size // most)
        for start in in_parts(range(0, len(images), stride)):
            part = [pair for pair in wanted if start <= pair[0] < start + stride]
            rows = torch.tensor([image for image, _ in part], device=images.device)
            chosen = torch.tensor([c for _, c in part], device=images.device)
            maps |= zip(part, self.inner(model, images[rows], chosen).detach(), strict=True)
        return maps

    def _rivals(self, model: TargetModel, images: Tensor, classes: Tensor) -> list[list[int]]:
        """For each row, the classes that compete, its own among them."""
        if not isinstance(self.classes, str):
            listed = [model.class_index(name) if isinstance(name, str) else name for name in self.classes]
            model.check_classes(listed)
            if len(set(listed)) < len(listed):
                raise SpecError(f"var: classes={list(self.classes)} name a class twice")
            return [listed if c in listed else [*listed, c] for c in classes.tolist()]
        if self.classes == "grid":
            raise SpecError("var: classes='grid' needs to know which classes are explained together: use aha.explain")
        top, with_min = _rule(self.classes)
        outputs = model.score.per_class(model.outputs(images))  # (B, classes)
        if outputs.shape[1] < 2:
            raise CapabilityError(f"var compares classes; {model.spec} has one output only")
        order = outputs.argsort(dim=1, descending=True, stable=True)
        return [chosen_rivals(row, c, top, with_min) for row, c in zip(order.tolist(), classes.tolist(), strict=True)]


def chosen_rivals(order: list[int], target: int, top: int, with_min: bool) -> list[int]:
    """The top classes of an order of all of them, and the last if wanted; a target that is missing replaces one."""
    kept = order[: min(top, len(order) - with_min)]
    last = order[-1:] if with_min else []
    if target not in [*kept, *last]:
        kept[-1] = target
    return [*kept, *last]


def class_shares(maps: Tensor, temperatures: Sequence[float], competition: Competition = "shared_scale") -> Tensor:
    """Mean over temperatures of the softmax over classes (K, h, w) of base maps (K, h, w)."""
    factors = torch.tensor(temperatures, dtype=maps.dtype, device=maps.device).view(-1, 1, 1, 1)
    if competition == "divide":
        values = maps / factors
    elif competition == "absolute":
        values = maps.abs() * factors
    else:
        largest = maps.abs().max()
        values = factors * maps / torch.where(largest > 0, largest, 1)
    return values.softmax(dim=1).mean(dim=0)  # (temperatures, K, h, w) -> (K, h, w)


def _rule(text: str) -> tuple[int, bool]:
    """How many of the top classes compete, and whether the least probable does."""
    if text in ("best_vs_worst", "grid"):
        return 1, True
    found = re.fullmatch(r"top([1-9]\d*)(\+min)?", text)
    if found is None or (found[1] == "1" and not found[2]):
        raise SpecError(
            f"var: classes={text!r}; write 'top5', 'top5+min', 'best_vs_worst', 'grid' or a list of indices or names"
        )
    return int(found[1]), bool(found[2])

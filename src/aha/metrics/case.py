"""One image, one class, one map: what metrics look at, with every model output asked for once.

Outputs are cached by the perturbed image they belong to, so two metrics that look at the same image share its forward
pass. The clean image and the references belong to the sample and are shared by all methods.

Shapes: pixels (C, H, W) in [0, 1]; map (H, W); outputs (S, K).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from aha.errors import MetricError
from aha.models import TargetModel
from aha.models.scores import are_usable
from aha.perturb.perturbation import Ties, deletion_masks, insertion_masks, perturbed_outputs, rank_pixels
from aha.perturb.references import Reference, check_reference

Kind = Literal["delete", "insert"]
Explain = Callable[[TargetModel, Tensor, Tensor], Tensor]
"""The explained method itself: model, inputs (B, C, H, W), classes (B,) -> maps (B, H, W)."""


@dataclass(frozen=True)
class Part:
    """Base of what can be removed beside the first pixels of an order: a value, under which outputs are kept.

    Attributes:
        is_shared: it is the same for every map of the image, so that the model is asked about it once.
    """

    is_shared: ClassVar[bool] = False

    @abstractmethod
    def removed(self, case: Case) -> Tensor:
        """Where (H, W) pixels go, True."""


@dataclass(frozen=True)
class Perturbation:
    """One perturbed image of a case: the `count` most important pixels deleted, or alone inserted, or a soft blend.

    `count=None` shows the image through the map itself, scaled to [0, 1], instead of through a hard mask, or without a
    `part` of it.
    """

    kind: Kind
    reference: Reference
    count: int | None
    grid: tuple[int, int] | None = None
    ties: Ties = "random"
    part: Part | None = None


def without(reference: Reference, part: Part) -> Perturbation:
    """The image without a part of it."""
    return Perturbation("delete", reference, None, part=part)


@dataclass
class Sample:
    """What metrics know of one image, at the size of the model's input; shared by every map of it.

    No image of a data set: it holds tensors and what the model answers to them.

    Attributes:
        inputs: normalised model input (C, H, W).
        label: true class, if known.
        mask: true object region (H, W) at model resolution, bool; `ignore` marks pixels that do not count.
        boxes: true boxes (n, 4) as x0, y0, x1, y1 in model-input pixels.
        cells: for mosaics, class -> (y0, x0, y1, x1) of its cell in model-input pixels.
        cache: what metrics keep about the image for all of its maps, under keys that start with their name.
    """

    model: TargetModel
    name: str
    inputs: Tensor
    label: int | None = None
    mask: Tensor | None = None
    ignore: Tensor | None = None
    boxes: Tensor | None = None
    cells: dict[int, tuple[int, int, int, int]] | None = None
    cache: dict[object, object] = field(default_factory=dict)
    _clean: Tensor | None = None
    _references: dict[tuple[Reference, int], Tensor | None] = field(default_factory=dict)
    _blank: dict[tuple[Reference, int], Tensor] = field(default_factory=dict)

    @property
    def pixels(self) -> Tensor:
        """The image (C, H, W) in [0, 1]."""
        return self.model.to_pixels(self.inputs)

    @property
    def clean(self) -> Tensor:
        """Outputs (K,) of the untouched image, asked for once."""
        if self._clean is None:
            self._clean = self.model.outputs(self.inputs[None])[0]
        return self._clean

    def know_clean(self, outputs: Tensor) -> None:
        """Takes the outputs (K,) of the untouched image from a caller who has them."""
        self._clean = outputs

    def check_outputs(self) -> None:
        """Refuses an image of which the model is known to say what is no number: no score of it means anything."""
        if self._clean is not None and not bool(are_usable(self._clean)):
            raise MetricError(
                f"{self.name}: the model's outputs for it are NaN or infinite, so nothing can be measured"
            )

    def reference(self, chosen: Reference, target: int) -> Tensor:
        """The reference (C, H, W) of this image; made once per class, since some depend on it."""
        key = (chosen, target)
        if key not in self._references:
            check_reference(chosen, self.model, self.inputs.shape)
            classes = torch.tensor([target], device=self.model.device)
            picture = chosen(self.model, self.pixels[None], classes)[0]
            self._references[key] = picture if bool(picture.isfinite().all()) else None
        found = self._references[key]
        if found is None:
            raise MetricError(f"{self.name}: {chosen} does not hide the class, so it cannot be used")
        return found

    def blank(self, chosen: Reference, target: int) -> Tensor | None:
        """Outputs (K,) of the reference alone, if they are known."""
        return self._blank.get((chosen, target))

    def know_blank(self, chosen: Reference, target: int, outputs: Tensor) -> None:
        """Takes the outputs (K,) of the reference alone, for all maps of the image."""
        self._blank[chosen, target] = outputs


@dataclass
class Case:
    """A sample, the explained class, and the map to be scored.

    Attributes:
        values: the map (H, W) at model resolution.
        method: its text, for messages.
        explain: recomputes maps of the same method; None for maps from elsewhere.
        reseeded: the same with another seed.
        seconds, forward_images, backward_images, peak_bytes: what the map cost, if known.
        seed: of ties and of whatever a metric draws.
        walks: how far adaptive steps have come: the places of each curve, and whether they are enough.
    """

    sample: Sample
    target: int
    values: Tensor
    method: str = "map"
    explain: Explain | None = None
    reseeded: Callable[[int], Explain] | None = None
    seconds: float | None = None
    forward_images: float | None = None
    backward_images: float | None = None
    peak_bytes: float | None = None
    seed: int = 0
    walks: dict[tuple[object, ...], tuple[Sequence[Sequence[int]], bool]] = field(default_factory=dict)
    _outputs: dict[Perturbation, Tensor] = field(default_factory=dict)
    _ranks: dict[tuple[tuple[int, int] | None, Ties], Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.values.shape != self.sample.inputs.shape[1:]:
            raise MetricError(
                f"{self.sample.name}: the map of {self.method} is {tuple(self.values.shape)}, "
                f"the model input {tuple(self.sample.inputs.shape[1:])}; bring the map to the input's size"
            )
        if not bool(self.values.isfinite().all()):
            raise MetricError(f"{self.sample.name}: the map of {self.method} has values that are not finite")
        self.sample.check_outputs()

    @property
    def model(self) -> TargetModel:
        """The explained model."""
        return self.sample.model

    @property
    def num_pixels(self) -> int:
        """Pixels of the map."""
        return self.values.numel()

    def ranks(self, grid: tuple[int, int] | None = None, ties: Ties = "random") -> Tensor:
        """Ranks (H, W) of the map's pixels, sorted once per rule."""
        if (grid, ties) not in self._ranks:
            self._ranks[grid, ties] = rank_pixels(self.values, seed=self.seed, ties=ties, grid=grid)
        return self._ranks[grid, ties]

    def unit_map(self) -> Tensor:
        """The map (H, W) scaled to [0, 1]; all zero if it is constant."""
        low, high = self.values.min(), self.values.max()
        return torch.zeros_like(self.values) if low == high else (self.values - low) / (high - low)

    def scores(self, outputs: Tensor) -> Tensor:
        """The model's score (S,) of the explained class in outputs (S, K)."""
        return self.model.score(outputs, self._classes(len(outputs), self.target))

    def recognised(self, outputs: Tensor, class_index: int) -> Tensor:
        """Where (S,) the outputs (S, K) still say the class: the top one, or above one half for sigmoid scores."""
        score = self.model.score
        if not score.is_probability:
            raise MetricError(f"accuracy needs a classifier; {self.model.spec} is scored by {score.name}")
        if score.name == "sigmoid" or outputs.shape[1] == 1:
            return score(outputs, self._classes(len(outputs), class_index)) > 0.5
        return outputs.argmax(dim=1) == class_index

    def margins(self, outputs: Tensor, class_index: int) -> Tensor:
        """How far (S,) the class is above the limit at which it is recognised: the best of the others, or one half."""
        score = self.model.score
        if score.name == "sigmoid" or outputs.shape[1] == 1:
            return score(outputs, self._classes(len(outputs), class_index)) - 0.5
        others = outputs.index_fill(1, torch.tensor([class_index], device=outputs.device), -torch.inf)
        return outputs[:, class_index] - others.amax(dim=1)

    def _classes(self, count: int, index: int) -> Tensor:
        return torch.full((count,), index, device=self.model.device)

    def outputs(self, wanted: Sequence[Perturbation]) -> Tensor:
        """Outputs (S, K) of perturbed images, each asked of the model at most once."""
        self.prepare(wanted)
        found = torch.stack([self._outputs[self._canonical(p)] for p in wanted])
        if not bool(are_usable(found).all()):
            raise MetricError(f"{self.sample.name}: the model's outputs for perturbed images are NaN or infinite")
        return found

    def prepare(self, wanted: Iterable[Perturbation]) -> None:
        """Asks the model for all outputs that are not known yet, in one stream of full batches."""
        ask_model([(self, perturbation) for perturbation in wanted])

    def is_known(self, perturbation: Perturbation) -> bool:
        """Has the model answered to this image?"""
        return self._canonical(perturbation) in self._outputs

    def missing(self, wanted: Iterable[Perturbation]) -> list[Perturbation]:
        """What the model has to be asked, each image once; what all maps of the image share is taken from there."""
        unknown = [p for p in dict.fromkeys(map(self._canonical, wanted)) if p not in self._outputs]
        for perturbation in unknown:
            if perturbation.count == 0:  # nothing deleted is the clean image, nothing inserted the reference
                is_clean, chosen = perturbation.kind == "delete", perturbation.reference
                shared = self.sample.clean if is_clean else self.sample.blank(chosen, self.target)
                if shared is not None:
                    self._outputs[perturbation] = shared
            elif perturbation.part is not None:
                known = self.sample.cache.get((perturbation, self.target))
                if isinstance(known, Tensor):
                    self._outputs[perturbation] = known
        return [p for p in unknown if p not in self._outputs]

    def know(self, perturbation: Perturbation, outputs: Tensor) -> None:
        """Takes the outputs (K,) of one of the `missing` images."""
        self._outputs[perturbation] = outputs
        if perturbation.count == 0:
            self.sample.know_blank(perturbation.reference, self.target, outputs)
        if perturbation.part is not None and perturbation.part.is_shared:
            self.sample.cache[perturbation, self.target] = outputs

    def _canonical(self, perturbation: Perturbation) -> Perturbation:
        """One name per picture: all deleted is nothing inserted, all inserted is nothing deleted."""
        if perturbation.count == self.num_pixels:
            other: Kind = "insert" if perturbation.kind == "delete" else "delete"
            perturbation = Perturbation(other, perturbation.reference, 0, perturbation.grid, perturbation.ties)
        if perturbation.count == 0:  # which ranking left the pixels alone does not matter
            perturbation = Perturbation(perturbation.kind, perturbation.reference, 0)
        return perturbation

    def mask(self, perturbation: Perturbation) -> Tensor:
        """The keep mask (H, W) of a perturbed image: boolean, or soft where it shows the map itself."""
        if perturbation.part is not None:
            return ~perturbation.part.removed(self)
        if perturbation.count is None:
            keep = self.unit_map()
            return keep if perturbation.kind == "insert" else 1 - keep
        ranks = self.ranks(perturbation.grid, perturbation.ties)
        make = deletion_masks if perturbation.kind == "delete" else insertion_masks
        return make(ranks, torch.tensor([perturbation.count], device=ranks.device))[0]


def ask_model(wanted: Iterable[tuple[Case, Perturbation]]) -> None:
    """Asks the model for all outputs that are not known yet, those of several cases in one stream of full batches."""
    by_case: dict[int, tuple[Case, list[Perturbation]]] = {}
    for case, perturbation in wanted:
        by_case.setdefault(id(case), (case, []))[1].append(perturbation)
    missing = [(case, p) for case, perturbations in by_case.values() for p in case.missing(perturbations)]
    if not missing:
        return
    pairs: dict[tuple[int, Reference], int] = {}  # an image and what is shown in its place, in the order of rows
    owners = [pairs.setdefault((id(case), p.reference), len(pairs)) for case, p in missing]
    shown = [(by_case[key][0], chosen) for key, chosen in pairs]
    model = shown[0][0].model
    results = perturbed_outputs(
        model,
        torch.stack([case.sample.pixels for case, _ in shown]),
        torch.stack([case.sample.reference(chosen, case.target) for case, chosen in shown]),
        torch.tensor(owners, device=model.device),
        lambda part: _stacked([case.mask(p) for case, p in missing[part]]),
        [chosen for _, chosen in shown],
    )
    for (case, perturbation), outputs in zip(missing, results, strict=True):
        case.know(perturbation, outputs)


def _stacked(masks: list[Tensor]) -> Tensor:
    """Keep masks (S, H, W); soft ones turn the whole stack into floats, hard stacks stay boolean."""
    is_hard = all(mask.dtype == torch.bool for mask in masks)
    return torch.stack(masks if is_hard else [mask.float() for mask in masks])

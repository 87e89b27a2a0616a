"""One image, one class, one map: what metrics look at, with every model output asked for once.

Outputs are cached by the perturbed image they belong to, so two metrics that look at the same image share its forward
pass. The clean image and the references belong to the sample and are shared by all methods.

Shapes: pixels (C, H, W) in [0, 1]; map (H, W); outputs (S, K).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from aha.errors import MetricError
from aha.models import TargetModel
from aha.perturb.perturbation import Ties, deletion_masks, insertion_masks, perturbed_outputs, rank_pixels
from aha.perturb.references import Reference

Kind = Literal["delete", "insert"]
Explain = Callable[[TargetModel, Tensor, Tensor], Tensor]
"""The explained method itself: model, inputs (B, C, H, W), classes (B,) -> maps (B, H, W)."""


@dataclass(frozen=True)
class Perturbation:
    """One perturbed image of a case: the `count` most important pixels deleted, or alone inserted, or a soft blend.

    `count=None` shows the image through the map itself, scaled to [0, 1], instead of through a hard mask.
    """

    kind: Kind
    reference: Reference
    count: int | None
    grid: tuple[int, int] | None = None
    ties: Ties = "random"


@dataclass
class Sample:
    """One image with what is known about it; shared by every map of it.

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

    def reference(self, chosen: Reference, target: int) -> Tensor:
        """The reference (C, H, W) of this image; made once per class, since some depend on it."""
        key = (chosen, target)
        if key not in self._references:
            classes = torch.tensor([target], device=self.model.device)
            picture = chosen(self.model, self.pixels[None], classes)[0]
            self._references[key] = picture if bool(picture.isfinite().all()) else None
        found = self._references[key]
        if found is None:
            raise MetricError(f"{self.name}: {chosen} cannot be built, the class survives it")
        return found

    def blank(self, chosen: Reference, target: int) -> Tensor:
        """Outputs (K,) of the reference alone, asked for once."""
        key = (chosen, target)
        if key not in self._blank:
            shown = self.model.to_inputs(self.reference(chosen, target)[None])
            self._blank[key] = self.model.outputs(shown)[0]
        return self._blank[key]


@dataclass
class Case:
    """A sample, the explained class, and the map to be judged.

    Attributes:
        values: the map (H, W) at model resolution.
        method: its text, for messages.
        explain: recomputes maps of the same method; None for maps from elsewhere.
        seconds, forward_images, backward_images, peak_bytes: what the map cost, if known.
        seed: of ties and of whatever a metric draws.
    """

    sample: Sample
    target: int
    values: Tensor
    method: str = "map"
    explain: Explain | None = None
    seconds: float | None = None
    forward_images: float | None = None
    backward_images: float | None = None
    peak_bytes: float | None = None
    seed: int = 0
    _outputs: dict[Perturbation, Tensor] = field(default_factory=dict)
    _ranks: dict[tuple[tuple[int, int] | None, Ties], Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if tuple(self.values.shape) != tuple(self.sample.inputs.shape[-2:]):
            raise MetricError(
                f"{self.sample.name}: the map of {self.method} is {tuple(self.values.shape)}, "
                f"the model input {tuple(self.sample.inputs.shape[-2:])}; bring the map to the input's size"
            )
        if not bool(self.values.isfinite().all()):
            raise MetricError(f"{self.sample.name}: the map of {self.method} has values that are not finite")

    @property
    def model(self) -> TargetModel:
        """The judged model."""
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

    def _classes(self, count: int, index: int) -> Tensor:
        return torch.full((count,), index, device=self.model.device)

    def outputs(self, wanted: Sequence[Perturbation]) -> Tensor:
        """Outputs (S, K) of perturbed images, each asked of the model at most once."""
        self.prepare(wanted)
        return torch.stack([self._outputs[self._canonical(p)] for p in wanted])

    def prepare(self, wanted: Iterable[Perturbation]) -> None:
        """Asks the model for all outputs that are not known yet, in one stream of full batches."""
        missing = [p for p in dict.fromkeys(map(self._canonical, wanted)) if p not in self._outputs]
        hard: list[Perturbation] = []
        for perturbation in missing:
            if perturbation.count == 0:  # nothing deleted is the clean image, nothing inserted the reference
                is_clean = perturbation.kind == "delete"
                sample, chosen = self.sample, perturbation.reference
                self._outputs[perturbation] = sample.clean if is_clean else sample.blank(chosen, self.target)
            else:
                hard.append(perturbation)
        if not hard:
            return
        references = list(dict.fromkeys(p.reference for p in hard))
        pictures = torch.stack([self.sample.reference(chosen, self.target) for chosen in references])
        pixels = self.sample.pixels.expand_as(pictures)
        owners = torch.tensor([references.index(p.reference) for p in hard], device=pixels.device)
        results = perturbed_outputs(self.model, pixels, pictures, owners, lambda part: self._masks(hard[part]))
        self._outputs |= dict(zip(hard, results, strict=True))

    def _canonical(self, perturbation: Perturbation) -> Perturbation:
        """One name per picture: all deleted is nothing inserted, all inserted is nothing deleted."""
        if perturbation.count == self.num_pixels:
            other: Kind = "insert" if perturbation.kind == "delete" else "delete"
            perturbation = Perturbation(other, perturbation.reference, 0, perturbation.grid, perturbation.ties)
        if perturbation.count == 0:  # which ranking left the pixels alone does not matter
            perturbation = Perturbation(perturbation.kind, perturbation.reference, 0)
        return perturbation

    def _masks(self, perturbations: Sequence[Perturbation]) -> Tensor:
        """Keep masks (S, H, W); soft ones turn the whole stack into floats, hard stacks stay boolean."""
        masks = [self._mask(p) for p in perturbations]
        is_hard = all(mask.dtype == torch.bool for mask in masks)
        return torch.stack(masks if is_hard else [mask.float() for mask in masks])

    def _mask(self, perturbation: Perturbation) -> Tensor:
        if perturbation.count is None:
            keep = self.unit_map()
            return keep if perturbation.kind == "insert" else 1 - keep
        ranks = self.ranks(perturbation.grid, perturbation.ties)
        make = deletion_masks if perturbation.kind == "delete" else insertion_masks
        return make(ranks, torch.tensor([perturbation.count], device=ranks.device))[0]

"""Amortized Hybrid Attribution: a network that has learned the ranking, with optional refinement per image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import torch
from torch import Tensor

from aha.core.axes import is_volume
from aha.errors import AhaError, ModelError, SpecError
from aha.learned.explainer import Explainer
from aha.learned.library import UNIVERSAL, explainer_of
from aha.learned.quality import Quality, predicted, shipped_head
from aha.learned.refinement import RefinementConfig, Refining
from aha.learned.slopes import moved
from aha.methods.base import Method, method
from aha.methods.cost import Cost
from aha.models import NOTHING, Captures, TargetModel

MOST_STEPS = 6
"""Gradient steps that "auto" may take."""
_ONE_LOOK = 2  # a forward and a backward pass
BUDGET_LOOKS = 25
"""Looks of an image on which a budget is spent."""


@method("aha", family="learned", needs={"features"}, volumes=True, citation="Schinagl et al., arXiv 2604.05819 (2026)")
@dataclass(frozen=True)
class AHA(Method):
    """A trained explainer's map in one look (section 3.2), refined by a few gradient steps if asked (section 3.3).

    Formula: `map = decoder(features, evidence for the class)`, all read of the frozen model.
    Volumes are drawn slice by slice on one scale, from evidence over all voxels, by the universal explainer of networks
    with stages. It was trained on photographs, and never on volumes.

    Reads: the features of several stages and, by a gradient, the evidence in them for the class.
    Cost: one forward and one backward pass; a refinement step, 2 `steps` of each.
    Example: `aha(refine=3)`.

    Attributes:
        explainer: its folder, or its repository on the Hugging Face hub; "universal" for the one that reads every
            network. Empty: the one that belongs to the model, remembered on this machine (`aha train --remember`) or
            shipped with the package, else the universal one.
        looks: forward and backward passes that a map is made of, an odd number. After the first, each pair looks at the
            image without the map's top pixels and at these alone, and the map moves to where its Deletion falls and
            its Insertion rises. A learned correction takes the first pair where there is one.
        refine: gradient steps T for each image; "auto" stops each image when its own soft objective settles.
        budget: passes per image on average, forward and backward. The maps that are predicted to be poorest, which
            gain most, are made of 25 looks, as many as the budget allows; whether a map is one of them does not
            depend on the others. For photographs like those of ImageNet the mean comes near the budget.
        learning_rate: of the refinement; the explainer's own by default.
        steps: perturbation steps S of a sequence in the refinement, the explainer's own by default; a gradient step
            costs 2 S forward and backward passes.
        calibrated: rescale the map, keeping its order, so that its mass follows the model's mean response.
    """

    explainer: str = ""
    looks: int = 1
    refine: int | Literal["auto"] = 0
    budget: float | None = None
    learning_rate: float | None = None
    steps: int | None = None
    calibrated: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.looks < 1 or self.looks % 2 == 0:
            raise SpecError(f"aha: looks is an odd number: the first, and two for each round; not {self.looks!r}")
        if self.refine != "auto" and (not isinstance(self.refine, int) or self.refine < 0):
            raise SpecError(f"aha: refine is a number of steps or 'auto', not {self.refine!r}")
        stated = (value for value in (self.steps, self.learning_rate) if value is not None)
        if any(value <= 0 for value in stated):
            raise SpecError("aha: steps and learning_rate must be positive")
        if self.budget is not None and (self.budget < _ONE_LOOK or self.refine or self.looks > 1):
            raise SpecError(
                f"aha: budget is a mean number of passes from {_ONE_LOOK} on, and takes the place of looks and refine"
            )

    @property
    def needs(self) -> frozenset[str]:
        """Gradients too, if there is more than one look."""
        return self.required | ({"gradients"} if self.refine or self.budget or self.looks > 1 else set())

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        rounds = MOST_STEPS if self.refine == "auto" else self.refine
        steps = self.steps or (self._refinement(self._explainer(model)).steps if rounds else 0)
        # A forward and a backward pass of each perturbed image; the masks of one round are there at once.
        looks = self.looks if self.budget is None else BUDGET_LOOKS
        if looks > 1:
            explainer = self._explainer(model)
            # The correction reads the whole image in its own way.
            looks += explainer.config.form == "own" and self._reviser(explainer, model) is not None
        return Cost(2 * looks + 4 * steps * rounds, 16 * max(steps, min(looks, 3)) * prod(size))

    def reads(self, model: TargetModel, size: Sequence[int]) -> Captures:
        try:
            return self._explainer(model, size).reads(model, size)
        except AhaError:  # the map itself says why there is none
            return NOTHING

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        explainer = self._explainer(model, images.shape[1:])
        maps = self._maps(explainer, model, images, classes)  # (B, H, W)
        return explainer.calibrated(maps) if self.calibrated else maps

    def _maps(self, explainer: Explainer, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        if self.budget is not None:
            return self._within_budget(explainer, model, images, classes)
        if self.refine == 0 and self.looks == 1:
            return explainer.maps(model, images, classes)
        reviser = self._reviser(explainer, model, images.shape[1:]) if self.looks > 1 else None
        rounds = (self.looks - 1) // 2 - (reviser is not None)
        config = self._refinement(explainer)

        def run(part: slice) -> Tensor:
            shown = (model, images[part], classes[part])
            start = None
            if self.looks > 1:
                start = moved(*shown, explainer.maps(*shown, reviser), rounds)
                if self.refine == 0:
                    return start
            refining = Refining.start(explainer, *shown, config, start=start)
            return refining.until_settled(MOST_STEPS)[0] if self.refine == "auto" else refining.after(self.refine)

        return torch.cat(model.chunks.run(run, len(images)))

    def _within_budget(self, explainer: Explainer, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        """Maps (B, H, W) of one look; those that are predicted to be poorest get more."""
        maps = explainer.maps(model, images, classes)
        foreseen = predicted(model, model.outputs(images), classes, explainer.calibrated(maps))  # as it was fitted
        if len(foreseen) < len(maps):
            raise ModelError(
                f"aha: no gain can be predicted for {model.spec}, whose score is no probability; use looks="
            )
        share = (self.budget - _ONE_LOOK) / (2 * BUDGET_LOOKS)  # type: ignore[operator]
        limit = shipped_head().least_gain(share)  # type: ignore[union-attr]
        rows = [row for row, quality in enumerate(foreseen) if quality.gain > limit]
        if rows:
            more = replace(self, budget=None, looks=BUDGET_LOOKS)
            maps[rows] = more._maps(explainer, model, images[rows], classes[rows])
        return maps

    def _reviser(self, explainer: Explainer, model: TargetModel, size: Sequence[int] | None = None) -> Explainer | None:
        """What corrects the maps: the explainer itself or else the universal one, if it has learned to."""
        found = explainer if explainer.revision is not None else explainer_of(model, UNIVERSAL, size)
        return found if found.revision is not None else None

    def refusal(self, model: TargetModel, size: Sequence[int] | None = None) -> str:
        explainer = self._explainer(model, size)
        if _is_of_volumes(model, size) and (why := self._refused_volumes(explainer)):
            return why
        needs_gradients = "gradients" in self.needs or explainer.config.evidence == "backward"
        return model.gradient_refusal(size) if needs_gradients else ""

    def _refused_volumes(self, explainer: Explainer) -> str:
        """Why it explains no volumes; empty where it does."""
        if explainer.config.form != "stages":
            return "of volumes, it reads 3-D features of stages, not tokens, and not by an explainer of one network"
        return "of volumes, it draws maps in a single pass only" if self._has_more_passes else ""

    def facts(self, model: TargetModel, size: Sequence[int] | None = None) -> dict[str, object]:
        """Which explainer drew the map."""
        explainer = self._explainer(model, size)
        return {"explainer": explainer.config.name, "explainer_digest": explainer.digest}

    def quality(self, model: TargetModel, outputs: Tensor, classes: Tensor, maps: Tensor) -> list[Quality]:
        """Of maps of one look, which predictions were fitted to."""
        return [] if self._has_more_passes or maps.dim() > 3 else predicted(model, outputs, classes, maps)

    @property
    def _has_more_passes(self) -> bool:
        return self.looks > 1 or bool(self.refine) or self.budget is not None

    def _refinement(self, explainer: Explainer) -> RefinementConfig:
        """The explainer's own, with what is stated in its place."""
        own = RefinementConfig.of(explainer)
        return replace(own, learning_rate=self.learning_rate or own.learning_rate, steps=self.steps or own.steps)

    def fingerprint(self, model: TargetModel) -> str:
        explainer = self._explainer(model)
        found = f"{super().fingerprint(model)} {explainer.digest}"
        reviser = None if self.looks == 1 else self._reviser(explainer, model)
        return found if reviser is None else f"{found} {reviser.digest}"

    def _explainer(self, model: TargetModel, size: Sequence[int] | None = None) -> Explainer:
        return explainer_of(model, self.explainer, size)


def _is_of_volumes(model: TargetModel, size: Sequence[int] | None) -> bool:
    return is_volume(model.input_shape(None) if size is None else size)

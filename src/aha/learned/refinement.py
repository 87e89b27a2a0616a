"""Test-time refinement (paper section 3.3): a few gradient steps on a copy of the decoder, for each image its own.

Deterministic: final temperature, no noise, a fixed grid, steps at the middles of their strata. The references take
turns along the steps of a sequence, so that every gradient step sees all of them at the cost of one, and losses of
successive steps can be compared. A batch is refined in parallel: each image has its own copy of the decoder's
parameters, stacked along a first axis, so that the result equals refining one image at a time. The explainer itself is
not touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map

from aha.core.progress import in_parts
from aha.learned.decoder import Given
from aha.learned.explainer import Explainer
from aha.learned.loss import ObjectiveConfig, objective
from aha.learned.regions import grid_regions, stratified_counts
from aha.models import TargetModel
from aha.perturb.references import Black, Blur, Mean, Reference


@dataclass(frozen=True)
class RefinementConfig:
    """Choices of the refinement.

    Attributes:
        learning_rate: of Adam, fresh for each image.
        epsilon: of Adam. Large enough that gradients which are rounding errors move nothing, so that an image's map
            does not depend on the images beside it.
        grid: cells along the shorter side.
        steps: perturbation steps S per sequence.
        clip: largest norm of an image's gradient.
        references: they take turns along the steps.
        objective: weights of the loss.
    """

    learning_rate: float = 3e-3
    epsilon: float = 1e-5
    grid: int = 56
    steps: int = 8
    clip: float = 1.0
    references: tuple[Reference, ...] = (Black(), Mean(), Blur())
    objective: ObjectiveConfig = field(default_factory=lambda: ObjectiveConfig(noise=0.0))

    @classmethod
    def of(cls, explainer: Explainer) -> RefinementConfig:
        """As the explainer's training says: its rate, grid, steps and loss; the defaults where it says nothing."""
        said = explainer.config.training
        if "refine_rate" not in said:
            return cls()
        return cls(
            learning_rate=said["refine_rate"],
            grid=said["refine_grid"],
            steps=said["refine_steps"],
            objective=ObjectiveConfig(**{**said["objective"], "noise": 0.0}),
        )

    @property
    def cost(self) -> int:
        """Perturbed images per image and gradient step, each forward and backward."""
        return 2 * self.steps


@dataclass
class Refining:
    """A batch on its way, one decoder copy per image: `maps` and `losses` as they are now, `step` to go on.

    Attributes:
        response_model: the model that is asked about perturbed images.
        pixels: images (B, C, H, W) in [0, 1].
        references: (R, B, C, H, W), one per kind.
        given: what the maps are drawn from.
        copies: the decoder's parameters, each stacked along a first axis (B, ...).
        offset: added to what the copies draw (B, H, W), or 0 for each (B, 1, 1).
    """

    explainer: Explainer
    response_model: TargetModel
    config: RefinementConfig
    pixels: Tensor
    classes: Tensor
    references: Tensor
    given: Given
    copies: dict[str, Tensor]
    offset: Tensor

    def __post_init__(self) -> None:
        self.explainer.eval()
        self._optimiser = torch.optim.Adam(self.copies.values(), lr=self.config.learning_rate, eps=self.config.epsilon)
        self._drawn: Tensor | None = None
        self._losses: Tensor | None = None

    @classmethod
    def start(
        cls,
        explainer: Explainer,
        target: TargetModel,
        inputs: Tensor,
        classes: Tensor,
        config: RefinementConfig | None = None,
        *,
        response_model: TargetModel | None = None,
        start: Tensor | None = None,
    ) -> Refining:
        """Every image with the explainer's own weights, and with what its maps lack of those to start from.

        Args:
            explainer: its decoder is copied.
            target: gives features and class vectors.
            inputs: images (B, C, H, W) as the target takes them.
            classes: explained classes (B,).
            config: choices; by default those of the explainer's training.
            response_model: whose answers the maps move towards, if it is another than the target (paper A.3).
            start: better maps (B, H, W) to start from than the explainer's own, such as those of more looks.
        """
        config = config or RefinementConfig.of(explainer)
        with torch.inference_mode(False), torch.no_grad():
            pixels = target.to_pixels(inputs.clone())
            given = explainer.read(target, explainer.look(target, inputs), classes)
            offset = pixels.new_zeros(len(inputs), 1, 1, dtype=torch.float32)
            if start is not None:
                offset = start.clone() - explainer(given, (int(inputs.shape[-2]), int(inputs.shape[-1])))
            return cls(
                explainer,
                response_model or target,
                config,
                pixels,
                classes,
                torch.stack([reference(target, pixels, classes) for reference in config.references]),
                tree_map(lambda tensor: tensor.detach().clone(), given),
                {
                    name: value.detach().expand(len(inputs), *value.shape).clone().requires_grad_()
                    for name, value in explainer.decoder.named_parameters()
                },
                offset,
            )

    def course(self, rounds: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Maps (B, H, W) and soft losses (B,) after 0, 1, ..., `rounds` gradient steps.

        The loss that comes with a map was measured on it, so the last map costs one more measurement than steps.
        """
        for step in range(rounds + 1):
            if step:
                self.step()
            yield self.maps(), self.losses()

    def after(self, rounds: int) -> Tensor:
        """Maps (B, H, W) after `rounds` gradient steps T; nothing is measured after the last one."""
        for _ in in_parts(range(rounds)):
            self.step()
        return self.maps()

    def until_settled(self, most: int, *, improvement: float = 0.01) -> tuple[Tensor, Tensor]:
        """Maps (B, H, W) and the gradient steps (B,) that each image took: at most `most`.

        An image is done when a step lowers its own soft loss by less than `improvement`; the others go on without it.
        It keeps the map with its lowest loss.
        """
        refining, going = self, torch.arange(len(self.pixels), device=self.pixels.device)  # rows still refined
        best_maps, best_losses = self.maps(), self.losses()
        taken = torch.zeros_like(going)
        for _ in in_parts(range(most)):
            refining.step()
            taken[going] += 1
            maps, losses = refining.maps(), refining.losses()
            gain = best_losses[going] - losses
            better = gain > 0
            best_maps[going[better]], best_losses[going[better]] = maps[better], losses[better]
            goes_on = gain >= improvement
            if not goes_on.any():
                break
            if not goes_on.all():
                going, refining = going[goes_on], refining.subset(goes_on)
        return best_maps, taken

    def maps(self) -> Tensor:
        """The maps (B, H, W) of the copies as they are."""
        if self._drawn is None:
            size = (self.pixels.shape[-2], self.pixels.shape[-1])
            decoder = self.explainer.decoder

            def draw(parameters: dict[str, Tensor], given: Given) -> Tensor:
                batch = tree_map(lambda tensor: tensor[None], given)
                maps: Tensor = functional_call(decoder, parameters, (batch, size))
                return maps[0]

            with torch.inference_mode(False), torch.enable_grad():
                self._drawn = vmap(draw)(self.copies, self.given) + self.offset
        return self._drawn.detach()

    def losses(self) -> Tensor:
        """The objective (B,) of the maps."""
        if self._losses is None:
            self.maps()
            assert self._drawn is not None
            with torch.inference_mode(False), torch.enable_grad():
                self._losses = self._objective(self._drawn)
        return self._losses.detach()

    def step(self) -> None:
        """One gradient step of every copy."""
        self.losses()
        assert self._losses is not None
        self._optimiser.zero_grad()
        with torch.inference_mode(False), torch.enable_grad():
            self._losses.sum().backward()  # type: ignore[no-untyped-call]  # images share nothing
        _clip_each(self.copies, self.config.clip)
        self._optimiser.step()
        self._drawn = self._losses = None

    def subset(self, rows: Tensor) -> Refining:
        """The same work on some of the images (B,) only."""
        part = replace(
            self,
            pixels=self.pixels[rows],
            classes=self.classes[rows],
            references=self.references[:, rows],
            given=tree_map(lambda tensor: tensor[rows], self.given),
            offset=self.offset[rows],
            copies={name: value.detach()[rows].clone().requires_grad_() for name, value in self.copies.items()},
        )
        for former, copy in zip(self.copies.values(), part.copies.values(), strict=True):
            state = self._optimiser.state[former]
            part._optimiser.state[copy] = {k: v[rows] if v.dim() else v.clone() for k, v in state.items()}
        return part

    def _objective(self, maps: Tensor) -> Tensor:
        config = self.config
        regions = grid_regions((maps.shape[-2], maps.shape[-1]), config.grid, (0.0, 0.0), maps)
        counts = stratified_counts(regions.count, config.steps)
        heat, known = (
            self.explainer.config.temperature,
            (self.response_model, self.pixels, self.classes, self.references),
        )
        return objective(*known, maps, regions, counts, heat, config.objective)["loss"]


def _clip_each(copies: dict[str, Tensor], limit: float) -> None:
    """Scales each image's gradient, over all of its parameters, to at most `limit`."""
    gradients = [value.grad for value in copies.values() if value.grad is not None]
    squares = torch.stack([g.view(len(g), -1).square().sum(dim=1) for g in gradients]).sum(dim=0)  # (B,)
    factor = (limit / squares.sqrt().clamp(min=1e-12)).clamp(max=1.0)
    for g in gradients:
        g.mul_(factor.view(-1, *[1] * (g.dim() - 1)))

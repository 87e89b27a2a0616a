"""Test-time refinement (paper section 3.3): a few gradient steps on a copy of the decoder, for each image its own.

Deterministic: final temperature, no noise, a fixed grid, steps at the middles of their strata, and the mean over the
three references at every step. A batch is refined in parallel: each image has its own copy of the decoder's parameters,
stacked along a first axis, so that the result equals refining one image at a time. The explainer itself is not touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from aha.learned.explainer import Explainer
from aha.learned.loss import ObjectiveConfig, objective, soft_masks
from aha.learned.regions import grid_regions, stratified_counts
from aha.models import TargetModel
from aha.references import Black, Blur, Mean, Reference


@dataclass(frozen=True)
class RefinementConfig:
    """Choices of the refinement.

    Attributes:
        learning_rate: of Adam, fresh for each image.
        grid: cells along the shorter side.
        steps: perturbation steps S per sequence.
        clip: largest norm of an image's gradient.
        references: averaged over at every step.
        objective: weights of the loss.
    """

    learning_rate: float = 1e-3
    grid: int = 14
    steps: int = 8
    clip: float = 1.0
    references: tuple[Reference, ...] = (Black(), Mean(), Blur())
    objective: ObjectiveConfig = field(default_factory=lambda: ObjectiveConfig(noise=0.0))


def refined_maps(
    explainer: Explainer,
    target: TargetModel,
    inputs: Tensor,
    classes: Tensor,
    rounds: int,
    config: RefinementConfig | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Maps (B, H, W) and soft losses (B,) after 0, 1, ..., `rounds` gradient steps.

    `target` may be another model than the explainer was trained for; then its answers are what the maps move towards.
    """
    config = config or RefinementConfig()
    size = (inputs.shape[-2], inputs.shape[-1])
    features = explainer.features(target, inputs)
    vectors = explainer.class_vectors(target, classes).detach()
    explainer.eval()
    with torch.inference_mode(False), torch.enable_grad():
        features = [f.float().clone() for f in features]
        copies = {  # one decoder per image
            name: value.detach().expand(len(inputs), *value.shape).clone().requires_grad_()
            for name, value in explainer.decoder.named_parameters()
        }
        optimiser = torch.optim.AdamW(copies.values(), lr=config.learning_rate, weight_decay=0.0)

        def draw(parameters: dict[str, Tensor], vector: Tensor, *levels: Tensor) -> Tensor:
            batch = [level[None] for level in levels]
            maps: Tensor = functional_call(explainer.decoder, parameters, (batch, vector[None], size))
            return maps[0]

        for step in range(rounds + 1):
            maps = vmap(draw)(copies, vectors, *features)  # (B, H, W)
            losses = _losses(explainer, target, inputs, classes, maps, config)
            yield maps.detach(), losses.detach()
            if step == rounds:
                return
            optimiser.zero_grad()
            losses.sum().backward()  # type: ignore[no-untyped-call]  # images share nothing: their gradients are their own
            _clip_each(copies, config.clip)
            optimiser.step()


def _losses(
    explainer: Explainer,
    target: TargetModel,
    inputs: Tensor,
    classes: Tensor,
    maps: Tensor,
    config: RefinementConfig,
) -> Tensor:
    """The objective (B,), averaged over the references."""
    regions = grid_regions((inputs.shape[-2], inputs.shape[-1]), config.grid, (0.0, 0.0), maps)
    counts = stratified_counts(regions.count, config.steps)
    masks = soft_masks(maps, regions, counts, explainer.config.temperature, config.objective)  # (B, S, K)
    pixels = target.to_pixels(inputs)
    total = torch.zeros(len(inputs), device=maps.device)
    for reference in config.references:
        blank = reference(target, pixels, classes)
        parts = objective(target, inputs, classes, blank, maps, masks, regions, config.objective)
        total = total + parts["loss"] / len(config.references)
    return total


def _clip_each(copies: dict[str, Tensor], limit: float) -> None:
    """Scales each image's gradient, over all of its parameters, to at most `limit`."""
    gradients = [value.grad for value in copies.values() if value.grad is not None]
    squares = torch.stack([g.view(len(g), -1).square().sum(dim=1) for g in gradients]).sum(dim=0)  # (B,)
    factor = (limit / squares.sqrt().clamp(min=1e-12)).clamp(max=1.0)
    for g in gradients:
        g.mul_(factor.view(-1, *[1] * (g.dim() - 1)))

"""AHA's objective: the differentiable Deletion and Insertion areas of a map, and a regulariser (eq. 9-11, section 3.2).

The frozen target is by far the largest part of the cost. Its answers enter the loss linearly, so each chunk of
perturbed images is run forward and backward at once and only the gradient of the cell masks is kept: memory does not
grow with the number of steps, and the gradient is the exact one.

Symbols: A (B, H, W) the map; m (B, S, K) soft top-k masks; I0 the reference; t the explained class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor

from aha.core.progress import part
from aha.learned.lapsum import soft_masks_lapsum
from aha.learned.ordering import gumbel_noise, soft_masks_binned, soft_masks_full, standardised
from aha.learned.regions import Regions
from aha.models import TargetModel
from aha.perturb.filling import filled_softly
from aha.perturb.perturbation import blend
from aha.perturb.references import Reference

Order = Literal["binned", "full", "lapsum"]

_LEAST = 1e-3  # about the probability below which differences mean little: it bounds the logarithm's slope


@dataclass(frozen=True)
class ObjectiveConfig:
    """Choices of the objective.

    Attributes:
        deletion: weight of the Deletion area (lambda_del).
        insertion: weight of the Insertion area (lambda_ins).
        log: weight of the scores' logarithm beside the scores themselves, where these are probabilities: near zero,
            where the probability is flat, it still tells better from worse.
        peaks: weight of the isolated-peak regulariser (lambda_reg).
        peak_kernel: side of its averaging filter.
        iterations: of Sinkhorn.
        noise: scale of the Gumbel noise on `L / tau` in training; 0 switches it off.
        literal_noise: the paper's `(L + G) / tau`, in which unit noise swamps L.
        order: form of the soft order: "binned", K x (S + 1) numbers; "full", the paper's K x K; "lapsum", closed form.
    """

    deletion: float = 1.0
    insertion: float = 1.0
    log: float = 0.03
    peaks: float = 0.0
    peak_kernel: int = 7
    iterations: int = 20
    noise: float = 0.3
    literal_noise: bool = False
    order: Order = "binned"


def soft_masks(
    maps: Tensor,
    regions: Regions,
    counts: Tensor,
    temperature: float,
    config: ObjectiveConfig,
    generators: Sequence[torch.Generator] | None = None,
) -> Tensor:
    """Soft top-k masks (B, S, K) of the regions of maps (B, H, W); noisy if given one generator per image."""
    scores = standardised(regions.pool(maps.float()))  # (B, K)
    counts = counts.to(scores.device)
    noise = _noise(scores, len(counts), temperature, config, generators)
    if config.order == "lapsum":
        return soft_masks_lapsum(scores, counts, temperature, noise=None if noise is None else noise[..., 0])
    make = soft_masks_binned if config.order == "binned" else soft_masks_full
    return make(scores, counts, temperature, noise=noise, iterations=config.iterations)


def _noise(
    scores: Tensor,
    steps: int,
    temperature: float,
    config: ObjectiveConfig,
    generators: Sequence[torch.Generator] | None,
) -> Tensor | None:
    """Gumbel noise (B, K, J) for the J columns of the chosen form."""
    if generators is None or not config.noise:
        return None
    regions = scores.shape[-1]
    columns = {"binned": steps + 1, "full": regions, "lapsum": 1}[config.order]
    scale = config.noise / temperature if config.literal_noise else config.noise
    return scale * torch.stack([gumbel_noise((regions, columns), generator, scores) for generator in generators])


def objective(
    model: TargetModel,
    pixels: Tensor,
    classes: Tensor,
    references: Tensor,
    maps: Tensor,
    regions: Regions,
    counts: Tensor,
    temperature: float,
    config: ObjectiveConfig,
    generators: Sequence[torch.Generator] | None = None,
    kinds: Sequence[Reference] = (),
) -> dict[str, Tensor]:
    """The loss and its named parts, each (B,): deletion, insertion, peaks, loss. Training and refinement minimise it.

    Args:
        model: the frozen target.
        pixels: images (B, C, H, W) in [0, 1].
        classes: explained classes (B,).
        references: I0 in pixels (B, C, H, W), or (R, B, C, H, W) that take turns along the steps.
        maps: A (B, H, W).
        regions: the K cells that are put in order.
        counts: how many of the first cells each step (S,) takes.
        temperature: of the soft order.
        config: weights.
        generators: one per image, for noise on the order; without them there is none.
        kinds: which reference each image's is, for those that depend on what is removed.
    """
    masks = soft_masks(maps, regions, counts, temperature, config, generators)  # (B, S, K)
    scores = perturbed_scores(model, pixels, references, classes, masks, regions, kinds)  # (B, 2, S)
    deletion, insertion = scores.mean(dim=-1).unbind(dim=1)  # (B,) each
    loss = config.deletion * deletion - config.insertion * insertion
    if config.log and model.score.is_probability:
        low, high = (scores + _LEAST).log().mean(dim=-1).unbind(dim=1)
        loss = loss + config.log * (config.deletion * low - config.insertion * high)
    peaks = isolated_peaks(maps, config.peak_kernel)
    return {"loss": loss + config.peaks * peaks, "deletion": deletion, "insertion": insertion, "peaks": peaks}


def perturbed_scores(
    model: TargetModel,
    pixels: Tensor,
    references: Tensor,
    classes: Tensor,
    masks: Tensor,
    regions: Regions,
    kinds: Sequence[Reference] = (),
) -> Tensor:
    """Class scores (B, 2, S) of the deletion and insertion images of soft masks (B, S, K); differentiable in these.

    References are (B, C, H, W), or (R, B, C, H, W): then they take turns along the steps. `kinds` says of (B, C, H, W)
    which each image's is, for those that depend on what is removed.
    """
    batch, steps, _ = masks.shape
    keep = torch.stack([1 - masks, masks], dim=1)  # (B, 2, S, K): deletion shows the rest, insertion the mask
    rows = rearrange(keep, "b two s k -> (b two s) k")
    owners = repeat(torch.arange(batch, device=pixels.device), "b -> (b r)", r=2 * steps)
    options = references if references.dim() == 5 else references[None]
    turns = repeat(torch.arange(steps, device=pixels.device) % len(options), "s -> (b s)", b=2 * batch)
    found = _MaskedScores.apply(rows, model, pixels, options, classes, owners, turns, regions, kinds)
    return found.view(batch, 2, steps)  # type: ignore[no-any-return]


class _MaskedScores(torch.autograd.Function):
    """Scores (R,) of images seen through cell masks (R, K); the gradient is taken chunk by chunk on the way forward."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        rows: Tensor,
        model: TargetModel,
        pixels: Tensor,
        references: Tensor,
        classes: Tensor,
        owners: Tensor,
        turns: Tensor,
        regions: Regions,
        kinds: Sequence[Reference],
    ) -> Tensor:
        needs_gradient = ctx.needs_input_grad[0]  # type: ignore[attr-defined]

        def run(places: slice) -> tuple[Tensor, Tensor]:
            mine = owners[places]
            with torch.set_grad_enabled(needs_gradient):
                keep = rows[places].detach().requires_grad_(needs_gradient)
                mask, blanks = regions.spread(keep), references[turns[places], mine]
                if kinds:
                    blanks = filled_softly(pixels[mine], blanks, mask, [kinds[owner] for owner in mine.tolist()])
                shown = blend(pixels[mine], blanks, mask)
                # Channels last: convolutions take a quarter less time on a CPU in half precision.
                shown = model.to_inputs(shown).contiguous(memory_format=torch.channels_last)
                # A backward pass takes about twice as long as the forward one.
                with part(0, 1, 3 if needs_gradient else 1):
                    scores = model.score(model.outputs(shown), classes[mine])
                if not needs_gradient:
                    return scores, torch.empty(0)
                model.spend("backward", len(mine))
                return scores.detach(), torch.autograd.grad(scores.sum(), keep)[0]

        found = model.chunks.run(run, len(rows))
        ctx.save_for_backward(torch.cat([slopes for _, slopes in found]))
        return torch.cat([scores for scores, _ in found])

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return grads[0][:, None] * slopes, None, None, None, None, None, None, None, None


def isolated_peaks(maps: Tensor, kernel: int) -> Tensor:
    """Root-mean-square distance (B,) of each standardised map from its average over a `kernel` x `kernel` window.

    On the standardised map, so that it cannot be lowered by shrinking the map.
    """
    centred = maps - maps.mean(dim=(1, 2), keepdim=True)
    unit = centred / centred.square().mean(dim=(1, 2), keepdim=True).clamp(min=1e-12).sqrt()
    reach = kernel // 2
    padded = F.pad(unit[:, None], (reach, reach, reach, reach), mode="reflect")
    smooth = F.avg_pool2d(padded, kernel, stride=1)[:, 0]
    return (unit - smooth).square().mean(dim=(1, 2)).clamp(min=1e-12).sqrt()

"""Perturbed images and what the model says to them: pixels in order of importance, masks, and the curves' areas.

Metrics run `perturbed_outputs`. The training loss and the methods that mask
images have other masks and share `blend` with them, so that removing a pixel means the same everywhere.

Images and references are pixels in [0, 1], before normalisation, so that black is black for every model.

Shapes: pixels and references (B, C, H, W); ranks (H, W), 0 = most important; keep masks (R, H, W) in [0, 1], where 1
keeps the image and 0 shows the reference; outputs (R, K).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from einops import rearrange, reduce
from torch import Tensor

from aha.core.axes import is_volume, per_image
from aha.core.seeds import generator_of
from aha.models import TargetModel
from aha.perturb.filling import Filling
from aha.perturb.references import Reference, with_normalisation

Ties = Literal["random", "raster"]


def rank_pixels(values: Tensor, *, seed: int = 0, ties: Ties = "random", grid: tuple[int, int] | None = None) -> Tensor:
    """The rank (H, W) of every pixel of a map, 0 for the most important, by one stable sort.

    Args:
        values: a map (H, W).
        seed: of the order among equal values, when `ties` is "random"; the same for every map of one size.
        ties: "random", or "raster" for top left first.
        grid: rank the cells (rows, columns) of a grid by their mean instead; the pixels of a cell follow each other.
    """
    if grid is not None:
        return _rank_cells(values, grid, seed, ties)
    flat = values.flatten()
    first = torch.arange(len(flat))
    if ties == "random":
        first = torch.randperm(len(flat), generator=generator_of(seed))
    first = first.to(flat.device)
    order = first[flat[first].sort(descending=True, stable=True).indices]  # pixel at each rank
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(flat), device=flat.device)
    return ranks.view(values.shape)


def _rank_cells(values: Tensor, grid: tuple[int, int], seed: int, ties: Ties) -> Tensor:
    rows, columns = grid
    cells = reduce(values, "(r h) (c w) -> r c", "mean", r=rows, c=columns)
    ranks = rank_pixels(cells, seed=seed, ties=ties)  # (r, c)
    h, w = values.shape[0] // rows, values.shape[1] // columns
    within = torch.arange(h * w, device=values.device).view(h, w)
    spread = rearrange(ranks[:, :, None, None] * (h * w) + within, "r c h w -> (r h) (c w)")
    return spread


def deletion_masks(ranks: Tensor, counts: Tensor) -> Tensor:
    """Keep masks (S, H, W) without the `counts` (S,) most important pixels."""
    return ranks[None] >= per_image(counts, ranks[None])


def insertion_masks(ranks: Tensor, counts: Tensor) -> Tensor:
    """Keep masks (S, H, W) with only the `counts` (S,) most important pixels."""
    return ranks[None] < per_image(counts, ranks[None])


def blend(pixels: Tensor, reference: Tensor, keep: Tensor) -> Tensor:
    """The image where `keep` is 1, the reference where it is 0, a mixture between; volumes come as (B, C, D, H, W)."""
    # One mask for all channels. Exact at 0 and 1, and for scattered hard masks much faster than `torch.where`.
    return torch.lerp(reference, pixels, keep.unsqueeze(-4 if is_volume(pixels.shape[1:]) else -3).to(pixels))


def filled(model: TargetModel, inputs: Tensor, blanks: Tensor, keep: Tensor, kinds: Sequence[Reference]) -> Tensor:
    """What stands in for removed pixels, as model inputs (R, C, H, W), now that it is known which these are.

    Args:
        model: says what pixels are.
        inputs: the images (R, C, H, W), or one (C, H, W) for all rows.
        blanks: what stands in for them where that does not matter, as `inputs`.
        keep: keep masks (R, H, W).
        kinds: the reference of each row, or one for all.
    """
    rows = {kind: [row for row, own in enumerate(kinds) if own == kind] for kind in kinds if isinstance(kind, Filling)}
    if not rows:
        return blanks
    model, shape = with_normalisation(model, inputs), (len(keep), *inputs.shape[-3:])
    images, found = inputs.expand(shape), blanks.expand(shape).clone()
    for kind, own in rows.items():
        place = torch.tensor(own, device=inputs.device) if len(kinds) > 1 else slice(None)
        found[place] = model.to_inputs(kind.fill(model.to_pixels(images[place]), keep[place].to(inputs.device)))
    return found


def perturbed_outputs(
    model: TargetModel,
    pixels: Tensor,
    references: Tensor,
    owners: Tensor,
    masks: Callable[[slice], Tensor],
    kinds: Sequence[Reference] = (),
) -> Tensor:
    """Raw outputs (R, K) for R perturbed images, made and run in chunks: memory does not grow with R.

    Args:
        model: the model that is asked.
        pixels: images (B, C, H, W).
        references: what stands in for removed pixels (B, C, H, W), one per image.
        owners: which image (R,) each row perturbs.
        masks: keep masks (r, H, W) of a slice of the rows, boolean or soft; gradients flow through soft ones.
        kinds: which reference each image's is, for those that depend on what is removed.
    """
    # Normalised once, not per row: a mixture of normalised images is the normalised mixture.
    images, blanks = model.to_inputs(pixels), model.to_inputs(references)

    def run(part: slice) -> Tensor:
        rows, keep = owners[part], masks(part)
        own = [kinds[row] for row in rows.tolist()] if kinds else []
        return model.outputs(blend(images[rows], filled(model, images[rows], blanks[rows], keep, own), keep))

    return torch.cat(model.chunks.run(run, len(owners)))


def step_counts(num_pixels: int, steps: int) -> list[int]:
    """Pixels gone after 0, 1, ..., `steps` equal steps; no more steps than pixels."""
    steps = min(steps, num_pixels)
    return [round(step * num_pixels / steps) for step in range(steps + 1)]


def area(fractions: Tensor, values: Tensor) -> Tensor:
    """Mean height (...) of curves (..., S) over their range, by the trapezoid rule (rule T of the protocols)."""
    return torch.trapezoid(values, fractions) / (fractions[-1] - fractions[0])


def response_curve(answers: Tensor, *, rising: bool) -> Tensor:
    """Answers (S,) from reference to image (rising) or back: 0 at the one, 1 at the other, clipped and monotone.

    As in the code of MAS and MDA: by the absolute difference of the ends, with the running maximum from the reference
    on where pixels are inserted, and the running minimum from the image on where they are deleted.
    """
    blank, clean = (answers[0], answers[-1]) if rising else (answers[-1], answers[0])
    curve = ((answers - blank) / (clean - blank).abs().clamp(min=1e-12)).clamp(0, 1)
    return curve.cummax(dim=0).values if rising else curve.cummin(dim=0).values


def grid_of(values: Tensor) -> tuple[int, int] | None:
    """The coarsest grid of equal cells on which a map (H, W) is constant; None unless cells are larger than a pixel."""
    cell_height, cell_width = (_run_length(values, axis) for axis in (0, 1))
    if cell_height == cell_width == 1:
        return None
    return values.shape[0] // cell_height, values.shape[1] // cell_width


def _run_length(values: Tensor, axis: int) -> int:
    """Largest divisor d of the side such that the map changes along this axis at multiples of d only."""
    side = values.shape[axis]
    changes = (values.diff(dim=axis) != 0).any(dim=1 - axis).nonzero().flatten() + 1  # where a new value starts
    return max(d for d in range(1, side + 1) if side % d == 0 and not bool((changes % d).any()))

"""Greedy search for an order of patches, scored by the model's responses.

Shapes: N patches of one image; masks (R, N), true where the image shows; responses (R,).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from aha.core.progress import part
from aha.models import TargetModel
from aha.perturb.perturbation import blend, filled
from aha.perturb.references import Reference, ZerosNormalised

Ask = Callable[[Tensor], Tensor]
"""Masks (R, N) of shown patches -> model responses (R,)."""

Foresee = Callable[[Tensor], Tensor]
"""One mask (1, N) -> what each patch (N,) would add to the response, to first order."""


def cell_indices(size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """Which cell of the grid each pixel (H, W) belongs to; cells differ by a pixel where they do not tile the image."""
    rows, columns = (torch.arange(side) * cells // side for side, cells in zip(size, grid, strict=True))
    return rows[:, None] * grid[1] + columns


def shown_first(order: Tensor) -> Tensor:
    """Masks (N + 1, N) that show the first 0, 1, ..., N patches of an order."""
    ranks = order.argsort()
    return ranks[None] < torch.arange(len(order) + 1)[:, None]


@dataclass
class Responses:
    """The model's responses to one image with some patches shown; nothing is asked twice."""

    model: TargetModel
    image: Tensor  # (1, C, H, W)
    blank: Tensor  # (1, C, H, W)
    label: Tensor  # (1,)
    cells: Tensor  # (H, W)
    reference: Reference = field(default_factory=ZerosNormalised)  # by which the blank is made
    known: dict[bytes, float] = field(default_factory=dict)

    def __call__(self, masks: Tensor) -> Tensor:
        """Responses (R,) to masks (R, N)."""
        keys = [mask.numpy().tobytes() for mask in masks]
        new = [row for row, key in enumerate(keys) if key not in self.known]
        for row, score in zip(new, self._ask(masks[new]) if new else [], strict=True):
            self.known[keys[row]] = score
        return torch.tensor([self.known[key] for key in keys])

    def slopes(self, mask: Tensor) -> Tensor:
        """What each patch (N,) would add to the response to a mask (1, N), to first order: by one gradient."""
        keep = mask.to(self.cells.device)[:, self.cells]
        shown = blend(self.image, self._blank(keep), keep)
        gradient = self.model.input_gradients(shown, self.label, self.model.score)
        by_pixel = (gradient * (self.image - self.blank).to(gradient)).sum(dim=1)  # (1, H, W)
        return by_pixel.new_zeros(mask.shape[1]).index_add_(0, self.cells.flatten(), by_pixel.flatten()).cpu()

    def _blank(self, keep: Tensor) -> Tensor:
        return filled(self.model, self.image, self.blank, keep, [self.reference])

    def _ask(self, masks: Tensor) -> list[float]:
        def run(rows: slice) -> Tensor:
            keep = masks[rows].to(self.cells.device)[:, self.cells]  # (r, H, W)
            return self.model.scores(blend(self.image, self._blank(keep), keep), self.label.expand(len(keep)))

        answers: list[float] = torch.cat(self.model.chunks.run(run, len(masks))).tolist()
        return answers


def greedy(
    ask: Ask,
    places: Sequence[int],
    count: int,
    window: int,
    *,
    enough: float = math.inf,
    screen: int | None = None,
    foresee: Foresee | None = None,
) -> list[int]:
    """Of `count` patches, the given `places` by how much each raises the response; it ends at `enough` (eq. 4).

    Each step looks at the `window` first that are free; of equal answers, the first wins. With `screen`, it asks only
    about so many of them, those that `foresee` says add most; it is asked again after as many steps.
    """
    left, taken, foreseen = list(places), list[int](), torch.empty(0)
    shown = torch.zeros(1, count, dtype=torch.bool)
    response = float(ask(shown))
    while left and response < enough:
        with part(count - len(left), count - len(left) + 1, count):
            candidates = torch.tensor(left[:window])
            if screen is not None and foresee is not None and len(candidates) > screen:
                if len(taken) % screen == 0:
                    foreseen = foresee(shown)
                best = foreseen[candidates].topk(screen).indices
                candidates = candidates[best.sort().values]
            answers = ask(shown.repeat(len(candidates), 1).scatter_(1, candidates[:, None], True))
        chosen = int(answers.argmax())
        response = float(answers[chosen])
        taken.append(int(candidates[chosen]))
        left.remove(taken[-1])
        shown[0, taken[-1]] = True
    return taken

"""RISE: random masks, weighted by the score of what they leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from aha.core.validation import Fraction, PositiveInt
from aha.methods.base import Method, method, seeded_generator
from aha.methods.cost import Cost
from aha.models import TargetModel
from aha.perturb.masking import MaskedModel, Scale, explain_each
from aha.perturb.references import Reference, ZerosNormalised

Border = Literal["mirror", "clamp"]


@method("rise", family="perturbation", volumes=True, citation="Petsiuk et al., BMVC 2018")
@dataclass(frozen=True)
class RISE(Method):
    """Mean of `n` random masks weighted by the scores of the masked images, over the expected mask (eq. 6).

    A mask is a `cells` x `cells` grid of ones with probability `p`, enlarged bilinearly by one cell more than the
    image needs and cropped at a random shift. The defaults are the paper's; it uses 4000 masks for VGG-16 and 8000 for
    ResNet-50. The published notebooks have n=6000, cells=8 and p=0.1. Masked pixels show the model's mean colour, as
    in the published code, which multiplies the normalised image.

    Formula: `M_i = 1 / (n p) * sum over masks m of score(x * m) m_i`.
    Reads: outputs alone.
    Cost: `n` forward passes.
    Example: `rise(n=1000)`.

    Attributes:
        border: what lies beyond the outermost cells of a grid when it is enlarged: the cells before them, "mirror", as
            in the published code, or themselves, "clamp". The paper does not say.
    """

    n: PositiveInt = 4000
    cells: PositiveInt = 7
    p: Fraction = 0.5
    reference: Reference = ZerosNormalised()
    score: Scale = "score"
    seed: int | None = None
    border: Border = "mirror"

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        axes = len(size)
        side = (self.cells + 1) * max(-(-length // self.cells) for length in size)  # of an enlarged mask
        return Cost(self.n, 9 * self.n * self.cells**axes + 8 * min(self.n, model.chunks.size) * side**axes)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        return explain_each(self._explain, model, images, classes, self.reference, self.score)

    def _explain(self, masked: MaskedModel) -> Tensor:
        generator = seeded_generator(self.seed)
        axes = len(masked.size)
        grids = (torch.rand(self.n, *[self.cells] * axes, generator=generator) < self.p).to(masked.image)
        shifts = torch.rand(self.n, axes, generator=generator)  # in cells

        def masks(part: slice) -> Tensor:
            return enlarged(grids[part], shifts[part], masked.size, self.border)

        total = masked.image.new_zeros(len(masked.classes), *masked.size)
        for keep, scores in masked.answers(masks, self.n):
            total += torch.einsum("mk,m...->k...", scores.to(keep), keep)
        return total / (self.n * self.p)


def enlarged(grids: Tensor, shifts: Tensor, size: tuple[int, ...], border: Border = "mirror") -> Tensor:
    """Grids (m, s, s) at image size (m, H, W), each moved up and left by its shift (m, 2) in [0, 1) of a cell.

    Of a volume (m, s, s, s) at (m, D, H, W), with shifts (m, 3).
    """
    s = grids.shape[-1]
    cells = [-(-side // s) for side in size]  # their sides
    large = grids
    for cell in cells:  # each axis in turn: (m, s, s) to (m, s, H') to (m, H', W')
        large = torch.tensordot(large, enlargement(s, (s + 1) * cell, border).to(grids), dims=([1], [1]))
    corners = [[int(share * cell) for share, cell in zip(shift, cells, strict=True)] for shift in shifts.tolist()]
    windows = [tuple(slice(a, a + side) for a, side in zip(corner, size, strict=True)) for corner in corners]
    return torch.stack([mask[window] for mask, window in zip(large, windows, strict=True)])


def enlargement(few: int, many: int, border: Border) -> Tensor:
    """Weights (many, few) of linear interpolation from `few` cells to `many` pixels, centres on centres."""
    places = (torch.arange(many, dtype=torch.float64) + 0.5) * few / many - 0.5  # of the pixels, in cells
    before = places.floor()
    share = (places - before)[:, None]  # of the cell behind
    cells = torch.stack([before, before + 1]).long()  # (2, many), from -1 to few
    if border == "mirror":
        cells = (few - 1 - (few - 1 - cells.abs()).abs()).abs()
    cells = cells.clamp(0, few - 1)
    first, second = torch.eye(few, dtype=torch.float64)[cells].unbind()  # (many, few) each
    return torch.lerp(first, second, share)

"""MDA: a patch order found by the insertion and deletion tests themselves, and magnitudes fitted to their answers.

Shapes: N = h * w patches of one image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from aha.core.progress import in_parts
from aha.core.validation import NonNegativeFloat, PositiveInt, Range
from aha.errors import SpecError
from aha.methods.base import Method, first_fitting, method
from aha.methods.cost import Cost
from aha.methods.patch_order.magnitudes import Order
from aha.methods.patch_order.patch_search import Responses, cell_indices, greedy, shown_first
from aha.models import TargetModel
from aha.perturb.references import Black, Blur, Reference, reference_inputs

CELLS = 14  # per side, where the model has no patches of its own: those of ViT-B/16 at 224 pixels
SMALLEST_CELL = 8  # pixels


@method("mda", family="perturbation", citation="Walker et al., ICLR 2025")
@dataclass(frozen=True)
class MDA(Method):
    """Greedy insertion order until the score is back, deletion order for the rest, concave magnitudes (eq. 4-12).

    1. From the blurred image, insert the patch with the largest response (eq. 4) until it reaches `tau` times that of
       the image.
    2. From the black image, insert of the others the patch with the smallest response (eq. 5); reversed, these follow.
    3. Fit a concave rising curve to the mean of the insertion and the mirrored deletion response (eq. 7, 9); its
       increments, weighted by order, are the patches' values (eq. 10), between sparse and dense (eq. 11-12).

    Candidates of a step are the first 2 sqrt(N) patches of another method's order that are still free, evaluated in one
    batch. Responses are those of the explained class. Where the published code differs, this is the paper: its stopping
    rule, responses at patch steps instead of pixel steps, eq. 10 without the code's division by the pixels of a patch,
    no rescaling of the dense values, black pixels rather than zeros after normalisation (`deletion=zeros_normalised`).
    Eq. 10 leaves ties where the fitted curve is flat; a term of at most 1e-6 keeps the order there.

    Formula: `argmax over i of response(S + i)` (eq. 4), `argmin` of the same (eq. 5).
    Reads: outputs alone, and what the guide reads.
    Cost: up to `N (2 sqrt(N) + 3)` forward passes for N patches, besides the guide's.
    Example: `mda(screen=4)`.

    Attributes:
        guide: the method that orders the candidates; None for `bidirectional`, or Grad-CAM where that is not at hand;
            models that serve neither are searched without pruning.
        tau: share of the image's score at which insertion ends; of a score that is no probability, share of the way
            from the blurred image's.
        kappa: value from which on a patch counts as important in the dense form.
        gamma: 0 for the sparse form, 1 for the dense one. For several values at the cost of one, see `search`.
        window: candidates of each step; None for 2 sqrt(N).
        grid: patches per side; None for the model's own, or 14 of at least 8 pixels.
        screen: an approximation that is several times faster: of its candidates, each step asks only about so many,
            those that the gradient of the response says add most, which is taken again after as many steps; 4 is a good
            number. None asks about all of them, as published, and needs no gradients.
        insertion, deletion: what missing patches look like in the two phases.
    """

    guide: Method | None = None
    tau: Annotated[float, Range(0, 1, above=True)] = 0.9
    kappa: NonNegativeFloat = 0.005
    gamma: Annotated[float, Range(0, 1)] = 0.0
    window: PositiveInt | None = None
    grid: Annotated[int, Range(2)] | None = None
    screen: PositiveInt | None = None
    insertion: Reference = field(default_factory=Blur)
    deletion: Reference = field(default_factory=Black)

    @property
    def needs(self) -> frozenset[str]:
        """Gradients too, if candidates are screened by them."""
        return super().needs | ({"gradients"} if self.screen else set())

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        blocks = model.structure(size).blocks
        rows, columns = blocks[0].layout.grid if self.grid is None and blocks else (self.grid or CELLS,) * 2
        count = rows * columns
        asked = min(count, self.screen + 1 if self.screen else self.window or 2 * math.isqrt(count) + 1)
        guide = Cost() if self.guide is None else self.guide.cost(model, size)
        return guide.then(Cost(count * asked + 2 * count + 4, 64 * count**2))

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        found = self.search(model, images, classes)
        return torch.stack([order.values(self.gamma, self.kappa) for order in found]).to(images)  # (B, h, w)

    def search(self, model: TargetModel, images: Tensor, classes: Tensor) -> list[Order]:
        """The order and its responses for each image; `Order.values` makes any density of them without the model."""
        return [  # one by one: an order must not depend on how rounding differs with the neighbours in a batch
            self._search(model, images[row : row + 1], classes[row : row + 1]) for row in in_parts(range(len(images)))
        ]

    def _search(self, model: TargetModel, image: Tensor, label: Tensor) -> Order:
        size = (image.shape[-2], image.shape[-1])
        grid = self._grid(model, image)
        cells = cell_indices(size, grid).to(image.device)  # (H, W)
        ranked, window = self._candidates(model, image, label, grid)
        on_blur, on_black = (
            Responses(model, image, reference_inputs(blank, model, image, label), label, cells, blank)
            for blank in (self.insertion, self.deletion)
        )
        count = len(ranked)
        whole = float(on_blur(torch.ones(1, count, dtype=torch.bool)))
        # A share of a score that may be negative says nothing: then it is one of the way from the blurred image.
        bottom = 0.0 if model.score.is_probability else float(on_blur(torch.zeros(1, count, dtype=torch.bool)))
        enough = bottom + self.tau * (whole - bottom)
        first = greedy(on_blur, ranked, count, window, enough=enough, screen=self.screen, foresee=on_blur.slopes)
        taken = set(first)
        rest = [place for place in reversed(ranked) if place not in taken]
        last = greedy(
            lambda masks: -on_black(masks),
            rest,
            count,
            window,
            screen=self.screen,
            foresee=lambda mask: -on_black.slopes(mask),
        )
        order = torch.tensor([*first, *reversed(last)])
        return Order(order, on_blur(shown_first(order)), on_black(shown_first(order.flip(0))).flip(0), grid)

    def _grid(self, model: TargetModel, image: Tensor) -> tuple[int, int]:
        height, width = image.shape[-2:]
        blocks = model.structure(image.shape[1:]).blocks
        if self.grid is None and blocks:
            down, across = blocks[0].layout.grid
            return down, across
        rows, columns = (self.grid or max(2, min(CELLS, side // SMALLEST_CELL)) for side in (height, width))
        if rows > height or columns > width:
            raise SpecError(f"mda: grid={self.grid} is finer than the pixels of a {height} x {width} image")
        return rows, columns

    def _candidates(
        self, model: TargetModel, image: Tensor, label: Tensor, grid: tuple[int, int]
    ) -> tuple[list[int], int]:
        """All patches, most promising first, and how many of the free ones each step looks at."""
        num_patches = grid[0] * grid[1]
        guide = self.guide or default_guide(model, image)
        if guide is None:
            return list(range(num_patches)), self.window or num_patches
        values = guide(model, image, label).detach()  # (1, h', w')
        mean = F.interpolate(values[None].float(), size=grid, mode="area").flatten()  # (N,)
        ranked = mean.sort(descending=True, stable=True).indices.tolist()
        return ranked, self.window or 2 * math.isqrt(num_patches)


def default_guide(model: TargetModel, image: Tensor) -> Method | None:
    """The paper's choice where it fits the model, else Grad-CAM, else none."""
    return first_fitting(("bidirectional", "grad_cam"), model, image.shape[1:])

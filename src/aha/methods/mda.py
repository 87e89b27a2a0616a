"""MDA: a patch order found by the insertion and deletion tests themselves, and magnitudes fitted to their answers.

Shapes: N = h * w patches of one image; masks (R, N), true where the image shows; orders (N,), most important first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from aha.errors import SpecError
from aha.methods.base import METHODS, Method, method
from aha.methods.concave import concave_increments
from aha.models import TargetModel
from aha.perturbation import blend
from aha.references import Black, Blur, Reference, reference_inputs

Ask = Callable[[Tensor], Tensor]
"""Masks (R, N) of shown patches -> model responses (R,)."""

CELLS = 14  # per side, where the model has no patches of its own: those of ViT-B/16 at 224 pixels
SMALLEST_CELL = 8  # pixels
TIE_BREAK = 1e-6


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

    Attributes:
        guide: the method that orders the candidates; None for `bidirectional`, or Grad-CAM where that is not at hand;
            models that serve neither are searched without pruning.
        tau: share of the image's score at which insertion ends.
        kappa: value from which on a patch counts as important in the dense form.
        gamma: 0 for the sparse form, 1 for the dense one. For several values at the cost of one, see `search`.
        window: candidates of each step; None for 2 sqrt(N).
        grid: patches per side; None for the model's own, or 14 of at least 8 pixels.
        insertion, deletion: what missing patches look like in the two phases.
    """

    guide: Method | None = None
    tau: float = 0.9
    kappa: float = 0.005
    gamma: float = 0.0
    window: int | None = None
    grid: int | None = None
    insertion: Reference = field(default_factory=Blur)
    deletion: Reference = field(default_factory=Black)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.tau <= 1 and 0 <= self.gamma <= 1 and self.kappa >= 0):
            raise SpecError("mda: tau must lie in (0, 1], gamma in [0, 1], and kappa must not be negative")
        if (self.window is not None and self.window < 1) or (self.grid is not None and self.grid < 2):
            raise SpecError("mda: window must be at least 1 and grid at least 2")

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        found = self.search(model, images, classes)
        return torch.stack([order.values(self.gamma, self.kappa) for order in found]).to(images)  # (B, h, w)

    def search(self, model: TargetModel, images: Tensor, classes: Tensor) -> list[Order]:
        """The order and its responses for each image; `Order.values` makes any density of them without the model."""
        return [  # one by one: an order must not depend on how rounding differs with the neighbours in a batch
            self._search(model, images[row : row + 1], classes[row : row + 1]) for row in range(len(images))
        ]

    def _search(self, model: TargetModel, image: Tensor, label: Tensor) -> Order:
        size = (image.shape[-2], image.shape[-1])
        grid = self._grid(model, image)
        cells = cell_indices(size, grid).to(image.device)  # (H, W)
        ranked, window = self._candidates(model, image, label, grid)
        on_blur, on_black = (
            Responses(model, image, reference_inputs(blank, model, image, label), label, cells)
            for blank in (self.insertion, self.deletion)
        )
        count = len(ranked)
        whole = float(on_blur(torch.ones(1, count, dtype=torch.bool)))
        first = greedy(on_blur, ranked, count, window, enough=self.tau * whole)
        taken = set(first)
        rest = [place for place in reversed(ranked) if place not in taken]
        last = greedy(lambda masks: -on_black(masks), rest, count, window)
        order = torch.tensor([*first, *reversed(last)])
        return Order(order, on_blur(shown_first(order)), on_black(shown_first(order.flip(0))).flip(0), grid)

    def _grid(self, model: TargetModel, image: Tensor) -> tuple[int, int]:
        height, width = image.shape[-2:]
        blocks = model.structure(image.shape[1:]).blocks
        if self.grid is None and blocks:
            return blocks[0].layout.grid
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
    """The paper's choice where it is registered and fits the model, else Grad-CAM, else none."""
    able = model.structure(image.shape[1:]).capabilities
    guides = [METHODS[name]() for name in ("bidirectional", "grad_cam") if name in METHODS]
    return next((guide for guide in guides if guide.needs <= able), None)


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
    known: dict[bytes, float] = field(default_factory=dict)

    def __call__(self, masks: Tensor) -> Tensor:
        """Responses (R,) to masks (R, N)."""
        keys = [mask.numpy().tobytes() for mask in masks]
        new = [row for row, key in enumerate(keys) if key not in self.known]
        for row, score in zip(new, self._ask(masks[new]) if new else [], strict=True):
            self.known[keys[row]] = score
        return torch.tensor([self.known[key] for key in keys])

    def _ask(self, masks: Tensor) -> list[float]:
        def run(part: slice) -> Tensor:
            keep = masks[part].to(self.cells.device)[:, self.cells]  # (r, H, W)
            return self.model.scores(blend(self.image, self.blank, keep), self.label.expand(len(keep)))

        answers: list[float] = torch.cat(self.model.chunks.run(run, len(masks))).tolist()
        return answers


def greedy(ask: Ask, places: Sequence[int], count: int, window: int, enough: float = math.inf) -> list[int]:
    """Of `count` patches, the given `places` by how much each raises the response; it ends at `enough` (eq. 4).

    Each step looks at the `window` first that are free; of equal answers, the first wins.
    """
    left, taken = list(places), []
    shown = torch.zeros(1, count, dtype=torch.bool)
    response = float(ask(shown))
    while left and response < enough:
        candidates = torch.tensor(left[:window])
        answers = ask(shown.repeat(len(candidates), 1).scatter_(1, candidates[:, None], True))
        best = int(answers.argmax())
        response = float(answers[best])
        taken.append(left.pop(best))
        shown[0, taken[-1]] = True
    return taken


@dataclass(frozen=True)
class Order:
    """What the search found about one image.

    Attributes:
        places: patches (N,), most important first.
        inserted: responses (N + 1,) to the first 0, ..., N of them on the insertion reference.
        deleted: responses (N + 1,) without the first 0, ..., N of them on the deletion reference.
        grid: rows and columns of patches.
    """

    places: Tensor
    inserted: Tensor
    deleted: Tensor
    grid: tuple[int, int]

    def values(self, gamma: float = 0.0, kappa: float = 0.005) -> Tensor:
        """Patch values (h, w), strictly falling along the order."""
        rising = (normalised(self.inserted) + 1 - normalised(self.deleted.flip(0)).flip(0)) / 2  # eq. 7
        magnitudes = densify(order_weighted(concave_increments(rising)), gamma, kappa)  # (N,)
        return torch.zeros_like(magnitudes).scatter_(0, self.places, magnitudes).view(self.grid)


def normalised(responses: Tensor) -> Tensor:
    """A rising curve (N + 1,) from 0 to 1 by its ends, clipped and made monotone, as the MAS metric reads it."""
    responses = responses.double()
    span = (responses[-1] - responses[0]).abs().clamp(min=1e-12)
    return ((responses - responses[0]) / span).clamp(0, 1).cummax(dim=0).values


def order_weighted(increments: Tensor) -> Tensor:
    """`D_i + D_i (N - i) / N` (eq. 10), with a trace of the order where the increments (N,) are zero."""
    count = len(increments)
    left = torch.arange(count - 1, -1, -1, dtype=increments.dtype) / count  # (N - i) / N
    return increments * (1 + left) + TIE_BREAK * (left + 1 / count)


def densify(sparse: Tensor, gamma: float, kappa: float) -> Tensor:
    """Between the sparse values (N,) and their order, from `kappa` on (eq. 11-12)."""
    left = torch.arange(len(sparse) - 1, -1, -1, dtype=sparse.dtype) / len(sparse)
    return (1 - gamma) * sparse + gamma * torch.where(sparse >= kappa, left, sparse)

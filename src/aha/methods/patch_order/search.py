"""Search: the best order of an image's parts that a given number of model calls can buy.

Shapes: B images, R references; K parts of an image, index (H, W) the part of each pixel.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from aha.core.progress import part
from aha.core.validation import PositiveInt
from aha.errors import SpecError
from aha.methods.base import METHODS, Method, first_fitting, method
from aha.methods.cost import Cost
from aha.methods.patch_order.order_search import OrderSearch, Polish
from aha.methods.perturbation.part_orders import Objective, PartGame
from aha.models import TargetModel
from aha.perturb.partitions import Partition, Patches
from aha.perturb.perturbation import blend, filled, rank_pixels, step_counts
from aha.perturb.references import Black, Blur, Mean, Reference, reference_inputs

_GUIDES = ("aha", "bidirectional", "grad_cam")
_ENDS = ("amin", "amax")
_COMPARED = 8  # steps by which the result and its guide are compared
_LEAST_PIECE = 1 / 8  # of a part that is divided
_WITHIN = 0.9  # of the step from one part to the next
_DECIMALS = 6  # of an answer: beyond, it depends on the other images of its batch


@method("search", family="perturbation", citation="this package; lazy greedy search after Minoux, 1978")
@dataclass(frozen=True)
class Search(Method):
    """An order of parts that maximises the model's own Insertion minus Deletion: what is possible with these parts.

    Greedy from both ends: the part that adds most comes first, the one that is missed least comes last. A step asks
    again only about a window of parts, as wide as the budget allows (lazy greedy). With what is left of the budget,
    parts change places. Of all orders through the subsets that were asked about, the best is taken; where the budget
    allows all subsets to be asked about, it is the best order of these parts that there is. Values fall along the
    order; inside a part, pixels follow the guide. Last, this map and the guide's own, whose pixels know no parts, are
    compared by their areas in 8 steps, and the better one is returned.

    A search looks for what the metric rewards and nothing else: it is a measure for other methods rather than an
    explanation to trust.

    Formula: `argmax over orders of Insertion - Deletion`.
    Reads: outputs alone, and what the guide reads.
    Cost: at most `budget` forward passes, besides the guide's.
    Example: `search(budget=600, levels=8)`.

    Attributes:
        parts: what is ordered: `patches(grid=7)`, `slic(n=50)`, `cells(METHOD)`.
        objective: the area that is maximised; "insertion" and "deletion" alone cost half.
        budget: perturbed images shown to the model for one map; the guide's passes come on top.
        levels: the guide's order, cut into so many, divides each part into pixels that come early and pixels that come
            late; 1 keeps parts whole. With 8, a search starts from the guide's pixels instead of whole patches.
        polish: what is done with the budget that greedy search leaves: parts change places while that helps ("swaps"),
            or also where it does not, ever less ("anneal"); "none" spends all of it on wider windows.
        guide: the method whose order the search starts from; None for `aha` where the model has an explainer, else as
            in `mda`.
        reference: what removed parts look like; the answers to several of them are averaged.
    """

    parts: Partition = Patches(grid=7)
    objective: Objective = "ins_del"
    budget: PositiveInt = 1000
    levels: PositiveInt = 1
    polish: Polish = "swaps"
    guide: Method | None = None
    reference: Reference | tuple[Reference, ...] = field(default_factory=lambda: (Black(), Mean(), Blur()))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference == ():
            raise SpecError("search: at least one reference is needed")

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        guide = self.guide or starting_guide(model, images.shape[1:])
        hints = self._hints(guide, model, images, classes)  # (B, H, W)
        searched = [self._start(model, image, hint) for image, hint in zip(images, hints, strict=True)]
        indices = [index for _, index in searched]
        blanks = torch.stack([reference_inputs(r, model, images, classes) for r in self._kinds])  # (R, B, C, H, W)
        questions = _Questions(model, images, classes, blanks, self._kinds, self.budget)
        going: dict[int, Generator[list[int], None, list[int]]] = {
            row: search.run() for row, (search, _) in enumerate(searched)
        }
        orders: dict[int, list[int]] = {}
        while going:
            wanted: list[tuple[int, int]] = []
            for row, search in list(going.items()):
                try:
                    wanted += [(row, subset) for subset in next(search)]
                except StopIteration as end:
                    orders[row] = end.value
                    del going[row]
            for (row, subset), answer in questions.ask(wanted, indices).items():
                searched[row][0].game.answers[subset] = answer
        found = torch.stack([as_map(orders[row], indices[row], hint) for row, hint in enumerate(hints)])
        is_better = questions.values(found, self.objective) >= questions.values(hints, self.objective)  # (B,)
        return torch.where(is_better[:, None, None], found, hints).to(images)

    @property
    def references(self) -> list[Reference]:
        return [*self._kinds, *super().references]

    @property
    def _kinds(self) -> tuple[Reference, ...]:
        return self.reference if isinstance(self.reference, tuple) else (self.reference,)

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        subsets = self.budget * (
            200 + self.parts.count(size) * self.levels // 8
        )  # each a whole number of as many bits, and its answer
        return super().cost(model, size).then(Cost(self.budget, subsets))

    def fingerprint(self, model: TargetModel) -> str:
        if self.guide is not None or model.preprocessing is None:
            return super().fingerprint(model)
        guide = starting_guide(model)
        return f"{super().fingerprint(model)} {guide.fingerprint(model) if guide else ''}"

    def _start(self, model: TargetModel, image: Tensor, hint: Tensor) -> tuple[OrderSearch, Tensor]:
        index = divided(self.parts(model, image).cpu(), hint, self.levels)  # (H, W)
        pixels = torch.bincount(index.flatten()).double()  # (K,)
        means = torch.zeros_like(pixels).index_add_(0, index.flatten(), hint.flatten().double()) / pixels
        first = means.sort(descending=True, stable=True).indices.tolist()
        game = PartGame((pixels / pixels.sum()).tolist(), self.objective)
        kinds, compared = len(self._kinds), 2 * len(_shown(self.objective)) * (_COMPARED - 1)
        most = self.budget // kinds - compared
        least = len(_shown(self.objective)) * (len(first) + 1)
        if most < least:
            raise SpecError(
                f"search: budget={self.budget} is too small for {len(first)} parts and {kinds} references; "
                f"the guide's own order takes {kinds * (least + compared)}"
            )
        return OrderSearch(game, first, most, self.polish), index

    def _hints(self, guide: Method | None, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        """The guide's maps (B, H, W), on the CPU; how near the centre a pixel is where there is none, or it is NaN."""
        centred = METHODS["center_map"]()(model, images, classes).cpu()
        if guide is None:
            return centred
        maps = guide(model, images, classes).detach().float().cpu()
        hints = F.interpolate(maps[:, None], size=images.shape[-2:], mode="bilinear", align_corners=False)[:, 0]
        is_finite = hints.isfinite().flatten(1).all(dim=1)  # (B,)
        return torch.where(is_finite[:, None, None], hints, centred)


@dataclass
class _Questions:
    """What the model is asked about subsets of parts, of all images together; `budget` is that of one image."""

    model: TargetModel
    images: Tensor
    classes: Tensor
    blanks: Tensor
    kinds: tuple[Reference, ...]
    budget: int
    shown: int = 0

    def ask(self, wanted: list[tuple[int, int]], indices: list[Tensor]) -> dict[tuple[int, int], float]:
        """Image and subset -> the score of its class with these parts shown, mean of the references."""
        if not wanted:
            return {}
        kinds, total = len(self.blanks), len(self.images) * self.budget
        asked = [(kind, row, subset) for row, subset in wanted for kind in range(kinds)]

        def run(some: slice) -> Tensor:
            chosen = asked[some]
            keep = torch.stack([shown_pixels(subset, indices[row]) for _, row, subset in chosen])  # (r, H, W)
            return self._scores([(row, kind) for kind, row, _ in chosen], keep)

        with part(min(self.shown, total), min(self.shown + len(asked), total), total + 1):
            scores = torch.cat(self.model.chunks.run(run, len(asked)))
        self.shown += len(asked)
        means = scores.double().view(-1, kinds).mean(dim=1).round(decimals=_DECIMALS).tolist()
        return dict(zip(wanted, means, strict=True))

    def values(self, maps: Tensor, objective: Objective) -> Tensor:
        """The objective's mean height (B,) along the pixels of maps (B, H, W), without the ends that all have alike."""
        kinds, counts = len(self.blanks), step_counts(maps[0].numel(), _COMPARED)[1:-1]
        ranks = torch.stack([rank_pixels(values) for values in maps])
        shown = _shown(objective)
        asked = list(product(range(len(maps)), shown, counts, range(kinds)))

        def run(some: slice) -> Tensor:
            chosen = asked[some]
            keep = torch.stack(
                [ranks[row] < count if is_inserted else ranks[row] >= count for row, is_inserted, count, _ in chosen]
            )
            return self._scores([(row, kind) for row, _, _, kind in chosen], keep)

        scores = torch.cat(self.model.chunks.run(run, len(asked))).double().view(len(maps), len(shown), -1)
        signs = torch.tensor([1.0 if is_inserted else -1.0 for is_inserted in shown]).double()
        return (scores.cpu().mean(dim=2).round(decimals=_DECIMALS) * signs).sum(dim=1)

    def _scores(self, rows: list[tuple[int, int]], keep: Tensor) -> Tensor:
        """Scores (r,) of images, with references of these kinds, seen through keep masks (r, H, W)."""
        owners = torch.tensor([row for row, _ in rows], device=self.images.device)
        images, keep = self.images[owners], keep.to(self.images.device)
        blanks = torch.stack([self.blanks[kind, row] for row, kind in rows])
        blanks = filled(self.model, images, blanks, keep, [self.kinds[kind] for _, kind in rows])
        return self.model.scores(blend(images, blanks, keep), self.classes[owners])


def _shown(objective: Objective) -> tuple[bool, ...]:
    """The sequences that an objective is made of: with the first pixels alone (True), and without them (False)."""
    return {"ins_del": (True, False), "insertion": (True,), "deletion": (False,)}[objective]


def divided(index: Tensor, hint: Tensor, levels: int) -> Tensor:
    """Parts (H, W), each divided where a cut of the hint's order (H, W) into equal levels goes through it.

    Pieces of less than an eighth of their part stay with those of the level before: to ask about them costs as much as
    about large ones.
    """
    ranks = rank_pixels(hint, ties="raster").flatten()
    level = ranks * levels // ranks.numel()  # (HW,)
    flat = index.flatten()
    sizes = torch.bincount(flat * levels + level, minlength=(int(flat.max()) + 1) * levels).view(-1, levels)
    least, left = sizes.sum(dim=1) * _LEAST_PIECE, sizes.flip(1).cumsum(dim=1).flip(1)  # (K,), (K, levels)
    piece, gathered = torch.zeros_like(sizes), torch.zeros_like(sizes[:, 0])
    for cut in range(1, levels):
        gathered = gathered + sizes[:, cut - 1]
        begins = (gathered >= least) & (left[:, cut] >= least)
        piece[:, cut] = piece[:, cut - 1] + begins
        gathered = gathered * ~begins
    numbers = flat * levels + piece[flat, level]
    without_gaps: Tensor = torch.unique(numbers, return_inverse=True)[1]
    return without_gaps.view(index.shape)


def shown_pixels(subset: int, index: Tensor) -> Tensor:
    """Where (H, W) the parts of a subset are."""
    count = int(index.max()) + 1
    return torch.tensor([bool(subset >> place & 1) for place in range(count)])[index]


def as_map(order: list[int], index: Tensor, hint: Tensor) -> Tensor:
    """Values (H, W) that fall along the order, between 0 and 1; inside a part they follow the hint (H, W)."""
    count, flat, values = len(order), index.flatten(), hint.flatten().double()
    left = torch.empty(count, dtype=torch.double)
    left[torch.tensor(order)] = torch.arange(count - 1, -1, -1, dtype=torch.double)  # parts that follow
    low, high = (torch.empty(count).double().scatter_reduce_(0, flat, values, how, include_self=False) for how in _ENDS)
    # Where a part's hints hardly differ, their differences are rounding and must not be blown up.
    span = (high - low).clamp(min=1e-3 * float(values.max() - values.min()) or 1.0)
    within = (values - low[flat]) / span[flat]  # in [0, 1]
    return ((left[flat] + _WITHIN * within) / count).view(index.shape).float()


def starting_guide(model: TargetModel, size: Sequence[int] | None = None) -> Method | None:
    """AHA where it can read the model, else what MDA starts from; None where none of them fits."""
    return first_fitting(_GUIDES, model, size)

"""TIS: the score of an image of which the transformer is shown only some tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aha.core.progress import in_parts
from aha.core.validation import Fraction, PositiveInt
from aha.methods.base import Method, method, runs_of_one_image, seeded_generator
from aha.methods.cost import Cost
from aha.methods.stretching import stretched
from aha.models import TargetModel


@method("tis", family="perturbation", needs={"tokens"}, citation="Englebert et al., ICCVW 2023")
@dataclass(frozen=True)
class TIS(Method):
    """Mean score of the samples that contain a token; in each, only the kept tokens go through the model.

    1. The outputs of all blocks give one vector over the N patch tokens for each of their L * D channels.
    2. The centres of k-means clusters of these vectors are the samples' preferences; each keeps its top share.
    3. `M_j = sum_m p_m b_mj / sum_m b_mj`, `p_m` being the score with the tokens `b_m` and those without a place.
    4. M is stretched to [0, 1], as the published code ends: a mean of scores stands on an offset that says nothing
       about places.

    Reads: the tokens of every block, and outputs of some of the tokens.
    Cost: one forward pass, and at most `masks` with the share `ratio` of the tokens.
    Example: `tis(masks=256)`.

    Attributes:
        masks: how many samples; at most one for two channels.
        ratio: share of the patch tokens that a sample keeps.
        seed: of the first cluster centres.
    """

    masks: PositiveInt = 1024
    ratio: Fraction = 0.5
    seed: int | None = None

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        layout = model.structure(size).blocks[0].layout
        places = layout.grid[0] * layout.grid[1]
        shown = self.masks * (layout.prefix + self._count(places))  # tokens through each block
        return Cost(-(-shown // (layout.prefix + places)) + 1)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        layout = model.structure(images.shape[1:]).blocks[0].layout
        maps = []
        # Image by image: clusters would follow the rounding of a larger batch.
        for rows in in_parts([*runs_of_one_image(images)]):
            image = images[rows][:1]
            tokens = model.block_states(image).tokens  # L + 1 of (1, T, D)
            kept = self._samples(tokens[1:], layout.prefix)  # (M, k)
            shown = torch.zeros(len(kept), tokens[0].shape[1] - layout.prefix, device=kept.device)  # (M, N)
            shown.scatter_(1, kept, 1)
            outputs = model.outputs_of_tokens(image, subsets(tokens[0], kept, layout.prefix))  # (M, K)
            for label in classes[rows]:
                scores = model.score(outputs, label.expand(len(outputs))).to(shown)  # (M,)
                maps.append((scores @ shown / shown.sum(dim=0).clamp(min=1)).view(layout.grid))
        return stretched(torch.stack(maps)).to(images)  # (B, h, w)

    def refusal(self, model: TargetModel, size: Sequence[int] | None = None) -> str:
        why = model.block_limits(size).tokens
        return f"it cannot be run on some of its tokens: {why}" if why else ""

    def _samples(self, tokens: list[Tensor], prefix: int) -> Tensor:
        """Indices (M, k) of the patch tokens that each sample keeps, in order."""
        vectors = torch.cat([layer[0, prefix:] for layer in tokens], dim=1).T.contiguous()  # (L * D, N)
        count = max(1, min(self.masks, len(vectors) // 2))
        vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
        centres = k_means(vectors, count, seeded_generator(self.seed))  # (M, N)
        return centres.topk(self._count(centres.shape[1]), dim=1).indices.sort(dim=1).values

    def _count(self, places: int) -> int:
        """Of so many patch tokens, how many a sample keeps."""
        return max(1, int(self.ratio * places))


def subsets(tokens: Tensor, kept: Tensor, prefix: int) -> Tensor:
    """For each row of `kept` (M, k), those patch tokens of (1, T, D) behind the ones without a place."""
    return torch.cat([tokens[:, :prefix].expand(len(kept), -1, -1), tokens[0, prefix + kept]], dim=1)


def k_means(points: Tensor, count: int, generator: torch.Generator, iterations: int = 100) -> Tensor:
    """Centres (count, N) of the points (M, N) by Lloyd's algorithm, begun at random points of theirs."""
    centres = points[torch.randperm(len(points), generator=generator)[:count].to(points.device)]
    for _ in range(iterations):
        nearest = (centres.square().sum(dim=1) - 2 * points @ centres.T).argmin(dim=1)  # (M,)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        sizes = nearest.bincount(minlength=count)[:, None]
        moved = torch.where(sizes > 0, sums / sizes.clamp(min=1), centres)  # an empty cluster stays where it is
        if torch.equal(moved, centres) or (moved - centres).square().sum() <= 1e-4:
            return moved
        centres = moved
    return centres

"""ViT-CX: clustered feature maps as masks, each weighted by its causal effect on the score."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from aha.core.progress import in_parts
from aha.core.validation import NonNegativeFloat
from aha.methods.base import Method, method, runs_of_one_image, seeded_generator
from aha.methods.cost import Cost, channels_read
from aha.methods.stretching import stretched
from aha.models import TargetModel


@method("vit_cx", family="perturbation", needs={"features"}, citation="Xie et al., IJCAI 2023")
@dataclass(frozen=True)
class ViTCX(Method):
    """`M = (1 / K) sum_k s_k m_k / sum_k m_k`, `s_k = p(x m_k + e_k) - p(x + e_k) + p(x)`, `e_k` noise where m_k hides.

    1. Each channel of the tokens that the last attention reads, enlarged and stretched to [0, 1], is a mask.
    2. Masks whose cosine distance is below `threshold` are added up (complete linkage) and stretched again: K masks.
    3. The noise keeps masked areas from looking like something; what it does by itself is subtracted.
    4. M is stretched to [0, 1], as MDA's code does before it looks at magnitudes: as a mean of scores it stands on an
       offset that says nothing about places.

    For other networks the deepest stage on which the outputs depend takes the place of the tokens.

    Reads: the features of one stage, or the last tokens.
    Cost: one forward pass, and two for each cluster of channels.
    Example: `vit_cx(threshold=0.2)`.

    Attributes:
        threshold: of the clustering.
        noise: standard deviation, in units of the normalised image.
        seed: of the noise.
    """

    threshold: NonNegativeFloat = 0.1
    noise: NonNegativeFloat = 0.1
    seed: int | None = None

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        # At most a mask for each channel: enlarged, stretched, chosen from and normalised before any is added up.
        channels = channels_read(model)
        return Cost(2 * channels + 1, 4 * 4 * channels * size[0] * size[1])

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        stage = model.cam_stage(images.shape[1:])
        maps = []
        # One by one, each by a pass of its own (there is no `reads`): clusters would follow the rounding of a larger
        # batch, or of a pass whose attention is read by other methods.
        for rows in in_parts([*runs_of_one_image(images)]):
            image = images[rows][:1]
            (features,), outputs = model.features(image, [stage])
            masks = clustered_masks(
                features[0].float(), (image.shape[-2], image.shape[-1]), self.threshold
            )  # (K, H, W)
            masked, noisy = self._ask(model, image, masks.to(image))  # (K, classes) each
            for label in classes[rows]:
                seen, alone, whole = (model.score(x, label.expand(len(x))) for x in (masked, noisy, outputs))
                maps.append(weighted(masks, (seen - alone + whole).to(masks)))
        return stretched(torch.stack(maps)).to(images)  # (B, H, W)

    def _ask(self, model: TargetModel, image: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (K, classes) for the masked images with noise, and for the image with the same noise."""
        # Each mask has noise of its own, whatever the chunks are.
        seeds = torch.randint(2**62, (len(masks),), generator=seeded_generator(self.seed)).tolist()

        def run(part: slice) -> Tensor:
            keep = masks[part, None]  # (k, 1, H, W)
            draws = [torch.randn(image.shape[1:], generator=seeded_generator(seed)) for seed in seeds[part]]
            noise = self.noise * torch.stack(draws).to(image) * (1 - keep)  # (k, C, H, W)
            return model.outputs(torch.cat([image * keep + noise, image + noise])).view(2, len(keep), -1)

        masked, noisy = torch.cat(model.chunks.run(run, len(masks)), dim=1)
        return masked, noisy


def clustered_masks(features: Tensor, size: tuple[int, int], threshold: float) -> Tensor:
    """Masks (K, H, W) in [0, 1] from the channels of a feature map (C, h, w); flat channels show nothing."""
    large = F.interpolate(features[None], size=size, mode="bilinear", align_corners=False)[0]
    masks = stretched(large)  # (C, H, W)
    masks = masks[masks.flatten(1).amax(dim=1) > 0]
    if not len(masks):
        return masks.new_ones(1, *size)
    groups = complete_linkage(cosine_distances(masks).cpu().numpy(), threshold)
    return stretched(torch.stack([masks[group].sum(dim=0) for group in groups]))


def cosine_distances(masks: Tensor) -> Tensor:
    """Of each mask (N, H, W) to each other, (N, N)."""
    unit = F.normalize(masks.flatten(1), dim=1)
    return 1 - unit @ unit.T


def weighted(masks: Tensor, scores: Tensor) -> Tensor:
    """Sum (H, W) of masks (K, H, W) times scores (K,), corrected for how often each pixel was shown."""
    coverage = masks.sum(dim=0)
    total = torch.einsum("k,khw->hw", scores, masks)
    return torch.where(coverage > 0, total / coverage.clamp(min=1e-12), 0) / len(masks)


def complete_linkage(distances: NDArray[np.floating], threshold: float) -> list[list[int]]:
    """Clusters of indices, merged while the farthest members of two clusters are nearer than `threshold`.

    By chains of nearest neighbours: two clusters that are nearest to each other are merged at once, which for complete
    linkage gives the same tree as always merging the nearest pair, in quadratic time.
    """
    apart = distances.astype(np.float64)  # a copy, which shrinks in place
    np.fill_diagonal(apart, np.inf)
    members = {index: [index] for index in range(len(apart))}
    return sorted(_merge(apart, members, threshold))


def _merge(apart: NDArray[np.float64], members: dict[int, list[int]], threshold: float) -> Iterator[list[int]]:
    chain: list[int] = []
    while members:
        if not chain:
            chain.append(next(iter(members)))
        here = chain[-1]
        near = int(apart[here].argmin())
        if len(chain) > 1 and apart[here, chain[-2]] <= apart[here, near]:
            near = chain[-2]
        if apart[here, near] >= threshold:  # merging others only moves them away: it stays as it is
            yield sorted(members.pop(here))
            apart[here] = apart[:, here] = np.inf
            chain.pop()
        elif len(chain) > 1 and near == chain[-2]:
            del chain[-2:]
            members[near] += members.pop(here)
            apart[near] = apart[:, near] = np.maximum(apart[near], apart[here])
            apart[here] = apart[:, here] = np.inf
            apart[near, near] = np.inf
        else:
            chain.append(near)

"""Simple deletion: what the model misses when a small window of patches is gone."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from aha.methods.base import method
from aha.methods.perturbation.simple_insertion import PatchWindows
from aha.perturb.masking import MaskedModel


@method("simple_deletion", family="perturbation", citation="Izadi et al., arXiv 2603.13652 (baseline)")
@dataclass(frozen=True)
class SimpleDeletion(PatchWindows):
    """Score of the image minus its score with the window around a patch replaced by the blank.

    Formula: `M_i = score(x) - score(x without the window around i)`.
    Reads: outputs alone.
    Cost: one forward pass for each patch and one more.
    Example: `simple_deletion(window=5)`.
    """

    def _explain(self, masked: MaskedModel) -> Tensor:
        whole = masked.scores_at(1.0)  # (1, k)
        return whole.T[:, :, None] - self._window_scores(masked, keep=False)

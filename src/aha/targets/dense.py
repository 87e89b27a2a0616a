"""Scores of classes at every place (B, K, h, w), in what segmentation networks return.

torchvision (DeepLabV3, FCN, LR-ASPP) returns them as `out`, SegFormer as `logits`; Mask2Former and MaskFormer have
masks and the classes of masks; a classifier that was turned fully convolutional returns them as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from aha.errors import ModelError

_NAMES = ("out", "logits", "masks", "segmentation")


def dense_scores(returned: Any) -> Tensor:
    """Scores (B, K, h, w) of every class at every place."""
    if isinstance(returned, Tensor) and returned.dim() == 4:
        return returned
    masks, classes = (_entry(returned, name) for name in ("masks_queries_logits", "class_queries_logits"))
    if masks is not None and classes is not None:
        # As its own post-processing reads them; the last class is "no object".
        return torch.einsum("bqk,bqhw->bkhw", classes.softmax(dim=-1)[..., :-1], masks.sigmoid())
    for name in _NAMES:
        found = _entry(returned, name)
        if found is not None and found.dim() == 4:
            return found
    if isinstance(returned, tuple | list):
        dense = [one for one in returned if isinstance(one, Tensor) and one.dim() == 4]
        if len(dense) == 1:
            return dense[0]
    shape = f" of shape {tuple(returned.shape)}" if isinstance(returned, Tensor) else ""
    raise ModelError(
        f"the model returned a {type(returned).__name__}{shape}, not scores of classes at places (B, K, h, w); "
        "say where they are: load_model(..., output=...)"
    )


def _entry(returned: Any, name: str) -> Tensor | None:
    found = returned.get(name) if isinstance(returned, Mapping) else getattr(returned, name, None)
    return found if isinstance(found, Tensor) else None

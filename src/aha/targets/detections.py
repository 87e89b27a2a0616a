"""Candidates of detectors: boxes with a score of each class, before anything is suppressed.

What a detector returns at last is a list that changes length; the candidates behind it are always there, and their
scores have gradients. torchvision's detectors are read inside, DETR and its kin, Ultralytics' YOLO and whatever returns
`boxes` and `scores` from what they return.

Shapes, of one image: boxes (N, 1 or K, 4) as x0, y0, x1, y1 in pixels of the input; scores (N, K) from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from aha.errors import ModelError
from aha.models.explained import Answer

_TWO_STAGES = ("transform", "rpn", "roi_heads.box_predictor")  # Faster R-CNN, Mask R-CNN
_ONE_STAGE = ("transform", "head", "anchor_generator")  # RetinaNet, FCOS, SSD
_SCORED_ALONE = ("rtdetr", "deformabledetr", "dfine", "groundingdino")  # no class for "none", in transformers


class Candidates(NamedTuple):
    """Of one image."""

    boxes: Tensor
    scores: Tensor


def parts_read(module: nn.Module) -> tuple[str, ...]:
    """The parts of a network whose outputs the candidates are made of; none where what it returns is enough."""
    names = {name for name, _ in module.named_modules()}
    return next((parts for parts in (_TWO_STAGES, _ONE_STAGE) if names.issuperset(parts)), ())


def candidates(module: Any, answer: Answer) -> list[Candidates]:
    """The candidates of each image."""
    if "rpn" in answer.inside:
        return _of_two_stages(module, answer)
    if "anchor_generator" in answer.inside:
        return _of_one_stage(module, answer)
    return _of_returned(answer)


def _of_two_stages(module: Any, answer: Answer) -> list[Candidates]:
    proposals = answer.inside["rpn"][0]  # B times (n, 4)
    logits, deltas = answer.inside["roi_heads.box_predictor"]
    counts = [len(found) for found in proposals]
    boxes = module.roi_heads.box_coder.decode(deltas, proposals).split(counts)  # each (n, K, 4)
    scores = torch.split(_without_first(logits.softmax(dim=1)), counts)
    return [Candidates(_scaled(b, i, answer), s) for i, (b, s) in enumerate(zip(boxes, scores, strict=True))]


def _of_one_stage(module: Any, answer: Answer) -> list[Candidates]:
    head, anchors = answer.inside["head"], answer.inside["anchor_generator"]
    logits, deltas = head["cls_logits"], head["bbox_regression"]
    if "bbox_ctrness" in head:
        scores = (logits.sigmoid() * head["bbox_ctrness"].sigmoid()).sqrt()
    elif hasattr(module, "topk_candidates") and type(module).__name__ == "SSD":
        scores = _without_first(logits.softmax(dim=-1))
    else:
        scores = logits.sigmoid()
    decode = getattr(module.box_coder, "decode_single", None) or module.box_coder.decode
    return [
        Candidates(_scaled(decode(deltas[i], anchors[i])[:, None], i, answer), scores[i]) for i in range(answer.count)
    ]


def _of_returned(answer: Answer) -> list[Candidates]:
    returned = answer.read
    height, width = answer.size
    boxes, scores = _entry(returned, "boxes"), _entry(returned, "scores")
    if boxes is None or scores is None:
        boxes, logits = _entry(returned, "pred_boxes"), _entry(returned, "logits")
        if boxes is not None and logits is not None:
            boxes = _corners(boxes) * boxes.new_tensor([width, height, width, height])
            # DETR has a last class for "none"; those that were trained by a focal loss score each class alone.
            is_alone = any(word in type(returned).__name__.lower() for word in _SCORED_ALONE)
            scores = logits.sigmoid() if is_alone else logits.softmax(dim=-1)[..., :-1]
    first = returned[0] if isinstance(returned, tuple | list) and returned else returned
    is_yolo = isinstance(first, Tensor) and first.dim() == 3 and 4 < first.shape[1] < first.shape[2]
    if (boxes is None or scores is None) and is_yolo:  # Ultralytics: (B, 4 + K, N), centres and sizes in pixels
        boxes, scores = _corners(first[:, :4].movedim(1, 2)), first[:, 4:].movedim(1, 2)
    if boxes is None or scores is None or boxes.dim() != 3 or scores.dim() != 3:
        raise ModelError(
            f"the model returned a {type(returned).__name__} without candidates; let output= return a dict with "
            "boxes (B, N, 4), as x0, y0, x1, y1 in pixels of the input, and scores (B, N, K)"
        )
    return [Candidates(b[:, None], s) for b, s in zip(boxes, scores, strict=True)]


def _without_first(scores: Tensor) -> Tensor:
    """Scores (..., K) without the background's, which comes first and is no object."""
    return torch.cat([torch.zeros_like(scores[..., :1]), scores[..., 1:]], dim=-1)


def _corners(boxes: Tensor) -> Tensor:
    """Centres and sizes as corners."""
    centre, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat([centre - size / 2, centre + size / 2], dim=-1)


def _scaled(boxes: Tensor, image: int, answer: Answer) -> Tensor:
    """Boxes (N, k, 4) of the resized image in pixels of the input."""
    height, width = answer.inside["transform"][0].image_sizes[image]
    scale = boxes.new_tensor([answer.size[1] / width, answer.size[0] / height] * 2)
    return boxes * scale


def _entry(returned: Any, name: str) -> Tensor | None:
    found = returned.get(name) if isinstance(returned, Mapping) else getattr(returned, name, None)
    return found if isinstance(found, Tensor) else None


def overlap(boxes: Tensor, box: Tensor) -> Tensor:
    """Intersection over union (...,) of boxes (..., 4) with one (4,)."""
    low, high = torch.maximum(boxes[..., :2], box[:2]), torch.minimum(boxes[..., 2:], box[2:])
    shared = (high - low).clamp(min=0).prod(dim=-1)
    sizes = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(dim=-1)
    return shared / (sizes + (box[2:] - box[:2]).prod() - shared).clamp(min=1e-9)

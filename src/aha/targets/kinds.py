"""Which kinds of number a network's outputs hold: of classes, of places, or of boxes."""

from __future__ import annotations

from typing import Literal

import torch

from aha.errors import AhaError
from aha.models import TargetModel
from aha.targets.base import Number
from aha.targets.boxes import Box
from aha.targets.regions import Region

Kind = Literal["box", "region", "class"]
PLAIN: dict[Kind, Number] = {"box": Box(0, 0, 1, 1, cls=0), "region": Region(cls=0)}
"""A target of each kind that is bound to no image: enough to know which methods fit."""


def kind_of(model: TargetModel) -> Kind:
    """Whether a model detects, segments or classifies; found by passes of zeros.

    Raises:
        ModelError: It does none of these.
    """
    zeros = torch.zeros(1, *model.input_shape(None), device=model.device)
    for kind, target in PLAIN.items():
        try:
            target.view(model).outputs(zeros)
        except AhaError:
            continue
        return kind
    _ = model.num_classes
    return "class"


def fitting_view(model: TargetModel, kind: Kind) -> TargetModel:
    """The model as methods see it, for what its outputs hold."""
    return PLAIN[kind].view(model) if kind in PLAIN else model

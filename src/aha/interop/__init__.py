"""Thin adapters, so that methods of ours drop into pipelines made for captum and Quantus."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aha.api import explain
from aha.methods import Method, load_method
from aha.models import TargetModel, load_model


class CaptumAttribution:
    """A method in captum's shape: `CaptumAttribution(model, "grad_cam").attribute(inputs, target=classes)`."""

    def __init__(self, model: TargetModel | nn.Module, method: str | Method, *, seed: int = 0) -> None:
        self.model = load_model(model)
        self.method = load_method(method)
        self.seed = seed

    @overload
    def attribute(self, inputs: Tensor, target: int | Tensor | None = None) -> Tensor: ...

    @overload
    def attribute(self, inputs: tuple[Tensor], target: int | Tensor | None = None) -> tuple[Tensor]: ...

    def attribute(self, inputs: Tensor | tuple[Tensor], target: int | Tensor | None = None) -> Tensor | tuple[Tensor]:
        """Attributions of the shape of `inputs` (B, C, H, W); their sum over channels is the map.

        Args:
            inputs: model inputs, or a tuple of one tensor, which gives a tuple: captum's metrics call so.
            target: class index for all, or one per input; the predicted class if left out.
        """
        if isinstance(inputs, tuple):
            (only,) = inputs
            return (self.attribute(only, target),)
        chosen: Any = "top1" if target is None else target
        if isinstance(target, Tensor) and target.dim() == 1:
            chosen = target.view(-1, 1)  # one class for each image, also where there is only one image
        maps = explain(self.model, inputs, self.method, chosen, seed=self.seed, progress=False).maps.to(inputs)
        return (maps / inputs.shape[1])[:, None].expand_as(inputs).clone()


def explain_func(
    model: TargetModel | nn.Module,
    inputs: NDArray[np.floating[Any]] | Tensor,
    targets: NDArray[np.integer[Any]] | Tensor | int,
    *,
    method: str | Method = "grad_cam",
    seed: int = 0,
    **_ignored: Any,
) -> NDArray[np.float32]:
    """Quantus' `explain_func`: maps (B, 1, H, W) for inputs (B, C, H, W).

    Quantus passes further keywords of its own (`device`, `softmax`, ...), which do not concern us.
    """
    batch = torch.as_tensor(inputs, dtype=torch.float32)
    classes = torch.as_tensor(targets, dtype=torch.int64).reshape(-1, 1).expand(len(batch), -1)
    return explain(model, batch, method, classes, seed=seed, progress=False).numpy()[:, None]

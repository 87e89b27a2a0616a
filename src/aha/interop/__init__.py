"""Thin adapters, so that methods of ours drop into pipelines made for captum and Quantus."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aha.api import explain
from aha.errors import SpecError
from aha.methods import Method, load_method
from aha.models import AnyModel, TargetModel, load_model
from aha.perturb.references import Reference, ZerosNormalised, load_reference, reference_inputs

__all__ = ["CaptumAttribution", "explain_func"]


@dataclass(frozen=True, eq=False)
class _GivenInputs(Reference):
    """A baseline that the caller has made himself, as model inputs (C, H, W); it has no text, and so no name."""

    is_pixels: ClassVar[bool] = False

    inputs: Tensor

    def __call__(self, model: TargetModel, pixels: Tensor, classes: Tensor) -> Tensor:
        """The same for every image."""
        return model.to_pixels(self.inputs.to(pixels).expand_as(pixels))

    def __str__(self) -> str:
        return "given"


Baselines = Tensor | float | str | Reference | None


class CaptumAttribution:
    """A method in captum's shape: `CaptumAttribution(model, "grad_cam").attribute(inputs, target=classes)`.

    Args:
        model: as `aha.load_model` takes it.
        method: text, or a method.
        layer: for methods that read one: a module of the network, or its name.
        seed: for methods that draw random numbers.
    """

    def __init__(
        self, model: AnyModel, method: str | Method, layer: nn.Module | str | None = None, *, seed: int = 0
    ) -> None:
        self.model = load_model(model)
        self.method = load_method(method)
        self.seed = seed
        if layer is not None:
            name = layer if isinstance(layer, str) else self.model.layer_name(layer)
            self.method = _with(self.method, "layer", name, "layer")

    @overload
    def attribute(
        self,
        inputs: Tensor,
        target: Any = None,
        *,
        baselines: Baselines = None,
        n_steps: int | None = None,
        return_convergence_delta: Literal[False] = False,
    ) -> Tensor: ...

    @overload
    def attribute(
        self,
        inputs: tuple[Tensor],
        target: Any = None,
        *,
        baselines: Baselines | tuple[Tensor] = None,
        n_steps: int | None = None,
        return_convergence_delta: Literal[False] = False,
    ) -> tuple[Tensor]: ...

    @overload
    def attribute(
        self,
        inputs: Tensor,
        target: Any = None,
        *,
        baselines: Baselines = None,
        n_steps: int | None = None,
        return_convergence_delta: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...

    def attribute(
        self,
        inputs: Tensor | tuple[Tensor],
        target: int | Tensor | None = None,
        *,
        baselines: Baselines | tuple[Tensor] = None,
        n_steps: int | None = None,
        return_convergence_delta: bool = False,
    ) -> Any:
        """Attributions of the shape of `inputs` (B, C, H, W); their sum over channels is the map.

        Args:
            inputs: model inputs, or a tuple of one tensor, which gives a tuple: captum's metrics call so.
            target: class index for all, or one per input; the predicted class if left out.
            baselines: where the path starts, or what stands in for removed pixels: a number, model inputs for one image
                or for each, or one of our references by its name, such as "black" or "blur".
            n_steps: our `steps`.
            return_convergence_delta: also give, for each input, how far its values miss the sum that they should have,
                `score(inputs) - score(baselines)`.
        """
        (only,) = inputs if isinstance(inputs, tuple) else (inputs,)
        start = baselines[0] if isinstance(baselines, tuple) else baselines
        method = self.method if n_steps is None else _with(self.method, "steps", n_steps, "n_steps")
        maps, deltas = self._explain(
            method, only, "top1" if target is None else target, start, return_convergence_delta
        )
        spread = (maps / only.shape[1])[:, None].expand_as(only).clone()
        found = (spread,) if isinstance(inputs, tuple) else spread
        return (found, deltas) if return_convergence_delta else found

    def _explain(
        self, method: Method, inputs: Tensor, target: Any, baselines: Baselines, with_deltas: bool
    ) -> tuple[Tensor, Tensor]:
        """Maps (B, H, W), and how far their sums are off (B,) if that is asked for."""
        if isinstance(baselines, Tensor) and baselines.dim() == 4 and len(baselines) > 1:  # one for each image
            if len(baselines) != len(inputs):
                raise SpecError(
                    f"{len(baselines)} baselines for {len(inputs)} inputs; give one for all, or one for each"
                )
            alike = isinstance(target, str)
            rows = [target] * len(inputs) if alike else [*torch.as_tensor(target).expand(len(inputs))[:, None]]
            each = zip(inputs, rows, baselines, strict=True)
            parts = [self._explain(method, image[None], row, own, with_deltas) for image, row, own in each]
            maps, deltas = (torch.cat(values) for values in zip(*parts, strict=True))
            return maps, deltas
        if baselines is not None:
            method = _with(method, "reference", _reference(baselines, inputs), "baselines")
        found = explain(self.model, inputs, method, target, seed=self.seed, progress=False)
        maps = found.maps.to(inputs)
        return maps, self._deltas(method, inputs, found.targets, maps) if with_deltas else maps.new_zeros(len(maps))

    def _deltas(self, method: Method, inputs: Tensor, classes: Tensor, maps: Tensor) -> Tensor:
        start = getattr(method, "reference", None)
        if method.name not in _COMPLETE or not isinstance(start, Reference) or getattr(method, "channels", "") != "sum":
            raise SpecError(
                f"{method}: return_convergence_delta is for methods whose values sum to score(inputs) - "
                f"score(baselines): {' and '.join(_COMPLETE)}, from a baseline, with channels='sum'"
            )
        score = self.model.score.differentiated()
        with torch.no_grad():
            at_start = reference_inputs(start, self.model, inputs.to(self.model.device), classes)
            ends = [score(self.model.outputs(values), classes) for values in (inputs, at_start)]
        return maps.sum(dim=(1, 2)) - (ends[0] - ends[1]).to(maps)


_COMPLETE = ("integrated_gradients", "gradient_shap")


def _with(method: Method, name: str, value: Any, captums: str) -> Method:
    """The method with another value of a parameter, which captum calls by its own name."""
    if name not in {field.name for field in fields(method)}:
        raise SpecError(f"{method.name} has no {name}; leave out {captums}=")
    return replace(method, **{name: value})


def _reference(baselines: Tensor | float | str | Reference, inputs: Tensor) -> Reference:
    if isinstance(baselines, str | Reference):
        return load_reference(baselines)
    if isinstance(baselines, Tensor):
        values = baselines[0] if baselines.dim() == 4 else baselines
        try:
            return _GivenInputs(values.expand(inputs.shape[1:]))
        except RuntimeError:
            shapes = f"{tuple(baselines.shape)} for inputs of {tuple(inputs.shape)}"
            raise SpecError(f"baselines={shapes}; give one for all images, or one for each") from None
    return ZerosNormalised() if baselines == 0 else _GivenInputs(inputs.new_full(inputs.shape[1:], baselines))


def explain_func(
    model: AnyModel,
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

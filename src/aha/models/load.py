"""`load_model`: a spec text or any nn.Module becomes a TargetModel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from aha.errors import ModelError, SpecError
from aha.models.hooks import preserved_random_state
from aha.models.outputs import OutputReader
from aha.models.sources import SOURCES, Loaded, Request, default_device
from aha.models.target import Precision, TargetModel
from aha.preprocessing import Fit, Preprocessing
from aha.scores import Score, ScoreFunction, load_score

Size = int | Sequence[int]


def load_model(
    model: str | nn.Module | TargetModel,
    *,
    weights: str | Path | None = None,
    pretrained: bool = True,
    input_size: Size | None = None,
    img_size: Size | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    fit: Fit | None = None,
    class_names: Sequence[str] | None = None,
    score: str | ScoreFunction | Score = "softmax",
    output: OutputReader = None,
    device: str | torch.device | None = None,
    precision: Precision = "float32",
    batch_size: int = 32,
) -> TargetModel:
    """The model to explain.

    Args:
        model: `timm:NAME[.TAG]`, `torchvision:NAME`, `hf:REPOSITORY_OR_FOLDER`, `demo:efficientnet_lite0`, or a module.
            A module stays the caller's: its device, mode and flags are never changed.
        weights: a .safetensors file, or a PyTorch file that holds only tensors; fetched from the hub if left out.
        pretrained: False gives random weights, the same ones each time.
        input_size: size of the model input: one number, (H, W) or (C, H, W). `img_size` is timm's word for it.
        mean: per-channel mean of the normalisation; with `input_size` and `std`, needed to explain pictures with a
            plain module. Tensors need none of them: they are model inputs already.
        std: per-channel standard deviation of the normalisation.
        fit: "crop" (resize and centre crop), "squash" (whole picture, aspect lost) or "pad".
        class_names: one name per class, for pictures and manifests.
        score: what is reported and measured: softmax, log_softmax, sigmoid, logit, regression, or a function
            `(outputs (B, K), classes (B,)) -> (B,)`. Methods differentiate its logit unless told otherwise.
        output: where the class outputs are in what the model returns: a key, an index or a function.
        device: for specs; the best one at hand by default.
        precision: float32, or bfloat16/float16 autocast for forward passes without gradients.
        batch_size: most images per forward pass; halved by itself when memory runs out.
    """
    if isinstance(model, TargetModel):
        return model
    size = _height_width(input_size if input_size is not None else img_size)
    if isinstance(model, nn.Module):
        if device is not None and torch.device(device) != _device_of(model):
            raise ModelError(f"the module is on {_device_of(model)}; move it yourself: module.to({str(device)!r})")
        preprocessing = _stated(size, mean, std, fit or "crop")
        loaded = Loaded(model, preprocessing, None) if preprocessing else None
        spec, module = f"module:{type(model).__name__}", model
    else:
        loaded = _from_spec(model, Request(None if weights is None else Path(weights), pretrained, size))
        module = loaded.module.requires_grad_(False).eval().to(_usable(device))
        preprocessing, spec = _overridden(loaded.preprocessing, mean, std, fit), model
    return TargetModel(
        module,
        spec=spec,
        preprocessing=preprocessing,
        score=load_score(score),
        output=output,
        class_names=class_names if class_names is not None or loaded is None else loaded.class_names,
        precision=precision,
        batch_size=batch_size,
    )


def _from_spec(spec: str, request: Request) -> Loaded:
    source, colon, name = spec.partition(":")
    if not colon or not name:
        raise SpecError(f"cannot read model {spec!r}; write SOURCE:NAME with a source of {', '.join(SOURCES)}")
    with preserved_random_state(seed=0):  # random initial weights neither disturb nor depend on the caller's state
        return SOURCES[source](name, request)


def _height_width(size: Size | None) -> tuple[int, int] | None:
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    if len(sides) != 2 or min(sides) < 1:
        raise ModelError(f"input size {size!r} is not a number, (H, W) or (C, H, W)")
    return int(sides[0]), int(sides[1])


def _stated(
    size: tuple[int, int] | None, mean: Sequence[float] | None, std: Sequence[float] | None, fit: Fit
) -> Preprocessing | None:
    if size is None and mean is None and std is None:
        return None
    if size is None or mean is None or std is None:
        raise ModelError("a plain module needs input_size, mean and std together (or none, to explain tensors only)")
    return Preprocessing(size, tuple(mean), tuple(std), fit=fit)


def _overridden(
    own: Preprocessing, mean: Sequence[float] | None, std: Sequence[float] | None, fit: Fit | None
) -> Preprocessing:
    return Preprocessing(
        own.size,
        own.mean if mean is None else tuple(mean),
        own.std if std is None else tuple(std),
        fit=fit or own.fit,
        resize_to=own.resize_to if fit in (None, own.fit) else None,
        interpolation=own.interpolation,
    )


def _device_of(module: nn.Module) -> torch.device:
    return next((p.device for p in module.parameters()), torch.device("cpu"))


def _usable(device: str | torch.device | None) -> torch.device:
    if device is None:
        return default_device()
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError):
        raise ModelError(f"device {str(device)!r} is not available here; leave it out or use 'cpu'") from None
    return chosen

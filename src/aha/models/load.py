"""`load_model`: a spec text or any nn.Module becomes a TargetModel."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from aha.errors import ModelError
from aha.models.copies import Engine
from aha.models.hooks import autograd, preserved_random_state
from aha.models.outputs import OutputReader
from aha.models.preprocessing import Fit, Preprocessing
from aha.models.runnable import Precision, unwrapped
from aha.models.scores import Score, ScoreFunction, load_score
from aha.models.sources import Loaded, Request, default_device, split_spec
from aha.models.target import TargetModel

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
    engine: Engine = "eager",
    batch_size: int = 32,
) -> TargetModel:
    """The model to explain.

    Args:
        model: `timm:NAME[.TAG]`, `torchvision:NAME`, `hf:REPOSITORY_OR_FOLDER`, `demo:efficientnet_lite0`, or a module.
            A module stays the caller's: its device, mode and flags are never changed.
        weights: a .safetensors file, or "torch:FILE" for a PyTorch file that you trust and that holds only tensors;
            fetched from the hub if left out.
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
        engine: what runs forward passes without gradients: the module itself ("eager"), or a faster private copy of it:
            "compiled", "onnxruntime", "openvino", or "auto", the fastest of them once the work has proved long. A copy
            that moves a probability by more than 1e-4 is not used; `engine_facts` says what was.
        batch_size: most images per forward pass; halved by itself when memory runs out.
    """
    if isinstance(model, TargetModel):
        _refuse_options(locals())
        return model
    size, scored = _height_width(input_size if input_size is not None else img_size), load_score(score)
    if weights is not None and not isinstance(weights, str | Path):
        raise ModelError(f"weights= names a file, it cannot be a {type(weights).__name__}")
    if isinstance(model, nn.Module):
        if weights is not None:
            raise ModelError("a module has weights already; load others into it yourself: module.load_state_dict(...)")
        if device is not None and _named_device(device) != _device_of(model):
            raise ModelError(f"the module is on {_device_of(model)}; move it yourself: module.to({str(device)!r})")
        preprocessing = _stated(size, mean, std, fit or "crop")
        loaded = Loaded(model, preprocessing, None) if preprocessing else None
        spec, module = f"module:{type(unwrapped(model)).__name__}", model
    else:
        with autograd(True):  # weights that are made in the caller's inference mode could never be part of a graph
            loaded = _from_spec(model, Request(None if weights is None else Path(weights), pretrained, size))
            module = loaded.module.requires_grad_(False).eval().to(_usable(device))
            # Channels last: the same numbers from faster kernels (1.3 to 1.6 times for CNNs on a CPU).
            module = module.to(memory_format=torch.channels_last)
        preprocessing, spec = _overridden(loaded.preprocessing, mean, std, fit), model
    return TargetModel(
        module,
        spec=spec,
        preprocessing=preprocessing,
        score=scored,
        output=output,
        class_names=class_names if class_names is not None or loaded is None else loaded.class_names,
        precision=precision,
        engine=engine,
        batch_size=batch_size,
    )


def _from_spec(spec: str, request: Request) -> Loaded:
    source, name = split_spec(spec)
    with preserved_random_state(seed=0):  # random initial weights neither disturb nor depend on the caller's state
        return source(name, request)


def _refuse_options(given: Mapping[str, Any]) -> None:
    """A loaded model is what it is: options that would be passed over in silence are an error."""
    defaults = inspect.signature(load_model).parameters
    plain = {name: value for name, value in given.items() if name != "model"}
    stated = [name for name, value in plain.items() if value is not defaults[name].default]
    if stated:
        raise ModelError(f"the model is already loaded; state {', '.join(stated)} when you load it")


def _height_width(size: Size | None) -> tuple[int, int] | None:
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) not in (2, 3) or not all(isinstance(side, int) and side > 0 for side in sides):
        raise ModelError(f"input size {size!r} is not a number, (H, W) or (C, H, W)")
    return sides[-2], sides[-1]


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
        centre=own.centre,
    )


def _device_of(module: nn.Module) -> torch.device:
    return next((p.device for p in module.parameters()), torch.device("cpu"))


def _usable(device: str | torch.device | None) -> torch.device:
    if device is None:
        return default_device()
    chosen = _named_device(device)
    try:
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError):
        raise _no_device(device) from None
    return chosen


def _named_device(device: str | torch.device) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise _no_device(device) from None


def _no_device(device: object) -> ModelError:
    return ModelError(f"device {str(device)!r} is not available here; leave it out or use 'cpu'")

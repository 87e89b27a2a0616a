"""`load_model`: a spec text or any nn.Module becomes a TargetModel."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, wraps
from math import prod
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from aha.core.axes import is_volume
from aha.core.model_options import Engine, Fit, Precision
from aha.core.pictures import MAX_PIXELS
from aha.errors import ModelError, deprecated
from aha.models.loading.fixed_inputs import FixedInputs, FixedValues
from aha.models.loading.functions import FunctionModule, ModelFunction, check_forward, name_of
from aha.models.loading.metadata import habits_of_weights, own_class_names, own_preprocessing
from aha.models.loading.preprocessing import Preprocessing, preprocessing_of
from aha.models.loading.sources import Loaded, Request, default_device, size_in, split_spec
from aha.models.loading.texts import (
    TextClassifier,
    Texts,
    Tokenizer,
    in_brackets,
    is_two_towers,
    names_of,
    split_texts,
    with_texts,
)
from aha.models.loading.transforms import Transform, Transformed
from aha.models.outputs import OutputReader
from aha.models.running.hooks import autograd, preserved_random_state
from aha.models.running.runnable import unwrapped
from aha.models.scores import Score, ScoreFunction, load_score
from aha.models.target import TargetModel

Size = int | Sequence[int]
AnyModel = TargetModel | str | nn.Module | ModelFunction
"""What `load_model` takes."""
P = ParamSpec("P")
T = TypeVar("T")


def load_model(
    model: AnyModel,
    *,
    weights: str | Path | Any | None = None,
    pretrained: bool = True,
    input_size: Size | None = None,
    img_size: Size | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    fit: Fit | None = None,
    transform: Transform | None = None,
    processor: Any = None,
    texts: Texts | None = None,
    tokenizer: Tokenizer | None = None,
    inputs: FixedValues | None = None,
    bands: Sequence[int] | None = None,
    class_names: Sequence[str] | None = None,
    score: str | ScoreFunction | Score | None = None,
    output: OutputReader = None,
    device: str | torch.device | None = None,
    precision: Precision = "float32",
    engine: Engine = "eager",
    batch_size: int = 32,
) -> TargetModel:
    """The model to explain.

    Args:
        model: `timm:NAME[.TAG]`, `torchvision:NAME`, `hf:REPOSITORY_OR_FOLDER`, `clip:REPOSITORY_OR_FOLDER`,
            `python:PACKAGE.MODULE:FUNCTION` (your own, whose code is run), `demo:efficientnet_lite0`, or a module. A
            module is not changed: its device, mode and flags stay as they are. Modules of timm and transformers state
            how images become inputs. For torchvision classifiers, the preprocessing of their usual weights is assumed,
            with a warning. For others, the options below state it. A function from inputs (B, C, H, W) to outputs works
            too; the layers of the modules that it calls are found.
        weights: a .safetensors file, or "torch:FILE" for a PyTorch file that you trust and that holds only tensors;
            downloaded from the hub by default. For a torchvision module, the entry it was built with
            (`ResNet50_Weights.DEFAULT`), for its transforms and, if the number of classes is unchanged, their names.
        pretrained: False gives random weights, the same ones each time.
        input_size: size of the model input: one number, (H, W), (C, H, W), or (C, D, H, W) for volumes and clips.
        img_size: deprecated; timm's word for `input_size`.
        mean: per-channel mean of the normalisation; with `input_size` and `std`, all that a plain module needs to
            explain images. Tensors need none of them: they are model inputs already.
        std: per-channel standard deviation of the normalisation.
        fit: "crop" (resize and centre crop), "squash" (whole image, aspect ratio lost) or "pad".
        transform: any callable from an RGB image to its input (C, H, W), such as a `Compose` of torchvision. Maps are
            drawn on the original image if the transform only scales, shifts and crops, else on its result. A transform
            has no class names, not even `weights.transforms()` of torchvision: also pass `weights` or `class_names`.
        processor: the image processor of a transformers model, or the processor that has its tokenizer too.
        texts: for CLIP, SigLIP and similar models: the texts that are the classes. For a tower without texts, a mapping
            from texts to embeddings.
        tokenizer: for an open_clip model with texts, `open_clip.get_tokenizer(NAME)`.
        inputs: for a network with several inputs, all of them, by position or by name, with `...` where the explained
            image goes: `(..., metadata)`, `{"image": ..., "input_ids": ids}`. Fixed tensors have one row.
        bands: for inputs of other than 1 or 3 channels, the three that are drawn as red, green and blue, counted from
            0: `bands=(3, 2, 1)`. By default their mean is drawn, in grey.
        class_names: one name per class, for drawings and manifests.
        score: what is reported and measured: softmax (the default), log_softmax, sigmoid (the default of SigLIP),
            logit, regression, or a function `(outputs (B, K), classes (B,)) -> (B,)`. Methods differentiate its logit
            unless they say otherwise.
        output: where the class outputs are in the returned value: a key, an index or a function.
        device: for specs; the fastest available by default.
        precision: float32, or bfloat16/float16 autocast for forward passes without gradients.
        engine: what runs forward passes without gradients: the module itself ("eager"), or a faster private copy of it:
            "compiled", "onnxruntime", "openvino", or "auto", the fastest of them, once the work has taken a while. A
            copy that moves a probability by more than 1e-4 is not used (in bfloat16, .05 on average); `engine_facts`
            says which ran.
        batch_size: maximum number of images per forward pass; halved if memory runs out.
    """
    if isinstance(model, TargetModel):
        _refuse_options(locals())
        return model
    mean, std = _per_channel(mean, "mean"), _per_channel(std, "std")
    if img_size is not None:
        deprecated("load_model(img_size=...)", since="0.2", use="load_model(input_size=...)")
    size = _height_width(input_size if input_size is not None else img_size)
    flat = (size[0], size[1]) if size is not None and len(size) == 2 else None  # a volume's is the caller's alone
    if size is not None and flat is None and None in (mean, std):
        raise ModelError(f"the input size {input_size or img_size!r} is that of volumes; state mean and std too")
    stated = None if score is None else load_score(score)  # before anything is loaded
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise ModelError(f"{model.__name__} is a class, not a network; create one: load_model({model.__name__}(...))")
    if isinstance(model, nn.Module) or callable(model):
        module = model if isinstance(model, nn.Module) else FunctionModule(model)
        spec = f"module:{type(unwrapped(model)).__name__}" if module is model else f"function:{name_of(model)}"
        if device is not None and _named_device(device) != _device_of(module):
            raise ModelError(f"the module is on {_device_of(module)}; move it yourself: module.to({str(device)!r})")
        request = Request(None, pretrained, flat, mean, std, texts)
        loaded = _from_module(module, request, weights, processor, tokenizer, is_paired_by_hand=inputs is not None)
    else:
        if weights is not None and not isinstance(weights, str | Path):
            raise ModelError(f"weights= must be a file, not a {type(weights).__name__}")
        texts, spec = _texts_in(model, texts)
        with autograd(True):  # weights that are made in the caller's inference mode could never be part of a graph
            request = Request(None if weights is None else Path(weights), pretrained, flat, mean, std, texts)
            loaded = _from_spec(spec, request)
            module = loaded.module.requires_grad_(False).eval().to(_usable(device))
            # Channels last: the same numbers from faster kernels (1.3 to 1.6 times for CNNs on a CPU).
            if all(tensor.dim() < 5 for tensor in (*module.parameters(), *module.buffers())):  # not those of volumes
                module = module.to(memory_format=torch.channels_last)
            loaded = replace(loaded, module=module)
        if processor is not None:
            loaded = replace(loaded, preprocessing=own_preprocessing(loaded.module, flat, processor))
    if inputs is not None:
        fixed = FixedInputs(unwrapped(loaded.module), inputs)
        loaded, spec = replace(loaded, module=fixed), f"{spec}[inputs {fixed.fixed_digest}]"
    if size is not None and flat is None:
        loaded = replace(loaded, preprocessing=None)
    if transform is not None:
        loaded = replace(loaded, preprocessing=Transformed.by(transform, mean, std))
    else:
        if loaded.preprocessing is None and mean is not None:  # a module of transformers has a size of its own
            size = size or size_in(getattr(_network(loaded.module), "config", None))
        loaded = replace(loaded, preprocessing=_adjusted(loaded.preprocessing, size, mean, std, fit))
    check_forward(unwrapped(loaded.module))
    return TargetModel(
        loaded.module,
        spec=spec if texts is None else spec + in_brackets(list(texts)),
        preprocessing=loaded.preprocessing,
        score=stated or _own_score(loaded),
        output=_or_own("output", output, loaded),
        bands=_checked_bands(_or_own("bands", bands, loaded), loaded.preprocessing),
        class_names=class_names if class_names is not None else loaded.class_names,
        precision=_or_own("precision", precision, loaded),
        engine=_or_own("engine", engine, loaded),
        batch_size=_or_own("batch_size", batch_size, loaded),
    )


def _from_module(
    module: nn.Module,
    request: Request,
    weights: Any,
    processor: Any,
    tokenizer: Tokenizer | None,
    *,
    is_paired_by_hand: bool = False,
) -> Loaded:
    """The caller's own module with what it, or what came with it, says about pictures and classes."""
    inner = unwrapped(module)
    if request.texts is not None:
        tokenizer = tokenizer if tokenizer is not None else getattr(processor, "tokenizer", None)
        texts = with_texts(inner, request.texts, tokenizer)
        names = names_of(list(request.texts), texts.is_paired)
        return Loaded(texts, own_preprocessing(inner, request.size, processor), names)
    if is_two_towers(inner) and not is_paired_by_hand:
        raise ModelError(f"{type(inner).__name__} compares images with texts; pass texts=['a cat', 'a dog', ...]")
    if weights is not None:
        if isinstance(weights, type) and hasattr(weights, "transforms"):
            raise ModelError(f"{weights.__name__} has several entries; name one: weights={weights.__name__}.DEFAULT")
        if not hasattr(weights, "transforms") or not hasattr(weights, "meta"):
            raise ModelError("a module has weights already; load others into it yourself: module.load_state_dict(...)")
        return Loaded(module, *habits_of_weights(inner, weights))
    is_stated = None not in (request.size, request.mean, request.std)
    own = None if is_stated and processor is None else own_preprocessing(inner, request.size, processor)
    return Loaded(module, own, own_class_names(inner))


def _network(module: nn.Module) -> nn.Module:
    inner = unwrapped(module)
    return unwrapped(inner.network) if isinstance(inner, FixedInputs) else inner


def _texts_in(spec: str, texts: Texts | None) -> tuple[Texts | None, str]:
    """The texts that a spec has in brackets, or that are given beside it, and the spec without them."""
    place, inside = split_texts(spec) if isinstance(spec, str) and spec.startswith("clip:") else (spec, None)
    if inside is not None and texts is not None:
        raise ModelError(f"{spec} names its texts already; leave out texts=")
    return (inside, place) if inside is not None else (texts, spec)


def _or_own(name: str, given: Any, loaded: Loaded) -> Any:
    """What the caller states, else what was said where the model was made."""
    return loaded.options.get(name, given) if given == _defaults()[name] else given


def _own_score(loaded: Loaded) -> Score:
    """The score that goes with the model."""
    if "score" in loaded.options:
        return load_score(loaded.options["score"])
    if isinstance(loaded.module, TextClassifier):
        if loaded.module.is_paired:
            return load_score("sigmoid")
        # One text alone has all of a softmax: what changes with the picture is how well they fit.
        return load_score("softmax" if len(loaded.module.class_vectors) > 1 else "regression")
    return load_score("softmax")


def _from_spec(spec: str, request: Request) -> Loaded:
    source, name = split_spec(spec)
    if request.texts is not None and not spec.startswith("clip:"):
        raise ModelError(f"texts= is for clip: models and for modules with a text tower, not for {spec}")
    with preserved_random_state(seed=0):  # random initial weights neither disturb nor depend on the caller's state
        return source(name, request)


@cache
def _defaults() -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(load_model).parameters.items()}


def loads_its_model(function: Callable[P, T]) -> Callable[P, T]:
    """For functions whose first argument is a model: options of `load_model` that they lack are sent there."""
    own = inspect.signature(function).parameters

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if misplaced := [f"{name}=" for name in kwargs if name not in own and name in _defaults()]:
            example = ", ".join(f"{each}..." for each in misplaced)
            raise ModelError(
                f"{', '.join(misplaced)} {'belong' if len(misplaced) > 1 else 'belongs'} to aha.load_model: "
                f"aha.{function.__name__}(aha.load_model(model, {example}), ...)"
            )
        return function(*args, **kwargs)

    return checked


def _refuse_options(given: Mapping[str, Any]) -> None:
    """A loaded model is what it is: options that would be passed over in silence are an error."""
    stated = [name for name, value in given.items() if name != "model" and value is not _defaults()[name]]
    if stated:
        raise ModelError(f"the model is already loaded; state {', '.join(stated)} when you load it")


def _per_channel(values: Any, name: str) -> tuple[float, ...] | None:
    """A mean or standard deviation as numbers, one per channel; lists, arrays and tensors have them."""
    if values is None:
        return None
    try:
        return tuple(float(value) for value in values)
    except (TypeError, ValueError):
        raise ModelError(
            f"{name}={values!r} is not a list of numbers, one per channel; write {name}=(0.5, 0.5, 0.5), or (0.5,)"
        ) from None


def _checked_bands(bands: Sequence[int] | None, preprocessing: Preprocessing | None) -> tuple[int, ...] | None:
    if bands is None:
        return None
    many = None if preprocessing is None else len(preprocessing.mean)
    found = tuple(bands) if isinstance(bands, Sequence) else ()
    if len(found) != 3 or not all(isinstance(band, int) and 0 <= band < (many or band + 1) for band in found):
        there = "" if many is None else f" below {many}"
        raise ModelError(f"bands={bands!r} must be three channels counted from 0{there}, such as bands=(3, 2, 1)")
    return found


def _height_width(size: Size | None) -> tuple[int, ...] | None:
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, Sequence) else ()
    if len(sides) not in (2, 3, 4) or not all(isinstance(side, int) and side > 0 for side in sides):
        raise ModelError(f"input size {size!r} is not a number, (H, W), (C, H, W) or (C, D, H, W)")
    places = sides[1:] if is_volume(sides) else sides[-2:]
    if prod(places) > MAX_PIXELS:
        raise ModelError(f"input size {size!r} has more than {MAX_PIXELS:,} pixels, the most that images have")
    return places


def _adjusted(
    own: Preprocessing | None,
    size: tuple[int, ...] | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    fit: Fit | None,
) -> Preprocessing | None:
    """What the model says about itself, with what the caller states in its place."""
    if own is None:
        if size is None and mean is None and std is None:
            return None
        if size is None or mean is None or std is None:
            raise ModelError(
                "a plain module needs input_size, mean and std together (or none, to explain tensors only)"
            )
        return preprocessing_of(size, mean, std, fit or "crop")
    if isinstance(own, Transformed):
        if fit is not None or size not in (None, own.size):
            raise ModelError("the model's own transform decides sizes and fit; pass another transform=")
        return own
    return replace(  # the depth of volumes included
        own,
        mean=own.mean if mean is None else tuple(mean),
        std=own.std if std is None else tuple(std),
        fit=fit or own.fit,
        resize_to=own.resize_to if fit in (None, own.fit) else None,
    )


def _device_of(module: nn.Module) -> torch.device:
    return next((p.device for p in module.parameters()), torch.device("cpu"))


def _usable(device: str | torch.device | None) -> torch.device:
    if device is None:
        return default_device()
    chosen = _named_device(device)
    try:
        torch.zeros(1, device=chosen).cpu()  # "meta" and their like hold no numbers
    except (RuntimeError, AssertionError, NotImplementedError):
        raise _no_device(device) from None
    return chosen


def _named_device(device: str | torch.device) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise _no_device(device) from None


def _no_device(device: object) -> ModelError:
    return ModelError(f"device {str(device)!r} is not available here; leave it out or use 'cpu'")

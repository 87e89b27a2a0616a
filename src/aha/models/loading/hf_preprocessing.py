"""How pictures become inputs of a transformers model: its image processor, read from its settings file.

The settings are read as data, so that no image processor, and no library that one needs, has to be loaded. What the
processors do beyond the common rule is in code of theirs, not in the settings, hence the names of a few of them here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aha.errors import ModelError
from aha.models.loading.preprocessing import Interpolation, Preprocessing

_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_RESAMPLING: dict[Any, Interpolation] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}

# Processors that read a single number as the shortest edge; the others make a square of it.
_SHORTEST_EDGE = {"Bit", "CLIP", "ConvNext", "Levit", "MobileNetV1", "MobileNetV2", "PoolFormer"}
_SQUASHED_FROM = 384  # ConvNext's processor crops smaller inputs and squashes larger ones


def hf_preprocessing(settings: Mapping[str, Any], config: Any, size: tuple[int, int] | None = None) -> Preprocessing:
    """The preprocessing that `preprocessor_config.json` describes, at another input size if one is given."""
    kind = _kind(settings)
    if settings.get("do_flip_channel_order", kind == "MobileViT"):
        raise ModelError("its images have blue before red, which is not supported; wrap the module and load that")
    mean, std = _statistics(settings, kind)
    window, resized, fit = _geometry(settings, config, kind)
    if size is not None:
        pair = (resized, resized) if isinstance(resized, int) else resized
        pair = tuple(round(long * new / old) for long, new, old in zip(pair, size, window, strict=True))
        resized = pair[0] if isinstance(resized, int) and pair[0] == pair[1] else pair
        window = size
    return Preprocessing(
        size=window,
        mean=mean,
        std=std,
        fit=fit,
        resize_to=resized,
        interpolation=_RESAMPLING.get(settings.get("resample"), "bilinear"),
        centre="down",
    )


def _kind(settings: Mapping[str, Any]) -> str:
    name = str(settings.get("image_processor_type") or settings.get("feature_extractor_type") or "")
    return name.removesuffix("Fast").removesuffix("Pil").removesuffix("ImageProcessor").removesuffix("FeatureExtractor")


def _geometry(settings: Mapping[str, Any], config: Any, kind: str) -> tuple[tuple[int, int], Any, Any]:
    """Size of the input, what the picture is resized to before, and by which fit."""
    target: Any = settings.get("size") or getattr(config, "image_size", 224)
    edge = target if isinstance(target, int) and kind in _SHORTEST_EDGE else None
    edge = target.get("shortest_edge") if isinstance(target, Mapping) else edge
    crop = settings["crop_size"] if settings.get("do_center_crop", True) and "crop_size" in settings else None
    if edge is None:
        exact = _height_width(target)
        return exact if crop is None else _height_width(crop), exact, "squash"
    if kind == "ConvNext":
        if edge >= _SQUASHED_FROM:
            return (edge, edge), (edge, edge), "squash"
        return (edge, edge), int(edge / settings.get("crop_pct", 224 / 256)), "crop"
    resized = int(256 / 224 * edge) if kind == "Levit" else int(edge / (settings.get("crop_pct") or 1))
    return (edge, edge) if crop is None else _height_width(crop), resized, "crop"


def _statistics(settings: Mapping[str, Any], kind: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation in pixels of [0, 1], the processor's scale and offset included."""
    mean, std = settings.get("image_mean", _IMAGENET_MEAN), settings.get("image_std", _IMAGENET_STD)
    if not settings.get("do_normalize", True):
        mean, std = (0.0,) * 3, (1.0,) * 3
    scale = settings.get("rescale_factor", 1 / 255) * 255 if settings.get("do_rescale", True) else 255.0
    offset = float(bool(settings.get("rescale_offset", False)))
    again = std if kind == "EfficientNet" and settings.get("include_top", True) else (1.0,) * 3  # divided by it twice
    return (
        tuple((m + offset) / scale for m in mean),
        tuple(s * t / scale for s, t in zip(std, again, strict=True)),
    )


def _height_width(size: int | Mapping[str, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size["height"], size["width"])

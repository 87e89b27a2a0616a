"""The options of a model that commands, plans and `aha.load_model` share: types, ranges, defaults and help, once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from aha.core.validation import PLAIN, NonNegativeInt, PositiveInt, checked, hints_of

Precision = Literal["float32", "bfloat16", "float16"]
Engine = Literal["eager", "compiled", "onnxruntime", "openvino", "auto"]
Fit = Literal["crop", "squash", "pad"]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How a model is loaded; `aha.load_model` says more about each, and takes the same names."""

    weights: Annotated[str | None, "Weights file: .safetensors, or torch:FILE."] = None
    pretrained: Annotated[bool, "Random weights, no download."] = True
    texts: Annotated[tuple[str, ...], "Repeatable; the classes of a clip: model."] = ()
    input_size: Annotated[
        PositiveInt | tuple[PositiveInt, ...] | None,
        "Side of the model input in pixels, or its size: H,W or C,H,W or C,D,H,W; the model's own by default.",
    ] = None
    mean: Annotated[
        tuple[float, ...], "Mean of the normalisation, such as 0.5,0.5,0.5; for models that do not state it."
    ] = ()
    std: Annotated[tuple[float, ...], "Standard deviation of the normalisation, in the same form."] = ()
    fit: Annotated[Fit | None, "How images are fitted to the input: crop, squash or pad."] = None
    bands: Annotated[
        tuple[NonNegativeInt, ...], "Channels drawn as red, green and blue, such as 3,2,1; their mean by default."
    ] = ()
    score: Annotated[str | None, "Score to explain and measure; see `aha list scores`."] = None
    precision: Annotated[Precision, "float32, or bfloat16 or float16 for passes without gradients."] = "float32"
    engine: Annotated[
        Engine,
        "Engine for passes without gradients: eager, compiled, onnxruntime, openvino, or auto (the fastest).",
    ] = "eager"

    @property
    def stated(self) -> dict[str, Any]:
        """What is not as by default, for `aha.load_model`."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(ModelOptions)}
        return {name: value for name, (value, default) in values.items() if value not in (default, "")}


def check_option(name: str, value: Any, place: str) -> Any:
    """The value of an option, if it has the type and range of its field; `place` is what the error calls it."""
    return checked(value, hints_of(ModelOptions)[name], place, notation=PLAIN)

"""The raw class outputs (B, K) inside whatever a model returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from aha.errors import ModelError

_KEYS = ("logits", "output", "outputs", "out", "scores", "prediction", "predictions", "pred")

OutputReader = str | int | Callable[[Any], Tensor] | None


def read_outputs(returned: Any, reader: OutputReader = None) -> Tensor:
    """Outputs (B, K) from a tensor, tuple, dict or ModelOutput; `reader` is a key, an index or a function."""
    outputs = _pick(returned, reader)
    if not isinstance(outputs, Tensor):
        raise ModelError(
            f"the model returned {type(returned).__name__} without recognisable class outputs; pass output='KEY'"
        )
    if outputs.dim() == 1:
        outputs = outputs[:, None]  # a regression or binary model that drops its last axis
    if outputs.dim() != 2:
        raise ModelError(
            f"the model returned shape {tuple(outputs.shape)}, not (batch, classes); pass output=FUNCTION to reduce it"
        )
    return outputs


def _pick(returned: Any, reader: OutputReader) -> Any:
    if callable(reader):
        return reader(returned)
    if reader is not None:
        try:
            return returned[reader]
        except (KeyError, IndexError, TypeError):
            raise ModelError(f"the model's output has no entry {reader!r}") from None
    if isinstance(returned, Tensor):
        return returned
    if isinstance(returned, Mapping):
        named = [returned[key] for key in _KEYS if isinstance(returned.get(key), Tensor)]
        tensors = named or [value for value in returned.values() if isinstance(value, Tensor)]
        return tensors[0] if tensors else None
    for key in _KEYS:  # ModelOutput-like objects, named tuples, dataclasses
        if isinstance(getattr(returned, key, None), Tensor):
            return getattr(returned, key)
    if isinstance(returned, tuple | list):
        return next((_pick(value, None) for value in returned if value is not None), None)
    return None

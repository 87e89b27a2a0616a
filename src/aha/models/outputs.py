"""The raw class outputs (B, K) inside whatever a model returns.

Many networks return more than one thing. What cannot be told apart is refused: an embedding that is taken for classes
gives maps that look like any others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from aha.errors import ModelError

_LOGITS = "logits"
# What the field calls class outputs, beside `logits`, and what it calls something else.
_KEYS = frozenset(
    {"output", "outputs", "out", "head", "scores", "prediction", "predictions", "pred", "preds", "class_logits"}
)
_EMBEDDINGS = frozenset(
    {"features", "feature", "feats", "embedding", "embeddings", "embeds", "image_embeds", "pooler_output", "pooled"}
)
_SOUGHT = (_LOGITS, *sorted(_KEYS))
_DEEPEST = 4  # nested things in what a model returns; objects may refer to themselves

OutputReader = str | int | Callable[[Any], Tensor] | None


class _Found(NamedTuple):
    """A tensor in what a model returned, and the keys, indices and attributes that lead to it."""

    path: tuple[str | int, ...]
    tensor: Tensor

    @property
    def name(self) -> str:
        """The name by which the model knows it; empty where it is one of a list."""
        return next((key for key in reversed(self.path) if isinstance(key, str)), "")

    @property
    def is_per_image(self) -> bool:
        return self.tensor.dim() in (1, 2)

    def __str__(self) -> str:
        place = repr(self.path[0]) if len(self.path) == 1 else "".join(f"[{key!r}]" for key in self.path)
        return f"{place} of shape {tuple(self.tensor.shape)}"


def read_outputs(returned: Any, reader: OutputReader = None) -> Tensor:
    """Outputs (B, K) from a tensor, tuple, dict or ModelOutput; `reader` is a key, an index or a function."""
    outputs = picked(returned, reader)
    if not isinstance(outputs, Tensor):
        outputs = _only(returned, list(_tensors(outputs)))
    if outputs.dim() == 1:
        outputs = outputs[:, None]  # a regression or binary model that drops its last axis
    if outputs.dim() != 2:
        raise ModelError(
            f"the model returned shape {tuple(outputs.shape)}, not (batch, classes); pass output=FUNCTION to reduce it"
        )
    return outputs


def picked(returned: Any, reader: OutputReader = None) -> Any:
    """What a reader picks of what a model returned; all of it without one."""
    if reader is None:
        return returned
    if callable(reader):
        return reader(returned)
    try:
        return returned[reader]
    except (KeyError, IndexError, TypeError):
        if isinstance(reader, str) and hasattr(returned, reader):
            return getattr(returned, reader)
        raise ModelError(f"the model's output has no entry {reader!r}") from None


def _only(returned: Any, found: list[_Found]) -> Tensor:
    """The class outputs among all tensors that a model returned, if there is no doubt which they are."""
    likely = [one for one in found if one.is_per_image and one.name not in _EMBEDDINGS]
    named = [one for one in likely if one.name == _LOGITS] or [one for one in likely if one.name in _KEYS]
    chosen = named or likely
    if len(chosen) == 1:
        return chosen[0].tensor
    if len(chosen) > 1:
        raise ModelError(
            f"the model returned several outputs: {', '.join(map(str, chosen))}; "
            f"say which holds the classes: load_model(..., output={_example(chosen[-1])})"
        )
    if len(found) == 1 and found[0].name not in _EMBEDDINGS:
        return found[0].tensor  # of another shape, about which more will be said
    there = f" ({', '.join(map(str, found))})" if found else ""
    raise ModelError(
        f"the model returned {type(returned).__name__} without recognisable class outputs{there}; pass output='KEY'"
    )


def _example(one: _Found) -> str:
    return repr(one.path[0]) if len(one.path) == 1 else f"lambda returned: returned{str(one).partition(' ')[0]}"


def _tensors(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[_Found]:
    if isinstance(value, Tensor):
        yield _Found(path, value)
        return
    for key, inner in _entries(value) if len(path) < _DEEPEST else ():
        yield from _tensors(inner, (*path, key))


def _entries(value: Any) -> Iterator[tuple[str | int, Any]]:
    """What is inside a dict, ModelOutput, tuple, list, named tuple, dataclass or other object with fields."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    elif isinstance(value, tuple | list):
        yield from enumerate(value)
    elif not isinstance(value, str | bytes | type) and hasattr(value, "__dict__"):
        own = vars(value)
        yield from own.items()
        yield from ((key, getattr(value, key)) for key in _SOUGHT if key not in own and hasattr(value, key))

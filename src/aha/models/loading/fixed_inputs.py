"""Networks that read more than one input: all but the explained one are fixed when the model is loaded.

Shapes: images (B, C, H, W), the explained input; fixed tensors (1, ...), expanded to the batch.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from aha.errors import ModelError

FixedValues = Sequence[Any] | Mapping[str, Any]
"""What the network is called with, by position or by name; `...` stands where the explained image goes."""


class FixedInputs(nn.Module):
    """A network called with the explained image and values that stay as they are."""

    def __init__(self, network: nn.Module, values: FixedValues) -> None:
        super().__init__()
        self.network = network
        self._names = tuple(values) if isinstance(values, Mapping) else ()
        self._values: list[Any] = []
        for name, value in _named(values):
            self._values.append(_checked(name, value))
            if isinstance(self._values[-1], Tensor):  # part of the state: other values, another function of the image
                self.register_buffer(f"fixed_{len(self._values) - 1}", self._values[-1])
                self._values[-1] = None
        explained = sum(value is ... for value in self._values)
        if explained != 1:
            raise ModelError(
                f"inputs= has {explained} places for the explained image; write ... in one, inputs=(..., metadata)"
            )
        self.training = network.training
        positional, named = self._arguments(self._values)
        try:
            inspect.signature(network.forward).bind(*positional, **named)
        except TypeError as error:
            raise ModelError(f"{type(network).__name__}.forward does not take these inputs=: {error}") from None
        except ValueError:  # compiled code that does not tell
            pass

    def _arguments(self, values: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        return ([], dict(zip(self._names, values, strict=True))) if self._names else (values, {})

    def forward(self, images: Tensor) -> Any:
        """What the network returns for each image together with the fixed values."""
        values = []
        for place, value in enumerate(self._values):
            fixed = getattr(self, f"fixed_{place}", None)
            if fixed is not None:
                fixed = fixed.to(images.device)
                value = fixed.expand(len(images), *fixed.shape[1:]) if fixed.dim() else fixed
            values.append(images if value is ... else value)
        positional, named = self._arguments(values)
        return self.network(*positional, **named)

    @property
    def fixed_digest(self) -> str:
        """Digest of all that is fixed, by which models with other values are told apart."""
        digest = hashlib.blake2b(repr((self._names, self._values)).encode(), digest_size=4)
        for name, value in self.named_buffers(recurse=False):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def _named(values: FixedValues) -> list[tuple[str, Any]]:
    if isinstance(values, Mapping) and all(isinstance(name, str) for name in values):
        return [(f"inputs[{name!r}]", value) for name, value in values.items()]
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        return [(f"inputs[{place}]", value) for place, value in enumerate(values)]
    raise ModelError(
        f"inputs= is a list or a dict of what the network is called with, with ... for the image, "
        f"not a {type(values).__name__}"
    )


def _checked(name: str, value: Any) -> Any:
    """Arrays as tensors, copied, so that the caller's may change; one row each."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.ascontiguousarray(value))
    if not isinstance(value, Tensor):
        return value
    if value.dim() and len(value) != 1:
        raise ModelError(
            f"{name} has the shape {tuple(value.shape)}; fix one row of it, of shape (1, ...), for all images"
        )
    return value.detach().clone()

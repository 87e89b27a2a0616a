"""Random numbers for a model's own use, from generators that nobody else draws from.

The generators of PyTorch are global: saving their state before a pass and restoring it afterwards would rewind them for
every other thread that draws in between. So operations that draw are given another generator instead, for this thread
alone, and the global ones are left as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


class OwnNumbers(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its base says nothing of types
    """Inside a `with`, all that draws in this thread draws from generators started from the seed, one per device.

    They give the numbers that the global generators would have given after `torch.manual_seed(seed)`.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.has_drawn = False
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or not _draws(func, args, kwargs):
            return func(*args, **kwargs)
        device = _device(args, kwargs)
        if device.type == "meta":
            return func(*args, **kwargs)
        self.has_drawn = True
        generator = self._generator(device)
        with_generator = _with_generator(func)
        if with_generator is None:
            return _through_global_state(generator, lambda: func(*args, **kwargs))
        return with_generator(*args, **{**kwargs, "generator": generator})

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


_QUIET: WeakSet[nn.Module] = WeakSet()
"""Modules that were watched for a pass and drew nothing: most of them, in evaluation mode."""


@contextmanager
def own_numbers_of(module: nn.Module) -> Iterator[None]:
    """The module's pass inside draws nothing from the global generators.

    Watching every operation takes time. A module that was seen to draw nothing is not watched again, unless the global
    generator has moved meanwhile: by another thread, most likely, but it may be that the module was changed.
    """
    if module in _QUIET:
        before = torch.default_generator.get_state()
        yield
        if not torch.equal(before, torch.default_generator.get_state()):
            _QUIET.discard(module)
        return
    with OwnNumbers() as numbers:
        yield
    if not numbers.has_drawn:
        _QUIET.add(module)


@cache
def _with_generator(func: Any) -> Any:
    """The operation in the form that takes a generator; None if it has no such form."""
    names = [argument.name for argument in func._schema.arguments]
    if "generator" in names:
        return func
    for overload in func.overloadpacket.overloads():
        other = getattr(func.overloadpacket, overload)
        others = [argument.name for argument in other._schema.arguments]
        if "generator" in others and sorted(others) == sorted([*names, "generator"]):
            return other
    return None


def _draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Will it draw, and from a global generator? Dropout of nothing, or outside of training, does not."""
    arguments = func._schema.arguments
    given = {argument.name: argument.default_value for argument in arguments}
    given |= {argument.name: value for argument, value in zip(arguments, args, strict=False)} | kwargs
    if "generator" in given:
        return given["generator"] is None
    rate = next((given[name] for name in ("dropout_p", "dropout", "p") if name in given), 1.0)
    return given.get("train") is not False and rate > 0


def _device(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.device:
    tensor = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    return torch.device("cpu") if tensor is None else tensor.device


def _through_global_state(generator: torch.Generator, operation: Any) -> Any:
    """For operations that know no generator but the global one: exchanged for the duration of this one operation."""
    device = generator.device
    everyones = torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index or 0]
    kept = everyones.get_state()
    everyones.set_state(generator.get_state())
    try:
        return operation()
    finally:
        generator.set_state(everyones.get_state())
        everyones.set_state(kept)

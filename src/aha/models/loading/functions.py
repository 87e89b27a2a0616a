"""What a caller may hand in as a model: modules whose forward takes a picture, and plain functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from aha.errors import ModelError

ModelFunction = Callable[[Tensor], Any]
"""Inputs (B, C, H, W) to what a network returns."""


class FunctionModule(nn.Module):
    """A function of the caller's as a module.

    The networks that it calls become its parts, so that its device, its weights and its layers are found there.
    """

    def __init__(self, function: ModelFunction) -> None:
        super().__init__()
        self.function = function
        for name, network in networks_in(function):
            if network not in self._modules.values():
                self.add_module(name if not hasattr(self, name) else f"{name}_", network)

    def __deepcopy__(self, memo: dict[int, Any]) -> FunctionModule:
        """Refused: a copy would go on calling the networks of the original."""
        raise TypeError("it is a function; pass its network as a module instead")

    def forward(self, inputs: Tensor) -> Any:
        """What the function returns."""
        return self.function(inputs)


def networks_in(function: Any) -> Iterator[tuple[str, nn.Module]]:
    """Networks that a function can reach, with the names that it knows them by."""
    if isinstance(function, partial):
        yield from networks_in(function.func)
        reached = {f"argument_{place}": value for place, value in enumerate(function.args)} | function.keywords
    elif inspect.ismethod(function):
        owner = function.__self__
        reached = {"network": owner} if isinstance(owner, nn.Module) else vars(owner)
    elif inspect.isfunction(function):
        outside = inspect.getclosurevars(function)
        defaults = {name: p.default for name, p in inspect.signature(function).parameters.items()}
        reached = {**outside.globals, **outside.nonlocals, **defaults}
    else:
        reached = getattr(function, "__dict__", {})  # an object that can be called
    for name, value in reached.items():
        if isinstance(value, nn.Module):
            yield name, value
        elif name == "self":  # of the class in which the function was written
            yield from ((own, part) for own, part in vars(value).items() if isinstance(part, nn.Module))


def name_of(function: Any) -> str:
    """The name of a function or of what can be called like one."""
    named = function.func if isinstance(function, partial) else function
    return getattr(named, "__name__", type(named).__name__).strip("<>")


def check_forward(module: nn.Module) -> None:
    """Refuses a module whose forward cannot be called with inputs alone, before it is called so."""
    forward = module.function if isinstance(module, FunctionModule) else module.forward
    try:
        parameters = list(inspect.signature(forward).parameters.values())
    except (TypeError, ValueError):  # compiled code that does not tell
        return
    name = name_of(forward) if isinstance(module, FunctionModule) else f"{type(module).__name__}.forward"
    example = "aha.load_model(lambda images: network({}))"
    if all(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in parameters):
        first = next((p.name for p in parameters if p.kind == p.KEYWORD_ONLY), "")
        advice = f"name it in a function: {example.format(f'{first}=images')}" if first else "let it take the inputs"
        raise ModelError(f"{name} takes no image as its first argument; {advice}")
    needed = [p for p in parameters[1:] if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if needed:
        filled = ", ".join(["images", *(f"{p.name}=..." for p in needed)])
        names = " and ".join(repr(p.name) for p in needed)
        raise ModelError(f"{name} needs {names} besides the image; fill it in: {example.format(filled)}")

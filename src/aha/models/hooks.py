"""Temporary changes to a module, always undone: hooks, replaced forwards, evaluation mode, random state."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

ForwardHook = Callable[[nn.Module, tuple[Any, ...], Any], Any]

_LOCKS: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_LOCKS_LOCK = threading.Lock()


def lock_of(module: nn.Module) -> threading.RLock:
    """The one lock of a module, shared by everyone who wraps it: hooks and flags are global to the module."""
    with _LOCKS_LOCK:
        return _LOCKS.setdefault(module, threading.RLock())


@contextmanager
def hooked(hooks: Iterable[tuple[nn.Module, ForwardHook]]) -> Iterator[None]:
    """Forward hooks for the duration of a block; a hook's return value, unless None, replaces the output."""
    with ExitStack() as stack:
        for module, hook in hooks:
            stack.callback(module.register_forward_hook(hook).remove)
        yield


@contextmanager
def swapped_forward(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Other forward functions for some modules, for the duration of a block."""
    kept = {module: module.__dict__.get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            module.__dict__["forward"] = forward  # the instance's own entry shadows the class's method
        yield
    finally:
        for module, own in kept.items():
            if own is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = own


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode for a block; each submodule gets back its own flag, frozen parts stay frozen."""
    training = [part for part in module.modules() if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True


@contextmanager
def preserved_random_state(device: torch.device | None = None, seed: int | None = None) -> Iterator[None]:
    """The global random generators are afterwards what they were; with a seed, they start from it inside."""
    is_cuda = device is not None and device.type == "cuda"
    devices = [device] if is_cuda else []
    with torch.random.fork_rng(devices=devices):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
            if is_cuda:
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def autograd(enabled: bool) -> Iterator[None]:
    """Gradient recording on or off, whatever the caller's mode, `inference_mode` included."""
    with torch.inference_mode(False), torch.set_grad_enabled(enabled):
        yield


def slopes(total: Tensor, tensors: Sequence[Tensor], **options: Any) -> tuple[Any, ...]:
    """Gradients of a sum, without torch's warning to owners of backward hooks that our graph starts behind a hook."""
    with autograd(True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        return torch.autograd.grad(total, tensors, **options)


def first_tensor(value: Any) -> Tensor | None:
    """The tensor a module call mainly hands on: itself, or the first of a tuple or list."""
    if isinstance(value, tuple | list) and value:
        value = value[0]
    return value if isinstance(value, Tensor) else None


def with_first_tensor(value: Any, tensor: Tensor) -> Any:
    """`value` with its main tensor exchanged."""
    if isinstance(value, Tensor):
        return tensor
    return type(value)([tensor, *value[1:]])

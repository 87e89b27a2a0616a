"""Temporary changes to a module, always undone: hooks, replaced forwards, evaluation mode, random state.

Undone also after Ctrl-C, as long as it waits (`aha.core.interrupts`): code that changes a module has to see to that.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from aha.core.interrupts import interrupts_wait
from aha.errors import ModelError
from aha.models.running.rng import OwnNumbers

ForwardHook = Callable[[nn.Module, tuple[Any, ...], Any], Any]


class ModuleLock:
    """A reentrant lock. In a process that was forked while another thread held it, it is refused, not waited for:

    nobody there will ever give it back, nor undo what that thread had changed of the module.
    """

    def __init__(self) -> None:
        self._lock, self._is_lost = threading.RLock(), False

    def __enter__(self) -> None:
        if self._is_lost:
            raise ModelError(
                "this process was forked while another thread used the model; load the model here, or start the "
                "process by multiprocessing's 'spawn'"
            )
        self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()

    def look_after_fork(self) -> None:
        """In the child, where only the thread that forked goes on."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._is_lost = True


_LOCKS: WeakKeyDictionary[nn.Module, ModuleLock] = WeakKeyDictionary()
_LOCKS_LOCK = threading.Lock()


def _look_after_fork() -> None:
    global _LOCKS_LOCK
    _LOCKS_LOCK = threading.Lock()
    for lock in list(_LOCKS.values()):
        lock.look_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_look_after_fork)


def lock_of(module: nn.Module) -> ModuleLock:
    """The one lock of a module, shared by everyone who wraps it: hooks and flags are global to the module."""
    with _LOCKS_LOCK:
        return _LOCKS.setdefault(module, ModuleLock())


def parts_of(module: nn.Module) -> list[nn.Module]:
    """The module and all that are inside of it, each once. It is asked for in every pass: `modules` is much slower."""
    found: dict[nn.Module, None] = {}
    waiting: list[nn.Module | None] = [module]
    while waiting:
        part = waiting.pop()
        if part is not None and part not in found:
            found[part] = None
            waiting += part._modules.values()
    return list(found)


@contextmanager
def hooked(hooks: Iterable[tuple[nn.Module, ForwardHook]]) -> Iterator[None]:
    """Forward hooks for the duration of a block; a hook's return value, unless None, replaces the output."""
    with ExitStack() as stack:
        for module, hook in hooks:
            stack.callback(module.register_forward_hook(hook).remove)
        yield


@contextmanager
def noted(module: nn.Module, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """What the named parts return during the block, in their last call; it stays on the way to the outputs."""
    found: dict[str, Any] = {}

    def note(name: str) -> ForwardHook:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            found[name] = output

        return hook

    with hooked([(module.get_submodule(name), note(name)) for name in names]):
        yield found


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
    training = [part for part in parts_of(module) if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True


@contextmanager
def frozen_weights(module: nn.Module) -> Iterator[None]:
    """No weight requires gradients inside the block; those that did do so again afterwards."""
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    try:
        for weight in trained:
            weight.requires_grad = False
        yield
    finally:
        for weight in trained:
            weight.requires_grad = True


@contextmanager
def preserved_random_state(seed: int = 0) -> Iterator[None]:
    """What draws inside starts from the seed; the global random generators are left alone."""
    with OwnNumbers(seed):
        yield


@contextmanager
def autograd(enabled: bool) -> Iterator[None]:
    """Gradient recording on or off, whatever the caller's mode, `inference_mode` included."""
    with interrupts_wait(), torch.inference_mode(False), torch.set_grad_enabled(enabled):
        yield


def gradients(total: Tensor, tensors: Sequence[Tensor], **options: Any) -> tuple[Any, ...]:
    """Gradients of a sum, whatever the caller's gradient mode."""
    with autograd(True):
        return torch.autograd.grad(total, tensors, **options)


def has_backward_hooks(module: nn.Module) -> bool:
    """Did its owner hook into backward passes? PyTorch warns them of graphs that begin behind such a hook."""
    return any(part._backward_hooks or part._backward_pre_hooks for part in parts_of(module))


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


def at_call(number: int, change: Callable[[Tensor], Tensor]) -> ForwardHook:
    """A hook that exchanges the main tensor of what a module returns in its call of this number; other calls pass."""
    calls = 0

    def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
        nonlocal calls
        calls += 1
        tensor = first_tensor(output)
        if calls - 1 != number or tensor is None:
            return None
        return with_first_tensor(output, change(tensor))

    return hook

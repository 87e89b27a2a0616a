"""One forward pass of a model as a list of module calls: who called whom, with tensors of which shapes."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

from aha.models.introspection.attention import AttentionTap
from aha.models.running.hooks import first_tensor

# Modules that hand on what they get, or whose 4-D outputs are attention matrices rather than maps.
_TRANSPARENT = (nn.Dropout, nn.Softmax, nn.Identity, nn.Flatten)


@dataclass(eq=False)
class Call:
    """The `call`-th call of the module `name`.

    Attributes:
        parent: the call inside which it happened.
        attention_before: how many attention matrices had been computed when it began.
        first_inside: how many calls had ended by then; those that follow in the list, up to this one, lie inside it.
        attention_after: and when it ended.
        in_tuple: it returned (tensor, ...) rather than a tensor.
        is_transparent: what it returns is not its own: passed on, or pooled.
        is_sequence: a plain chain of modules, without branches of its own.
        is_norm: it divides by the length of the features at each place, as layer norm does.
        is_linear: a linear layer.
        is_constant: what it returns is the same for all images, so that it says nothing of any of them.
        handed_on_by: the outermost call that returned the very same tensor.
        reads: for a norm, the calls that made the very tensor it reads.
    """

    name: str
    call: int
    parent: Call | None
    attention_before: int
    first_inside: int
    attention_after: int = 0
    input_shape: tuple[int, ...] = ()
    output_shape: tuple[int, ...] = ()
    in_tuple: bool = False
    is_transparent: bool = False
    is_sequence: bool = False
    is_norm: bool = False
    is_linear: bool = False
    is_constant: bool = False
    handed_on_by: Call | None = None
    reads: list[Call] = field(default_factory=list)
    output: Callable[[], Tensor | None] = lambda: None


class _Watcher:
    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.attention_shapes: list[tuple[int, ...]] = []
        self.constant_attention: list[int] = []
        self._open: list[Call] = []
        self._count: Counter[str] = Counter()
        self._pooled: list[Tensor] = []

    def on_attention(self, weights: Tensor) -> Tensor:
        if _is_constant(weights):
            self.constant_attention.append(len(self.attention_shapes))
        self.attention_shapes.append(tuple(weights.shape))
        return weights

    def on_enter(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            tensor = first_tensor(args) if args else first_tensor(list(kwargs.values()))
            call = Call(
                name,
                self._count[name],
                self._open[-1] if self._open else None,
                len(self.attention_shapes),
                len(self.calls),
                input_shape=() if tensor is None else tuple(tensor.shape),
                is_sequence=isinstance(module, nn.Sequential),
                is_norm=_is_norm(module),
                is_linear=isinstance(module, nn.Linear),
            )
            if call.is_norm and tensor is not None:
                call.reads = [made for made in self.calls if made.output() is tensor]
            self._open.append(call)
            self._count[name] += 1

        return hook

    def on_leave(self, module: nn.Module, _args: Any, output: Any) -> None:
        call = self._open.pop()
        call.attention_after = len(self.attention_shapes)
        call.in_tuple = isinstance(output, tuple)
        tensor = first_tensor(output)
        if tensor is not None:
            call.output_shape = tuple(tensor.shape)
            call.is_constant = _is_constant(tensor)
            call.output = weakref.ref(tensor)
            for made in self.calls[call.first_inside :]:
                if made.output() is tensor:
                    made.handed_on_by = call
            if "pool" in type(module).__name__.lower():
                self._pooled.append(tensor)
        # A container that returns its pooling layer's output has nothing to show of its own.
        is_pooled = any(tensor is pooled for pooled in self._pooled)
        call.is_transparent = is_pooled or isinstance(module, _TRANSPARENT)
        self.calls.append(call)


def _is_constant(values: Tensor) -> bool:
    """Are the first and the last image's values the same, up to rounding? Heads may be merged into the batch."""
    if values.dim() == 0 or len(values) < 2 or not values.numel() or not values.is_floating_point():
        return False
    first, last = values[: len(values) // 2], values[-(len(values) // 2) :]
    return bool((first - last).abs().amax() <= 1e-6 * values.abs().amax())


def _is_norm(module: nn.Module) -> bool:
    kind = type(module).__name__.lower()
    is_more = any(isinstance(part, nn.Conv2d | nn.Linear) for part in module.modules())  # a norm with what it precedes
    return "norm" in kind and "batch" not in kind and not is_more


class Watched(NamedTuple):
    """Calls in the order in which they end, attention shapes, and which attention is the same for all images."""

    calls: list[Call]
    attention_shapes: list[tuple[int, ...]]
    constant_attention: list[int]


def watch(module: nn.Module, run: Callable[[], object]) -> Watched:
    """Runs `run()`, which calls `module`, and says what was seen."""
    watcher = _Watcher()
    with ExitStack() as stack:
        for name, part in module.named_modules():
            stack.callback(part.register_forward_pre_hook(watcher.on_enter(name), with_kwargs=True).remove)
            stack.callback(part.register_forward_hook(watcher.on_leave).remove)
        stack.enter_context(AttentionTap(watcher.on_attention))
        run()
    return Watched(watcher.calls, watcher.attention_shapes, watcher.constant_attention)

"""Replaced operations: other forward or backward rules for elementary functions, inside one `with`.

A rule set maps the name of an operation ("relu", "gelu", "layer_norm", ...) to a function that is called in its place
with the same arguments. It applies to modules, functional calls, tensor methods and in-place forms alike, because it
works in PyTorch's function dispatch and not on the modules of the model, which stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from aha.core.registry import nearest_names
from aha.errors import SpecError

Rule = Callable[..., Any]

# Every spelling under which models call an operation. Functional wrappers come first in dispatch, so a rule on a
# wrapper replaces the whole call.
OPERATIONS: dict[str, tuple[Any, ...]] = {
    "relu": (F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_),
    "relu6": (F.relu6,),
    "leaky_relu": (F.leaky_relu, F.leaky_relu_),
    "elu": (F.elu, F.elu_),
    "gelu": (F.gelu,),
    "silu": (F.silu,),
    "hardswish": (F.hardswish,),
    "mish": (F.mish,),
    "selu": (F.selu, F.selu_, torch.selu, torch.selu_),
    "softplus": (F.softplus,),
    "prelu": (F.prelu, torch.prelu, Tensor.prelu),
    "tanh": (torch.tanh, torch.tanh_, Tensor.tanh, Tensor.tanh_, F.tanh),
    "sigmoid": (torch.sigmoid, torch.sigmoid_, Tensor.sigmoid, Tensor.sigmoid_, F.sigmoid),
    "softmax": (F.softmax, torch.softmax, Tensor.softmax),
    "hardsigmoid": (F.hardsigmoid,),
    "layer_norm": (F.layer_norm, torch.layer_norm),
    "rms_norm": (F.rms_norm, torch.rms_norm),
    "group_norm": (F.group_norm, torch.group_norm),
    "instance_norm": (F.instance_norm, torch.instance_norm),
    "batch_norm": (F.batch_norm, torch.batch_norm),
    "linear": (F.linear,),
    "conv2d": (F.conv2d, torch.conv2d),
    "conv3d": (F.conv3d, torch.conv3d),
    "matmul": (torch.matmul, Tensor.matmul, Tensor.__matmul__),
    "scaled_dot_product_attention": (F.scaled_dot_product_attention,),
    "max_pool2d": (F.max_pool2d, torch.max_pool2d),
    "avg_pool2d": (F.avg_pool2d,),
    "avg_pool3d": (F.avg_pool3d,),
    "adaptive_avg_pool2d": (F.adaptive_avg_pool2d,),
    "adaptive_avg_pool3d": (F.adaptive_avg_pool3d,),
    "mean": (torch.mean, Tensor.mean),
    "add": (torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__),
    "mul": (torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__),
    "div": (torch.div, Tensor.div, Tensor.div_, Tensor.__truediv__, Tensor.__itruediv__),
}

# The operations that make a network nonlinear, value by value. Sigmoids are missing: in vision they are gates.
ACTIVATIONS = (
    "relu",
    "relu6",
    "leaky_relu",
    "elu",
    "gelu",
    "silu",
    "hardswish",
    "mish",
    "selu",
    "softplus",
    "prelu",
    "tanh",
)


class RuleMode(TorchFunctionMode):
    """Calls the rule in place of each named operation; inside a rule, plain operations are plain again."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        super().__init__()
        self._rules: dict[Any, Rule] = {}
        for name, rule in rules.items():
            if name not in OPERATIONS:
                hints = nearest_names(name, OPERATIONS)
                raise SpecError(f"no rule can replace {name!r}; known operations: {', '.join(hints or OPERATIONS)}")
            self._rules |= dict.fromkeys(OPERATIONS[name], rule)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.hardtanh and (kwargs.get("min_val"), kwargs.get("max_val")) == (0, 6):  # how nn.ReLU6 spells it
            func, kwargs = F.relu6, {"inplace": kwargs["inplace"]}
        return self._rules.get(func, func)(*args, **kwargs)


def rules_before_activations(change: Callable[[Tensor], Tensor], met: Counter[str]) -> dict[str, Rule]:
    """Rules by which every activation reads `change(x)` in place of x; `met` counts them by name."""

    def rule(name: str) -> Rule:
        operation = OPERATIONS[name][0]

        def changed(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            met[name] += 1
            return operation(change(x), *args, **kwargs)

        return changed

    return {name: rule(name) for name in ACTIVATIONS}


def is_written_out(module: nn.Module) -> bool:
    """Is it an activation in formulas of its own, as the quick GELU of CLIP is, that no rule on one operation meets?"""
    is_leaf = next(module.children(), None) is None
    return is_leaf and "gelu" in type(module).__name__.lower() and not isinstance(module, nn.GELU)


def forward_before_activation(module: nn.Module, change: Callable[[Tensor], Tensor], met: Counter[str]) -> Rule:
    """A forward by which the module reads `change(x)` in place of x, and no rule applies inside it."""
    forward = module.forward

    def changed(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        met[type(module).__name__] += 1
        with torch._C.DisableTorchFunction():
            return forward(change(x), *args, **kwargs)

    return changed

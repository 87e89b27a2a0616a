"""Copies of a model whose layers are re-initialised step by step, from the output towards the input.

A step is a unit: a top-level part, or a member of one that is a plain container, holds most of the model, or is a
stage, that is, holds a series of blocks. So a ViT gives head, norm, blocks from last to first, patch embedding; a CNN
its classifier, its blocks from last to first, its stem. Units come in reverse order of execution. What the divided
parts own themselves, like class token and position embedding, comes last.

Each layer is drawn once. A copy is a new structure around shared tensors: the drawn ones where it is randomised, the
user's own, never written to, elsewhere. So all copies together need the memory of one model, whatever their number.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from aha.core.interrupts import interrupts_wait
from aha.errors import ModelError
from aha.models.running.hooks import autograd, evaluating, hooked, preserved_random_state
from aha.models.running.inference import weight_versions
from aha.models.running.memory import Chunks
from aha.models.target import TargetModel

KEPT = 2  # sets of copies per model: each holds one model's worth of drawn weights
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_DEVIATION = 0.02  # of bare parameters, the usual choice for tokens and position embeddings

Copies = tuple[tuple[float, TargetModel], ...]
Calibration = Callable[[TargetModel], Tensor]
"""Makes calibration inputs (N, C, H, W) for a model; hashable, and equal to others that make the same ones."""


def randomised_copies(
    model: TargetModel, seed: int, *, calibration: Tensor, stages: int = 0
) -> Iterator[tuple[float, TargetModel]]:
    """Models with a growing share of re-initialised layers, from the output on; the last has nothing left.

    Layers use their own `reset_parameters`. Bare parameters are drawn from a truncated normal with deviation 0.02;
    biases become 0, and scales become the constant of their mean size. Running statistics of randomised batch norms
    are estimated again, because with the old ones activations explode. Layer scales that start at 1e-5 by their own
    initialiser leave residual blocks close to the identity, as at the start of training.

    Args:
        model: stays as it is.
        seed: of all draws; the global random state is left alone.
        calibration: model inputs (N, C, H, W), at least two, for the running statistics.
        stages: at most so many copies, evenly spaced and ending with all layers; 0 for one per unit.

    Yields:
        The share of layers that is randomised, and the copy.
    """
    units = _units_from_output(model, calibration[:1])
    drawn = _drawn(model, seed)
    total = sum(map(len, units))
    for count in _evenly(len(units), stages):
        layers = {name for unit in units[:count] for name in unit}
        share = len(layers) / total
        made = _copy_with(model, drawn, layers, f"{model.spec} ({share:.0%} randomised)")
        _estimate_statistics(made, layers, calibration)
        yield share, made


_kept: WeakKeyDictionary[TargetModel, dict[tuple[object, ...], Copies]] = WeakKeyDictionary()


def kept_copies(model: TargetModel, seed: int, *, calibration: Calibration, stages: int = 0) -> Copies:
    """`randomised_copies`, made once for all images of an evaluation.

    They are kept beside the model, not in it, for as long as it lives and its weights stay as they are, and at most
    `KEPT` sets of them.
    """
    sets = _kept.setdefault(model, {})
    key = (seed, stages, calibration, *weight_versions(model.module))
    if key not in sets:
        while len(sets) >= KEPT:
            del sets[next(iter(sets))]  # the oldest
        sets[key] = tuple(randomised_copies(model, seed, calibration=calibration(model), stages=stages))
    return sets[key]


def _evenly(total: int, stages: int) -> list[int]:
    """Numbers of units, evenly spaced up to all of them."""
    stages = min(stages or total, total)
    return [round(step * total / stages) for step in range(1, stages + 1)]


def _units_from_output(model: TargetModel, example: Tensor) -> list[list[str]]:
    """Names of the layers of each unit, the unit nearest to the output first."""
    parts = dict(_parts("", model.module, sum(p.numel() for p in model.module.parameters()) / 2))
    if not parts:
        raise ModelError(f"{model.spec} has no parameters to randomise")
    finished: dict[nn.Module, int] = {}  # when each part was last left

    def note(module: nn.Module, _args: object, _output: object) -> None:
        finished[module] = max(finished.values(), default=0) + 1

    with model.undisturbed(), hooked((part, note) for part in parts.values()):
        model.outputs(example)
    times, latest = {}, 0
    for name, part in parts.items():  # a part whose weights are used without a call follows its predecessor
        latest = times[name] = finished.get(part, latest)
    ordered = sorted(parts, key=lambda name: times[name])[::-1]
    units = [[layer for layer, _ in _layers(parts[name], name)] for name in ordered]
    seen = {layer for unit in units for layer in unit}
    rest = [layer for layer, _ in _layers(model.module) if layer not in seen]
    return [*units, rest] if rest else units


def _parts(name: str, module: nn.Module, half: float) -> Iterator[tuple[str, nn.Module]]:
    children = _children(module)
    is_wrapper = sum(p.numel() for p in module.parameters()) > half
    if children and (is_wrapper or type(module) in _CONTAINERS or any(map(_is_series, children.values()))):
        for child, part in children.items():
            yield from _parts(_join(name, child), part, half)
    elif _has_layers(module):
        yield name, module


def _children(module: nn.Module) -> dict[str, nn.Module]:
    return {name: part for name, part in module.named_children() if _has_layers(part)}


def _has_layers(module: nn.Module) -> bool:
    return any(True for _ in _layers(module))


def _is_series(module: nn.Module) -> bool:
    """A container of several blocks of one kind: what makes its owner a stage rather than a block."""
    members = list(_children(module).values()) if type(module) in _CONTAINERS else []
    return len(members) > 1 and len(set(map(type, members))) == 1 and bool(_children(members[0]))


def _layers(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Layers, with their names: modules that own parameters or running statistics."""
    for name, part in module.named_modules(prefix=prefix):
        if isinstance(part, _BatchNorm) or any(True for _ in part.parameters(recurse=False)):
            yield name, part


def _join(name: str, child: str) -> str:
    return f"{name}.{child}" if name else child


def _drawn(model: TargetModel, seed: int) -> dict[str, Tensor]:
    """New values for every parameter, by name; drawn on the CPU in float32, so every device gets the same."""
    with model.undisturbed(), preserved_random_state(seed=seed), autograd(False):
        fresh = _deep_copy(model, {}).cpu().float()
        for _, layer in _layers(fresh):
            _redraw(layer)
        drawn = dict(fresh.named_parameters(remove_duplicate=False))
        kept = dict(model.module.named_parameters(remove_duplicate=False))
        return {name: drawn[name].to(kept[name].device, kept[name].dtype) for name in kept}


def _redraw(layer: nn.Module) -> None:
    own = dict(layer.named_parameters(recurse=False))
    before = {name: parameter.clone() for name, parameter in own.items()}
    reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
    if reset is not None:
        reset()
    for name, parameter in own.items():
        if parameter.numel() == 0:
            continue
        is_constant = bool((parameter == parameter.flatten()[0]).all())
        if reset is None or (not is_constant and torch.equal(parameter, before[name])):  # forgotten by its layer
            _redraw_bare(name, parameter)


def _redraw_bare(name: str, parameter: Tensor) -> None:
    if name.endswith("bias"):
        parameter.zero_()
    elif parameter.numel() == 1 or any(word in name for word in ("gamma", "scale", "lambda")):
        parameter.fill_(float(parameter.abs().mean()))
    else:
        nn.init.trunc_normal_(parameter, std=_DEVIATION, a=-2 * _DEVIATION, b=2 * _DEVIATION)


def _copy_with(model: TargetModel, drawn: dict[str, Tensor], layers: set[str], spec: str) -> TargetModel:
    """The model in new modules, around the drawn parameters of some layers and the model's own for the others."""
    with model.undisturbed(), autograd(False):
        chosen = {id(parameter): parameter.detach() for parameter in model.module.parameters()}
        for name, part in model.module.named_modules(remove_duplicate=False):  # a part may have two names
            if name in layers:
                chosen |= {id(p): drawn[_join(name, own)].detach() for own, p in part.named_parameters(recurse=False)}
        # What the memo knows is not copied but taken from it.
        module = _deep_copy(model, {key: nn.Parameter(p, requires_grad=False) for key, p in chosen.items()})
    return replace(model, module=module, spec=spec, engine="eager", batch_size=model.chunks.size)


def _deep_copy(model: TargetModel, memo: dict[int, Any]) -> nn.Module:
    try:
        return copy.deepcopy(model.module, memo)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ModelError(f"{model.spec} cannot be copied: {error}") from error


def _estimate_statistics(model: TargetModel, layers: set[str], calibration: Tensor) -> None:
    """New running statistics for the batch norms among `layers`, from one pass over the calibration inputs."""
    parts = dict(model.module.named_modules(remove_duplicate=False))
    norms = [parts[name] for name in layers if isinstance(parts[name], _BatchNorm)]
    norms = [norm for norm in norms if norm.running_mean is not None]
    if not norms:
        return
    if len(calibration) < 2:
        raise ModelError("running statistics need at least two calibration inputs")
    momenta = [norm.momentum for norm in norms]
    inputs = calibration.to(model.device, model.dtype)
    model.spend("forward", len(inputs))
    with interrupts_wait(), evaluating(model.module), preserved_random_state(), autograd(False):
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum, norm.training = None, True  # a plain average over the batches
        # All at once, unless memory runs out: what a norm sees of them must not hang on the batch size.
        Chunks(len(inputs)).run(lambda part: model.module(inputs[part].clone()), len(inputs))
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum, norm.training = momentum, False

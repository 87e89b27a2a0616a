"""Passes without gradients, on a faster copy of the network where that is faster and changes nothing that matters.

`auto` spends on a copy what it has spent without one: only after a minute of passes at one input size are the engines
tried, on the very images that are asked about, and the fastest is kept. A named engine is used from the first pass.
Either way a copy's answers are compared with the network's own, at the first pass and then ever more rarely, and a
copy that moves a probability too far is dropped.

Shapes: inputs (B, C, H, W), outputs (B, K).
"""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from aha.errors import AhaWarning
from aha.models.outputs import OutputReader
from aha.models.running.hooks import parts_of
from aha.models.running.inference_backends import FastCopy, make_copy, usable_engines
from aha.models.scores import Score

MOST_CHANGE = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.01}
"""How far a copy may move a probability, by the precision of the passes.

In float32 that is the largest change of all images; rounding stays below a tenth of it. In half precision a network's
own answers are off by a hundredth as a rule, and by a tenth for the odd image on the edge between two classes; so there
it is the mean over all images that were compared of each one's largest change, and four times as much while they are
few and may all be views of one picture.
"""
_FEW = 256  # images

_PATIENCE = 60.0  # seconds of plain passes before engines are tried: about what trying them costs
_WORTHWHILE = 0.95  # of the plain time; what gains less is not worth another rounding
_ROUNDS = 3

Run = Callable[[Tensor], Tensor]


class ForwardOnly:
    """Chooses what runs the passes of one network.

    Attributes:
        engine: what was asked for.
        precision: of its passes, which is that of a copy's too.
        largest_change: of a probability, over all answers that were compared; None before the first.
        left_out: engine -> why it is not used.
    """

    def __init__(self, engine: str, output: OutputReader, score: Score, precision: str = "float32") -> None:
        self.engine, self._output, self._score, self.precision = engine, output, score, precision
        self.largest_change: float | None = None
        self.left_out: dict[str, str] = {}
        self._made_of: tuple[object, ...] = ()
        # All by input shape (C, H, W). No copy: it was tried and dropped.
        self._copies: dict[tuple[int, ...], FastCopy | None] = {}
        self._spent: defaultdict[tuple[int, ...], float] = defaultdict(float)
        self._runs: defaultdict[tuple[int, ...], int] = defaultdict(int)
        self._changes: defaultdict[str, list[float]] = defaultdict(list)  # of each image that was compared, by engine

    def facts(self) -> dict[str, Any]:
        """What a manifest says: what ran the passes, and the largest change of a probability that was seen."""
        if self.engine == "eager":
            return {}
        used = sorted({found.engine for found in self._copies.values() if found is not None})
        return {
            "engine": "+".join(used) or "eager",
            "engine_asked": self.engine,
            "largest_probability_change": self.largest_change,
        }

    def outputs(self, inputs: Tensor, plain: Run, module: nn.Module, rows: int) -> Tensor:
        """Outputs of one chunk; `plain` is the network itself, `rows` the size of a full chunk."""
        self._forget_unless_made_of(module)
        shape = tuple(inputs.shape[1:])
        if shape not in self._copies and self._is_time(shape, len(inputs), rows):
            self._copies[shape] = self._choose(inputs, plain, module, rows)
        found = self._copies.get(shape)
        if found is not None and found.takes(len(inputs)):
            return self._compared(found, shape, inputs, plain)
        start = time.perf_counter()
        outputs = plain(inputs)
        self._spent[shape] += time.perf_counter() - start
        return outputs

    def _is_time(self, shape: tuple[int, ...], count: int, rows: int) -> bool:
        return self.engine != "auto" or (count == rows and self._spent[shape] >= _PATIENCE)

    def _forget_unless_made_of(self, module: nn.Module) -> None:
        """Copies are of one module with the weights that it had; trained further, it needs new ones."""
        weights = (id(module), *weight_versions(module))
        if weights != self._made_of:
            self._made_of = weights
            self._copies.clear()
            self._runs.clear()
            self._changes.clear()

    def _choose(self, inputs: Tensor, plain: Run, module: nn.Module, rows: int) -> FastCopy | None:
        example = torch.cat([inputs] * -(-rows // len(inputs)))[:rows]
        expected = plain(example)
        if self.engine != "auto":
            found = self._made(self.engine, module, example, expected)
            if found is None:
                self._say(f"the engine {self.engine} is not used: {self.left_out[self.engine]}")
            return found
        best, best_time = None, _WORTHWHILE * _fastest(plain, example)
        for engine in usable_engines(inputs.device, self.precision):
            found = self._made(engine, module, example, expected)
            if found is not None and (taken := _fastest(found, example)) < best_time:
                best, best_time = found, taken
        if best is None and self.left_out:
            engine, reason = next(iter(self.left_out.items()))
            self._say(f"no faster engine is used; {engine}: {reason}")
        return best

    def _made(self, engine: str, module: nn.Module, example: Tensor, expected: Tensor) -> FastCopy | None:
        try:
            found = make_copy(engine, module, self._output, example, self.precision)
            changes = self.changes(expected, found(example))
        except Exception as error:  # compilers and exporters raise whatever they like; the network itself still runs
            self.left_out[engine] = next(iter(str(error).strip().splitlines()), type(error).__name__)
            return None
        if why := self._why_too_far(engine, changes):
            self.left_out[engine] = why
            return None
        return found

    def _compared(self, found: FastCopy, shape: tuple[int, ...], inputs: Tensor, plain: Run) -> Tensor:
        outputs = found(inputs)
        self._runs[shape] += 1
        if self._runs[shape].bit_count() > 1:  # at passes 1, 2, 4, 8, ...
            return outputs
        expected = plain(inputs)
        changes = self.changes(expected, outputs)
        if why := self._why_too_far(found.engine, changes):
            self._copies[shape], self.left_out[found.engine] = None, why
            self._say(f"the engine {found.engine} is not used any more: {why}")
            return expected
        self.largest_change = max(float(changes.max()), self.largest_change or 0.0)
        return outputs

    def changes(self, expected: Tensor, found: Tensor) -> Tensor:
        """Each image's (B,) largest change of a probability; of an output, as a share of the largest, where none is."""
        if expected.shape != found.shape:
            return torch.full((len(expected),), torch.inf)
        if not self._score.is_probability:
            return (found - expected).abs().amax(dim=1) / expected.abs().max().clamp(min=1e-12)
        alone = expected.shape[1] == 1 or self._score.name == "sigmoid"
        a, b = (x.double().sigmoid() if alone else x.double().softmax(dim=1) for x in (expected, found))
        return (a - b).abs().amax(dim=1)

    def _why_too_far(self, engine: str, changes: Tensor) -> str:
        """Why a copy with these changes (B,), besides those before, cannot be used; empty if it can."""
        known = self._changes[engine]
        known.extend(changes.tolist())
        most = MOST_CHANGE[self.precision]
        if self.precision == "float32":
            change, how = float(changes.max()), ""
        else:
            change, how = sum(known) / len(known), " on average"
            most *= 4 if len(known) < _FEW else 1
        return "" if change <= most else f"it changes a probability by {change:.1e}{how}, more than {most:.0e}"

    def _say(self, text: str) -> None:
        warnings.warn(text, AhaWarning, stacklevel=2)


def weight_versions(module: nn.Module) -> list[tuple[int, int]]:
    """Where the weights are and how often each was written: other numbers, other weights."""
    versions = []
    for part in parts_of(module):
        lasting = (b for name, b in part._buffers.items() if name not in part._non_persistent_buffers_set)
        for tensor in (*part._parameters.values(), *lasting):
            if tensor is not None:
                versions.append((tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version))
    return versions


def _fastest(run: Run, inputs: Tensor) -> float:
    """Seconds of the fastest of a few passes."""
    seconds = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        run(inputs)
        if inputs.is_cuda:
            torch.cuda.synchronize(inputs.device)
        seconds.append(time.perf_counter() - start)
    return min(seconds)

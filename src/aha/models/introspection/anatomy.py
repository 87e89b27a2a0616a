"""What is found out about a model's inside by running it on noise: stages, blocks, attention, and what is read of them.

Shapes: features (B, C, h, w); tokens (B, T, D); outputs (B, K). Each is found once for each input shape (C, H, W).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from aha.errors import CapabilityError
from aha.models.explained import Explained
from aha.models.introspection.structure import Structure, probe
from aha.models.loading.fixed_inputs import FixedInputs
from aha.models.loading.texts import TextClassifier
from aha.models.running.blocks import BlockLimits
from aha.models.running.hooks import autograd, gradients, hooked
from aha.models.running.memory import Chunks
from aha.models.running.passes import NO_STRUCTURE, captured, outputs_from_tokens
from aha.models.running.runnable import RunnableModel
from aha.models.tracing import Captures, Trace, Tracer

Shape = tuple[int, ...]
T = TypeVar("T")


@dataclass
class Findings:
    """What has been found out about the inside of one network; shared by all views of it."""

    structures: dict[Shape, Structure] = field(default_factory=dict)
    gradient_refusals: dict[Shape, str] = field(default_factory=dict)
    cam_stages: dict[Shape, int] = field(default_factory=dict)
    readouts: dict[Shape, Tensor] = field(default_factory=dict)
    restarts: dict[Shape, bool] = field(default_factory=dict)  # by the stage, too
    block_limits: dict[Shape, BlockLimits] = field(default_factory=dict)
    reads_few_tokens: dict[Shape, bool] = field(default_factory=dict)
    head: nn.Module | None = None
    of_numbers: dict[str, Findings] = field(default_factory=dict)

    def for_numbers(self, explained: Explained) -> Findings:
        """What is known of the same network where a number of one's own is explained.

        Its parts are the same. What is read of them depends on the kind of number, not on the image that it is bound
        to, so that the views of many images find out about it once.
        """
        found = self.of_numbers.setdefault(explained.kind or explained.name, Findings())
        if not explained.inside:  # a number from inside may not come from the last block at all
            found.structures = self.structures
        return found


class InspectedModel(RunnableModel):
    """A model that knows what it is made of."""

    def __post_init__(self, batch_size: int) -> None:
        super().__post_init__(batch_size)
        self._findings = Findings()

    @property
    def capabilities(self) -> frozenset[str]:
        """What methods may ask for: gradients, features, tokens, attention, branches."""
        return self.structure().capabilities

    def structure(self, size: Sequence[int] | None = None) -> Structure:
        """Stages, blocks and attention for inputs of this size, (H, W) or (C, H, W); found once per size."""
        return self._once(self._findings.structures, size, self._find_structure)

    def _once(self, known: dict[Shape, T], size: Sequence[int] | None, find: Callable[[Shape], T]) -> T:
        """What is known of inputs of this size, found at the first question."""
        shape = self.input_shape(size)
        with self.lock:
            if shape not in known:
                (known[shape],) = Chunks(1).run(lambda _: find(shape), 1)
            return known[shape]

    def _find_structure(self, shape: Shape) -> Structure:
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn((3, *shape), generator=generator).to(self.device)
        with self.probing(), self.undisturbed(), autograd(False):
            structure = probe(self.module, lambda count: self.forward(noise[:count]), shape[1:])
            if not structure.blocks:
                return structure
            noise = noise[:2]
            tracer = Tracer(self.module, Trace(self.score, structure))
            trace = tracer.run(lambda: self.forward(noise), 2, Captures(tokens=True))
            again = outputs_from_tokens(self, structure, noise, trace.tokens[-1].detach())
        if self.are_alike(again, trace.outputs):
            return structure
        why = "its residual connections lie outside its blocks, so that no block hands on all there is"
        if isinstance(self.module, FixedInputs):
            why = f"{why}, or its blocks also read the inputs that are fixed"
        return replace(structure, missing={**structure.missing, "tokens": why, "branches": why})

    def gradient_refusal(self, size: Sequence[int] | None = None) -> str:
        """Why no gradient of the outputs can be taken; empty where it can, if only from some layer on. Found once."""
        return self._once(self._findings.gradient_refusals, size, self._find_gradient_refusal)

    def _find_gradient_refusal(self, shape: Shape) -> str:
        noise = torch.randn((1, *shape), generator=torch.Generator().manual_seed(1)).to(self.device)
        with self.probing():
            if captured(self, NO_STRUCTURE, noise, Captures(inputs=True)).outputs.requires_grad:
                return ""
            structure = self.structure(shape)
            stages = range(len(structure.stages))
            if stages and captured(self, structure, noise, Captures(tuple(stages))).outputs.requires_grad:
                return ""
        return "its outputs do not depend differentiably on anything: does it round, or leave PyTorch on the way?"

    def cam_stage(self, size: Sequence[int] | None = None) -> int:
        """The deepest stage on whose places the outputs depend: where class activation mapping makes sense.

        Behind a class-token readout the last block's patch tokens reach no output; there it is the block before.
        """
        shape = self.input_shape(size)
        if shape not in self._findings.cam_stages:
            stage = self._find_cam_stage(shape)
            if stage is None:  # an untrained head of zeros: assume the usual one, and look again next time
                return len(self.structure(shape).stages) - 1
            self._findings.cam_stages[shape] = stage
        return self._findings.cam_stages[shape]

    def _find_cam_stage(self, shape: Shape) -> int | None:
        count = len(self.structure(shape).stages)
        for stop in (count, *range(count - 1, 0, -4)):  # the last, as a rule, or one of the last few
            stages = range(max(0, stop - (1 if stop == count else 4)), stop)
            found = self._output_gradients(shape, features=stages)
            read = [stage for stage, slope in zip(stages, found, strict=True) if bool(slope.any())]
            if read:
                return read[-1]
        return None

    def _output_gradients(
        self, shape: Shape, *, features: Sequence[int] = (), tokens: bool = False
    ) -> tuple[Tensor, ...]:
        """Gradients of a random mix of the outputs on a noise image: zero exactly where nothing is read."""
        generator = torch.Generator().manual_seed(1)
        with autograd(True), self.probing():
            noise = torch.randn((1, *shape), generator=generator).to(self.device)
            trace = captured(self, self.structure(shape), noise, Captures(tuple(features), tokens=tokens))
            mix = torch.randn(trace.outputs.shape, generator=generator).to(trace.outputs)
            total = (trace.outputs * mix).sum()
            wanted = (*trace.features.values(), *trace.tokens[-1:])
            if not total.requires_grad:  # none of it is on the way to the outputs
                return tuple(torch.zeros_like(tensor) for tensor in wanted)
            return gradients(total, wanted, materialize_grads=True)

    def readout(self, size: Sequence[int] | None = None) -> Tensor:
        """Which tokens (T,) of the last block the outputs depend on, found by one gradient."""
        shape = self.input_shape(size)
        if shape not in self._findings.readouts:
            with autograd(False):
                (found,) = self._output_gradients(shape, tokens=True)  # (1, T, D)
                reads = found[0].abs().amax(dim=1) > 0  # (T,)
                if not reads.any():  # an untrained head of zeros: assume the usual reading, and look again next time
                    reads[: 1 if self.structure(shape).blocks[0].layout.prefix else None] = True
                    return reads
            self._findings.readouts[shape] = reads
        return self._findings.readouts[shape]

    @property
    def class_vectors(self) -> Tensor:
        """One vector (K, D) per output: a text's embedding, or the weights of the last linear layer that is run."""
        if self.explained is not None:
            raise CapabilityError(f"{self.explained.name} is not the output of a class, so it has no class vector")
        if isinstance(self.module, TextClassifier):
            return self.module.class_vectors.detach()
        if self._findings.head is None:
            self._findings.head = self._find_head()
        return cast("Tensor", self._findings.head.weight).detach().flatten(1)  # now: its weights may have been replaced

    def _find_head(self) -> nn.Module:
        seen = None if self.preprocessing is not None else next(iter(self._findings.structures), None)
        shape = seen or self.input_shape(None)
        linear = [part for part in self.module.modules() if isinstance(part, nn.Linear | nn.Conv2d)]
        last: list[nn.Module] = []

        def note(part: nn.Module, _args: Any, _output: Any) -> None:
            last[:] = [part]

        with self.undisturbed(), autograd(False), hooked((part, note) for part in linear):
            outputs = self.forward(torch.zeros((1, *shape), device=self.device))
        weight = getattr(last[0], "weight", None) if last else None
        if (
            not isinstance(weight, Tensor)
            or weight.shape[0] != outputs.shape[1]
            or weight[0].numel() != weight.shape[1]
        ):
            raise CapabilityError(
                f"{self.spec}: its outputs do not come from a linear layer, so classes have no vectors"
            )
        return last[0]

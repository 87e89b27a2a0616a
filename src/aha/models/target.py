"""The explained model, behind the one interface that methods, metrics and training use.

Shapes: inputs (B, C, H, W) normalised model inputs; classes (B,); outputs (B, K); features (B, C, h, w); tokens
(B, T, D).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from aha.core.interrupts import interrupts_wait
from aha.core.rows import distinct_rows
from aha.errors import CapabilityError, ModelError
from aha.models.attention import AttentionTap
from aha.models.blocks import stepped
from aha.models.hooks import (
    autograd,
    first_tensor,
    has_backward_hooks,
    hooked,
    slopes,
    swapped_forward,
    with_first_tensor,
)
from aha.models.memory import Chunks
from aha.models.parts import PartedModel
from aha.models.rules import Rule, RuleMode, forward_before_activation, is_written_out, rules_before_activations
from aha.models.scores import Score
from aha.models.structure import Structure, probe
from aha.models.tracing import SharedTrace, Trace, Tracer


class TargetModel(PartedModel):
    """A classifier that can be read and temporarily changed, and that is afterwards what it was.

    Only this class and its neighbours in `aha.models` know model internals.
    """

    # What was found out about the model, by input shape (C, H, W).

    @cached_property
    def _structures(self) -> dict[tuple[int, ...], Structure]:
        return {}

    @cached_property
    def _cam_stages(self) -> dict[tuple[int, ...], int]:
        return {}

    @cached_property
    def _readouts(self) -> dict[tuple[int, ...], Tensor]:
        return {}

    # Reading it

    @property
    def capabilities(self) -> frozenset[str]:
        """What methods may ask for: gradients, features, tokens, attention, branches."""
        return self.structure().capabilities

    def structure(self, size: Sequence[int] | None = None) -> Structure:
        """Stages, blocks and attention for inputs of this size, (H, W) or (C, H, W); found once per size."""
        shape = self._input_shape(size)
        with self._lock:
            if shape not in self._structures:
                (self._structures[shape],) = Chunks(1).run(lambda _: self._find_structure(shape), 1)
            return self._structures[shape]

    def _find_structure(self, shape: tuple[int, int, int]) -> Structure:
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn((2, *shape), generator=generator).to(self.device)  # 2: tells batch from other axes
        with self._probing(), self.undisturbed(), autograd(False):
            structure = probe(self.module, lambda: self._forward(noise), 2, (shape[1], shape[2]))
            if not structure.blocks:
                return structure
            trace = Tracer(self.module, Trace(self.score, structure)).run(lambda: self._forward(noise), 2, tokens=True)
            again = self._outputs_from_tokens(structure, noise, trace.tokens[-1].detach())
        if (again - trace.outputs).abs().max() <= self._rounding * trace.outputs.abs().max():
            return structure
        why = "its residual connections lie outside its blocks, so that no block hands on all there is"
        return replace(structure, missing={**structure.missing, "tokens": why, "branches": why})

    def cam_stage(self, size: Sequence[int] | None = None) -> int:
        """The deepest stage on whose places the outputs depend: where class activation mapping makes sense.

        Behind a class-token readout the last block's patch tokens reach no output; there it is the block before.
        """
        shape = self._input_shape(size)
        if shape not in self._cam_stages:
            stage = self._find_cam_stage(shape)
            if stage is None:  # an untrained head of zeros: assume the usual one, and look again next time
                return len(self.structure(shape).stages) - 1
            self._cam_stages[shape] = stage
        return self._cam_stages[shape]

    def _find_cam_stage(self, shape: tuple[int, int, int]) -> int | None:
        count = len(self.structure(shape).stages)
        for stop in (count, *range(count - 1, 0, -4)):  # the last, as a rule, or one of the last few
            stages = range(max(0, stop - (1 if stop == count else 4)), stop)
            found = self._output_gradients(shape, features=stages)
            read = [stage for stage, slope in zip(stages, found, strict=True) if bool(slope.any())]
            if read:
                return read[-1]
        return None

    def _output_gradients(
        self, shape: tuple[int, int, int], *, features: Sequence[int] = (), tokens: bool = False
    ) -> tuple[Tensor, ...]:
        """Gradients of a random mix of the outputs on a noise image: zero exactly where nothing is read."""
        generator = torch.Generator().manual_seed(1)
        with autograd(True), self._probing():
            noise = torch.randn((1, *shape), generator=generator).to(self.device)
            trace = self._trace(noise, features=features, tokens=tokens)
            mix = torch.randn(trace.outputs.shape, generator=generator).to(trace.outputs)
            total = (trace.outputs * mix).sum()
            wanted = (*trace.features.values(), *trace.tokens[-1:])
            if not total.requires_grad:  # none of it is on the way to the outputs
                return tuple(torch.zeros_like(tensor) for tensor in wanted)
            return slopes(total, wanted, materialize_grads=True)

    def readout(self, size: Sequence[int] | None = None) -> Tensor:
        """Which tokens (T,) of the last block the outputs depend on, found by one gradient."""
        shape = self._input_shape(size)
        if shape not in self._readouts:
            with autograd(False):
                (found,) = self._output_gradients(shape, tokens=True)  # (1, T, D)
                reads = found[0].abs().amax(dim=1) > 0  # (T,)
                if not reads.any():  # an untrained head of zeros: assume the usual reading, and look again next time
                    reads[: 1 if self.structure(shape).blocks[0].layout.prefix else None] = True
                    return reads
            self._readouts[shape] = reads
        return self._readouts[shape]

    def input_gradients(self, inputs: Tensor, classes: Tensor, score: Score | None = None) -> Tensor:
        """Gradient (B, C, H, W) of the explained score with respect to the inputs, in chunks."""

        def gradient(part: slice) -> Tensor:
            trace = self.trace(inputs[part], inputs=True, score=score)
            assert trace.inputs is not None
            return trace.gradients(classes[part], trace.inputs)[0].to(inputs.dtype)

        return torch.cat(self.chunks.run(gradient, len(inputs)))

    def trace(
        self,
        images: Tensor,
        *,
        features: Sequence[int] = (),
        tokens: bool = False,
        attention: bool = False,
        middles: bool = False,
        inputs: bool = False,
        score: Score | None = None,
        in_full_precision: bool = True,
    ) -> Trace:
        """One forward pass of `images` with the requested tensors captured, ready for `Trace.gradients`.

        Gradients need more digits than answers do: unless told otherwise, the pass takes those of the weights.
        """
        is_sharing = self._known_outputs is not None and len(images) > 1
        first, where = distinct_rows(images) if is_sharing else (None, None)
        shown = images if first is None else images[first]
        with nullcontext() if in_full_precision else self._autocast():
            trace = self._trace(shown, features, tokens, attention, inputs, middles)
        trace.score = score or self.score.differentiated()
        if tokens or attention:
            trace.readout = self.readout(images.shape[1:])
        return trace if where is None or len(trace.outputs) == len(where) else SharedTrace.of(trace, where)

    def _trace(
        self,
        images: Tensor,
        features: Sequence[int] = (),
        tokens: bool = False,
        attention: bool = False,
        inputs: bool = False,
        middles: bool = False,
    ) -> Trace:
        wants_internals = bool(features) or tokens or attention or middles
        structure = self.structure(images.shape[1:]) if wants_internals else Structure((), (), ())

        def forward_from(records_all: bool) -> Trace:
            trace = Trace(self.score.differentiated(), structure, passes=self.passes)
            with autograd(records_all):
                leaf = images.detach().to(self.device, self.dtype).clone().requires_grad_(inputs)
                trace.inputs = leaf if inputs else None
                tracer = Tracer(self.module, trace)
                self.passes["forward"] += len(leaf)
                return tracer.run(
                    lambda: self._forward(leaf),
                    len(leaf),
                    features=features,
                    tokens=tokens,
                    attention=attention,
                    middles=middles,
                )

        with self.undisturbed():
            trace = forward_from(records_all=inputs or has_backward_hooks(self.module))
            if wants_internals and not trace.outputs.requires_grad:
                # The model switched recording off again after a captured tensor (its own no_grad part).
                trace = forward_from(records_all=True)
        return trace

    def features(self, images: Tensor, stages: Sequence[int]) -> tuple[list[Tensor], Tensor]:
        """Maps (B, C, h, w) of the given stages and the outputs (B, K), in one pass without a graph."""
        trace = Trace(self.score.differentiated(), self.structure(images.shape[1:]), passes=self.passes)
        images = images.to(self.device)
        first, where = (None, slice(None)) if self._known_outputs is None else distinct_rows(images)
        images = images if first is None else images[first]
        self.passes["forward"] += len(images)
        with self.undisturbed(), autograd(False), self._autocast():
            tracer = Tracer(self.module, trace, with_graph=False)
            tracer.run(lambda: self._forward(images), len(images), features=stages)
        return [trace.features[stage][where] for stage in stages], trace.outputs[where]

    @cached_property
    def class_vectors(self) -> Tensor:
        """The classifier's own weights (K, D), one vector per output: those of the last linear layer that is run."""
        known = next(iter(self._structures), None) if self.preprocessing is None else None  # an input that was seen
        shape = known or self._input_shape(None)
        linear = [part for part in self.module.modules() if isinstance(part, nn.Linear | nn.Conv2d)]
        last: list[nn.Module] = []

        def note(part: nn.Module, _args: Any, _output: Any) -> None:
            last[:] = [part]

        with self.undisturbed(), autograd(False), hooked((part, note) for part in linear):
            outputs = self._forward(torch.zeros((1, *shape), device=self.device))
        weight = getattr(last[0], "weight", None) if last else None
        if (
            not isinstance(weight, Tensor)
            or weight.shape[0] != outputs.shape[1]
            or weight[0].numel() != weight.shape[1]
        ):
            raise CapabilityError(
                f"{self.spec}: its outputs do not come from a linear layer, so classes have no vectors"
            )
        return weight.detach().flatten(1)

    def outputs_from_tokens(self, images: Tensor, tokens: Tensor) -> Tensor:
        """Outputs (B, K) that the model gives when its last block returns `tokens` (B, T, D); differentiable in them.

        The blocks are skipped: the first hands in the tokens, the others pass them on.
        """
        return self._outputs_from_tokens(self.structure(images.shape[1:]), images, tokens)

    def _outputs_from_tokens(self, structure: Structure, images: Tensor, tokens: Tensor) -> Tensor:
        def hand_in(index: int, before: Tensor, _block: object) -> Tensor:
            return tokens if index == 0 else before

        with self.undisturbed(), autograd(tokens.requires_grad), stepped(self.module, structure, hand_in):
            return self._forward(images.to(self.device))

    # Changing it, for the duration of a block

    @contextmanager
    def patched(self, patches: Mapping[str, Callable[[Tensor], Tensor]]) -> Iterator[None]:
        """Replaces the outputs of named modules: each patch gets a module's output tensor and returns another."""
        parts = dict(self.module.named_modules())
        unknown = [name for name in patches if name not in parts]
        if unknown:
            raise ModelError(f"{self.spec} has no module {', '.join(map(repr, unknown))}")

        def replace(patch: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
            def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
                tensor = first_tensor(output)
                return None if tensor is None else with_first_tensor(output, patch(tensor))

            return hook

        hooks = ((parts[name], replace(patch)) for name, patch in patches.items())
        # A patch may tell the rows of a batch apart, so that equal images have different outputs.
        with interrupts_wait(), self._lock, self._remembering(None), hooked(hooks):
            yield

    @contextmanager
    def rules(self, rules: Mapping[str, Rule], *, attention_in_parts: bool = False) -> Iterator[None]:
        """Replaces elementary operations ("relu", "gelu", ...) by rules with the same arguments.

        With `attention_in_parts`, fused attention is computed as its products and softmax, which rules then reach.
        """
        with ExitStack() as stack:
            stack.enter_context(interrupts_wait())
            stack.enter_context(self._lock)
            stack.enter_context(self._remembering(None if self._known_outputs is None else {}))
            stack.enter_context(self._changed())
            stack.enter_context(RuleMode(rules))
            if attention_in_parts:
                stack.enter_context(AttentionTap(lambda weights: weights))
            yield

    @contextmanager
    def before_activations(self, change: Callable[[Tensor], Tensor]) -> Iterator[Counter[str]]:
        """Lets every activation function read `change(x)` in place of x; gives how often each of them was met."""
        met: Counter[str] = Counter()
        written_out = [part for part in self.module.modules() if is_written_out(part)]
        forwards = {part: forward_before_activation(part, change, met) for part in written_out}
        with interrupts_wait(), self.rules(rules_before_activations(change, met)), swapped_forward(forwards):
            yield met

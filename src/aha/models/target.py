"""The explained model, behind the one interface that methods, metrics and training use.

Shapes: inputs (B, C, H, W) normalised model inputs; classes (B,); outputs (B, K); features (B, C, h, w); tokens
(B, T, D).
"""

from __future__ import annotations

import time
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
from aha.models.kept import KeptPass
from aha.models.memory import Chunks, is_out_of_memory
from aha.models.parts import PartedModel
from aha.models.rules import Rule, RuleMode, forward_before_activation, is_written_out, rules_before_activations
from aha.models.scores import Score
from aha.models.structure import Structure, probe
from aha.models.texts import TextClassifier
from aha.models.tracing import NOTHING, Captures, SharedTrace, Trace, Tracer


class TargetModel(PartedModel):
    """A classifier that can be read and temporarily changed, and that is afterwards what it was.

    Only this class and its neighbours in `aha.models` know model internals.
    """

    # What was found out about the model, by input shape (C, H, W).

    @cached_property
    def _structures(self) -> dict[tuple[int, ...], Structure]:
        return {}

    @cached_property
    def _gradient_refusals(self) -> dict[tuple[int, ...], str]:
        return {}

    @cached_property
    def _cam_stages(self) -> dict[tuple[int, ...], int]:
        return {}

    @cached_property
    def _reads_few_tokens(self) -> dict[tuple[int, ...], bool]:
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
        noise = torch.randn((3, *shape), generator=generator).to(self.device)
        with self._probing(), self.undisturbed(), autograd(False):
            structure = probe(self.module, lambda count: self._forward(noise[:count]), (shape[1], shape[2]))
            if not structure.blocks:
                return structure
            noise = noise[:2]
            tracer = Tracer(self.module, Trace(self.score, structure))
            trace = tracer.run(lambda: self._forward(noise), 2, Captures(tokens=True))
            again = self._outputs_from_tokens(structure, noise, trace.tokens[-1].detach())
        if (again - trace.outputs).abs().max() <= self._rounding * trace.outputs.abs().max():
            return structure
        why = "its residual connections lie outside its blocks, so that no block hands on all there is"
        return replace(structure, missing={**structure.missing, "tokens": why, "branches": why})

    def gradient_refusal(self, size: Sequence[int] | None = None) -> str:
        """Why no gradient of the outputs can be taken; empty where it can, if only from some layer on. Found once."""
        shape = self._input_shape(size)
        with self._lock:
            if shape not in self._gradient_refusals:
                (self._gradient_refusals[shape],) = Chunks(1).run(lambda _: self._find_gradient_refusal(shape), 1)
            return self._gradient_refusals[shape]

    def _find_gradient_refusal(self, shape: tuple[int, int, int]) -> str:
        noise = torch.randn((1, *shape), generator=torch.Generator().manual_seed(1)).to(self.device)
        with self._probing():
            if self._trace(noise, Captures(inputs=True)).outputs.requires_grad:
                return ""
            stages = range(len(self.structure(shape).stages))
            if stages and self._trace(noise, Captures(tuple(stages))).outputs.requires_grad:
                return ""
        return "its outputs do not depend differentiably on anything: does it round, or leave PyTorch on the way?"

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
            trace = self._trace(noise, Captures(tuple(features), tokens=tokens))
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
        captures = Captures(tuple(features), tokens, attention, middles, inputs)
        trace = self._kept.traced(images, captures) if self._kept is not None else None
        if trace is None:
            with nullcontext() if in_full_precision else self._autocast():
                trace = self._own_trace(images, captures)
        trace.score = score or self.score.differentiated()
        if tokens or attention:
            trace.readout = self.readout(images.shape[1:])
        return trace

    def _own_trace(self, images: Tensor, captures: Captures) -> Trace:
        if self._known_outputs is None or len(images) == 1:
            return self._trace(images, captures)
        first, where = distinct_rows(images)
        trace = self._trace(images[first], captures)
        return trace if len(first) == len(where) else SharedTrace.of(trace, where)

    def _trace(self, images: Tensor, captures: Captures) -> Trace:
        structure = self.structure(images.shape[1:]) if captures.are_internal else Structure((), (), ())

        def forward_from(records_all: bool) -> Trace:
            trace = Trace(self.score.differentiated(), structure, passes=self.passes)
            with autograd(records_all):
                leaf = images.detach().to(self.device, self.dtype).clone().requires_grad_(captures.inputs)
                trace.inputs = leaf if captures.inputs else None
                self.passes["forward"] += len(leaf)
                return Tracer(self.module, trace).run(lambda: self._forward(leaf), len(leaf), captures)

        with self.undisturbed():
            trace = forward_from(records_all=captures.inputs or has_backward_hooks(self.module))
            if captures.are_internal and not trace.outputs.requires_grad:
                # The model switched recording off again after a captured tensor (its own no_grad part).
                trace = forward_from(records_all=True)
        return trace

    @contextmanager
    def keeping(self, images: Tensor, captures: Captures = NOTHING, outputs: Tensor | None = None) -> Iterator[Tensor]:
        """Inside the block these images are run once, whoever asks about them; gives their outputs (B, K).

        The pass is run at once, with the captures that are known to be wanted; where the caller has the outputs (B, K)
        and nothing else is wanted, not even that. `outputs`, `trace` and `features` then find there what they are asked
        about the same images; of a trace, gradients that were taken before as well. Inside `patched` and `rules`, where
        the model is another, nothing is kept, nor for other threads.
        """
        images = images.to(self.device)
        kept = self._kept if self._kept is not None and self._kept.covers(images, captures) else None
        kept = kept or self._keep(images, captures, outputs)
        with self._holding(kept):
            yield kept.outputs[kept.places(images)]

    def _keep(self, images: Tensor, captures: Captures, outputs: Tensor | None) -> KeptPass:
        start = time.perf_counter_ns()
        trace = self._traced_to_keep(images, captures)
        if trace is not None:
            trace.slopes, trace.spared, outputs = {}, self.spared, trace.outputs.detach()
        elif outputs is None:
            outputs = self.outputs(images)
        spent = time.perf_counter_ns() - start
        return KeptPass(images, outputs, trace, captures if trace else NOTHING, spent, self.spared)

    def _traced_to_keep(self, images: Tensor, captures: Captures) -> Trace | None:
        """The pass with what is to be captured, if it fits into memory and its outputs are the model's."""
        # In half precision outputs are computed in another way than traces, and cannot be taken from one.
        if captures == NOTHING or self.precision != "float32":
            return None
        try:
            return self._trace(images, captures)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        return None

    def features(self, images: Tensor, stages: Sequence[int]) -> tuple[list[Tensor], Tensor]:
        """Maps (B, C, h, w) of the given stages and the outputs (B, K), in one pass without a graph."""
        images = images.to(self.device)
        if self._kept is not None and (known := self._kept.features_at(images, tuple(stages))) is not None:
            return known
        trace = Trace(self.score.differentiated(), self.structure(images.shape[1:]), passes=self.passes)
        first, where = (None, slice(None)) if self._known_outputs is None else distinct_rows(images)
        images = images if first is None else images[first]
        self.passes["forward"] += len(images)
        with self.undisturbed(), autograd(False), self._autocast():
            tracer = Tracer(self.module, trace, with_graph=False)
            tracer.run(lambda: self._forward(images), len(images), Captures(tuple(stages)))
        return [trace.features[stage][where] for stage in stages], trace.outputs[where]

    @property
    def has_texts(self) -> bool:
        """Are its classes texts, of which others could be given to the same network?"""
        return isinstance(self.module, TextClassifier)

    @cached_property
    def class_vectors(self) -> Tensor:
        """One vector (K, D) per output: a text's embedding, or the weights of the last linear layer that is run."""
        if isinstance(self.module, TextClassifier):
            return self.module.class_vectors.detach()
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

    def mean_output_of_tokens(self, images: Tensor, tokens: Tensor) -> Tensor:
        """The mean (B, K) over tokens (B, T, D) of the outputs that the model's norm and head give to each alone.

        Differentiable in the tokens. For a linear head this is the head of the mean of normalised tokens.
        """
        shape = tuple(images.shape[1:])
        if shape not in self._reads_few_tokens:
            self._reads_few_tokens[shape] = self._can_read_few_tokens(images[:1], tokens[:1, :2].detach())
        return self._mean_output_of_tokens(images, tokens, in_short=self._reads_few_tokens[shape])

    def _mean_output_of_tokens(self, images: Tensor, tokens: Tensor, *, in_short: bool) -> Tensor:
        """By sequences of one token again and again: in short ones for one image, or as long as the model's own."""
        structure, (count, width) = self.structure(images.shape[1:]), tokens.shape[1:]
        layout = structure.blocks[0].layout
        length = layout.prefix + (1 if in_short else layout.grid[0] * layout.grid[1])
        alike = tokens.reshape(-1, 1, width).expand(-1, length, -1)  # (B T, length, D)
        shown = images.to(self.device)
        shown = shown if in_short else shown.repeat_interleave(count, dim=0)

        def hand_in(index: int, before: Tensor, _block: object) -> Tensor:
            return alike if index == 0 else before

        with self.undisturbed(), autograd(tokens.requires_grad), stepped(self.module, structure, hand_in):
            outputs = self._forward(shown, rows=len(alike))
        return outputs.view(-1, count, *outputs.shape[1:]).mean(dim=1)

    def _can_read_few_tokens(self, image: Tensor, tokens: Tensor) -> bool:
        with self._probing():
            expected = self._mean_output_of_tokens(image, tokens, in_short=False)
            try:
                found = self._mean_output_of_tokens(image, tokens, in_short=True)
            except (RuntimeError, ValueError, IndexError, ModelError) as error:
                if is_out_of_memory(error):
                    raise
                return False
        return bool((found - expected).abs().max() <= self._rounding * expected.abs().max())

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
        with interrupts_wait(), self._lock, self._remembering(None), self._holding(None), hooked(hooks):
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
            stack.enter_context(self._holding(None))
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

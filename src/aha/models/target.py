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
from typing import Any

import torch
from torch import Tensor, nn

from aha.core.interrupts import interrupts_wait
from aha.core.rows import distinct_rows
from aha.errors import ModelError
from aha.models.anatomy import Anatomy
from aha.models.attention import AttentionTap
from aha.models.blocks import BlockLimits, BlockStates, Step
from aha.models.explained import Explained
from aha.models.hooks import (
    first_tensor,
    frozen_weights,
    hooked,
    swapped_forward,
    with_first_tensor,
)
from aha.models.kept import KeptPass
from aha.models.memory import is_out_of_memory
from aha.models.parts import Parts, Toll
from aha.models.passes import NO_STRUCTURE, captured, features_of
from aha.models.precision import Precision
from aha.models.rules import Rule, RuleMode, forward_before_activation, is_written_out, rules_before_activations
from aha.models.runnable import RunnableModel
from aha.models.scores import Score, regression
from aha.models.structure import Structure
from aha.models.texts import TextClassifier
from aha.models.tracing import NOTHING, Captures, SharedTrace, Trace


class TargetModel(RunnableModel):
    """A classifier that can be read and temporarily changed, and that is afterwards what it was.

    Only this class and its neighbours in `aha.models` know model internals: `RunnableModel` runs the network, `Anatomy`
    knows what it is made of, `Parts` runs parts of it.
    """

    def __post_init__(self, batch_size: int) -> None:
        super().__post_init__(batch_size)
        self._anatomy = Anatomy()
        self._parts = Parts(self._anatomy)

    # What it is made of

    @property
    def capabilities(self) -> frozenset[str]:
        """What methods may ask for: gradients, features, tokens, attention, branches."""
        return self.structure().capabilities

    def structure(self, size: Sequence[int] | None = None) -> Structure:
        """Stages, blocks and attention for inputs of this size, (H, W) or (C, H, W); found once per size."""
        return self._anatomy.structure(self, size)

    def gradient_refusal(self, size: Sequence[int] | None = None) -> str:
        """Why no gradient of the outputs can be taken; empty where it can, if only from some layer on."""
        return self._anatomy.gradient_refusal(self, size)

    def cam_stage(self, size: Sequence[int] | None = None) -> int:
        """The deepest stage on whose places the outputs depend: where class activation mapping makes sense."""
        return self._anatomy.cam_stage(self, size)

    def readout(self, size: Sequence[int] | None = None) -> Tensor:
        """Which tokens (T,) of the last block the outputs depend on."""
        return self._anatomy.readout(self, size)

    def layer_name(self, part: nn.Module) -> str:
        """The name of one of the network's modules, by which methods know it: `grad_cam(layer='layer3')`."""
        names: dict[nn.Module, str] = {module: name for name, module in self.module.named_modules()}
        found = names.get(part)
        if found is None:
            raise ModelError(f"{self.spec} has no such module: {type(part).__name__}")
        return found

    @property
    def has_texts(self) -> bool:
        """Are its classes texts, of which others could be given to the same network?"""
        return isinstance(self.module, TextClassifier)

    @property
    def class_vectors(self) -> Tensor:
        """One vector (K, D) per output: a text's embedding, or the weights of the last linear layer that is run."""
        return self._anatomy.class_vectors(self)

    def explaining(self, explained: Explained) -> TargetModel:
        """The same network, of which a number of one's own (B, 1) takes the place of the class outputs.

        What is known of its inside is shared. The number is class 0 of the view, and its only one.
        """
        score = Score(explained.name, regression, is_probability=explained.is_probability, splits_single=False)
        view = self._with(score=score, explained=explained, class_names=(explained.label or explained.name,))
        view._anatomy = self._anatomy.for_numbers(explained)
        view._parts = Parts(view._anatomy)
        return view

    def scored_by(self, score: Score) -> TargetModel:
        """The same network with another score of the same class outputs."""
        view = self._with(score=score)
        view._anatomy, view._parts = self._anatomy, self._parts
        return view

    def in_precision(self, precision: Precision) -> TargetModel:
        """The same network with passes without gradients in another precision, by the network itself."""
        view = self._with(precision=precision, engine="eager")
        view._anatomy, view._parts = self._anatomy, self._parts
        return view

    def _with(self, **changes: Any) -> TargetModel:
        view = replace(self, **changes, batch_size=self.chunks.size)
        view._digest = self._digest
        return view

    # Reading it

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
            with nullcontext() if in_full_precision else self.autocast():
                trace = self._own_trace(images, captures)
        trace.score = score or self.score.differentiated()
        if tokens or attention:
            trace.readout = self.readout(images.shape[1:])
        return trace

    def _own_trace(self, images: Tensor, captures: Captures) -> Trace:
        if self._known_outputs is None or len(images) == 1:
            return self._captured(images, captures)
        first, where = distinct_rows(images)
        trace = self._captured(images[first], captures)
        return trace if len(first) == len(where) else SharedTrace.of(trace, where)

    def _captured(self, images: Tensor, captures: Captures) -> Trace:
        structure = self.structure(images.shape[1:]) if captures.are_internal else NO_STRUCTURE
        return captured(self, structure, images, captures)

    @contextmanager
    def keeping(self, images: Tensor, captures: Captures = NOTHING, outputs: Tensor | None = None) -> Iterator[Tensor]:
        """Inside the block these images are run once, for all that ask about them; gives their outputs (B, K).

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
            return self._captured(images, captures)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        return None

    def features(self, images: Tensor, stages: Sequence[int]) -> tuple[list[Tensor], Tensor]:
        """Maps (B, C, h, w) of the given stages and the outputs (B, K), in one pass without a graph."""
        images = images.to(self.device)
        if self._kept is not None and (known := self._kept.features_at(images, tuple(stages))) is not None:
            return known
        first, where = (None, slice(None)) if self._known_outputs is None else distinct_rows(images)
        shown = images if first is None else images[first]
        maps, outputs = features_of(self, self.structure(images.shape[1:]), shown, stages)
        return [values[where] for values in maps], outputs[where]

    # Running its parts

    def outputs_by_blocks(self, images: Tensor, step: Step, toll: Toll | None = None) -> Tensor:
        """Outputs (R, K) when `step(number, tokens, block)` stands in for every transformer block; without a graph.

        Calls that share a `toll` are counted together, and do not round up one by one.
        """
        return self._parts.outputs_by_blocks(self, images, step, toll)

    def toll(self, size: Sequence[int]) -> Toll:
        """Counts tokens through blocks as images of this size."""
        return self._parts.toll(self, size)

    def block_states(self, images: Tensor, *, attention: bool = False) -> BlockStates:
        """Tokens between all blocks and, if asked for, their queries, keys and values, in one pass without a graph."""
        return self._parts.block_states(self, images, attention=attention)

    def block_limits(self, size: Sequence[int] | None = None) -> BlockLimits:
        """Whether the blocks can be run on any tokens in any order, and with another attention."""
        return self._parts.block_limits(self, size)

    def outputs_of_tokens(self, image: Tensor, tokens: Tensor) -> Tensor:
        """Outputs (R, K) when the first block reads `tokens` (R, T', D): some of an image's, say; in chunks."""
        return self._parts.outputs_of_tokens(self, image, tokens)

    def outputs_of_kept_tokens(self, images: Tensor, kept: Tensor) -> Tensor:
        """Outputs (B, K) with the patch tokens outside `kept` (B, N) dropped before the first block."""
        return self._parts.outputs_of_kept_tokens(self, images, kept)

    def outputs_from_tokens(self, images: Tensor, tokens: Tensor) -> Tensor:
        """Outputs (B, K) when the last block returns `tokens` (B, T, D); differentiable in them."""
        return self._parts.outputs_from_tokens(self, images, tokens)

    def mean_output_of_tokens(self, images: Tensor, tokens: Tensor) -> Tensor:
        """The mean (B, K) over tokens (B, T, D) of the outputs that norm and head give to each alone."""
        return self._parts.mean_output_of_tokens(self, images, tokens)

    def outputs_from_features(self, image: Tensor, stage: int, maps: Tensor) -> Tensor:
        """Outputs (m, K) for one image (C, H, W) when the stage returns each of `maps` (m, C, h, w)."""
        return self._parts.outputs_from_features(self, image, stage, maps)

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
        with interrupts_wait(), self.lock, self._remembering(None), self._holding(None), hooked(hooks):
            yield

    @contextmanager
    def rules(self, rules: Mapping[str, Rule], *, attention_in_parts: bool = False) -> Iterator[None]:
        """Replaces elementary operations ("relu", "gelu", ...) by rules with the same arguments.

        With `attention_in_parts`, fused attention is computed as its products and softmax, which rules then reach.
        Weights are frozen meanwhile, so that what requires gradients is what depends on the image.
        """
        with ExitStack() as stack:
            stack.enter_context(interrupts_wait())
            stack.enter_context(self.lock)
            stack.enter_context(self._remembering(None if self._known_outputs is None else {}))
            stack.enter_context(self._changed())
            stack.enter_context(self._holding(None))
            stack.enter_context(frozen_weights(self.module))
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

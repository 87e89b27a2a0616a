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
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from aha.core.interrupts import interrupts_wait
from aha.core.model_options import Precision
from aha.errors import ModelError
from aha.models.explained import Explained
from aha.models.introspection.attention import AttentionTap
from aha.models.loading.texts import TextClassifier
from aha.models.relevance.rules import (
    Rule,
    RuleMode,
    forward_before_activation,
    is_written_out,
    rules_before_activations,
)
from aha.models.running.forward_cache import ForwardCache, KeptPass
from aha.models.running.hooks import first_tensor, frozen_weights, hooked, swapped_forward, with_first_tensor
from aha.models.running.memory import is_out_of_memory
from aha.models.running.parts import DivisibleModel
from aha.models.running.passes import NO_STRUCTURE, captured, features_of
from aha.models.scores import Score, regression
from aha.models.tracing import NOTHING, Captures, Trace


class TargetModel(DivisibleModel):
    """A classifier that can be read and temporarily changed, and that is afterwards what it was.

    Only this class and its neighbours in `aha.models` know model internals: `RunnableModel` runs the network,
    `InspectedModel` knows what it is made of, `DivisibleModel` runs parts of it.
    """

    # What it is made of

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

    def explaining(self, explained: Explained) -> TargetModel:
        """The same network, of which a number of one's own (B, 1) takes the place of the class outputs.

        What is known of its inside is shared. The number is class 0 of the view, and its only one.
        """
        score = Score(explained.name, regression, is_probability=explained.is_probability, splits_single=False)
        view = self._with(score=score, explained=explained, class_names=(explained.label or explained.name,))
        view._findings = self._findings.for_numbers(explained)
        return view

    def scored_by(self, score: Score) -> TargetModel:
        """The same network with another score of the same class outputs."""
        return self._with(score=score)

    def in_precision(self, precision: Precision) -> TargetModel:
        """The same network with passes without gradients in another precision, by the network itself."""
        return self._with(precision=precision, engine="eager")

    def _with(self, **changes: Any) -> TargetModel:
        view = replace(self, **changes, batch_size=self.chunks.size)
        view._digest, view._findings = self._digest, self._findings
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
        residual_mid: bool = False,
        inputs: bool = False,
        score: Score | None = None,
        in_full_precision: bool = True,
    ) -> Trace:
        """One forward pass of `images` with the requested tensors captured, ready for `Trace.gradients`.

        Gradients need more digits than answers do: unless told otherwise, the pass takes those of the weights.
        """
        captures = Captures(tuple(features), tokens, attention, residual_mid, inputs)
        with nullcontext() if in_full_precision else self.autocast():
            trace = self._cache.trace(images, captures, partial(self._captured, captures=captures))
        trace.score = score or self.score.differentiated()
        if tokens or attention:
            trace.readout = self.readout(images.shape[1:])
        return trace

    def _captured(self, images: Tensor, captures: Captures) -> Trace:
        structure = self.structure(images.shape[1:]) if captures.are_internal else NO_STRUCTURE
        return captured(self, structure, images, captures)

    @contextmanager
    def caching(
        self, images: Tensor | None = None, captures: Captures = NOTHING, outputs: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Inside the block an image that is shown again, bit by bit the same, is not run again.

        With `images`, these are run at once, with the captures that are known to be wanted; where the caller has their
        outputs (B, K) and nothing else is wanted, not even that. `outputs`, `trace` and `features` then find there what
        they are asked about the same images; of a trace, gradients that were taken before as well. Gives their outputs.

        Without, this holds for whatever images are shown: `outputs` remembers, and `trace` runs the distinct images of
        a batch once and goes back through that one pass once for each time that an image occurs. So a method that is
        handed every image once per class costs one forward pass, not one per class.

        Inside `patched`, where equal images may be treated differently, nothing is taken from here; inside `rules`,
        where the model is another, nothing from before. Other threads have caches of their own.
        """
        cache, given = self._cache, torch.empty(0)
        if images is None:
            cache = replace(cache, known={} if cache.known is None else cache.known)
        else:
            images = images.to(self.device)
            kept = cache.kept if cache.kept is not None and cache.kept.covers(images, captures) else None
            kept = kept or self._keep(images, captures, outputs)
            cache, given = replace(cache, kept=kept), kept.outputs[kept.rows(images)]
        with self._answering_from(cache):
            yield given

    def _keep(self, images: Tensor, captures: Captures, outputs: Tensor | None) -> KeptPass:
        start = time.perf_counter_ns()
        trace = self._traced_to_keep(images, captures)
        if trace is not None:
            trace.gradient_cache, trace.cache_hits, outputs = {}, self.cache_hits, trace.outputs.detach()
        elif outputs is None:
            outputs = self.outputs(images)
        spent = time.perf_counter_ns() - start
        return KeptPass(images, outputs, trace, captures if trace else NOTHING, spent, self.cache_hits)

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
        run = partial(features_of, self, self.structure(images.shape[1:]), stages=stages)
        return self._cache.features(images, stages, run)

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
        with interrupts_wait(), self.lock, self._answering_from(ForwardCache()), hooked(hooks):
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
            stack.enter_context(self._answering_from(ForwardCache(known=None if self._cache.known is None else {})))
            stack.enter_context(self._changed())
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

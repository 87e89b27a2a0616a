"""A classifier that can be run: outputs in chunks, scores, pixels; afterwards it is what it was.

Shapes: inputs (B, C, H, W) normalised model inputs; pixels the same in [0, 1]; classes (B,); outputs (B, K).
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from aha.core.interrupts import checkpoint, interrupts_wait
from aha.core.model_options import Engine, Precision
from aha.errors import AhaWarning, ModelError, TargetError, warn
from aha.models.explained import Answer, Explained
from aha.models.loading.class_names import index_of
from aha.models.loading.metadata import advice, habits_of_weights, likely_weights
from aha.models.loading.preprocessing import Preprocessing
from aha.models.loading.weights import state_digest
from aha.models.outputs import OutputReader, read_outputs
from aha.models.running.forward_cache import ForwardCache
from aha.models.running.hooks import autograd, evaluating, has_backward_hooks, lock_of, noted, parts_of
from aha.models.running.inference import ForwardOnly, weight_versions
from aha.models.running.inference_backends import check_engine
from aha.models.running.memory import Chunks, is_out_of_memory
from aha.models.running.precision import HALF, check_precision
from aha.models.running.rng import own_numbers_of
from aha.models.scores import Score

_NOTHING_KNOWN = ForwardCache()


def unwrapped(module: nn.Module) -> nn.Module:
    """The module behind compiled and data-parallel wrappers, which hide the parts whose outputs we read."""
    while True:
        inner: nn.Module = getattr(module, "_orig_mod", module)
        if isinstance(inner, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = inner.module
        if inner is module:
            return module
        module = inner


def _failure(inputs: Tensor, error: Exception) -> str:
    """What a network said about inputs that it does not take, and what may help."""
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    channels = re.search(r"to have (\d+) channels, but got \d+", reason)
    advice = f"; give inputs, or mean= and std=, of as many channels as it takes: {channels[1]}" if channels else ""
    return f"{tuple(inputs.shape)}: {reason}{advice}"


def _checked_names(names: Iterable[str]) -> tuple[str, ...]:
    listed = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else ()
    if not listed or not all(isinstance(name, str) for name in listed):
        raise ModelError("class_names must be a list of texts, one per class")
    return listed


@dataclass(eq=False, repr=False)
class RunnableModel:
    """A module with its preprocessing and its score. Calls are serialised by a lock: hooks are global to a module."""

    module: nn.Module
    _: KW_ONLY
    spec: str
    preprocessing: Preprocessing | None
    score: Score
    output: OutputReader = None
    class_names: Sequence[str] | None = None
    precision: Precision = "float32"
    engine: Engine = "eager"  # what was asked to run passes without gradients
    bands: Sequence[int] | None = None  # the channels that are drawn as red, green and blue
    explained: Explained | None = None  # a number of one's own instead of class outputs
    batch_size: InitVar[int] = 32

    def __post_init__(self, batch_size: int) -> None:
        check_precision(self.precision)
        self.module = unwrapped(self.module)
        check_engine(self.engine, self.device, self.precision)
        self.class_names = None if self.class_names is None else _checked_names(self.class_names)
        self.chunks = Chunks(batch_size)
        self.lock = lock_of(self.module)
        self._digest: tuple[object, str] = (None, "")  # of which versions of the weights, and the digest
        self.passes: Counter[str] = Counter()  # images sent "forward" and "backward", for cost measurements
        # The same, and the "nanoseconds", where a kept pass answered instead: counted apart, since they cost nothing.
        self.cache_hits: Counter[str] = Counter()
        self._num_classes: int | None = None
        self._is_probing = False
        self._is_changed = False  # rules are in force, which a copy of the module would not follow
        self._forward_only = ForwardOnly(self.engine, self.output, self.score, self.precision)
        self._local = threading.local()  # of each thread: its forward cache

    def __repr__(self) -> str:
        return f"TargetModel({self.spec!r}, score={self.score.name!r}, device={str(self.device)!r})"

    # What it is

    @property
    def device(self) -> torch.device:
        """Where the model's parameters live."""
        return next((p.device for p in self._tensors()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the model's parameters."""
        return next((p.dtype for p in self._tensors() if p.is_floating_point()), torch.float32)

    @property
    def digest(self) -> str:
        """Digest of the weights: two models with equal digests compute the same function of the same architecture.

        Found once, and again after the weights were trained or replaced (unless behind autograd's back, by `.data`).
        """
        versions = weight_versions(self.module)
        if self._digest[0] != versions:
            self._digest = versions, state_digest(self.module.state_dict())
        return self._digest[1]

    @property
    def engine_key(self) -> tuple[str, ...]:
        """What tells results of other engines from those of the module itself."""
        return () if self.engine == "eager" else (self.engine,)

    @property
    def engine_facts(self) -> dict[str, Any]:
        """What really ran them so far, and the largest change of a probability that was seen; empty for eager."""
        return self._forward_only.facts()

    @property
    def num_classes(self) -> int:
        """How many classes the outputs tell apart."""
        if self._num_classes is None:
            if self.preprocessing is None:
                raise ModelError(f"{self.spec}: the number of classes is unknown until an input size is stated")
            shape = (1, len(self.preprocessing.mean), *self.preprocessing.places)
            self.outputs(torch.zeros(shape, device=self.device))
        assert self._num_classes is not None
        return self._num_classes

    def class_name(self, index: int) -> str:
        """A readable name of the class."""
        if self.class_names is not None and index < len(self.class_names):
            return self.class_names[index]
        if self.score.splits_single:
            return f"class {index}"
        return "value" if self._num_classes == 1 else f"value {index}"  # a regression tells no classes apart

    def class_index(self, name: str) -> int:
        """The class of this name, or of this number written as text."""
        return index_of(name, self.class_names)

    def _tensors(self) -> Iterator[Tensor]:
        yield from self.module.parameters()
        yield from self.module.buffers()

    # Running it

    def outputs(self, inputs: Tensor) -> Tensor:
        """Raw outputs (B, K), in chunks, following the caller's gradient mode for `inputs` that need gradients."""
        is_differentiable = inputs.requires_grad and torch.is_grad_enabled()
        inputs = inputs.to(self.device)
        if is_differentiable or not len(inputs):
            return self._run(inputs, is_differentiable)
        return self._cache.outputs(inputs, partial(self._run, is_differentiable=False))

    def _run(self, inputs: Tensor, is_differentiable: bool) -> Tensor:
        self.spend("forward", len(inputs))
        with self.undisturbed(), autograd(is_differentiable), self.autocast():
            forward = self.forward if is_differentiable else self._forward_without_gradients
            return torch.cat(self.chunks.run(lambda part: forward(inputs[part]), len(inputs)))

    def _forward_without_gradients(self, inputs: Tensor) -> Tensor:
        """Raw outputs of one chunk, from a faster copy of the module where the engine has one that answers the same."""
        if not self._may_use_copies():
            return self.forward(inputs)
        return self._forward_only.outputs(inputs, self.forward, self.module, self.chunks.size)

    def _may_use_copies(self) -> bool:
        if self.engine == "eager" or self._is_probing or self._is_changed or self.explained is not None:
            return False
        # Whoever hooked into the module wants to see its passes, or to change them.
        is_watched = any(part._forward_hooks or part._forward_pre_hooks for part in parts_of(self.module))
        return self.dtype == torch.float32 and not is_watched

    def spend(self, direction: Literal["forward", "backward"], images: int) -> None:
        """Counts images that are about to go through the model; a listener may refuse them."""
        if not self._is_probing:
            checkpoint(images, self.passes)
        self.passes[direction] += images

    def scores(self, inputs: Tensor, classes: Tensor) -> Tensor:
        """The reported score (B,) of each input's class."""
        return self.score(self.outputs(inputs), classes)

    def forward(self, inputs: Tensor, rows: int | None = None) -> Tensor:
        """Raw outputs of one pass; `rows` of them where that is not the number of inputs."""
        outputs = self.answer(inputs)
        if len(outputs) != (len(inputs) if rows is None else rows):
            raise ModelError(f"{self.spec} returned {len(outputs)} rows for {len(inputs)} images")
        return outputs

    def answer(self, inputs: Tensor) -> Tensor:
        """Outputs of one forward pass, as many rows as the model may give."""
        checkpoint()
        # A copy, because a model may work in place on its input, and the caller's tensor is not ours to change.
        inputs = inputs.to(self.dtype, copy=True)
        if torch.is_grad_enabled() and not inputs.requires_grad and has_backward_hooks(self.module):
            inputs = inputs.requires_grad_().clone()
        try:
            with own_numbers_of(self.module), noted(self.module, self._inside) as inside:
                returned = self.module(inputs)
        except (RuntimeError, ValueError, AssertionError) as error:  # as PyTorch and libraries speak of wrong shapes
            if is_out_of_memory(error):
                raise
            raise ModelError(f"{self.spec} fails on inputs of shape {_failure(inputs, error)}") from error
        if self.explained is not None:
            height, width = inputs.shape[-2:]
            returned = self.explained.numbers(Answer(returned, inside, (height, width), len(inputs), self.output))
        outputs = read_outputs(returned, None if self.explained is not None else self.output)
        self._num_classes = self.score.num_classes(outputs)
        return outputs.float() if outputs.dtype in HALF.values() else outputs

    @property
    def _inside(self) -> tuple[str, ...]:
        return () if self.explained is None else self.explained.inside

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision that was asked for; that of the weights while something is found out about the model."""
        if self.precision == "float32" or self._is_probing:
            return nullcontext()
        return torch.autocast(self.device.type, HALF[self.precision])

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Evaluation mode, alone with the model; flags are restored whatever happens."""
        with interrupts_wait(), self.lock, evaluating(self.module):
            yield

    @contextmanager
    def without_graph(self) -> Iterator[None]:
        """As `undisturbed`, for passes without gradients, in the precision that was asked for."""
        with self.undisturbed(), autograd(False), self.autocast():
            yield

    @property
    def _cache(self) -> ForwardCache:
        found: ForwardCache = getattr(self._local, "cache", _NOTHING_KNOWN)
        return found

    @contextmanager
    def _answering_from(self, cache: ForwardCache) -> Iterator[None]:
        with interrupts_wait():
            before, self._local.cache = self._cache, cache
            try:
                yield
            finally:
                self._local.cache = before

    @contextmanager
    def _changed(self) -> Iterator[None]:
        """Passes inside the block compute something else than the module as it stands."""
        with interrupts_wait():
            before, self._is_changed = self._is_changed, True
            try:
                yield
            finally:
                self._is_changed = before

    @contextmanager
    def probing(self) -> Iterator[None]:
        """Passes inside the block find out about the model: no cost of a method, and as exact as its weights allow."""
        with interrupts_wait(), self.lock:
            before, was_probing = self.passes.copy(), self._is_probing
            self._is_probing = True
            try:
                yield
            finally:
                self._is_probing = was_probing
                self.passes.clear()
                self.passes.update(before)

    @property
    def rounding(self) -> float:
        """How far two ways to the same outputs may lie apart, relative to the largest, when nothing else differs."""
        return 0.05 if self.dtype in HALF.values() else 1e-3

    def are_alike(self, found: Tensor, expected: Tensor) -> bool:
        """Are these the same outputs, found in two ways?"""
        return bool((found - expected).abs().max() <= self.rounding * expected.abs().max())

    # Pixels and classes

    def to_inputs(self, pixels: Tensor) -> Tensor:
        """Pixels in [0, 1] to normalised model inputs."""
        return self.stated_preprocessing().normalise(pixels)

    def to_pixels(self, inputs: Tensor) -> Tensor:
        """Normalised model inputs to pixels in [0, 1]."""
        return self.stated_preprocessing().denormalise(inputs)

    def stated_preprocessing(self) -> Preprocessing:
        """How pictures become inputs; a plain module must have stated it, unless it is one of torchvision's."""
        if self.preprocessing is None and (entry := likely_weights(self.module)) is not None:
            name = f"{type(entry).__name__}.{entry.name}"
            warn(
                f"{self.spec} does not state its preprocessing; that of {name} is assumed. "
                f"To choose: aha.load_model(MODULE, weights=torchvision.models.{name})",
                AhaWarning,
            )
            self.preprocessing, names = habits_of_weights(self.module, entry)
            self.class_names = names if self.class_names is None else self.class_names
        if self.preprocessing is None:
            how = (
                "add --input-size, --mean and --std, or let the function return aha.load_model(MODULE, transform=...)"
                if self.spec.startswith("python:")
                else f"in load_model, {advice(self.module)}"
            )
            raise ModelError(f"{self.spec} does not state its preprocessing: {how}")
        return self.preprocessing

    def check_classes(self, classes: Tensor | Sequence[int]) -> None:
        """Refuses class indices that the model does not have."""
        indices = classes.flatten().tolist() if isinstance(classes, Tensor) else classes
        wrong = [index for index in indices if not 0 <= index < self.num_classes]
        if wrong:
            raise TargetError(f"class {wrong[0]} does not exist; {self.spec} has classes 0 to {self.num_classes - 1}")

    def input_shape(self, size: Sequence[int] | None) -> tuple[int, ...]:
        """(C, H, W) or (C, D, H, W) from itself, from (H, W), or from what is stated."""
        # Numbers also while a graph is recorded, where the sizes of a tensor are tensors themselves.
        if size is not None and len(size) > 2:
            return tuple(map(int, size))
        places = map(int, self.stated_preprocessing().places if size is None else size)
        return 3 if self.preprocessing is None else len(self.preprocessing.mean), *places

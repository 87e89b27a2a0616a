"""One forward pass with its internals in hand, and gradients of any score with respect to them.

Shapes: features (B, C, h, w); tokens (B, T, D); attention (B, h, T, T); outputs (B, K).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from aha.core.interrupts import checkpoint
from aha.errors import ModelError
from aha.models.introspection.attention import AttentionTap
from aha.models.introspection.structure import Site, Structure
from aha.models.running.hooks import at_call, autograd, first_tensor, gradients, hooked
from aha.models.scores import Score


@dataclass(frozen=True)
class Captures:
    """What is to be captured of a forward pass; the names are those of `Trace`."""

    features: tuple[int, ...] = ()
    tokens: bool = False
    attention: bool = False
    residual_mid: bool = False
    inputs: bool = False

    def __or__(self, other: Captures) -> Captures:
        """What serves both."""
        flags = {name: getattr(self, name) or getattr(other, name) for name in _FLAGS}
        return Captures(tuple(sorted({*self.features, *other.features})), **flags)

    def covers(self, other: Captures) -> bool:
        """Is all that the other asks for captured here?"""
        return self | other == self | self

    @property
    def are_internal(self) -> bool:
        """Is any of it inside the network?"""
        return bool(self.features) or self.tokens or self.attention or self.residual_mid


_FLAGS = ("tokens", "attention", "residual_mid", "inputs")
NOTHING = Captures()


@dataclass
class Trace:
    """Tensors of one forward pass, all in its graph.

    Attributes:
        outputs: raw class outputs (B, K).
        inputs: the model inputs (B, C, H, W), if asked for.
        features: stage index -> map (B, C, h, w); negative indices as requested.
        tokens: X^1 .. X^{L+1}, each (B, T, D): the input of every block, then the output of the last.
        attention: A^1 .. A^L, each (B, h, T, T), rows are queries.
        residual_mid: X^l plus what the attention of block l adds, each (B, T, D): what the block's MLP adds to.
    """

    score: Score
    structure: Structure
    readout: Tensor | None = None
    passes: Counter[str] = field(default_factory=Counter)
    cache_hits: Counter[str] = field(default_factory=Counter)
    outputs: Tensor = field(default_factory=lambda: torch.empty(0))
    inputs: Tensor | None = None
    features: dict[int, Tensor] = field(default_factory=dict)
    tokens: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    residual_mid: list[Tensor] = field(default_factory=list)
    # Of a pass that is kept: gradients, how long they took, and of which tensor.
    gradient_cache: dict[tuple[object, ...], tuple[Tensor, int, Tensor]] | None = None
    block_derivatives: int = 0  # taken so far, each through one block

    def scores(self, classes: Tensor) -> Tensor:
        """The explained score (B,) of each image's class."""
        return self.score(self.outputs, classes)

    def gradients(self, classes: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Gradient of the class scores with respect to traced tensors; each image depends on its own score alone."""
        keys = [(self.score, *classes.tolist(), id(tensor)) for tensor in tensors]
        known = {} if self.gradient_cache is None else self.gradient_cache
        if all(key in known for key in keys):
            self.cache_hits["backward"] += len(classes)
            self.cache_hits["nanoseconds"] += max(known[key][1] for key in keys)
        else:
            checkpoint(len(classes), self.passes)
            self.passes["backward"] += len(classes)
            start = time.perf_counter_ns()
            found = self._gradients(classes, tensors)
            spent = time.perf_counter_ns() - start
            # The tensors too: a key is theirs for as long as they live.
            known |= {key: (each, spent, source) for key, each, source in zip(keys, found, tensors, strict=True)}
        return tuple(known[key][0] for key in keys)

    def _gradients(self, classes: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with autograd(True):
            return gradients_through(self.scores(classes).sum(), tensors)

    def vjp(self, output: Tensor, cotangent: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Gradient of `(output * cotangent).sum()`, with `output` a traced tensor, with respect to traced tensors.

        Meant for a block's output and what lies inside the block.
        """
        self._count_block(len(cotangent))
        return self._vjp(output, cotangent, tensors)

    def _vjp(self, output: Tensor, cotangent: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with autograd(True):
            return gradients_through(output, tensors, cotangent)

    def _count_block(self, images: int) -> None:
        """Derivatives through single blocks: as many as there are blocks are counted as a backward pass."""
        if self.block_derivatives % max(1, len(self.structure.blocks)) == 0:
            checkpoint(images, self.passes)
            self.passes["backward"] += images
        self.block_derivatives += 1

    def to_grid(self, values: Tensor) -> Tensor:
        """Token values (B, T) as a map (B, h, w), without the prefix tokens."""
        return self.structure.blocks[0].layout.to_grid(values)

    def values(self, layer: int) -> Tensor:
        """What each token (B, T, D) would get from the attention of a block if it attended to itself alone.

        That is `V W_O`, the values of all heads behind the output projection, without its bias. Attention adds what is
        linear in its matrix, so this is the derivative of the sum in the middle of the block along `A = I`; taken by
        differentiating a gradient, which names no part of the model.
        """
        with autograd(True):
            mid, matrix = self.residual_mid[layer], self.attention[layer]
            cotangent = torch.zeros_like(mid, requires_grad=True)
            (gradient,) = gradients(mid, (matrix,), grad_outputs=cotangent, create_graph=True)
            along = gradient.diagonal(dim1=-2, dim2=-1).sum()
            return torch.autograd.grad(along, cotangent)[0]

    def read(self, matrix: Tensor) -> Tensor:
        """The rows of a token-to-token matrix (..., T, T) that the classifier reads: class token, or mean of all."""
        assert self.readout is not None
        return matrix[..., self.readout, :].mean(dim=-2)


def gradients_through(output: Tensor, tensors: Sequence[Tensor], cotangent: Tensor | None = None) -> tuple[Tensor, ...]:
    """Gradients that must exist; the graph is kept for further questions."""
    checkpoint()
    found: tuple[Tensor | None, ...] = (None,)
    if output.requires_grad:
        found = gradients(output, tensors, grad_outputs=cotangent, retain_graph=True, allow_unused=True)
    known = tuple(gradient for gradient in found if gradient is not None)
    if len(known) < len(found):
        raise ModelError(
            "no gradient reaches the requested part of the model: some of the model runs without gradients, or "
            "nothing reads that part; use a method or layer closer to the outputs"
        )
    return known


class Tracer:
    """Captures requested tensors of one forward pass so that each stays on the path to the outputs."""

    def __init__(self, module: nn.Module, trace: Trace, *, with_graph: bool = True) -> None:
        self._on_graph = _on_graph if with_graph else torch.detach
        self._module = module
        self._trace = trace
        self._seen: Counter[str] = Counter()
        self._attention_calls = 0
        self._hooks: list[tuple[nn.Module, Callable[..., Any]]] = []
        self._batch = 0

    def run(
        self,
        forward: Callable[[], Tensor],
        batch: int,
        captures: Captures,
    ) -> Trace:
        """Runs `forward` with the requested captures and returns the filled trace."""
        structure, self._batch = self._trace.structure, batch
        for index in captures.features:
            self._capture(structure.site(index), partial(self._keep_feature, index))
        with ExitStack() as stack:
            if captures.tokens:
                first = self._module.get_submodule(structure.blocks[0].name)
                handle = first.register_forward_pre_hook(self._keep_block_input, with_kwargs=True)
                stack.callback(handle.remove)
                for site in structure.blocks:
                    self._capture(site, lambda raw, _site: self._keep_tokens(raw))
            for site in structure.residual_mid if captures.residual_mid else ():
                handle = self._module.get_submodule(site.name).register_forward_pre_hook(
                    self._keep_residual_mid(site), with_kwargs=True
                )
                stack.callback(handle.remove)
            stack.enter_context(hooked(self._hooks))
            if captures.attention:
                stack.enter_context(AttentionTap(self._keep_attention))
            self._trace.outputs = forward()
        return self._trace

    def _capture(self, site: Site, keep: Callable[[Tensor, Site], Tensor]) -> None:
        """A hook that replaces the site's output by what `keep` returns; other calls of the module pass."""
        self._hooks.append((self._module.get_submodule(site.name), at_call(site.call, lambda raw: keep(raw, site))))

    def _keep_feature(self, index: int, raw: Tensor, site: Site) -> Tensor:
        raw = self._on_graph(raw)
        maps = site.layout.to_map(raw)
        self._trace.features[index] = maps
        # The rest of the network continues from `maps`, on a copy that in-place operations may overwrite.
        return site.layout.from_map(maps, raw)

    def _keep_tokens(self, raw: Tensor) -> Tensor:
        raw = self._on_graph(raw)
        self._trace.tokens.append(raw)
        return raw.clone()

    def _keep_block_input(self, _module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        if self._trace.tokens:  # a block that is used again: its input is the last output
            return None
        if args:
            return (self._keep_tokens(args[0]), *args[1:]), kwargs
        name, raw = next((name, value) for name, value in kwargs.items() if isinstance(value, Tensor))
        return args, kwargs | {name: self._keep_tokens(raw)}

    def _keep_residual_mid(self, site: Site) -> Callable[..., None]:
        calls = 0

        def hook(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            nonlocal calls
            calls += 1
            raw = first_tensor(args) if args else first_tensor(list(kwargs.values()))
            if calls - 1 == site.call and raw is not None:
                self._trace.residual_mid.append(raw.clone())  # a copy: the MLP may be added in place

        return hook

    def _keep_attention(self, weights: Tensor) -> Tensor:
        ordinal, self._attention_calls = self._attention_calls, self._attention_calls + 1
        if ordinal not in self._trace.structure.attention:
            return weights
        split = weights.view(self._batch, -1, *weights.shape[-2:])  # heads may be merged into the batch
        split = self._on_graph(split)
        self._trace.attention.append(split)
        return split.view(weights.shape)


@contextmanager
def replaced_features(module: nn.Module, site: Site, maps: Tensor) -> Iterator[None]:
    """Inside the block, the site returns `maps` (m, C, h, w), whatever it computed; tokens without a place are kept."""

    def replace(raw: Tensor) -> Tensor:
        return site.layout.from_map(maps, raw.expand(len(maps), *raw.shape[1:]))

    with hooked([(module.get_submodule(site.name), at_call(site.call, replace))]):
        yield


def _on_graph(tensor: Tensor) -> Tensor:
    """The tensor as part of a graph, which starts here unless an earlier capture has started it.

    Recording begins at the first captured tensor, not at the input: what lies before needs no backward pass.
    """
    torch.set_grad_enabled(True)
    return tensor if tensor.requires_grad else tensor.detach().requires_grad_()

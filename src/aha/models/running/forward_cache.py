"""The forward cache: inside `model.caching` an image that is shown again is not run again.

Shapes: images (U, C, H, W) model inputs; outputs (U, K).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from aha.core.rows import distinct_rows, fingerprints, matching_rows, occurrences
from aha.errors import ModelError
from aha.models.running.hooks import autograd
from aha.models.tracing import Captures, Trace, gradients_through

_MOST_KNOWN = 2**26  # numbers remembered of outputs: a quarter of a gigabyte


@dataclass(frozen=True)
class KeptPass:
    """What a forward pass gave.

    Attributes:
        images: as they were handed in.
        outputs: without a graph.
        trace: with what was captured, ready for gradients; None where nothing was.
        captures: what that is.
        nanoseconds: how long the pass took.
        hits: where it is written down what was taken from here instead of being computed.
    """

    images: Tensor
    outputs: Tensor
    trace: Trace | None
    captures: Captures
    nanoseconds: int
    hits: Counter[str]

    def rows(self, images: Tensor) -> Tensor:
        """For each image the row in which it is kept, or -1; as a tensor (B,)."""
        return matching_rows(images, self.images)

    def covers(self, images: Tensor, captures: Captures) -> bool:
        """Are all of the images kept, with all that is asked for?"""
        return self.captures.covers(captures) and bool((self.rows(images) >= 0).all())

    def outputs_at(self, rows: Tensor) -> Tensor:
        """Outputs (B, K) of rows that are kept."""
        self._note(len(rows))
        return self.outputs[rows]

    def traced(self, images: Tensor, captures: Captures) -> Trace | None:
        """The trace as a batch of these images would have given it; None where a pass of their own is better."""
        if self.trace is None or not self.captures.covers(captures):
            return None
        rows = self.rows(images)
        distinct = len(set(rows.tolist()))
        # Going back through the kept pass takes as long as it is: not for a few of its images.
        if bool((rows < 0).any()) or 2 * distinct < len(self.images):
            return None
        self._note(distinct)
        view = replace(self.trace)  # whoever gets it may set its score
        is_same = len(rows) == len(self.images) and bool((rows.diff() == 1).all())
        return view if is_same else TraceOfRows.of(view, rows)

    def features_at(self, images: Tensor, stages: tuple[int, ...]) -> tuple[list[Tensor], Tensor] | None:
        """Maps (B, C, h, w) of the given stages and the outputs (B, K), without a graph; None unless all are kept."""
        if self.trace is None or not self.covers(images, Captures(features=stages)):
            return None
        rows = self.rows(images)
        self._note(len(rows))
        return [self.trace.features[stage].detach()[rows] for stage in stages], self.outputs[rows]

    def _note(self, images: int) -> None:
        self.hits["forward"] += images
        self.hits["nanoseconds"] += self.nanoseconds * images // len(self.images)


@dataclass(frozen=True)
class ForwardCache:
    """What need not be run again; empty outside of `model.caching`.

    Attributes:
        kept: one pass of images that were named beforehand.
        known: outputs of all images that were shown, by their fingerprints; None where they are not remembered.
    """

    kept: KeptPass | None = None
    known: dict[tuple[int, ...], Tensor] | None = None

    def outputs(self, images: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
        """Outputs (B, K), of which `run` computes those that are not known."""
        if self.known is None:
            return self._beyond_kept(images, run)
        keys = [tuple(key) for key in fingerprints(images).tolist()]
        new = {key: row for row, key in reversed([*enumerate(keys)]) if key not in self.known}
        if new:
            found = self._beyond_kept(images[list(new.values())], run)
            if (len(self.known) + len(new)) * found.shape[1] > _MOST_KNOWN:
                for key in self.known.keys() - set(keys):
                    del self.known[key]
            self.known.update(zip(new, found, strict=True))
        return torch.stack([self.known[key] for key in keys])

    def _beyond_kept(self, images: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
        if self.kept is None:
            return run(images)
        rows = self.kept.rows(images)
        is_new = rows < 0
        if bool(is_new.all()):
            return run(images)
        known = self.kept.outputs_at(rows[~is_new])
        outputs = known.new_empty((len(images), known.shape[1]))
        outputs[~is_new] = known
        if bool(is_new.any()):
            outputs[is_new] = run(images[is_new])
        return outputs

    def trace(self, images: Tensor, captures: Captures, run: Callable[[Tensor], Trace]) -> Trace:
        """The trace of a batch, in which images that occur several times share the pass."""
        if self.kept is not None and (trace := self.kept.traced(images, captures)) is not None:
            return trace
        if self.known is None or len(images) == 1:
            return run(images)
        first, where = distinct_rows(images)
        trace = run(images[first])
        return trace if len(first) == len(where) else TraceOfRows.of(trace, where)

    def features(
        self, images: Tensor, stages: Sequence[int], run: Callable[[Tensor], tuple[list[Tensor], Tensor]]
    ) -> tuple[list[Tensor], Tensor]:
        """Maps (B, C, h, w) of the given stages and the outputs (B, K), without a graph."""
        if self.kept is not None and (known := self.kept.features_at(images, tuple(stages))) is not None:
            return known
        if self.known is None:
            return run(images)
        first, where = distinct_rows(images)
        maps, outputs = run(images[first])
        return [values[where] for values in maps], outputs[where]


class TraceOfRows(Trace):
    """A trace of distinct images, shown as one of a batch in which they occur several times, each time for a class.

    What it holds are copies for reading. Derivatives are taken of the one forward pass that there was, a round for each
    time that images occur: so `gradients` and `vjp` are the only way to them.
    """

    _whole: Trace
    _where: Tensor
    _rounds: list[Tensor]
    _sources: dict[int, tuple[Tensor, Tensor]]  # a copy and the tensor in the graph, by the copy's id

    @classmethod
    def of(cls, trace: Trace, where: Tensor) -> TraceOfRows:
        """The trace as seen by a batch whose row i shows the image `where[i]` of the trace."""
        shared = cls(trace.score, trace.structure, trace.readout, trace.passes)
        shared._whole, shared._where, shared._rounds, shared._sources = trace, where, occurrences(where), {}
        for name in ("outputs", "inputs", "features", "tokens", "attention", "residual_mid"):
            setattr(shared, name, shared._copied(getattr(trace, name)))
        return shared

    def _copied(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._copied(inner) for inner in value]
        if isinstance(value, dict):
            return {key: self._copied(inner) for key, inner in value.items()}
        if not isinstance(value, Tensor):
            return value
        copy = value.detach()[self._where]
        self._sources[id(copy)] = copy, value
        return copy

    def values(self, layer: int) -> Tensor:
        """As in any trace, of the images that there are."""
        return self._whole.values(layer)[self._where]

    def _gradients(self, classes: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        def total(rows: Tensor) -> tuple[Tensor, None]:
            return self.score(self._whole.outputs[self._where[rows]], classes[rows]).sum(), None

        return self._in_rounds(total, tensors)

    def _vjp(self, output: Tensor, cotangent: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        source = self._source(output)

        def part(rows: Tensor) -> tuple[Tensor, Tensor]:
            return source, torch.zeros_like(source).index_copy(0, self._where[rows], cotangent[rows].to(source))

        return self._in_rounds(part, tensors)

    def _in_rounds(
        self, start: Callable[[Tensor], tuple[Tensor, Tensor | None]], tensors: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        sources = [self._source(tensor) for tensor in tensors]
        results = tuple(torch.empty_like(tensor) for tensor in tensors)
        with autograd(True):
            for rows in self._rounds:
                output, cotangent = start(rows)
                for result, gradient in zip(results, gradients_through(output, sources, cotangent), strict=True):
                    result[rows] = gradient[self._where[rows]]
        return results

    def _source(self, copy: Tensor) -> Tensor:
        if id(copy) not in self._sources:
            raise ModelError("derivatives are taken of and with respect to tensors that the trace holds")
        return self._sources[id(copy)][1]

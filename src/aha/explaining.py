"""The one way from images to maps: classes chosen, the method run in chunks that fit, maps at the size of the input.

`aha.explain` is its public form; evaluations, which have read their images already, take it as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from aha.core.interrupts import interrupts_wait
from aha.core.progress import part
from aha.data.batches import Batch, Images, count_images, iter_batches
from aha.data.targets import Target, most_classes, resolve_targets
from aha.errors import ImageError, MapWarning, ModelError, warn
from aha.methods import Method, check_fit, default_method
from aha.methods.base import UPSAMPLING, enlarged
from aha.methods.distribution import Distribution
from aha.models import TargetModel
from aha.models.running.memory import Chunks
from aha.models.scores import are_usable
from aha.results.explanation import Explanation
from aha.targets.base import Objective, Shown, read_target


@dataclass(frozen=True)
class Asked:
    """What is explained of a model: classes of it, or an objective, which makes another model of it.

    Attributes:
        whole: the model as it was loaded.
        model: the model as methods see it; of an objective that is bound to images, one that is bound to none.
        classes: what to explain of that.
        objective: where something else than plain classes is explained.
    """

    whole: TargetModel
    model: TargetModel
    classes: Target
    objective: Objective | None = None

    @classmethod
    def of(cls, model: TargetModel, target: Target) -> Asked:
        """What the caller's target means for a model."""
        read = read_target(target, model)
        if not isinstance(read, Objective):
            return cls(model, model, read)
        return cls(model, read.view(model), read.classes, read)

    def of_batch(self, batch: Batch) -> Iterator[tuple[Batch, TargetModel]]:
        """The batch and the model that is explained; where each image has its own, one image at a time."""
        if self.objective is None or not self.objective.is_per_image:
            yield batch, self.model
            return
        for row, subject in enumerate(batch.subjects):
            own = batch.part([row])
            yield own, self.objective.view(self.whole, Shown(own.inputs, subject.geometry))

    def named(self, explanation: Explanation) -> Explanation:
        """The explanation with the objective's text in its settings, and so in its manifest."""
        if self.objective is None:
            return explanation
        return replace(explanation, settings={**explanation.settings, "target": str(self.objective)})


def explanations(
    whole: TargetModel,
    images: Images,
    chosen: Method | None,
    target: Target = "top1",
    *,
    labels: Sequence[int] | Tensor | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    on_error: Callable[[str, ImageError], None] | None = None,
    finish: Callable[[TargetModel, Batch, Explanation], Explanation] | None = None,
) -> Iterator[Explanation]:
    """One for each batch, as `aha.explain_batches` gives them; `finish` may add to those of a model and its images."""
    asked = Asked.of(whole, target)
    model = asked.model
    if model.preprocessing is not None:  # before any picture is read
        chosen = chosen or default_method(model)
        check_fit(chosen, model)
    # The model's own chunks remember, from call to call, what fitted into memory.
    chunks = model.chunks if batch_size is None else Chunks(batch_size)
    total, first = count_images(images, model), 0
    for batch in iter_batches(model, images, chunks.size, labels, on_error):
        end = first + len(batch.inputs)
        with part(first, end, total) if total else nullcontext():
            chosen = chosen or default_method(model, batch.inputs.shape[1:])
            found = []
            for own, view in asked.of_batch(batch):
                explanation = _explain_batch(view, own, chosen, asked.classes, seed, chunks, first, total)
                found.append(asked.named(explanation if finish is None else finish(view, own, explanation)))
        yield Explanation.join(found) if len(found) > 1 else found[0]
        first = end


def _explain_batch(
    model: TargetModel,
    batch: Batch,
    method: Method,
    target: Target,
    seed: int,
    chunks: Chunks,
    first: int,
    total: int | None,
) -> Explanation:
    """Maps of one batch, every requested class of every image."""
    start = time.perf_counter()
    # Whatever mode the caller is in, tensors made here are ordinary ones that may enter a graph.
    with interrupts_wait(), torch.inference_mode(False), torch.no_grad():
        inputs = batch.inputs.to(model.device, torch.promote_types(batch.inputs.dtype, torch.float32)).clone()
        size = tuple(inputs.shape[2:])
        check_fit(method, model, inputs.shape[1:])
        work = _BatchWork(model, method, inputs, target, batch, seed, chunks, first, total)
        parts = work.run_in_parts() if batch.outputs is None else [work.run_knowing(batch.outputs)]
        chosen = [row for part in parts for row in part.chosen]
        outputs = torch.cat([part.outputs for part in parts])
        rows = torch.tensor([i for i, classes in enumerate(chosen) for _ in classes], device=model.device)
        classes = torch.tensor([c for row in chosen for c in row], device=model.device)
        maps = _at_input_size(torch.cat([part.maps for part in parts]), size, method)
        found = [distribution for part in parts for distribution in part.distributions]
        scores = model.score(outputs[rows], classes)
        quality = method.quality(model, outputs[rows], classes, maps)
    explanation = Explanation(
        maps=maps.cpu(),
        targets=classes.cpu(),
        scores=scores.float().cpu(),
        subjects=[batch.subjects[i] for i in rows.tolist()],
        labels=[model.class_name(c) for c in classes.tolist()],
        method=str(method),
        model=model.spec,
        seconds=time.perf_counter() - start,
        settings={
            "seed": seed,
            "score": model.score.name,
            "upsampling": UPSAMPLING if len(size) == 2 else "trilinear",
            "precision": model.precision,
            **model.engine_facts,
            "input_size": list(size),
            **method.facts(model, inputs.shape[1:]),
        },
        digest=model.digest,
        distribution=[distribution.resized((size[-2], size[-1])) for distribution in found],
        quality=quality,
    )
    _warn_of_unusable(explanation, outputs[rows].cpu())
    return explanation


class _PartResult(NamedTuple):
    """The classes of some images, their outputs (b, K), and native maps (N, h, w) with their distributions, if any."""

    chosen: list[list[int]]
    outputs: Tensor
    maps: Tensor
    distributions: list[Distribution]


@dataclass(frozen=True)
class _BatchWork:
    """One method on the images of a batch."""

    model: TargetModel
    method: Method
    inputs: Tensor
    target: Target
    batch: Batch
    seed: int
    chunks: Chunks
    first: int
    total: int | None

    def run_in_parts(self) -> list[_PartResult]:
        """As many images at a time as have their maps in a chunk; one pass chooses classes and serves the method."""
        captures = self.method.reads(self.model, self.inputs.shape[1:])

        def work(part: slice) -> _PartResult:
            with self.model.caching(self.inputs[part], captures) as outputs:
                return self.run(outputs, part)

        each = most_classes(self.target)
        images = Chunks(max(1, self.chunks.size // each))
        parts = images.run(work, len(self.inputs))
        self.chunks.size = min(self.chunks.size, images.size * each)  # what did not fit will not fit the next time
        return parts

    def run_knowing(self, outputs: Tensor) -> _PartResult:
        """All maps, where the outputs (B, K) of the images are known already."""
        with self.model.caching(self.inputs, outputs=outputs) as outputs:
            return self.run(outputs)

    def run(self, outputs: Tensor, part: slice = slice(None)) -> _PartResult:
        """The maps of some of the images, whose outputs (b, K) are known."""
        places = range(len(self.inputs))[part]
        labels, positions = self.batch.labels, self.batch.positions
        chosen = resolve_targets(
            self.target,
            self.model,
            outputs,
            None if labels is None else labels[part],
            first=self.first + places.start,
            positions=None if positions is None else positions[part],
            total=self.total,
        )
        seeded = self.method.seeded(self.seed)
        methods = [seeded.among(row) for row in chosen]
        rows = [i for i, classes in enumerate(chosen) for _ in classes]
        classes = torch.tensor([c for row in chosen for c in row], device=self.model.device)
        images = _taken(self.inputs[part], rows)
        maps, found = _compute(self.model, [methods[i] for i in rows], images, classes, self.chunks)
        return _PartResult(chosen, outputs, maps, found)


def _compute(
    model: TargetModel, methods: list[Method], images: Tensor, classes: Tensor, chunks: Chunks
) -> tuple[Tensor, list[Distribution]]:
    """Native maps (N, h, w) of one method per row, equal ones at once, and their distributions over classes, if any."""
    maps: dict[int, Tensor] = {}
    distributions: dict[int, Distribution] = {}
    for chosen in dict.fromkeys(methods):
        own = [row for row, other in enumerate(methods) if other == chosen]

        def work(places: slice, chosen: Method = chosen, own: list[int] = own) -> None:
            rows = own[places]
            results, found = chosen.with_distributions(model, _taken(images, rows), classes[rows])
            maps.update(zip(rows, results.detach(), strict=True))
            distributions.update(zip(rows, found, strict=bool(found)))

        chunks.run(work, len(own))
    order = range(len(methods))
    return torch.stack([maps[row] for row in order]), [distributions[row] for row in order if row in distributions]


def maps_of(model: TargetModel, method: Method, inputs: Tensor, classes: Tensor) -> Tensor:
    """Maps (B, H, W) at the size of the inputs (B, C, H, W), one class (B,) each, of a method that has its seed.

    For metrics that run a method again, and need no more of an explanation than its map.
    """
    with torch.inference_mode(False), torch.no_grad():
        maps, _ = _compute(model, [method] * len(inputs), inputs, classes, Chunks(model.chunks.size))
        return _at_input_size(maps, tuple(inputs.shape[2:]), method)


def _taken(images: Tensor, rows: list[int]) -> Tensor:
    """Some of the images; not copied where they are all."""
    return images if rows == list(range(len(images))) else images[rows]


def _at_input_size(maps: Tensor, size: tuple[int, ...], method: Method) -> Tensor:
    """Native maps (B, h, w) as float32 at the size of the model input."""
    if maps.dim() != len(size) + 1:
        places = "(batch, height, width)" if len(size) == 2 else "(batch, depth, height, width)"
        raise ModelError(f"{method} returned maps of shape {tuple(maps.shape)}, not {places}")
    return enlarged(maps, size)


def _warn_of_unusable(explanation: Explanation, outputs: Tensor) -> None:
    """One warning per map that cannot be read, naming the likely cause."""
    for index, (values, logits) in enumerate(zip(explanation.maps, outputs, strict=True)):
        if not values.isfinite().all():
            overflow = "the model's outputs are not finite, for example half-precision overflow"
            cause = overflow if not logits.isfinite().all() else "the method divided by zero or overflowed"
            problem = "has values that are not finite"
        elif not bool(are_usable(logits)):
            problem, cause = "means nothing", "some of the model's outputs are NaN or infinite"
        elif values.min() == values.max():
            zero = "no positive evidence, or a gradient that is zero everywhere"
            cause = zero if values.max() == 0 else "every place got the same value"
            problem = f"is flat at {float(values.max()):.3g}"
        else:
            continue
        name, label = explanation.subjects[index].name, explanation.labels[index]
        warn(f"{explanation.method} of {name} for {label} {problem}: {cause}", MapWarning)

"""`explain` and its streaming form.

`explain` is the one way to maps: the command line, the explorer, the demo and the benchmarks read images of their own
and call it with a `Batch` of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from aha.core.interrupts import interrupts_wait
from aha.core.progress import Listener, in_parts, part
from aha.core.progress_line import shown
from aha.data.batches import Batch, Images, count_images, iter_batches
from aha.data.targets import Target, most_classes, resolve_targets
from aha.errors import ImageError, MapWarning, ModelError, SpecError, warn
from aha.learned.explainer import Explainer
from aha.methods import Method, check_fit, default_method, load_method
from aha.methods.aha import AHA
from aha.methods.base import UPSAMPLING, enlarged
from aha.methods.distribution import Distribution
from aha.metrics import Sample
from aha.models import AnyModel, TargetModel, load_model, loads_its_model
from aha.models.running.memory import Chunks
from aha.models.scores import are_usable
from aha.results.cards import CardMaker
from aha.results.explanation import Explanation
from aha.results.explanations import Explanations
from aha.targets.base import Objective, Shown, read_target

Methods = list[str] | list[Method] | list[str | Method] | tuple[str | Method, ...]


@overload
def explain(
    model: AnyModel,
    images: Images,
    method: str | Method | Explainer | None = ...,
    target: Target = ...,
    *,
    labels: Sequence[int] | Tensor | None = ...,
    seed: int = ...,
    batch_size: int | None = ...,
    card: bool = ...,
    oracle: str | Method | None = ...,
    progress: Listener | bool | None = ...,
) -> Explanation: ...
@overload
def explain(
    model: AnyModel,
    images: Images,
    method: Methods,
    target: Target = ...,
    *,
    labels: Sequence[int] | Tensor | None = ...,
    seed: int = ...,
    batch_size: int | None = ...,
    card: bool = ...,
    oracle: str | Method | None = ...,
    progress: Listener | bool | None = ...,
) -> Explanations: ...
@loads_its_model
def explain(
    model: AnyModel,
    images: Images,
    method: str | Method | Explainer | Methods | None = None,
    target: Target = "top1",
    *,
    labels: Sequence[int] | Tensor | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    card: bool = False,
    oracle: str | Method | None = None,
    progress: Listener | bool | None = None,
) -> Explanation | Explanations:
    """Which pixels are evidence for a class.

    Args:
        model: from `aha.load_model`, or what that accepts.
        images: a path, folder, PIL image, array (H, W[, 3]) of uint8 or of floats in [0, 1], uint8 tensor ([B,] C, H,
            W), a list of these, or normalised model inputs: a float tensor ([B,] C, H, W), a DataLoader of them, or a
            `Batch` from `aha.data.batches`. Models of volumes or bands take arrays, `.npy`, NIfTI, DICOM and TIFF, and
            inputs (B, C, D, H, W). A torch Dataset may hold images or inputs, with or without labels.
        method: text such as `"integrated_gradients(steps=50)"`, a method, or an explainer from `aha.train`; or a list
            of them. `aha` by default; if it cannot read the model, another one that fits, with a warning.
        target: `"top1"`, `"top5"`, `"label"`, a class index or name, or a list with one entry per image: its class, or
            a list of its classes. `[3, 5]` are two images, `[[3, 5]]` two classes of one. Besides classes, what
            `aha.targets` has: a contrast, a region, a box, a similarity, a value, a neuron, as a value or as text
            (`"contrast(281, 282)"`), or a function of what the network returns, `(outputs) -> (B,)`.
        labels: true classes, for `target="label"`.
        seed: random seed of methods that do not set their own.
        batch_size: maximum number of maps computed at once; the model's own by default, halved if memory runs out.
        card: also measure how far each map can be trusted (`Explanation.cards`): deletion and insertion curves next to
            those of random, centred and edge maps, at a few hundred forward passes per map.
        oracle: with `card`, a search such as `"search(budget=600)"`: each card then also says how much of the best
            found score the map reaches (`Card.headroom`).
        progress: a function that is called repeatedly with the completed share, from 0 to 1; it may raise to stop the
            work. By default a line shows the time left, in a terminal or a notebook; False turns it off.

    Returns:
        One map per image and class; see `Explanation`. For a list of methods, one explanation per method, which can be
        drawn as one figure; see `Explanations`.
    """
    options = {"labels": labels, "seed": seed, "batch_size": batch_size, "card": card, "oracle": oracle}
    with interrupts_wait(), shown(progress, "explaining"):
        if method is None or isinstance(method, str | Method | Explainer):
            return _explain(load_model(model), images, method, target, options)
        if not isinstance(method, Iterable):
            raise SpecError(f"a method is a text such as 'grad_cam' or a Method, not {method!r}")
        # All are read and checked before the first of them works.
        loaded, methods = load_model(model), [_method(each) for each in method]
        if not methods:
            raise SpecError("an empty list of methods; name at least one")
        if loaded.preprocessing is not None:
            viewed = Asked.of(loaded, target).model
            for each in methods:
                check_fit(each, viewed)
        found = {str(each): _explain(loaded, images, each, target, options) for each in in_parts(methods)}
        return Explanations(found)


def _method(given: str | Method | Explainer) -> Method:
    """A method by its text, or an explainer that was trained or loaded, as the method that draws its maps."""
    if not isinstance(given, Explainer):
        return load_method(given)
    if not given.source:
        raise SpecError("this explainer is in memory only: explainer.save_pretrained(FOLDER), then \"aha('FOLDER')\"")
    return AHA(explainer=given.source)


def _explain(
    model: TargetModel,
    images: Images,
    method: str | Method | Explainer | None,
    target: Target,
    options: Mapping[str, Any],
) -> Explanation:
    parts = list(explain_batches(model, images, method, target, **options))
    if not parts:
        raise ImageError("no images were given")
    if len({found.maps.shape[1:] for found in parts}) > 1:
        raise ImageError("the images differ in size; explain them one size at a time, or with explain_batches")
    return Explanation.join(parts)


@loads_its_model
def explain_batches(
    model: AnyModel,
    images: Images,
    method: str | Method | Explainer | None = None,
    target: Target = "top1",
    *,
    labels: Sequence[int] | Tensor | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    card: bool = False,
    oracle: str | Method | None = None,
    on_error: Callable[[str, ImageError], None] | None = None,
) -> Iterator[Explanation]:
    """`explain`, one batch at a time: memory does not grow with the number of images.

    With `on_error`, images that cannot be read are reported to it and skipped.
    """
    whole, chosen = load_model(model), None if method is None else _method(method)
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
                if card:
                    explanation = with_cards(view, own, explanation, CardMaker(view, seed=seed, oracle=oracle))
                found.append(asked.named(explanation))
        yield Explanation.join(found) if len(found) > 1 else found[0]
        first = end


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


def with_cards(model: TargetModel, batch: Batch, explanation: Explanation, maker: CardMaker) -> Explanation:
    """The explanation of a batch with a faithfulness card for each map."""
    inputs = batch.inputs.to(model.device)
    samples = {id(subject): Sample(model, subject.name, inputs[i]) for i, subject in enumerate(batch.subjects)}
    rows = zip(explanation.subjects, explanation.targets.tolist(), explanation.maps, strict=True)
    cards = [maker.card(samples[id(subject)], target, values, explanation.method) for subject, target, values in rows]
    return replace(explanation, cards=cards)


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

"""`evaluate`: how far maps can be trusted, measured; every perturbed image is shown to the model once."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, groupby
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aha.api import Asked, explain
from aha.bench.truth import Truth, check_truth, copied, labelled_samples
from aha.core.axes import resized
from aha.core.progress import Listener, in_parts, part
from aha.core.progress_line import shown
from aha.data.batches import Batch, Images, count_images, iter_batches
from aha.data.mosaics import Mosaic
from aha.data.targets import Target, class_counts, resolve_targets
from aha.errors import AhaError, AhaWarning, ImageError, MetricError, TargetError, deprecated, warn
from aha.methods import Method, check_fit, load_method
from aha.methods.base import read_by
from aha.metrics import Case, Metric, Sample
from aha.metrics.case import Perturbation, ask_model
from aha.metrics.curves import CurveMetric
from aha.metrics.protocols import Protocol, load_protocols
from aha.models import NOTHING, TargetModel, load_model, loads_its_model
from aha.models.memory import Chunks, PeakMemory
from aha.models.preprocessing import Geometry
from aha.results.explanation import Explanation
from aha.results.saved_maps import usable_map
from aha.results.score_table import CurveRow, Failure, Row, Scores
from aha.targets.base import Held

Maps: TypeAlias = Tensor | NDArray[Any] | Sequence[Tensor | NDArray[Any]] | Explanation
"""Maps from elsewhere: a tensor or array (N, H, W), a list of (H, W), or an Explanation."""

MapsOrMethods: TypeAlias = str | Method | Sequence[str | Method] | Maps | Mapping[str, Maps]
"""Methods, or maps of one name or of several."""

_REASONS_SHOWN = 3


@loads_its_model
def evaluate(
    model: TargetModel | str | nn.Module,
    images: Images | Mosaic | Sequence[Mosaic],
    maps_or_methods: MapsOrMethods,
    metrics: str | Metric | Protocol | Sequence[str | Metric | Protocol] = "quick",
    *,
    target: Target | None = None,
    targets: Target | None = None,
    labels: Sequence[int] | Tensor | None = None,
    masks: Sequence[Any] | None = None,
    boxes: Sequence[Any] | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Listener | bool | None = None,
) -> Scores:
    """Measures maps, or the maps of methods, by named protocols.

    Args:
        model: as in `aha.explain`.
        images: as in `aha.explain`; or mosaics from `aha.data.mosaics`, whose classes are then all explained.
        maps_or_methods: methods as text; or maps, one per image and class in the order of `target`, including those of
            images that cannot be read, at the size of the model input or of the original image; or a mapping from names
            to such maps.
        metrics: protocol names (`"quick"`, `"aha"`, `"rise"`, ...) or metrics as text (`"deletion(steps=32)"`).
        target: explained classes, as in `aha.explain`; those of a given explanation, or "top1", by default.
        targets: deprecated; the former word for `target`.
        labels: true classes.
        masks: true object masks, one per image, in the original image's pixels; above 0 is object, 255 is ignored.
        boxes: true boxes, one list of (x0, y0, x1, y1) per image, in the original image's pixels.
        seed: random seed of methods, ties and metrics.
        batch_size: maximum number of images computed at once; the model's own by default, halved if memory runs out.
        progress: as in `aha.explain`.

    Returns:
        Scores. Measurements that fail are listed in `Scores.failures` with a warning, and do not stop the rest.

    Raises:
        MetricError: every measurement failed.
    """
    if targets is not None:
        deprecated("evaluate(targets=...)", since="0.2", use="evaluate(target=...)")
    model, targets = load_model(model), target if targets is None else targets
    targets = _explained_objective(maps_or_methods) if targets is None else targets
    asked = None if targets is None else Asked.of(model, targets)
    if asked is not None and asked.objective is not None:
        if asked.objective.is_per_image:
            options = {"seed": seed, "batch_size": batch_size, "progress": False}
            return _evaluate_each(asked, images, maps_or_methods, metrics, (labels, masks, boxes), options)
        model, targets = asked.model, asked.classes
    protocols = tuple({protocol.name: protocol for protocol in load_protocols(metrics)}.values())
    mosaics, pictures = _mosaics(images), cast("Images", images)
    if mosaics is not None:
        pictures = torch.stack([mosaic.inputs(model) for mosaic in mosaics])
        targets = [list(mosaic.cells) for mosaic in mosaics]
    truth = Truth(masks, boxes, None if mosaics is None else [mosaic.cells for mosaic in mosaics])
    check_truth(protocols, truth)
    total, first, unreadable = count_images(pictures), 0, 0
    if targets is None:
        targets = _explained_classes(maps_or_methods, total) or "top1"
    chosen: list[list[int]] = []
    sources = _sources(maps_or_methods, model, seed, protocols, class_counts(targets))
    scores = Scores(protocols=protocols, model=model.spec)
    chunks = Chunks(batch_size or model.chunks.size)

    def on_error(name: str, error: ImageError) -> None:
        nonlocal unreadable
        unreadable += 1
        scores.failures.append(Failure(name, "", "", str(error)))

    with shown(progress, "evaluating"):
        for batch in iter_batches(model, pictures, chunks.size, labels, on_error):
            positions = batch.positions or list(range(first, first + len(batch.inputs)))
            with part(first, first + len(positions), total) if total else nullcontext():
                batch = replace(batch, positions=positions)
                methods = [source for source in sources if isinstance(source, MethodSource)]
                with clean_pass(model, batch.inputs, [source.method for source in methods], protocols) as reading:
                    samples, outputs = labelled_samples(model, batch, truth, positions, scores.failures)
                    chosen = resolve_targets(targets, model, outputs, batch.labels, positions=positions, total=total)
                    for own in methods:
                        own.ahead = own.try_to_make(batch, outputs, chosen) if own.method in reading else None
                if total is not None:
                    _check_maps(sources, total, chosen)
                for source in in_parts(sources):
                    cases = source.cases(batch, samples, outputs, chosen, scores.failures)
                    _score_all(iter(prepared(cases, protocols)), sum(map(len, chosen)), protocols, scores)
            first += len(samples)
    if total is None:
        _check_maps(sources, first + unreadable, chosen)
    _tell_of_failures(scores)
    return scores


def _evaluate_each(
    asked: Asked,
    images: Images | Mosaic | Sequence[Mosaic],
    maps_or_methods: MapsOrMethods,
    metrics: str | Metric | Protocol | Sequence[str | Metric | Protocol],
    truths: tuple[Any, Any, Any],
    options: Mapping[str, Any],
) -> Scores:
    """`evaluate` where each image has a view of its own: one image at a time.

    Its box or mask is the truth, if none is given.
    """
    if _mosaics(images) is not None:
        raise ImageError(f"{asked.objective} is bound to images; mosaics are for classes")
    labels, masks, boxes = truths
    scores, first = Scores(model=asked.whole.spec), 0
    own_box, own_mask = (getattr(asked.objective, name, None) for name in ("box", "mask"))
    own_mask = own_mask.values if isinstance(own_mask, Held) else own_mask
    for batch in iter_batches(asked.whole, cast("Images", images), 1, labels):
        for own, view in asked.of_batch(batch):
            found = evaluate(
                view,
                own,
                _of_image(maps_or_methods, first),
                metrics,
                target=asked.classes,
                masks=[masks[first]] if masks is not None else None if own_mask is None else [own_mask],
                boxes=[boxes[first]] if boxes is not None else None if own_box is None else [[own_box]],
                **options,
            )
            scores.protocols = found.protocols
            scores.extend(found)
            first += 1
    return scores


def _of_image(maps_or_methods: MapsOrMethods, index: int) -> Any:
    """What belongs to one image: its map, where maps are given; methods are for all."""
    given: Any = maps_or_methods
    if isinstance(given, Mapping):
        return {name: _of_image(maps, index) for name, maps in given.items()}
    is_list = isinstance(given, list | tuple) and not any(isinstance(each, str | Method) for each in given)
    if is_list or isinstance(given, Explanation | Tensor | np.ndarray):
        return given[index : index + 1]
    return given


def _tell_of_failures(scores: Scores) -> None:
    """Raises if there are failures alone, and warns if there are some."""
    reasons = Counter(failure.reason for failure in scores.failures).most_common()
    if not reasons:
        return
    parts = [f"{reason} ({count} times)" if count > 1 else reason for reason, count in reasons[:_REASONS_SHOWN]]
    more = f"; and {len(reasons) - _REASONS_SHOWN} other reasons" if len(reasons) > _REASONS_SHOWN else ""
    why = "; ".join(parts) + more
    if not scores.rows:
        raise MetricError(f"nothing could be measured: {why}")
    count = len(scores.failures)
    warn(f"{count} measurements failed, {len(scores)} succeeded (`Scores.failures` lists them): {why}", AhaWarning)


def _score_all(cases: Iterator[Case], most: int, protocols: Sequence[Protocol], scores: Scores) -> None:
    """Scores cases, of which there are at most so many, each an equal part of the work at hand."""
    for _ in in_parts(range(most)):
        case = next(cases, None)
        if case is None:
            return
        score_case(case, protocols, scores)


def _mosaics(images: Images | Mosaic | Sequence[Mosaic]) -> list[Mosaic] | None:
    given = [images] if isinstance(images, Mosaic) else images
    if not isinstance(given, list | tuple) or not any(isinstance(image, Mosaic) for image in given):
        return None
    if not all(isinstance(image, Mosaic) for image in given):
        raise ImageError("mosaics and other images cannot be evaluated together")
    return list(given)


def score_case(case: Case, protocols: Sequence[Protocol], scores: Scores, faults: type[Exception] = AhaError) -> None:
    """All protocols of one case; the perturbed images of all metrics are asked for in one stream first.

    Errors of the kind `faults` are recorded and do not stop the rest.
    """
    try:
        prepare(case, protocols)
    except faults as error:
        scores.failures.append(Failure(case.sample.name, case.method, "", _reason(error)))
        return
    for protocol in protocols:
        for chosen in protocol.metrics:
            try:
                chosen.check_volume(case)
                with torch.no_grad():
                    values = chosen(case)
                    curves = _curve_rows(case, chosen, protocol)
            except faults as error:
                scores.failures.append(Failure(case.sample.name, case.method, chosen.name, _reason(error)))
                continue
            if unknown := [v.column for v in values if not math.isfinite(v.value)]:
                why = f"{unknown[0]} is not a number: the model's scores of changed images are not finite"
                scores.failures.append(Failure(case.sample.name, case.method, chosen.name, why))
                continue
            scores.curve_rows += curves
            scores.rows += [
                Row(case.sample.name, case.method, v.column, protocol.name, case.target, v.reference, v.value)
                for v in values
            ]


def _reason(error: Exception) -> str:
    """What is recorded of an error; one that was not raised on purpose also says what it is."""
    return str(error) if isinstance(error, AhaError) else f"{type(error).__name__}: {error}"


def prepare(case: Case, protocols: Sequence[Protocol]) -> None:
    """Asks the model for all that the protocols will look at, in one stream of full batches."""
    _ask([case], [chosen for protocol in protocols for chosen in protocol.metrics])


def prepared(cases: Iterable[Case], protocols: Sequence[Protocol]) -> Iterable[Case]:
    """The cases; curves whose steps follow from answers go on side by side, so that a batch is full in every round.

    What does not depend on answers is left to `prepare`: its batches are full for each case alone.
    """
    every = (chosen for protocol in protocols for chosen in protocol.metrics)
    adaptive = [chosen for chosen in every if isinstance(chosen, CurveMetric) and chosen.is_adaptive]
    if not adaptive:
        return cases
    cases = list(cases)
    with suppress(Exception):  # the case to blame will meet it again, and it alone
        _ask(cases, adaptive)
    return cases


def _ask(cases: Sequence[Case], metrics: Sequence[Metric]) -> None:
    """Asks what the metrics want to know, and what they want to know after that, until they want no more."""
    while wanted := [(case, p) for case in cases for chosen in metrics for p in _open(case, chosen)]:
        ask_model(wanted)


def _open(case: Case, chosen: Metric) -> list[Perturbation]:
    """What the metric wants to know of the model and can be asked; what cannot, the metric will say itself."""
    wanted = []
    with suppress(AhaError):
        chosen.check_volume(case)
        for perturbation in chosen.perturbations(case):
            if not case.is_known(perturbation):
                case.sample.reference(perturbation.reference, case.target)
                wanted.append(perturbation)
    return wanted


def _curve_rows(case: Case, chosen: Metric, protocol: Protocol) -> list[CurveRow]:
    """The curves behind deletion and insertion; their outputs are known already."""
    kind = {"deletion": "delete", "insertion": "insert"}.get(chosen.name)
    if kind is None or not isinstance(chosen, CurveMetric):
        return []
    rows = []
    for reference in chosen.references:
        curve = chosen.curve(case, "delete" if kind == "delete" else "insert", reference)
        rows.append(
            CurveRow(
                case.sample.name,
                case.method,
                chosen.name,
                protocol.name,
                case.target,
                str(reference),
                tuple(curve.fractions.tolist()),
                tuple(case.scores(curve.outputs).tolist()),
            )
        )
    return rows


class Made(NamedTuple):
    """The maps (n, H, W) of each image, and what one of them took as if the method had been alone."""

    maps: Sequence[Tensor]
    seconds: float
    forward_images: float
    backward_images: float
    peak_bytes: float | None

    def of(self, images: Iterable[int]) -> Made:
        """The maps of some of the images."""
        return self._replace(maps=[self.maps[i] for i in images])


@contextmanager
def clean_pass(
    model: TargetModel, inputs: Tensor, methods: Iterable[Method], protocols: Iterable[Protocol]
) -> Iterator[list[Method]]:
    """Inside the block the images are run once for all methods that read their pass; gives those methods.

    Their maps are made at once and scored afterwards, so that the pass is not kept in memory meanwhile. Where a
    protocol measures costs there are none: then every method is run alone.
    """
    reading = []
    if not any(chosen.name == "cost" for protocol in protocols for chosen in protocol.metrics):
        for method in methods:
            with suppress(AhaError):  # the method will say so itself
                if method.reads(model, inputs.shape[1:]) != NOTHING:
                    reading.append(method)
    with model.caching(inputs, read_by(reading, model, inputs.shape[1:])):
        yield reading


@dataclass
class MethodSource:
    """Maps computed by a method.

    Attributes:
        model: the explained model.
        method: whose maps they are.
        seed: of the method and of what metrics draw.
        faults: errors that are recorded as failures; others are the caller's.
        ahead: maps of the next batch that is asked for, where they are there already.
    """

    model: TargetModel
    method: Method
    seed: int
    faults: type[Exception] = AhaError
    ahead: Made | None = None

    def cases(
        self,
        batch: Batch,
        samples: list[Sample],
        outputs: Tensor,
        chosen: list[list[int]],
        failures: list[Failure],
    ) -> Iterator[Case]:
        """A case for each image of a batch and each of its chosen classes, in that order."""
        made, self.ahead = self.ahead, None
        try:
            made = made or self.make(batch, outputs, chosen)
        except self.faults as error:
            failures += [Failure(sample.name, str(self.method), "", _reason(error)) for sample in samples]
            return
        for sample, classes, maps in zip(samples, chosen, made.maps, strict=True):
            for target, values in zip(classes, maps, strict=True):
                case = _case(sample, target, values, str(self.method), self.seed, failures)
                if case is not None:
                    case.explain, case.seconds = partial(self._again, classes, self.seed), made.seconds
                    case.reseeded = partial(partial, self._again, classes)
                    case.forward_images, case.backward_images = made.forward_images, made.backward_images
                    case.peak_bytes = made.peak_bytes
                    yield case

    def try_to_make(self, batch: Batch, outputs: Tensor, chosen: list[list[int]]) -> Made | None:
        """The maps, made before they are asked for; what fails will fail again when it is, and then be recorded."""
        with suppress(self.faults):
            return self.make(batch, outputs, chosen)
        return None

    def make(self, batch: Batch, outputs: Tensor, chosen: list[list[int]]) -> Made:
        """The maps of a batch for the classes of each image, measured."""
        before, hits_before = self.model.passes.copy(), self.model.cache_hits.copy()
        start = time.perf_counter()
        peak = PeakMemory(self.model.device)
        # The classes are resolved already, in the order of the batch.
        plain = replace(batch, positions=None, outputs=outputs)
        with peak:
            found = explain(self.model, plain, self.method, chosen, seed=self.seed)
        count = len(found)
        asked, cache_hits = self.model.passes - before, self.model.cache_hits - hits_before
        # A pass that was kept from elsewhere counts as if the method had been alone.
        seconds = (time.perf_counter() - start + cache_hits["nanoseconds"] / 1e9) / count
        forward, backward = ((asked[kind] + cache_hits[kind]) / count for kind in ("forward", "backward"))
        maps = torch.split(found.maps, [len(classes) for classes in chosen])
        return Made(maps, seconds, forward, backward, None if peak.bytes is None else peak.bytes / count)

    def _again(self, together: list[int], seed: int, model: TargetModel, inputs: Tensor, classes: Tensor) -> Tensor:
        maps = self.method.seeded(seed).among(together)(model, inputs, classes).detach().float()
        return resized(maps, inputs.shape[2:])


@dataclass
class _MapSource:
    """Maps that came from elsewhere."""

    name: str
    maps: Sequence[Any]
    seed: int
    counts: Sequence[int] | None  # how many each image has; None where all have equally many
    classes: Sequence[int] | None = None  # of each map, where they are known

    def __post_init__(self) -> None:
        self._starts = [0, *accumulate(self.counts or ())]

    def cases(
        self, batch: Batch, samples: list[Sample], outputs: Tensor, chosen: list[list[int]], failures: list[Failure]
    ) -> Iterator[Case]:
        for position, subject, sample, targets in zip(
            batch.positions or (), batch.subjects, samples, chosen, strict=True
        ):
            # By the image's position: maps of images that cannot be read have their places too.
            first = position * len(targets) if self.counts is None else self._starts[position]
            for place, target in enumerate(targets, start=first):
                if place >= len(self.maps):
                    raise MetricError(f"{self.name}: {len(self.maps)} maps are too few; {sample.name} has none")
                if self.classes is not None and self.classes[place] != target:
                    raise MetricError(
                        f"{self.name}: the map of {sample.name} is of class {self.classes[place]}, not of {target}; "
                        f"pass the classes of the maps as target="
                    )
                try:
                    given = usable_map(_as_array(self.maps[place]), f"{sample.name}: the map of {self.name}")
                except MetricError as error:
                    failures.append(Failure(sample.name, self.name, "", str(error)))
                    continue
                values = torch.from_numpy(given)
                case = fitted_case(sample, target, values, subject.geometry, self.name, self.seed, failures)
                if case is not None:
                    yield case


def _check_maps(sources: Sequence[MethodSource | _MapSource], images: int, chosen: list[list[int]]) -> None:
    """Refuses maps that are not as many as images and classes: which of them belong together cannot be known then."""
    for source in sources:
        if not isinstance(source, _MapSource) or not chosen:
            continue
        wanted = images * len(chosen[0]) if source.counts is None else sum(source.counts)
        if len(source.maps) != wanted:
            raise MetricError(
                f"{source.name}: {len(source.maps)} maps, but {images} images have {wanted} classes together; "
                f"give one per image and class, also for images that cannot be read"
            )


def _case(sample: Sample, target: int, values: Tensor, method: str, seed: int, failures: list[Failure]) -> Case | None:
    try:
        return Case(sample, target, values.to(sample.model.device), method, seed=seed)
    except MetricError as error:
        failures.append(Failure(sample.name, method, "", str(error)))
        return None


def fitted_case(
    sample: Sample,
    target: int,
    values: Tensor,
    geometry: Geometry,
    method: str,
    seed: int,
    failures: list[Failure],
) -> Case | None:
    """A case of a map from elsewhere; one in the original image's pixels is brought to those of the model input.

    What the model does not see of the image may be unknown there, and nothing else.
    """
    if tuple(values.shape) == geometry.original != geometry.model:
        values = geometry.to_model(torch.where(geometry.seen(), values, values.nan_to_num(nan=0.0)))
    return _case(sample, target, values, method, seed, failures)


def _sources(
    given: MapsOrMethods, model: TargetModel, seed: int, protocols: Sequence[Protocol], counts: list[int] | None
) -> list[MethodSource | _MapSource]:
    """What is to be scored, checked before anything is computed."""
    if isinstance(given, str | Method):
        given = [given]
    if isinstance(given, Explanation):
        given = {given.method: given}
    if isinstance(given, list | tuple) and given and all(isinstance(item, str | Method) for item in given):
        methods = list({str(chosen): chosen for chosen in map(load_method, given)}.values())
        for chosen in methods:
            check_fit(chosen, model)
        return [MethodSource(model, chosen, seed) for chosen in methods]
    if any("method" in protocol.needs for protocol in protocols):
        raise MetricError("this protocol has to run the method again; maps alone are not enough")
    named: Mapping[str, Any] = given if isinstance(given, Mapping) else {"maps": given}
    return [_MapSource(name, _as_list(maps, name), seed, counts, _classes_of(maps)) for name, maps in named.items()]


def _classes_of(maps: Any) -> list[int] | None:
    return [int(index) for index in maps.targets] if isinstance(maps, Explanation) else None


def _explained_objective(given: MapsOrMethods) -> Target | None:
    """The text of what the first explanation that is given explains, where that is no class."""
    named = given.values() if isinstance(given, Mapping) else [given]
    settings = next((maps.settings for maps in named if isinstance(maps, Explanation)), {})
    text = str(settings["target"]) if "target" in settings else None
    if text is not None and ("<array" in text or text.startswith("custom(")):
        raise TargetError(f"these maps explain {text}, which has no text to read; pass target= again")
    return text


def _explained_classes(given: MapsOrMethods, images: int | None) -> list[list[int]] | None:
    """The classes of each image in the first explanation that is given, if it has all images."""
    named = given.values() if isinstance(given, Mapping) else [given]
    found = next((maps for maps in named if isinstance(maps, Explanation)), None)
    if found is None:
        return None
    runs = groupby(range(len(found)), key=lambda row: id(found.subjects[row]))
    classes = [[int(found.targets[row]) for row in rows] for _, rows in runs]
    return classes if images in (None, len(classes)) else None


def _as_array(values: Any) -> NDArray[Any]:
    """A map as NumPy has it, which knows no bfloat16."""
    found = copied(values)
    return (found.float() if found.is_floating_point() else found).numpy()


def _as_list(maps: Any, name: str) -> Sequence[Any]:
    if isinstance(maps, Explanation):
        maps = maps.maps
    if isinstance(maps, Tensor | np.ndarray) and maps.ndim == 2:
        maps = maps[None]
    if isinstance(maps, str) or not isinstance(maps, Tensor | np.ndarray | Sequence) or len(maps) == 0:
        raise MetricError(f"{name}: give method names, or maps as a tensor, array (N, H, W) or list")
    return maps  # type: ignore[return-value]  # tensors and arrays are sequences of maps

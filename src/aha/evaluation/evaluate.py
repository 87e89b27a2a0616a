"""`evaluate`: how far maps can be trusted, measured; every perturbed image is shown to the model once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aha.core.progress import Listener, part
from aha.core.progress_line import shown
from aha.data.batches import Batch, Images, count_images, iter_batches
from aha.data.mosaics import Mosaic
from aha.data.targets import Target, class_counts, resolve_targets
from aha.errors import AhaWarning, ImageError, MetricError, TargetError, deprecated, warn
from aha.evaluation.ground_truth import GroundTruth, check_ground_truth
from aha.evaluation.loop import Classes, Loop
from aha.evaluation.map_sources import GivenMaps, MethodMaps
from aha.evaluation.sinks import MemorySink
from aha.explaining import Asked
from aha.methods import Method, check_fit, load_method
from aha.metrics import Metric
from aha.metrics.protocols import Protocol, load_protocols
from aha.models import TargetModel, load_model, loads_its_model
from aha.models.running.memory import Chunks
from aha.results.explanation import Explanation
from aha.results.score_table import Failure, Scores
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
    truth = GroundTruth(masks, boxes, None if mosaics is None else [mosaic.cells for mosaic in mosaics])
    check_ground_truth(protocols, truth)
    total, first, unreadable = count_images(pictures, model), 0, 0
    if targets is None:
        targets = _explained_classes(maps_or_methods, total) or "top1"
    explained: list[list[int]] = []  # classes of the images of the latest batch
    sources = _sources(maps_or_methods, model, seed, protocols, class_counts(targets))
    given = [source for source in sources if isinstance(source, GivenMaps)]
    scores = Scores(protocols=protocols, model=model.spec)
    loop = Loop(model, sources, protocols, MemorySink(scores))
    chunks = Chunks(batch_size or model.chunks.size)

    def on_error(name: str, error: ImageError) -> None:
        nonlocal unreadable
        unreadable += 1
        scores.failures.append(Failure(name, "", "", str(error)))

    def choose(batch: Batch, outputs: Tensor) -> Classes:
        nonlocal explained
        explained = resolve_targets(targets, model, outputs, batch.labels, positions=batch.positions, total=total)
        if total is not None:
            for source in given:
                source.check_count(total, explained)
        return {"": explained}

    with shown(progress, "evaluating"):
        for batch in iter_batches(model, pictures, chunks.size, labels, on_error):
            positions = batch.positions or list(range(first, first + len(batch.inputs)))
            with part(first, first + len(positions), total) if total else nullcontext():
                loop.open(replace(batch, positions=positions), truth, choose).score()
            first += len(positions)
    if total is None:
        for source in given:
            source.check_count(first + unreadable, explained)
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


def _mosaics(images: Images | Mosaic | Sequence[Mosaic]) -> list[Mosaic] | None:
    given = [images] if isinstance(images, Mosaic) else images
    if not isinstance(given, list | tuple) or not any(isinstance(image, Mosaic) for image in given):
        return None
    if not all(isinstance(image, Mosaic) for image in given):
        raise ImageError("mosaics and other images cannot be evaluated together")
    return list(given)


def _sources(
    given: MapsOrMethods, model: TargetModel, seed: int, protocols: Sequence[Protocol], counts: list[int] | None
) -> list[MethodMaps | GivenMaps]:
    """What is to be scored, checked before anything is computed."""
    if isinstance(given, str | Method):
        given = [given]
    if isinstance(given, Explanation):
        given = {given.method: given}
    if isinstance(given, list | tuple) and given and all(isinstance(item, str | Method) for item in given):
        methods = list({str(chosen): chosen for chosen in map(load_method, given)}.values())
        for chosen in methods:
            check_fit(chosen, model)
        return [MethodMaps(model, chosen, seed) for chosen in methods]
    if any("method" in protocol.needs for protocol in protocols):
        raise MetricError("this protocol has to run the method again; maps alone are not enough")
    named: Mapping[str, Any] = given if isinstance(given, Mapping) else {"maps": given}
    return [GivenMaps(name, _as_list(maps, name), seed, counts, _classes_of(maps)) for name, maps in named.items()]


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


def _as_list(maps: Any, name: str) -> Sequence[Any]:
    if isinstance(maps, Explanation):
        maps = maps.maps
    if isinstance(maps, Tensor | np.ndarray) and maps.ndim == 2:
        maps = maps[None]
    if isinstance(maps, str) or not isinstance(maps, Tensor | np.ndarray | Sequence) or len(maps) == 0:
        raise MetricError(f"{name}: give method names, or maps as a tensor, array (N, H, W) or list")
    return maps  # type: ignore[return-value]  # tensors and arrays are sequences of maps

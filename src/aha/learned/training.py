"""Training an explainer: a plain loop, because the loop is part of the method.

Every random choice follows from the seed and the step, or the seed and an image's place in the run. So a resumed run
continues with exactly the losses of an uninterrupted one, and several processes draw what one would.

    out/
      run.json            target, data and settings of the run
      explainer/          the best explainer so far by the hard metrics (config.json, model.safetensors, README.md)
      last/               the latest
      state.pt            weights, optimiser and step, for resuming; tensors and numbers only
      metrics.jsonl       one line per step
      tensorboard/        where TensorBoard is installed
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor, nn

from aha.core.disk import check_writable, remove_partials, write_atomically, writing
from aha.data.images import read_image
from aha.data.samples import Sample, find_samples
from aha.errors import CapabilityError, ImageError, ModelError, OutputError
from aha.learned import library
from aha.learned.calibration import mean_response
from aha.learned.data import Batch, StepImages, step_batches
from aha.learned.engine import Engine, parts_of
from aha.learned.explainer import Explainer
from aha.learned.logbook import METRICS, Logbook
from aha.learned.loss import objective, soft_masks
from aha.learned.regions import random_regions, stratified_counts
from aha.learned.seeds import HOLD_OUT, IMAGE, STEP, generator_for
from aha.learned.settings import Design, Settings, TrainConfig
from aha.learned.validation import areas, hard_curves
from aha.models import TargetModel, load_model
from aha.perturb.references import Reference

__all__ = ["BEST", "LAST", "METRICS", "TrainingError", "train"]

RUN, STATE, BEST, LAST, FAILED = "run.json", "state.pt", "explainer", "last", "failed_batch.json"

# With fewer images of a class than this, a learned vector for it would know little more than its starting point.
_ENOUGH_PER_CLASS = 50

_SAMPLES_FOR_SIGN = 8

Record = dict[str, float]


class TrainingError(ModelError):
    """Training cannot go on."""


def train(
    model: TargetModel | str | nn.Module,
    data: str | Path,
    out: str | Path,
    *,
    settings: Settings | None = None,
    validation: str | Path | None = None,
    start: str | Path | None = None,
    resume: bool = False,
    remember: bool = False,
    on_step: Callable[[Record], None] = lambda record: None,
) -> Explainer:
    """Trains an explainer of a model and returns the best one, which is in `out/explainer`.

    Args:
        model: the model to explain, as in `aha.explain`; it is not changed.
        data: images: a folder, one folder per class, a CSV file, tar shards, or any `KIND:PLACE[@SPLIT]`.
        out: folder of the run; everything needed to continue is there.
        settings: design and training; the preset `small` by default.
        validation: images to measure on; by default some of `data` are held out for it.
        start: an explainer to start from, such as one trained for an earlier version of the model.
        resume: continue the run in `out`, which must have been started with the same settings.
        remember: from now on, let `aha` mean this explainer for this model, instead of the shipped or remembered one.
        on_step: called with each step's figures.
    """
    target, settings, out = load_model(model), settings or Settings(), Path(out)
    config = settings.training
    engine = Engine(target.device)
    engine.check_batch(config.batch_size)
    check_writable(out)
    samples, held_out = _samples(target, data, validation, config)
    description = {
        "target": target.spec,
        "target_digest": target.digest,
        "images": len(samples),
        "settings": settings.record(),
    }
    explainer = _fresh(target, settings.design, samples, config.seed)
    if start is not None:
        explainer.start_from(Explainer.from_pretrained(start, device=target.device))
    if engine.is_first:  # last of all that may be refused, so that a refusal leaves no run behind
        (_check_same if resume else _start)(out, description)
    engine.wait()
    if start is None and not resume:
        _point_evidence(explainer, target, samples[:_SAMPLES_FOR_SIGN], config, engine)
    engine.start_alike(explainer)
    run = _Run(explainer, target, settings, out, engine, held_out)
    best = run.through(samples, resume=resume, on_step=on_step)
    if remember and engine.is_first:
        library.remember(best)
    return best


class _Run:
    """One training run, with everything that changes during it."""

    def __init__(
        self,
        explainer: Explainer,
        target: TargetModel,
        settings: Settings,
        out: Path,
        engine: Engine,
        held_out: Sequence[Sample],
    ) -> None:
        self.explainer, self.target, self.out, self.engine, self.held_out = explainer, target, out, engine, held_out
        self.settings, self.config = settings, settings.training
        self.optimiser = torch.optim.AdamW(
            explainer.parameters(), lr=self.config.learning_rate, weight_decay=self.config.weight_decay
        )
        self.average = {name: value.clone() for name, value in explainer.state_dict().items()}  # of the weights
        self.step = 0  # the next one
        self.best = -math.inf
        self.is_whole = True  # do weights, optimiser and step belong together?

    def through(self, samples: Sequence[Sample], *, resume: bool, on_step: Callable[[Record], None]) -> Explainer:
        """All remaining steps."""
        if resume:
            self._restore()
        book = Logbook(self.out, self.step) if self.engine.is_first else None
        images = StepImages(samples, self.target.stated_preprocessing(), self.config.seed, self.config.crop)
        steps = range(self.step, self.config.steps)
        batches = step_batches(images, steps, self.config.batch_size, self.engine.share, self.config.workers)
        self.explainer.train()
        try:
            for batch in batches:
                record = self._one(batch)
                if book is not None:
                    book.add(record)
                on_step(record)
        except KeyboardInterrupt:
            if self.is_whole:
                self._save()
            raise
        finally:
            if book is not None:
                book.close()
        self.engine.wait()  # for the first process to have written it
        return Explainer.from_pretrained(self.out / BEST, device=self.target.device)

    def _one(self, batch: Batch) -> Record:
        """One step, and what is due after it."""
        config, started = self.config, time.perf_counter()
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(config, self.step)
        parts = training_step(self.explainer, self.target, batch, config, self.step)
        self.optimiser.zero_grad()
        parts["loss"].mean().backward()  # type: ignore[no-untyped-call]
        self.engine.average_gradients(self.explainer)
        norm = nn.utils.clip_grad_norm_(self.explainer.parameters(), config.clip)
        record: Record = {"step": self.step, **self.engine.average(parts), "norm": float(norm)}
        if not math.isfinite(record["loss"]) or not math.isfinite(record["norm"]):
            self._stop(batch)
        self.is_whole = False
        self.optimiser.step()
        self._update_average()
        self.step += 1
        self.is_whole = True
        record["learning_rate"] = learning_rate(config, self.step - 1)
        record["temperature"] = temperature(config, self.step - 1)
        record["images_per_second"] = config.batch_size / (time.perf_counter() - started)
        is_last = self.step == config.steps
        if is_last or (config.validate_every and self.step % config.validate_every == 0):
            record |= self._validate()
        if is_last or self.step % config.save_every == 0:
            self._save()
        return record

    def _update_average(self) -> None:
        decay = min(self.config.ema, self.step / (self.step + 10))  # short at first: the start is soon forgotten
        for name, value in self.explainer.state_dict().items():
            self.average[name].lerp_(value, 1 - decay)

    def _kept(self) -> Explainer:
        """The explainer as it is saved and measured: with averaged weights if there is an average."""
        explainer = Explainer(self.explainer.config).to(self.target.device)
        explainer.adopt_encoder(self.explainer)
        explainer.load_state_dict(self.average if self.config.ema else self.explainer.state_dict())
        return explainer.eval()

    def _validate(self) -> Record:
        """Hard metrics on the held-out images; the best explainer is kept."""
        explainer = self._kept()
        curves = validation_curves(explainer, self.target, self.held_out, self.config, self.engine)
        scores = _means(curves, self.target)
        if scores["ins_del"] > self.best:
            self.best = scores["ins_del"]
            explainer.config = replace(explainer.config, response=tuple(mean_response(*curves.unbind(dim=1))))
            if self.engine.is_first:
                self._described(explainer, scores).save_pretrained(self.out / BEST)
        return {f"validation_{name}": value for name, value in scores.items()}

    def _described(self, explainer: Explainer, scores: dict[str, float]) -> Explainer:
        record = {**self.settings.record(), "finished": self.step}
        explainer.config = replace(
            explainer.config, temperature=self.config.cold, training=record, scores=scores or explainer.config.scores
        )
        return explainer

    def _save(self) -> None:
        if not self.engine.is_first:
            return
        state = {
            "explainer": self.explainer.state_dict(),
            "average": self.average,
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "best": self.best,
        }
        with writing(self.out):
            write_atomically(self.out / STATE, lambda file: torch.save(state, file))
        self._described(self._kept(), {}).save_pretrained(self.out / LAST)

    def _restore(self) -> None:
        state = _read_state(self.out / STATE, self.target.device)
        self.explainer.load_state_dict(state["explainer"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.average, self.step, self.best = state["average"], int(state["step"]), float(state["best"])

    def _stop(self, batch: Batch) -> None:
        """Records the batch that cannot be learnt from."""
        record = {"step": self.step, "seed": self.config.seed, "places": batch.places, "files": batch.files}
        with writing(self.out):
            write_atomically(self.out / FAILED, lambda file: file.write(json.dumps(record, indent=1).encode()))
        raise TrainingError(
            f"the loss is not finite at step {self.step}; the batch is in {self.out / FAILED}; "
            "lower the learning rate, or look at its images"
        )


@dataclass(frozen=True)
class Choices:
    """What is drawn for each image of a batch.

    Attributes:
        flips: mirrored? (b,)
        kinds: 0 the predicted class, 1 the label, 2 the runner-up (b,).
        references: which reference (b,).
        generators: one per image, for the noise.
    """

    flips: Tensor
    kinds: Tensor
    references: Tensor
    generators: list[torch.Generator]

    @classmethod
    def drawn(cls, config: TrainConfig, places: Sequence[int]) -> Choices:
        """The choices that belong to these places of the run."""
        generators = [generator_for(config.seed, IMAGE, place) for place in places]
        flips, kinds, references = torch.stack([torch.rand(3, generator=g) for g in generators]).unbind(dim=1)
        chances = torch.tensor(config.classes).cumsum(dim=0)
        return cls(
            (flips < 0.5) & config.flip,
            torch.searchsorted(chances / chances[-1], kinds.contiguous(), right=True).clamp(max=2),
            (references * len(config.references)).long(),
            generators,
        )


def training_step(
    explainer: Explainer, target: TargetModel, batch: Batch, config: TrainConfig, step: int
) -> dict[str, Tensor]:
    """The objective and its parts (b,) on one process's share of a step."""
    choices = Choices.drawn(config, batch.places)
    inputs = torch.where(choices.flips[:, None, None, None], batch.inputs.flip(-1), batch.inputs).to(target.device)
    size = (inputs.shape[-2], inputs.shape[-1])
    look = explainer.look(target, inputs)
    classes = explained_classes(look.outputs, batch.labels, choices.kinds)
    maps = explainer(explainer.read(target, look, classes), size)  # (b, H, W)
    shared = generator_for(config.seed, STEP, step)  # one grid and one set of steps for the whole batch
    regions = random_regions(size, shared, maps, config.grids)
    counts = stratified_counts(regions.count, config.perturbations, shared)
    masks = soft_masks(maps, regions, counts, temperature(config, step), config.objective, choices.generators)
    blanks = _references(target, inputs, classes, config.references, choices.references)
    return objective(target, target.to_pixels(inputs), classes, blanks, maps, masks, regions, config.objective)


def learning_rate(config: TrainConfig, step: int) -> float:
    """One cycle: linear rise, then half a cosine down to nothing."""
    rise = max(1, round(config.warm_up * config.steps))
    if step < rise:
        return config.learning_rate * (step + 1) / rise
    progress = (step - rise) / max(1, config.steps - rise)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


def temperature(config: TrainConfig, step: int) -> float:
    """Geometric from hot to cold."""
    progress = step / max(1, config.steps - 1)
    return float(config.hot * (config.cold / config.hot) ** progress)


def explained_classes(outputs: Tensor, labels: Tensor, kinds: Tensor) -> Tensor:
    """One class (b,) per image: the predicted one, the label (the predicted one, if unknown), or the runner-up."""
    top = outputs.topk(min(2, outputs.shape[1]), dim=1).indices
    labels, kinds = labels.to(top.device), kinds.to(top.device)
    known = torch.where(labels < 0, top[:, 0], labels)
    return torch.stack([top[:, 0], known, top[:, -1]], dim=1).gather(1, kinds[:, None])[:, 0]


def validation_scores(
    explainer: Explainer, target: TargetModel, samples: Sequence[Sample], config: TrainConfig, engine: Engine
) -> dict[str, float]:
    """Mean Deletion, Insertion and Ins-Del of the predicted classes by hard pixel masks (T = 0)."""
    curves = validation_curves(explainer, target, samples, config, engine)
    return _means(curves, target)


def _means(curves: Tensor, target: TargetModel) -> dict[str, float]:
    height, width = target.stated_preprocessing().size
    return {name: float(values.mean()) for name, values in areas(curves, height * width).items()}


def validation_curves(
    explainer: Explainer, target: TargetModel, samples: Sequence[Sample], config: TrainConfig, engine: Engine
) -> Tensor:
    """Deletion and Insertion curves (N, 2, S + 1) of the predicted classes by hard pixel masks (T = 0)."""
    preprocessing = target.stated_preprocessing()
    rows = []
    for index in parts_of(len(samples), engine.share):
        inputs = preprocessing(read_image(samples[index].read()))[0][None].to(target.device)
        classes = target.outputs(inputs).argmax(dim=1)
        maps = explainer.maps(target, inputs, classes)
        rows.append(hard_curves(target, inputs, classes, maps, config.references, config.validation_steps))
    return engine.gather(torch.cat(rows) if rows else torch.empty(0, 2, config.validation_steps + 1))


def _references(
    target: TargetModel, inputs: Tensor, classes: Tensor, options: Sequence[Reference], drawn: Tensor
) -> Tensor:
    """Each image's reference (b, C, H, W)."""
    pixels = target.to_pixels(inputs)
    blanks = torch.empty_like(pixels)
    for index, reference in enumerate(options):
        rows = (drawn == index).to(pixels.device)
        if rows.any():
            blanks[rows] = reference(target, pixels[rows], classes[rows])
    return blanks


def _samples(
    target: TargetModel, data: str | Path, validation: str | Path | None, config: TrainConfig
) -> tuple[list[Sample], list[Sample]]:
    """Images to train on and images to measure on."""
    samples = find_samples(data, target)
    if validation is not None:
        others = find_samples(validation, target)
        order = torch.randperm(len(others), generator=generator_for(config.seed, HOLD_OUT)).tolist()
        return samples, [others[index] for index in order[: config.validation_images]]
    if len(samples) < 2:
        raise ImageError(f"{data} has one image; training needs one to learn from and one to measure on")
    order = torch.randperm(len(samples), generator=generator_for(config.seed, HOLD_OUT)).tolist()
    count = max(1, min(config.validation_images, len(samples) // 10))
    held_out = set(order[:count])
    return (
        [sample for index, sample in enumerate(samples) if index not in held_out],
        [samples[index] for index in order[:count]],
    )


def _fresh(target: TargetModel, design: Design, samples: Sequence[Sample], seed: int) -> Explainer:
    """A new explainer, the same for the same seed."""
    conditioning = design.conditioning
    if conditioning == "auto":
        labelled = sum(sample.label is not None for sample in samples)
        is_closed = not target.has_texts  # a table of classes would know no other texts
        conditioning = "embedding" if is_closed and labelled >= _ENOUGH_PER_CLASS * target.num_classes else "head"
        if conditioning == "head":
            try:
                _ = target.class_vectors
            except CapabilityError:
                conditioning = "embedding"
    return Explainer.for_target(target, replace(design, conditioning=conditioning), seed=seed)


def _point_evidence(
    explainer: Explainer, target: TargetModel, samples: Sequence[Sample], config: TrainConfig, engine: Engine
) -> None:
    """Turns the class evidence round where it points away from what matters, as patch tokens of CLIP's ViTs do."""
    if explainer.config.evidence == "forward":
        scores = validation_scores(explainer, target, samples, config, engine)
        with torch.no_grad():
            explainer.decoder.evidence_gain.fill_(1.0 if scores["ins_del"] >= 0 else -1.0)


def _start(out: Path, description: dict[str, Any]) -> None:
    if (out / RUN).exists():
        raise OutputError(f"{out} holds a run already; continue it with --resume, or choose another folder")
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        content = json.dumps(description, indent=1).encode()
        write_atomically(out / RUN, lambda file: file.write(content))


def _check_same(out: Path, description: dict[str, Any]) -> None:
    """Refuses to continue a run with other settings: the result would be neither one's."""
    try:
        former = json.loads((out / RUN).read_text(encoding="utf-8"))
        before = dict(_flat(former))
    except (OSError, ValueError, AttributeError, RecursionError):
        raise OutputError(f"{out} holds no run that could be continued") from None
    remove_partials(out)
    if not (out / STATE).is_file():
        raise OutputError(f"the run in {out} was ended before its first save; delete the folder and start anew")
    now = json.loads(json.dumps(description))
    for name, value in _flat(now):
        if before.get(name) != value:
            raise OutputError(
                f"the run in {out} has {name}={before.get(name)}, not {value}; give the same settings to continue"
            )


def _read_state(path: Path, device: torch.device) -> dict[str, Any]:
    """Weights, optimiser and step; a file that is damaged anywhere is refused as a whole."""
    try:
        with ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is None:
            state: dict[str, Any] = torch.load(path, weights_only=True, map_location=device)
            return state
    except Exception as error:  # what a damaged archive raises is anybody's guess
        damaged = type(error).__name__
    raise OutputError(
        f"{path} is damaged ({damaged}); start a new run from what was saved beside it: start={path.parent / LAST}"
    )


def _flat(description: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in description.items():
        if isinstance(value, dict):
            yield from _flat(value)
        else:
            yield name, value

"""Training an explainer: a plain loop, because the loop is part of the method.

Every random choice follows from the seed and the step, or the seed and an image's place in the run. So a resumed run
continues with exactly the losses of an uninterrupted one, and several processes draw what one would. What a run leaves
in its folder is in `checkpoints.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from aha.core.disk import check_writable
from aha.data.samples import Sample
from aha.errors import ModelError
from aha.learned import library
from aha.learned.beginning import fresh_explainer, orient_evidence
from aha.learned.calibration import mean_response
from aha.learned.checkpoints import BEST, LAST, RunFolder, State
from aha.learned.choices import Choices, chosen_references, explained_classes
from aha.learned.data import Batch, StepImages, split_samples, step_batches
from aha.learned.engine import Engine
from aha.learned.explainer import Explainer
from aha.learned.logbook import METRICS, Logbook
from aha.learned.loss import objective
from aha.learned.regions import random_regions, stratified_counts
from aha.learned.seeds import STEP, generator_for
from aha.learned.settings import Settings, TrainConfig
from aha.learned.validation import mean_scores, measurable, validation_curves
from aha.models import TargetModel, load_model, loads_its_model

__all__ = ["BEST", "LAST", "METRICS", "TrainingError", "train"]

Record = dict[str, float]


class TrainingError(ModelError):
    """Training cannot go on."""


@loads_its_model
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
    config, engine, folder = settings.training, Engine(target.device), RunFolder(out, settings)
    engine.check_batch(config.batch_size)
    check_writable(out)
    samples, chosen = split_samples(data, validation, target, config)
    held_out = measurable(chosen, warns=engine.is_first)
    explainer = fresh_explainer(target, settings.design, samples, config.seed)
    if start is not None:
        explainer.start_from(Explainer.from_pretrained(start, device=target.device))
    if engine.is_first:  # last of all that may be refused, so that a refusal leaves no run behind
        folder.begin(target, len(samples), resume=resume)
    engine.wait()
    if start is None and not resume:
        orient_evidence(explainer, target, samples, config, engine)
    engine.start_alike(explainer)
    state = State.fresh(explainer, config)
    if resume:
        folder.restore(state)
    with _recorded(folder, state, engine, on_step) as record:
        _learn(state, target, samples, held_out, config, folder, engine, record)
    engine.wait()  # for the first process to have written it
    best = Explainer.from_pretrained(out / BEST, device=target.device)
    if remember and engine.is_first:
        library.remember(best)
    return best


def _learn(
    state: State,
    target: TargetModel,
    samples: Sequence[Sample],
    held_out: Sequence[Sample],
    config: TrainConfig,
    folder: RunFolder,
    engine: Engine,
    record: Callable[[Record], None],
) -> None:
    """The loop: all steps that remain; first the end of one that was interrupted after its update."""
    if state.unrecorded:
        _finish_step(state, target, held_out, config, folder, engine, record)
    explainer, optimiser = state.explainer.train(), state.optimiser
    images = StepImages(samples, target.stated_preprocessing(), config.seed, config.crop)
    for batch in step_batches(images, range(state.step, config.steps), config.batch_size, engine.share, config.workers):
        started, rate, heat = time.perf_counter(), learning_rate(config, state.step), temperature(config, state.step)
        for group in optimiser.param_groups:
            group["lr"] = rate
        parts = training_step(explainer, target, batch, config, state.step)
        optimiser.zero_grad()
        parts["loss"].mean().backward()  # type: ignore[no-untyped-call]
        engine.average_gradients(explainer)
        norm = float(nn.utils.clip_grad_norm_(explainer.parameters(), config.clip))
        figures: Record = {"step": state.step, **engine.average(parts), "norm": norm}
        if not (math.isfinite(figures["loss"]) and math.isfinite(norm)):
            raise TrainingError(
                f"the loss is not finite at step {state.step}; the batch is in "
                f"{folder.record_failure(batch, state.step)}; lower the learning rate, or look at its images"
            )
        with state.changing():
            optimiser.step()
            state.update_average(config.ema)
            state.step += 1
            speed = config.batch_size / (time.perf_counter() - started)
            state.unrecorded = figures | {"learning_rate": rate, "temperature": heat, "images_per_second": speed}
        _finish_step(state, target, held_out, config, folder, engine, record)


def training_step(
    explainer: Explainer, target: TargetModel, batch: Batch, config: TrainConfig, step: int
) -> dict[str, Tensor]:
    """The objective and its parts (b,) on one process's share of a step."""
    choices = Choices.drawn(config, batch.places)
    inputs = torch.where(choices.flips[:, None, None, None], batch.inputs.flip(-1), batch.inputs).to(target.device)
    size = (inputs.shape[-2], inputs.shape[-1])
    look = explainer.look(target, inputs)
    classes = explained_classes(target.score.per_class(look.outputs), batch.labels, choices.kinds)
    maps = explainer(explainer.read(target, look, classes), size)  # (b, H, W)
    shared = generator_for(config.seed, STEP, step)  # one grid and one set of steps for the whole batch
    regions = random_regions(size, shared, maps, config.grids)
    counts = stratified_counts(regions.count, config.perturbations, shared)
    pixels = target.to_pixels(inputs)
    blanks = chosen_references(target, pixels, classes, config.references, choices.references)
    heat = temperature(config, step)
    return objective(target, pixels, classes, blanks, maps, regions, counts, heat, config.objective, choices.generators)


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


def _finish_step(
    state: State,
    target: TargetModel,
    held_out: Sequence[Sample],
    config: TrainConfig,
    folder: RunFolder,
    engine: Engine,
    record: Callable[[Record], None],
) -> None:
    """What follows an update: it is measured and saved when that is due, and recorded."""
    figures, is_last = state.unrecorded, state.step == config.steps
    if is_last or (config.validate_every and state.step % config.validate_every == 0):
        figures = figures | _measured(state, target, held_out, config, folder, engine)
    record(figures)
    if engine.is_first and (is_last or state.step % config.save_every == 0):
        folder.save(state)


def _measured(
    state: State,
    target: TargetModel,
    held_out: Sequence[Sample],
    config: TrainConfig,
    folder: RunFolder,
    engine: Engine,
) -> Record:
    """Hard metrics on the held-out images; the best explainer is kept."""
    explainer = folder.kept(state)
    curves = validation_curves(explainer, target, held_out, config, engine)
    scores = mean_scores(curves, target)
    if scores["ins_del"] > state.best:
        explainer.config = replace(explainer.config, response=tuple(mean_response(*curves.unbind(dim=1))))
        if engine.is_first:
            folder.save_best(explainer, state.step, scores)
        state.best = scores["ins_del"]  # only now: measured again after an interruption, it must still be the best
    return {f"validation_{name}": value for name, value in scores.items()}


@contextmanager
def _recorded(
    folder: RunFolder, state: State, engine: Engine, on_step: Callable[[Record], None]
) -> Iterator[Callable[[Record], None]]:
    """What takes each step's figures: the logbook and the caller. Ctrl-C inside the block saves the state first."""
    book = Logbook(folder.out, state.recorded) if engine.is_first else None

    def record(figures: Record) -> None:
        if book is not None:
            book.add(figures)
        state.unrecorded = {}
        on_step(figures)

    try:
        yield record
    except KeyboardInterrupt:
        if state.is_whole and engine.is_first:
            folder.save(state)
        raise
    finally:
        if book is not None:
            book.close()

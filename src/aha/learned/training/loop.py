"""Training an explainer: a plain loop, because the loop is part of the method.

Every random choice follows from the seed and the step, or the seed and an image's place in the run. So a resumed run
continues with exactly the losses of an uninterrupted one, and several processes draw what one would. What a run leaves
in its folder is in `checkpoints.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from aha.core.disk import check_writable
from aha.core.progress import Listener, parts_of_known
from aha.core.progress_line import shown
from aha.data.images import LabelledImage
from aha.data.samples import Data
from aha.errors import ModelError
from aha.learned import library
from aha.learned.calibration import mean_response
from aha.learned.explainer import Explainer
from aha.learned.loss import objective
from aha.learned.regions import random_regions, stratified_counts
from aha.learned.seeds import STEP, generator_for
from aha.learned.settings import Settings, TrainConfig, load_settings
from aha.learned.training.checkpoints import BEST, LAST, RunFolder, TrainingState
from aha.learned.training.data import StepBatch, StepImages, split_samples, step_batches
from aha.learned.training.distributed import Engine
from aha.learned.training.initialization import fresh_explainer, orient_evidence
from aha.learned.training.metrics_log import METRICS, Logbook
from aha.learned.training.references import blanks_of, drawn_references, usable_references
from aha.learned.training.sampling import Choices, dropped_levels, explained_classes
from aha.learned.training.validation import grad_cam_scores, mean_scores, measurable, validation_curves
from aha.learned.training.zoo import Zoo
from aha.models import TargetModel, load_model, loads_its_model

__all__ = ["BEST", "LAST", "METRICS", "TrainingError", "train"]

Record = dict[str, float]
Model: TypeAlias = TargetModel | str | nn.Module


class TrainingError(ModelError):
    """Training cannot go on."""


@loads_its_model
def train(
    model: Model | Sequence[Model],
    data: Data,
    out: str | Path,
    *,
    settings: Settings | str | None = None,
    validation: Data | None = None,
    start: str | Path | None = None,
    resume: bool = False,
    remember: bool = False,
    on_step: Callable[[Record], None] = lambda record: None,
    progress: Listener | bool | None = None,
) -> Explainer:
    """Trains an explainer of a model and returns the best one, which is in `out/explainer`.

    Args:
        model: the model to explain, as in `aha.explain`; it is not changed. Several take turns, for an explainer that
            reads networks it has not met (settings of the preset `universal`).
        data: images: a folder, one folder per class, a CSV file, tar shards, or any `KIND:PLACE[@SPLIT]`; or a list of
            images or their paths, or a torch Dataset of images, with labels or without.
        out: folder of the run; everything needed to continue is there.
        settings: design and training, or the name of a preset: `small` by default, `universal` for several models,
            `adapt` with start="universal".
        validation: images to measure on; by default some of `data` are held out for it.
        start: an explainer to start from, such as one trained for an earlier version of the model; "universal" for the
            one that comes with the package. It is measured first, and is the best one until training improves on it.
        resume: continue the run in `out`, which must have been started with the same settings.
        remember: from now on, let `aha` mean this explainer for this model, instead of the shipped or remembered one.
        on_step: called with each step's figures.
        progress: as in `aha.explain`.
    """
    given: Sequence[Model] = [model] if isinstance(model, TargetModel | str | nn.Module) else model
    members = [load_model(one) for one in given]
    settings = settings or default_preset(len(members), start)
    settings = load_settings(settings) if isinstance(settings, str) else settings
    with shown(progress, "training"):
        run = _Run.prepared(members, data, validation, Path(out), settings)
        explainer = run.fresh_explainer(settings, start)
        with run.holding_its_folder(resume=resume):
            best = run.trained(explainer, on_step, resume=resume, is_new=start is None)
    if remember and run.engine.is_first:
        library.remember(best)
    return best


@dataclass(frozen=True)
class _Run:
    """What stays the same from the first step to the last."""

    zoo: Zoo
    samples: Sequence[LabelledImage]
    held_out: Sequence[LabelledImage]
    config: TrainConfig
    folder: RunFolder
    engine: Engine

    @classmethod
    def prepared(
        cls, members: Sequence[TargetModel], data: Data, validation: Data | None, out: Path, settings: Settings
    ) -> _Run:
        """Everything that may be refused is, before anything is written."""
        config, engine = settings.training, Engine(members[0].device)
        engine.check_batch(config.batch_size)
        check_writable(out)
        samples, chosen = split_samples(data, validation, members[0], config)
        held_out = measurable(chosen, warns=engine.is_first)
        references = usable_references(config.references, samples, members[0], config.seed)
        config = replace(config, references=references)
        return cls(Zoo(members, samples, config), samples, held_out, config, RunFolder(out, settings), engine)

    def fresh_explainer(self, settings: Settings, start: str | Path | None) -> Explainer:
        """The explainer that training begins with: new, or with the weights of another."""
        target = self.zoo.members[0]
        explainer = fresh_explainer(self.zoo, settings.design, self.samples, self.config.seed)
        if start is not None:
            source = library.universal_folder(target) if start == library.UNIVERSAL else start
            explainer.start_from(Explainer.from_pretrained(source, device=target.device))
            if explainer.revision is not None:
                explainer.decoder.requires_grad_(False)  # what is corrected stays as it is
        return explainer

    @contextmanager
    def holding_its_folder(self, *, resume: bool) -> Iterator[None]:
        """No other run writes there; last of all that may be refused, so that a refusal leaves no run behind."""
        with ExitStack() as stack:
            if self.engine.is_first:
                stack.enter_context(self.folder.begin(self.zoo, self.samples, resume=resume))
            self.engine.wait()
            yield

    def trained(
        self, explainer: Explainer, on_step: Callable[[Record], None], *, resume: bool, is_new: bool
    ) -> Explainer:
        """All steps that remain; gives the best explainer."""
        target = self.zoo.members[0]
        if is_new and not resume:
            orient_evidence(explainer, target, self.samples, self.config, self.engine)
        self.engine.start_alike(explainer)
        state = TrainingState.fresh(explainer, self.config)
        if resume:
            self.folder.restore(state)
        if not is_new and not state.step and not state.unrecorded:
            self._measured(state)  # what is not better than its start does not replace it
        with _recorded(self.folder, state, self.engine, on_step) as record:
            self._learn(state, record)
        self.engine.wait()  # for the first process to have written it
        return Explainer.from_pretrained(self.folder.out / BEST, device=target.device)

    def _learn(self, state: TrainingState, record: Callable[[Record], None]) -> None:
        """The loop: all steps that remain; first the end of one that was interrupted after its update."""
        config, engine = self.config, self.engine
        if state.unrecorded:
            self._finish_step(state, record)
        explainer, optimiser = state.explainer.train(), state.optimiser
        images = StepImages(self.samples, self.zoo.preprocessing(), config)
        steps = range(state.step, config.steps)
        batches = step_batches(images, steps, config.batch_size, engine.share, config.workers)
        for batch in parts_of_known(batches, len(steps)):
            started, rate, heat = (
                time.perf_counter(),
                learning_rate(config, state.step),
                temperature(config, state.step),
            )
            for group in optimiser.param_groups:
                group["lr"] = rate
            turn = self.zoo.turn(state.step)
            batch = replace(batch, labels=turn.labels(batch.labels))
            parts = training_step(explainer, turn.target, batch, config, state.step)
            optimiser.zero_grad()
            parts["loss"].mean().backward()  # type: ignore[no-untyped-call]
            engine.average_gradients(explainer)
            norm = float(nn.utils.clip_grad_norm_(explainer.parameters(), config.clip))
            figures: Record = {"step": state.step, **engine.average(parts), "norm": norm}
            if not (math.isfinite(figures["loss"]) and math.isfinite(norm)):
                raise TrainingError(
                    f"the loss is not finite at step {state.step}; the batch is in "
                    f"{self.folder.record_failure(batch, state.step)}; lower the learning rate, or look at its images"
                )
            with state.changing():
                optimiser.step()
                state.update_average(config.ema)
                state.step += 1
                speed = config.batch_size / (time.perf_counter() - started)
                state.unrecorded = figures | {"learning_rate": rate, "temperature": heat, "images_per_second": speed}
            self._finish_step(state, record)

    def _finish_step(self, state: TrainingState, record: Callable[[Record], None]) -> None:
        """What follows an update: it is measured and saved when that is due, and recorded."""
        config, figures, is_last = self.config, state.unrecorded, state.step == self.config.steps
        if is_last or (config.validate_every and state.step % config.validate_every == 0):
            figures = figures | self._measured(state)
        record(figures)
        if self.engine.is_first and (is_last or state.step % config.save_every == 0):
            self.folder.save(state)

    def _measured(self, state: TrainingState) -> Record:
        """Hard metrics on the held-out images, the mean over the models; the best explainer is kept."""
        explainer, members = self.folder.kept(state), self.zoo.members
        found = [validation_curves(explainer, target, self.held_out, self.config, self.engine) for target in members]
        scores = mean_scores(found, members)
        if scores["ins_del"] > state.best:
            beside = [grad_cam_scores(target, self.held_out, self.config, self.engine).mean() for target in members]
            known = {**scores, "grad_cam": float(torch.stack(beside).mean())}
            response = tuple(mean_response(*torch.cat(found).unbind(dim=1)))
            explainer.config = replace(explainer.config, response=response)
            if self.engine.is_first:
                self.folder.save_best(explainer, state.step, known)
            state.best = scores["ins_del"]  # only now: measured again after an interruption, it must still be the best
        return {f"validation_{name}": value for name, value in scores.items()}


def default_preset(models: int, start: str | Path | None) -> str:
    """The preset where none is named."""
    if models > 1:
        return "universal"
    return "adapt" if start == library.UNIVERSAL else "small"


def training_step(
    explainer: Explainer, target: TargetModel, batch: StepBatch, config: TrainConfig, step: int
) -> dict[str, Tensor]:
    """The objective and its parts (b,) on one process's share of a step."""
    choices = Choices.drawn(config, batch.places)
    inputs = torch.where(choices.flips[:, None, None, None], batch.inputs.flip(-1), batch.inputs).to(target.device)
    size = (inputs.shape[-2], inputs.shape[-1])
    look = explainer.look(target, inputs)
    classes = explained_classes(target.score.per_class(look.outputs), batch.labels, choices.kinds)
    dropped = dropped_levels(config, step, explainer.config.decoder.levels) if config.drop else ()
    given = explainer.read(target, look, classes, dropped)
    maps = explainer(given, size)  # (b, H, W)
    if explainer.revision is not None:
        whole = explainer.whole(target, look, classes, given)
        maps = explainer.revised(target, whole, inputs, classes, maps)
    shared = generator_for(config.seed, STEP, step)  # one grid and one set of steps for the whole batch
    regions = random_regions(size, shared, maps, config.grids, config.grid_spread)
    jitter = shared if config.step_places == "jittered" else None
    counts = stratified_counts(regions.count, config.perturbations, jitter)
    pixels = target.to_pixels(inputs)
    kinds = drawn_references(config, batch.places, choices.references)
    blanks = blanks_of(target, pixels, classes, kinds)
    heat, noise = temperature(config, step), choices.generators
    return objective(target, pixels, classes, blanks, maps, regions, counts, heat, config.objective, noise, kinds)


def learning_rate(config: TrainConfig, step: int) -> float:
    """One cycle: a rise, linear or by half a cosine from a twenty-fifth, then half a cosine down to nothing."""
    rise = max(1, round(config.warm_up * config.steps))
    if config.schedule == "one_cycle":
        top = max(1, rise - 1)  # the step of the highest rate
        if step <= top:
            return config.learning_rate * (1 - 0.96 * 0.5 * (1 + math.cos(math.pi * step / top)))
        progress = (step - top) / max(1, config.steps - 1 - top)
        return config.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
    if step < rise:
        return config.learning_rate * (step + 1) / rise
    progress = (step - rise) / max(1, config.steps - rise)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


def temperature(config: TrainConfig, step: int) -> float:
    """Geometric from hot to cold."""
    progress = step / max(1, config.steps - 1)
    return float(config.hot * (config.cold / config.hot) ** progress)


@contextmanager
def _recorded(
    folder: RunFolder, state: TrainingState, engine: Engine, on_step: Callable[[Record], None]
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

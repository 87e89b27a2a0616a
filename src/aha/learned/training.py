"""Training an explainer: a plain loop, because the loop is part of the method.

Every random choice of a step is drawn from a generator seeded by run and step, so that a resumed run continues with
exactly the losses of an uninterrupted one.

    out/
      explainer/          the best explainer so far (config.json, model.safetensors, README.md)
      last/               the latest
      state.pt            optimiser and schedule, for resuming; tensors only
      metrics.jsonl       one line per step
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aha.errors import ImageError, ModelError, OutputError
from aha.images import read_image
from aha.labelled import LabelledImage
from aha.learned.explainer import Explainer
from aha.learned.loss import ObjectiveConfig, objective, soft_masks
from aha.learned.regions import GRID_SIZES, random_regions, stratified_counts
from aha.models import TargetModel
from aha.references import Black, Blur, Mean, Reference

STATE, METRICS, BEST, LAST = "state.pt", "metrics.jsonl", "explainer", "last"


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a run. Where the paper is silent the default is a choice of this project.

    Attributes:
        steps: optimiser steps.
        batch_size: images per step.
        perturbations: steps S of each sequence.
        learning_rate: peak of the one-cycle schedule.
        weight_decay: of AdamW.
        clip: largest gradient norm.
        warm_up: share of the steps in which the learning rate rises.
        hot: first temperature.
        cold: last temperature, which refinement uses too; geometric in between.
        grids: smallest and largest number of cells along the shorter side.
        classes: chances of explaining the predicted class, the label, and the runner-up.
        flip: mirror half of the images.
        references: one is drawn per image.
        objective: weights of the loss.
        save_every: steps between saved states.
        seed: of everything random.
    """

    steps: int = 300
    batch_size: int = 8
    perturbations: int = 8
    learning_rate: float = 1e-3
    weight_decay: float = 1e-3
    clip: float = 1.0
    warm_up: float = 0.1
    hot: float = 0.1
    cold: float = 0.01
    grids: tuple[int, int] = GRID_SIZES
    classes: tuple[float, float, float] = (0.5, 0.3, 0.2)
    flip: bool = True
    references: tuple[Reference, ...] = (Black(), Mean(), Blur())
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    save_every: int = 25
    seed: int = 0


PRESETS = {
    "paper": TrainConfig(steps=40_000, batch_size=32, perturbations=16, learning_rate=3e-4, save_every=500),
    "small": TrainConfig(),
    "smoke": TrainConfig(steps=4, batch_size=2, perturbations=4, save_every=2),
}


def train(
    explainer: Explainer,
    target: TargetModel,
    images: Sequence[LabelledImage],
    config: TrainConfig,
    out: str | Path,
    *,
    resume: bool = False,
    on_step: Callable[[dict[str, float]], None] = lambda record: None,
) -> Explainer:
    """Trains the explainer's decoder and returns it; everything needed to continue is in `out`."""
    out = Path(out)
    if not images:
        raise ImageError("no images to train on")
    optimiser = torch.optim.AdamW(explainer.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    first = _restore(explainer, optimiser, out) if resume else _start(out)
    explainer.train()
    for step in range(first, config.steps):
        started = time.perf_counter()
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(config, step)
        parts = training_step(explainer, target, images, config, step)
        optimiser.zero_grad()
        parts["loss"].mean().backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(explainer.parameters(), config.clip)
        record = {name: float(value.detach().mean()) for name, value in parts.items()}
        record |= {"step": step, "norm": float(norm), "seconds": time.perf_counter() - started}
        if not math.isfinite(record["loss"]) or not math.isfinite(record["norm"]):
            raise ModelError(f"the loss is not finite at step {step}; lower the learning rate, or check the images")
        optimiser.step()
        _log(out, record)
        on_step(record)
        if (step + 1) % config.save_every == 0 or step + 1 == config.steps:
            _save(explainer, optimiser, config, out, step + 1)
    explainer.eval()
    return explainer


def training_step(
    explainer: Explainer, target: TargetModel, images: Sequence[LabelledImage], config: TrainConfig, step: int
) -> dict[str, Tensor]:
    """The objective and its parts (B,) on the step's batch, all choices drawn from the step's own generator."""
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
    inputs, labels = _batch(target, images, config, step, generator)
    size = (inputs.shape[-2], inputs.shape[-1])
    if explainer.config.encoder == "target":
        features, outputs = target.features(inputs, explainer.config.stages)
    else:
        features, outputs = explainer.features(target, inputs), target.outputs(inputs)
    classes = explained_classes(outputs, labels, config.classes, generator)
    maps = explainer(features, explainer.class_vectors(target, classes), size)  # (B, H, W)
    regions = random_regions(size, generator, maps, config.grids)
    counts = stratified_counts(regions.count, config.perturbations, generator)
    masks = soft_masks(maps, regions, counts, temperature(config, step), config.objective, generator)
    blank = _references(target, inputs, classes, config.references, generator)
    return objective(target, inputs, classes, blank, maps, masks, regions, config.objective)


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


def explained_classes(
    outputs: Tensor, labels: Tensor | None, chances: tuple[float, float, float], generator: torch.Generator
) -> Tensor:
    """One class (B,) per image: the predicted one, the label (predicted, if unknown), or the runner-up."""
    top = outputs.topk(min(2, outputs.shape[1]), dim=1).indices
    known = top[:, 0] if labels is None else labels.to(top.device)
    options = torch.stack([top[:, 0], known, top[:, -1]], dim=1)  # (B, 3)
    drawn = torch.multinomial(torch.tensor(chances), len(outputs), replacement=True, generator=generator)
    return options.gather(1, drawn.to(top.device)[:, None])[:, 0]


def _batch(
    target: TargetModel, images: Sequence[LabelledImage], config: TrainConfig, step: int, generator: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    """The step's images as inputs; each epoch goes through all of them once, in an order of its own."""
    places = range(step * config.batch_size, (step + 1) * config.batch_size)
    orders: dict[int, Tensor] = {}
    chosen = []
    for place in places:
        epoch, index = divmod(place, len(images))
        if epoch not in orders:
            shuffle = torch.Generator().manual_seed(config.seed * 7_919 + epoch)
            orders[epoch] = torch.randperm(len(images), generator=shuffle)
        chosen.append(images[int(orders[epoch][index])])
    preprocess = target.stated_preprocessing()
    inputs = torch.stack([preprocess(read_image(image.path))[0] for image in chosen])
    flips = torch.rand(len(chosen), generator=generator) < (0.5 if config.flip else 0.0)
    inputs[flips] = inputs[flips].flip(-1)
    labels = [image.label for image in chosen if image.label is not None]
    return inputs.to(target.device), torch.tensor(labels) if len(labels) == len(chosen) else None


def _references(
    target: TargetModel, inputs: Tensor, classes: Tensor, options: Sequence[Reference], generator: torch.Generator
) -> Tensor:
    """One reference (B, C, H, W) per image, drawn from the options."""
    pixels = target.to_pixels(inputs)
    drawn = torch.randint(len(options), (len(inputs),), generator=generator)
    blank = torch.empty_like(pixels)
    for index, reference in enumerate(options):
        rows = (drawn == index).to(pixels.device)
        if rows.any():
            blank[rows] = reference(target, pixels[rows], classes[rows])
    return blank


def _start(out: Path) -> int:
    if (out / STATE).exists():
        raise OutputError(f"{out} holds a run already; continue it with resume, or choose another folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / METRICS).write_text("")
    except OSError as error:
        raise OutputError(f"cannot write to {out}: {error.strerror or error}") from error
    return 0


def _restore(explainer: Explainer, optimiser: torch.optim.Optimizer, out: Path) -> int:
    """Weights and optimiser as they were when last saved; later lines of the log are dropped."""
    if not (out / STATE).is_file():
        raise OutputError(f"{out} has no {STATE}; there is nothing to resume")
    state: dict[str, Any] = torch.load(out / STATE, weights_only=True)
    explainer.load_state_dict(state["explainer"])
    optimiser.load_state_dict(state["optimiser"])
    step = int(state["step"])
    lines = (out / METRICS).read_text(encoding="utf-8").splitlines()[:step]
    (out / METRICS).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return step


def _save(explainer: Explainer, optimiser: torch.optim.Optimizer, config: TrainConfig, out: Path, step: int) -> None:
    state = {"explainer": explainer.state_dict(), "optimiser": optimiser.state_dict(), "step": step}
    partial = out / f".{STATE}.partial"
    torch.save(state, partial)
    partial.replace(out / STATE)
    record = {**asdict(config), "references": [str(reference) for reference in config.references], "finished": step}
    explainer.config = replace(explainer.config, temperature=config.cold, training=record)
    explainer.save_pretrained(out / LAST)


def _log(out: Path, record: dict[str, float]) -> None:
    with (out / METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")

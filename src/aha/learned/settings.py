"""Settings of an explainer and its training, the presets, and `key=value` texts that change them.

Where the paper is silent, the default is a choice of this project; `docs/results/aha.md` lists them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from aha.core.validation import LARGEST_NUMBER, PositiveFloat, PositiveInt, Range, checked, hints_of
from aha.errors import SpecError
from aha.learned.loss import ObjectiveConfig
from aha.learned.regions import GRID_SIZES
from aha.perturb.references import Black, Blur, Mean, Reference, load_reference

Conditioning = Literal["auto", "head", "embedding"]
Evidence = Literal["backward", "forward", "none"]
Form = Literal["own", "universal"]
Stride = Literal[1, 2, 4, 8, 16, 32]  # of the decoder's levels, and finer ones, which are as the finest


@dataclass(frozen=True)
class Design:
    """What an explainer is built from.

    Attributes:
        form: "own" reads the features and class vectors of one network, which the next settings choose; "universal"
            reads what means the same in every network: class evidence by stride, facts of the answer, the image.
        encoder: "target" for the explained model's own features; a name in ENCODERS; or any model spec.
        stages: encoder stages that are read, shallow to deep; four of them by default.
        conditioning: "head", the target's classifier weights; "embedding", a learned table; "auto" takes the table
            where training has enough images of each class, or where the target has no linear classifier.
        evidence: "backward", class evidence at every level of the target, by one backward pass; "forward", of the
            deepest features by the classifier's weights, as the paper's one pass allows; or "none".
        rivals: class evidence is that against the class's rivals, where classes share out a softmax.
        width: channels of the decoder.
        stride: pixels per value of the decoder's finest level; the map follows the image's outlines below that.
        class_dim: of a learned class vector.
        cohesion: how much the patches of a transformer keep together: the weight of the mean over its patch beside a
            pixel's own value. Maps are blockier with more of it, and score higher.
        decoder: "pyramid", which reads all of the above and the image; or "dpt", the paper's, which reads features
            and class vectors alone.
        revise: learn a correction of maps by two more looks, of a universal explainer; the explainer that training
            starts from stays as it is.
    """

    form: Form = "own"
    encoder: str = "target"
    stages: tuple[int, ...] | None = None
    conditioning: Conditioning = "auto"
    evidence: Evidence = "backward"
    rivals: bool = False
    width: PositiveInt = 32
    stride: Stride = 4
    class_dim: PositiveInt = 256
    cohesion: float = 0.25
    decoder: Literal["pyramid", "dpt"] = "pyramid"
    revise: bool = False


# Frozen encoders of other makers -> their spec and the blocks that are read.
ENCODERS: dict[str, tuple[str, tuple[int, ...]]] = {
    "dinov3-l": ("timm:vit_large_patch16_dinov3.lvd1689m", (4, 11, 17, 23)),  # the paper's
    "dinov3-b": ("timm:vit_base_patch16_dinov3.lvd1689m", (2, 5, 8, 11)),
    "dinov3-s": ("timm:vit_small_patch16_dinov3.lvd1689m", (2, 5, 8, 11)),
    "dinov2-b": ("timm:vit_base_patch14_dinov2.lvd142m", (2, 5, 8, 11)),
    "dinov2-s": ("timm:vit_small_patch14_dinov2.lvd142m", (2, 5, 8, 11)),
}


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a run.

    Attributes:
        steps: optimiser steps.
        batch_size: images per step, over all processes.
        perturbations: steps S of each sequence.
        learning_rate: peak of the one-cycle schedule.
        weight_decay: of AdamW.
        clip: largest gradient norm.
        warm_up: share of the steps in which the learning rate rises.
        schedule: how it rises: "linear"; or "one_cycle", by half a cosine from a twenty-fifth, as in OneCycleLR.
        hot: first temperature.
        cold: last temperature, which refinement uses too; geometric in between.
        grids: smallest and largest number of cells along the shorter side.
        grid_spread: how they are drawn: "log", every scale as often as any other; or "even", every number as often.
        step_places: where the S steps of a sequence lie: "jittered", at random in equal parts; or "even".
        classes: chances of explaining the predicted class, the label, and the runner-up.
        flip: mirror half of the images.
        crop: smallest share of an image's area that is cut out for training; 1 takes the whole.
        references: one is drawn per image, and a seed of its own for what is random in it; what is named twice is drawn
            twice as often. Validation measures with all of them, each with the seed that it states.
        mix: of several models, how often each takes its turn; equally often by default.
        vary: chance that a step changes its model: another input size, coarser classes, noise on the weights.
        drop: chance that a universal explainer is shown a level of evidence as missing.
        objective: weights of the loss.
        ema: decay of an average of the weights over the steps, which is then what is kept; 0 switches it off.
        validate_every: steps between measurements by the hard metrics; 0 for the end only.
        validation_images: how many images are held out for them.
        validation_steps: S of the hard metrics.
        save_every: steps between saved states.
        workers: processes that read images ahead, at most one per CPU core; 0 reads them in between.
        refine_rate: learning rate of refinement (Adam), when the trained explainer is asked for it.
        refine_steps: perturbation steps of refinement.
        refine_grid: its cells along the shorter side.
        seed: of everything random.
    """

    steps: PositiveInt = 1000
    batch_size: PositiveInt = 8
    perturbations: PositiveInt = 4
    learning_rate: float = 2e-3
    weight_decay: float = 1e-3
    clip: PositiveFloat = 1.0
    warm_up: float = 0.1
    schedule: Literal["linear", "one_cycle"] = "linear"
    hot: PositiveFloat = 0.1
    cold: PositiveFloat = 0.01
    grids: tuple[PositiveInt, PositiveInt] = GRID_SIZES
    grid_spread: Literal["log", "even"] = "log"
    step_places: Literal["jittered", "even"] = "jittered"
    classes: tuple[float, float, float] = (0.6, 0.2, 0.2)
    flip: bool = True
    crop: float = 0.6
    references: tuple[Reference, ...] = (Black(), Mean(), Blur())
    mix: tuple[float, ...] = ()
    vary: float = 0.0
    drop: float = 0.0
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    ema: float = 0.97
    validate_every: int = 0
    validation_images: int = 32
    validation_steps: PositiveInt = 8
    save_every: PositiveInt = 25
    workers: int = 0
    refine_rate: PositiveFloat = 3e-3
    refine_steps: PositiveInt = 8
    refine_grid: PositiveInt = 56
    seed: int = 0

    @property
    def passes(self) -> int:
        """Images that go forward and backward through the model in all: those of each sequence, and one look."""
        return self.steps * self.batch_size * (2 * self.perturbations + 1)


@dataclass(frozen=True)
class Settings:
    """An explainer's design and its training."""

    design: Design = field(default_factory=Design)
    training: TrainConfig = field(default_factory=TrainConfig)

    def record(self) -> dict[str, Any]:
        """Plain values, for files."""
        found = {**asdict(self.design), **asdict(self.training)}
        return {**found, "references": [str(reference) for reference in self.training.references]}


PRESETS = {
    # As printed: one epoch of ImageNet-1k; what the paper leaves open is a choice (docs/aha.md has the table).
    "paper": Settings(
        Design(
            encoder="dinov3-l",
            conditioning="embedding",
            evidence="none",
            width=256,
            class_dim=1024,
            cohesion=0.0,
            decoder="dpt",
        ),
        TrainConfig(
            steps=40_036,
            batch_size=32,
            perturbations=16,
            learning_rate=3e-4,
            warm_up=0.3,
            schedule="one_cycle",
            grids=(7, 28),
            grid_spread="even",
            step_places="even",
            classes=(0.5, 0.5, 0.0),
            crop=1.0,
            objective=ObjectiveConfig(log=0.0, peaks=2.5e-3, iterations=30, noise=1.0, order="full"),
            refine_rate=1e-4,
            refine_steps=16,
            refine_grid=14,
            ema=0.0,
            validate_every=2000,
            validation_images=256,
            save_every=500,
            workers=8,
        ),
    ),
    # A few thousand images and a CPU.
    "small": Settings(),
    # One explainer for networks that it has not met: several models, varied.
    "universal": Settings(
        Design(form="universal"),
        TrainConfig(steps=3000, vary=0.4, drop=0.1, ema=0.99, validate_every=500, validation_images=16, save_every=50),
    ),
    # From the universal explainer to a better one for one network, with a few hundred photographs and a CPU.
    "adapt": Settings(
        Design(form="universal"),
        TrainConfig(steps=64, learning_rate=5e-4, warm_up=0.05, hot=0.02, classes=(0.8, 0.1, 0.1), ema=0.9),
    ),
    # A correction of the universal explainer's maps by two more looks; start from it.
    "looks": Settings(
        Design(form="universal", revise=True),
        TrainConfig(steps=1000, vary=0.3, hot=0.03, ema=0.98, validate_every=200, validation_images=16, save_every=25),
    ),
    # Does it run?
    "smoke": Settings(
        training=TrainConfig(
            steps=4, batch_size=2, perturbations=4, validation_images=2, validation_steps=4, save_every=2
        )
    ),
}


def load_settings(preset: str, changes: Iterable[str] | Mapping[str, Any] = ()) -> Settings:
    """A preset with changes, given as `key=value` texts or as a mapping."""
    if preset not in PRESETS:
        raise SpecError(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
    pairs = changes.items() if isinstance(changes, Mapping) else map(_split, changes)
    settings = PRESETS[preset]
    for name, value in pairs:
        settings = _changed(settings, name, value)
    return settings


def _split(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise SpecError(f"cannot read the setting {text!r}; write key=value")
    try:
        return name.strip(), ast.literal_eval(value.strip())
    except (ValueError, SyntaxError):
        return name.strip(), value.strip()


def _changed(settings: Settings, name: str, value: Any) -> Settings:
    training = settings.training
    if name in _names(Design):
        return replace(settings, design=replace(settings.design, **{name: _checked(Design, name, value)}))
    if name in _names(ObjectiveConfig):
        objective = replace(training.objective, **{name: _checked(ObjectiveConfig, name, value)})
        return replace(settings, training=replace(training, objective=objective))
    if name == "references":
        return replace(settings, training=replace(training, references=_references(value)))
    if name in _names(TrainConfig) and name != "objective":
        return replace(settings, training=replace(training, **{name: _checked(TrainConfig, name, value)}))
    known = sorted((_names(Design) | _names(TrainConfig) | _names(ObjectiveConfig)) - {"objective"})
    raise SpecError(f"no setting {name!r}; there are {', '.join(known)}")


def _references(value: Any) -> tuple[Reference, ...]:
    """References from one text with commas, or from several."""
    names = re.split(r",\s*(?![^()]*\))", value) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names:
        raise SpecError(f"references must be at least one, such as black,noise,shuffled, not {value!r}")
    return tuple(load_reference(name) for name in names)


_MOST_STAGES = 4


def _names(kind: type) -> set[str]:
    return {f.name for f in fields(kind)}


def _checked(kind: type, name: str, value: Any) -> Any:
    """The value, if it has the type and range of the field that it is meant for."""
    value = checked(value, hints_of(kind)[name], name, Range(0, LARGEST_NUMBER))
    if name == "classes" and not any(value):
        raise SpecError(f"classes must be chances of which one at least is not 0, not {value}")
    if name == "stages" and value == ():
        raise SpecError("stages must be at least one, not ()")
    if name == "stages" and value is not None and len(value) > _MOST_STAGES:
        raise SpecError(f"stages must be at most {_MOST_STAGES}, not {len(value)}")
    if name == "width" and (value < 2 or value % min(value, 8)):
        raise SpecError(f"width must be 2 to 8 or a multiple of 8, not {value}")
    if name == "grids" and value[0] > value[1]:
        raise SpecError(f"grids must be the smallest and the largest, in this order, not {value}")
    return value

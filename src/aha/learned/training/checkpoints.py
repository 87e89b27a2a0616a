"""A training run as it is kept: what changes during it, and the folder from which it can be continued.

out/
  run.json            target, data and settings of the run
  explainer/          the best explainer so far by the hard metrics (config.json, model.safetensors, README.md)
  last/               the latest
  state.pt            weights, optimiser, step and its unrecorded figures, for resuming; tensors and numbers only
  failed_batch.json   images of a step whose loss was not finite
  metrics.jsonl       one line per step (logbook.py)
  tensorboard/        where TensorBoard is installed
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor

from aha.core.disk import remove_partials, result_key, write_atomically, writing
from aha.core.store import locked
from aha.data.images import LabelledImage
from aha.errors import OutputError
from aha.learned.explainer import Explainer
from aha.learned.settings import Settings, TrainConfig
from aha.learned.training.data import StepBatch
from aha.learned.training.zoo import Zoo
from aha.models import TargetModel

RUN, STATE, BEST, LAST, FAILED = "run.json", "state.pt", "explainer", "last", "failed_batch.json"


@dataclass
class TrainingState:
    """Everything that changes during a run.

    Attributes:
        explainer: with the weights that are being learnt.
        average: of these weights over the steps, by name.
        optimiser: with its moments.
        step: the next one.
        best: highest validation score so far.
        unrecorded: figures of the latest step, until they are in the logbook.
        is_whole: do weights, optimiser and step belong together?
    """

    explainer: Explainer
    average: dict[str, Tensor]
    optimiser: torch.optim.Optimizer
    step: int = 0
    best: float = -math.inf
    unrecorded: dict[str, float] = field(default_factory=dict)
    is_whole: bool = True

    @classmethod
    def fresh(cls, explainer: Explainer, config: TrainConfig) -> TrainingState:
        """Before the first step."""
        average = {name: value.clone() for name, value in explainer.state_dict().items()}
        learned = [one for one in explainer.parameters() if one.requires_grad]
        optimiser = torch.optim.AdamW(learned, lr=config.learning_rate, weight_decay=config.weight_decay)
        return cls(explainer, average, optimiser)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """What is interrupted inside the block leaves a state that is not worth saving."""
        self.is_whole = False
        yield
        self.is_whole = True

    @property
    def recorded(self) -> int:
        """How many steps are in the logbook."""
        return self.step - 1 if self.unrecorded else self.step

    def update_average(self, decay: float) -> None:
        """After a step of the optimiser."""
        decay = min(decay, self.step / (self.step + 10))  # short at first: the start is soon forgotten
        for name, value in self.explainer.state_dict().items():
            if value.is_floating_point():
                self.average[name].lerp_(value, 1 - decay)
            else:  # counts of batch normalisation
                self.average[name].copy_(value)


class RunFolder:
    """The folder of one run; only the process that writes calls what writes."""

    def __init__(self, out: Path, settings: Settings) -> None:
        self.out, self._settings = out, settings

    @contextmanager
    def begin(self, zoo: Zoo, samples: Sequence[LabelledImage], *, resume: bool) -> Iterator[None]:
        """Takes the folder for this run, or checks that the run in it is the same one; no other process gets it."""
        description = {
            "target": zoo.spec,
            "target_digest": zoo.digest,
            "models": [_described(member) for member in zoo.members],
            "settings": self._settings.record(),
            "images": len(samples),
            "images_digest": _digest_of(samples),
        }
        if not resume:
            _refuse_run(self.out)
            with writing(self.out):
                self.out.mkdir(parents=True, exist_ok=True)
        elif not (self.out / RUN).is_file():
            raise OutputError(f"{self.out} holds no run that could be continued")
        lock = locked(self.out / RUN, self.out, 0)
        try:
            if resume:
                _check_same(self.out, description)
            else:
                _refuse_run(self.out)
                _write_json(self.out / RUN, description)
            yield
        finally:
            lock.release()

    def kept(self, state: TrainingState) -> Explainer:
        """The explainer as it is saved and measured: with averaged weights if there is an average."""
        explainer = Explainer(state.explainer.config).to(next(state.explainer.parameters()).device)
        explainer.adopt_encoder(state.explainer)
        explainer.load_state_dict(state.average if self._settings.training.ema else state.explainer.state_dict())
        return explainer.eval()

    def save_best(self, explainer: Explainer, step: int, scores: Mapping[str, float]) -> None:
        """The explainer with the highest validation score so far."""
        explainer.config = replace(explainer.config, scores=scores)
        self._save_explainer(explainer, step, BEST)

    def save(self, state: TrainingState) -> None:
        """All that is needed to continue, and the latest explainer."""
        content = {
            "explainer": state.explainer.state_dict(),
            "average": state.average,
            "optimiser": state.optimiser.state_dict(),
            "step": state.step,
            "best": state.best,
            "unrecorded": state.unrecorded,
        }
        with writing(self.out):
            packed = (
                io.BytesIO()
            )  # in memory first: of a full disk, torch's own writer says nothing that one understands
            torch.save(content, packed)
            write_atomically(self.out / STATE, lambda file: file.write(packed.getbuffer()))
        self._save_explainer(self.kept(state), state.step, LAST)

    def restore(self, state: TrainingState) -> None:
        """The state as it was saved."""
        device = next(state.explainer.parameters()).device
        content = _read_state(self.out / STATE, device)
        state.explainer.load_state_dict(content["explainer"])
        state.optimiser.load_state_dict(content["optimiser"])
        state.average, state.step, state.best = content["average"], int(content["step"]), float(content["best"])
        state.unrecorded = content["unrecorded"]

    def record_failure(self, batch: StepBatch, step: int) -> Path:
        """Writes down the batch that cannot be learnt from; returns the file."""
        record = {"step": step, "seed": self._settings.training.seed, "places": batch.places, "files": batch.files}
        _write_json(self.out / FAILED, record)
        return self.out / FAILED

    def _save_explainer(self, explainer: Explainer, step: int, name: str) -> None:
        record = {**self._settings.record(), "finished": step}
        cold = self._settings.training.cold
        explainer.config = replace(explainer.config, temperature=cold, training=record)
        explainer.save_pretrained(self.out / name)


def _refuse_run(out: Path) -> None:
    if (out / RUN).exists():
        raise OutputError(f"{out} holds a run already; continue it with --resume, or choose another folder")


def _described(member: TargetModel) -> dict[str, Any]:
    """What else than its weights decides what a model teaches."""
    return {"score": member.score.name, "precision": member.precision, "preprocessing": str(member.preprocessing)}


def _digest_of(samples: Sequence[LabelledImage]) -> str:
    """Of the names, sizes and labels of all images: reading millions of files to be surer would take too long."""

    def size(path: Path | None) -> int:
        return path.stat().st_size if path is not None and path.is_file() else 0

    return result_key(*((sample.source, size(sample.path), sample.label) for sample in samples))


def _check_same(out: Path, description: Mapping[str, Any]) -> None:
    """Refuses to continue a run with other settings: the result would be neither one's."""
    try:
        former = json.loads((out / RUN).read_text(encoding="utf-8"))
        before = dict(_flat(former))
    except (OSError, ValueError, AttributeError, RecursionError):
        raise OutputError(f"{out} holds no run that could be continued") from None
    remove_partials(out)
    if not (out / STATE).is_file():
        raise OutputError(f"the run in {out} was ended before its first save; delete the folder and start again")
    now = json.loads(json.dumps(description))
    for name, value in _flat(now):
        if name not in before or before[name] != value:
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
    except Exception as error:  # a damaged archive may raise anything
        damaged = type(error).__name__
    raise OutputError(
        f"{path} is damaged ({damaged}); start a new run from what was saved beside it: start={path.parent / LAST}"
    )


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with writing(path.parent):
        write_atomically(path, lambda file: file.write(json.dumps(content, indent=1).encode()))


def _flat(description: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in description.items():
        if isinstance(value, dict):
            yield from _flat(value)
        else:
            yield name, value

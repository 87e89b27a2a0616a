"""A trial made ready in the run folder: the network trained, its pictures and their truth written; or found there.

run/truth/NAME/
  network.safetensors
  images/*.png, masks/*.png, images.csv     a data set like any other
  facts.json                                accuracies, and what it all depends on; written last
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchvision.transforms.functional import to_pil_image

from aha.core.disk import result_key, write_atomically, writing
from aha.data.datasets import content_digest
from aha.errors import ModelError
from aha.models import TargetModel
from aha.models.loading.preprocessing import Preprocessing
from aha.models.running.hooks import preserved_random_state
from aha.models.scores import load_score
from aha.truth.networks import MEAN, STD, answer_of, trained
from aha.truth.sets import PREFIX
from aha.truth.trials import Examples, Trial, accuracy

FOLDER, FACTS, WEIGHTS, TABLE = "truth", "facts.json", "network.safetensors", "images.csv"
_VERSION = 2  # of how networks are trained and pictures are made
_ADVICE = "it has not learned, so that its maps would say nothing"


@dataclass(frozen=True)
class Prepared:
    """A trained network and its data set.

    Attributes:
        data: the CSV file of the pictures; None where what matters has no place, so that no map can be scored.
        facts: what was measured of the network.
    """

    name: str
    model: TargetModel
    data: Path | None
    facts: dict[str, float]


def prepare(trial: Trial, out: Path, images: int) -> Prepared:
    """Trains and writes what is not there yet.

    Raises:
        ModelError: The network did not learn.
    """
    folder = out / FOLDER / trial.name
    key = result_key(_VERSION, trial.seed, images, *trial.settings)
    facts = _known_facts(folder, key)
    if facts is None:
        module = trained(trial)
        facts = _measured(trial, module)
        if facts["accuracy"] >= trial.least:
            with writing(folder):
                (folder / "images").mkdir(parents=True, exist_ok=True)
                (folder / "masks").mkdir(exist_ok=True)
                save_file({name: value.contiguous() for name, value in module.state_dict().items()}, folder / WEIGHTS)
                if examples := _right_ones(trial, module, images):
                    _write_pictures(folder, examples)
                record = {"key": key, "weights": content_digest(partial(Path, folder / WEIGHTS)), "facts": facts}
                write_atomically(folder / FACTS, lambda file: file.write(json.dumps(record, indent=1).encode()))
    else:
        with preserved_random_state():
            module = trial.network()
        module.load_state_dict(load_file(folder / WEIGHTS))
    if facts["accuracy"] < trial.least:
        raise ModelError(
            f"the network of {trial.name} is right about {facts['accuracy']:.0%} of new images, "
            f"not at least {trial.least:.0%}; {_ADVICE}"
        )
    data = folder / TABLE
    return Prepared(trial.name, _target(trial, module), data if data.is_file() else None, facts)


def _known_facts(folder: Path, key: str) -> dict[str, float] | None:
    """Facts of an earlier preparation, if they and the weights are those that are wanted."""
    try:
        record = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        is_same = (record["key"], record["weights"]) == (key, content_digest(partial(Path, folder / WEIGHTS)))
        return {str(name): float(value) for name, value in record["facts"].items()} if is_same else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _measured(trial: Trial, module: nn.Module) -> dict[str, float]:
    answer, unseen = answer_of(module), trial.unseen()
    return {"accuracy": accuracy(answer(unseen.pictures), unseen.labels), **trial.facts(answer)}


def _right_ones(trial: Trial, module: nn.Module, images: int) -> Examples | None:
    """The first pictures about which the network is right: a map of a mistake need not show the truth."""
    pictures, labels, truth = trial.explained()
    if truth is None:
        return None
    places = (answer_of(module)(pictures) == labels).nonzero().flatten()[:images]
    return Examples(pictures[places], labels[places], truth[places]) if len(places) else None


def _write_pictures(folder: Path, examples: Examples) -> None:
    pictures, labels, truths = examples
    assert truths is not None
    lines = ["file,label,mask"]
    for index, (picture, label, truth) in enumerate(zip(pictures, labels, truths, strict=True)):
        name = f"{index:04d}.png"
        to_pil_image(picture).save(folder / "images" / name)
        Image.fromarray(truth.to(torch.uint8).numpy()).save(folder / "masks" / name)
        lines.append(f"images/{name},{int(label)},masks/{name}")
    write_atomically(folder / TABLE, lambda file: file.write("\n".join([*lines, ""]).encode()))


def _target(trial: Trial, module: nn.Module) -> TargetModel:
    side, channels = _shape(trial.explained().pictures)
    preprocessing = Preprocessing((side, side), (MEAN,) * channels, (STD,) * channels)
    spec = f"{PREFIX}{trial.name}"
    frozen = module.eval().requires_grad_(False)
    return TargetModel(frozen, spec=spec, preprocessing=preprocessing, score=load_score("softmax"))


def _shape(pictures: Tensor) -> tuple[int, int]:
    return pictures.shape[-1], pictures.shape[1]

"""Training images from folders, tables and shards; which of them a step sees."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

from aha.data.datasets import find_data
from aha.data.images import LabelledImage, read_image
from aha.data.samples import find_samples
from aha.errors import ImageError
from aha.learned.settings import TrainConfig
from aha.learned.training import data
from aha.learned.training.data import StepImages, step_batches
from aha.models import TargetModel, load_model
from fakes import TinyCNN


def step_images(samples: list[LabelledImage], target: TargetModel, *, seed: int) -> StepImages:
    config = TrainConfig(seed=seed, batch_size=4, crop=1.0)
    return StepImages(samples, [target.stated_preprocessing()] * 100, config)


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


@pytest.fixture
def shards(folder: Path, tmp_path: Path) -> Path:
    place = tmp_path / "shards"
    place.mkdir()
    for number in range(2):
        with tarfile.open(place / f"train-{number:03d}.tar", "w") as archive:
            for index in range(number * 3, number * 3 + 3):
                add(archive, f"dir/{index:02d}.png", (folder / f"{index:02d}.png").read_bytes())
                label = {".cls": str(index % 6).encode(), ".json": json.dumps({"label": index % 6}).encode()}
                suffix = ".cls" if number == 0 else ".json"
                add(archive, f"dir/{index:02d}{suffix}", label[suffix])
    return place


def test_a_flat_folder_has_no_labels(folder: Path, target: TargetModel) -> None:
    found = find_samples(folder, target)
    assert len(found) == 40 and all(sample.label is None for sample in found)


def test_folders_mean_the_classes_that_they_mean_elsewhere(folder: Path, tmp_path: Path) -> None:
    """By the model's names where it has them; numbered by the alphabet, training would teach other classes."""
    for index, name in enumerate("cab"):
        (tmp_path / "classes" / name).mkdir(parents=True)
        shutil.copy(folder / f"0{index}.png", tmp_path / "classes" / name)
    expected = {None: {"a": 0, "b": 1, "c": 2}, ("b", "c", "a"): {"a": 2, "b": 0, "c": 1}}
    for names, labels in expected.items():
        model = load_model(TinyCNN(classes=3), input_size=32, mean=[0.5] * 3, std=[0.5] * 3, class_names=names)
        found = find_samples(tmp_path / "classes", model)
        assert {Path(sample.file).parent.name: sample.label for sample in found} == labels
        judged = find_data(str(tmp_path / "classes"), model)
        assert [sample.label for sample in found] == [image.label for image in judged]


@pytest.mark.parametrize("how", ["folder", "range", "one"])
def test_shards_hold_what_the_files_held(how: str, shards: Path, folder: Path, target: TargetModel) -> None:
    source = {"folder": shards, "range": shards / "train-{000..001}.tar", "one": shards / "train-001.tar"}[how]
    found = find_samples(source, target)
    first = 3 if how == "one" else 0
    assert [sample.label for sample in found] == list(range(first, 6))
    for index, sample in enumerate(found, start=first):
        original = read_image(folder / f"{index:02d}.png")
        assert read_image(sample.read()).tobytes() == original.tobytes()


def test_a_shard_that_is_none_is_one_line(tmp_path: Path, target: TargetModel) -> None:
    (tmp_path / "x.tar").write_bytes(b"this is no archive" * 100)
    with pytest.raises(ImageError, match="cannot read the shard"):
        find_samples(tmp_path / "x.tar", target)
    with pytest.raises(ImageError, match="cannot read the shard"):
        find_samples(f"shards:{tmp_path}/y-{{0..1}}.tar", target)


def test_every_epoch_sees_every_image_once_in_its_own_order(target: TargetModel, folder: Path) -> None:
    samples = find_samples(folder / "labels.csv", target)
    images = step_images(samples, target, seed=3)
    epochs = [[images[place][3] for place in range(e * 40, e * 40 + 40)] for e in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(sample.file for sample in samples)
    assert epochs[0] != epochs[1]
    other = step_images(samples, target, seed=4)
    assert [other[place][3] for place in range(40)] != epochs[0]


@pytest.mark.parametrize("workers", [0, 1])
def test_processes_share_a_step_and_may_start_anywhere(workers: int, target: TargetModel, folder: Path) -> None:
    samples = find_samples(folder / "labels.csv", target)
    images = step_images(samples, target, seed=0)
    whole = list(step_batches(images, range(12), 4, (0, 1), 0))
    late = list(step_batches(images, range(10, 12), 4, (0, 1), workers))
    assert torch.equal(late[0].inputs, whole[10].inputs) and late[1].files == whole[11].files
    halves = [list(step_batches(images, range(12), 4, (rank, 2), workers)) for rank in range(2)]
    for step in range(12):
        assert halves[0][step].places + halves[1][step].places == whole[step].places
        assert torch.equal(torch.cat([half[step].inputs for half in halves]), whole[step].inputs)


def test_a_damaged_file_is_replaced_by_the_next(target: TargetModel, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"\x89PNG broken")
    good = LabelledImage("00", str(folder / "00.png"), 0)
    images = step_images([LabelledImage("bad", str(tmp_path / "bad.png"), 1), good], target, seed=0)
    assert [images[place][3] for place in range(4)] == [good.file] * 4
    hopeless = step_images([LabelledImage("bad", str(tmp_path / "bad.png"), 1)], target, seed=0)
    with pytest.raises(ImageError, match="10 images in a row cannot be read"):
        hopeless[0]


def test_no_more_processes_read_ahead_than_there_are_cores_and_steps(
    target: TargetModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader starts all of its processes at once: `workers=99999` used up the machine's memory."""
    started: list[int] = []

    def loader(*_: Any, num_workers: int, **__: Any) -> list[Any]:
        started.append(num_workers)
        return []

    monkeypatch.setattr(data, "DataLoader", loader)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    images = step_images(find_samples(folder / "labels.csv", target), target, seed=0)
    for workers, steps in ((0, 100), (2, 100), (99999, 100), (99999, 2)):
        list(step_batches(images, range(steps), 4, (0, 1), workers))
    assert started == [0, 2, 3, 2]

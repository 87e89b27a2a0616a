"""Generated sets: their truth, their marks, and the way from a name to a table."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from aha.core.seeds import generator_of
from aha.data.datasets import find_data
from aha.errors import ModelError, SpecError
from aha.models import TargetModel, load_model
from aha.truth import trials_of
from aha.truth.pasted import Pasted
from aha.truth.photographs import Photographs, read_photographs, some_of_each
from aha.truth.prepared import FACTS, WEIGHTS, prepare
from aha.truth.run import TruthLine, area_under_roc, detection
from aha.truth.scenes import KINDS, SIDES, Kind, Scene
from aha.truth.shortcuts import MARKS, Mark, Shortcut
from aha.truth.trials import accuracy
from command_line import assert_refused, run


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_class_shows_in_the_truth_alone(kind: Kind, side: int) -> None:
    scene = Scene("scene", kind, "white", side)
    first = scene.drawn(40, generator_of(3))
    again = scene.drawn(40, generator_of(3))
    assert torch.equal(first.pictures, again.pictures) and first.truth is not None
    assert set(first.labels.tolist()) == {0, 1} and first.pictures.shape == (40, 1, side, side)
    cells = 4 if kind == "rotated" else 8
    thickness = max(1, side // 16) if kind == "rotated" else side // 8
    assert (first.truth.sum(dim=(1, 2)) == cells * thickness**2).all()
    signal, truth = scene._signals(first.labels, generator_of(0))
    if side == 8 or kind == "xor":  # elsewhere edges are blurred, and reach a little beyond
        assert (signal[~truth] == 0).all() and (signal != 0).any(dim=(1, 2)).all()


def test_xor_needs_both_patterns() -> None:
    scene = Scene("scene", "xor", "white", 8)
    labels = torch.randint(2, (400,), generator=generator_of(0))
    signal, _ = scene._signals(labels, generator_of(1))
    t_sign, l_sign = signal[:, 1, 1], signal[:, 4, 5]
    assert torch.equal((t_sign != l_sign).long(), labels)
    assert abs(float(t_sign[labels == 1].mean())) < 0.2 and abs(float(l_sign[labels == 1].mean())) < 0.2


def coloured(count: int = 40, side: int = 64) -> Photographs:
    numbers = generator_of(0)
    objects = torch.zeros(count, side, side, dtype=torch.bool)
    objects[:, 20:40, 20:40] = True
    labels = torch.arange(count) % 2
    pictures = torch.rand(count, 3, side, side, generator=numbers)
    return Photographs(pictures, labels, objects, "key")


@pytest.mark.parametrize("mark", MARKS)
def test_marks_change_their_truth_and_nothing_else(mark: Mark) -> None:
    trial = Shortcut("shortcut", mark, 1.0, coloured())
    shown = trial.explained()
    assert (shown.labels == trial.marked_class).all()
    plain = trial.photographs.pictures[trial.photographs.part(unseen=True)]
    plain = plain[trial.photographs.labels[trial.photographs.part(unseen=True)] == 1]
    moved = (shown.pictures - plain).abs().amax(dim=1) > 1 / 255
    if mark == "cast":  # everywhere, so that there is no place to be found
        assert shown.truth is None and moved.float().mean() > 0.9
        return
    assert shown.truth is not None and not (moved & ~shown.truth).any() and moved[shown.truth].float().mean() > 0.8
    places = {tuple(truth.nonzero()[0].tolist()) for truth in shown.truth}
    assert (len(places) > 1) == (mark == "watermark")


def test_strength_is_the_share_of_one_class_that_carries_the_mark() -> None:
    trial = Shortcut("shortcut", "tag", 0.5, Photographs(torch.zeros(400, 3, 64, 64), torch.arange(400) % 2, None, ""))
    drawn = [trial.batch(generator_of(seed)) for seed in range(20)]
    carries = torch.cat([batch.pictures.amax(dim=(1, 2, 3)) > 0 for batch in drawn])
    labels = torch.cat([batch.labels for batch in drawn])
    assert not carries[labels == 0].any() and 0.4 < carries[labels == 1].float().mean() < 0.6


def test_facts_know_a_network_that_sees_nothing_but_the_mark() -> None:
    trial = Shortcut("shortcut", "tag", 1.0, Photographs(torch.zeros(40, 3, 64, 64), torch.arange(40) % 2, None, ""))
    facts = trial.facts(lambda pictures: (pictures.amax(dim=(1, 2, 3)) > 0.5).long())
    assert facts == {"strength": 1.0, "accuracy_without": 0.5, "accuracy_with": 1.0, "turned": 1.0}
    assert trial.facts(lambda pictures: torch.zeros(len(pictures), dtype=torch.long))["turned"] == 0


def test_pasted_objects_stand_before_other_backgrounds() -> None:
    photographs = coloured()
    examples = Pasted("pasted", photographs).unseen()
    assert examples.truth is not None and bool(examples.truth.any(dim=(1, 2)).all())
    own = photographs.pictures[photographs.part(unseen=True)]
    mirrored = torch.stack([own, own.flip(-1)])  # (2, n, 3, S, S)
    nearest = (mirrored - examples.pictures).abs().amax(dim=2)[:, examples.truth].amin(dim=0)
    assert float(nearest.max()) <= 0.5 / 255 + 1e-6
    behind = (mirrored - examples.pictures).abs().amax(dim=2)[:, ~examples.truth].amin(dim=0)
    assert float((behind > 1 / 255).float().mean()) > 0.5


def test_area_under_roc() -> None:
    assert area_under_roc([True, False, True, False], [3, 1, 2, 0]) == 1
    assert area_under_roc([True, False], [1, 1]) == 0.5
    assert area_under_roc([True, True], [1, 2]) is None


def test_detection_takes_networks_that_are_clearly_of_either_kind() -> None:
    alone = [TruthLine(f"shortcut-tag-{n}-0", "", "turned", t, None, 1) for n, t in enumerate((0.9, 0.2, 0.0))]
    maps = [TruthLine(f"shortcut-tag-{n}-0", "m", "mass_in_truth", v, 0.1, 9) for n, v in enumerate((0.5, 0.9, 0.4))]
    (found,) = detection(alone, maps)
    assert (found.set, found.metric, found.mean, found.n) == ("shortcut-tag", "shortcut_auroc", 1.0, 2)


@dataclass(frozen=True)
class Quick(Scene):
    """A scene that takes a second to learn."""

    wanted: float = 0.8
    taken: int = 60

    @property
    def strength(self) -> float:
        return 0.8

    @property
    def steps(self) -> int:
        return self.taken

    @property
    def least(self) -> float:
        return self.wanted


def test_prepared_networks_are_found_again_and_damaged_ones_are_not_used(tmp_path: Path) -> None:
    trial = Quick("quick", "linear", "white", 8)
    before = torch.random.get_rng_state()
    first = prepare(trial, tmp_path, 3)
    assert torch.equal(torch.random.get_rng_state(), before) and first.facts["accuracy"] > 0.8
    folder = tmp_path / "truth" / "quick"
    written = (folder / WEIGHTS).stat().st_mtime_ns
    again = prepare(trial, tmp_path, 3)
    assert again.model.digest == first.model.digest and (folder / WEIGHTS).stat().st_mtime_ns == written
    assert first.data is not None and len(first.data.read_text().splitlines()) == 4
    (image, *_) = find_data(f"csv:{first.data}", first.model)
    assert image.true_mask().sum() == 8 and first.model.outputs(torch.zeros(1, 1, 8, 8)).shape == (1, 2)
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-4] + b"\0\0\0\0")
    assert prepare(trial, tmp_path, 3).model.digest == first.model.digest  # trained again, to the same numbers
    assert json.loads((folder / FACTS).read_text())["facts"] == first.facts


def test_a_network_that_did_not_learn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has not learned"):
        prepare(Quick("slow", "xor", "white", 8, wanted=0.99, taken=2), tmp_path, 3)
    assert not (tmp_path / "truth").exists()


def test_names() -> None:
    assert [trial.name for trial in trials_of("truth:xor-white-8", None)] == ["xor-white-8"]
    with pytest.raises(SpecError, match="did you mean xor-white-8"):
        trials_of("truth:xor-whit-8", None)
    with pytest.raises(SpecError, match="known: linear-white-8, "):
        trials_of("truth:list", None)
    with pytest.raises(SpecError, match="needs photographs"):
        trials_of("truth:shortcut-tag", None)


def test_photographs_of_a_folder_per_class(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(4):
            Image.new("RGB", (90, 70), (number * 20, 0, 0)).save(tmp_path / name / f"{number}.png")
    found = read_photographs(str(tmp_path), 64, with_objects=False)
    assert found.pictures.shape == (8, 3, 64, 64) and found.classes == 2 and len(found.part(unseen=True)) == 2
    with pytest.raises(SpecError, match="no masks or boxes"):
        read_photographs(str(tmp_path), 64, with_objects=True)
    with pytest.raises(SpecError, match="two classes"):
        read_photographs(str(tmp_path / "cat"), 64, with_objects=False)


def test_from_a_name_to_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import aha.truth.run as module

    quick = Quick("linear-white-8", "linear", "white", 8)
    monkeypatch.setattr(module, "trials_of", lambda *_: [quick])
    words = ("bench", "truth:linear-white-8", "--method", "gradient", "--method", "random_map", "--limit", "6")
    done = run(*words, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    with (tmp_path / "run" / "truth.csv").open() as file:
        lines = list(csv.DictReader(file))
    by_method = {row["method"]: row for row in lines if row["metric"] == "precision_at_k"}
    assert (
        float(by_method["gradient"]["mean"]) > float(by_method["random_map"]["mean"])
        and by_method["gradient"]["n"] == "6"
    )
    assert (tmp_path / "run" / "report.html").is_file()
    again = run(*words, "--out", tmp_path / "run", "--json", "--quiet", "--no-report")
    assert json.loads(again.stdout)["lines"][0]["metric"] == "accuracy"
    dry = run(*words, "--dry-run", "--json")
    assert json.loads(dry.stdout)[0]["cells"] == 12
    assert_refused(run("bench", "truth:linear-white-8", "--score", "logit", "--out", tmp_path / "x"), "leave out score")
    assert_refused(run("bench", "truth:linear-white-8"), "--out RUN")


def test_funnybirds(tmp_path: Path) -> None:
    (tmp_path / "dataset_test.json").write_text(json.dumps([{"class_idx": 1, "beak_model": "a"}, {"class_idx": 0}]))
    for number, label in enumerate((1, 0)):
        for folder in ("test", "test_part_map"):
            place = tmp_path / folder / str(label)
            place.mkdir(parents=True)
            values = np.zeros((8, 8, 4), dtype=np.uint8)
            values[..., 3] = 255
            values[0, 0, :3], values[1, :2, :3], values[2, 0, :3] = (255, 255, 0), (0, 0, 255), (9, 9, 9)
            Image.fromarray(values).save(place / f"{number:06d}.png")
    model: TargetModel = load_model(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2)), input_size=8, mean=(0.5,) * 3, std=(0.5,) * 3
    )
    images = find_data(f"funnybirds:{tmp_path}", model)
    assert [(image.label, int(image.true_mask().sum())) for image in images] == [(1, 3), (0, 3)]


def test_classes_are_drawn_evenly_and_count_alike() -> None:
    labels = torch.tensor([0] * 90 + [1] * 10)
    places = torch.arange(100) + 5
    drawn = some_of_each(places, labels, 4000, torch.Generator().manual_seed(0))
    assert float((drawn >= 95).float().mean()) == pytest.approx(0.5, abs=0.03) and len(drawn.unique()) == 100
    assert accuracy(torch.zeros(100), labels) == 0.5 and accuracy(labels, labels) == 1.0

"""Training: it learns, also for classes it never saw; it resumes exactly; several processes are one; it fails well."""

from __future__ import annotations

import errno
import itertools
import json
import shutil
import subprocess
import sys
import textwrap
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from colour_world import SIDE, SQUARE, ColourNet, square_image
from PIL import Image
from torch import Tensor

import aha
import aha.learned.training.loop as training
from aha.data.images import read_image
from aha.errors import AhaError, AhaWarning, ImageError, ModelError, OutputError, SpecError
from aha.learned.explainer import Explainer
from aha.learned.settings import Design, Settings, load_settings
from aha.learned.training.checkpoints import RunFolder
from aha.learned.training.data import split_samples
from aha.learned.training.loop import TrainingError, learning_rate, temperature, train
from aha.learned.training.metrics_log import Logbook
from aha.learned.training.references import drawn_references
from aha.learned.training.sampling import Choices, explained_classes
from aha.learned.training.validation import areas, hard_curves
from aha.models import TargetModel, load_model
from aha.perturb.rearranged import Shuffled
from aha.perturb.references import Black, Mean, Noise
from fakes import changes, snapshot, surroundings

QUICK = ["steps=6", "batch_size=4", "save_every=1", "validation_images=4", "validation_steps=4", "stride=4", "width=16"]


def settings(*more: str) -> Settings:
    return load_settings("small", [*QUICK, "grids=[4,8]", *more])


def records(out: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "images_per_second"} for line in lines]


def weights(explainer: Explainer) -> dict[str, Tensor]:
    return explainer.state_dict()


def test_it_learns_where_the_evidence_is_also_for_classes_it_never_saw(
    target: TargetModel, folder: Path, tmp_path: Path, monkeypatch
) -> None:
    """Trained on six colours; the maps of the other two must find their squares. They start from noise."""
    explainer = Explainer.for_target(target, Design(stride=4, width=32))
    with torch.no_grad():
        explainer.decoder.evidence_gain.zero_()
        for head in explainer.decoder.heads:
            head.draw.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    unseen = [square_image(6 + index % 2, 100 + index) for index in range(8)]
    inputs = target.to_inputs(torch.stack([pixels for pixels, _ in unseen]))
    classes = torch.tensor([6 + index % 2 for index in range(8)])
    assert target.outputs(inputs).argmax(dim=1).tolist() == classes.tolist()

    def scores(chosen: Explainer) -> float:
        maps = chosen.maps(target, inputs, classes)
        return float(areas(hard_curves(target, inputs, classes, maps, [Black()], 8), 32 * 32)["ins_del"].mean())

    def hits(chosen: Explainer) -> int:
        """On how many images does the square stand out from the rest by a deviation of the map?"""
        maps = chosen.maps(target, inputs, classes)
        squares = [m[y : y + SQUARE, x : x + SQUARE] for m, (_, (y, x)) in zip(maps, unseen, strict=True)]
        return sum(float(s.mean() - m.mean()) > float(m.std()) for s, m in zip(squares, maps, strict=True))

    before = scores(explainer)
    monkeypatch.setattr(training, "fresh_explainer", lambda *_: explainer)
    more = ["steps=120", "learning_rate=3e-3", "references=black,mean", "save_every=60"]
    trained = train(target, folder / "labels.csv", tmp_path / "run", settings=settings(*more))
    assert scores(trained) > before + 0.2
    assert hits(trained) >= 7


def test_the_target_and_the_surroundings_are_left_alone(target: TargetModel, folder: Path, tmp_path: Path) -> None:
    before = (snapshot(target.module), surroundings())
    train(target, folder / "labels.csv", tmp_path / "run", settings=settings("steps=2"))
    after = (snapshot(target.module), surroundings())
    assert not changes(before[0], after[0]) and not changes(before[1], after[1])


def test_a_resumed_run_equals_an_uninterrupted_one(target: TargetModel, folder: Path, tmp_path: Path) -> None:
    chosen = settings("ema=0.9", "validate_every=2", "noise=1.0")
    whole = train(target, folder / "labels.csv", tmp_path / "whole", settings=chosen)

    class Interrupted(KeyboardInterrupt):
        pass

    def interrupt(record: dict[str, float]) -> None:
        if record["step"] == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(target, folder / "labels.csv", tmp_path / "parts", settings=chosen, on_step=interrupt)
    with (tmp_path / "parts" / "metrics.jsonl").open("a") as log:
        log.write('{"step": 3, "loss":')  # killed while writing
    resumed = train(target, folder / "labels.csv", tmp_path / "parts", settings=chosen, resume=True)
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    assert [record["step"] for record in records(tmp_path / "parts")] == list(range(6))
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[name]), name


@pytest.mark.parametrize(
    ("owner", "work", "call", "every"),
    [
        (training, "validation_curves", 1, 0),
        (training, "validation_curves", 2, 2),
        (RunFolder, "save_best", 1, 0),
        (RunFolder, "save_best", 1, 2),
        (Logbook, "add", 6, 0),
    ],
)
def test_a_step_that_was_interrupted_after_its_update_is_measured_and_recorded(
    owner: Any, work: str, call: int, every: int, target: TargetModel, folder: Path, tmp_path: Path, monkeypatch
) -> None:
    chosen, real, calls = settings("ema=0.9", f"validate_every={every}", "save_every=4"), getattr(owner, work), count(1)

    def interrupted(*args: Any) -> Any:
        if next(calls) == call:
            raise KeyboardInterrupt
        return real(*args)

    whole = train(target, folder / "labels.csv", tmp_path / "whole", settings=chosen)
    monkeypatch.setattr(owner, work, interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(target, folder / "labels.csv", tmp_path / "parts", settings=chosen)
    learnt = torch.load(tmp_path / "parts" / "state.pt", weights_only=True)["step"]
    assert learnt == (call * every if every else 6), "the update is not lost"
    resumed = train(target, folder / "labels.csv", tmp_path / "parts", settings=chosen, resume=True)
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    assert resumed.config == whole.config
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[name]), name


def test_two_processes_are_one(folder: Path, tmp_path: Path) -> None:
    """The same losses and weights as one process with the same global batch."""
    script = tmp_path / "run.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}
            from colour_world import ColourNet, SIDE
            from aha.learned.settings import load_settings
            from aha.learned.training.loop import train
            from aha.models import load_model
            import torch
            torch.set_num_threads(1)
            target = load_model(ColourNet().eval(), input_size=SIDE, mean=[0.5] * 3, std=[0.5] * 3, fit="squash")
            settings = load_settings("small", {[*QUICK, "grids=[4,8]", "steps=3"]!r})
            train(target, {str(folder / "labels.csv")!r}, sys.argv[1], settings=settings)
            """
        )
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0"]
    launcher += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    for command, name in (([sys.executable], "one"), (launcher, "two")):
        done = subprocess.run(
            [*command, str(script), str(tmp_path / name)], capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr
    one, two = records(tmp_path / "one"), records(tmp_path / "two")
    assert len(one) == len(two) == 3
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys()
        assert all(a[name] == pytest.approx(b[name], rel=2e-4, abs=2e-5) for name in a)
    first, second = (weights(Explainer.from_pretrained(tmp_path / name / "last")) for name in ("one", "two"))
    for name, value in first.items():
        assert torch.allclose(value, second[name], atol=1e-4), name


def test_the_average_of_the_weights_is_what_is_kept(target: TargetModel, folder: Path, tmp_path: Path) -> None:
    plain = train(target, folder / "labels.csv", tmp_path / "plain", settings=settings("ema=0"))
    averaged = train(target, folder / "labels.csv", tmp_path / "averaged", settings=settings("ema=0.99"))
    state = torch.load(tmp_path / "averaged" / "state.pt", weights_only=True)
    for name, value in weights(plain).items():
        assert torch.equal(state["explainer"][name], value), "averaging must not change the steps themselves"
    assert any(not torch.equal(value, weights(averaged)[name]) for name, value in weights(plain).items())
    assert torch.equal(state["average"]["decoder.evidence_gain"], weights(averaged)["decoder.evidence_gain"])


class Backwards(ColourNet):
    """The same answers, but the classifier reads the features with their sign changed."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.head.weight.neg_()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(-self.mix(self.local(self.match(x).relu())).mean(dim=(2, 3)))


@pytest.mark.parametrize(("kind", "sign"), [(ColourNet, 1), (Backwards, -1)])
def test_evidence_that_points_away_is_turned_round(
    kind: type[ColourNet], sign: int, folder: Path, tmp_path: Path
) -> None:
    model = load_model(kind().eval(), input_size=32, mean=[0.5] * 3, std=[0.5] * 3, fit="squash")
    trained = train(model, folder / "labels.csv", tmp_path / "run", settings=settings("steps=1", "evidence=forward"))
    assert trained.decoder.evidence_gain.item() == pytest.approx(sign, abs=0.01)


def test_a_refused_start_leaves_no_run_behind(target: TargetModel, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no explainer at"):
        train(target, folder / "labels.csv", tmp_path / "run", settings=settings(), start="nobody/nothing")
    assert not (tmp_path / "run").exists()


def test_an_explainer_may_start_from_another(target: TargetModel, folder: Path, tmp_path: Path) -> None:
    data = folder / "labels.csv"
    first = train(target, data, tmp_path / "first", settings=settings())
    still = train(
        target,
        data,
        tmp_path / "still",
        settings=settings("steps=1", "learning_rate=0.0"),
        start=tmp_path / "first/last",
    )
    last = Explainer.from_pretrained(tmp_path / "first" / "last")
    assert all(torch.equal(value, weights(still)[name]) for name, value in weights(last).items())
    with pytest.raises(ModelError, match="has other sizes; use the same encoder, stages and width"):
        train(target, data, tmp_path / "wide", settings=settings("width=32"), start=tmp_path / "first/last")
    assert first.config == Explainer.from_pretrained(tmp_path / "first" / "explainer").config


# The schedule and what is drawn


def test_schedules() -> None:
    config = load_settings("small", ["steps=100", "warm_up=0.1", "learning_rate=0.01"]).training
    rates = [learning_rate(config, step) for step in range(100)]
    assert rates[0] == pytest.approx(0.001) and max(rates) == pytest.approx(0.01) and rates.index(max(rates)) <= 10
    assert all(a > b for a, b in itertools.pairwise(rates[10:])) and rates[-1] < 1e-5
    heat = [temperature(config, step) for step in range(100)]
    assert heat[0] == pytest.approx(0.1) and heat[-1] == pytest.approx(0.01)
    assert heat[50] / heat[49] == pytest.approx(heat[1] / heat[0])


def test_choices_follow_from_the_place_alone() -> None:
    config = load_settings("small", ["classes=[0.5, 0.3, 0.2]"]).training
    many = Choices.drawn(config, range(3000))
    some = Choices.drawn(config, [7, 2999])
    for name in ("flips", "kinds", "references"):
        values = getattr(many, name)
        assert getattr(some, name).tolist() == [values[7].item(), values[2999].item()]
    shares = [float((many.kinds == kind).float().mean()) for kind in range(3)]
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.04)
    assert float(many.flips.float().mean()) == pytest.approx(0.5, abs=0.04)
    assert sorted(many.references.unique().tolist()) == [0, 1, 2]
    assert not Choices.drawn(load_settings("small", ["flip=False"]).training, range(50)).flips.any()


def test_each_image_draws_its_own_noise() -> None:
    config = load_settings("small", ["references=black,noise,shuffled(grid=4),noise"]).training
    places = list(range(400))
    chosen = drawn_references(config, places, Choices.drawn(config, places).references)
    names = [one.name for one in chosen]
    assert [names.count(name) / 400 for name in ("black", "noise", "shuffled")] == pytest.approx(
        [0.25, 0.5, 0.25], abs=0.07
    )
    seeds = [one.seed for one in chosen if isinstance(one, Noise)]
    assert len(set(seeds)) == len(seeds) and {one.grid for one in chosen if isinstance(one, Shuffled)} == {4}
    assert drawn_references(config, [7], Choices.drawn(config, [7]).references) == [chosen[7]]


WIDE = "references=black,mean,blur,noise,shuffled,own_mean,neighbours,imputed,inpainted(shrink=2)"


@pytest.mark.parametrize("form", ["own", "universal"])
def test_a_wide_choice_of_references(form: str, target: TargetModel, folder: Path, tmp_path: Path) -> None:
    data, more = folder / "labels.csv", [WIDE, f"form={form}", "validation_images=2"]
    first = train(target, data, tmp_path / "first", settings=settings(*more))
    assert first.config.training["references"] == WIDE.partition("=")[2].split(",")
    assert "`neighbours`, `imputed`" in (tmp_path / "first" / "explainer" / "README.md").read_text()
    again = train(target, data, tmp_path / "again", settings=settings(*more))
    assert records(tmp_path / "first") == records(tmp_path / "again")
    assert all(torch.equal(value, weights(again)[name]) for name, value in weights(first).items())
    usual = tmp_path / "usual"
    train(target, data, usual, settings=settings(f"form={form}", "validation_images=2"))
    assert records(usual) != records(tmp_path / "first")
    assert train(target, data, tmp_path / "on", settings=settings(*more), start=usual / "last").config.scores


@pytest.mark.parametrize(
    ("reference", "line"),
    [
        ("neighbours", "neighbours takes patches of image files, and these data have fewer than two"),
        ("neighbours(files=('nowhere.png',))", "nowhere.png"),
        ("adaptive_blur", "some images have no adaptive_blur"),
    ],
)
def test_a_reference_that_cannot_be_made_is_refused_first(
    reference: str, line: str, target: TargetModel, tmp_path: Path
) -> None:
    pictures = [Image.new("RGB", (SIDE, SIDE), (40 * index,) * 3) for index in range(6)]
    with pytest.raises(AhaError, match=line):
        train(target, pictures, tmp_path / "run", settings=settings(f"references=black,{reference}"))
    assert not (tmp_path / "run").exists()


def test_the_explained_class() -> None:
    outputs = torch.tensor([[0.1, 3.0, 2.0]] * 4)
    labels, kinds = torch.tensor([0, 0, -1, 0]), torch.tensor([0, 1, 1, 2])
    assert explained_classes(outputs, labels, kinds).tolist() == [1, 0, 1, 2]


def test_validation_measures_what_the_metrics_measure(target: TargetModel) -> None:
    pixels = torch.stack([square_image(c, c)[0] for c in range(3)])
    inputs, classes, maps = target.to_inputs(pixels), torch.arange(3), torch.rand(3, 32, 32)
    found = areas(hard_curves(target, inputs, classes, maps, [Black(), Mean()], 7), 32 * 32)
    for name, values in found.items():
        metric = f"{name}(steps=7, references=(black, mean))"
        scores = aha.evaluate(target, inputs, maps, metric, target=[[c] for c in range(3)])
        each = [scores.values(scores.rows[0].method, name, reference) for reference in ("black", "mean")]
        assert values.tolist() == pytest.approx([(a + b) / 2 for a, b in zip(*each, strict=True)], abs=1e-5)


# What goes wrong


def test_a_loss_that_is_not_finite_stops_with_the_batch_recorded(
    target: TargetModel, folder: Path, tmp_path: Path, monkeypatch
) -> None:
    whole = training.training_step

    def poisoned(*args: object) -> dict[str, Tensor]:
        parts = whole(*args)  # type: ignore[arg-type]
        if args[-1] == 1:
            parts["loss"] = parts["loss"] * float("nan")
        return parts

    monkeypatch.setattr(training, "training_step", poisoned)
    with pytest.raises(TrainingError, match="not finite at step 1"):
        train(target, folder / "labels.csv", tmp_path / "run", settings=settings())
    batch = json.loads((tmp_path / "run" / "failed_batch.json").read_text())
    assert batch["step"] == 1 and len(batch["files"]) == 4 and all(Path(file).is_file() for file in batch["files"])


def test_a_full_disk_is_one_line_and_the_last_state_stays_whole(
    target: TargetModel, folder: Path, tmp_path: Path, monkeypatch
) -> None:
    out, real = tmp_path / "run", torch.save

    def full(state: dict[str, object], file: object) -> None:
        if state["step"] == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(state, file)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OutputError, match="No space left"):
        train(target, folder / "labels.csv", out, settings=settings())
    assert torch.load(out / "state.pt", weights_only=True)["step"] == 2
    assert not list(out.glob(".*partial"))
    monkeypatch.undo()
    train(target, folder / "labels.csv", out, settings=settings(), resume=True)
    assert len(records(out)) == 6


def test_a_held_out_picture_that_cannot_be_read_is_left_out_with_one_warning(
    target: TargetModel, folder: Path, tmp_path: Path, monkeypatch
) -> None:
    chosen, data = settings("validate_every=2"), folder / "labels.csv"
    samples, held_out = split_samples(data, None, target, chosen.training)
    with monkeypatch.context() as patched:
        patched.setattr(training, "split_samples", lambda *_: (samples, held_out[1:]))
        train(target, data, tmp_path / "without", settings=chosen)
    Path(held_out[0].file).write_bytes(b"\x89PNG broken")

    def interrupt(record: dict[str, float]) -> None:
        if record["step"] == 3:
            raise KeyboardInterrupt

    line = f"held-out images that cannot be read are left out, 1 of 4: {held_out[0].file}"
    with pytest.warns(AhaWarning, match=line) as warned, pytest.raises(KeyboardInterrupt):
        train(target, data, tmp_path / "with", settings=chosen, on_step=interrupt)
    assert len(warned) == 1
    with pytest.warns(AhaWarning, match=line):
        train(target, data, tmp_path / "with", settings=chosen, resume=True)
    assert records(tmp_path / "with") == records(tmp_path / "without")


def test_held_out_pictures_none_of_which_can_be_read_are_refused(
    target: TargetModel, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(ImageError, match=r"no held-out image can be read, give others as validation: .*bad.png"):
        train(target, folder, tmp_path / "run", settings=settings(), validation=tmp_path / "bad.png")
    assert not (tmp_path / "run").exists()


def test_the_sign_of_the_evidence_is_found_without_pictures_that_cannot_be_read(
    target: TargetModel, folder: Path, tmp_path: Path
) -> None:
    chosen = settings("steps=1", "evidence=forward")
    for sample in split_samples(folder, None, target, chosen.training)[0][:9]:
        Path(sample.file).write_bytes(b"\x89PNG broken")
    trained = train(target, folder, tmp_path / "run", settings=chosen)
    assert trained.decoder.evidence_gain.item() == pytest.approx(1, abs=0.01)


def test_runs_are_neither_overwritten_nor_continued_with_other_settings(
    target: TargetModel, folder: Path, tmp_path: Path
) -> None:
    data, out = folder / "labels.csv", tmp_path / "run"
    with pytest.raises(OutputError, match="no run that could be continued"):
        train(target, data, out, settings=settings("steps=1"), resume=True)
    train(target, data, out, settings=settings("steps=1"))
    with pytest.raises(OutputError, match="holds a run already"):
        train(target, data, out, settings=settings("steps=1"))
    with pytest.raises(OutputError, match="has steps=1, not 2"):
        train(target, data, out, settings=settings("steps=2"), resume=True)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("stepz=3", "no setting 'stepz'; there are"),
        ("steps", "write key=value"),
        ("steps=many", "steps must be a whole number of at least 1, not 'many'"),
        ("steps=-1", "must be a whole number of at least 1, not"),
        ("batch_size=0", "must be a whole number of at least 1, not"),
        ("width=0", "must be a whole number of at least 1, not"),
        ("perturbations=0", "must be a whole number of at least 1, not"),
        ("save_every=0", "must be a whole number of at least 1, not"),
        ("cold=0", "must be a number above 0, not"),
        ("hot=1e999", "must be a number above 0, not"),
        ("weight_decay=-1.0", "must be a number of at least 0, not"),
        ("grids=(0, 3)", "must be a list of 2 whole numbers of at least 1, not"),
        ("grids=(9, 3)", "in this order"),
        ("grids=(1.5, 3)", "must be a list of 2 whole numbers of at least 1, not"),
        ("classes=(0, 0, 0)", "one at least is not 0"),
        ("conditioning=both", "must be one of 'auto', 'head', 'embedding', not 'both'"),
        ("grids=7", "must be a list of 2 whole numbers of at least 1, not 7"),
        ("references=purple", "purple"),
        ("references=()", "references must be at least one"),
        ("references=3", "references must be at least one"),
    ],
)
def test_bad_settings_are_one_line(change: str, line: str) -> None:
    with pytest.raises(SpecError, match=line):
        load_settings("small", [change])


def test_bad_data_is_one_line(target: TargetModel, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(AhaError, match="does not exist"):
        train(target, tmp_path / "nowhere", out)
    classes = tmp_path / "classes"
    for name in "abc":
        (classes / name).mkdir(parents=True)
        shutil.copy(folder / "00.png", classes / name)
    with pytest.raises(ImageError, match="3 folders with images, but the model has 8 classes"):
        train(target, classes, out)
    (tmp_path / "wrong.csv").write_text("file,label\ndata/00.png,3\ndata/01.png,11\n")
    with pytest.raises(AhaError, match=r"class 11 does not exist; .* has classes 0 to 7"):
        train(target, tmp_path / "wrong.csv", out)
    assert not out.exists()


def test_two_runs_cannot_share_a_folder(target: TargetModel, folder: Path, tmp_path: Path) -> None:
    refused: list[str] = []

    def try_another(record: dict[str, float]) -> None:
        if record["step"] == 1:
            with pytest.raises(OutputError) as error:
                train(target, folder, tmp_path / "run", settings=settings(), resume=True, progress=False)
            refused.append(str(error.value))

    train(target, folder, tmp_path / "run", settings=settings("steps=3"), on_step=try_another, progress=False)
    assert len(refused) == 1 and "another process is writing to" in refused[0]


@pytest.mark.parametrize("change", ["score", "std", "precision", "picture"])
def test_a_run_is_not_resumed_with_another_model_or_other_pictures(
    change: str, target: TargetModel, folder: Path, tmp_path: Path
) -> None:
    train(target, folder, tmp_path / "run", settings=settings("steps=1"), progress=False)
    stated = {"input_size": SIDE, "mean": [0.5] * 3, "std": [0.5] * 3, "fit": "squash"}
    changed: dict[str, dict[str, Any]] = {
        "score": {"score": "log_softmax"},
        "std": {"std": [0.4] * 3},
        "precision": {"precision": "bfloat16"},
        "picture": {},
    }
    if change == "picture":
        (folder / "03.png").write_bytes((folder / "04.png").read_bytes() + b" ")
    other = load_model(ColourNet().eval(), **{**stated, **changed[change]})
    with pytest.raises(OutputError, match=r"the run in .* has (models|images_digest)="):
        train(other, folder, tmp_path / "run", settings=settings("steps=1"), resume=True, progress=False)


def test_pictures_of_a_list_or_a_dataset(target: TargetModel, folder: Path, tmp_path: Path) -> None:
    files = sorted(folder.glob("*.png"))

    class Pictures(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, place: int) -> tuple[Image.Image, int]:
            return read_image(files[place]), 0

    found = [
        train(target, data, tmp_path / str(number), settings=settings("steps=2"), progress=False)
        for number, data in enumerate((files, [read_image(file) for file in files], Pictures()))
    ]
    assert found[0].digest == found[1].digest == found[2].digest
    with pytest.raises(ImageError, match="no images were given"):
        train(target, [], tmp_path / "none", settings=settings(), progress=False)


def test_a_trained_explainer_is_a_method(target: TargetModel, folder: Path, tmp_path: Path) -> None:
    explainer = train(target, folder, tmp_path / "run", settings="smoke", progress=False)
    explained = aha.explain(target, folder / "00.png", explainer)
    assert explained.settings["explainer_digest"] == explainer.digest
    assert {"images", "ins_del_error", "grad_cam"} < set(explainer.config.scores)
    fresh = Explainer.for_target(target, Design(width=16))
    with pytest.raises(SpecError, match="is in memory only"):
        aha.explain(target, folder / "00.png", fresh)


def test_progress_is_reported(target: TargetModel, folder: Path, tmp_path: Path) -> None:
    heard: list[float] = []
    train(target, folder, tmp_path / "run", settings=settings("steps=4"), progress=heard.append)
    assert heard == sorted(heard) and heard[-1] == 1 and len(heard) >= 4

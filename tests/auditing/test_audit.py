"""`audit`: a good method on a network that looks at one thing passes; maps and networks that know nothing fail."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner

import aha
from aha.auditing.audit import Audit
from aha.auditing.checks import AuditCheck, AuditPart
from aha.auditing.page import write_audit
from aha.auditing.run import prepare
from aha.auditing.thresholds import read_thresholds, shipped_text, shipped_thresholds
from aha.cli import app
from aha.demo import MODEL, photographs
from aha.errors import AhaError, OutputError, SpecError
from aha.methods import METHODS
from aha.methods.base import Method
from aha.models import TargetModel, load_model

SIDE, BLOB, IMAGES = 48, 12, 10
COLOURS = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]])


class Blobs(nn.Module):
    """Class k is the amount of pixels that are of colour k and of no other; what they are like does not matter."""

    def __init__(self) -> None:
        super().__init__()
        self.colours = nn.Conv2d(3, 3, kernel_size=5, padding=2)
        self.head = nn.Linear(3, 3)
        with torch.no_grad():
            self.colours.weight.copy_((1.5 * COLOURS - 0.9 * (1 - COLOURS))[:, :, None, None] / 25)
            self.colours.bias.fill_(-0.25)
            self.head.weight.copy_(40 * torch.eye(3))
            self.head.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.colours(x).relu().mean(dim=(2, 3)) * SIDE**2 / BLOB**2)


@dataclass(frozen=True)
class Constant(Method):
    """The same everywhere."""

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        return torch.ones(images.shape[0], *images.shape[-2:])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Grey noise with two blobs of different colours, a box around the larger one."""
    folder, lines = tmp_path_factory.mktemp("blobs"), ["file,label,x0,y0,x1,y1"]
    for index in range(IMAGES):
        draw = np.random.default_rng(index)
        pixels = np.repeat(draw.uniform(0.3, 0.5, (SIDE, SIDE, 1)), 3, axis=2)
        large, small = draw.permutation(3)[:2]
        for colour, side, half in ((large, BLOB, 0), (small, BLOB // 2, SIDE // 2)):
            y, x = int(draw.integers(5, SIDE - side - 5)), half + int(draw.integers(5, SIDE // 2 - side - 5))
            pixels[y : y + side, x : x + side] = COLOURS[colour].numpy()
            if colour == large:
                lines.append(f"{index}.png,{large},{x},{y},{x + side},{y + side}")
        Image.fromarray((255 * pixels).astype(np.uint8)).save(folder / f"{index}.png")
    (folder / "list.csv").write_text("\n".join(lines))
    return folder / "list.csv"


def network(seed: int | None = None) -> TargetModel:
    """The network, or one of the same structure with random weights."""
    module = Blobs()
    if seed is not None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            module.colours.reset_parameters()
            module.head.reset_parameters()
    module.eval()
    model = load_model(module, input_size=SIDE, mean=[0.0] * 3, std=[1.0] * 3, fit="squash", batch_size=16)
    model.spec = "module:Blobs"
    return model


@pytest.fixture
def constant() -> Iterator[str]:
    METHODS.register("constant")(Constant)
    Constant.name = "constant"
    yield "constant"
    del METHODS._things["constant"]


def audited(data: Path, out: Path, method: str = "grad_cam", model: TargetModel | None = None, **options: Any) -> Audit:
    return aha.audit(model or network(), f"csv:{data}", method, out=out, steps=4, **options)


@pytest.fixture(scope="module")
def good(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Audit:
    return audited(data, tmp_path_factory.mktemp("audits") / "good", against="hires_cam", headroom=400)


# Verdicts


def test_a_good_method_on_a_good_model_passes(good: Audit) -> None:
    assert good.passed, good.to_text()
    assert set(good.verdicts.values()) == {"passed"}
    assert good.subject["images"] == IMAGES and good.subject["seed"] == 0
    assert good.subject["accuracy on these images"] == f"100 % of {IMAGES} with a true class"


@pytest.mark.parametrize("method", ["random_map", "edge_map", "center_map"])
def test_a_map_that_does_not_know_the_model_fails(method: str, data: Path, tmp_path: Path) -> None:
    found = audited(data, tmp_path / "audit", method)
    assert found.verdicts["fidelity"] == "failed" and found.verdicts["sensitivity"] == "failed", found.to_text()
    assert (found.verdicts["repeatability"] == "failed") == (method == "random_map")
    assert not found.passed


def test_a_constant_map_fails(constant: str, data: Path, tmp_path: Path) -> None:
    found = audited(data, tmp_path / "audit", constant)
    assert not found.passed
    for name in ("fidelity", "repeatability", "stability", "sensitivity", "failures"):
        assert found.verdicts[name] == "failed", found.to_text()
    check = found.part("stability").checks[0]
    assert check.value is None and "constant" in check.why


def test_a_model_with_random_weights_fails(data: Path, tmp_path: Path) -> None:
    found = audited(data, tmp_path / "audit", model=network(0))
    assert found.verdicts["fidelity"] == "failed" and not found.passed, found.to_text()


def test_what_is_not_given_is_not_judged(data: Path, tmp_path: Path) -> None:
    found = audited(data.parent, tmp_path / "audit", limit=6)  # a folder has no boxes
    assert {name for name, verdict in found.verdicts.items() if verdict == "not judged"} == {
        "reproducibility",
        "shortcuts",
    }
    assert found.part("shortcuts").checks[0].why == "the data have no boxes or masks for every image"
    assert "passed" in {check.verdict for check in found.part("shortcuts").checks}


def test_a_search_that_cannot_be_run_fails_the_headroom(data: Path, tmp_path: Path) -> None:
    found = audited(data, tmp_path / "audit", limit=2, headroom=10)
    (check,) = [check for check in found.part("fidelity").checks if check.name == "headroom"]
    assert check.verdict == "failed" and "budget=10 is too small" in check.why


def test_a_part_passes_with_all_of_its_checks_alone() -> None:
    def check(value: float | None, limit: Any = 0.5, **options: Any) -> AuditCheck:
        return AuditCheck("name", "meaning", "least", limit, 0.5, value=value, **options)

    assert check(0.5).verdict == "passed" and check(0.49).verdict == "failed"
    assert AuditCheck("name", "meaning", "most", 0.5, 0.5, value=0.51).verdict == "failed"
    assert check(None).verdict == "not judged" and check(None, has_failed=True).verdict == "failed"
    assert AuditPart("p", "?", [check(1.0), check(None)]).verdict == "not judged"
    assert AuditPart("p", "?", [check(0.1), check(None)]).verdict == "failed"
    assert AuditPart("p", "?", [check(1.0), check(0.1, limit=False)]).verdict == "passed"
    assert AuditPart("p", "?", [check(1.0, limit=False)]).verdict == "not judged"


# Files


def test_page_and_json_stand_alone(good: Audit) -> None:
    page, found = good.page.read_text(encoding="utf-8"), json.loads(good.json.read_text(encoding="utf-8"))
    assert "http://" not in page.replace("http://www.w3.org", "") and "<script" not in page
    assert page.count('alt="map of ') == IMAGES  # best and worst together, none twice
    assert "not evidence of compliance" in page and "not evidence of compliance" in found["is_not"]
    assert found["verdict"] == "passed" and found["thresholds"] == found["shipped_thresholds"]
    values = [lead for *_, lead in found["leads"]]
    assert len(values) == IMAGES and values == sorted(values, reverse=True)


def test_other_thresholds_judge_again_without_measuring(good: Audit, data: Path, tmp_path: Path) -> None:
    model = network()
    strict = tmp_path / "strict.toml"
    strict.write_text("[stability]\nanswer = 1\n\n[shortcuts]\noutside = false\n")
    prepared = prepare(model, f"csv:{data}", "grad_cam", out=good.folder, steps=4, thresholds=strict, headroom=400)
    assert [run.pending for run in prepared.runs] == [0, 0]
    before = (good.folder / "thresholds.toml").read_text()
    (good.folder / "thresholds.toml").write_text(prepared.thresholds.as_toml())
    try:
        found = write_audit(good.folder, tmp_path)
    finally:
        (good.folder / "thresholds.toml").write_text(before)
    assert found.verdicts["stability"] == "failed" and found.verdicts["shortcuts"] == "passed"
    assert found.part("shortcuts").checks[0].verdict == "not judged"
    assert (found.part("stability").checks[0].limit, found.part("stability").checks[0].shipped) == (1.0, 0.6)


def test_an_audit_is_resumed_and_guards_its_folder(good: Audit, data: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="holds an audit with method grad_cam"):
        audited(data, good.folder, "gradient")
    with pytest.raises(OutputError, match="holds an audit with other weights"):
        audited(data, good.folder, model=network(3))
    (tmp_path / "rows").mkdir()
    with pytest.raises(OutputError, match="not of an audit"):
        audited(data, tmp_path)
    with pytest.raises(OutputError, match="not the folder of an audit"):
        write_audit(tmp_path)


def test_an_interrupted_audit_does_not_pass(data: Path, tmp_path: Path) -> None:
    prepared = prepare(network(), f"csv:{data}", "grad_cam", out=tmp_path / "audit", steps=2, limit=3)
    prepared.begin()[0].run()  # and nothing of the baselines
    found = prepared.settle()
    assert not found.passed and found.verdicts["failures"] == "failed"
    assert [check.value for check in found.part("failures").checks] == [0.0, 9.0]  # three baselines, three images


def test_against_a_run_and_saved_maps(good: Audit, data: Path, tmp_path: Path) -> None:
    found = audited(data, tmp_path / "audit", "hires_cam", against=good.folder)
    values = found.part("reproducibility").checks[0]
    assert values.meaning == f"rank correlation with grad_cam in {good.folder}"
    expected = good.part("reproducibility").checks[0].value
    assert values.value == pytest.approx(expected, abs=1e-3) and values.n == IMAGES
    maps = tmp_path / "maps"
    maps.mkdir()
    for index in range(IMAGES):
        np.save(maps / f"{index}.npy", np.random.default_rng(index).random((SIDE, SIDE)))
    found = audited(data, tmp_path / "audit", "hires_cam", against=maps)
    assert found.verdicts["reproducibility"] == "failed"
    assert abs(found.part("reproducibility").checks[0].value or 1) < 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"against": "grad_cam"}, "the audited method itself"),
        ({"against": "audit"}, "is the folder of this audit"),
        ({"against": "nowhere/at/all"}, "neither a folder"),
        ({"limit": 0}, "limit must be a whole number"),
        ({"thresholds": "nowhere.toml"}, "cannot read the thresholds"),
        ({"method": "grad_camp"}, "unknown method"),
    ],
)
def test_bad_input_is_refused_before_any_work(
    options: dict[str, Any], message: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AhaError, match=message):
        audited(data, tmp_path / "audit", **options)
    assert not (tmp_path / "audit").exists()


# Thresholds


def test_the_shipped_file_says_the_shipped_values(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(shipped_text())
    assert read_thresholds(own) == shipped_thresholds() == read_thresholds()
    own.write_text(shipped_thresholds().as_toml())
    assert read_thresholds(own) == shipped_thresholds()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[fidelity]\nleed = 1", "unknown entry fidelity.leed"),
        ("[fidelty]\nlead = 0.1", "unknown entry fidelty"),
        ("[fidelity]\nlead = 2", "fidelity.lead must be a number from -1 to 1 or false, not 2"),
        ("[fidelity]\nlead = true", "fidelity.lead must be"),
        ("[fidelity]\nlead = 'much'", "fidelity.lead must be"),
        ("fidelity = 3", "fidelity must be an object"),
        ("[fidelity", "are not TOML"),
    ],
)
def test_a_slip_in_the_thresholds_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(SpecError, match=message):
        read_thresholds(path)


# Real networks


@pytest.mark.slow
@pytest.mark.parametrize(("method", "pretrained"), [("aha", True), ("edge_map", True), ("grad_cam", False)])
def test_on_photographs_only_what_knows_the_network_has_a_lead(method: str, pretrained: bool, tmp_path: Path) -> None:
    """Six photographs make wide intervals: the means are looked at, and the parts that need no lead."""
    for path in photographs():
        shutil.copy(path, tmp_path)
    model = load_model(MODEL, pretrained=pretrained, batch_size=16)
    found = aha.audit(model, tmp_path, method, out=tmp_path / "audit", steps=4)
    leads = [(check.low or 0) + (check.high or 0) for check in found.part("fidelity").checks[:6]]
    is_good = method == "aha"
    assert (min(leads) > 0.1) == is_good, found.to_text()
    assert (found.verdicts["sensitivity"] == "passed") == is_good or not pretrained, found.to_text()
    assert found.passed <= is_good


# The command line

SMALL = ("--model", "timm:test_resnet", "--no-pretrained", "--input-size", "32", "--steps", "2", "--limit", "2")


def test_the_command_fails_where_a_part_fails_and_report_repeats_it(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "audit"
    command = ["audit", *SMALL, "--data", str(data.parent), "--method", "random_map", "--out", str(out)]
    tried = CliRunner().invoke(app, [*command, "--dry-run"])
    assert tried.exit_code == 0 and "images forward" in tried.output and not out.exists(), tried.output
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 1, done.output
    assert json.loads(done.stdout)["verdicts"]["fidelity"] == "failed"
    (out / "audit.html").unlink()
    again = CliRunner().invoke(app, ["report", str(out)])
    assert again.exit_code == 1 and str(out / "audit.html") in again.output
    assert (out / "audit.html").is_file() and (out / "report.html").is_file()


def test_the_command_says_in_one_line_what_is_wrong(data: Path, tmp_path: Path) -> None:
    slip = tmp_path / "slip.toml"
    slip.write_text("[stability]\nanswers = 1")
    command = ["audit", *SMALL, "--data", str(data.parent), "--method", "grad_cam", "--out", str(tmp_path / "audit")]
    done = CliRunner().invoke(app, [*command, "--thresholds", str(slip)])
    assert done.exit_code == 1 and "unknown entry stability.answers" in done.output
    assert done.output.strip().count("\n") == 0 and not (tmp_path / "audit").exists()

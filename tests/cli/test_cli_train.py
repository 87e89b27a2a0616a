"""`aha train` and `aha export`: a run from start to use, interrupted and resumed, and refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import aha
from aha.errors import AhaWarning
from aha.learned.library import explainer_folder, explainer_of, remember
from aha.learned.settings import load_settings
from command_line import MODEL, assert_refused, picture, pictures, run

QUICK = ("--preset", "smoke", "--input-size", "64", "steps=2", "width=16", "perturbations=2")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AHA_DATA", str(tmp_path / "cache"))


def train(tmp_path: Path, *more: str):
    data = tmp_path / "data"
    if not data.exists():
        pictures(data, 6)
    return run("train", *MODEL, "--data", data, "--out", tmp_path / "run", *QUICK, *more)


def drawn_by(out: Path) -> str:
    """What the manifest says."""
    return str(json.loads((out / "manifest.json").read_text())["settings"]["explainers"]["aha"]["explainer"])


def test_train_explain_export(tmp_path: Path) -> None:
    """An explainer is trained, found by the model's weights, named by its folder, and written as ONNX."""
    result = train(tmp_path, "--json", "--remember", "evidence=forward")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["steps"] == 2 and {"ins_del", "ins_del_error", "images", "grad_cam"} < set(found["validation"])
    explainer = Path(found["explainer"])
    assert (explainer / "model.safetensors").is_file()
    assert len(Path(found["metrics"]).read_text().splitlines()) == 2
    image = picture(tmp_path / "x.png")
    for name, method in (("a", "aha"), ("b", f"aha({str(explainer)!r}, refine=1, steps=2)")):
        result = run("explain", image, *MODEL, "--input-size", "64", "--method", method, "--out", tmp_path / name)
        assert result.exit_code == 0, result.output
    result = run("export", explainer, "--onnx", tmp_path / "e.onnx", *MODEL, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["largest_difference"] < 1e-3 and (tmp_path / "e.onnx").is_file()


def test_an_explainer_is_remembered_on_request_alone(tmp_path: Path) -> None:
    """A quick try must not take the place of the good one that `aha` meant until then."""
    explain = ("explain", picture(tmp_path / "x.png"), *MODEL, "--input-size", "64", "--method", "aha", "--out")
    assert json.loads(train(tmp_path, "--json").stdout)["remembered"] is False
    assert run(*explain, tmp_path / "a").exit_code == 0
    assert drawn_by(tmp_path / "a") == "universal"
    model = aha.load_model("timm:test_resnet", pretrained=False, input_size=64, device="cpu")
    settings = load_settings("smoke", ["steps=2", "width=16", "perturbations=2"])
    aha.train(model, tmp_path / "data", tmp_path / "quick", settings=settings)
    assert explainer_folder(model) is None
    found = aha.train(model, tmp_path / "data", tmp_path / "good", settings=settings, remember=True)
    assert explainer_of(model).digest == found.digest
    assert run(*explain, tmp_path / "a").exit_code == 0
    assert drawn_by(tmp_path / "a") == "of timm:test_resnet"
    with pytest.warns(AhaWarning, match="had a remembered explainer, which this one replaces"):
        remember(found)
    listed = json.loads(run("explainers", "list", "--json").stdout)
    (own,) = [entry for entry in listed if entry["origin"] == "remembered"]
    assert own["digest"] == found.digest and own["model"] == "timm:test_resnet"
    assert "timm:test_resnet" in run("explainers", "show", found.digest[:8]).stdout
    assert run("explainers", "forget", found.digest[:8]).exit_code == 0
    assert explainer_folder(model) is None
    shipped = next(entry for entry in listed if entry["origin"] == "shipped")
    assert_refused(run("explainers", "forget", shipped["digest"]), "part of the package")
    assert_refused(run("explainers", "show", "nothing"), "no explainer is known by 'nothing'")


def test_a_finished_run_is_not_started_again_but_may_be_resumed(tmp_path: Path) -> None:
    assert train(tmp_path).exit_code == 0
    assert_refused(train(tmp_path), "holds a run already", "--resume")
    again = train(tmp_path, "--resume")
    assert again.exit_code == 0, again.output
    assert "Use it: aha explain IMAGE" in again.stdout
    assert_refused(train(tmp_path, "--resume", "seed=5"), "seed=0, not 5")


def test_bad_requests_are_one_line_and_leave_nothing(tmp_path: Path) -> None:
    assert_refused(train(tmp_path, "--preset", "huge"), "no preset 'huge'; there are paper, small,")
    assert_refused(train(tmp_path, "stepz=1"), "no setting 'stepz'")
    assert_refused(train(tmp_path, "batch_size=many"), "batch_size must be a whole number of at least 1, not 'many'")
    assert_refused(train(tmp_path, "encoder=timm:no_such_model"), "no_such_model")
    missing = run("train", *MODEL, "--data", tmp_path / "nowhere", "--out", tmp_path / "run", *QUICK)
    assert_refused(missing, "does not exist")
    assert_refused(run("export", tmp_path / "data", "--onnx", tmp_path / "x.onnx"), "is not an explainer")
    assert_refused(
        run("explain", picture(tmp_path / "y.png"), *MODEL, "--method", "aha('nowhere')", "--out", tmp_path / "o"),
        "no explainer at nowhere",
    )
    assert not (tmp_path / "run" / "explainer").exists() and not (tmp_path / "o" / "manifest.json").exists()

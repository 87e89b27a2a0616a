"""`aha evaluate`: files, folders, CSVs and saved maps; resuming; one line for what is wrong."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import aha
from aha.cli import app
from aha.data.labelled import Lazy, find_labelled, read_mask
from aha.errors import AhaWarning, ImageError, MetricError
from aha.models import load_model
from aha.results.saved_maps import SavedMap, find_maps
from fakes import SIZE, TinyCNN, randomised

MODEL = ["--model", "timm:test_resnet", "--no-pretrained", "--input-size", "64"]
FAST = ["--metrics", "ins_del(steps=3, references=(black,))"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for name in ("a", "b", "c"):
        Image.fromarray(generator.integers(0, 255, (70, 90, 3), dtype=np.uint8)).save(folder / f"{name}.png")
    return folder


def run(*words: object, code: int = 0):
    result = CliRunner().invoke(app, ["evaluate", *map(str, words)])
    assert result.exit_code == code, result.output
    return result


def rows(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((out / "scores.csv").read_text().splitlines()))


def test_folder(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run(photos, *MODEL, *FAST, "--method", "gradient", "--method", "random_map", "--out", out)
    found = rows(out)
    assert list(found[0]) == ["image", "method", "metric", "protocol", "target", "reference", "value"]
    assert len(found) == 3 * 2 and {row["method"] for row in found} == {"gradient", "random_map"}
    assert (out / "summary.csv").read_text().count("\n") == 3
    assert "ins_del" in result.output and "protocol" in result.output


def test_resume_judges_only_what_is_new(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(photos / "a.png", *MODEL, *FAST, "--method", "gradient", "--out", out)
    lines = out / "rows" / "0000.jsonl"
    first = lines.read_bytes()
    (out / "scores.csv").write_text("cut at a li")  # a table is made of the rows, never read for them
    run(photos, *MODEL, *FAST, "--method", "gradient", "--out", out)
    assert lines.read_bytes().startswith(first) and lines.read_bytes().count(b"\n") == 3
    assert len(rows(out)) == 3
    run(photos, *MODEL, "--metrics", "sparseness", "--method", "gradient", "--out", out)
    assert {row["metric"] for row in rows(out)} > {"ins_del", "zero_share"}
    report = CliRunner().invoke(app, ["report", str(out)])
    assert report.exit_code == 0 and (out / "report.html").is_file(), report.output


def test_csv_with_labels_masks_and_boxes(photos: Path, tmp_path: Path) -> None:
    mask = np.zeros((70, 90), dtype=np.uint8)
    mask[20:50, 30:60] = 1
    Image.fromarray(mask).save(photos / "mask.bmp")
    lines = [
        "file,label,mask,x0,y0,x1,y1",
        "a.png,3,mask.bmp,30,20,60,50",
        "a.png,3,mask.bmp,0,0,5,5",
        "b.png,4,mask.bmp,40,30,50,40",
    ]
    listing = photos / "list.csv"
    listing.write_text("\n".join(lines))
    found = find_labelled([listing])
    assert [(image.path.name, image.label, len(image.boxes)) for image in found] == [("a.png", 3, 2), ("b.png", 4, 1)]
    out = tmp_path / "out"
    run(listing, *MODEL, "--metrics", "segmentation", "--metrics", "energy_in_box", "--method", "center_map",
        "--target", "label", "--out", out)  # fmt: skip
    assert {row["target"] for row in rows(out)} == {"3", "4"}
    assert {"pixel_accuracy", "energy_in_box"} <= {row["metric"] for row in rows(out)}


def test_grid_protocol_builds_mosaics(photos: Path, tmp_path: Path) -> None:
    Image.new("RGB", (50, 50), "blue").save(photos / "d.png")
    listing = photos / "list.csv"
    listing.write_text("file,label\n" + "".join(f"{name}.png,{i}\n" for i, name in enumerate("abcd")))
    out = tmp_path / "out"
    run(listing, *MODEL, "--metrics", "grid", "--method", "center_map", "--out", out)
    assert len({row["target"] for row in rows(out)}) == 4
    assert {"grid_pointing", "region_attribution"} <= {row["metric"] for row in rows(out)}
    result = run(photos, *MODEL, "--metrics", "grid", "--method", "gradient", "--out", tmp_path / "other", code=1)
    assert "4 images, all of them with labels" in result.output


def test_maps_saved_by_explain(photos: Path, tmp_path: Path) -> None:
    saved, out, direct = tmp_path / "saved", tmp_path / "out", tmp_path / "direct"
    explained = CliRunner().invoke(app, ["explain", str(photos), *MODEL, "--method", "gradient", "--out", str(saved)])
    assert explained.exit_code == 0, explained.output
    run(photos, *MODEL, *FAST, "--maps", saved, "--out", out)
    run(photos, *MODEL, *FAST, "--method", "gradient", "--out", direct)
    theirs = {row["image"]: float(row["value"]) for row in rows(direct)}
    assert {row["image"]: float(row["value"]) for row in rows(out)} == pytest.approx(theirs, abs=1e-6)


def test_maps_of_another_tool(photos: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "theirs", tmp_path / "out"
    folder.mkdir()
    np.save(folder / "a.npy", np.random.default_rng(0).random((70, 90)))  # in the original image's pixels
    np.savez(folder / "b.npz", map=np.random.default_rng(0).random((64, 64)))
    run(photos, *MODEL, *FAST, "--maps", folder, "--out", out)
    assert {Path(row["image"]).name for row in rows(out)} == {"a.png", "b.png"}
    assert {row["method"] for row in rows(out)} == {"theirs"}


def test_maps_of_another_tool_are_never_those_of_two_pictures(tmp_path: Path) -> None:
    images = [tmp_path / "photos" / name for name in ("cats/001.jpg", "dogs/001.jpg", "dogs/002.jpg")]
    folder = tmp_path / "theirs"
    for name in ("cats/001.npy", "dogs/001.npz", "002.npy", "other/002.npy"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    found = {saved.image: saved.path.relative_to(folder).as_posix() for saved in find_maps(folder, images)}
    assert found == dict(zip(images, ["cats/001.npy", "dogs/001.npz", "002.npy"], strict=True))
    (folder / "cats" / "001.npz").touch()
    with pytest.raises(MetricError, match=r"001.npy and .*001.npz could both be the map of .*; keep one of them"):
        find_maps(folder, images)
    assert len(find_maps(folder, images[1:])) == 2  # what is not asked about is in nobody's way
    for name in ("cats/001.npy", "cats/001.npz", "dogs/001.npz"):
        (folder / name).unlink()
    (folder / "001.npy").touch()
    with pytest.raises(
        MetricError, match=r"cats/001.jpg and of .*dogs/001.jpg; put maps into .* \(dogs/001.npy\)"
    ) as heard:
        find_maps(folder, images)
    assert "\n" not in str(heard.value)
    assert len(find_maps(folder, images[1:])) == 2


def test_json_and_bad_files(photos: Path, tmp_path: Path) -> None:
    (photos / "broken.png").write_bytes(b"nothing")
    result = run(photos, *MODEL, *FAST, "--method", "gradient", "--out", tmp_path / "out", "--json", "--quiet", code=1)
    found = json.loads(result.stdout)
    assert len(found["summary"]) == 1 and found["summary"][0]["n"] == 3
    assert "broken.png" in found["failures"][0]["reason"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([*FAST], "nothing to measure"),
        ([*FAST, "--method", "gradeint"], "did you mean gradient"),
        (["--metrics", "deletoin", "--method", "gradient"], "did you mean deletion"),
        (["--metrics", "seg", "--method", "gradient"], "needs masks"),
        ([*FAST, "--method", "rollout"], "needs attention"),
        ([*FAST, "--maps", "nowhere"], "not a folder of maps"),
        ([*FAST, "--method", "gradient", "--target", "label"], "needs labels"),
        ([*FAST, "--method", "gradient", "--target", "5000"], "does not exist"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(words: list[str], text: str, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run(photos, *MODEL, *words, "--out", out, code=1)
    assert text in result.output and result.output.count("\n") == 1 and not out.exists()


def test_hostile_maps_are_not_unpickled(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "maps"
    folder.mkdir()
    np.save(folder / "a.npy", np.array([{"an": "object"}], dtype=object), allow_pickle=True)
    (saved,) = find_maps(folder, [photos / "a.png"])
    with pytest.raises(MetricError, match="cannot read the map"):
        saved.read()


def test_bad_csv(tmp_path: Path) -> None:
    listing = tmp_path / "list.csv"
    listing.write_text("picture,label\na.png,1\n")
    with pytest.raises(ImageError, match="no column file"):
        find_labelled([listing])
    listing.write_text("file,label\na.png,cat\n")
    with pytest.raises(ImageError, match="line 2"):
        find_labelled([listing])
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    listing.write_text("file,label\na.png,1\na.png,2\n")
    with pytest.raises(ImageError, match=r"line 3 .* another label"):
        find_labelled([listing])
    with pytest.raises(MetricError, match="cannot read the mask"):
        read_mask(tmp_path / "none.png")


def test_lazy_sequences_make_elements_when_asked() -> None:
    asked: list[int] = []
    lazy = Lazy(3, lambda index: asked.append(index) or index * 10)
    assert len(lazy) == 3 and lazy[-1] == 20 and asked == [2]
    assert lazy[0:2] == [0, 10]
    with pytest.raises(IndexError):
        lazy[3]


def test_the_exit_code_is_of_what_was_asked(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (photos / "d.png").write_bytes(b"nothing")
    run(photos, *MODEL, *FAST, "--method", "gradient", "--out", out, code=1)
    (photos / "d.png").unlink()
    found = run(photos / "a.png", *MODEL, *FAST, "--method", "center_map", "--out", out, "--json", "--quiet")

    def fail(text: str) -> None:
        raise AssertionError(text)

    told = json.loads(found.stdout, parse_constant=fail)  # of one image there is no error, and NaN is no JSON
    assert told["failures"] == [] and {row["n"] for row in told["summary"]} == {1}
    assert {row["standard_error"] for row in told["summary"]} == {None}
    assert {row["method"] for row in rows(out)} == {"gradient", "center_map"}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (np.full((40, 50), np.nan), "only NaN values"),
        (np.full((40, 50), np.inf), "infinite"),
        (np.full((40, 50), 1e300), "beyond the range"),
        (np.ones((40, 50)) * 1j, "complex128"),
        (np.full((40, 50), "a"), "number"),
        (np.ones((2, 40, 50, 3)), "a map is \\(height, width\\)"),
        (np.ones((0, 50)), "a map is \\(height, width\\)"),
    ],
)
def test_maps_that_mean_nothing_are_refused(values: np.ndarray, why: str, tmp_path: Path) -> None:
    """From a file and from memory alike; they would be scored as flat maps."""
    np.save(tmp_path / "a.npy", values)
    np.savez(tmp_path / "a.npz", map=values)
    for name in ("a.npy", "a.npz"):
        with pytest.raises(MetricError, match=why):
            SavedMap(tmp_path / "a.png", "m", None, tmp_path / name).read()
    model = load_model(randomised(TinyCNN()), input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
    picture = np.zeros((40, 50, 3), np.uint8)
    with pytest.raises(MetricError, match=why):
        aha.evaluate(model, [picture], {"mine": [values]}, "sparseness")


def test_a_map_may_be_unknown_where_the_model_does_not_look(tmp_path: Path) -> None:
    half = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    model = load_model(randomised(TinyCNN()), input_size=SIZE, fit="crop", **half)
    picture = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    values = np.random.default_rng(1).random((40, 60))
    values[:, :8] = np.nan
    assert aha.evaluate(model, [picture], {"mine": [values]}, "sparseness").rows
    values[20, 30:33] = np.nan
    with pytest.raises(MetricError, match="not finite"):
        aha.evaluate(model, [picture], {"mine": [values]}, "sparseness")


@pytest.mark.parametrize("shape", ["(10000000, 10000000)", "(10, 1000)", "(-1, 5)"])
def test_a_map_that_claims_more_than_it_holds(shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 2)))
    content = (tmp_path / "a.npy").read_bytes()
    head, tail = f"(2, 2), }}{' ' * (len(shape) - 6)}", f"{shape}, }}"
    changed = content.replace(head[: len(tail)].encode(), tail.encode(), 1)
    assert changed != content and len(changed) == len(content)
    (tmp_path / "a.npy").write_bytes(changed)
    with pytest.raises(MetricError, match="cannot read the map"):
        SavedMap(tmp_path / "a.png", "m", None, tmp_path / "a.npy").read()


class Overflowing(TinyCNN):
    """One class becomes NaN where a picture is bright, or where it is dark."""

    def __init__(self, *, bright: bool) -> None:
        super().__init__()
        self.bright = bright

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = super().forward(x)
        level = x.mean(dim=(1, 2, 3))
        is_bad = level > 0.9 if self.bright else level < -0.9
        return torch.where(is_bad[:, None] & (torch.arange(outputs.shape[1]) == 1), torch.nan, outputs)


def test_outputs_that_are_no_numbers_fail_their_image_and_no_other() -> None:
    """Means stay numbers, and the failure is counted."""
    pictures = [np.full((32, 32, 3), 255, np.uint8), np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)]
    half = {"input_size": SIZE, "mean": (0.5,) * 3, "std": (0.5,) * 3}
    model = load_model(randomised(Overflowing(bright=True)), **half)
    metrics = ["deletion(steps=3, references=(black,))", "sparseness"]
    with pytest.warns(AhaWarning, match="not numbers|are NaN or infinite"):
        scores = aha.evaluate(model, pictures, ["gradient", "center_map"], metrics)
    assert {row.image for row in scores.rows} == {"image-1"} and {f.image for f in scores.failures} == {"image-0"}
    assert all(np.isfinite(row.mean) for row in scores.summary())
    dark = load_model(randomised(Overflowing(bright=False)), **half)  # black, as which deletion ends
    with pytest.warns(AhaWarning, match="perturbed images are NaN or infinite"):
        scores = aha.evaluate(dark, pictures, "center_map", metrics)
    assert {row.metric for row in scores.rows}.isdisjoint({"deletion"}) and len(scores.failures) == 2

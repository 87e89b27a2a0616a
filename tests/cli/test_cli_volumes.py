"""Volumes and bands on the command line: read as in Python, saved with all axes, measured, refused in one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import aha
from aha.core.arrays import read_arrays
from aha.core.csv_files import read_table
from aha.errors import AhaWarning, OutputError
from aha.models import TargetModel
from command_line import items, picture, run

CODE = """
from torch import nn


def _network(conv, pool, channels):
    return nn.Sequential(conv(channels, 4, 3, padding=1), nn.ReLU(), pool(1), nn.Flatten(), nn.Linear(4, 3))


def scans():
    return _network(nn.Conv3d, nn.AdaptiveAvgPool3d, 1)


def scenes():
    return _network(nn.Conv2d, nn.AdaptiveAvgPool2d, 5)
"""
SCANS = ("--model", "python:own_volumes:scans", "--input-size", "1,4,12,10", "--mean", "0", "--std", "2")
SCENES = ("--model", "python:own_volumes:scenes", "--input-size", "5,16,16", "--mean", "1,2,3,4,5")
SCENES = (*SCENES, "--std", "2,2,2,2,2", "--bands", "3,2,1")
SHORT = ("--metrics", "deletion(steps=3, references=(own_mean,))", "--target", "1")
SIZE = (8, 24, 20)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "own_volumes.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    yield tmp_path / "in"
    sys.modules.pop("own_volumes", None)


def scan(seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)


def saved_in(folder: str, item: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """The arrays of a map's file."""
    return read_arrays((Path(folder) / item["map"]).read_bytes())


def network() -> TargetModel:
    with pytest.warns(AhaWarning, match="runs code"):
        return aha.load_model("python:own_volumes:scans", input_size=(1, 4, 12, 10), mean=[0.0], std=[2.0])


def in_python(values: NDArray[np.float32], method: str = "gradient") -> aha.Explanation:
    """What the library says of the same network."""
    return aha.explain(network(), values, method, target=1)


def written_series(place: Path, values: NDArray[np.float32], *, series: str = "") -> Path:
    """A folder of DICOM slices, whose names are in another order than their places."""
    pydicom = pytest.importorskip("pydicom")
    place.mkdir(parents=True)
    series = series or pydicom.uid.generate_uid()
    for number, one in enumerate(values):
        meta = pydicom.dataset.FileMetaDataset()
        meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
        meta.MediaStorageSOPClassUID = pydicom.uid.CTImageStorage
        meta.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid()
        file = pydicom.dataset.FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
        file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
        file.SeriesInstanceUID, file.Rows, file.Columns = series, *one.shape
        file.SamplesPerPixel, file.PhotometricInterpretation, file.PixelRepresentation = 1, "MONOCHROME2", 0
        file.BitsAllocated = file.BitsStored = 16
        file.HighBit, file.RescaleSlope, file.RescaleIntercept = 15, 1, 0
        file.ImageOrientationPatient, file.ImagePositionPatient = [1, 0, 0, 0, 1, 0], [0, 0, 5.0 * number]
        file.PixelData = one.astype(np.uint16).tobytes()
        file.save_as(place / f"{len(values) - number:03}.dcm", enforce_file_format=True)
    return place


def test_maps_keep_the_third_axis(folder: Path) -> None:
    for number in range(2):
        np.save(folder / f"{number}.npy", scan(number))
    done = run("explain", folder, *SCANS, "--method", "gradient", "--target", "1", "--out", "out", "--card")
    assert done.exit_code == 0, done.output
    assert "2 explained" in done.stdout and "slices.png" in done.stdout
    found = items(Path("out"))
    assert len(found) == 2
    for number, item in enumerate(found):
        own = in_python(scan(number))
        arrays = saved_in("out", item)
        assert np.allclose(arrays["model_map"], own.maps[0].numpy(), atol=1e-7)
        assert np.allclose(arrays["map"], own.original_map().numpy(), atol=1e-7)
        assert arrays["map"].shape == SIZE
        with Image.open(Path("out") / item["slices"]) as drawn:
            assert drawn.size == own.montage().size
        with Image.open(Path("out") / item["overlay"]) as drawn:
            assert drawn.width >= 20
        assert item["slices"] in Path("out/index.html").read_text()
    assert json.loads(Path("out/manifest.json").read_text())["settings"]["input_size"] == [4, 12, 10]
    again = run("explain", folder, *SCANS, "--method", "gradient", "--target", "1", "--out", "out", "--card")
    assert "0 explained, 2 already done" in again.stdout


def test_what_the_library_saves_is_the_same(folder: Path) -> None:
    np.save(folder / "a.npy", scan())
    run("explain", folder, *SCANS, "--method", "grad_cam", "--target", "1", "--out", "out")
    in_python(scan(), "grad_cam").save("saved")
    (by_command,), (by_library,) = items(Path("out")), items(Path("saved"))
    assert set(by_command) == set(by_library)
    first, second = saved_in("out", by_command), saved_in("saved", by_library)
    assert set(first) == set(second) and np.array_equal(first["map"], second["map"])


def test_results_inside_the_folder_are_not_volumes(folder: Path) -> None:
    np.save(folder / "a.npy", scan())
    (folder / "site").mkdir()
    np.savez_compressed(folder / "site" / "b.npz", volume=scan(1))
    for _ in range(2):
        done = run("explain", folder, *SCANS, "--method", "gradient", "--target", "1", "--out", folder / "out")
        assert done.exit_code == 0, done.output
    assert {Path(item["image"]).name for item in items(folder / "out")} == {"a.npy", "b.npz"}


def test_nifti(folder: Path) -> None:
    nibabel = pytest.importorskip("nibabel")
    nibabel.save(nibabel.Nifti1Image(scan().T, np.diag([2.0, 2.0, 5.0, 1.0])), folder / "scan.nii.gz")
    done = run("explain", folder / "scan.nii.gz", *SCANS, "--method", "gradient", "--target", "1", "--out", "out")
    assert done.exit_code == 0, done.output
    (item,) = items(Path("out"))
    assert np.allclose(saved_in("out", item)["map"], in_python(scan()).original_map().numpy(), atol=1e-7)


def test_series_of_dicom(folder: Path) -> None:
    """Each folder is one volume; when a slice changes, its map is made again."""
    values = np.random.default_rng(0).integers(0, 200, (2, 4, 12, 10)).astype(np.float32)
    for name, one in zip("ab", values, strict=True):
        written_series(folder / name, one)
    asked = ("explain", folder, *SCANS, "--method", "gradient", "--target", "1", "--out", "out")
    done = run(*asked)
    assert done.exit_code == 0, done.output
    found = items(Path("out"))
    assert [Path(item["image"]).name for item in found] == ["a", "b"]
    assert np.allclose(saved_in("out", found[1])["map"], in_python(values[1]).original_map().numpy(), atol=1e-7)
    assert "2 already done" in run(*asked).stdout
    for file in (folder / "a").iterdir():
        file.unlink()
    (folder / "a").rmdir()
    written_series(folder / "a", values[0] + 1)
    assert "1 explained, 1 already done" in run(*asked).stdout


def test_bands(folder: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    values = np.random.default_rng(0).integers(0, 4000, (5, 20, 24)).astype(np.uint16)
    tifffile.imwrite(folder / "scene.tif", values, photometric="minisblack")
    np.save(folder / "scene.npy", values)
    done = run("explain", folder, *SCENES, "--method", "gradient", "--target", "1", "--out", "out")
    assert done.exit_code == 0, done.output
    first, second = (saved_in("out", item)["map"] for item in items(Path("out")))
    assert np.array_equal(first, second, equal_nan=True)
    assert np.isfinite(first).any()
    (shown,) = {item["overlay"] for item in items(Path("out")) if item["image"].endswith(".tif")}
    with Image.open(Path("out") / shown) as drawn:
        pixels = np.asarray(drawn.convert("RGB")).astype(int)
    assert (pixels.max(axis=-1) - pixels.min(axis=-1)).max() > 20
    measured = run("evaluate", folder, *SCENES, "--method", "gradient", *SHORT, "--out", "measured")
    assert measured.exit_code == 0, measured.output


def test_they_are_measured_as_in_python(folder: Path) -> None:
    """By `evaluate` from a method and from saved maps, and by `bench` with labels from a CSV and a report."""
    np.save(folder / "a.npy", scan())
    run("explain", folder, *SCANS, "--method", "gradient", "--target", "1", "--out", "out")
    values = []
    for asked in (("--method", "gradient"), ("--maps", "out")):
        done = run("evaluate", folder, *SCANS, *asked, *SHORT, "--out", asked[0].strip("-"))
        assert done.exit_code == 0, done.output
        rows = read_table(Path(asked[0].strip("-")) / "scores.csv", OutputError)
        values += [float(row["value"]) for row in rows if row["reference"] == "own_mean"]
    scores = aha.evaluate(network(), scan(), "gradient", SHORT[1], target=1)
    (known,) = [row.value for row in scores.rows if row.reference == "own_mean"]
    assert values == pytest.approx([known, known], abs=1e-6)
    (folder / "list.csv").write_text("file,label\na.npy,2\n")
    done = run(
        *("bench", "--data", folder / "list.csv", *SCANS, "--method", "gradient", "--method", "random_map"),
        *(*SHORT[:2], "--target", "label", "--out", "run"),
    )
    assert done.exit_code == 0, done.output
    assert Path("run/report.html").is_file()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("text.npy", "cannot be read"),
        ("photo.png", "photo.png is no array; give .npy"),
        ("flat.npy", "has the shape (12, 10); the model reads 1 channels, (D, H, W, 1) or (1, D, H, W)"),
        ("nan.npy", "values that are not finite"),
        ("empty", "no arrays in the folder"),
        ("missing.npy", "missing.npy does not exist"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "evaluate"])
def test_bad_input_is_one_line(command: str, name: str, says: str, folder: Path) -> None:
    (folder / "text.npy").write_text("no array")
    picture(folder / "photo.png")
    np.save(folder / "flat.npy", np.zeros((12, 10), dtype=np.float32))
    np.save(folder / "nan.npy", np.full(SIZE, np.nan, dtype=np.float32))
    (folder / "empty").mkdir()
    done = run(command, folder / name, *SCANS, "--method", "gradient", "--target", "1", "--out", "out")
    assert done.exit_code == 1
    assert says in done.stderr
    errors = [line for line in done.stderr.splitlines() if not line.startswith("warning: python:")]
    assert len(errors) == 1 + (command == "evaluate" and "nothing could be measured" in done.stderr), done.stderr


def test_what_is_for_photographs_says_so(folder: Path) -> None:
    np.save(folder / "a.npy", scan())
    for command in ("audit", "recommend"):
        method = ("--method", "gradient") * (command == "audit")
        done = run(command, "--data", folder, *SCANS, *method, "--out", "out")
        assert done.exit_code == 1 and "aha evaluate or aha bench" in done.stderr
    kept = run("bench", "--data", folder, *SCANS, "--method", "gradient", "--keep-maps", "float16", "--out", "run")
    assert kept.exit_code == 1 and "not of volumes" in kept.stderr
    tables = run("explain", folder, *SCANS, "--method", "gradient", "--out", "tables", "--shards", "parquet")
    assert tables.exit_code == 1 and "reads volumes" in tables.stderr
    unfit = run("explain", folder, *SCANS, "--method", "mda", "--out", "unfit")
    assert unfit.exit_code == 1 and "mda explains images (C, H, W), not volumes" in unfit.stderr


@pytest.mark.parametrize("size", ["1,0,12,10", "1,4,12,x", "1,2,3,4,5"])
def test_sizes_that_are_none(size: str, folder: Path) -> None:
    np.save(folder / "a.npy", scan())
    done = run("explain", folder, *SCANS[:2], "--input-size", size, *SCANS[4:], "--method", "gradient", "--out", "out")
    assert done.exit_code != 0
    assert not Path("out").exists()
    assert "Traceback" not in done.output

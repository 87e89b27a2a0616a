"""Benchmarks in the explorer: the folder of a run, read as it is, and the way from its images to their pictures."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from asking import MODEL, make_bench, make_client

from aha.auditing.record import PAGE, RECORD
from aha.bench import Plan, run
from aha.errors import MetricError, OutputError
from aha.models import TargetModel
from aha.results.score_table import Row
from aha.web.runs import ServedRun, read_runs

METHODS = ("center_map", "edge_map")


@pytest.fixture(scope="module")
def study(loaded: TargetModel, gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A benchmark of two pictures for the two best classes."""
    folder = tmp_path_factory.mktemp("bench") / "study"
    plan = Plan(
        model=MODEL, data=str(gallery), methods=METHODS, metrics=("ins_del(steps=2)",), targets=("top1", "top2")
    )
    run(plan, folder, model=loaded)
    return folder


def test_each_kind_of_target_is_a_run(study: Path) -> None:
    runs = read_runs(study)
    assert [one.name for one in runs] == [f"study: {MODEL}, top1", f"study: {MODEL}, top2"]
    for one, rows in zip(runs, (1, 2), strict=True):
        overview = one.overview()
        assert (overview["model"], overview["images"], overview["methods"]) == (MODEL, 2, list(METHODS))
        assert len(one.images("edge_map", "ins_del")) == 2 * rows


def test_a_metric_of_two_protocols_is_two_columns(
    loaded: TargetModel, gallery: Path, tmp_path: Path, study: Path
) -> None:
    rows = [
        Row("a.png", "edge_map", "ins_del", protocol, 0, reference, value)
        for protocol, reference, value in [("few", "black", 0.1), ("few", "average", 0.2), ("many", "average", 0.3)]
    ]
    one = ServedRun(study, "both", MODEL, rows)
    assert [(c["metric"], c["protocol"], c["reference"]) for c in one.overview()["columns"]] == [
        ("ins_del", "few", "average"),
        ("ins_del", "many", "average"),
        ("ins_del", "few", "black"),
    ]  # what sums up the others comes first
    with pytest.raises(MetricError, match="protocols few and many"):
        one.images("edge_map", "ins_del")
    assert [image["value"] for image in one.images("edge_map", "ins_del", protocol="many")] == [0.3]
    assert [image["value"] for image in one.images("edge_map", "ins_del", "black", "few")] == [0.1]
    bench = make_bench(loaded, tmp_path, gallery)
    with make_client(bench, [one]) as client:
        asked = client.get("/api/runs/0/images?method=edge_map&metric=ins_del")
        assert asked.status_code == 422 and "protocols few and many" in asked.text
        found = client.get("/api/runs/0/images?method=edge_map&metric=ins_del&protocol=few&reference=black").json()
        assert [image["value"] for image in found["images"]] == [0.1]
    bench.jobs.close()


def test_an_audit_is_told_of_and_opens_in_a_sandbox(
    study: Path, loaded: TargetModel, gallery: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "audit"
    shutil.copytree(study, folder)
    (folder / PAGE).write_text("<h1>audit</h1><script>alert(1)</script>")
    bench = make_bench(loaded, tmp_path, gallery)
    with make_client(bench, read_runs(folder)) as client:
        assert client.get("/api/runs/0").json()["has_audit"] is False  # a page of that name alone is none
        assert client.get("/api/runs/0/audit").status_code == 404
        (folder / RECORD).write_text("{}")
        assert client.get("/api/runs/0").json()["has_audit"] is True
        page = client.get("/api/runs/0/audit")
        assert page.text.startswith("<h1>audit") and "sandbox" in page.headers["content-security-policy"]
        assert client.get("/api/runs/0/report").status_code == 404
    bench.jobs.close()


def test_its_images_are_found_in_the_named_folders(
    study: Path, loaded: TargetModel, gallery: Path, tmp_path: Path
) -> None:
    bench = make_bench(loaded, tmp_path, gallery)
    with make_client(bench, read_runs(study)) as client:
        images = client.get("/api/runs/0/images?method=edge_map&metric=ins_del").json()["images"]
        assert not Path(images[0]["image"]).is_absolute()  # a benchmark names its images within their data
        opened = client.post("/api/runs/0/images", json={"image": images[0]["image"]})
        assert opened.status_code == 201 and opened.json()["name"] == images[0]["title"]
    bench.jobs.close()


def test_a_run_without_cells_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    with pytest.raises(OutputError, match="no scores yet"):
        read_runs(tmp_path)

"""The pages of the study are made of stored rows by one command, and keep what has no rows."""

from __future__ import annotations

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from worlds import tiny_model

from aha.bench import run
from aha.bench.plan import Plan

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are part of the source tree, not of the package", allow_module_level=True)

FORMER = (
    "model,method,family,n,deletion,insertion,ins_del,ins_del_se,gap,gap_se,seconds,forward,backward\n"
    "CLIP ViT-B/16,grad_cam,cam,24,0.09,0.27,0.18,0.03,0.0,0.0,0.8,1.0,1.0\n"
    "ResNet-18,grad_cam,cam,24,0.09,0.27,0.18,0.03,0.0,0.0,0.8,1.0,1.0\n"
    "ResNet-18,lrp,gradient,24,0.07,0.26,0.19,0.03,-5.0,0.1,0.8,1.0,1.0\n"
    "ResNet-18,var(aha),wrapper,24,0.07,0.26,0.19,0.03,-6.0,0.1,0.8,1.0,1.0\n"
)


def test_the_pages_are_made_by_one_command(plan: Plan, tmp_path: Path) -> None:
    runs, out = tmp_path / "runs", tmp_path / "pages"
    search = "search(parts=patches(grid=3), budget=200)"
    metrics = tuple(f"{name}(steps=3)" for name in ("deletion", "insertion", "ins_del"))
    study = replace(plan, methods=("grad_cam", "random_map", "aha", search), metrics=metrics, optional=True)
    run(study, runs / "resnet18", model=tiny_model())
    zero = "references=(zeros_normalised,)"
    table = replace(plan, methods=("simple_deletion",), metrics=(f"deletion(steps=3, {zero})",), paper="caap-table14")
    run(table, runs / "caap-table14", model=tiny_model())
    out.mkdir()
    (out / "scores_summary.csv").write_text(FORMER)
    (out / "papers.md").write_text(
        "# Old\n\n## Mosaics, without and with VAR\n\n### ResNet-18 (in brackets)\n\nkept text\n"
    )
    subprocess.run([sys.executable, str(BENCHMARKS / "study_pages.py"), str(runs), "--out", str(out)], check=True)
    rows = list(csv.DictReader((out / "scores_summary.csv").read_text().splitlines()))
    assert [row["model"] for row in rows] == ["ResNet-18"] * 4 + ["CLIP ViT-B/16"]
    assert rows[3]["method"] == "lrp", "measured before, and not since"
    measured = {row["method"]: row for row in rows if row["model"] == "ResNet-18"}
    assert measured["grad_cam"]["oracle"] == search and measured["grad_cam"]["headroom"]
    tables = (out / "tables.md").read_text()
    assert "its worst tenth" in tables and "An earlier, smaller study" in tables
    page = (out / "papers.md").read_text()
    assert page.startswith("# Where the papers hold") and "kept text" in page
    assert "## The same network" in page and "| `simple_deletion` | deletion | 6 |" in page
    assert (out / "quality_over_cost.svg").is_file()

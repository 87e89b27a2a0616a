"""The pages of the study are made of stored rows by one command, and keep what has no rows."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from worlds import tiny_model

from aha.bench import read_run, run
from aha.bench.plan import Plan

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are part of the source tree, not of the package", allow_module_level=True)

sys.path.insert(0, str(BENCHMARKS))

from study import Photographs  # noqa: E402
from study_papers import _one_each  # noqa: E402
from study_results import (  # noqa: E402
    Result,
    Spread,
    parts_of,
    pooled,
    put_together,
    ranges,
    read_results,
    spread_of,
    write_results,
)

FORMER = (
    "model,method,family,n,deletion,insertion,ins_del,ins_del_se,gap,gap_se,seconds,forward,backward,protocol,common,"
    "photographs\n"
    "CLIP ViT-B/16,grad_cam,cam,24,0.09,0.27,0.18,0.03,0.0,0.0,0.8,1.0,1.0,,,\n"
    "ResNet-18,grad_cam,cam,24,0.09,0.27,0.18,0.03,0.0,0.0,0.8,1.0,1.0,,,\n"
    "ResNet-18,lrp,gradient,24,0.07,0.26,0.19,0.03,-5.0,0.1,0.8,1.0,1.0,,,\n"
    "ResNet-18,var(aha),wrapper,24,0.07,0.26,0.19,0.03,-6.0,0.1,0.8,1.0,1.0,,,\n"
    "ResNet-18,random_map,baseline,20,0.1,0.1,0.0,0.01,-0.1,0.1,0.1,0.0,0.0,quick,20,6-25\n"
)


def pages(out: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, str(BENCHMARKS / "study_pages.py"), *arguments, "--out", str(out)], check=True)


def test_the_pages_are_made_by_one_command(plan: Plan, data: Path, tmp_path: Path) -> None:
    runs, out = tmp_path / "runs", tmp_path / "pages"
    search = "search(parts=patches(grid=3), budget=200)"
    metrics = tuple(f"{name}(steps=3)" for name in ("deletion", "insertion", "ins_del"))
    photographs = Photographs(data / "list.csv", runs)
    for places in (range(4), range(4, 6)):  # in two parts, as on two days
        listed = photographs.piece(places)
        methods = ("grad_cam", "random_map", "aha", search)
        study = replace(plan, data=listed, methods=methods, metrics=metrics, optional=True)
        run(study, runs / "resnet18", model=tiny_model())
    zero = "references=(zeros_normalised,)"
    table = replace(plan, methods=("simple_deletion",), metrics=(f"deletion(steps=3, {zero})",), paper="caap-table14")
    run(table, runs / "caap-table14", model=tiny_model())
    out.mkdir()
    (out / "scores_parts.csv").write_text(FORMER)
    (out / "papers.md").write_text(
        "# Old\n\n## Mosaics, without and with VAR\n\n### ResNet-18 (in brackets)\n\nkept text\n"
    )
    (out / "index.md").write_text("By hand.\n\n<!-- study: coverage -->\nstale\n<!-- end -->\n\nBy hand too.\n")
    pages(out, str(runs), "--data", str(data / "list.csv"), "--forget", "aha")
    rows = list(csv.DictReader((out / "scores_summary.csv").read_text().splitlines()))
    assert [row["model"] for row in rows] == ["ResNet-18"] * 5 + ["CLIP ViT-B/16"]
    assert "lrp" in {row["method"] for row in rows[:5]}, "measured before, and not since"
    measured = {row["method"]: row for row in rows if row["model"] == "ResNet-18"}
    assert measured["grad_cam"]["oracle"] == search and measured["grad_cam"]["headroom"]
    assert (measured["grad_cam"]["n"], measured["grad_cam"]["photographs"]) == ("6", "0-5")
    assert (measured["random_map"]["n"], measured["random_map"]["photographs"]) == ("26", "0-25"), "with other parts"
    tables = (out / "tables.md").read_text()
    assert "its worst tenth" in tables and "An earlier, smaller study" in tables
    page = (out / "papers.md").read_text()
    assert page.startswith("# Where the papers hold") and "kept text" in page
    assert "## The same network" in page and "| `simple_deletion` | deletion | 6 |" in page
    assert (out / "quality_over_cost.svg").is_file()
    index = (out / "index.md").read_text()
    assert index.startswith("By hand.\n") and index.endswith("By hand too.\n") and "stale" not in index
    assert "| ResNet-18 |" in index and "26 (1), 24 (1)" in index

    before = {file.name: file.read_bytes() for file in out.iterdir()}
    pages(out)  # of what it has kept, on a machine without the runs
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_parts_are_put_together_as_if_their_numbers_were_known() -> None:
    numbers = [0.3, -0.1, 0.25, 0.4, 0.0, 0.7, -0.3]
    pieces = [spread_of(numbers[:1]), spread_of(numbers[1:3]), spread_of(numbers[3:]), Spread()]
    assert pooled(pieces) == pytest.approx(spread_of(numbers))
    assert pooled([Spread()]).n == 0


def test_no_photograph_counts_twice(tmp_path: Path) -> None:
    def part(n: int, score: float, photographs: str, protocol: str = "quick") -> Result:
        numbers = {"deletion": 0.1, "insertion": 0.2, "ins_del_se": 0.1, "gap": score, "gap_se": 0.1}
        costs = {"seconds": 1.0, "forward": 1.0, "backward": 1.0}
        return Result(
            "m", "lrp", "gradient", n, ins_del=score, **numbers, **costs,
            common=n, protocol=protocol, photographs=photographs,
        )  # fmt: skip

    parts = [part(10, 0.0, "0-9"), part(30, 0.4, "5-34"), part(5, 0.8, "35-39", "sketch"), part(90, 1.0, "0-99", "")]
    parts[3] = replace(parts[3], protocol="ins_del in 4 or 8 steps")
    found = put_together(parts)
    assert (found.n, found.photographs) == (35, "5-39")
    assert found.ins_del == pytest.approx((30 * 0.4 + 5 * 0.8) / 35)
    assert found.protocol == "quick and sketch"
    halves = [part(12, 0.0, "0-19"), part(10, 0.2, "0-9"), part(10, 0.4, "10-19")]
    assert (put_together(halves).n, put_together(halves).ins_del) == (20, pytest.approx(0.3))
    assert ranges([3, 1, 2, 7]) == "1-3 7-7"
    file = tmp_path / "parts.csv"
    file.write_text("model,method,n,photographs,gap\n")
    assert read_results(file) == []
    whole = replace(parts[0], gap=math.nan, gap_se=math.nan, ins_del_se=math.nan)  # one photograph, without Grad-CAM
    write_results(file, [whole], 6)
    (found,) = read_results(file)
    assert (found.n, found.ins_del) == (10, 0.0) and math.isnan(found.gap) and math.isnan(found.ins_del_se)


def test_each_protocol_has_its_own_parts(plan: Plan, tmp_path: Path) -> None:
    fine, coarse = "quick", "sketch"
    run(replace(plan, metrics=(fine,), limit=3), tmp_path / "run", model=tiny_model())
    run(replace(plan, metrics=(coarse,), methods=("gradient",), limit=2), tmp_path / "run", model=tiny_model())
    place = {f"{number:02d}.png": number for number in range(6)}
    found = parts_of("m", read_run(tmp_path / "run").group(), place)
    assert {(part.protocol, part.method, part.n) for part in found} == {
        (fine, "gradient", 3),
        (fine, "random_map", 3),
        (coarse, "gradient", 2),
    }


def test_of_variants_the_one_that_was_printed_stands_in_the_table() -> None:
    numbers = {"deletion": 0.1, "insertion": 0.2, "ins_del": 0.1, "ins_del_se": 0.1, "gap": 0.0, "gap_se": 0.1}
    costs = {"seconds": 1.0, "forward": 1.0, "backward": 1.0}
    counts = {"lrp": 3, "tis(masks=128)": 9, "tis": 5, "mda(screen=4)": 4, "mda(grid=7)": 8}
    found = _one_each([Result("m", method, "", n, **numbers, **costs) for method, n in counts.items()])
    assert [(name, one.method) for name, one in found.items()] == [
        ("lrp", "lrp"),
        ("tis", "tis"),
        ("mda", "mda(grid=7)"),
    ]

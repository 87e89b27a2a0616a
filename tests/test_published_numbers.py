"""Numbers on the pages that say what wins come from files in `docs/results`, and these from what was measured."""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
PAGES = ("README.md", "docs/aha.md", "docs/results/index.md")
GENERATED = ("tables.md", "papers.md", "baselines.md")  # written by the study, from the same numbers
PAIR = re.compile(r"(\d?\.\d+) ± (\d?\.\d+)")


@cache
def measured() -> list[tuple[float, float]]:
    """Means with their errors, whatever their sign."""
    found = []
    for file in RESULTS.glob("*.csv"):
        for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
            errors = [name for name in row if name.endswith("_se")]
            found += [(abs(float(row[e[:-3]])), float(row[e])) for e in errors if row[e] and row[e[:-3]]]
    for name in GENERATED:
        found += [(float(a), float(b)) for a, b in PAIR.findall((RESULTS / name).read_text(encoding="utf-8"))]
    return found


def is_measured(mean: str, error: str) -> bool:
    """Up to the rounding of what is printed."""
    return any(
        all(abs(float(text) - value) <= 0.5001 * 10.0 ** -len(text.split(".")[1]) for text, value in pair)
        for pair in (((mean, a), (error, b)) for a, b in measured())
    )


@pytest.mark.parametrize("page", PAGES)
def test_every_mean_with_an_error_is_in_a_file(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = PAIR.findall(text)
    assert found
    assert [f"{mean} ± {error}" for mean, error in found if not is_measured(mean, error)] == []


@pytest.mark.parametrize("page", PAGES)
def test_passes_of_tis_are_those_of_the_study(page: str) -> None:
    rows = csv.DictReader((RESULTS / "scores_summary.csv").read_text(encoding="utf-8").splitlines())
    (passes,) = {round(float(row["forward"])) for row in rows if (row["model"], row["method"]) == ("ViT-Ti/16", "tis")}
    text = (ROOT / page).read_text(encoding="utf-8")
    assert re.search(rf"TIS[^|]*\b{passes}\b", text) and "641" not in text


def test_how_far_binned_orders_are_from_full_ones() -> None:
    rows = csv.DictReader((RESULTS / "soft_order.csv").read_text(encoding="utf-8").splitlines())
    found = {(row["scores"], row["temperature"]): (float(row["mean"]), float(row["largest"])) for row in rows}
    for page in (RESULTS / "aha.md", ROOT / "benchmarks" / "README.md"):
        text = page.read_text(encoding="utf-8")
        said = re.search(
            r"(\.\d+) on average and (\.\d+) at most at (?:temperature )?\.1, (?:by )?(\.\d+) and (\.\d+) at \.01", text
        )
        assert said is not None, page
        numbers = [*found["skewed", "0.1"], *found["skewed", "0.01"]]
        for text, value in zip(said.groups(), numbers, strict=True):
            assert float(text) == pytest.approx(value, abs=0.51 * 10.0 ** -len(text[1:]))

"""Draws `images/looks.svg`: what more passes add to one look of AHA, beside every other method of the study.

    python docs/draw_looks.py

Looks and refinement are those of `results/looks.csv`, the other methods those of `results/scores_summary.csv`: all are
mean differences to one look of AHA on the same photographs.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

DOCS = Path(__file__).parent
MODELS = ("ResNet-18", "EfficientNet-Lite0", "ViT-Ti/16")
RANGE = (-0.25, 0.2)  # of what is drawn: maps far behind tell nothing here


def main() -> None:
    """Reads the tables and draws one panel for each network."""
    plt.rcParams["svg.hashsalt"] = "looks"
    drawn, panels = plt.subplots(1, len(MODELS), figsize=(11, 3.6), sharey=True)
    for panel, model in zip(panels, MODELS, strict=True):
        others(panel, model)
        course(panel, model, "looks", "tab:blue", "o-")
        course(panel, model, "refine", "tab:orange", "s")
        panel.axhline(0, color="k", linewidth=0.8)
        panel.set(title=model, xlabel="passes, forward and backward", xscale="log", ylim=RANGE)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("Ins-Del, difference from one look")
    panels[0].legend(loc="lower right", fontsize=8)
    drawn.tight_layout()
    drawn.savefig(DOCS / "images" / "looks.svg", metadata={"Date": None})


def rows(name: str, model: str) -> Iterator[dict[str, str]]:
    """Lines of a table that are about this model."""
    with (DOCS / "results" / name).open(encoding="utf-8", newline="") as file:
        yield from (row for row in csv.DictReader(file) if row["model"] == model)


def course(panel: Axes, model: str, parameter: str, colour: str, style: str) -> None:
    """Maps of the network's own explainer that took more passes, with standard errors."""
    found = [
        (int(row["passes"]), float(row["difference"]), float(row["difference_se"]))
        for row in rows("looks.csv", model)
        if row["map"] == "aha" or row["map"].startswith(f"aha({parameter}=")
    ]
    if parameter != "looks":
        found = found[1:]
    passes, gains, errors = zip(*sorted(found), strict=True)
    panel.errorbar(passes, gains, errors, fmt=style, color=colour, label=f"aha({parameter}=...)", capsize=2)


def others(panel: Axes, model: str) -> None:
    """Every other method of the study."""
    found = [
        (float(row["forward"]) + float(row["backward"]), float(row["behind"]))
        for row in rows("scores_summary.csv", model)
        if row["behind"] and not row["method"].startswith(("aha", "search"))
    ]
    passes, gaps = zip(*((passes, gap) for passes, gap in found if passes and gap > RANGE[0]), strict=True)
    panel.plot(passes, gaps, ".", color="0.6", label="other methods")


if __name__ == "__main__":
    main()

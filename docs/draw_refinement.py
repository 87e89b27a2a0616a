"""Draws `images/refinement.svg`: how far T gradient steps take a map (the paper's figure 3a, from our own run).

    python docs/draw_refinement.py

The numbers are means that `benchmarks/aha_quality.py` gave, kept in `results/refinement.csv`.
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib.pyplot as plt

DOCS = Path(__file__).parent
LINES = {"deletion": ("Deletion ↓", "tab:red"), "insertion": ("Insertion ↑", "tab:blue"), "ins_del": ("Ins-Del ↑", "k")}


def main() -> None:
    """Reads the table and draws it."""
    with (DOCS / "results" / "refinement.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    plt.rcParams["svg.hashsalt"] = "refinement"
    drawn, axes = plt.subplots(1, len(LINES), figsize=(10, 3))
    for axis, (column, (title, colour)) in zip(axes, LINES.items(), strict=True):
        axis.plot([int(row["steps"]) for row in rows], [float(row[column]) for row in rows], "o-", color=colour)
        axis.set(title=title, xlabel="refinement steps T")
        axis.grid(alpha=0.3)
    drawn.suptitle(f"{rows[0]['model']}, {rows[0]['n']} photographs, mean of black, mean colour and blur", fontsize=10)
    drawn.tight_layout()
    drawn.savefig(DOCS / "images" / "refinement.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()

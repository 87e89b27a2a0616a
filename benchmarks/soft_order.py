"""How far are binned soft orders from full ones? Writes `docs/results/soft_order.csv`; no model is touched.

    python benchmarks/soft_order.py [docs/results/soft_order.csv]

Masks of the most important of K regions at S evenly spaced counts, in double precision and with the iterations of
training, for random scores, uniform and skewed as those of few important regions are: the mean and the largest
difference over all masks, for each temperature.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import torch

from aha.learned.ordering import SINKHORN_ITERATIONS, soft_masks_binned, soft_masks_full, standardised

REGIONS, COUNTS, IMAGES = 784, 16, 4
TEMPERATURES = (0.1, 0.03, 0.01, 0.003)


def main(file: Path) -> None:
    uniform = torch.rand(IMAGES, REGIONS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    counts = (torch.arange(1, COUNTS + 1) * REGIONS) // (COUNTS + 1)
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("scores", "temperature", "regions", "counts", "iterations", "mean", "largest"))
        for name, values in (("uniform", uniform), ("skewed", uniform**4)):
            for temperature in TEMPERATURES:
                forms = (
                    form(standardised(values), counts, temperature) for form in (soft_masks_full, soft_masks_binned)
                )
                apart = next(forms).sub(next(forms)).abs()
                found = (f"{float(value):.4f}" for value in (apart.mean(), apart.max()))
                row = (name, temperature, REGIONS, COUNTS, SINKHORN_ITERATIONS, *found)
                print(*row, flush=True)
                writer.writerow(row)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results/soft_order.csv"))

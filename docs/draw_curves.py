"""Draws `images/curves.jpg`: what the network sees while pixels go, and the curves that this gives.

    python docs/draw_curves.py

The photograph comes with scikit-image, the network is the demo's.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import torch

import aha
from aha.demo import MODEL, photographs
from aha.perturb.perturbation import (
    area,
    blend,
    deletion_masks,
    insertion_masks,
    perturbed_outputs,
    rank_pixels,
    step_counts,
)
from aha.perturb.references import load_reference

METHODS = {"grad_cam": "tab:red", "center_map": "tab:blue", "random_map": "tab:grey"}
SHOWN = {"grad_cam": "Grad-CAM", "random_map": "random order"}
GONE, STEPS, REFERENCE = (0.05, 0.2, 0.5), 16, "blur(kernel=31, sigma=10.0)"
OUT = Path(__file__).parent / "images" / "curves.jpg"


def main() -> None:
    """Explains, perturbs and draws."""
    model = aha.load_model(MODEL, batch_size=8)
    (cat,) = photographs(["chelsea.png"])
    found = {name: aha.explain(model, cat, name) for name in METHODS}
    first = found["grad_cam"]
    inputs = model.stated_preprocessing()(first.subjects[0].image)[0][None]
    pixels, classes = model.to_pixels(inputs), first.targets
    blurred = load_reference(REFERENCE)(model, pixels, classes)
    ranks = {name: rank_pixels(part.maps[0]) for name, part in found.items()}
    total = ranks["grad_cam"].numel()
    counts = torch.tensor(step_counts(total, STEPS))

    figure = plt.figure(figsize=(9, 6.4), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(1.15, 1))
    for row, (name, title) in zip(above.subplots(len(SHOWN), len(GONE) + 2), SHOWN.items(), strict=True):
        pictures = [pixels, blend(pixels, blurred, deletion_masks(ranks[name], (torch.tensor(GONE) * total).long()))]
        row[0].imshow(found[name].maps[0], cmap="inferno")
        row[0].set_ylabel(title)
        for axis, picture, gone in zip(row[1:], torch.cat(pictures), (0.0, *GONE), strict=True):
            axis.imshow(picture.permute(1, 2, 0).clamp(0, 1))
            axis.set_title(f"{gone:.0%} gone", fontsize=9)
        for axis in row:
            axis.set_xticks([])
            axis.set_yticks([])

    axes = below.subplots(1, 2, sharey=True)
    for axis, title, masks in zip(axes, ("Deletion", "Insertion"), (deletion_masks, insertion_masks), strict=True):
        for name, colour in METHODS.items():
            keep = masks(ranks[name], counts)
            outputs = perturbed_outputs(
                model, pixels, blurred, torch.zeros(len(counts), dtype=torch.long), lambda part, keep=keep: keep[part]
            )
            curve = model.score(outputs, classes.expand(len(counts)))
            height = float(area(counts / total, curve))
            axis.plot(counts / total, curve, color=colour, marker=".", label=f"{name}: {height:.2f}")
        axis.set_xlabel("share of the pixels " + ("gone" if title == "Deletion" else "back"))
        axis.set_title(f"{title} ({'lower' if title == 'Deletion' else 'higher'} is better)", fontsize=10)
        axis.legend(fontsize=8)
    axes[0].set_ylabel(f"probability of “{first.labels[0]}”")
    OUT.parent.mkdir(exist_ok=True)
    figure.savefig(OUT, dpi=110, pil_kwargs={"quality": 88, "optimize": True})


if __name__ == "__main__":
    main()

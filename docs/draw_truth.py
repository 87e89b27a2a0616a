"""Draws `images/truth.png`: generated scenes, and the pixels that matter in them.

python docs/draw_truth.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import torch

from aha.truth.scenes import Scene

OUT = Path(__file__).parent / "images" / "truth.png"
SCENES = (
    Scene("linear, white", "linear", "white", 64),
    Scene("multiplicative, white", "multiplicative", "white", 64),
    Scene("rotated, correlated", "rotated", "correlated", 64),
    Scene("xor, correlated", "xor", "correlated", 64),
)


def main() -> None:
    """A column for each kind of scene: the image above, what matters below."""
    figure, axes = plt.subplots(2, len(SCENES), figsize=(10, 5.2), layout="constrained")
    for column, scene in zip(axes.T, SCENES, strict=True):
        drawn = scene.drawn(1, torch.Generator().manual_seed(1))
        assert drawn.truth is not None
        column[0].imshow(drawn.pictures[0, 0], cmap="gray", vmin=0, vmax=1)
        column[0].set_title(f"{scene.name}: class {int(drawn.labels[0])}", fontsize=11)
        column[1].imshow(drawn.truth[0], cmap="gray_r")
        column[1].set_title("what matters", fontsize=11)
        for axis in column:
            axis.set(xticks=[], yticks=[])
    figure.savefig(OUT, dpi=90)
    plt.close(figure)


if __name__ == "__main__":
    main()

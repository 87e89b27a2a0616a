"""Draws `images/examples.jpg`: what `examples/shortcut.py` finds about two networks.

    python docs/draw_examples.py

Photographs come with scikit-image.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import matplotlib.pyplot as plt

import aha

DOCS = Path(__file__).parent
NETWORKS = {"grass always has the sticker": (1.0, 0.0), "half of all pictures have it": (0.5, 0.5)}


def example(name: str) -> ModuleType:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS.parent / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Trains both networks, and draws where each looks on the same picture of grass."""
    shortcut = example("shortcut")
    images, _, masks = shortcut.pictures(16, seed=1, share=(1.0, 0.0))
    chosen = [image.permute(1, 2, 0).numpy() for image in images[:16]]
    method = shortcut.METHODS[0]
    figure, axes = plt.subplots(1, 1 + len(NETWORKS), figsize=(9, 3.5), layout="constrained")
    axes[0].imshow(chosen[0])
    axes[0].set_title("a piece of grass, with a sticker", fontsize=10)
    for axis, (title, share) in zip(axes[1:], NETWORKS.items(), strict=True):
        options = {"input_size": shortcut.SIZE, "mean": [0.5] * 3, "std": [0.5] * 3, "class_names": ["grass", "gravel"]}
        explanation = aha.explain(aha.load_model(shortcut.trained(share), **options), chosen, method, target="grass")
        axis.imshow(explanation.overlay(opacity=0.75, signed=False, caption=False))
        axis.set_title(f"trained where {title}", fontsize=10)
        axis.set_xlabel(f"{shortcut.on_sticker(explanation.maps, masks[:16]):.0%} of the top pixels are on the sticker")
    for axis in axes:
        axis.set_xticks([])
        axis.set_yticks([])
    figure.savefig(DOCS / "images" / "examples.jpg", dpi=110, pil_kwargs={"quality": 88, "optimize": True})


if __name__ == "__main__":
    main()

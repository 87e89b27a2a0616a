"""Draws `images/migration.jpg`: Grad-CAM of one network on one photograph, as captum gives it and as it comes here.

    python docs/draw_migration.py

Needs captum. The photograph comes with scikit-image, the network is the demo's.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from captum.attr import LayerGradCam

import aha
from aha.demo import MODEL, photographs

OUT = Path(__file__).parent / "images" / "migration.jpg"


def main() -> None:
    """Explains twice, and draws what one holds afterwards."""
    model = aha.load_model(MODEL)
    explanation = aha.explain(model, photographs(["coffee.png"]), "grad_cam")
    inputs = model.stated_preprocessing()(explanation.subjects[0].image)[0][None]
    # What captum has to be told is the layer; it gets the one that is found here.
    layer = model.module.get_submodule(model.structure().stages[-1].name)
    theirs = LayerGradCam(model.module, layer).attribute(inputs, target=explanation.targets, relu_attributions=True)
    panels = (
        (theirs[0, 0].detach(), f"captum: {tuple(theirs.shape)}, a layer's grid"),
        (explanation.maps[0], f"aha: {tuple(explanation.maps.shape)}, the input's size"),
        (explanation.overlay(), "aha: .overlay(), the original picture"),
    )
    figure, axes = plt.subplots(1, len(panels), figsize=(9.6, 3.2), layout="constrained")
    for axis, (picture, title) in zip(axes, panels, strict=True):
        axis.imshow(picture, cmap="inferno", interpolation="nearest")
        axis.set_title(title, fontsize=9)
        axis.set_axis_off()
    figure.savefig(OUT, dpi=120, pil_kwargs={"quality": 88, "optimize": True})


if __name__ == "__main__":
    main()

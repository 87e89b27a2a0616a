"""Draws the pictures of task pages, `images/NAME.jpg`.

    python docs/draw_tasks.py [medical | multi_label | own_method | segmentation | detection | similarity]...

Pictures come with scikit-image, the network is the demo's. The method is the one that `tasks/own_method.md` shows,
taken from that page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.patches import Rectangle
from PIL import Image, ImageOps
from torch import Tensor, nn

import aha
from aha.demo import MODEL, photographs

HERE = Path(__file__).parent
Panel = tuple[Any, str]


def medical() -> list[Panel]:
    """What a network sees of a picture that is not square."""
    (path,) = photographs(["cell.png"])
    cells = Image.open(path).convert("RGB")
    panels: list[Panel] = [(cells, f"the picture, {cells.width} x {cells.height}")]
    for fit, words in (("crop", "its centre"), ("pad", "all of it, with borders"), ("squash", "all of it, squashed")):
        model = aha.load_model(MODEL, fit=fit)
        inputs = model.stated_preprocessing()(cells)[0]
        panels.append((model.to_pixels(inputs[None])[0].permute(1, 2, 0).clamp(0, 1), f"fit={fit!r}: {words}"))
    return panels


def multi_label() -> list[Panel]:
    """Two classes of one picture that shows both, and who wins where."""
    model, names = aha.load_model(MODEL), ["tiger cat", "espresso"]
    both = Image.new("RGB", (480, 480))
    for left, path in zip((0, 240), photographs(["chelsea.png", "coffee.png"]), strict=True):
        both.paste(ImageOps.fit(Image.open(path).convert("RGB"), (240, 480)), (left, 0))
    found = aha.explain(model, both, "grad_cam", target=[names])
    contrast = aha.explain(model, both, f"var(grad_cam, classes={names})", target=names[0])
    maps = [(found.overlay(row), label) for row, label in enumerate(found.labels)]
    return [(both, "the picture"), *maps, (contrast.composite(), "var: who wins where")]


class Dense(nn.Module):
    """The demo's network turned fully convolutional: scores (B, 1000, h, w) of classes at places."""

    def __init__(self) -> None:
        super().__init__()
        self.body = aha.load_model(MODEL).module

    def forward(self, images: Tensor) -> Tensor:
        """Scores of an image whose sides are multiples of 32."""
        features = self.body.forward_features(images)  # (B, 1280, h, w)
        return F.conv2d(features, self.body.classifier.weight[:, :, None, None], self.body.classifier.bias)


class Windows(Dense):
    """The same as a detector: each window of 5 x 4 places is a candidate, with the mean probability in it."""

    def forward(self, images: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        """Boxes (B, N, 4) and scores (B, N, 1000)."""
        means = F.avg_pool2d(super().forward(images).softmax(dim=1), (5, 4), stride=1)  # (B, 1000, r, c)
        rows, columns = means.shape[-2:]
        y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        boxes = 32.0 * torch.stack([x, y, x + 4, y + 5], dim=-1).flatten(0, 1)
        return {"boxes": boxes.expand(len(images), -1, 4), "scores": means.flatten(2).movedim(1, 2)}


def placed(network: nn.Module, side: int) -> aha.TargetModel:
    """A network over the demo's, for square images of this side."""
    demo = aha.load_model(MODEL)
    stated = demo.stated_preprocessing()
    names = demo.class_names
    return aha.load_model(
        network, input_size=side, fit="squash", mean=stated.mean, std=stated.std, class_names=names, batch_size=4
    )


def mosaic(side: int, names: Sequence[str], columns: int) -> Image.Image:
    """Photographs side by side, or in two rows."""
    whole, rows = Image.new("RGB", (side, side)), len(names) // columns
    for place, path in enumerate(photographs(names)):
        size = (side // columns, side // rows)
        tile = ImageOps.fit(Image.open(path).convert("RGB"), size)
        whole.paste(tile, (place % columns * size[0], place // columns * size[1]))
    return whole


def boxed(picture: Any, box: tuple[float, ...]) -> Any:
    """A picture with a box drawn in it."""
    return picture, box


def segmentation() -> list[Panel]:
    """The class scores of two halves of a picture."""
    image, model = mosaic(448, ["chelsea.png", "coffee.png"], 2), placed(Dense(), 448)
    panels: list[Panel] = [(image, "the picture")]
    for cls, box in (("tiger cat", (0, 0, 224, 448)), ("espresso", (224, 0, 448, 448))):
        found = aha.explain(model, image, "aha", aha.targets.region(cls=cls, box=box))
        panels.append((boxed(found.overlay(caption=False), box), f"{cls!r} in the box"))
    return panels


def detection() -> list[Panel]:
    """Two boxes of a sliding-window detector."""
    image, model = mosaic(448, ["chelsea.png", "coffee.png"], 2), placed(Windows(), 448)
    panels: list[Panel] = [(image, "the picture")]
    for cls, box in (("tiger cat", (32, 96, 160, 256)), ("espresso", (288, 160, 416, 320))):
        found = aha.explain(model, image, "grad_cam", aha.targets.box(*box, cls=cls))
        panels.append((boxed(found.overlay(caption=False), box), f"{cls!r}: {float(found.scores[0]):.2f}"))
    return panels


def similarity() -> list[Panel]:
    """A cat, and what makes a mosaic like it."""
    demo = aha.load_model(MODEL)
    demo.module.reset_classifier(0)
    stated = demo.stated_preprocessing()
    encoder = aha.load_model(demo.module, input_size=224, fit="squash", mean=stated.mean, std=stated.std)
    (path,) = photographs(["chelsea.png"])
    cat = ImageOps.mirror(Image.open(path).convert("RGB"))
    image = mosaic(448, ["coffee.png", "chelsea.png", "rocket.jpg", "camera.png"], 2)
    panels: list[Panel] = [(cat, "compared with"), (image, "the image")]
    for method in ("grad_cam", "aha"):
        found = aha.explain(encoder, image, method, aha.targets.similarity(picture=cat))
        panels.append((found.overlay(caption=False), f"{method}: cosine {float(found.scores[0]):.2f}"))
    return panels


def own_method() -> list[Panel]:
    """The method of the page, with two parameters and smoothed."""
    page = (HERE / "tasks" / "own_method.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    exec(compile(code, "own_method.md", "exec", dont_inherit=True), {"__name__": __name__})
    model, (cat,) = aha.load_model(MODEL), photographs(["chelsea.png"])
    texts = ["sharpened", "sharpened(power=0.5)", "smooth(sharpened(power=0.5), n=16)"]
    return [(Image.open(cat), "the picture"), *((aha.explain(model, cat, text).overlay(), text) for text in texts)]


PICTURES: dict[str, Callable[[], list[Panel]]] = {
    "medical": medical,
    "multi_label": multi_label,
    "own_method": own_method,
    "segmentation": segmentation,
    "detection": detection,
    "similarity": similarity,
}


def draw(name: str, panels: Sequence[Panel]) -> None:
    """The panels side by side."""
    figure, axes = plt.subplots(1, len(panels), figsize=(2.9 * len(panels), 3.1), layout="constrained")
    for axis, (picture, title) in zip(axes, panels, strict=True):
        if isinstance(picture, tuple):
            picture, (x0, y0, x1, y1) = picture
            axis.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor="white", linewidth=2))
        axis.imshow(picture)
        axis.set_title(title, fontsize=9)
        axis.set_axis_off()
    figure.savefig(HERE / "images" / f"{name}.jpg", dpi=120, pil_kwargs={"quality": 85, "optimize": True})


def main(names: Sequence[str]) -> None:
    """Draws these, or all of them."""
    for name in names or PICTURES:
        draw(name, PICTURES[name]())


if __name__ == "__main__":
    main(sys.argv[1:])

"""Draws the pictures of three task pages: `images/medical.jpg`, `images/multi_label.jpg` and `images/own_method.jpg`.

    python docs/draw_tasks.py [medical | multi_label | own_method]...

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
from PIL import Image, ImageOps

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
}


def draw(name: str, panels: Sequence[Panel]) -> None:
    """The panels side by side."""
    figure, axes = plt.subplots(1, len(panels), figsize=(2.9 * len(panels), 3.1), layout="constrained")
    for axis, (picture, title) in zip(axes, panels, strict=True):
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

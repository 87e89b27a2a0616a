"""Draws the diagrams of the guides: boxes from left to right, each with what it does underneath.

python docs/draw_diagrams.py
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

IMAGES = Path(__file__).parent / "images"
WIDTH, HEIGHT, GAP, MARGIN = 156, 64, 44, 12
NOTE = 15  # pixels of a line under a box


class Box(NamedTuple):
    """A stage: its name, and lines about it."""

    name: str
    notes: tuple[str, ...] = ()
    is_yours: bool = False


DIAGRAMS: dict[str, tuple[str, Sequence[Box]]] = {
    "models": (
        "From an image to a map: read, preprocessed, run through your model, explained, mapped back to the image",
        [
            Box("image", ("path, PIL, array,", "folder, DataLoader")),
            Box("preprocessed", ("as in the model's", "own evaluation")),
            Box("your network", ("traced, never changed",), is_yours=True),
            Box("method", ("one map per", "image and class")),
            Box("on the image", ("original pixels, NaN where", "the model saw nothing")),
        ],
    ),
    "scale": (
        "Images are divided among processes, each writes its own file, and the last one writes the report",
        [
            Box("plan", ("models, methods,", "metrics, data")),
            Box("n processes", ("each takes every", "n-th image")),
            Box("n files", ("only ever appended to;", "a crash loses one cell")),
            Box("report", ("the same, whatever", "n was")),
        ],
    ),
    "deploy": (
        "Your model and its trained explainer become one ONNX graph that ONNX Runtime runs",
        [
            Box("your model", ("with its weights",), is_yours=True),
            Box("explainer", ("trained once", "for this model")),
            Box("one ONNX graph", ("checked against", "PyTorch")),
            Box("anywhere", ("pixels and classes in,", "maps out")),
        ],
    ),
    "recommend": (
        "All methods start on two images; the better half continues on more, the best are checked, one is recommended",
        [
            Box("all that fit", ("on two of", "your images")),
            Box("the better half", ("on twice as many, with those", "not significantly worse")),
            Box("the last few", ("on as many as", "the budget allows")),
            Box("sanity", ("class, noise", "and weights")),
            Box("one sentence", ("what to use, by how much,", "and how certain")),
        ],
    ),
    "train": (
        "A frozen network scores images with pixels removed; a small decoder learns the order that matters",
        [
            Box("images", ("some thousand,", "no labels needed")),
            Box("frozen network", ("gives features, and scores", "of perturbed images"), is_yours=True),
            Box("decoder", ("learns to order pixels by", "Deletion and Insertion")),
            Box("maps in one pass", ("refined per image", "if you like")),
        ],
    ),
    "aha": (
        "One forward and one backward pass give evidence, a decoder corrects it level by level, outlines sharpen it",
        [
            Box("your network", ("one forward pass,", "one backward pass"), is_yours=True),
            Box("evidence", ("for the class,", "at four levels")),
            Box("decoder", ("corrects the map from", "deep to shallow levels")),
            Box("outlines", ("values stop at the", "borders of regions")),
            Box("map", ("an order of pixels,", "refined if you like")),
        ],
    ),
    "huggingface": (
        "A repository, a folder or a model in memory: its files say what its inputs and its classes are",
        [
            Box("hf:PLACE", ("or a model", "in memory"), is_yours=True),
            Box("processor", ("size, mean and", "deviation")),
            Box("config", ("names of", "the classes")),
            Box("explain", ("every method that fits,", "no layer to name")),
        ],
    ),
    "clip": (
        "Texts are embedded once and become the classes; an image then passes through the image tower only",
        [
            Box("texts", ("a cat,", "a dog on grass"), is_yours=True),
            Box("text tower", ("runs once,", "then is not needed")),
            Box("class vectors", ("one per text, new ones", "without training")),
            Box("image tower", ("read by every method,", "attention too")),
            Box("a map per text", ("for the text that", "you ask about")),
        ],
    ),
    "own_module": (
        "Your transform is probed with black, white and ramps, so that maps fit the original image",
        [
            Box("your module", ("any nn.Module,", "left unchanged"), is_yours=True),
            Box("your transform", ("or input_size,", "mean and std"), is_yours=True),
            Box("probed", ("with black, white", "and ramps")),
            Box("explain", ("by what the module", "provides")),
            Box("on the image", ("where the transform", "only crops and scales")),
        ],
    ),
    "refusals": (
        "Texts are checked before torch is imported, the model before any work, maps and scores before they are shown",
        [
            Box("texts", ("misspelt names,", "missing files: at once")),
            Box("model", ("does it give what", "the method reads?")),
            Box("maps", ("flat or not finite:", "a warning and its cause")),
            Box("scores", ("nothing measured: an error;", "some failed: counted")),
        ],
    ),
    "security": (
        "Data from outside is checked or refused before it reaches your machine's memory, disk or interpreter",
        [
            Box("from outside", ("images, weights,", "texts, visitors")),
            Box("limits", ("size, time, number;", "a token, a host name")),
            Box("data only", ("nothing is unpickled", "or evaluated")),
            Box("your machine", ("code runs only where", "you name it"), is_yours=True),
        ],
    ),
}


def drawn(title: str, boxes: Sequence[Box]) -> str:
    """An SVG that follows the reader's light or dark page."""
    lines = max(len(box.notes) for box in boxes)
    width = 2 * MARGIN + len(boxes) * WIDTH + (len(boxes) - 1) * GAP
    height = 2 * MARGIN + HEIGHT + 8 + lines * NOTE
    parts = [_box(box, MARGIN + place * (WIDTH + GAP)) for place, box in enumerate(boxes)]
    parts += [_arrow(MARGIN + place * (WIDTH + GAP) - GAP) for place in range(1, len(boxes))]
    style = (
        "text{font:14px system-ui,sans-serif;text-anchor:middle;fill:#1a1a1e}.n{font-size:12px;fill:#5f5f68}"
        "rect{fill:#fff;stroke:#b9b9b3}.y{stroke:#b4431c;stroke-width:2}path{stroke:#5f5f68;fill:none;stroke-width:1.5}"
        "@media(prefers-color-scheme:dark){text{fill:#ececf0}.n{fill:#a6a6b0}rect{fill:#1b1b1f;stroke:#55555f}"
        ".y{stroke:#ff9a6b}path{stroke:#a6a6b0}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{html.escape(title)}</title><style>{style}</style>{''.join(parts)}</svg>\n"
    )


def _box(box: Box, left: int) -> str:
    middle, kind = left + WIDTH / 2, ' class="y"' if box.is_yours else ""
    notes = "".join(
        f'<text class="n" x="{middle}" y="{MARGIN + HEIGHT + 18 + row * NOTE}">{html.escape(note)}</text>'
        for row, note in enumerate(box.notes)
    )
    name = f'<text x="{middle}" y="{MARGIN + HEIGHT / 2 + 5}">{html.escape(box.name)}</text>'
    return f'<rect{kind} x="{left}" y="{MARGIN}" width="{WIDTH}" height="{HEIGHT}" rx="10"/>{name}{notes}'


def _arrow(left: int) -> str:
    y, tip = MARGIN + HEIGHT / 2, left + GAP - 6
    return f'<path d="M{left + 6} {y}H{tip}M{tip - 6} {y - 5}L{tip} {y}L{tip - 6} {y + 5}"/>'


def main() -> None:
    """Writes all of them."""
    for name, (title, boxes) in DIAGRAMS.items():
        (IMAGES / f"{name}.svg").write_text(drawn(title, boxes), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Explanations as one HTML page that needs nothing else: pictures embedded, no scripts, light and dark."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image
from torch import Tensor

from aha.core.disk import versions, write_atomically
from aha.core.pictures import encoded
from aha.data.batches import Subject
from aha.data.targets import top_classes
from aha.drawing.colours import DIVERGING, SEQUENTIAL, Scale, is_signed, is_symmetric, lookup_table, scale_of
from aha.models import TargetModel
from aha.results.cards import Card, two_digits
from aha.results.explanation import Explanation
from aha.results.templating import templates_of

_MAX_WIDTH = 480
_QUALITY = 84
# Denser than elsewhere because cells are small; signed evidence, mostly in single pixels, would drown otherwise.
_OPACITY, _SIGNED_OPACITY = 0.7, 0.95
_STOPS = 12  # enough for a CSS gradient to look like the colour map


@dataclass(frozen=True)
class Prediction:
    """A class and the score that the model gives it."""

    label: str
    score: float


@dataclass(frozen=True)
class MapCell:
    """One map over its photograph.

    Attributes:
        picture: as a data URI.
        low: value of the lowest colour.
        high: value of the highest colour.
        is_signed: the colours tell evidence for the class from evidence against it.
        notes: short remarks, such as measurements of this map.
    """

    picture: str
    low: float
    high: float
    is_signed: bool
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class ExplainedClass:
    """A class of a photograph with its cells, one per method, and what was measured of the first, in words."""

    label: str
    score: float
    cells: Sequence[MapCell]
    measured: str = ""


@dataclass(frozen=True)
class Frame:
    """Where the model looked, in percent of the photograph's width and height."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True)
class Photograph:
    """A photograph, what the model takes it for, and the explanations.

    Attributes:
        picture: all of it, as a data URI.
        seen: the part that the model saw, which is also what the cells show.
        frame: where that part is.
    """

    title: str
    picture: str
    seen: str
    frame: Frame
    predictions: Sequence[Prediction]
    classes: Sequence[ExplainedClass]


@dataclass(frozen=True)
class MethodColumn:
    """A method, how to read its maps, and the seconds that one of them takes."""

    method: str
    reading: str
    seconds: float


@dataclass(frozen=True)
class Gallery:
    """Everything a page shows.

    Attributes:
        model: properties of the model, by name.
        command: command line that makes the page again.
        python: code that computes the same maps.
        seconds: time for all of it.
    """

    title: str
    model: dict[str, str]
    columns: Sequence[MethodColumn]
    photographs: Sequence[Photograph]
    command: str
    python: str
    seconds: float


def photograph(
    title: str, explanations: Sequence[Explanation], predicted: Sequence[Prediction], cards: Sequence[Card] = ()
) -> Photograph:
    """A photograph's part of the page.

    Args:
        title: what the photograph shows.
        explanations: of this one photograph, one per method, all for the same classes.
        predicted: the model's best classes, best first.
        cards: faithfulness cards of the first class, one per method.
    """
    first = explanations[0]
    classes = []
    for index in range(len(first)):
        known = cards if index == 0 else ()
        cells = [_cell(explanation, index) for explanation in explanations]
        cells = (
            [
                replace(cell, notes=[f"Ins-Del {two_digits(card.curves.ins_del)}"])
                for cell, card in zip(cells, known, strict=True)
            ]
            if known
            else cells
        )
        measured = f"{first.method}: {known[0].sentence}" if known else ""
        classes.append(ExplainedClass(first.labels[index], float(first.scores[index]), cells, measured))
    subject = first.subjects[0]
    seen = embedded(subject.image.crop(window(subject)))
    return Photograph(title, embedded(subject.image), seen, _frame(subject), predicted, classes)


def window(subject: Subject) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the part of a picture that the model saw, in whole pixels."""
    top, left, bottom, right = subject.geometry.box
    width, height = subject.image.size
    return max(0, round(left)), max(0, round(top)), min(width, round(right)), min(height, round(bottom))


def overlay(explanation: Explanation, index: int = 0, scale: Scale | None = None) -> Image.Image:
    """A map over the part of its picture that the model saw."""
    signed = is_signed(explanation.original_map(index)) if scale is None else is_symmetric(scale)
    opacity = _SIGNED_OPACITY if signed else _OPACITY
    drawn = explanation.overlay(index, opacity=opacity, signed=signed, caption=False, scale=scale or "own")
    return drawn.crop(window(explanation.subjects[index]))


def predictions(model: TargetModel, inputs: Tensor, count: int = 5) -> list[Prediction]:
    """The best classes of one input (1, C, H, W), best first."""
    outputs = model.outputs(inputs)
    classes = top_classes(outputs, min(count, model.num_classes))[0]
    scores = model.score(outputs.expand(len(classes), -1), classes)
    return [Prediction(model.class_name(int(c)), float(s)) for c, s in zip(classes, scores, strict=True)]


def describe_model(model: TargetModel) -> dict[str, str]:
    """Properties that a reader may want to know."""
    height, width = model.stated_preprocessing().size
    return {
        "model": model.spec,
        "digest of its weights": model.digest[:12],
        "input": f"{height} x {width}, {model.stated_preprocessing().fit}",
        "score": model.score.name,
        "device": str(model.device),
    }


def write(gallery: Gallery, path: Path) -> None:
    """Writes the page, whole or not at all."""
    text = page(gallery).encode()
    write_atomically(path, lambda file: file.write(text))


def page(gallery: Gallery) -> str:
    """The page as text."""
    environment = templates_of("aha.results")
    return environment.get_template("gallery.html").render(
        gallery=gallery,
        versions=versions(),
        sequential=_gradient(SEQUENTIAL),
        diverging=_gradient(DIVERGING),
    )


def embedded(picture: Image.Image, most: int = _MAX_WIDTH) -> str:
    """A picture as a data URI, at most as wide as a cell of the page can be on a dense screen."""
    if picture.width > most:
        height = max(1, round(picture.height * most / picture.width))
        picture = picture.resize((most, height), Image.Resampling.LANCZOS)
    content = encoded(picture, "JPEG", quality=_QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(content).decode()


def _cell(explanation: Explanation, index: int) -> MapCell:
    scale = scale_of(explanation.original_map(index))
    return MapCell(embedded(overlay(explanation, index)), scale.low, scale.high, scale.cmap == DIVERGING)


def _frame(subject: Subject) -> Frame:
    left, top, right, bottom = window(subject)
    across, down = 100 / subject.image.width, 100 / subject.image.height
    return Frame(left * across, top * down, (right - left) * across, (bottom - top) * down)


def _gradient(cmap: str) -> str:
    """A colour map as a CSS gradient from left to right."""
    table = lookup_table(cmap)
    stops = (table[round(i * (len(table) - 1) / (_STOPS - 1))] for i in range(_STOPS))
    return f"linear-gradient(90deg, {', '.join('#' + bytes(stop).hex() for stop in stops)})"

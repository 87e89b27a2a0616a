"""Explanations as one object that the viewer's scripts read: pictures, maps, the order of their pixels, curves."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from aha.core.axes import VOLUME
from aha.core.pictures import encoded
from aha.data.batches import Subject
from aha.drawing.colours import DIVERGING, SEQUENTIAL, lookup_table
from aha.errors import OutputError
from aha.perturb.perturbation import rank_pixels
from aha.perturb.references import Blur, blurred
from aha.results.cards import Card
from aha.results.viewer.records import CurvesRecord, Drawn, curves_record, drawn

if TYPE_CHECKING:
    from aha.results.explanation import Explanation

MOST_MAPS = 60  # each is some hundred kilobytes of the page
_LARGEST_SHORT = 2**16


class ViewerCard(TypedDict):
    """What a card says of a map."""

    curves: CurvesRecord
    random: CurvesRecord | None
    sentence: str


class ViewerMap(Drawn):
    """A map of one of the pictures; arrays are base64 of little-endian bytes."""

    picture: int
    method: str
    target: int
    label: str
    score: float
    is_probability: bool
    seconds: float
    values: str  # float16 shares of the unit
    wide: bool
    ranks: str  # uint32 where they are wide, else uint16
    pixels: int  # that are ranked: those of the map, or all voxels of the volume whose slice it is
    card: ViewerCard | None


class ViewerPicture(TypedDict):
    """What the model sees of a picture, and the same blurred; PNG files in base64."""

    name: str
    view: str
    blank: str


class Payload(TypedDict):
    """All that a viewer shows."""

    pictures: list[ViewerPicture]
    maps: list[ViewerMap]
    colours: dict[str, str]
    slices: int  # if the pictures are those of one volume


def payload(explanations: Sequence[Explanation]) -> Payload:
    """Everything that the viewer shows; explanations of the same pictures stand side by side.

    Of a volume, each slice is a picture: all of them, or evenly spaced ones if a page cannot hold so many.

    Raises:
        OutputError: There are more maps than a page can hold.
    """
    count = sum(len(one) for one in explanations)
    if count > MOST_MAPS:
        raise OutputError(f"{count} maps are too many for one page; show at most {MOST_MAPS}, for example found[:10]")
    places: dict[tuple[str, tuple[int, int]], int] = {}
    pictures: list[ViewerPicture] = []
    maps: list[ViewerMap] = []
    for explanation in explanations:
        for index, subject in enumerate(explanation.subjects):
            key = (subject.name, subject.geometry.model)
            slices = _slices(subject, explanation.maps[index], max(1, MOST_MAPS // count))
            if key not in places:
                places[key] = len(pictures)
                pictures += [_picture(one) for _, one in slices]
            maps += [_map(explanation, index, places[key] + row, number) for row, (number, _) in enumerate(slices)]
    colours = {name: _text(lookup_table(name).tobytes()) for name in (SEQUENTIAL, DIVERGING)}
    is_one_volume = len(places) == 1 and len(pictures) > 1
    return {
        "pictures": pictures,
        "maps": maps,
        "colours": colours,
        "slices": len(pictures) if is_one_volume else 0,
    }


def _slices(subject: Subject, values: Tensor, most: int) -> list[tuple[int, Subject]]:
    """The picture itself, or slices of a volume's map (D, H, W) with their numbers, at most so many."""
    if values.dim() == 2:
        return [(0, subject)]
    numbers = np.unique(np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int)).tolist()
    frames = subject.frames
    # A volume that was resized has other slices than the model saw: the one under the centre is shown.
    own = [min(len(frames) - 1, int((number + 0.5) * len(frames) / len(values))) for number in numbers]
    return [
        (number, replace(subject, name=f"{subject.name}, slice {frame}", image=frames[frame], frames=()))
        for number, frame in zip(numbers, own, strict=True)
    ]


def _map(explanation: Explanation, index: int, picture: int, number: int) -> ViewerMap:
    values = explanation.maps[index].nan_to_num(0.0)
    how = drawn(values.flatten(0, -2))  # of a volume: one scale for all slices
    ranks = rank_pixels(values, seed=int(str(explanation.settings.get("seed", 0)))).numpy()
    is_wide, pixels = ranks.size > _LARGEST_SHORT, ranks.size
    if values.dim() == VOLUME - 1:
        values, ranks = values[number], ranks[number]
    how["height"] = len(values)
    return {
        **how,
        "picture": picture,
        "method": explanation.method,
        "target": int(explanation.targets[index]),
        "label": explanation.labels[index],
        "score": float(explanation.scores[index]),
        "is_probability": explanation.settings.get("score") in ("softmax", "sigmoid"),
        "seconds": explanation.seconds / max(1, len(explanation)),
        "values": _text((values / how["unit"]).numpy().astype("<f2").tobytes()),
        "wide": is_wide,
        "ranks": _text(ranks.astype("<u4" if is_wide else "<u2").tobytes()),
        "pixels": pixels,
        "card": _card(explanation.cards[index]) if explanation.cards else None,
    }


def _card(card: Card) -> ViewerCard:
    random = card.baselines.get("random_map")
    return {
        "curves": curves_record(card.curves),
        "random": None if random is None else curves_record(random),
        "sentence": card.sentence,
    }


def _picture(subject: Subject) -> ViewerPicture:
    """The part that the model sees, at its size, and the same blurred: what is shown where pixels are gone."""
    view = _model_view(subject)
    pixels = torch.from_numpy(np.asarray(view).copy()).permute(2, 0, 1).float() / 255  # (3, H, W)
    default = Blur()
    blank = blurred(pixels[None], default.kernel, default.sigma)[0]
    return {"name": subject.name, "view": _text(encoded(view, "PNG")), "blank": _text(encoded(_as_image(blank), "PNG"))}


def _model_view(subject: Subject) -> Image.Image:
    top, left, bottom, right = subject.geometry.box
    (height, width), picture = subject.geometry.model, subject.image.convert("RGB")
    if min(top, left) < 0 or bottom > picture.height or right > picture.width:  # padded: only whole pixels can be added
        x0, y0, x1, y1 = (round(edge) for edge in (left, top, right, bottom))
        picture, (left, top, right, bottom) = picture.crop((x0, y0, x1, y1)), (0, 0, x1 - x0, y1 - y0)
    return picture.resize((width, height), Image.Resampling.LANCZOS, box=(left, top, right, bottom))


def _as_image(pixels: Tensor) -> Image.Image:
    return Image.fromarray((pixels.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy())


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()

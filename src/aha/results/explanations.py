"""Explanations of the same images by several methods, as one figure."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from PIL import Image

from aha.core.disk import write_atomically, writing
from aha.drawing import render
from aha.errors import OutputError
from aha.results.explanation import Explanation, data_uri

_MOST_ROWS = 12  # that a notebook shows
_CELL = 224  # pixels across


def shared_scale(explanations: Iterable[Explanation]) -> render.Scale:
    """One colour scale for the maps of several explanations: of images, classes, methods or models."""
    return render.shared_scale(found.original_map(row) for found in explanations for row in range(len(found)))


class Explanations(dict[str, Explanation]):
    """Method -> its explanation, all of the same images and classes; in a notebook, a grid of all maps."""

    def __repr__(self) -> str:
        return f"Explanations({', '.join(self)}: {len(self._first)} maps each)"

    def figure(
        self, *, width: int = _CELL, most: int | None = None, scale: Literal["own", "shared"] = "own"
    ) -> Image.Image:
        """A row for each image and class: the part of the image that the model saw, then a map of each method.

        Args:
            width: of a map, in pixels.
            most: rows that are drawn at most.
            scale: "shared" draws all maps on one colour scale, with its numbers on a bar underneath.
        """
        from aha.results.gallery import overlay, window  # its templates are of no use to those who draw nothing

        if scale not in ("own", "shared"):
            raise OutputError(f"scale must be 'own' or 'shared', not {scale!r}")
        subjects, rows = self._first.subjects, range(len(self._first))[:most]
        common = shared_scale(self.values()) if scale == "shared" else None
        sheet = render.contact_sheet(
            [
                [
                    _resized(picture, width)
                    for picture in (
                        subjects[row].image.convert("RGB").crop(window(subjects[row])),
                        *(overlay(found, row, common) for found in self.values()),
                    )
                ]
                for row in rows
            ],
            row_labels=[self._first.caption(row) for row in rows],
            column_labels=["photograph", *self],
        )
        return sheet if common is None else render.with_bar(sheet, common)

    def save(self, path: str | Path, *, width: int = _CELL, scale: Literal["own", "shared"] = "own") -> Path:
        """Writes `figure` as the kind of file that the path names, such as .png or .jpg, and returns the path."""
        path, kinds = Path(path), Image.registered_extensions()
        kind = kinds.get(path.suffix.lower())
        if kind not in Image.SAVE:
            raise OutputError(f"{path} is not an image format that can be written; use .png or .jpg")
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, lambda file: self.figure(width=width, scale=scale).save(file, format=kind))
        return path

    def _repr_html_(self) -> str:
        """For notebooks: the first rows of `figure`."""
        left = len(self._first) - _MOST_ROWS
        more = f"<p>and {left} more</p>" if left > 0 else ""
        drawn = data_uri(self.figure(most=_MOST_ROWS))
        return f'<div><p><b>{html.escape(repr(self))}</b></p><img src="{drawn}" style="max-width:100%">{more}</div>'

    @property
    def _first(self) -> Explanation:
        return next(iter(self.values()))


def _resized(picture: Image.Image, width: int) -> Image.Image:
    height = max(1, round(picture.height * width / picture.width))
    return picture.resize((width, height), Image.Resampling.LANCZOS)

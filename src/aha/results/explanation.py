"""The result of explaining: raw maps with everything needed to read, draw and repeat them."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from aha.core.disk import place_of, write_atomically, writing
from aha.core.pictures import encoded
from aha.data.batches import Subject
from aha.data.datasets import content_digest
from aha.drawing import render
from aha.errors import OutputError
from aha.learned.quality import Quality
from aha.methods.distribution import Distribution
from aha.results.cards import Card
from aha.results.folder import ResultFolder, ResultItem

_PATIENCE = 60.0  # seconds to wait for others who save to the same folder


@dataclass(frozen=True)
class Explanation:
    """Maps of one method for N pairs of image and class; several classes of an image follow each other.

    Attributes:
        maps: raw, un-normalised float32 maps (N, H, W) at the size of the model input; of volumes, (N, D, H, W).
        targets: explained class (N,) of each map.
        scores: the model's score (N,) of that class on the whole image.
        subjects: the images, one per map (an image with several classes appears several times).
        labels: readable class names, one per map.
        method: text of the method; `aha.load_method` gives it back.
        model: text of the model.
        seconds: time spent computing, without reading files.
        digest: digest of the model's weights.
        cards: faithfulness cards, one per map, if asked for.
        distribution: for `var`, one per map: how the compared classes share each place (see `Distribution`).
        quality: for `aha`, one per map: how good it probably is, and what refinement would add.
        settings: seed, score, upsampling and the like, for the manifest.
    """

    maps: Tensor
    targets: Tensor
    scores: Tensor
    subjects: Sequence[Subject]
    labels: Sequence[str]
    method: str
    model: str
    seconds: float
    digest: str
    cards: Sequence[Card] = ()
    distribution: Sequence[Distribution] = ()
    quality: Sequence[Quality] = ()
    settings: dict[str, object] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.maps)

    def __getitem__(self, index: int | slice) -> Explanation:
        """One map, or some of them, as an explanation of its own; `seconds` is its share of the whole."""
        rows = self._places(index)
        chosen = [rows] if isinstance(rows, int) else list(rows)
        return replace(
            self,
            maps=self.maps[chosen],
            targets=self.targets[chosen],
            scores=self.scores[chosen],
            subjects=[self.subjects[row] for row in chosen],
            labels=[self.labels[row] for row in chosen],
            seconds=self.seconds * len(chosen) / max(1, len(self)),
            cards=[self.cards[row] for row in chosen] if self.cards else (),
            distribution=[self.distribution[row] for row in chosen] if self.distribution else (),
            quality=[self.quality[row] for row in chosen] if self.quality else (),
        )

    def _places(self, index: int | slice) -> int | range:
        try:
            return range(len(self))[index]
        except IndexError:
            raise IndexError(f"there is no map {index}; this explanation has {len(self)}") from None
        except TypeError:
            raise TypeError(f"index a map by its number, from 0 to {len(self) - 1}, not by {index!r}") from None

    def __iter__(self) -> Iterator[Explanation]:
        """The maps one by one."""
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        n, *places = self.maps.shape
        size = "x".join(map(str, places))
        return f"Explanation({self.method} of {self.model}: {n} map{'s' * (n != 1)} of {size}, {self.seconds:.2f} s)"

    def numpy(self) -> NDArray[np.float32]:
        """Raw maps (N, H, W) as an array."""
        return self.maps.numpy()

    def original_map(self, index: int = 0) -> Tensor:
        """The map in the pixels of the original image (H0, W0); NaN where the model never looked.

        Of a volume, in its voxels (D0, H0, W0).
        """
        self._places(index)
        return self.subjects[index].geometry.to_original(self.maps[index])

    def best_slice(self, index: int = 0) -> int:
        """The slice of a volume with the most evidence: the largest sum of positive values."""
        return int(self._volume(index).nan_to_num(0.0).clamp(min=0).sum(dim=(1, 2)).argmax())

    def _volume(self, index: int) -> Tensor:
        values = self.original_map(index)
        if values.dim() == 2:
            raise OutputError("this is the map of an image, which has no slices")
        return values

    def _shown(
        self, index: int, number: int | None, signed: bool | None, cmap: str | None
    ) -> tuple[Image.Image, Tensor, render.Scale | None]:
        """The picture, its map (H0, W0) and the scale; of a volume, one slice on the scale of all."""
        self._places(index)
        if self.maps.dim() == 3 and number is None:
            return self.subjects[index].image, self.original_map(index), None
        values = self._volume(index)
        chosen = self.best_slice(index) if number is None else number
        if not -len(values) <= chosen < len(values):
            raise OutputError(f"there is no slice {chosen}; the volume has {len(values)}, from 0 to {len(values) - 1}")
        return (
            self.subjects[index].frames[chosen],
            values[chosen],
            render.shared_scale(values, signed=signed, cmap=cmap),
        )

    def heatmap(
        self, index: int = 0, *, slice: int | None = None, signed: bool | None = None, cmap: str | None = None
    ) -> Image.Image:
        """The map alone, in the original image's coordinates; of a volume, one slice, by default the best."""
        _, values, scale = self._shown(index, slice, signed, cmap)
        return render.heatmap(values, signed=signed, cmap=cmap, scale=scale)

    def overlay(
        self,
        index: int = 0,
        *,
        slice: int | None = None,
        opacity: float = 0.55,
        signed: bool | None = None,
        cmap: str | None = None,
        caption: bool = True,
        scale: render.Scale | Literal["own", "shared"] = "own",
    ) -> Image.Image:
        """The map over the original image, with class, score, method and colour legend underneath.

        With `scale="shared"`, a colour means the same value in all maps of this explanation; a scale from
        `aha.results.explanations.shared_scale` does so over several explanations, of other methods or models too.

        Of a volume, one slice: the one with this number, counted from 0, or the one with the most evidence. A colour
        means the same in all of its slices.
        """
        image, values, common = self._shown(index, slice, signed, cmap)
        common = _scale(scale, self, signed, cmap) or common
        picture = render.overlay(image, values, opacity=opacity, signed=signed, cmap=cmap, scale=common)
        if not caption:
            return picture
        _, legend = render.colour(values, signed=signed, cmap=cmap, scale=common)
        return render.annotate(picture, title=self.caption(index), subtitle=self.method, legend=legend)

    def montage(self, index: int = 0, *, count: int = 12, columns: int = 4, opacity: float = 0.55) -> Image.Image:
        """Up to `count` slices of a volume from first to last, each with the map over it, and one colour bar.

        Slices are evenly spaced; the titles say which they are.
        """
        if count < 1 or columns < 1:
            raise OutputError(f"a montage needs at least one slice and one column, not {count} and {columns}")
        values = self._volume(index)
        numbers = np.unique(np.linspace(0, len(values) - 1, min(count, len(values))).round().astype(int)).tolist()
        scale = render.shared_scale(values)
        cells = [
            render.annotate(
                render.overlay(self.subjects[index].frames[number], values[number], opacity=opacity, scale=scale),
                title=f"slice {number}",
            )
            for number in numbers
        ]
        rows = [cells[start : start + columns] for start in range(0, len(cells), columns)]
        return render.annotate(
            render.contact_sheet(rows), title=self.caption(index), subtitle=self.method, legend=scale
        )

    def top_mask(self, index: int = 0, *, percent: float = 20.0, slice: int | None = None) -> Image.Image:
        """The original image with all but the top `percent` % of its pixels dimmed; of a volume, within one slice."""
        image, values, _ = self._shown(index, slice, None, None)
        return render.top_mask(image, values, percent)

    def composite(self, index: int = 0, *, opacity: float = 0.75, caption: bool = True) -> Image.Image:
        """The original image, each place in the colour of the class that wins it, with a legend of the classes."""
        found, subject = self._distribution(index), self.subjects[index]
        maps, shares = (
            torch.stack([subject.geometry.to_original(values) for values in stack]).numpy()
            for stack in (found.maps, found.shares)
        )
        picture = render.composite(subject.image, maps, shares, opacity=opacity)
        if not caption:
            return picture
        keys = list(zip(render.class_colours(len(found.classes)), found.labels, strict=True))
        return render.annotate(picture, title=self.caption(index), subtitle=self.method, keys=keys)

    def shared(self, index: int = 0) -> Image.Image:
        """The evidence that the compared classes have in common, over the original image."""
        found, subject = self._distribution(index), self.subjects[index]
        values = subject.geometry.to_original(found.shared())
        _, legend = render.colour(values)
        title = "shared by " + ", ".join(found.labels)
        return render.annotate(render.overlay(subject.image, values), title=title, subtitle=self.method, legend=legend)

    def _distribution(self, index: int) -> Distribution:
        if not self.distribution:
            raise OutputError(f"{self.method} compares no classes; explain with var({self.method})")
        return self.distribution[index]

    def caption(self, index: int = 0) -> str:
        """Class name and score, for example `tabby 0.62`."""
        return f"{self.labels[index]} {float(self.scores[index]):.3g}"

    def save(self, folder: str | Path) -> Path:
        """Writes maps, drawings and `manifest.json`, and returns its path; several methods may share one folder."""
        with ResultFolder(folder, self.model, self.digest, self.settings, wait=_PATIENCE) as results:
            for index in range(len(self)):
                results.add(self.item(index))
        return results.manifest

    def item(self, index: int, key: str | None = None) -> ResultItem:
        """One map with its pictures, ready for a `ResultFolder`."""
        self._places(index)
        return ResultItem(
            image=self.subjects[index].name,
            method=self.method,
            target=int(self.targets[index]),
            label=self.labels[index],
            score=float(self.scores[index]),
            original_map=self.original_map(index).numpy(),
            model_map=self.maps[index].numpy(),
            seen=self.subjects[index].geometry.seen().numpy(),
            heatmap=self.heatmap(index),
            overlay=self.overlay(index),
            seconds=self.seconds / len(self),
            key=key,
            slices=self.montage(index) if self.maps.dim() > 3 else None,
            picture=content_digest(lambda: _shown_pixels(self.subjects[index])),
            card=self.cards[index].sentence if self.cards else "",
            quality=self.quality[index].sentence if self.quality else "",
            **self._compared(index),
        )

    def _compared(self, index: int) -> dict[str, Any]:
        """What a result item holds of a competition between classes."""
        if not self.distribution:
            return {}
        found = self.distribution[index]
        arrays = {"classes": np.array(found.classes), "shares": found.shares.numpy()}
        return {"arrays": arrays, "composite": self.composite(index)}

    def widget(self, *others: Explanation) -> Any:
        """Maps side by side with a scrubber, for Jupyter, Colab, VS Code and marimo (extra `notebook`).

        Args:
            others: explanations of the same images by other methods.
        """
        from aha.results.viewer.payload import payload
        from aha.results.viewer.widget import viewer_widget

        return viewer_widget(payload([self, *others]))

    def to_html(self, path: str | Path, *others: Explanation) -> Path:
        """Writes what `widget` shows as one HTML file that works without a kernel, and returns its path."""
        from aha.results.viewer.page import page
        from aha.results.viewer.payload import payload

        text = page(f"{self.model}: {', '.join(sorted(set(self.labels)))}"[:120], payload([self, *others])).encode()
        place = place_of(path)
        with writing(place.parent):
            write_atomically(place, lambda file: file.write(text))
        return place

    def _repr_html_(self) -> str:
        """For notebooks: each photograph, its map, its probability and its card; the first dozen of them."""
        shown = range(min(len(self), 12))
        more = f"<p>and {len(self) - len(shown)} more</p>" if len(self) > len(shown) else ""
        return f"<div><p><b>{html.escape(repr(self))}</b></p>{''.join(map(self._row_html, shown))}{more}</div>"

    def _row_html(self, index: int) -> str:
        # Both with a caption, at the same place and size, so that one sees which pixel is which.
        photograph = self._shown(index, None, None, None)[0].convert("RGB")
        captioned = render.annotate(photograph, title="photograph")
        side = max(photograph.size)
        style = "width:320px;max-width:48%;vertical-align:top;margin:4px"
        shown = "".join(
            f'<img src="{data_uri(_small(picture, side))}" style="{style}">'
            for picture in (captioned, self.overlay(index))
        )
        card = f'<p style="max-width:660px">{html.escape(self.cards[index].sentence)}</p>' if self.cards else ""
        caption = html.escape(f"{self.subjects[index].name}: {self.caption(index)}")
        return f'<div style="margin:0 0 12px"><div><b>{caption}</b></div>{shown}{card}</div>'

    @staticmethod
    def join(parts: Sequence[Explanation]) -> Explanation:
        """One explanation out of consecutive batches of the same call."""
        first = parts[0]
        return Explanation(
            maps=torch.cat([part.maps for part in parts]),
            targets=torch.cat([part.targets for part in parts]),
            scores=torch.cat([part.scores for part in parts]),
            subjects=[subject for part in parts for subject in part.subjects],
            labels=[label for part in parts for label in part.labels],
            method=first.method,
            model=first.model,
            seconds=sum(part.seconds for part in parts),
            digest=first.digest,
            cards=[card for part in parts for card in part.cards],
            distribution=[found for part in parts for found in part.distribution],
            quality=[found for part in parts for found in part.quality],
            settings=first.settings,
        )


def _shown_pixels(subject: Subject) -> Image.Image | NDArray[np.uint8]:
    """The picture, or all slices of a volume."""
    return np.stack([np.asarray(frame) for frame in subject.frames]) if subject.frames else subject.image


def _small(picture: Image.Image, side: int, most: int = 640) -> Image.Image:
    """No larger than a notebook shows a photograph of this side: one of a camera would swell the file."""
    scale = min(1.0, most / side)
    return picture if scale == 1 else picture.resize([max(1, round(n * scale)) for n in picture.size])


def data_uri(picture: Image.Image) -> str:
    """A picture as text that a page can show without a file."""
    return "data:image/png;base64," + base64.b64encode(encoded(picture, "PNG")).decode()


def _scale(scale: Any, found: Explanation, signed: bool | None, cmap: str | None) -> render.Scale | None:
    if scale == "own":
        return None
    if scale == "shared":
        maps = (found.original_map(row) for row in range(len(found)))
        return render.shared_scale(maps, signed=signed, cmap=cmap)
    if not isinstance(scale, render.Scale):
        raise OutputError(f"scale must be 'own', 'shared' or a scale, not {scale!r}")
    return scale

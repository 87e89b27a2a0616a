"""A page that shows the maps of a result folder at a glance: it links to the folder's own pictures, without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aha.core.disk import write_atomically, writing
from aha.results.folder import MapRecord
from aha.results.templating import templates_of

INDEX = "index.html"
_MARK = '<meta name="generator" content="aha explain">'
_MOST_SHOWN = 500  # maps: what a browser still scrolls through


@dataclass(frozen=True)
class _Explained:
    """A class of an image, its score as text, and its maps."""

    image: str
    caption: str
    maps: Sequence[MapRecord]


def caption(record: MapRecord) -> str:
    """Class name and score, for example `tabby 0.62`."""
    score = record["score"]
    return record["label"] if score is None else f"{record['label']} {score:.3g}"


def write_index(folder: Path, records: Sequence[MapRecord], model: str) -> Path | None:
    """Writes the page, whole or not at all; None where another page of that name is in its place."""
    path = folder / INDEX
    text = (
        templates_of("aha.results")
        .get_template("index.html")
        .render(model=model, rows=list(_rows(records[:_MOST_SHOWN])), left_out=len(records[_MOST_SHOWN:]))
    )
    with writing(folder):
        if path.exists() and _MARK not in path.read_text(encoding="utf-8", errors="replace")[:1000]:
            return None
        write_atomically(path, lambda file: file.write(text.encode()))
    return path


def _rows(records: Iterable[MapRecord]) -> Iterable[_Explained]:
    """The classes of each image, in the order in which the images came."""
    order: dict[tuple[str, int], list[MapRecord]] = {}
    for record in records:
        order.setdefault((record["image"], record["target"]), []).append(record)
    places = {image: place for place, image in enumerate(dict.fromkeys(image for image, _ in order))}
    for (image, _), maps in sorted(order.items(), key=lambda entry: places[entry[0][0]]):
        yield _Explained(image, caption(maps[0]), maps)

"""Draws `images/gallery.jpg` and writes `results/gallery.csv`: one photograph, all methods, with scores and cost.

    python docs/draw_gallery.py [PHOTOGRAPH] [--model SPEC] [--weights FILE]

Without arguments the photograph comes with scikit-image and the network is the demo's. Methods that do not fit the
network are left out; those that ask it thousands of times are asked for less, as their texts say.
"""

from __future__ import annotations

import argparse
import csv
import io
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from PIL import Image

import aha
from aha.data.batches import iter_batches
from aha.demo import MODEL, photographs
from aha.drawing.render import contact_sheet
from aha.errors import AhaError
from aha.methods import list_methods
from aha.metrics import Case, Sample
from aha.metrics.ins_del import InsDel
from aha.models import TargetModel
from aha.perturb.perturbation import area
from aha.results.cards import average_curves, reference_curves
from aha.results.gallery import overlay, window

DOCS = Path(__file__).parent
SHEET, TABLE = DOCS / "images" / "gallery.jpg", DOCS / "results" / "gallery.csv"
PROTOCOL = InsDel(steps=10)
CELL, COLUMNS = 210, 6
# Texts in place of names: wrappers need something inside, and some methods would take minutes.
TEXTS = {
    "aha": ("aha", "aha(refine=3)"),
    "extremal_perturbation": ("extremal_perturbation(steps=40)",),
    "gradient_shap": ("gradient_shap(n=20)",),
    "integrated_gradients": ("integrated_gradients(steps=20)",),
    "kernel_shap": (),
    "lime": ("lime(n=200)",),
    "mda": (),
    "occlusion": ("occlusion(window=32, stride=16)",),
    "rise": ("rise(n=400)",),
    "search": (),
    "shapley_sampling": ("shapley_sampling(orders=2)",),
    "smooth": ("smooth(gradient)",),
    "var": ("var(grad_cam)",),
}


@dataclass(frozen=True)
class Found:
    """A method on the photograph: what its map is worth, and what it took."""

    method: str
    ins_del: float
    deletion: float
    insertion: float
    seconds: float
    forward: int
    backward: int


def texts_for(model: TargetModel) -> list[str]:
    """The methods that are tried, as texts."""
    return [text for name in list_methods(model) for text in TEXTS.get(name, (name,))]


def draw(
    model: TargetModel, photograph: Path, methods: Sequence[str], sheet: Path, table: Path, protocol: InsDel = PROTOCOL
) -> list[Found]:
    """Explains the photograph's top class by every method, best first; writes the sheet and the table."""
    (batch,) = iter_batches(model, photograph, batch_size=1)
    sample = Sample(model, batch.subjects[0].name, batch.inputs[0].to(model.device))
    rows: list[tuple[Found, Image.Image]] = []
    for text in methods:
        before, started = model.passes.copy(), time.perf_counter()
        try:
            explanation = aha.explain(model, batch, text, "top1", progress=False)
        except AhaError as error:
            print(f"{text}: {error}")
            continue
        seconds = time.perf_counter() - started
        spent = {kind: model.passes[kind] - before[kind] for kind in ("forward", "backward")}
        case = Case(sample, int(explanation.targets[0]), explanation.maps[0].to(model.device), text)
        curves = average_curves(list(reference_curves(case, protocol).values()))
        fractions = torch.tensor(curves.fractions)
        areas = (float(area(fractions, torch.tensor(heights))) for heights in (curves.deletion, curves.insertion))
        found = Found(text, curves.ins_del, *areas, seconds, spent["forward"], spent["backward"])
        rows.append((found, overlay(explanation)))
        print(f"{text}: Ins-Del {found.ins_del:.3f}, {seconds:.1f} s, {spent['forward']} + {spent['backward']} passes")
    rows.sort(key=lambda row: -row[0].ins_del)
    first = batch.subjects[0]
    seen = first.image.convert("RGB").crop(window(first))
    _write_sheet([("the photograph", seen), *((f"{f.method}  {f.ins_del:.2f}", p) for f, p in rows)], sheet)
    _write_table([found for found, _ in rows], table)
    return [found for found, _ in rows]


def _write_sheet(cells: Sequence[tuple[str, Image.Image]], path: Path) -> None:
    """Rows of pictures, each with its caption."""
    lines = [cells[start : start + COLUMNS] for start in range(0, len(cells), COLUMNS)]
    sheets = [
        contact_sheet([[_small(picture) for _, picture in line]], column_labels=[name for name, _ in line])
        for line in lines
    ]
    width = max(sheet.width for sheet in sheets)
    whole = Image.new("RGB", (width, sum(sheet.height for sheet in sheets)), "white")
    top = 0
    for sheet in sheets:
        whole.paste(sheet, (0, top))
        top += sheet.height
    path.parent.mkdir(parents=True, exist_ok=True)
    whole.save(path, quality=85, optimize=True)


def _small(picture: Image.Image) -> Image.Image:
    return picture.convert("RGB").resize((CELL, round(picture.height * CELL / picture.width)), Image.Resampling.LANCZOS)


def _write_table(rows: Sequence[Found], path: Path) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*Found.__dataclass_fields__], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(row).items()}
        writer.writerow(rounded)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.getvalue(), encoding="utf-8")


def main() -> None:
    """As the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photograph", nargs="?", type=Path, default=None)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--weights", default=None)
    given = parser.parse_args()
    model = aha.load_model(given.model, weights=given.weights, batch_size=16)
    draw(model, given.photograph or photographs(["coffee.png"])[0], texts_for(model), SHEET, TABLE)


if __name__ == "__main__":
    main()

"""Draws `images/gallery.jpg` and writes `results/gallery.csv`: one photograph, all methods, with scores and cost.

Five of them, of five kinds, are drawn into `images/methods.jpg` as well.

    python docs/draw_gallery.py [PHOTOGRAPH] [--model SPEC] [--weights FILE] [--method METHOD]... [--without NAME]...
        [--kept FOLDER]

Without arguments the photograph comes with scikit-image and the network is the demo's. Methods that do not fit the
network are left out; those that ask it thousands of times are asked for less, as their texts say. Each method's row and
map are kept as soon as they are there: a run that was stopped goes on where it was, and one after a training computes
only what the training changed.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from PIL import Image

import aha
from aha.core.disk import result_key, write_atomically
from aha.data.batches import Batch, iter_batches
from aha.demo import MODEL, photographs
from aha.drawing.render import contact_sheet
from aha.errors import AhaError
from aha.evaluation.cards import reference_curves
from aha.methods import list_methods, load_method
from aha.methods.base import UPSAMPLING
from aha.metrics import Case, Sample
from aha.metrics.curves.ins_del import InsDel
from aha.models import TargetModel
from aha.perturb.perturbation import area
from aha.results.cards import average_curves
from aha.results.gallery import overlay, window

DOCS = Path(__file__).parent
SHEET, TABLE = DOCS / "images" / "gallery.jpg", DOCS / "results" / "gallery.csv"
STRIP = DOCS / "images" / "methods.jpg"
IN_STRIP = ("grad_cam", "aha", "integrated_gradients(steps=20)", "rise(n=400)", "edge_map")
KEPT = DOCS.parent / "runs" / "gallery"
PROTOCOL = InsDel(steps=10)
SEED = 0
CELL, COLUMNS = 210, 6
# Texts in place of names: wrappers need something inside, and some methods would take minutes.
TEXTS = {
    "aha": ("aha", "aha(refine=3)"),
    "extremal_perturbation": ("extremal_perturbation(steps=100)",),
    "gradient_shap": ("gradient_shap(n=20)",),
    "integrated_gradients": ("integrated_gradients(steps=20)",),
    "kernel_shap": ("kernel_shap(n=300, parts=patches(grid=7))",),
    "lime": ("lime(n=300, parts=patches(grid=7))",),
    "mda": ("mda(grid=7, screen=4)",),
    "occlusion": ("occlusion(window=32, stride=16)",),
    "rise": ("rise(n=400)",),
    "search": ("search(levels=4, budget=1000)",),
    "shapley_sampling": ("shapley_sampling(orders=6)",),
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


def texts_for(model: TargetModel, without: Sequence[str] = ()) -> list[str]:
    """The methods that are tried, as texts."""
    names = [name for name in list_methods(model) if name not in without]
    return [text for name in names for text in TEXTS.get(name, (name,))]


def draw(
    model: TargetModel,
    photograph: Path,
    methods: Sequence[str],
    *,
    sheet: Path = SHEET,
    table: Path | None = TABLE,
    kept: Path = KEPT,
    protocol: InsDel = PROTOCOL,
) -> list[Found]:
    """Explains the photograph's top class by every method, best first; writes the sheet, and the table if wanted."""
    (batch,) = iter_batches(model, photograph, batch_size=1)
    _ = model.structure()  # found now, so that the first method does not pay for it
    kept.mkdir(parents=True, exist_ok=True)
    rows = []
    for text in methods:
        try:
            place = kept / _key(model, photograph, text, protocol)
            found, picture = _kept(place) or _measured(model, batch, text, protocol, place)
        except AhaError as error:
            print(f"{text}: {error}", flush=True)
            continue
        rows.append((found, picture))
        print(f"{text}: Ins-Del {found.ins_del:.3f}, {found.forward} + {found.backward} passes", flush=True)
    rows.sort(key=lambda row: -row[0].ins_del)
    first = batch.subjects[0]
    seen = first.image.convert("RGB").crop(window(first))
    _write_sheet([("the photograph", seen), *((f"{f.ins_del:.2f}  {f.method}", p) for f, p in rows)], sheet)
    if table is not None:
        _write_table([found for found, _ in rows], table)
    return [found for found, _ in rows]


def _key(model: TargetModel, photograph: Path, text: str, protocol: InsDel) -> str:
    """By all that a row depends on; another training of an explainer makes another row."""
    method = load_method(text).fingerprint(model)
    who = (aha.__version__, model.spec, model.digest, UPSAMPLING)
    return result_key(*who, photograph.read_bytes().hex(), text, method, protocol.in_full(), SEED)


def _kept(place: Path) -> tuple[Found, Image.Image] | None:
    """A row of an earlier run; its picture is written first, so that a row has one."""
    row = place.with_suffix(".json")
    if not row.is_file():
        return None
    with Image.open(place.with_suffix(".png")) as picture:
        return Found(**json.loads(row.read_text(encoding="utf-8"))), picture.copy()


def _counted(model: TargetModel) -> Counter[str]:
    """Images through the model so far, also those that the choice of the class has spared the method."""
    return model.passes + model.cache_hits


def _measured(model: TargetModel, batch: Batch, text: str, protocol: InsDel, place: Path) -> tuple[Found, Image.Image]:
    before, started = _counted(model), time.process_time()
    explanation = aha.explain(model, batch, text, "top1", seed=SEED, progress=False)
    seconds = time.process_time() - started  # of the processor: another process beside this one changes little
    spent = _counted(model) - before
    spent["forward"] -= 1  # which class it is, was asked once, whatever the method
    sample = Sample(model, batch.subjects[0].name, batch.inputs[0].to(model.device))
    case = Case(sample, int(explanation.targets[0]), explanation.maps[0].to(model.device), text, seed=SEED)
    curves = average_curves(list(reference_curves(case, protocol).values()))
    fractions = torch.tensor(curves.fractions)
    areas = (float(area(fractions, torch.tensor(heights))) for heights in (curves.deletion, curves.insertion))
    found = Found(text, curves.ins_del, *areas, seconds, spent["forward"], spent["backward"])
    picture = overlay(explanation)
    write_atomically(place.with_suffix(".png"), lambda file: picture.save(file, format="PNG"))
    write_atomically(place.with_suffix(".json"), lambda file: file.write(json.dumps(asdict(found)).encode()))
    return found, picture


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photograph", nargs="?", type=Path, default=None)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--weights", default=None)
    parser.add_argument("--method", action="append", default=None, help="these alone; again and again")
    parser.add_argument("--without", action="append", default=[], help="all but these; again and again")
    parser.add_argument("--sheet", type=Path, default=SHEET)
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--kept", type=Path, default=KEPT, help="where rows are kept between runs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = aha.load_model(given.model, weights=given.weights, batch_size=16)
    photograph = given.photograph or photographs(["coffee.png"])[0]
    methods = given.method or texts_for(model, given.without)
    draw(model, photograph, methods, sheet=given.sheet, table=given.table, kept=given.kept)
    if given.sheet == SHEET and set(IN_STRIP) <= set(methods):
        draw(model, photograph, IN_STRIP, sheet=STRIP, table=None, kept=given.kept)


if __name__ == "__main__":
    main()

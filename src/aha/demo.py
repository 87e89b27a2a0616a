"""The demo: real photographs, a real ImageNet network and several methods, offline, in a minute."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from aha.api import explain
from aha.core.disk import check_writable
from aha.data.batches import iter_batches
from aha.errors import MissingExtra, OutputError
from aha.evaluation.cards import cards_of
from aha.metrics.curves.ins_del import InsDel
from aha.models import load_model
from aha.perturb.references import Blur, Mean
from aha.results import gallery
from aha.results.explanation import Explanation
from aha.results.explanations import Explanations
from aha.results.folder import MANIFEST

__all__ = ["photographs"]

MODEL = "demo:efficientnet_lite0"
PHOTOGRAPHS = {
    "chelsea.png": "A cat",
    "coffee.png": "A cup of coffee",
    "motorcycle_left.png": "A motorcycle",
    "camera.png": "A photographer",
    "rocket.jpg": "A rocket on its launch pad",
    "astronaut.png": "An astronaut",
}
"""Files that scikit-image carries in its package, so that nothing is downloaded, and what they show."""

EXPLAINED = tuple(PHOTOGRAPHS)[:4]
"""Those of the demo itself; the explorer offers all."""

METHODS = {
    "grad_cam": "Evidence for the class in the deepest feature maps. Coarse and smooth: the usual first map.",
    "aha": "A small network, trained once for this model on what Deletion and Insertion measure: one pass each way.",
    "aha('universal')": "The universal explainer, which works on any classifier without training.",
    "aha(refine=3)": "AHA after three gradient steps for this image and class: slower, and more faithful.",
    "integrated_gradients(steps=20)": "What each pixel adds to the score (red) or removes (blue) on the path from "
    "plain grey to the image.",
    "edge_map": "A baseline: edges of the image, ignoring the model. A map that resembles it proves nothing.",
}
"""Methods of the demo, and how to read each of them."""

PROTOCOL = InsDel(steps=8, references=(Mean(), Blur()))  # coarse: the demo shall take a minute
TARGET = "top2"  # the top class and its closest rival
INDEX, SHEET = "index.html", "sheet.jpg"
_SHEET_CELL = 176


@dataclass(frozen=True)
class DemoFiles:
    """What the demo wrote, and the seconds it took."""

    gallery: Path
    manifest: Path
    sheet: Path
    seconds: float


def photographs(names: Iterable[str] = PHOTOGRAPHS) -> list[Path]:
    """Paths of the demo's photographs."""
    package = find_spec("skimage")
    if package is None or package.origin is None:
        raise MissingExtra("the demo's photographs", "demo")
    return [Path(package.origin).parent / "data" / name for name in names]


def run_demo(
    out: str | Path,
    *,
    names: Iterable[str] = EXPLAINED,
    methods: Mapping[str, str] = METHODS,
    seed: int = 0,
    device: str | None = None,
    batch_size: int = 4,  # on a CPU, larger batches are slower for a network this small
    on_progress: Callable[[int], None] = lambda count: None,
) -> DemoFiles:
    """Explains photographs for their top class and its rival; writes results, a gallery and a contact sheet.

    Args:
        out: folder for all of it.
        names: which of `PHOTOGRAPHS`.
        methods: method texts, and how to read each.
        seed: of methods that draw random numbers.
        device: the best at hand by default.
        batch_size: most images per forward pass.
        on_progress: called after each finished pair of photograph and method.
    """
    start = time.perf_counter()
    out, names = Path(out), list(names)
    check_writable(out)
    if (out / INDEX).exists() and not (out / MANIFEST).exists():
        raise OutputError(f"{out / INDEX} is not a gallery of aha demo; choose another folder")
    paths = photographs(names)
    model = load_model(MODEL, device=device, batch_size=batch_size)
    rows: list[list[Explanation]] = []
    pages: list[gallery.Photograph] = []
    for name, batch in zip(names, iter_batches(model, paths, batch_size=1), strict=True):
        rows.append([])
        for method in methods:
            found = explain(model, batch, method, TARGET, seed=seed, progress=False)  # the demo tells its own
            rows[-1].append(found)
            manifest = found.save(out)
            on_progress(1)
        # Of the top class, which comes first.
        cards = [
            own for (own,) in cards_of(model, batch, [found[:1] for found in rows[-1]], protocol=PROTOCOL, seed=seed)
        ]
        predicted = gallery.predictions(model, batch.inputs)
        pages.append(gallery.photograph(PHOTOGRAPHS[name], rows[-1], predicted, cards))
    seconds = time.perf_counter() - start
    page = gallery.Gallery(
        title="Which pixels does the network rely on?",
        model=gallery.describe_model(model),
        columns=[
            gallery.MethodColumn(text, reading, _mean_seconds([row[i] for row in rows]))
            for i, (text, reading) in enumerate(methods.items())
        ],
        photographs=pages,
        command=f"aha demo --out {shlex.quote(str(out))} --seed {seed} --batch-size {batch_size}",
        python=_snippet(methods, out, seed, batch_size),
        seconds=seconds,
    )
    gallery.write(page, out / INDEX)
    _write_sheet(rows, out / SHEET)
    return DemoFiles(out / INDEX, manifest, out / SHEET, seconds)


def _mean_seconds(explanations: Sequence[Explanation]) -> float:
    """Mean time of one map."""
    return sum(part.seconds for part in explanations) / sum(len(part) for part in explanations)


def _snippet(methods: Iterable[str], out: Path, seed: int, batch_size: int) -> str:
    """Python that computes the same maps."""
    listed = "".join(f"    {json.dumps(method)},\n" for method in methods)
    return (
        "import aha\n"
        "from aha.demo import EXPLAINED, photographs\n"
        "\n"
        f'model = aha.load_model("{MODEL}", batch_size={batch_size})\n'
        f"methods = [\n{listed}]\n"
        "for method in methods:\n"
        "    maps = aha.explain(\n"
        f'        model, photographs(EXPLAINED), method, "{TARGET}", seed={seed}\n'
        "    )\n"
        f"    maps.save({json.dumps(out.as_posix())})\n"
    )


def _write_sheet(rows: Sequence[Sequence[Explanation]], path: Path) -> None:
    """A small overview of the top classes: the photograph, then one overlay per method."""
    columns = ([explanation[0] for explanation in column] for column in zip(*rows, strict=True))
    Explanations({column[0].method: Explanation.join(column) for column in columns}).save(path, width=_SHEET_CELL)

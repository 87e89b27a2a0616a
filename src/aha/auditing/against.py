"""The other maps: of another explainer or method, of a run that kept its maps, or saved by another tool."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from aha.auditing.checks import Shown
from aha.auditing.evidence import Agreement
from aha.bench.plan import Plan
from aha.bench.records import MapPlace
from aha.bench.run_reader import Group, Run, read_run
from aha.bench.runner import BenchRun
from aha.bench.store import ROWS, read_map
from aha.core.store import read_record, write_record
from aha.errors import OutputError, SpecError
from aha.learned.explainer import CONFIG, WEIGHTS
from aha.methods import check_fit, load_method
from aha.metrics.statistics import spearman
from aha.models import TargetModel
from aha.results.cards import BASELINES

FOLDER, RECORD = "against", "against.json"
_METRIC = "sparseness"  # asks the model nothing: the maps alone are wanted


@dataclass(frozen=True)
class Other:
    """What the audited maps are compared with.

    Attributes:
        text: as it was given.
        kind: a "method" whose maps are made here, "maps" that were saved, or the folder of a "run".
        method: its text; for saved maps, whatever they are of.
    """

    text: str
    kind: Literal["method", "maps", "run"]
    method: str = ""


def find_other(text: str, method: str, model: TargetModel) -> Other:
    """What `--against` names, checked before any work."""
    folder = Path(text).expanduser()
    if folder.is_dir() and (folder / ROWS).is_dir():
        return Other(text, "run", _method_of_run(folder, method))
    is_explainer = all((folder / name).is_file() for name in (CONFIG, WEIGHTS))
    if folder.is_dir() and not is_explainer:
        return Other(text, "maps")
    try:
        other = load_method(f"aha({str(folder)!r})" if is_explainer else text)
    except SpecError as error:
        if is_explainer:
            raise
        raise SpecError(
            f"--against {text} is neither a folder (of an explainer, a run or saved maps) nor a method ({error})"
        ) from None
    check_fit(other, model)
    if other.fingerprint(model) == load_method(method).fingerprint(model):
        raise SpecError(f"--against {text} is the audited method itself; name another training or checkpoint of it")
    return Other(text, "method", str(other))


def _method_of_run(folder: Path, method: str) -> str:
    """The method of a run whose maps are meant: the audited one, or the only one."""
    kept = {name for group in read_run(folder).groups for by_method in group.maps.values() for name in by_method}
    if not kept:
        raise OutputError(f"{folder} kept no maps; run it again with --keep-maps float16")
    if method in kept:
        return method
    others = sorted(kept - set(BASELINES))
    if len(others) != 1:
        raise SpecError(f"{folder} has maps of {', '.join(sorted(kept))}, not of {method}; which ones are meant?")
    return others[0]


def run_of(other: Other, plan: Plan, out: Path, model: TargetModel) -> BenchRun | None:
    """The run in which the other maps are made or read, in a folder of its own; None where they are in a run."""
    if other.kind == "run":
        return None
    settings: dict[str, Any] = {name: getattr(plan, name) for name in ("model", "data", "targets", "limit", "seed")}
    methods = (other.method,) if other.kind == "method" else ()
    saved = other.text if other.kind == "maps" else ""
    made = Plan(
        **settings,
        methods=methods,
        saved=saved,
        metrics=(_METRIC,),
        maps="float16",
        batch_size=plan.batch_size,
        title=f"Maps of {other.text}",
    )
    return BenchRun(made, out / FOLDER, model=model)


def compare(other: Other, own: Run, method: str, out: Path) -> None:
    """Correlates the maps and writes what came out, so that the other folder is not needed any more."""
    found = read_run(Path(other.text).expanduser() if other.kind == "run" else out / FOLDER)
    what = {"method": other.method, "maps": f"the saved maps in {other.text}", "run": f"{other.method} in {other.text}"}
    mine = {shown: read for group in own.groups for shown, read in _maps(own, group, method).items()}
    theirs = {
        shown: read
        for group in found.groups
        for name in ([other.method] if other.method else group.methods)
        for shown, read in _maps(found, group, name).items()
    }
    names = _same_images(own, found)
    pairs = {shown: (names.get(shown[0], shown[0]), shown[1]) for shown in mine}
    values = {shown: _alike(mine[shown](), theirs[pair]()) for shown, pair in pairs.items() if pair in theirs}
    keys = list(values)
    chance = {shown: _alike(mine[shown](), theirs[pairs[keys[place - 1]]]()) for place, shown in enumerate(keys)}
    write_record(
        out / RECORD,
        {
            "what": what[other.kind],
            "values": _listed(values),
            "by_chance": _listed(chance) if len(keys) > 1 else [],
            "why": "" if values else "it has no map of the same image and class",
        },
    )


def read_agreement(out: Path) -> Agreement | None:
    """What `compare` wrote; None where nothing was compared."""
    if not (out / RECORD).is_file():
        return None
    found = read_record(out / RECORD)
    if found is None:
        raise OutputError(f"{out / RECORD} is damaged; delete it and run aha audit again")
    return Agreement(found["what"], _shown(found["values"]), _shown(found["by_chance"]), found["why"])


def _listed(values: Mapping[Shown, float]) -> list[tuple[str, int, float]]:
    return [(*shown, round(value, 6)) for shown, value in values.items()]


def _shown(rows: list[tuple[str, int, float]]) -> dict[Shown, float]:
    return {(image, target): value for image, target, value in rows}


def _maps(run: Run, group: Group, method: str) -> dict[Shown, Callable[[], NDArray[np.float32]]]:
    """Image and class -> reads the map that was kept of it."""

    def reader(place: MapPlace) -> Callable[[], NDArray[np.float32]]:
        return lambda: read_map(run.folder, place)

    found = ((image, by_method[method]) for image, by_method in group.maps.items() if method in by_method)
    return {(image, target): reader(place) for image, (place, target) in found}


def _same_images(own: Run, other: Run) -> dict[str, str]:
    """What the other run calls our images: by their content where it is known, since folders are moved and renamed."""
    theirs = {content: image for group in other.groups for image, content in group.contents.items()}
    ours = {image: content for group in own.groups for image, content in group.contents.items()}
    return {image: theirs.get(content, "") for image, content in ours.items()} if theirs else {}


def _alike(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """Rank correlation of two maps at the size of the first; 0 where one of them is constant."""
    a, b = torch.from_numpy(first), torch.from_numpy(second)
    if a.shape != b.shape:
        b = F.interpolate(b[None, None], size=a.shape, mode="bilinear", align_corners=False)[0, 0]
    found = float(spearman(a.flatten(), b.flatten()))
    return 0.0 if math.isnan(found) else found

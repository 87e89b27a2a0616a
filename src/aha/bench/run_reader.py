"""Runs read back: scores as `aha.evaluate` gives them, apart for each model and kind of target. No model is touched."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, cast

from aha.bench.records import Cell, MapPlace, PicturePlace, PlanEntry
from aha.bench.store import ROWS, merge_cells, other_circumstance, other_setting, read_cells, read_plans_of
from aha.core.disk import check_writable
from aha.errors import OutputError, SpecError
from aha.metrics.protocols import Protocol, load_protocols
from aha.results.score_table import CurveRow, Failure, Row, Scores

Column = tuple[str, str]
"""Metric and reference."""


@dataclass(frozen=True)
class ImageFacts:
    """What the rows do not say about an image and class: the true class and the model's score of the explained one."""

    label: int | None
    score: float


@dataclass
class Group:
    """Everything found for one model and kind of target.

    Attributes:
        target_kind: the kind of target: top1, label, ...
        scores: rows, curves and failures.
        facts: image and class -> what else is known.
        seconds, forward, backward: method -> cost of each map.
        missing: cells that the plans ask for and that are not there.
        maps: image -> method -> (where its map is, class), of maps that were kept.
        pictures: image -> where its picture is.
        contents: image -> digest of its picture, where it was noted.
        truths: image -> what is known of it -> digest, where it was noted.
    """

    model: str
    digest: str
    target_kind: str
    scores: Scores
    facts: dict[tuple[str, int], ImageFacts] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    forward: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    backward: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    maps: dict[str, dict[str, tuple[MapPlace, int]]] = field(default_factory=lambda: defaultdict(dict))
    pictures: dict[str, PicturePlace] = field(default_factory=dict)
    missing: int = 0
    contents: dict[str, str] = field(default_factory=dict)
    truths: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))

    def is_of(self, plan: PlanEntry) -> bool:
        """Is the plan for this model? CLIPs with other texts have the same weights."""
        return (plan["model"], plan["digest"]) == (self.model, self.digest)

    @cached_property
    def methods(self) -> list[str]:
        """In the order of the plan."""
        return list(dict.fromkeys(row.method for row in self.scores.rows))

    @cached_property
    def values(self) -> dict[tuple[str, Column], dict[str, dict[tuple[str, int], float]]]:
        """Protocol and column -> method -> image and class -> value."""
        found: dict[tuple[str, Column], dict[str, dict[tuple[str, int], float]]] = {}
        for row in (*self.scores.rows, *self.scores.headroom()):
            by_method = found.setdefault((row.protocol, (row.metric, row.reference)), {})
            by_method.setdefault(row.method, {})[row.image, row.target] = row.value
        return found


@dataclass
class Run:
    """A run folder, read."""

    folder: Path
    groups: list[Group]
    plans: list[PlanEntry]
    classes: Mapping[str, Sequence[str]]

    def class_name(self, model: str, index: int) -> str:
        """A class in words, where the model's names are known."""
        names = self.classes.get(model, ())
        return names[index] if index < len(names) else str(index)

    def group(self, target_kind: str | None = None) -> Group:
        """The group of a kind of target, or the only one."""
        found = [group for group in self.groups if target_kind in (None, group.target_kind)]
        if len(found) != 1:
            raise SpecError(f"{self.folder} has {len(found)} groups of scores for {target_kind or 'any target'}")
        return found[0]


def read_run(folder: str | Path, only: Collection[str] | None = None) -> Run:
    """Reads a run, or only its cells with some keys; they come in the order of its plans, not of their computation."""
    folder = Path(folder)
    cells, plans = read_cells(folder), read_plans_of(folder)
    if only is not None:
        cells = [cell for cell in cells if cell["key"] in only]
    orders = _order("methods", plans), _order("protocols", plans)
    cells.sort(key=lambda c: (orders[0].get(c["method"], 10**6), orders[1].get(c["protocol"], 10**6), c["image"]))
    groups: dict[tuple[str, str, str], Group] = {}
    for cell in cells:
        name = (cell["model"], cell["digest"], cell["asked"])
        if name not in groups:
            groups[name] = Group(*name, Scores(model=cell["model"]))
        _add(groups[name], cell)
    present = Counter((cell["model"], cell["digest"], cell["asked"]) for cell in cells)
    for name, group in groups.items():
        wanted = [plan for plan in plans if group.is_of(plan) and group.target_kind in plan["asked"]]
        group.missing = max(0, _expected(wanted) - present[name])
        group.scores.protocols = tuple(_protocols(dict.fromkeys(row.protocol for row in group.scores.rows)))
    classes = {plan["model"]: plan["classes"] for plan in plans}
    ordered = sorted(groups.values(), key=lambda group: _place(group, plans))
    return Run(folder, ordered, plans, classes)


def _place(group: Group, plans: Sequence[PlanEntry]) -> tuple[int, int]:
    for number, plan in enumerate(plans):
        if group.is_of(plan) and group.target_kind in plan["asked"]:
            return number, plan["asked"].index(group.target_kind)
    return len(plans), 0


def _order(what: Literal["methods", "protocols"], plans: Iterable[PlanEntry]) -> dict[str, int]:
    names = dict.fromkeys(name for plan in plans for name in plan[what])
    return {name: place for place, name in enumerate(names)}


def _expected(plans: Sequence[PlanEntry]) -> int:
    """Cells of the plans together; the one with most images stands for those that it extends."""
    most: dict[tuple[str, str], int] = defaultdict(int)
    for plan in plans:
        for method in plan["methods"]:
            for protocol in plan["protocols"]:
                images = plan["covered"].get(method, plan["images"])
                most[method, protocol] = max(most[method, protocol], images)
    return sum(most.values())


def _protocols(names: Iterable[str]) -> Iterable[Protocol]:
    for name in names:
        try:
            yield from load_protocols(name)
        except SpecError:  # of another version, or a metric of the caller's own
            yield Protocol(name, (), "")


def _add(group: Group, cell: Cell) -> None:
    image, method, protocol, scores = cell["image"], cell["method"], cell["protocol"], group.scores
    for found in cell["found"]:
        target = found["target"]
        scores.rows += [Row(image, method, m, protocol, target, r, v) for m, r, v in found["rows"]]
        scores.curve_rows += [
            CurveRow(image, method, kind, protocol, target, reference, tuple(shares), tuple(values))
            for kind, reference, shares, values in found["curves"]
        ]
        group.facts[image, target] = ImageFacts(cell["label"], found["score"])
        if "map" in found:
            group.maps[image].setdefault(method, (found["map"], target))
    group.contents[image] = cell["content"]
    group.truths[image] |= cell["truth"] | ({} if cell["label"] is None else {"label": str(cell["label"])})
    if picture := cell.get("picture"):
        group.pictures.setdefault(image, picture)
    scores.failures += [Failure(image, method, metric, reason) for metric, reason in cell["failures"]]
    costs = (
        (group.seconds, cell.get("seconds")),
        (group.forward, cell.get("forward")),
        (group.backward, cell.get("backward")),
    )
    for by_method, cost in costs:
        if cost is not None:
            by_method[method].append(float(cost))


def merge_runs(folders: Sequence[str | Path], out: str | Path) -> int:
    """Copies the cells of runs into one, each key once; returns their number. Kept maps stay where they are."""
    out = Path(out)
    check_writable(out)
    sources = [Path(folder) for folder in folders]
    for folder in sources:
        if not (folder / ROWS).is_dir():
            raise OutputError(f"{folder} is not the folder of a run")
    if (out / ROWS).exists():
        raise OutputError(f"{out} holds a run already; choose another folder")
    plans: list[PlanEntry] = []
    for folder in sources:
        own = read_plans_of(folder)
        _check_same_settings(folder, own, plans)
        plans += own
    found: dict[str, Cell] = {}
    for folder in sources:
        cells = read_cells(folder)
        if other := other_circumstance(found.values(), cells):
            raise OutputError(f"{folder} used {other}; it cannot be merged with the runs before it")
        for cell in cells:
            found.setdefault(cell["key"], _without_maps(cell))
    merge_cells(found.values(), plans, out)
    return len(read_cells(out))


def _check_same_settings(folder: Path, plans: Iterable[PlanEntry], earlier: Sequence[PlanEntry]) -> None:
    """Refuses what a run would refuse to continue: a mean over numbers of two settings would mean nothing."""
    for entry in plans:
        if other := other_setting(earlier, entry["digest"], cast("Mapping[str, object]", entry["settings"])):
            raise OutputError(
                f"{folder} holds results of {entry['model']} with {other.name}={other.value}, "
                f"another of these runs with {other.former}; merge runs of the same settings"
            )


def _without_maps(cell: Cell) -> Cell:
    """Maps are known by their file's name, which may mean different files in different runs."""
    cell.pop("picture", None)
    for found in cell["found"]:
        found.pop("map", None)
    return cell

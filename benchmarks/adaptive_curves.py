"""Adaptive curves against all 224 steps: how far apart the numbers are, and at how many of the passes.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/adaptive_curves.py --model timm:resnet18
        --weights FILE --images FOLDER --out FOLDER [--limit 100] [--method NAME]... [--methods 1] [--references turn]
        [--protocol NAME]

The full curves of every map are measured once and kept, a line of OUT/rows.jsonl for each image, method and reference,
so that the same command continues an interrupted run, and more methods or a larger limit add to it. The metrics of
`aha-adaptive` are then run on the kept answers, which gives their numbers and what they would have asked of the model,
without asking again: `--limit 0` prints the table of what there is, also after a change of the adaptive steps, with
`--tolerance T` for another tolerance than the protocol's, and with `--protocol NAME` for another protocol, such as
`quick` with its 32 steps or `quick-adaptive`; the passes are shares of those that `aha` takes.
`--check N` shows N of the maps to the model again, adaptively, and prints by how much that differs.

`--methods N` explains each photograph by N of the methods, the next ones for each photograph.
`--references all` measures the three references of a map, as the protocol does. `--references turn` measures one of
them, the next one for each map, in a third of the time. The table then has two readings of the same curves: alone,
where the one reference has to be as sure as an average of three, and as one of three, where it is allowed the error
that it may have inside of one (the root of three times as much).
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kept_lines import kept_lines
from torch import Tensor

import aha
from aha.data.batches import iter_batches
from aha.metrics import Case, Sample
from aha.metrics.case import Perturbation
from aha.metrics.curves.base import AVERAGE, CurveMetric
from aha.metrics.curves.ins_del import InsDel
from aha.metrics.protocols import PROTOCOLS
from aha.models import TargetModel, load_model
from aha.perturb.perturbation import step_counts
from aha.perturb.references import Reference

METHODS = ["grad_cam", "gradient", "integrated_gradients(steps=10)", "random_map", "edge_map", "center_map"]


def curve_metrics(protocol: str) -> list[CurveMetric]:
    """What a protocol reads off perturbation curves."""
    return [metric for metric in PROTOCOLS[protocol].metrics if isinstance(metric, CurveMetric)]


FULL = curve_metrics("aha")
REFERENCES = FULL[0].references
STEPS = 224
Row = dict[str, Any]
Numbers = dict[tuple[str, str], float]
"""What metrics found, by their names and those of the references."""


class KeptCase(Case):
    """A map whose answers are known: score and margin of its class in place of all outputs."""

    def scores(self, outputs: Tensor) -> Tensor:
        return outputs[:, 0]

    def margins(self, outputs: Tensor, class_index: int) -> Tensor:
        return outputs[:, 1]

    def recognised(self, outputs: Tensor, class_index: int) -> Tensor:
        return outputs[:, 1] > 0


def measured(model: TargetModel, file: Path, method: str, references: Sequence[Reference]) -> Iterator[Row]:
    """A line for each reference: score and margin at every step of both sequences."""
    inputs = next(iter_batches(model, [file], 1)).inputs
    found = aha.explain(model, inputs, method)
    target = int(found.targets[0])
    case = Case(Sample(model, file.name, inputs[0]), target, found.maps[0], method)
    both = InsDel(steps=STEPS, references=tuple(references))
    with torch.no_grad():
        case.prepare(both.perturbations(case))
        for reference in references:
            row = {
                "image": file.name,
                "method": method,
                "reference": str(reference),
                "pixels": list(found.maps[0].shape),
            }
            for kind in ("delete", "insert"):
                outputs = both.curve(case, kind, reference).outputs
                pair = case.scores(outputs), case.margins(outputs, target)
                row[kind] = [[round(float(value), 6) for value in values] for values in pair]
            yield row


def replayed(model: TargetModel, rows: Sequence[Row], metrics: Sequence[CurveMetric]) -> tuple[Numbers, int]:
    """Numbers of one map, from the answers in the lines of its references, and the images that would have been shown.

    Counted as for one map of one image, with the clean image and each reference.
    """
    references = tuple(r for r in REFERENCES if str(r) in {row["reference"] for row in rows})
    blank = torch.zeros(rows[0]["pixels"])
    case = KeptCase(Sample(model, rows[0]["image"], blank.expand(3, -1, -1)), 0, blank, rows[0]["method"])
    places = {count: step for step, count in enumerate(step_counts(case.num_pixels, STEPS))}
    kept = {
        (kind, row["reference"]): torch.tensor(row[kind]).T  # (S, 2)
        for row in rows
        for kind in ("delete", "insert")
    }
    case.sample.know_clean(kept["delete", rows[0]["reference"]][0])
    own = [replace(metric, references=references) for metric in metrics]
    asked: set[Perturbation] = set()
    while wanted := {p for metric in own for p in metric.perturbations(case) if not case.is_known(p)}:
        for p in case.missing(wanted):
            case.know(p, kept[p.kind, str(p.reference)][places[p.count or 0]])
            asked.add(p)
    numbers = {(value.column, value.reference): value.value for metric in own for value in metric(case)}
    inner = sum(p.count != 0 for p in asked)
    return numbers, inner + 1 + len(references)


def lenient(metrics: Sequence[CurveMetric]) -> list[CurveMetric]:
    """As sure of one reference as the average of three needs it to be."""
    return [replace(metric, tolerance=metric.tolerance * len(REFERENCES) ** 0.5) for metric in metrics]


def by_map(rows: Sequence[Row]) -> list[list[Row]]:
    """The lines of each image and method together."""

    def key(row: Row) -> tuple[str, str]:
        return row["image"], row["method"]

    return [list(own) for _, own in groupby(sorted(rows, key=key), key)]


def table(model: TargetModel, rows: Sequence[Row], chosen: Sequence[CurveMetric]) -> Iterator[str]:
    """What the differences are: of averages where all references were measured, and of single ones."""
    yield "| of | number | n | mean difference | its error | mean size | 95 % below | within 0.005 | passes |"
    yield "|---|---|---|---|---|---|---|---|---|"
    maps = by_map(rows)
    whole = [own for own in maps if len(own) == len(REFERENCES)]
    # With all references each map of one is judged too: what stands in the tables of the protocol is theirs as well.
    readings = [
        ("three references", whole, chosen),
        ("one reference, alone", [[row] for row in rows], chosen),
        ("one reference, as one of three", [[row] for row in rows], lenient(chosen)),
    ]
    for name, groups, metrics in readings:
        apart: dict[str, list[float]] = defaultdict(list)
        shown, all_of_them = 0, 0
        for group in groups:
            (full, every), (ours, asked) = (replayed(model, group, own) for own in (FULL, metrics))
            shown, all_of_them = shown + asked, all_of_them + every
            for (column, reference), value in ours.items():
                if len(group) == 1 or reference == AVERAGE:
                    apart[column].append(value - full[column, reference])
        for column, differences in apart.items():
            n, sizes = len(differences), np.abs(differences)
            cells = f"{np.mean(differences):+.5f} | {np.std(differences) / n**0.5:.5f} | {sizes.mean():.5f}"
            tail = f"{np.quantile(sizes, 0.95):.4f} | {(sizes <= 0.005).mean():.1%} | {shown / all_of_them:.4f}"
            yield f"| {name} | {column} | {n} | {cells} | {tail} |"


def check(model: TargetModel, images: Path, rows: Sequence[Row], chosen: Sequence[CurveMetric], count: int) -> None:
    """Shows the model what the metrics ask for, map by map, and compares with what the kept answers gave."""
    for own in by_map(rows)[:count]:
        references = tuple(r for r in REFERENCES if str(r) in {row["reference"] for row in own})
        metrics = [replace(metric, references=references) for metric in chosen]
        inputs = next(iter_batches(model, [images / own[0]["image"]], 1)).inputs
        found = aha.explain(model, inputs, own[0]["method"])
        targets = [[int(found.targets[0])]]
        before = model.passes["forward"]
        scores = aha.evaluate(model, inputs, found.maps, metrics, target=targets)
        shown = model.passes["forward"] - before
        expected, asked = replayed(model, own, chosen)
        worst = max(abs(row.value - expected[row.metric, row.reference]) for row in scores.rows)
        print(
            f"{own[0]['image']} {own[0]['method']}: {shown} images shown, {asked} replayed, numbers {worst:.1e} apart"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="timm:resnet18")
    parser.add_argument("--weights")
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--method", action="append")
    parser.add_argument("--methods", type=int, help="how many of the methods for a photograph, in turn (all of them)")
    parser.add_argument("--references", choices=["all", "turn"], default="all")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--engine", default="eager", help="what runs passes without gradients; see docs/models.md")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--protocol", default="aha-adaptive", help="what is compared with `aha`")
    parser.add_argument("--tolerance", type=float, help="another one than the protocol's")
    parser.add_argument("--check", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    store = options.out / "rows.jsonl"
    rows: list[Row] = kept_lines(store)
    done = {(row["image"], row["method"], row["reference"]) for row in rows}
    model = load_model(
        options.model,
        weights=options.weights,
        pretrained=options.weights is not None,
        device="cpu",
        precision=options.precision,
        engine=options.engine,
        batch_size=options.batch,
    )
    files = sorted(path for path in options.images.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    order = np.random.default_rng(0).permutation(len(files))[: options.limit]  # a smaller choice is part of a larger
    named = options.method or METHODS
    count = min(options.methods or len(named), len(named))
    for turn, place in enumerate(order):
        for number in range(turn * count, (turn + 1) * count):
            rounds, own = divmod(number, len(named))
            method = named[own]
            # Not the same reference for a method each time it has its turn.
            chosen = REFERENCES if options.references == "all" else [REFERENCES[(rounds + own) % len(REFERENCES)]]
            chosen = [r for r in chosen if (files[place].name, method, str(r)) not in done]
            if chosen:
                new = list(measured(model, files[place], method, chosen))
                with store.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in new)
                rows += new
    chosen_metrics = curve_metrics(options.protocol)
    if options.tolerance:
        chosen_metrics = [replace(metric, tolerance=options.tolerance) for metric in chosen_metrics]
    if options.check:
        check(model, options.images, rows, chosen_metrics, options.check)
        return
    for text in table(model, rows, chosen_metrics):
        print(text)


if __name__ == "__main__":
    main()

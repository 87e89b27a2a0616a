"""How good AHA's maps are by the hard metrics, as refinement goes on, beside other methods.

    python benchmarks/aha_quality.py IMAGES --model SPEC [--weights FILE] --explainer RUN/explainer --out FILE.csv
    python benchmarks/aha_quality.py IMAGES --model SPEC --method grad_cam --method "aha('universal')" \
        --against grad_cam --steps 32 --out FILE.csv

For each image and its predicted class: Deletion, Insertion and Ins-Del with hard pixel masks, for the maps after
T = 0..5 gradient steps and for each `--method`. One line per image and map is appended to the CSV as soon as it is
known, so that an interrupted run goes on where it was. At the end: means, their standard errors, and the paired
difference to T = 0, or to the method that `--against` names. Without `--explainer`, the methods alone.

IMAGES is a folder or a CSV file; every n-th image is taken, so that `--limit 200` of 1000 sorted by class covers the
classes evenly.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import statistics
import warnings
from pathlib import Path

from torch import Tensor

import aha
from aha.data.images import read_image
from aha.data.labelled import find_labelled
from aha.learned.explainer import Explainer
from aha.learned.refinement import RefinementConfig, Refining
from aha.learned.training.validation import areas, hard_curves
from aha.perturb.references import load_reference

SUMMARY = ("model", "steps", "map", "n", "deletion", "insertion", "ins_del", "against")
SUMMARY += ("difference", "difference_se", "deletion_difference", "deletion_difference_se")
FIELDS = ("image", "method", "deletion", "insertion", "ins_del", "steps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--explainer")
    parser.add_argument("--against", default="aha T=0")
    parser.add_argument("--summary", type=Path, help="a CSV file to which means and paired differences are added")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--method", action="append", default=[])
    parser.add_argument("--refine", type=int, default=5)
    parser.add_argument("--only", type=int, action="append", help="measure these T only")
    parser.add_argument("--auto", type=int, default=0, help="also refine=auto with this budget")
    parser.add_argument("--improvement", type=float, default=0.01, help="of refine=auto")
    parser.add_argument("--perturbations", type=int, default=RefinementConfig.steps)
    parser.add_argument("--learning-rate", type=float, default=RefinementConfig.learning_rate)
    parser.add_argument("--reference", action="append", default=[])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--shard", default="0/1", help="which part of the images, of how many")
    parser.add_argument("--precision", default="float32")
    args = parser.parse_args()
    warnings.simplefilter("ignore")

    target = aha.load_model(args.model, weights=args.weights, precision=args.precision, batch_size=20)
    explainer = Explainer.from_pretrained(args.explainer, device=target.device) if args.explainer else None
    references = [load_reference(text) for text in args.reference or ("black", "mean", "blur")]
    config = RefinementConfig(learning_rate=args.learning_rate, steps=args.perturbations)
    images = [image.path for image in find_labelled([args.images])]
    images = images[:: max(1, len(images) // args.limit)][: args.limit]
    random.Random(0).shuffle(images)  # so that what is there of an unfinished run is a fair sample
    part, parts = map(int, args.shard.split("/"))
    rounds = (args.only or range(args.refine + 1)) if explainer else ()
    names = [f"aha T={t}" for t in rounds] + args.method + (["aha auto"] if args.auto else [])
    done = {(row["image"], row["method"]) for row in read(args.out)}

    for path in images[part::parts]:
        wanted = [name for name in names if (path.name, name) not in done]
        if not wanted:
            continue
        inputs = target.stated_preprocessing()(read_image(path))[0][None].to(target.device)
        classes = target.outputs(inputs).argmax(dim=1)
        found: dict[str, tuple[Tensor, int]] = {}
        if explainer is not None and any(name.startswith("aha T") for name in wanted):
            refining = Refining.start(explainer, target, inputs, classes, config)
            for taken in range(args.refine + 1):
                found[f"aha T={taken}"] = refining.after(1 if taken else 0), taken
        if explainer is not None and "aha auto" in wanted:
            refining = Refining.start(explainer, target, inputs, classes, config)
            maps, took = refining.until_settled(args.auto, improvement=args.improvement)
            found["aha auto"] = maps, int(took[0])
        for method in args.method:
            if method in wanted:
                found[method] = aha.explain(target, inputs, method, target=int(classes[0])).maps, 0
        for name in wanted:
            maps, taken = found[name]
            curves = hard_curves(target, inputs, classes, maps.to(target.device), references, args.steps)
            scores = areas(curves, maps[0].numel())
            append(args.out, [path.name, name, *(f"{float(v[0]):.5f}" for v in scores.values()), taken])
    rows = read(args.out)
    report(rows, names, args.against)
    if args.summary:
        for row in summary(rows, names, args.against):
            append(args.summary, [args.model, args.steps, *row], SUMMARY)


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def append(path: Path, row: list[object], header: tuple[str, ...] = FIELDS) -> None:
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(header)
        writer.writerow(row)


def summary(rows: list[dict[str, str]], names: list[str], against: str) -> list[list[object]]:
    """For each map: n, mean Deletion, Insertion and Ins-Del, and the paired differences of Ins-Del and Deletion."""
    values = {name: {row["image"]: row for row in rows if row["method"] == name} for name in names}
    found: list[list[object]] = []
    for name, mine in values.items():
        common = [image for image in mine if image in values.get(against, {})]
        gaps = {
            field: [float(mine[image][field]) - float(values[against][image][field]) for image in common]
            for field in ("ins_del", "deletion")
        }
        means = [round(statistics.mean(float(row[f]) for row in mine.values()), 4) for f in FIELDS[2:5]]
        paired = [round(f(gaps[key]), 4) for key in gaps for f in (statistics.mean, error)] if common else [""] * 4
        found.append([name, len(mine), *means, against, *paired])
    return found


def report(rows: list[dict[str, str]], names: list[str], against: str) -> None:
    """A Markdown table: means, standard errors, and the paired difference to one of them."""
    values = {name: {row["image"]: row for row in rows if row["method"] == name} for name in names}
    base = {image: float(row["ins_del"]) for image, row in values.get(against, {}).items()}
    print(f"| map | n | Deletion | Insertion | Ins-Del | against {against} | steps |\n|---|---|---|---|---|---|---|")
    for name in names:
        mine = values[name]
        if not mine:
            continue
        columns = {field: [float(row[field]) for row in mine.values()] for field in FIELDS[2:]}
        gaps = [float(row["ins_del"]) - base[image] for image, row in mine.items() if image in base]
        cells = [f"{statistics.mean(columns[field]):.3f} ± {error(columns[field]):.3f}" for field in FIELDS[2:5]]
        gap = f"{statistics.mean(gaps):+.3f} ± {error(gaps):.3f}" if gaps else ""
        print(f"| {name} | {len(mine)} | {' | '.join(cells)} | {gap} | {statistics.mean(columns['steps']):.1f} |")


def error(values: list[float]) -> float:
    """Standard error of the mean."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


if __name__ == "__main__":
    main()

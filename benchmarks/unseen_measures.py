"""Is AHA more than its metric? Methods by measures and references that AHA was not trained on, next to its own.

    python benchmarks/unseen_measures.py MODEL --weights FILE --data val.csv --run RUN --images 100 --out FILE.csv

MODEL is a spec such as `timm:resnet18`. Ins-Del with black, mean and blur, which AHA is trained on, is measured with
10 steps; so is the symmetric relevance gain with noise, shuffled pixels, the image's own mean and inpainting. Then come
single patches, groups of pixels and small random shares. `--all-measures FOLDER` adds what has to be filled in: ROAD,
and the gain with imputed pixels and with patches of the images in FOLDER. The run is a run of `aha bench`: the same
command resumes it, a larger `--images` extends it, and `--slow`, `--method` or `--all-measures` given later compute
what is new alone. FILE.csv gets a line for each method and measure: n, mean, standard error, rank, and AHA's lead on
the same images with its standard error. At the end: rank agreement of the measures with Ins-Del.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from pathlib import Path

from scipy.stats import spearmanr

from aha.bench import Plan, read_run, run
from aha.bench.reporting.tables import better
from aha.bench.run_reader import Group

TRAINED_ON = "ins_del(steps=10, references=(black, mean, blur(kernel=31, sigma=10.0)))"
NEW = (
    "srg(steps=10, references=(noise, shuffled, own_mean, inpainted))",
    "single_deletion",
    "saco",
    "fidelity_bounded",
)
FILLED_IN = (
    "road",
    "srg(steps=10, references=(imputed,))",
    "srg(steps=10, references=(neighbours(files=({folder!r},)),))",
)
METHODS = ("aha", "aha('universal')", "grad_cam", "lrp", "random_map", "center_map", "edge_map")
CNN, VIT = ("layer_cam",), ("inflow",)
SEARCH = "search(budget=600)"  # for black, mean and blur, which it is told
SLOW = ("shapley_sampling", "rise(n=500)", SEARCH), ("shapley_sampling", "tis", SEARCH)
LEADER = "aha"
FIELDS = ("model", "measure", "method", "n", "mean", "standard_error", "rank", "aha_leads_by", "lead_error")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--name", help="of the model in the tables; its spec by default")
    parser.add_argument("--weights")
    parser.add_argument("--data", required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--slow", action="store_true", help="methods of hundreds of passes too")
    parser.add_argument("--all-measures", metavar="FOLDER", help="those that are filled in, too; images for patches")
    parser.add_argument("--method", action="append", default=[], help="further methods")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--engine", default="eager")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    is_vit = "vit" in given.model
    methods = (*METHODS, *(VIT if is_vit else CNN), *(SLOW[is_vit] if given.slow else ()), *given.method)
    filled_in = [text.format(folder=given.all_measures) for text in FILLED_IN] if given.all_measures else ()
    plan = Plan(
        given.model,
        given.data,
        methods,
        (TRAINED_ON, *NEW, *filled_in),
        weights=given.weights,
        precision=given.precision,
        engine=given.engine,
        limit=given.images,
        batch_size=8,
        maps="none",
    )
    run(plan, given.run)
    name = given.name or given.model
    rows = table(name, read_run(given.run).group("top1"))
    others = [row for row in read(given.out) if row["model"] != name]
    with given.out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows([*others, *rows])
    report(rows)


def read(path: Path) -> list[dict[str, str]]:
    """Rows that are there already, of other models."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def table(name: str, group: Group) -> list[dict[str, str]]:
    """A row for each measure and method, best first."""
    found = []
    for (_, (metric, reference)), by_method in group.values.items():
        sign = {"higher": 1, "lower": -1}.get(str(better(metric)), 0)
        if not sign or metric in ("deletion", "insertion") or metric.endswith(("headroom", "_sum")):
            continue
        reference = "neighbours" if reference.startswith("neighbours") else reference  # not whose folder
        measure = f"{metric}, {reference}" if reference else metric
        means = {method: statistics.mean(values.values()) for method, values in by_method.items()}
        order = sorted(means, key=lambda method: -sign * means[method])
        for rank, method in enumerate(order, start=1):
            values = list(by_method[method].values())
            gaps = [
                sign * (by_method[LEADER][key] - value)
                for key, value in by_method[method].items()
                if key in by_method[LEADER]
            ]
            lead = ["", ""] if method == LEADER else [f"{statistics.mean(gaps):.4f}", f"{error(gaps):.4f}"]
            cells = (name, measure, method, len(values), f"{means[method]:.4f}", f"{error(values):.4f}", rank, *lead)
            found.append(dict(zip(FIELDS, map(str, cells), strict=True)))
    return found


def error(values: list[float]) -> float:
    """Standard error of the mean."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def report(rows: list[dict[str, str]]) -> None:
    """Ranks of all methods by every measure, and how far each measure agrees with the first one, as Markdown."""
    measures = list(dict.fromkeys(row["measure"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    rank = {(row["measure"], row["method"]): int(row["rank"]) for row in rows}
    base = next(measure for measure in measures if measure.startswith("ins_del"))
    print(f"| measure | {' | '.join(methods)} | agreement |\n|{'---|' * (len(methods) + 2)}")
    for measure in measures:
        measured = [method for method in methods if (measure, method) in rank and (base, method) in rank]
        agreement = spearmanr([rank[measure, m] for m in measured], [rank[base, m] for m in measured]).statistic
        print(f"| {measure} | {' | '.join(str(rank.get((measure, m), '')) for m in methods)} | {agreement:.2f} |")


if __name__ == "__main__":
    main()

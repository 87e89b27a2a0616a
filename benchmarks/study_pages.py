"""Tables, figure and CSV of `docs/results` from the runs of `benchmarks/study.py`. No model is touched.

python benchmarks/study_pages.py NAME=RUN [NAME=RUN ...] --out docs/results
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import matplotlib.pyplot as plt

from aha.bench import read_run
from aha.bench.runs import Group
from aha.bench.tables import differences
from aha.methods import load_method
from aha.metrics.curves import AVERAGE
from aha.results.score_table import summarise

BASE = "grad_cam"
NAME_WIDTH, NAME_HEIGHT = math.log(5), 0.019  # of a name in the figure: a factor of passes, a share of the values
COLOURS = {
    "cam": "#3b6fb6",
    "gradient": "#d0822b",
    "attention": "#4f9d5d",
    "perturbation": "#8a5fb0",
    "learned": "#c23b4b",
    "baseline": "#8c8c8c",
    "wrapper": "#33a6a6",
}


@dataclass(frozen=True)
class Result:
    """What a study says about one method on one model; `gap` is the mean difference to Grad-CAM on common images."""

    model: str
    method: str
    family: str
    n: int
    deletion: float
    insertion: float
    ins_del: float
    ins_del_se: float
    gap: float
    gap_se: float
    seconds: float
    forward: float
    backward: float


def results_of(name: str, group: Group) -> list[Result]:
    """One result per method, the best first."""
    values = {column[0]: found for (_, column), found in group.values.items() if column[1] == AVERAGE}
    found = []
    for method, own in values["ins_del"].items():
        score = summarise(method, "ins_del", "", AVERAGE, list(own.values()))
        gap = summarise(method, "ins_del", "", AVERAGE, differences(own, values["ins_del"][BASE]))
        found.append(
            Result(
                name,
                method,
                load_method(method).family,
                score.n,
                statistics.mean(values["deletion"][method].values()),
                statistics.mean(values["insertion"][method].values()),
                score.mean,
                score.standard_error,
                gap.mean,
                gap.standard_error,
                statistics.median(group.seconds[method]),
                statistics.mean(group.forward[method]),
                statistics.mean(group.backward[method]),
            )
        )
    return sorted(found, key=lambda result: -result.gap)


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def table(results: list[Result]) -> str:
    """As Markdown."""
    heads = "method", "n", "Deletion ↓", "Insertion ↑", "Ins-Del ↑", f"against `{BASE}`", "seconds", "passes"
    rows = [
        [
            f"`{r.method}`",
            str(r.n),
            f"{r.deletion:.3f}",
            f"{r.insertion:.3f}",
            f"{r.ins_del:.3f} ± {r.ins_del_se:.3f}",
            "" if r.method == BASE else f"{r.gap:+.3f} ± {r.gap_se:.3f}",
            f"{r.seconds:.2f}",
            f"{r.forward:.0f} + {r.backward:.0f}",
        ]
        for r in results
    ]
    return markdown(heads, rows)


def figure(by_model: dict[str, list[Result]], path: Path) -> None:
    """Quality over the passes through the model, a backward pass counted twice."""
    plt.rcParams["svg.hashsalt"] = "study"
    drawn, axes = plt.subplots(1, len(by_model), figsize=(6.4 * len(by_model), 8), squeeze=False)
    for axis, (name, results) in zip(axes[0], by_model.items(), strict=True):
        base = next(r for r in results if r.method == BASE)
        places = [(max(0.5, r.forward + 2 * r.backward), base.ins_del + r.gap, r) for r in results]
        for cost, height, r in places:
            axis.errorbar(cost, height, r.gap_se, fmt="o", color=COLOURS[r.family], ms=5, lw=0.8)
        written: list[tuple[float, float]] = []
        line = NAME_HEIGHT * (max(height for _, height, _ in places) - min(height for _, height, _ in places))
        for cost, height, r in sorted(places, key=lambda place: place[1]):
            free = height
            for x, y in sorted(written, key=lambda name: name[1]):  # up, until it is clear of the names beside it
                if abs(math.log(x / cost)) < NAME_WIDTH and abs(free - y) < line:
                    free = y + line
            written.append((cost, free))
            axis.annotate(
                short(r.method),
                (cost, height),
                (1.12 * cost, free),
                fontsize=6,
                va="center",
                arrowprops={"arrowstyle": "-", "lw": 0.3, "color": "#999999", "shrinkA": 0, "shrinkB": 2},
            )
        axis.axhline(base.ins_del, color="#bbbbbb", lw=0.8, zorder=0)
        axis.set(xscale="log", title=name, xlabel="model passes per map (a backward pass counts twice)")
        axis.set_xlim(right=8 * max(cost for cost, _, _ in places))
    axes[0][0].set_ylabel("Ins-Del")
    drawn.tight_layout()
    drawn.savefig(path, metadata={"Date": None})


def short(method: str) -> str:
    """A name for a figure: settings of how much is computed are left to the table."""
    return "aha, T = 3" if method.startswith("aha(refine=3") else re.sub(r"\((\w+=\w+)\)$", "", method)


def named_runs(texts: list[str]) -> dict[str, str]:
    """Folders by name, of "NAME=RUN"."""
    return dict(text.split("=", 1) for text in texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="NAME=RUN")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    by_model = {name: results_of(name, read_run(run).group("top1")) for name, run in named_runs(args.runs).items()}
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "scores_summary.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Result)], lineterminator="\n")
        writer.writeheader()
        for results in by_model.values():
            for result in results:
                writer.writerow(
                    {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(result).items()},
                )
    parts = [f"## {name}\n\n{table(results)}" for name, results in by_model.items()]
    (args.out / "tables.md").write_text("# All numbers\n\n" + "\n".join(parts), encoding="utf-8")
    figure(by_model, args.out / "quality_over_cost.svg")


if __name__ == "__main__":
    main()

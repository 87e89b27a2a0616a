"""All pages, the figure and the CSV of `docs/results`, from the stored rows of `study.py`. No model is touched.

    python benchmarks/study_pages.py RUNS --out docs/results

Every run is a folder of RUNS: `resnet18`, `efficientnet_lite0`, `vit_tiny`, `clip_vit_b16`; the published tables
`caap-table14` and `mda-table5`; and, for the papers' page, `mosaics-MODEL` (metrics `grid` and `var`) and
`randomised-MODEL` (metric `randomisation`). Methods and pages without a run keep what was said of them before, marked
as such.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
from dataclasses import asdict, fields
from pathlib import Path

import matplotlib.pyplot as plt
from study_papers import papers_page
from study_results import (
    BASE,
    FORMER_PROTOCOL,
    NAMES,
    SUMMARY,
    TAIL,
    Result,
    former_results,
    joined,
    markdown,
    results_of,
)

from aha.bench import read_run

ORDER = f"""Sorted by the difference to `{BASE}` on the photographs that both were measured on, whose number stands in
brackets where it is smaller than *n*. Deletion, Insertion and Ins-Del are means over a method's own *n* photographs, so
that methods of different *n* are compared by the difference, not by them.

"""
COLUMNS = 2  # networks beside each other in the figure
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


def tables(results: list[Result]) -> str:
    """One for each protocol: values of different ones are not compared."""
    parts = []
    for protocol in dict.fromkeys(result.protocol for result in sorted(results, key=lambda r: -r.n)):
        own = [result for result in results if result.protocol == protocol]
        least, most = (pick(r.n for r in own) for pick in (min, max))
        heading = "An earlier, smaller study: " if protocol == FORMER_PROTOCOL else "Protocol "
        photographs = f"{least} to {most}" if least < most else f"{most}"
        parts.append(f"{heading}{protocol}, {photographs} photographs.\n\n{table(own)}")
    return "\n".join(parts)


def table(results: list[Result]) -> str:
    """As Markdown."""
    heads = ["method", "n", "Deletion ↓", "Insertion ↑", "Ins-Del ↑", f"against `{BASE}`", "seconds", "passes"]
    measured = any(not math.isnan(r.headroom) for r in results)
    heads += ["headroom ↑", "its worst tenth ↑"] if measured else []
    rows = [
        [
            f"`{r.method}`",
            str(r.n),
            f"{r.deletion:.3f}",
            f"{r.insertion:.3f}",
            f"{r.ins_del:.3f} ± {r.ins_del_se:.3f}",
            "" if r.method == BASE else _difference(r),
            f"{r.seconds:.2f}",
            f"{r.forward:.0f} + {r.backward:.0f}",
            *([_headroom(r), _share(r.worst_tenth)] if measured else []),
        ]
        for r in results
    ]
    oracle = next((r.oracle for r in results if r.oracle), "")
    note = ""
    if oracle:
        note = (
            f"\nHeadroom: 0 is `random_map`, 1 is what `{oracle}` found on the same photograph; how many photographs "
            f"were searched stands in brackets. A worst tenth is given of {TAIL} photographs or more.\n"
        )
    return markdown(heads, rows) + note


def _difference(result: Result) -> str:
    of = f" ({result.common})" if 0 < result.common < result.n else ""
    return f"{result.gap:+.3f} ± {result.gap_se:.3f}{of}"


def _headroom(result: Result) -> str:
    of = f" ({result.headroom_n})" if 0 < result.headroom_n < result.n else ""
    return _share(result.headroom) + of


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def figure(by_model: dict[str, list[Result]], path: Path) -> None:
    """Quality over the passes through the model, a backward pass counted twice."""
    plt.rcParams["svg.hashsalt"] = "study"
    rows = math.ceil(len(by_model) / COLUMNS)
    drawn, axes = plt.subplots(rows, COLUMNS, figsize=(6.4 * COLUMNS, 6.4 * rows), squeeze=False)
    for axis in axes.flat[len(by_model) :]:
        axis.remove()
    for axis, (name, results) in zip(axes.flat, by_model.items(), strict=False):
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
        axis.set_ylabel("Ins-Del")
    drawn.tight_layout()
    drawn.savefig(path, metadata={"Date": None})


def short(method: str) -> str:
    """A name for a figure: settings of how much is computed are left to the table."""
    return "aha, T = 3" if method.startswith("aha(refine=3") else re.sub(r"\(\w+=.*\)$", "", method)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder of the runs")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    present = {NAMES[place.name]: read_run(place) for place in sorted(args.runs.iterdir()) if place.name in NAMES}
    fresh = {name: results_of(name, found.group("top1")) for name, found in present.items()}
    former = former_results(args.out / SUMMARY)
    known = {name: joined(fresh.get(name, []), former.get(name, [])) for name in NAMES.values()}
    by_model = {name: results for name, results in known.items() if results}
    args.out.mkdir(parents=True, exist_ok=True)
    write_summary(args.out / SUMMARY, by_model)
    parts = [f"## {name}\n\n{tables(own)}" for name, own in by_model.items()]
    (args.out / "tables.md").write_text("# All numbers\n\n" + ORDER + "\n".join(parts), encoding="utf-8")
    figure(by_model, args.out / "quality_over_cost.svg")
    (args.out / "papers.md").write_text(papers_page(args.runs, args.out / "papers.md", by_model), encoding="utf-8")


def write_summary(file: Path, by_model: dict[str, list[Result]]) -> None:
    """All results as CSV."""
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, [f.name for f in fields(Result)], lineterminator="\n")
        writer.writeheader()
        for results in by_model.values():
            for result in results:
                rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(result).items()}
                writer.writerow({k: "" if isinstance(v, float) and math.isnan(v) else v for k, v in rounded.items()})


if __name__ == "__main__":
    main()

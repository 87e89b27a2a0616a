"""All pages, the figure and the CSV files of `docs/results`, from what the study measured. No model is touched.

    python benchmarks/study_pages.py RUNS --data val.csv --out docs/results
    python benchmarks/study_pages.py --out docs/results

Every run is a folder of RUNS: `resnet18`, `efficientnet_lite0`, `vit_tiny`, `clip_vit_b16`; the published tables
`caap-table14` and `mda-table5`; and, for the papers' page, `mosaics-MODEL` (metrics `grid` and `var`) and
`randomised-MODEL` (metric `randomisation`). What they say joins what `scores_parts.csv` has of other photographs;
without runs the pages are made of that alone. `--forget aha` drops what is known of methods with this name in them, for
a new explainer. Sections of the papers' page without a run keep what they said. `index.md` is written by hand; its
tables between `<!-- study: NAME -->` and `<!-- end -->` are filled in.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

import matplotlib.pyplot as plt
from study import CHEAP, Photographs
from study_papers import papers_page
from study_results import (
    BASE,
    FORMER_PROTOCOL,
    LEADER,
    NAMES,
    PARTS,
    REFINED,
    SUMMARY,
    TAIL,
    Result,
    by_gap,
    joined,
    markdown,
    parts_of,
    put_together,
    read_results,
    write_results,
)

from aha.bench import read_run
from aha.results.headroom import is_oracle

ORDER = f"""Sorted by the difference to `{BASE}` on common photographs. Their number is in brackets if it is smaller
than *n*, as is that of the photographs in common with `{LEADER}`, where differences to it were recorded. Deletion,
Insertion and Ins-Del are means over a method's own *n* photographs: compare methods of different *n* by the
differences, not by these means.

"""
COMPARED = (
    REFINED,
    LEADER,
    "shapley_sampling",
    "lrp",
    "inflow",
    BASE,
    "mda(grid=7)",
    "integrated_gradients(steps=20)",
    "center_map",
)
ENOUGH = 20  # photographs in common, at least, for a method to be named as the best of the others
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
    """Curves of the earlier study apart: their values are not compared with the others."""
    parts = []
    for is_former in (False, True):
        own = [result for result in results if (result.protocol == FORMER_PROTOCOL) == is_former]
        if own:
            least, most = (pick(r.n for r in own) for pick in (min, max))
            used = sorted({name for result in own for name in result.protocol.split(" and ")})
            heading = "An earlier, smaller study: " if is_former else "Protocol " if len(used) == 1 else "Protocols "
            photographs = f"{least} to {most}" if least < most else f"{most}"
            parts.append(f"{heading}{', '.join(used)}; {photographs} photographs.\n\n{table(own)}")
    return "\n".join(parts)


def table(results: list[Result]) -> str:
    """As Markdown."""
    heads = ["method", "n", "Deletion ↓", "Insertion ↑", "Ins-Del ↑", f"against `{BASE}`"]
    is_compared = any(r.beside for r in results)
    heads += [f"against `{LEADER}`"] if is_compared else []
    heads += ["seconds", "passes"]
    measured = any(not math.isnan(r.headroom) for r in results)
    heads += ["headroom ↑", "its worst tenth ↑"] if measured else []
    rows = [
        [
            f"`{r.method}`",
            str(r.n),
            f"{r.deletion:.3f}",
            f"{r.insertion:.3f}",
            f"{r.ins_del:.3f} ± {r.ins_del_se:.3f}",
            "" if r.method == BASE else _difference(r.gap, r.gap_se, r.common, r.n),
            *([_beside(r)] if is_compared else []),
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
            f"\nHeadroom: 0 is `random_map`, 1 is what `{oracle}` found on the same photograph.\nThe number of "
            f"searched photographs is in brackets. A worst tenth is given for {TAIL} photographs or more.\n"
        )
    return markdown(heads, rows) + note


def _difference(mean: float, error: float, common: int, n: int) -> str:
    of = f" ({common})" if 0 < common < n else ""
    return f"{mean:+.3f} ± {error:.3f}{of}"


def _beside(result: Result) -> str:
    if not result.beside or result.method == LEADER:
        return ""
    return _difference(result.behind, result.behind_se, result.beside, result.n)


def _headroom(result: Result) -> str:
    of = f" ({result.headroom_n})" if 0 < result.headroom_n < result.n else ""
    return _share(result.headroom) + of


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def coverage(by_model: dict[str, list[Result]]) -> str:
    """How far the study has come: photographs of each kind of method."""
    heads = ["network", "protocols", "AHA and Grad-CAM", f"methods below {CHEAP} passes", "others", "searched"]
    rows = []
    for name, results in by_model.items():
        first = [r for r in results if r.method in (LEADER, BASE)]
        rest = [r for r in results if r not in first and not is_oracle(r.method)]
        cheap = [r for r in rest if r.forward + r.backward < CHEAP]
        used = sorted({part for r in results for part in r.protocol.split(" and ")})
        rows.append(
            [
                name,
                ", ".join(f"`{text}`" if text != FORMER_PROTOCOL else text for text in used),
                *(_counts(own) for own in (first, cheap, [r for r in rest if r not in cheap])),
                _counts([r for r in results if is_oracle(r.method)]),
            ]
        )
    return markdown(heads, rows)


def _counts(results: list[Result]) -> str:
    """How many photographs, and of how many methods, the most first."""
    counts = Counter(r.n for r in results)
    if len(counts) == 1:
        return str(results[0].n)
    return ", ".join(f"{n} ({counts[n]})" for n in sorted(counts, reverse=True)) or "–"


def leaders(by_model: dict[str, list[Result]]) -> str:
    """AHA in a single pass against Grad-CAM and the strongest others, and what three steps add."""
    heads = ["network", "AHA, single pass", "lead over Grad-CAM", "lead over the strongest others"]
    heads += ["three refinement steps add"]
    rows = []
    for name, results in by_model.items():
        own = {r.method: r for r in results}
        if LEADER not in own or own[LEADER].protocol == FORMER_PROTOCOL:
            continue
        others = [r for r in results if "aha" not in r.method and r.family != "baseline" and r.beside >= ENOUGH]
        nearest = sorted((r for r in others if r.method != BASE), key=lambda r: -r.behind)[:3]
        steps, look = own.get(REFINED), own[LEADER]
        rows.append(
            [
                name,
                f"**{look.ins_del:.3f}** ({look.n})",
                f"**{look.gap:.3f} ± {look.gap_se:.3f}** ({look.common})",
                "; ".join(f"`{r.method}` {-r.behind:.3f} ± {r.behind_se:.3f} ({r.beside})" for r in nearest) or "–",
                f"{steps.behind:.3f} ± {steps.behind_se:.3f} ({steps.beside})" if steps and steps.beside else "–",
            ]
        )
    return markdown(heads, rows)


def headrooms(by_model: dict[str, list[Result]]) -> str:
    """What some methods reach of what a search found, on average and on the worst tenth."""
    searched = {name: {r.method: r for r in own} for name, own in by_model.items() if any(r.headroom_n for r in own)}

    def cell(found: Result | None) -> str:
        if found is None or math.isnan(found.headroom):
            return "–"
        tail = "" if math.isnan(found.worst_tenth) else f", {found.worst_tenth:.2f}"
        return f"{found.headroom:.2f}{tail} ({found.headroom_n})"

    rows = [[f"`{method}`", *(cell(own.get(method)) for own in searched.values())] for method in COMPARED]
    return markdown(["mean, worst tenth (photographs)", *searched], rows)


def filled_in(page: str, made: Mapping[str, str]) -> str:
    """A page with its marked tables made anew."""
    for name, text in made.items():
        marked = re.compile(rf"(<!-- study: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page = marked.sub(lambda found, text=text: f"{found[1]}{text}{found[2]}", page)  # type: ignore[misc]
    return page


def figure(by_model: dict[str, list[Result]], path: Path) -> None:
    """Quality over the passes through the model, a backward pass counted twice; heights as `_height` has them."""
    plt.rcParams["svg.hashsalt"] = "study"
    rows = math.ceil(len(by_model) / COLUMNS)
    drawn, axes = plt.subplots(rows, COLUMNS, figsize=(6.4 * COLUMNS, 6.4 * rows), squeeze=False)
    for axis in axes.flat[len(by_model) :]:
        axis.remove()
    for axis, (name, results) in zip(axes.flat, by_model.items(), strict=False):
        base = next(r for r in results if r.method == BASE)
        leader = next((r for r in results if r.method == LEADER), None)
        places = [(max(0.5, r.forward + 2 * r.backward), _height(r, base, leader), r) for r in results]
        for cost, height, r in places:
            error = max(r.gap_se, r.behind_se) if _is_beside(r) else r.gap_se
            axis.errorbar(cost, height, error, fmt="o", color=COLOURS[r.family], ms=5, lw=0.8)
        names = Counter(short(r.method) for r in results)
        written: list[tuple[float, float]] = []
        line = NAME_HEIGHT * (max(height for _, height, _ in places) - min(height for _, height, _ in places))
        for cost, height, r in sorted(places, key=lambda place: place[1]):
            free = height
            for x, y in sorted(written, key=lambda name: name[1]):  # up, until it is clear of the names beside it
                if abs(math.log(x / cost)) < NAME_WIDTH and abs(free - y) < line:
                    free = y + line
            written.append((cost, free))
            axis.annotate(
                short(r.method) if names[short(r.method)] == 1 else r.method,  # of variants each by its settings
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


def _height(result: Result, base: Result, leader: Result | None) -> float:
    """Ins-Del as it would be on all photographs, by the differences to Grad-CAM and to AHA on those in common.

    Some of the photographs may suit one of the two: where both differences are known, of at least half as many
    photographs, it is the mean of what they say.
    """
    by_base = base.ins_del + result.gap
    if leader is None or not _is_beside(result):
        return by_base
    return (by_base + base.ins_del + leader.gap + result.behind) / 2


def _is_beside(result: Result) -> bool:
    return result.method not in (BASE, LEADER) and 0 < result.common <= 2 * result.beside


def short(method: str) -> str:
    """A name for a figure: settings of how much is computed are left to the table."""
    return "aha, T = 3" if method.startswith("aha(refine=3") else re.sub(r"\(\w+=.*\)$", "", method)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?", help="folder of the runs")
    parser.add_argument("--data", type=Path, help="the list of photographs that the runs drew from")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--forget", action="append", default=[], metavar="NAME", help="methods that are others now")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    known = [r for r in read_results(args.out / PARTS) if not any(name in r.method for name in args.forget)]
    parts = joined(fresh_parts(args.runs, args.data) if args.runs else [], known)
    parts.sort(key=lambda part: (list(NAMES.values()).index(part.model), part.method, part.photographs))
    write_results(args.out / PARTS, parts, digits=6)
    parts = read_results(args.out / PARTS)  # rounded: with the runs or without them, the pages are the same
    by_model = {
        model: by_gap(put_together(list(same)) for _, same in groupby(own, key=lambda part: part.method))
        for model, own in ((model, list(own)) for model, own in groupby(parts, key=lambda part: part.model))
    }
    write_results(args.out / SUMMARY, (result for results in by_model.values() for result in results), digits=4)
    shown = [f"## {name}\n\n{tables(own)}" for name, own in by_model.items()]
    (args.out / "tables.md").write_text("# All numbers\n\n" + ORDER + "\n".join(shown), encoding="utf-8")
    figure(by_model, args.out / "quality_over_cost.svg")
    index = args.out / "index.md"
    if index.is_file():
        made = {"coverage": coverage(by_model), "leaders": leaders(by_model), "headroom": headrooms(by_model)}
        index.write_text(filled_in(index.read_text(encoding="utf-8"), made), encoding="utf-8")
    page = papers_page(args.runs or args.out / "none", args.out / "papers.md", by_model)
    (args.out / "papers.md").write_text(page, encoding="utf-8")


def fresh_parts(runs: Path, data: Path | None) -> list[Result]:
    """What the runs of networks say, by blocks of photographs."""
    found = {place.name: read_run(place) for place in sorted(runs.iterdir()) if place.name in NAMES}
    if not found:
        return []
    if data is None:
        raise SystemExit("--data is missing: the list of photographs that the runs drew from")
    place = {name: rank for rank, name in enumerate(Photographs(data, runs).names)}
    return [part for name, run in found.items() for part in parts_of(NAMES[name], run.group("top1"), place)]


if __name__ == "__main__":
    main()

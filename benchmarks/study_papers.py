"""`docs/results/papers.md`, "where the papers hold": what the runs of the study say beside what was printed.

Called by `study_pages.py`. A method stands beside its printed namesake whatever its settings are: fewer samples or
steps, say. Where the very network of a table was at hand, its values are compared too, in errors of ours.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from study_results import BASE, FORMER_PROTOCOL, NAMES, Result, markdown

from aha.bench import read_run
from aha.bench.papers import printed_beside, printed_values
from aha.bench.papers.tables import METHODS, PAPERS
from aha.bench.reporting.tables import differences
from aha.bench.run_reader import Group
from aha.metrics.curves.base import AVERAGE
from aha.metrics.statistics import spearman
from aha.results.score_table import summarise

DASH = "–"
INTRODUCTION = """\
Published numbers come from other weights, more images and finer protocols. As a rule, orders and directions can be
compared and values cannot. If the network of a published table was available, a separate section compares values. *n*
counts photographs, in mosaics maps. ± is the standard error of the mean difference on common photographs, or of our
mean. Rows marked *earlier* are from curves in 4 or 8 steps; AHA's rows under *MDA's protocol* are from an earlier
explainer. [The results](index.md) discuss them."""
PAPER_TABLES = ("caap-table14", "mda-table5")
MANY_ERRORS = 2


@dataclass(frozen=True)
class Column:
    """One printed column: of which table, model and metric."""

    table: str
    part: str
    metric: str = "Ins-Del"

    @property
    def heading(self) -> str:
        paper, number = self.table.split()
        return f"{paper} {number}: {self.part.partition(' |')[0]}"

    def values(self) -> dict[str, float]:
        """By our method's name."""
        printed = printed_values(self.table, self.part)
        return {METHODS[name]: row[self.metric] for name, row in printed.items() if name in METHODS}


_AHA = "predicted | mean_of_3"
VIT = (
    Column("AHA 1", f"ViT-B/16 | {_AHA}"),
    Column("MDA 1", "ViT-B/16 | predicted | ", "Ins-Del (RISE)"),
    Column("CAAP 4", "CLIP-B/16 | predicted | "),
)
CNN = (Column("AHA 3", f"ConvNeXt-S | {_AHA}"), Column("CAAP 14", "ResNet-18 | predicted | "))
PRINTED_WITH_VAR = {"timm:resnet18": "ResNet-50", "timm:tf_efficientnet_lite0": "ResNet-50"}


def namesake(method: str) -> str:
    """The method without the settings that say how much is computed."""
    return "aha(refine=3)" if method.startswith("aha(refine=3") else method.partition("(")[0]


def faithfulness(name: str, results: Sequence[Result]) -> str:
    """Ins-Del here and in the papers, and how far the orders agree."""
    columns = VIT if "ViT" in name else CNN
    printed = {column: column.values() for column in columns}
    ours = _one_each([r for r in results if not r.method.startswith(("var(", "smooth("))])
    shown = [method for method in ours if any(method in values for values in printed.values())]
    rows = [
        [
            f"`{ours[method].method}`" + (" (earlier)" if ours[method].protocol == FORMER_PROTOCOL else ""),
            str(ours[method].n),
            f"{ours[method].ins_del:.3f}",
            "" if method == BASE else f"{ours[method].gap:+.3f} ± {ours[method].gap_se:.3f}",
            *(f"{values[method]:.3f}" if method in values else DASH for values in printed.values()),
        ]
        for method in shown
    ]
    agreement = ["order compared with ours", "", "", "", *(_agreement(ours, values) for values in printed.values())]
    heads = ["method", "n", "Ins-Del", f"against `{BASE}`", *(column.heading for column in columns)]
    return f"### {name}\n\n{markdown(heads, [*rows, agreement])}"


def _one_each(results: Sequence[Result]) -> dict[str, Result]:
    """Of variants of a method, the one that was printed, or else that with most photographs; in their order."""
    nearest: dict[str, Result] = {}
    for result in results:
        other = nearest.get(name := namesake(result.method))
        if other is None or (result.method == name, result.n) > (other.method == name, other.n):
            nearest[name] = result
    return {namesake(r.method): r for r in results if nearest[namesake(r.method)] is r}


def _agreement(ours: dict[str, Result], values: dict[str, float]) -> str:
    common = [method for method in ours if method in values]
    if len(common) < 4:
        return DASH
    gaps = torch.tensor([ours[method].gap for method in common])
    both = spearman(gaps, torch.tensor([values[method] for method in common]))
    return f"rank correlation {float(both):.2f} (n = {len(common)})"


def mda_protocol(name: str, group: Group) -> str:
    """Curves and MAS as MDA's code reads them, for the methods that were judged that way."""
    columns = {
        "Deletion ↓": ("deletion", "zeros_normalised"),
        "Insertion ↑": ("insertion", "adaptive_blur"),
        "Ins-Del ↑": ("ins_del", "zeros_normalised / adaptive_blur"),
        "MAS ↑": ("mas", "zeros_normalised / adaptive_blur"),
    }
    found = {column: methods for (_, column), methods in group.values.items() if column in columns.values()}
    if not found:
        return ""
    scores = found[columns["Ins-Del ↑"]]
    rows = []
    for method, own in sorted(scores.items(), key=lambda item: -statistics.mean(item[1].values())):
        gap = summarise(method, "ins_del", "", AVERAGE, differences(own, scores[BASE]))
        against = "" if method == BASE else f"{gap.mean:+.3f} ± {gap.standard_error:.3f} ({gap.n})"
        means = (f"{statistics.mean(found[column][method].values()):.3f}" for column in columns.values())
        rows.append([f"`{method}`", str(len(own)), *means, against])
    return f"### {name}\n\n{markdown(['method', 'n', *columns, f'against `{BASE}` (n)'], rows)}"


def mosaics(name: str, group: Group) -> str:
    """Region scores without and with VAR under both rules of support, and what the paper printed."""
    model = PRINTED_WITH_VAR.get(group.model, "ViT-B/16")
    printed = {METHODS[key]: row for key, row in printed_values("VAR 3", f"{model} | predicted | ").items()}
    scores: dict[tuple[str, str], dict[str, list[float]]] = {}
    for (protocol, (column, _)), methods in group.values.items():
        for method, by_image in methods.items():
            scores.setdefault((protocol, column), {})[method] = list(by_image.values())
    wanted = (
        ("var", "region_attribution", "RA"),
        ("var", "region_iou", "IoU"),
        ("var", "region_f1", "F1"),
        ("grid", "region_iou", ""),
        ("grid", "region_f1", ""),
    )
    rows = []
    for method in (m for m in scores["var", "region_iou"] if not m.startswith("var(")):
        contrasted = f"var({method}, classes='grid')"
        cells = []
        for protocol, column, label in wanted:
            found = [statistics.mean(scores[protocol, column][spec]) for spec in (method, contrasted)]
            cell = f"{found[0]:.2f} → {found[1]:.2f}"
            paper = printed.get(f"var({namesake(method)})", {}).get(label) if label else None
            cells.append(cell if paper is None else f"{cell} ({paper:.2f})")
        rows.append([f"`{method}`", str(len(scores["var", "region_iou"][method])), *cells])
    heads = ["method", "n", "RA", "IoU, above zero", "F1, above zero", "IoU, above mean", "F1, above mean"]
    return f"### {name} (in brackets the paper's {model} with VAR)\n\n{markdown(heads, rows)}"


def randomised(name: str, group: Group) -> str:
    """Rank correlation with the intact model's map, and the share of maps that are flat."""
    columns = {
        "at the end": "randomisation_spearman",
        "mean of the cascade": "randomisation_spearman_mean",
        "flat maps": "randomisation_constant",
    }
    found = {column: methods for (_, (column, _)), methods in group.values.items()}
    methods = found["randomisation_spearman"]
    rows = [
        [f"`{m}`", str(len(methods[m])), *(f"{statistics.mean(found[c][m].values()):.2f}" for c in columns.values())]
        for m in methods
    ]
    return f"### {name}\n\n{markdown(['method', 'n', *columns], rows)}"


def same_network(name: str, group: Group) -> str:
    """Values of a published table beside ours on its own network; those more than two errors apart are marked."""
    plans = [{"paper": name}]
    errors = {(row.method, row.metric): row for row in group.scores.summary()}
    rows = []
    for printed in printed_beside(group, plans):
        own = errors[printed.method, printed.metric.split()[0]]
        apart = (own.mean - printed.printed) / own.standard_error if own.standard_error > 0 else math.nan
        mark = "**" if abs(apart) > MANY_ERRORS else ""
        rows.append(
            [
                f"`{printed.method}`",
                printed.metric,
                str(printed.n),
                f"{own.mean:.3f} ± {own.standard_error:.3f}",
                f"{printed.printed:.3f}",
                DASH if math.isnan(apart) else f"{mark}{apart:+.1f}{mark}",
            ]
        )
    if not rows:
        return ""
    paper = PAPERS[name]
    heads = ["method", "metric", "n", "here", "published", "difference, in our standard errors"]
    caveat = f"{paper.caveat}\nHere {group.model}, 32 steps. Bold: more than {MANY_ERRORS} standard errors apart."
    return f"### {paper.title}\n\n{caveat}\n\n{markdown(heads, rows)}"


Section = Callable[[str, Group], str]


def papers_page(runs: Path, former: Path, by_model: dict[str, list[Result]]) -> str:
    """The page; a section without runs keeps what the former page said."""
    kept = former_sections(former)
    models = [(name, runs / place, "top1") for place, name in NAMES.items()]
    groups: tuple[tuple[str, Section, list[tuple[str, Path, str]]], ...] = (
        ("The same network", same_network, [(name, runs / name, "top1") for name in PAPER_TABLES]),
        ("MDA's protocol", mda_protocol, models),
        ("Mosaics, without and with VAR", mosaics, [(n, runs / f"mosaics-{p}", "grid") for p, n in NAMES.items()]),
        (
            "Randomised weights, without and with VAR",
            randomised,
            [(n, runs / f"randomised-{p}", "top1") for p, n in NAMES.items()],
        ),
    )
    parts = [f"# Where the papers hold\n\n{INTRODUCTION}\n"]
    compared = "\n".join(faithfulness(name, results) for name, results in by_model.items())
    parts.append(f"## Deletion and Insertion\n\n{compared}")
    for title, section, places in groups:
        made = {name: section(name, read_run(place).group(asked)) for name, place, asked in places if place.is_dir()}
        new = {text.partition("\n")[0].removeprefix("### ") for text in made.values()} | {n for n in made if made[n]}
        old = {name: text for name, text in kept.get(title, {}).items() if not {name, name.partition(" (")[0]} & new}
        texts = [text for text in (*made.values(), *old.values()) if text]
        parts += [f"## {title}\n", *texts] if texts else []
    return "\n".join(parts)


def former_sections(page: Path) -> dict[str, dict[str, str]]:
    """Section -> heading of a part -> its text, of a page that was written before."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    found: dict[str, dict[str, str]] = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        for part in re.split(r"^### ", body, flags=re.MULTILINE)[1:]:
            found.setdefault(title, {})[part.partition("\n")[0]] = f"### {part.rstrip()}\n"
    return found

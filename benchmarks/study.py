"""The study behind `docs/results`: many methods on real models, from cheap to expensive, resumable at any time.

    python benchmarks/study.py resnet18 --weights resnet18.safetensors --data val.csv --runs RUNS
    python benchmarks/study.py resnet18 ... --photographs 100:150 --only shapley_sampling --only search
    python benchmarks/study.py caap-table14 --weights resnet18.safetensors --data val.csv --runs RUNS
    python benchmarks/study_pages.py RUNS --data val.csv --out docs/results

Protocol `sketch`: Deletion, Insertion and Ins-Del with hard pixel masks in adaptive steps, mean of black, mean colour
and blur, predicted class. Every method is scored on 100 photographs; those whose maps take fewer than 60 passes on 200;
`search`, the measure of what is possible, on 50. The photographs are drawn from the list by a seed, so that methods are
compared on common ones; `--photographs FROM:TO` are some of them by their place in the draw, on another machine or
another day: the pages put the parts together. The same command continues what was interrupted, and does nothing where
all is done. `--only METHOD`, as often as wanted, runs just these; `search` stands for the study's own search.

The names of published tables run their plan (`aha bench paper:NAME`) on the one network of it whose weights are at
hand, with 32 steps in place of 224.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from aha.bench import Plan, read_run, run
from aha.bench.papers import PREFIX, paper_plans
from aha.bench.plan import check_plan, fitted
from aha.bench.runner import load_planned
from aha.data.datasets import drawn
from aha.data.labelled import find_labelled
from aha.methods import load_method
from aha.results.headroom import is_oracle

MODELS = {
    "resnet18": "timm:resnet18",
    "efficientnet_lite0": "timm:tf_efficientnet_lite0",
    "vit_tiny": "timm:vit_tiny_patch16_224",
    "clip_vit_b16": "timm:vit_base_patch16_clip_quickgelu_224",
}
CHEAP = 60  # passes of a map below which it is scored on all photographs

BASELINES = ("center_map", "random_map", "edge_map")
COMMON = (
    "grad_cam",
    "aha",
    "aha(refine=3)",
    *BASELINES,
    "layer_cam",
    "finer_cam",
    "grad_cam_pp",
    "eigen_cam",
    "input_x_gradient",
    "gradient",
    "lrp",
    "guided_backprop",
    "guided_grad_cam",
    "var(grad_cam)",
    "var(aha)",
    "caap",
    "smooth(gradient)",
    "integrated_gradients(steps=20)",
    "gradient_shap",
)
CNN = ("hires_cam", "var(layer_cam)", "var(lrp)", "var(input_x_gradient)", "ablation_cam")
VIT = (
    "legrad",
    "raw_attention",
    "rollout",
    "grad_rollout",
    "transformer_attribution",
    "inflow",
    "attcat",
    "ixg_plus",
    "libra_ixg_plus",
    "var(legrad)",
    "attention_ig",
    "transition_attention",
    "bidirectional",
    "mutex",
)
SLOW = (
    "simple_insertion",
    "simple_deletion",
    "lime(n=300)",
    "rise(n=500)",
    "kernel_shap(n=500)",
    "occlusion",
    "mda(grid=7)",
    "mda(screen=4)",
    "shapley_sampling",
)
SLOW_CNN, SLOW_VIT = ("score_cam",), ("vit_cx", "tis(masks=128)", "tis")
SEARCH = "search(levels=4, budget=1500, guide=aha(refine=3))"
SEARCHED = (
    SEARCH,
    "random_map",
    "grad_cam",
    "aha",
    "aha(refine=3)",
    "mda(grid=7)",
)


@dataclass(frozen=True)
class Table:
    """A published table that one of our networks can answer: the network, and metrics that stand in for the paper's."""

    model: str
    metrics: tuple[str, ...]


_ZERO = "references=(zeros_normalised,)"
_RISE_BLUR, _ADAPTIVE = "rise_blur(kernel=11, sigma=5.0)", "adaptive_blur"
TABLES = {
    "caap-table14": Table(
        "resnet18",
        (
            f"deletion(steps=32, {_ZERO})",
            f"insertion(steps=32, references=({_RISE_BLUR},))",
            f"ins_del(steps=32, {_ZERO}, insert_into=({_RISE_BLUR},))",
        ),
    ),
    "mda-table5": Table(
        "vit_tiny",
        (
            f"deletion(steps=32, {_ZERO}, normalised=True)",
            f"insertion(steps=32, references=({_ADAPTIVE},), normalised=True)",
            f"ins_del(steps=32, {_ZERO}, insert_into=({_ADAPTIVE},), normalised=True)",
            "mas(steps=32)",
        ),
    ),
}


def study_methods(model: str) -> tuple[str, ...]:
    """All methods of the study, cheap ones first."""
    is_vit = "vit" in model
    return (*COMMON, *(VIT if is_vit else CNN), *(SLOW_VIT if is_vit else SLOW_CNN), *SLOW)


class Photographs:
    """Photographs in the order in which they are drawn, and pieces of that as lists that a plan can name.

    Attributes:
        names: as the runs of such plans know them.
    """

    def __init__(self, data: Path, runs: Path) -> None:
        found = find_labelled([data])
        self._drawn = [found[place] for place in drawn(len(found), seed=0)]
        self.names = [image.path.resolve().as_posix() for image in self._drawn]
        self._folder = runs / "photographs"

    def piece(self, places: range) -> str:
        """The list of those at these places."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / f"{places.start}-{places.stop}.csv"
        chosen = list(zip(self.names, self._drawn, strict=True))[places.start : places.stop]
        with file.open("w", encoding="utf-8", newline="") as out:
            csv.writer(out).writerows([("file", "label"), *((name, image.label) for name, image in chosen)])
        return str(file)


def run_study(
    model: str, plan: Plan, out: Path, photographs: Photographs, *, images: int, more: int, searched: int
) -> None:
    """All methods on `images` photographs, one after the other; then the cheap ones on `more`, and the search."""
    score = Scored(plan, out, photographs)
    fitting = score.fitting((*study_methods(model), *SEARCHED))
    searches = [str(load_method(text)) for text in SEARCHED]
    score((method for method in fitting if not is_oracle(method)), range(images))
    group = read_run(out).group("top1")
    score([m for m in fitting if _passes(group.forward[m], group.backward[m]) < CHEAP], range(images, more))
    score((method for method in fitting if method in searches), range(searched))


class Scored:
    """Scores methods on some of the photographs; the model is loaded once."""

    def __init__(self, plan: Plan, out: Path, photographs: Photographs) -> None:
        self._plan, self._out, self._photographs = plan, out, photographs
        self.model = load_planned(plan)

    def fitting(self, methods: tuple[str, ...]) -> list[str]:
        """Those that the model allows."""
        wanted = check_plan(replace(self._plan, methods=methods))
        return [str(method) for method in fitted(wanted, self.model, optional=True).methods]

    def __call__(self, methods: Iterable[str], places: range) -> None:
        if places:
            data = self._photographs.piece(places)
            for method in methods:
                run(replace(self._plan, methods=(method,), data=data, limit=None), self._out, model=self.model)


def _passes(forward: list[float], backward: list[float]) -> float:
    return statistics.mean(forward) + statistics.mean(backward) if forward else float("inf")


def run_table(name: str, plan: Plan, out: Path) -> None:
    """A published table on one network, with its methods that fit and the baselines."""
    table = TABLES[name]
    changes = {
        "model": [plan.model],
        "weights": [plan.weights],
        "data": plan.data,
        "limit": plan.limit,
        "metrics": list(table.metrics),
        "precision": plan.precision,
        "engine": plan.engine,
        "batch_size": plan.batch_size,
    }
    for each in paper_plans(f"{PREFIX}{name}", changes):
        run(each, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=(*MODELS, *TABLES))
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--runs", type=Path, required=True, help="folder of all runs; this one goes to RUNS/WHAT")
    parser.add_argument("--images", type=int, default=100, help="photographs for every method")
    parser.add_argument("--more", type=int, default=200, help="photographs for cheap methods, and for published tables")
    parser.add_argument("--searched", type=int, default=50, help="photographs for the search")
    parser.add_argument("--photographs", type=_places, metavar="FROM:TO", help="these, by their place in the draw")
    parser.add_argument("--only", action="append", default=[], metavar="METHOD", help="these methods")
    parser.add_argument("--metrics", action="append", help="a protocol or metrics, in place of `sketch`")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--engine", default="eager", help="what runs passes without gradients; see docs/models.md")
    args = parser.parse_args()
    is_table = args.what in TABLES
    plan = Plan(
        model=MODELS[TABLES[args.what].model if is_table else args.what],
        weights=str(args.weights),
        data=args.data,
        methods=(),
        metrics=tuple(args.metrics or ("sketch",)),
        limit=args.more,
        precision=args.precision,
        engine=args.engine,
        batch_size=8,
        optional=True,
    )
    out = args.runs / args.what
    if is_table:
        run_table(args.what, plan, out)
        return
    photographs = Photographs(Path(args.data), args.runs)
    if args.only or args.photographs:
        methods = tuple(SEARCH if method == "search" else method for method in args.only or study_methods(args.what))
        score = Scored(plan, out, photographs)
        score(score.fitting(methods), args.photographs or range(args.images))
    else:
        sizes = {"images": args.images, "more": args.more, "searched": args.searched}
        run_study(args.what, plan, out, photographs, **sizes)


def _places(text: str) -> range:
    first, _, last = text.partition(":")
    return range(int(first), int(last))


if __name__ == "__main__":
    main()

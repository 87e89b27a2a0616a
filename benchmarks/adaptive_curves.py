"""Adaptive curves against all 224 steps: how far apart the numbers are, and at how many of the passes.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/adaptive_curves.py --model timm:resnet18
        --weights FILE --images FOLDER --out FOLDER [--limit 100] [--method NAME]... [--batch 4]

Maps of each method are judged twice, by the protocols `aha` and `aha-adaptive`. Every finished image and method is a
line of OUT/rows.jsonl, so that the same command continues an interrupted run, and a longer list of methods or a larger
limit adds to it. At the end, or with `--limit 0` of what there is, a table is printed: for every number the mean
difference, the mean and the 95 % quantile of its size, and the share that lies within 0.005; then passes and CPU time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import aha
from aha.models import TargetModel, load_model

METHODS = ["grad_cam", "gradient", "integrated_gradients(steps=10)", "random_map", "edge_map", "center_map"]
FULL, ADAPTIVE = "aha", "aha-adaptive"
CURVES = ("deletion", "insertion", "ins_del", "positive", "negative", "neg_pos")


def judged(
    model: TargetModel, files: Sequence[Path], maps: torch.Tensor, targets: list[list[int]], protocol: str
) -> Any:
    """Scores of the maps, the images shown and the CPU seconds, both per map."""
    before, start = model.passes["forward"], time.process_time()
    scores = aha.evaluate(model, list(files), maps, protocol, targets=targets, batch_size=len(files))
    for failure in scores.failures:
        raise SystemExit(str(failure))
    seconds, shown = time.process_time() - start, model.passes["forward"] - before
    return scores, shown / len(files), seconds / len(files)


def rows_of(model: TargetModel, files: Sequence[Path], method: str) -> Iterator[dict[str, Any]]:
    """A line for each image."""
    found = aha.explain(model, list(files), method)
    targets = [[int(c)] for c in found.targets]
    results = {name: judged(model, files, found.maps, targets, name) for name in (FULL, ADAPTIVE)}
    for file in files:
        line: dict[str, Any] = {"image": file.name, "method": method}
        for name, (scores, shown, seconds) in results.items():
            own = (row for row in scores.rows if row.image == str(file) and row.metric in CURVES)
            values = {f"{row.metric} {row.reference}": row.value for row in own}
            line[name] = {"values": values, "passes": shown, "seconds": seconds}
        yield line


def table(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What the differences are."""
    apart: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        for key, value in line[ADAPTIVE]["values"].items():
            metric, reference = key.split(" ", 1)
            group = metric if reference == "average" else f"{metric}, one reference"
            apart[group].append(value - line[FULL]["values"][key])
    images, methods = ({line[part] for line in lines} for part in ("image", "method"))
    yield f"{len(lines)} maps of {len(images)} images by {len(methods)} methods"
    yield "| number | mean difference | mean size | 95 % below | within 0.005 |\n|---|---|---|---|---|"
    for group, differences in apart.items():
        sizes = np.abs(differences)
        cells = (np.mean(differences), sizes.mean(), np.quantile(sizes, 0.95), (sizes <= 0.005).mean())
        yield f"| {group} | {cells[0]:+.4f} | {cells[1]:.4f} | {cells[2]:.4f} | {cells[3]:.1%} |"
    for what in ("passes", "seconds"):
        full, ours = (np.mean([line[name][what] for line in lines]) for name in (FULL, ADAPTIVE))
        yield f"{what} per map: {full:.4g} in full, {ours:.4g} adaptive: {ours / full:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="timm:resnet18")
    parser.add_argument("--weights")
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--method", action="append")
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    store = options.out / "rows.jsonl"
    lines = [json.loads(text) for text in store.read_text().splitlines()] if store.exists() else []
    done = {(line["image"], line["method"]) for line in lines}
    model = load_model(options.model, weights=options.weights, pretrained=options.weights is not None, device="cpu")
    files = sorted(path for path in options.images.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    order = np.random.default_rng(0).permutation(len(files))[
        : options.limit
    ]  # a smaller choice is part of a larger one
    for start in range(0, len(order), options.batch):
        for method in options.method or METHODS:
            part = [files[i] for i in order[start : start + options.batch] if (files[i].name, method) not in done]
            if part:
                new = list(rows_of(model, part, method))
                with store.open("a") as file:
                    file.writelines(json.dumps(line) + "\n" for line in new)
                lines += new
    for text in table(lines):
        print(text)


if __name__ == "__main__":
    main()

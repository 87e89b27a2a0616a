"""What the benchmark runner adds to explaining and evaluating, and how long a large report takes.

    python benchmarks/bench_overhead.py [IMAGES] [ROUNDS]

Ratios of processor time, the median of alternating rounds: other load on the machine falls on both sides.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

import aha
from aha.bench import BenchRun, Plan, write_report
from aha.bench.store import ROWS
from aha.core.store import encode

METHODS, METRICS = ("gradient", "grad_cam"), ("quick",)


def main(count: int = 4, rounds: int = 3) -> None:
    model = aha.load_model("timm:resnet18", pretrained=False, device="cpu")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "images").mkdir()
        for index in range(count):
            pixels = np.random.default_rng(index).integers(0, 255, (224, 224, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / f"{index}.png")
        paths = sorted((folder / "images").iterdir())
        plan = Plan("timm:resnet18", str(folder / "images"), METHODS, METRICS, batch_size=4)
        aha.evaluate(model, paths[:1], list(METHODS), "sparseness")  # warm
        ratios = []
        for number in range(rounds):
            plain = _seconds(lambda: aha.evaluate(model, paths, list(METHODS), list(METRICS)))
            made = BenchRun(plan, folder / f"run-{number}", model=model)
            ratios.append(_seconds(made.run) / plain)
            print(f"round {number}: {ratios[-1]:.3f} ({plain:.1f} s for {count} images)", flush=True)
        print(f"runner / (explain and evaluate): {statistics.median(ratios):.3f}")
        print(f"report of 100 080 rows: {report_seconds(folder / 'large'):.1f} s of processor time")


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def report_seconds(folder: Path) -> float:
    (folder / ROWS).mkdir(parents=True)
    generator, shares = np.random.default_rng(0), np.linspace(0, 1, 33).round(4).tolist()
    references, lines = ("black", "mean", "blur", "average"), []
    for method in range(10):
        for image in range(834):
            rows = [[m, r, float(generator.random())] for m in ("deletion", "insertion", "ins_del") for r in references]
            curves = [
                [kind, r, shares, generator.random(33).round(4).tolist()]
                for kind in ("deletion", "insertion")
                for r in references[:3]
            ]
            cell = {"key": f"{method}x{image}-state", "model": "m", "digest": "d", "method": f"method_{method}"}
            cell |= {"protocol": "quick", "asked": "top1", "image": f"{image}.jpg", "label": image % 100}
            cell |= {"found": [{"target": image % 100, "score": 0.5, "rows": rows, "curves": curves}]}
            cell |= {"failures": [], "content": "c", "state": "s", "truth": {}}
            lines.append(encode({**cell, "seconds": 0.1, "forward": 1.0, "backward": 0.0}))
    (folder / ROWS / "0000.jsonl").write_bytes(b"".join(lines))
    started = time.process_time()
    write_report(folder)
    return time.process_time() - started


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

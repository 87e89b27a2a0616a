"""What the benchmark runner adds to explaining and evaluating, and how long a large report takes.

    python benchmarks/bench_overhead.py [IMAGES]

Ratios of processor time, measured in one run: other load on the machine falls on both sides.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

import aha
from aha.bench import BenchRun, Plan, write_report
from aha.bench.store import ROWS, encode

METHODS, METRICS = ("gradient", "grad_cam"), ("quick",)


def main(count: int) -> None:
    model = aha.load_model("timm:resnet18", pretrained=False, device="cpu")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "images").mkdir()
        for index in range(count):
            pixels = np.random.default_rng(index).integers(0, 255, (224, 224, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / f"{index}.png")
        paths = sorted((folder / "images").iterdir())
        aha.evaluate(model, paths[:1], list(METHODS), "sparseness")  # warm
        started = time.process_time()
        aha.evaluate(model, paths, list(METHODS), list(METRICS))
        plain = time.process_time() - started
        plan = Plan("timm:resnet18", str(folder / "images"), METHODS, METRICS, batch_size=4)
        made = BenchRun(plan, folder / "run", model=model)
        started = time.process_time()
        made.run()
        run = time.process_time() - started
        print(f"runner / (explain and evaluate): {run / plain:.3f} ({run:.1f} s / {plain:.1f} s, {count} images)")
        print(f"report of 100 080 rows: {report_seconds(folder / 'large'):.1f} s of processor time")


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
            cell = {"key": f"{method}-{image}", "model": "m", "digest": "d", "method": f"method_{method}"}
            cell |= {"protocol": "quick", "asked": "top1", "image": f"{image}.jpg", "label": image % 100}
            cell |= {"found": [{"target": image % 100, "score": 0.5, "rows": rows, "curves": curves}]}
            lines.append(encode({**cell, "failures": [], "seconds": 0.1, "forward": 1.0, "backward": 0.0}))
    (folder / ROWS / "0000.jsonl").write_bytes(b"".join(lines))
    started = time.process_time()
    write_report(folder)
    return time.process_time() - started


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)

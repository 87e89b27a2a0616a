"""What the engines save on passes without gradients, and how far each moves a probability.

    python benchmarks/engines.py [MODEL] [WEIGHTS] [ROWS] [ROUNDS] [PRECISION]

Each round shows the same perturbed photographs to the module and to every copy, one after the other. Ratios of
processor time, the median of the rounds: other load on the machine falls on all of them. Run it on one thread.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch
from torch import Tensor

import aha
from aha.core.model_options import Precision
from aha.data.images import read_image
from aha.demo import photographs
from aha.models.running.inference import ForwardOnly
from aha.models.running.inference_backends import make_copy, usable_engines
from aha.perturb.perturbation import blend


def main(
    spec: str = "timm:resnet18",
    weights: str = "",
    rows: str = "16",
    rounds: str = "5",
    precision: Precision = "float32",
) -> None:
    options: dict[str, Any] = {"weights": weights or None, "pretrained": bool(weights), "device": "cpu"}
    model = aha.load_model(spec, precision=precision, batch_size=int(rows), **options)
    exact = aha.load_model(spec, batch_size=int(rows), **options)
    shown = perturbed(model, int(rows))
    expected, judge = exact.outputs(shown), ForwardOnly("auto", None, model.score)
    copies, building = {}, {}
    for engine in usable_engines(model.device, precision):
        start = time.process_time()
        try:
            copies[engine] = make_copy(engine, model.module, None, shown, precision)
        except Exception as error:
            print(f"{engine:12} cannot be built: {str(error).strip().splitlines()[0]}")
            continue
        building[engine] = time.process_time() - start
    seconds: dict[str, list[float]] = {engine: [] for engine in ("eager", *copies)}
    with torch.no_grad():
        for _ in range(int(rounds)):
            for engine, taken in seconds.items():
                start = time.process_time()
                copies[engine](shown) if engine in copies else model.outputs(shown)
                taken.append(time.process_time() - start)
    threads = torch.get_num_threads()
    print(f"{spec}, {precision}, {rows} images of {tuple(shown.shape[1:])}, {threads} thread(s), {rounds} rounds")
    rounded = float(judge.changes(expected, model.outputs(shown)).max())
    print(f"{'eager':12} {statistics.median(seconds['eager']):.3f} s, probabilities within {rounded:.1e} of float32")
    for engine, found in copies.items():
        ratio = statistics.median(a / b for a, b in zip(seconds[engine], seconds["eager"], strict=True))
        change = float(judge.changes(expected, found(shown)).max())
        print(f"{engine:12} {ratio:.2f} of eager, within {change:.1e}, built in {building[engine]:.0f} s")


def perturbed(model: aha.TargetModel, rows: int) -> Tensor:
    """The demo's photographs (rows, C, H, W) with a growing share of their pixels black, as metrics show them."""
    preprocess = model.stated_preprocessing()
    files = photographs()
    images = torch.stack([preprocess(read_image(files[row % len(files)]))[0] for row in range(rows)])
    shares = torch.linspace(0, 1, rows).view(-1, 1, 1)
    noise = torch.rand(rows, *images.shape[-2:], generator=torch.Generator().manual_seed(0))
    return blend(images, model.to_inputs(torch.zeros_like(images)), noise >= shares)


if __name__ == "__main__":
    main(*sys.argv[1:])

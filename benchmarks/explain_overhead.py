"""What explaining costs beyond the model itself, and whether memory grows with the number of images.

    python benchmarks/explain_overhead.py [--batch 8] [--repeats 9] [--threads 1]

Time: `aha.explain(model, batch, "grad_cam")` over one bare forward and backward pass of the same batch through the same
module, to the input. Both are measured in turns in one process, after a warm-up, and compared by medians of pairs, so
that a busy machine disturbs both alike.

Memory: peak of the process while pictures stream from a folder through `explain_batches`, for a few and for many.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import aha

MODELS = {"demo:efficientnet_lite0": True, "timm:resnet18": False, "timm:vit_tiny_patch16_224": False}
LIMIT = 1.2
FEW, MANY = 64, 512


def bare_pass(module: nn.Module, inputs: Tensor) -> None:
    """One forward and one backward pass, as a user would write them."""
    leaf = inputs.clone().requires_grad_()
    outputs = module(leaf)
    torch.autograd.grad(outputs.amax(dim=1).sum(), leaf)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def overhead(spec: str, pretrained: bool, batch: int, repeats: int) -> tuple[float, float, float]:
    """Ratio of explaining over a bare pass, and both in seconds per image."""
    model = aha.load_model(spec, pretrained=pretrained, device="cpu")
    inputs = torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    pairs = [
        (
            seconds(lambda: bare_pass(model.module, inputs)),
            seconds(lambda: aha.explain(model, inputs, "grad_cam")),
        )
        for _ in range(repeats + 1)
    ][1:]  # the first pair warms up: kernels are chosen, the model's structure is found
    ratio = statistics.median(explained / bare for bare, explained in pairs)
    bare, explained = (statistics.median(times) / batch for times in zip(*pairs, strict=True))
    return ratio, bare, explained


def draw_pictures(folder: Path, count: int) -> None:
    random = np.random.default_rng(0)
    for index in range(count):
        Image.fromarray(random.integers(0, 255, (256, 256, 3), dtype=np.uint8)).save(folder / f"{index:04}.png")


def peak_megabytes() -> float:
    status = Path("/proc/self/status")
    if status.exists():  # Linux; what getrusage says there includes the parent process
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def stream(folder: Path, count: int, threads: int) -> tuple[float, float]:
    """Peak memory after a first batch, and after `count` pictures."""
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore", aha.AhaWarning)  # noise has no positive evidence for some classes
    model = aha.load_model("timm:resnet18", pretrained=False, device="cpu", input_size=96)
    files = sorted(folder.iterdir())[:count]
    for _ in aha.explain_batches(model, files[:32], "grad_cam"):
        pass
    before = peak_megabytes()
    explained = sum(len(part) for part in aha.explain_batches(model, files, "grad_cam"))
    assert explained == count
    return before, peak_megabytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore", aha.AhaWarning)
    print(f"CPU, {options.threads} thread(s), batches of {options.batch}, {options.repeats} repeats")
    for spec, pretrained in MODELS.items():
        ratio, bare, explained = overhead(spec, pretrained, options.batch, options.repeats)
        verdict = "ok" if ratio <= LIMIT else f"above {LIMIT}"
        print(f"{spec:28} {ratio:.2f} x a bare pass  ({1e3 * bare:.0f} -> {1e3 * explained:.0f} ms/image)  {verdict}")
    with (
        tempfile.TemporaryDirectory() as name,
        multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool,
    ):
        draw_pictures(Path(name), MANY)
        for count in (FEW, MANY):  # each in a fresh process: a peak never comes down again
            before, after = pool.apply(stream, (Path(name), count, options.threads))
            print(f"{count:4} pictures: peak {after:.0f} MB, {after - before:+.1f} MB since the first batch")


if __name__ == "__main__":
    main()

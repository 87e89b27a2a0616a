"""What measuring maps costs: over the model's own forward passes, against other tools, and as the job grows.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/evaluate_cost.py [--steps 32] [--rounds 5]

Prints Markdown tables of ratios. What is compared runs in turns in one process, and a ratio is the median over the
rounds, so that a busy machine disturbs both sides alike; CPU time says more there than wall time.

1. `aha.evaluate` with all eight metrics of the protocol `aha` over as many bare forward passes as it makes.
2. Deletion and insertion with a black reference: aha, a loop with one forward pass per step as one writes it beside
   captum (which has no such metric), torch-cam's DeletionInsertionMetric, and Quantus' PixelFlipping where it is
   installed. All get the same photographs, maps and steps, each the batches it makes by itself.
3. Time for twice the images and twice the steps, and peak memory for more of both.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import resource
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import aha
from aha.data.batches import iter_batches
from aha.demo import MODEL, photographs
from aha.metrics.curves.base import CurveMetric
from aha.metrics.protocols import PROTOCOLS, Protocol

PHOTOGRAPHS = ("chelsea.png", "coffee.png", "motorcycle_left.png")
COMPARED_STEPS = 48  # PixelFlipping flips single values of 3 x 224 x 224, in steps that must divide 224 x 224
SMALL_SIDE = 112
LIMIT = 1.05


class Cost(NamedTuple):
    """Seconds."""

    cpu: float
    wall: float


def cost(work: Callable[[], object]) -> Cost:
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return Cost(time.process_time() - cpu, time.perf_counter() - wall)


def costs_in_turns(works: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[Cost]]:
    """The costs of every piece of work, once per round, after a round that warms up."""
    found: dict[str, list[Cost]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            found[name].append(cost(work))
    return {name: measured[1:] for name, measured in found.items()}


def ratio(over: Sequence[Cost], under: Sequence[Cost]) -> Cost:
    """Median of the rounds' ratios."""
    pairs = list(zip(over, under, strict=True))
    return Cost(
        statistics.median(a.cpu / b.cpu for a, b in pairs), statistics.median(a.wall / b.wall for a, b in pairs)
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    for cells in (heads, ["---"] * len(heads), *rows):
        print("| " + " | ".join(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |")
    print(flush=True)


# The jobs


@dataclass
class Job:
    """Photographs as model inputs (B, C, H, W), their grad_cam maps (B, H, W) and top classes (B,)."""

    model: aha.TargetModel
    paths: list[Path]
    inputs: Tensor
    maps: Tensor
    targets: list[int]

    @property
    def black(self) -> float:
        """A black pixel after normalisation, which is one number for this model."""
        (value,) = set(self.model.to_inputs(torch.zeros(3, 1, 1)).flatten().tolist())
        return value

    @contextmanager
    def batches_of(self, size: int) -> Iterator[None]:
        chunks, before = self.model.chunks, self.model.chunks.size
        try:
            chunks.size = size
            yield
        finally:
            chunks.size = before

    def evaluate(self, metrics: Protocol | Sequence[str], batch_size: int) -> aha.Scores:
        with self.batches_of(batch_size):
            return aha.evaluate(self.model, self.paths, {"grad_cam": self.maps}, metrics)

    def forward_images(self, work: Callable[[], object]) -> int:
        """How many images a piece of work sends through the network, whoever sends them."""
        sizes: list[int] = []
        hook = self.model.module.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
        try:
            work()
        finally:
            hook.remove()
        return sum(sizes)

    def bare(self, count: int, batch_size: int) -> None:
        """Forward passes of `count` normalised images, and nothing else."""
        batch = self.inputs[torch.arange(batch_size) % len(self.inputs)]
        with torch.no_grad():
            for start in range(0, count, batch_size):
                self.model.module(batch[: count - start])


def load_job(names: Sequence[str]) -> Job:
    model = aha.load_model(MODEL, device="cpu")
    paths = photographs(names)
    (batch,) = iter_batches(model, paths, len(paths))
    found = aha.explain(model, paths, "grad_cam")
    return Job(model, paths, batch.inputs, found.maps, [int(target) for target in found.targets])


def aha_metrics(steps: int) -> Protocol:
    """The protocol `aha` with another number of steps."""
    metrics = [replace(m, steps=steps) if isinstance(m, CurveMetric) else m for m in PROTOCOLS["aha"].metrics]
    return Protocol(f"aha, {steps} steps", tuple(metrics), "")


def curve_texts(*names: str) -> list[str]:
    # Ties in raster order, like those of a stable argsort, so that all tools change the same pixels.
    return [f"{name}(steps={COMPARED_STEPS}, references=(black,), ties='raster')" for name in names]


def hand_written_areas(job: Job, *, inserts: bool) -> list[float]:
    """Deletion or insertion area of every photograph: the loop that one writes when the library has none."""
    areas = []
    for image, values, target in zip(job.inputs, job.maps, job.targets, strict=True):
        order = np.argsort(-values.numpy().ravel(), kind="stable")
        black = torch.full_like(image, job.black)
        start, end = (black, image) if inserts else (image, black)
        scores = []
        for count in np.linspace(0, len(order), COMPARED_STEPS + 1).round().astype(int):
            shown = start.clone().flatten(1)
            shown[:, order[:count]] = end.flatten(1)[:, order[:count]]
            with torch.no_grad():
                outputs = job.model.module(shown.view_as(image)[None])
            scores.append(outputs.softmax(dim=1)[0, target].item())
        areas.append(float(np.mean([(a + b) / 2 for a, b in pairwise(scores)])))
    return areas


class GivenMaps:
    """What torch-cam's metrics expect of an extractor, with maps that exist already."""

    def __init__(self, job: Job) -> None:
        self.model, self._maps = job.model.module, job.maps

    def __call__(self, *_: Any, **__: Any) -> list[Tensor]:
        return [self._maps]

    def fuse_cams(self, cams: list[Tensor]) -> Tensor:
        return cams[0]

    @contextmanager
    def _hooks_off(self) -> Iterator[None]:
        yield


def torchcam_areas(job: Job) -> dict[str, float]:
    """torch-cam's deletion and insertion, both by one call, averaged over the photographs."""
    from torchcam.metrics import DeletionInsertionMetric

    black = torch.tensor(job.black)
    judge = DeletionInsertionMetric(
        GivenMaps(job), partial(torch.softmax, dim=-1), steps=COMPARED_STEPS, baseline=black
    )
    with torch.no_grad():
        judge.update(job.inputs, job.targets)
    return judge.summary()


def quantus_curves(job: Job) -> Any:
    """Quantus' deletion curves; it flips the values of the three channels one by one, without the clean image."""
    import quantus

    flip = quantus.PixelFlipping(
        features_in_step=job.inputs[0].numel() // COMPARED_STEPS,
        perturb_baseline=job.black,
        return_auc_per_sample=False,  # its area calls np.trapz, which newer NumPy no longer has
        disable_warnings=True,
        display_progressbar=False,
    )
    return flip(job.model.module, job.inputs.numpy(), np.array(job.targets), job.maps[:, None].numpy(), device="cpu")


# The tables


def print_overhead(job: Job, steps: int, rounds: int, batch_sizes: Sequence[int]) -> None:
    print(f"## Protocol `aha`, eight metrics, {steps} steps, over its bare forward passes\n")
    rows = []
    for size in batch_sizes:
        judge = partial(job.evaluate, aha_metrics(steps), size)
        job.model.passes.clear()
        scores = judge()
        assert not scores.failures, scores.failures
        count = job.model.passes["forward"]
        found = costs_in_turns({"aha": judge, "bare": partial(job.bare, count, size)}, rounds)
        cpu, wall = ratio(found["aha"], found["bare"])
        rows.append([size, count, cpu, wall, "yes" if cpu <= LIMIT else "no"])
    table(["batch", "forward images", "CPU", "wall", f"at most {LIMIT}"], rows)


def print_comparison(job: Job, rounds: int) -> None:
    print(f"## One black reference, {COMPARED_STEPS} steps, {len(job.paths)} photographs: others over aha\n")
    default = job.model.chunks.size
    compare("deletion", job, deletion_tools(job, default), rounds)
    compare("deletion and insertion", job, both_tools(job, default), rounds)


Tools = dict[str, tuple[str, Callable[[], object]]]
"""Name -> images per forward pass, and the work; the first one is what the others are measured by."""


def deletion_tools(job: Job, default: int) -> Tools:
    deletion = curve_texts("deletion")
    tools: Tools = {
        f"aha, batches of {default} (default)": (str(default), partial(job.evaluate, deletion, default)),
        "aha, batches of 8": ("8", partial(job.evaluate, deletion, 8)),
        "loop, one pass per step": ("1", partial(hand_written_areas, job, inserts=False)),
    }
    if find_spec("quantus") is None:
        print("Quantus is not installed: its row is skipped.\n")
    else:
        tools["Quantus PixelFlipping"] = (f"{len(job.paths)}, all photographs", partial(quantus_curves, job))
    return tools


def both_tools(job: Job, default: int) -> Tools:
    both = curve_texts("deletion", "insertion")
    tools: Tools = {
        f"aha, batches of {default} (default)": (str(default), partial(job.evaluate, both, default)),
        "aha, batches of 8": ("8", partial(job.evaluate, both, 8)),
        "loop, one pass per step": ("1", lambda: [hand_written_areas(job, inserts=inserts) for inserts in (0, 1)]),
    }
    if find_spec("torchcam") is None:
        print("torch-cam is not installed: its row is skipped.\n")
    else:
        tools["torch-cam DeletionInsertionMetric"] = ("32 (default)", partial(torchcam_areas, job))
    return tools


def compare(title: str, job: Job, tools: Tools, rounds: int) -> None:
    """Costs per job and per image that went through the network, both over aha's."""
    works = {name: work for name, (_, work) in tools.items()}
    images = {name: job.forward_images(work) for name, work in works.items()}
    found = costs_in_turns(works, rounds)
    ours, *_ = works
    rows = []
    for name, (batch, _) in tools.items():
        cpu, wall = ratio(found[name], found[ours])
        rows.append([name, batch, images[name], cpu, wall, cpu * images[ours] / images[name]])
    table([title, "batch", "forward images", "CPU per job", "wall per job", "CPU per forward image"], rows)


def check_agreement(job: Job) -> None:
    """All tools draw the same curves, so that their costs may be compared."""
    scores = job.evaluate(curve_texts("deletion", "insertion"), job.model.chunks.size)
    for name, inserts in (("deletion", False), ("insertion", True)):
        ours = scores.values("grad_cam", name)
        np.testing.assert_allclose(ours, hand_written_areas(job, inserts=inserts), atol=1e-4)
        if find_spec("torchcam") is not None:  # its last step is shorter than the others
            np.testing.assert_allclose(np.mean(ours), torchcam_areas(job)[f"{name}_auc"], atol=5e-3)


# Growth


def small_model() -> aha.TargetModel:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 7, 4), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 10)).eval()
    return aha.load_model(module, input_size=SMALL_SIDE, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def small_job(images: int, steps: int) -> Callable[[], aha.Scores]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(images, 3, SMALL_SIDE, SMALL_SIDE, generator=generator)
    maps = torch.rand(images, SMALL_SIDE, SMALL_SIDE, generator=generator)
    return partial(aha.evaluate, small_model(), inputs, {"random": maps}, aha_metrics(steps))


def peak_megabytes() -> float:
    status = Path("/proc/self/status")
    if status.exists():  # Linux, where getrusage's peak may be that of the parent process
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def peak_of(images: int, steps: int) -> float:
    torch.set_num_threads(1)
    small_job(images, steps)()
    return peak_megabytes()


def print_growth(rounds: int) -> None:
    print("## Growth: the protocol `aha` on a tiny network of 112 pixels, where the model costs next to nothing\n")
    series = {
        "images (32 steps)": {images: small_job(images, 32) for images in (2, 4, 8)},
        "steps (2 images)": {steps: small_job(2, steps) for steps in (32, 64, 128)},
    }
    rows = []
    for name, works in series.items():
        found = costs_in_turns({str(size): work for size, work in works.items()}, rounds)
        sizes = list(works)
        for size in sizes[1:]:
            cpu, wall = ratio(found[str(size)], found[str(sizes[0])])
            rows.append([name, f"{sizes[0]} -> {size}", size / sizes[0], cpu, wall])
    table(["time", "from -> to", "linear", "CPU", "wall"], rows)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:  # a peak never comes down again
        peaks = {size: pool.apply(peak_of, size) for size in ((2, 32), (2, 224), (16, 32))}
    first = peaks[2, 32]
    rows = [
        ["steps (2 images)", "32 -> 224", peaks[2, 224] / first, f"{peaks[2, 224] - first:+.0f} MB"],
        ["images (32 steps)", "2 -> 16", peaks[16, 32] / first, f"{peaks[16, 32] - first:+.0f} MB"],
    ]
    table(["peak memory", "from -> to", "ratio", "difference"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=32, help="of the first table; the protocol itself has 224")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 32], help="of the first table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    job = load_job(PHOTOGRAPHS)
    check_agreement(job)
    print_overhead(job, options.steps, options.rounds, options.batch_sizes)
    print_comparison(job, options.rounds)
    print_growth(options.rounds)


if __name__ == "__main__":
    main()

"""What AHA costs, as ratios in one run: soft orders, a training step, one map, and refinement.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/aha_cost.py [--rounds 5] [--batch 8]

- binned soft order over the full one, forward and backward, at K = 784, S = 16, B = 8: time and largest tensor;
- a training step over the bare cost of what it cannot do without: the target's forward and backward pass, down to the
  pixels, of the images and of the perturbed images, in the same chunks;
- a map (T = 0), of an own and of a universal explainer, over one forward and backward pass of the target at the same
  batch size; one of nine looks over nine of them; one of an explainer with forward evidence over one forward pass;
- a map with T = 3 over one with T = 0, and over the bare forward and backward passes that it needs.

Both sides of a ratio are timed in turns, in CPU time of the process; the figure is the median of the paired ratios. The
explained models are the demo's EfficientNet-Lite0, and ResNet-18 and ViT-Ti/16 with random weights: weights do not
matter for time.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import torch

import aha
from aha.learned import slopes
from aha.learned.explainer import Explainer
from aha.learned.ordering import soft_masks_binned, soft_masks_full, standardised
from aha.learned.refinement import RefinementConfig, Refining
from aha.learned.regions import stratified_counts
from aha.learned.settings import Design, TrainConfig
from aha.learned.training.data import StepBatch
from aha.learned.training.loop import training_step
from aha.models import TargetModel

MODELS = {"demo:efficientnet_lite0": True, "timm:resnet18": False, "timm:vit_tiny_patch16_224": False}


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def ratio(work: Callable[[], object], bare: Callable[[], object], rounds: int) -> tuple[float, float, float]:
    """Median of the paired ratios, and both medians in seconds."""
    work(), bare()
    pairs = [(seconds(work), seconds(bare)) for _ in range(rounds)]
    return (
        statistics.median(a / b for a, b in pairs),
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
    )


def soft_orders(rounds: int) -> None:
    """The two forms of one meaning."""
    scores = standardised(torch.rand(8, 784))
    counts = stratified_counts(784, 16)

    def run(form: Callable[..., torch.Tensor]) -> None:
        leaf = scores.clone().requires_grad_()
        form(leaf, counts, 0.03).square().sum().backward()

    found, full, binned = ratio(lambda: run(soft_masks_full), lambda: run(soft_masks_binned), rounds)
    with torch.no_grad():
        gap = (soft_masks_full(scores, counts, 0.03) - soft_masks_binned(scores, counts, 0.03)).abs()
    print(f"full over binned soft order, forward and backward: {found:.0f} ({full:.2f} s, {binned:.4f} s)")
    print(
        f"  largest tensor: {784 / 17:.0f} times; masks differ by {gap.mean():.4f} on average, {gap.max():.3f} at most"
    )


def bare_passes(target: TargetModel, inputs: torch.Tensor, perturbed: int) -> None:
    """Forward and backward passes of so many images, down to the pixels, in the target's chunks."""
    size = target.chunks.size
    for start in range(0, perturbed, size):
        count = min(size, perturbed - start)
        leaf = inputs[torch.arange(count) % len(inputs)].clone().requires_grad_()
        torch.autograd.grad(target.module(leaf).softmax(dim=1)[:, 0].sum(), leaf)


def learned(spec: str, pretrained: bool, rounds: int, size: int) -> None:
    target = aha.load_model(spec, pretrained=pretrained, batch_size=16, device="cpu")
    explainer = Explainer.for_target(target)
    inputs = torch.randn(size, 3, *target.stated_preprocessing().size)
    classes = torch.zeros(size, dtype=torch.long)
    config = TrainConfig(batch_size=size, perturbations=8)
    batch = StepBatch(inputs, classes, list(range(size)), [""] * size)

    forward_only = Explainer.for_target(target, Design(evidence="forward"))

    def forward() -> None:
        with torch.no_grad():
            target.module(inputs)

    def forward_and_backward() -> None:
        bare_passes(target, inputs, size)

    def step() -> None:
        training_step(explainer.train(), target, batch, config, 0)["loss"].mean().backward()

    def bare_step() -> None:
        bare_passes(target, inputs, size * (1 + 2 * config.perturbations))

    refinement = RefinementConfig()

    def one_look() -> None:
        explainer.maps(target, inputs, classes)

    def refined() -> None:
        Refining.start(explainer, target, inputs, classes, refinement).after(3)

    def bare_refined() -> None:
        bare_passes(target, inputs, size * (1 + 3 * refinement.cost))

    universal = Explainer.for_target(target, Design(form="universal"))

    def nine_looks() -> None:
        slopes.moved(target, inputs, classes, explainer.maps(target, inputs, classes), 4)

    pairs: dict[str, tuple[Callable[[], object], Callable[[], object], int]] = {
        "T=0 over one forward and backward": (one_look, forward_and_backward, 2 * rounds),
        "T=0 of the universal form over one forward and backward": (
            lambda: universal.maps(target, inputs, classes),
            forward_and_backward,
            2 * rounds,
        ),
        "nine looks over bare passes": (nine_looks, lambda: bare_passes(target, inputs, 9 * size), rounds),
        "T=0 with forward evidence over one forward": (
            lambda: forward_only.maps(target, inputs, classes),
            forward,
            2 * rounds,
        ),
        "training step over bare passes": (step, bare_step, rounds),
        "T=3 over T=0": (refined, one_look, rounds),
        "T=3 over bare passes": (refined, bare_refined, rounds),
    }
    for name, (work, bare, times) in pairs.items():
        found, ours, theirs = ratio(work, bare, times)
        print(f"{spec}: {name}: {found:.2f} ({ours:.3f} s, {theirs:.3f} s)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--model", action="append", choices=MODELS, help="of these only")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    soft_orders(args.rounds)
    for spec in args.model or MODELS:
        learned(spec, MODELS[spec], args.rounds, args.batch)


if __name__ == "__main__":
    main()

"""What the black-box methods cost beyond the forward passes they need.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/perturbation_cost.py [--rounds 3] [--size 224]

Prints a Markdown table. Each method explains one image, with few samples; the bare side runs as many images through the
same module, in batches of the same size. Both run in turns in one process, and a ratio is the median over the rounds:
a busy machine disturbs both sides alike. CPU time says more there than wall time. The pass that chooses the class is
counted on both sides.

Ablation-CAM continues from its layer, so that its passes are not whole ones: it is compared with one whole pass per
channel, which it would need otherwise.
"""

from __future__ import annotations

import argparse
import warnings
from functools import partial

import torch
from evaluate_cost import costs_in_turns, ratio, table
from torch import Tensor, nn

import aha

METHODS = (
    "occlusion(window=32, stride=20)",
    "rise(n=32)",
    "lime(n=32)",
    "kernel_shap(n=32, parts=patches(grid=4))",
    "shapley_sampling(orders=1, parts=patches(grid=6))",
    "simple_insertion(grid=6)",
    "simple_deletion(grid=6)",
    "score_cam(layer=-4)",
    "ablation_cam(layer=-4)",
)
LIMIT = 1.1


@torch.no_grad()
def bare(module: nn.Module, image: Tensor, count: int, batch: int) -> None:
    """`count` copies of an image through the module, as one would write it."""
    for start in range(0, count, batch):
        module(image.repeat(min(batch, count - start), 1, 1, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="timm:resnet18")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", aha.AhaWarning)  # an untrained network may have nothing to say
    model = aha.load_model(
        options.model, pretrained=False, device="cpu", batch_size=options.batch, input_size=options.size
    )
    image = torch.randn(1, 3, options.size, options.size, generator=torch.Generator().manual_seed(0))
    rows = []
    for method in METHODS:
        explain = partial(aha.explain, model, image, method)
        explain()  # the model's structure is found
        model.passes.clear()
        explain()
        count = model.passes["forward"]
        if method.startswith("ablation_cam"):
            (features,), _ = model.features(image, [model.cam_stage() - 3])
            count = features.shape[1] + 2  # and the whole image, once for its class and once for its features
        found = costs_in_turns(
            {"aha": explain, "bare": partial(bare, model.module, image, count, options.batch)}, options.rounds
        )
        cpu, wall = ratio(found["aha"], found["bare"])
        rows.append([f"`{method}`", count, cpu, wall, "yes" if cpu <= LIMIT else "no"])
    settings = f"{options.size} pixels, batches of {options.batch}, one thread, {options.rounds} rounds"
    print(f"{options.model}, one image of {settings}\n")
    table(["method", "whole passes", "CPU", "wall", f"at most {LIMIT}"], rows)


if __name__ == "__main__":
    main()

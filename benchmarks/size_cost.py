"""How the cost of methods that intervene grows with the image and with the number of patches.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/size_cost.py [--rounds 1]

Prints two Markdown tables: a convolutional network on images of several sizes, and transformers that cut images of 224
pixels into more and more patches. A cell has the passes that one map takes (images' worth of tokens, for methods that
run blocks) and its CPU time over one bare forward pass of the same image, median of alternating rounds. Weights are
random: costs are the same.
"""

from __future__ import annotations

import argparse
import warnings
from functools import partial

import timm
import torch
from evaluate_cost import costs_in_turns, ratio, table
from torch import Tensor, nn

import aha

SIZES = (112, 224, 336)
CNN_METHODS = (
    "occlusion(window=32, stride=32)",
    "rise(n=64)",
    "simple_deletion(grid=7)",
    "score_cam(layer=-4)",
    "ablation_cam",
    "mda(grid=4)",
    "mda(grid=8, screen=4)",
    "caap",
)
PATCHES = {32: 49, 16: 196, 8: 784}  # side of a patch: how many there are
VIT_METHODS = (
    "caap",
    "caap(form='efficient')",
    "tis(masks=32)",
    "vit_cx(threshold=0.3)",
    "mutex",
    "simple_deletion(grid=7)",
    "mda(grid=4)",
)


@torch.no_grad()
def bare(module: nn.Module, image: Tensor) -> None:
    module(image)


def cell(model: aha.TargetModel, method: str, image: Tensor, rounds: int) -> str:
    """Passes, and time over one bare pass."""
    model.passes.clear()  # finding out about the model is not counted, and part of the round that warms up
    explain = partial(aha.explain, model, image, method)
    found = costs_in_turns({"method": explain, "bare": partial(bare, model.module, image)}, rounds)
    return f"{model.passes['forward'] // (rounds + 1)}, {ratio(found['method'], found['bare']).cpu:.0f}"


def network(name: str, size: int, **design: int) -> aha.TargetModel:
    module = timm.create_model(name, **design)
    return aha.load_model(module, input_size=size, mean=(0.5,) * 3, std=(0.5,) * 3, device="cpu")


def picture(size: int) -> Tensor:
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--patches", type=int, nargs="*", choices=PATCHES, default=tuple(PATCHES), help="their sides")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore", aha.AhaWarning)  # an untrained network may have nothing to say
    models = {f"{size} pixels": (network("resnet18", size), size) for size in options.sizes}
    print("ResNet-18: passes of one map, and its time over one forward pass of the same image\n")
    grid(models, CNN_METHODS, options.rounds)
    models = {
        f"{PATCHES[side]} patches": (network("vit_tiny_patch16_224", 224, patch_size=side), 224)
        for side in options.patches
    }
    print("\nViT-Ti at 224 pixels: passes of one map, and its time over one forward pass of the same image\n")
    grid(models, VIT_METHODS, options.rounds)


def grid(models: dict[str, tuple[aha.TargetModel, int]], methods: tuple[str, ...], rounds: int) -> None:
    images = {name: picture(size) for name, (_, size) in models.items()}
    rows = [
        [f"`{method}`", *(cell(model, method, images[name], rounds) for name, (model, _) in models.items())]
        for method in methods
    ]
    table(["method", *models], rows)


if __name__ == "__main__":
    main()

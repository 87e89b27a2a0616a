"""What the black-box methods cost beyond the forward passes they need.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/perturbation_cost.py [--rounds 3] [--size 224]

Prints a Markdown table. Each method explains one image, with few samples; the bare side runs as many images through the
same module, in batches of the same size. Both run in turns in one process, and a ratio is the median over the rounds:
a busy machine disturbs both sides alike. CPU time says more there than wall time. The pass that chooses the class is
counted on both sides.

Ablation-CAM continues from its layer, so that its passes are not whole ones: it is compared with one whole pass per
channel, which it would need otherwise. TIS shows the blocks half of the tokens: so does the bare side.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial

import torch
from evaluate_cost import costs_in_turns, ratio, table
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import aha
from aha.methods import load_method

METHODS = (
    "occlusion(window=32, stride={side})",
    "rise(n=64)",
    "lime(n=64)",
    "kernel_shap(n=64, parts=patches(grid=5))",
    "shapley_sampling(orders=2, parts=patches(grid=6))",
    "simple_insertion(grid=8)",
    "simple_deletion(grid=8)",
    "score_cam(layer=-4)",
    "ablation_cam(layer=-4)",
)
TOKEN_METHODS = ("tis(masks=64)", "vit_cx")
LIMIT = 1.1


@torch.no_grad()
def bare(module: nn.Module, image: Tensor, count: int, batch: int) -> None:
    """`count` copies of an image through the module, as one would write it."""
    for start in range(0, count, batch):
        module(image.repeat(min(batch, count - start), 1, 1, 1))


@torch.no_grad()
def bare_tokens(vit: VisionTransformer, image: Tensor, count: int, batch: int) -> None:
    """`count` times half of an image's patches through timm's blocks, and two whole passes."""
    vit(image)
    vit(image)
    tokens = vit._pos_embed(vit.patch_embed(image))  # (1, T, D)
    half = tokens[:, : vit.num_prefix_tokens + (tokens.shape[1] - vit.num_prefix_tokens) // 2]
    for start in range(0, count, batch):
        vit.forward_head(vit.norm(vit.blocks(half.repeat(min(batch, count - start), 1, 1))))


def measured(model: aha.TargetModel, method: str, image: Tensor, batch: int, rounds: int) -> list[object]:
    """The method, its passes, and its time over theirs."""
    explain = partial(aha.explain, model, image, method)
    explain()  # the model's structure is found
    model.passes.clear()
    explain()
    count = model.passes["forward"]
    plain: Callable[[], None] = partial(bare, model.module, image, count, batch)
    if method.startswith("ablation_cam"):
        (features,), _ = model.features(image, [model.cam_stage() - 3])
        count = features.shape[1] + 2  # and the whole image, once for its class and once for its features
        plain = partial(bare, model.module, image, count, batch)
    if method.startswith("tis"):
        samples = load_method(method).masks
        plain = partial(bare_tokens, model.module, image, samples, batch)
    found = costs_in_turns({"aha": explain, "bare": plain}, rounds)
    cpu, wall = ratio(found["aha"], found["bare"])
    return [f"`{method}`", count, cpu, wall, "yes" if cpu <= LIMIT else "no"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="timm:resnet18")
    parser.add_argument("--vit", default="timm:vit_tiny_patch16_224", help="for the methods that work on tokens")
    parser.add_argument("--vit-weights", help="vit_cx clusters features: without trained ones it finds next to none")
    parser.add_argument("--only", nargs="+", default=[text.split("(")[0] for text in METHODS + TOKEN_METHODS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", aha.AhaWarning)  # an untrained network may have nothing to say
    image = torch.randn(1, 3, options.size, options.size, generator=torch.Generator().manual_seed(0))
    settings = f"{options.size} pixels, batches of {options.batch}, one thread, {options.rounds} rounds"
    jobs = ((options.model, None, METHODS), (options.vit, options.vit_weights, TOKEN_METHODS))
    for spec, weights, methods in jobs:
        wanted = [text.format(side=options.size // 8) for text in methods if text.split("(")[0] in options.only]
        if not wanted:
            continue
        model = aha.load_model(
            spec,
            weights=weights,
            pretrained=weights is not None,
            device="cpu",
            batch_size=options.batch,
            input_size=options.size,
        )
        print(f"{spec}, one image of {settings}\n")
        rows = [measured(model, method, image, options.batch, options.rounds) for method in wanted]
        table(["method", "passes", "CPU", "wall", f"at most {LIMIT}"], rows)


if __name__ == "__main__":
    main()

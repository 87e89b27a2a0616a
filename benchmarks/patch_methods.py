"""What the methods that ask the model about every patch cost, in bare forward passes of the same model.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/patch_methods.py [--weights FILE] [--image FILE]

Prints ratios of CPU time, each from one process and one run, next to how well the results agree:

1. `caap`: the parallel form against one patched run for each patch. The patched runs are measured for a few patches and
   scaled to all of them; on these patches the values are compared. E-CAAP is compared with the parallel form on all.
2. `tis`: samples with half of the tokens really dropped, and samples that go through the blocks with all their tokens,
   over as many bare forward passes.
3. `mda`: images that it shows to the model and its time, over a straightforward version that tries every free patch,
   one at a time, and then measures both curves.

Without weights the model has random ones and the image is noise: costs are the same, agreement means less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
from PIL import Image
from torch import Tensor

from aha.methods import load_method
from aha.methods.caap import CAAP, TokenPatcher
from aha.methods.mda import MDA
from aha.methods.patch_search import Responses, cell_indices, shown_first
from aha.methods.patching import patchwise
from aha.methods.tis import subsets
from aha.models import TargetModel, load_model
from aha.references import reference_inputs

SPEC = "timm:vit_base_patch16_clip_quickgelu_224"

T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """A result and its CPU seconds."""
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])


def ranks(values: Tensor) -> Tensor:
    return values.flatten().argsort().argsort().float()


def caap(model: TargetModel, image: Tensor, label: Tensor, measured: int) -> None:
    method = CAAP()
    patching, grid = TokenPatcher(method, model).patching(image)
    count = grid[0] * grid[1]
    few = torch.linspace(0, count - 1, measured).round().long()
    blank = reference_inputs(method.blank, model, image, label)

    (source, white), base_time = timed(lambda: (model.block_states(image), model.block_states(blank)))

    def one_by_one() -> Tensor:
        outputs = [
            patchwise(model, image, source, white, replace(patching, inside=patching.inside[place : place + 1]))
            for place in few.tolist()
        ]
        return model.score(torch.cat(outputs), label.expand(measured))

    slow, slow_time = timed(one_by_one)
    fast, fast_time = timed(lambda: method(model, image, label))
    short, short_time = timed(lambda: load_method("caap(form='efficient')")(model, image, label))
    cheap, cheap_time = timed(lambda: load_method("caap(late='source')")(model, image, label))
    scaled = base_time + slow_time * count / measured
    worst = float((fast.flatten()[few] - slow).abs().max() / slow.abs().max())
    print(f"caap, {count} patches; patched runs measured for {measured} of them and scaled")
    print(f"  parallel: {scaled / fast_time:.1f} x faster; largest difference {worst:.1e} of the largest value")
    for name, maps, seconds in (("efficient", short, short_time), ("late='source'", cheap, cheap_time)):
        alike, ranked = correlation(maps, fast), correlation(ranks(maps), ranks(fast))
        print(
            f"  {name}: {scaled / seconds:.1f} x faster; correlation with parallel {alike:.3f}, of ranks {ranked:.3f}"
        )


def tis(model: TargetModel, image: Tensor, samples: int) -> None:
    prefix = model.structure(image.shape[1:]).blocks[0].layout.prefix
    tokens = model.block_states(image).tokens[0]
    count = tokens.shape[1] - prefix
    half = torch.stack([torch.randperm(count)[: count // 2].sort().values for _ in range(samples)])
    whole = torch.arange(count).expand(samples, -1)
    bare = timed(lambda: model.outputs(image.expand(samples, -1, -1, -1)))[1]
    dropped = timed(lambda: model.outputs_of_tokens(image, subsets(tokens, half, prefix)))[1]
    kept = timed(lambda: model.outputs_of_tokens(image, subsets(tokens, whole, prefix)))[1]
    method = load_method(f"tis(masks={samples})")
    in_all = timed(lambda: method(model, image, torch.tensor([0])))[1]
    print(f"tis, {samples} samples, over {samples} bare forward passes")
    print(f"  half of the tokens dropped: {dropped / bare:.2f}; none dropped: {kept / bare:.2f}")
    print(f"  the method as a whole, one more forward pass and the clusters included: {in_all / bare:.2f}")


def straightforward(model: TargetModel, image: Tensor, label: Tensor, method: MDA, side: int) -> int:
    """MDA as one would write it down: all free patches, one at a time; then the curves. Gives the images shown."""
    cells = cell_indices((image.shape[-2], image.shape[-1]), (side, side))
    shown = 0
    order: list[int] = []
    asks = []
    for blank in (method.insertion, method.deletion):
        asks.append(Responses(model, image, reference_inputs(blank, model, image, label), label, cells))

    def ask(index: int, mask: Tensor) -> float:
        nonlocal shown
        shown += 1
        asks[index].known.clear()
        return float(asks[index](mask[None]))

    whole = ask(0, torch.ones(side * side, dtype=torch.bool))
    for index, sign in ((0, 1), (1, -1)):
        mask = torch.zeros(side * side, dtype=torch.bool)
        taken: list[int] = []
        while len(order) + len(taken) < side * side and (index or ask(index, mask) < method.tau * whole):
            free = [place for place in range(side * side) if place not in order + taken]
            answers = [sign * ask(index, mask | (torch.arange(side * side) == place)) for place in free]
            taken.append(free[max(range(len(free)), key=answers.__getitem__)])
            mask[taken[-1]] = True
        order += taken if index == 0 else taken[::-1]
    for index, sequence in enumerate((order, order[::-1])):
        for mask in shown_first(torch.tensor(sequence)):
            ask(index, mask)
    return shown


def mda(model: TargetModel, image: Tensor, label: Tensor, side: int) -> None:
    method = MDA(load_method("grad_cam"), grid=side)
    before = model.passes["forward"]
    _, ours = timed(lambda: method(model, image, label))
    asked = model.passes["forward"] - before
    shown, theirs = timed(lambda: straightforward(model, image, label, method, side))
    print(f"mda, {side} x {side} patches, Grad-CAM as guide, over a search that tries every free patch")
    print(f"  images shown: {asked} of {shown} ({asked / shown:.2f}); time {ours / theirs:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=SPEC)
    parser.add_argument("--weights")
    parser.add_argument("--image")
    parser.add_argument("--patches", type=int, default=6, help="patched runs that are measured")
    parser.add_argument("--samples", type=int, default=8, help="of tis")
    parser.add_argument("--grid", type=int, default=4, help="patches per side for mda")
    parser.add_argument("--only", nargs="+", choices=["caap", "tis", "mda"], default=["caap", "tis", "mda"])
    options = parser.parse_args()
    torch.manual_seed(0)
    model = load_model(options.model, weights=options.weights, pretrained=options.weights is not None)
    image = torch.randn(1, 3, *model.stated_preprocessing().size)
    if options.image:
        image = model.stated_preprocessing()(Image.open(options.image).convert("RGB"))[0][None]
    label = model.outputs(image).argmax(dim=1)
    model.block_limits(image.shape[1:])  # found once for a model, and not part of what is measured
    model.readout(image.shape[1:])
    model.cam_stage(image.shape[1:])
    if "caap" in options.only:
        caap(model, image, label, options.patches)
    if "tis" in options.only:
        tis(model, image, options.samples)
    if "mda" in options.only:
        mda(model, image, label, options.grid)


if __name__ == "__main__":
    main()

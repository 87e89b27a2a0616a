"""What the methods that ask the model about every patch cost, in bare forward passes of the same model.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/patch_methods.py [--weights FILE] [--image FILE]

Prints ratios of CPU time, each from one process and one run, next to how well the results agree:

1. `caap`: the parallel form against one patched run for each patch. The patched runs are measured for a few patches and
   scaled to all of them; on these patches the values are compared. E-CAAP is compared with the parallel form on all.
2. `tis`: samples with half of the tokens really dropped, and samples that go through the blocks with all their tokens,
   over as many bare forward passes.
3. `mda`: images shown to the model and time, against the published search written down as it is told, one image at a
   time, with Ins-Del of the orders that the two find. With several photographs a table of paired differences follows.
   With `--out FILE` every finished photograph is a line there, and the same command goes on after an interruption;
   `--plain N` runs the slow search, one image at a time, for the first N photographs only.

    ... --only mda --model timm:resnet18 --weights FILE --images FOLDER --limit 16 --precision bfloat16 --out mda.jsonl

Without weights the model has random ones and the image is noise: costs are the same, agreement means less.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from kept_lines import kept_lines
from PIL import Image
from torch import Tensor

from aha.methods import load_method
from aha.methods.activation_patching.caap import CAAP, TokenPatcher
from aha.methods.activation_patching.patching import patchwise
from aha.methods.patch_order.magnitudes import Order
from aha.methods.patch_order.mda import MDA
from aha.methods.patch_order.patch_search import cell_indices
from aha.methods.perturbation.tis import subsets
from aha.models import TargetModel, load_model
from aha.perturb.references import reference_inputs

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
    blank = reference_inputs(method.reference, model, image, label)

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


def straightforward(model: TargetModel, image: Tensor, label: Tensor, method: MDA) -> tuple[Order, int]:
    """MDA's published search written down as it is told, one patch and one image at a time; and the images shown."""
    size = (image.shape[-2], image.shape[-1])
    grid = method._grid(model, image)
    ranked, window = method._candidates(model, image, label, grid)
    pixels = cell_indices(size, grid)
    blanks = [reference_inputs(blank, model, image, label) for blank in (method.insertion, method.deletion)]
    shown = 0

    def ask(places: Sequence[int], blank: Tensor) -> float:
        nonlocal shown
        shown += 1
        keep = torch.isin(pixels, torch.tensor(places, dtype=torch.long))
        return float(model.scores(torch.where(keep, image, blank), label))

    def search(free: list[int], blank: Tensor, sign: int, enough: float) -> list[int]:
        taken: list[int] = []
        while free and sign * ask(taken, blank) < enough:
            answers = [sign * ask([*taken, place], blank) for place in free[:window]]
            taken.append(free.pop(answers.index(max(answers))))
        return taken

    first = search(list(ranked), blanks[0], 1, method.tau * float(model.scores(image, label)))
    last = search([place for place in reversed(ranked) if place not in first], blanks[1], -1, math.inf)
    order = [*first, *reversed(last)]
    steps = range(len(order) + 1)
    inserted = torch.tensor([ask(order[:step], blanks[0]) for step in steps])
    deleted = torch.tensor([ask(order[step:], blanks[1]) for step in steps])
    return Order(torch.tensor(order), inserted, deleted, grid), shown


class Found(NamedTuple):
    """What a search of one photograph took and gave."""

    images: int
    seconds: float
    quality: float


PLAIN, PUBLISHED = "one at a time", "mda"


def mda(
    model: TargetModel, image: Tensor, label: Tensor, side: int, screens: Sequence[int], with_plain: bool
) -> dict[str, Found]:
    """The published search one image at a time, the same in batches, and its faster approximations."""
    published = MDA(load_method("grad_cam"), grid=side)
    results: dict[str, Found] = {}
    if with_plain:
        (plain, shown), seconds = timed(lambda: straightforward(model, image, label, published))
        results[PLAIN] = Found(shown, seconds, quality(plain))
    searches = {PUBLISHED: published} | {f"mda(screen={own})": replace(published, screen=own) for own in screens}
    for name, method in searches.items():
        before = model.passes["forward"]
        (order,), seconds = timed(partial(method.search, model, image, label))
        results[name] = Found(model.passes["forward"] - before, seconds, quality(order))
    for name, found in results.items():
        print(f"  {name}: {found.images} images, {found.seconds:.0f} s, Ins-Del {found.quality:.4f}", flush=True)
    return results


def mda_table(results: Sequence[dict[str, Found]]) -> Iterator[str]:
    """Over all photographs: what each search takes and gives, and how it differs from the published one, in pairs."""
    yield "| search | photographs | images shown | times faster than one at a time | than in batches | Ins-Del | more |"
    yield "|---|---|---|---|---|---|---|"
    for name in dict.fromkeys(name for own in results for name in own):
        having = [own for own in results if name in own]
        cells = [f"{sum(own[name].images for own in having) / len(having):.0f}"]
        for other in (PLAIN, PUBLISHED):
            cells.append(with_error([own[other].seconds / own[name].seconds for own in having if other in own], ".2f"))
        cells.append(with_error([own[name].quality for own in having], ".4f"))
        cells.append(with_error([own[name].quality - own[PUBLISHED].quality for own in having], "+.4f"))
        yield f"| {name} | {len(having)} | {' | '.join(cells)} |"


def with_error(values: Sequence[float], form: str) -> str:
    """The mean, its standard error, and the least."""
    if not values:
        return ""
    error = f" ± {stdev(values) / len(values) ** 0.5:{form.lstrip('+')}}" if len(values) > 1 else ""
    return f"{fmean(values):{form}}{error} (least {min(values):{form}})"


def quality(order: Order) -> float:
    """Insertion less Deletion as MDA itself measures them, on its two references, one patch a step."""
    steps = len(order.places)
    inserted, deleted = (torch.trapezoid(curve) / steps for curve in (order.inserted, order.deleted))
    return float(inserted - deleted)


def photographs(folder: Path, limit: int) -> list[Path]:
    """Some of a folder, by chance; a smaller choice is part of a larger one."""
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    return [files[place] for place in np.random.default_rng(0).permutation(len(files))[:limit]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=SPEC)
    parser.add_argument("--weights")
    parser.add_argument("--image", nargs="*", type=Path, default=[])
    parser.add_argument("--images", type=Path, help="a folder of photographs, instead")
    parser.add_argument("--limit", type=int, default=16, help="how many of the folder")
    parser.add_argument("--patches", type=int, default=6, help="patched runs that are measured")
    parser.add_argument("--samples", type=int, default=8, help="of tis")
    parser.add_argument("--grid", type=int, default=14, help="patches per side for mda")
    parser.add_argument("--screen", type=int, nargs="*", default=[4], help="approximations of mda")
    parser.add_argument("--plain", type=int, help="photographs searched one image at a time too; all by default")
    parser.add_argument("--out", type=Path, help="a file of the lines of mda, which is added to")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--engine", default="eager", help="what runs passes without gradients; see docs/models.md")
    parser.add_argument("--only", nargs="+", choices=["caap", "tis", "mda"], default=["caap", "tis", "mda"])
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = load_model(
        options.model,
        weights=options.weights,
        pretrained=options.weights is not None,
        precision=options.precision,
        engine=options.engine,
    )
    preprocessing = model.stated_preprocessing()
    files = photographs(options.images, options.limit) if options.images else options.image
    results: dict[str, dict[str, Found]] = {}
    if options.out:
        for line in kept_lines(options.out):
            results[line["image"]] = {name: Found(*found) for name, found in line["found"].items()}
    for number, file in enumerate(files or [None]):
        name = "noise" if file is None else file.name
        if options.only == ["mda"] and name in results:
            continue
        print(name, flush=True)
        image = torch.randn(1, 3, *preprocessing.size)
        if file is not None:
            image = preprocessing(Image.open(file).convert("RGB"))[0][None]
        label = model.outputs(image).argmax(dim=1)
        if model.structure(image.shape[1:]).blocks:  # found once for a model, and not part of what is measured
            model.block_limits(image.shape[1:])
            model.readout(image.shape[1:])
        model.cam_stage(image.shape[1:])
        if "caap" in options.only:
            caap(model, image, label, options.patches)
        if "tis" in options.only:
            tis(model, image, options.samples)
        if "mda" in options.only and name not in results:
            with_plain = options.plain is None or number < options.plain
            results[name] = mda(model, image, label, options.grid, options.screen, with_plain)
            if options.out:
                with options.out.open("a") as lines:
                    lines.write(json.dumps({"image": name, "found": results[name]}) + "\n")
    if "mda" in options.only:
        print("\n".join(mda_table(list(results.values()))))


if __name__ == "__main__":
    main()

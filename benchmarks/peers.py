"""The same jobs done by captum, pytorch-grad-cam, torch-cam, Quantus and this package, side by side in one process.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/peers.py [--weights FILE] [--images FOLDER]
        [--batch 1 8 32] [--rounds 4] [--jobs grad_cam layer_cam gradient integrated_gradients deletion]

Every tool has its own copy of the network and is set up before the clock starts; then the tools take turns, round after
round, so that a busy machine disturbs all alike. Printed is one table in Markdown:

- time: CPU milliseconds per image, of the fastest round, and in units of ours;
- passes: images that the network was shown, per image, counted by a hook;
- agreement: rank correlation of the maps with ours, mean over the images; for deletion, the largest difference between
  the curves.

"given" hands the class in; with "found" the tool, or what its manual tells one to write around it, chooses the class
with the largest output. Tools that are not installed are left out. Without weights the network is random: times and
passes are the same, and maps agree no less.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from scipy.stats import spearmanr
from torch import Tensor, nn

import aha
from aha.models import TargetModel, load_model

IG_STEPS = 10
FLIPS = 21  # steps of the deletion curve; Quantus wants one that divides pixels and values of all channels
Work = Callable[[Tensor, Tensor | None], Tensor]
"""Inputs (B, C, H, W) and classes (B,), or none, to maps (B, H, W) or curves (B, S)."""


@dataclass
class Tool:
    """One tool at one job, with what was measured of it."""

    name: str
    module: nn.Module
    work: Work
    seconds: list[float] = field(default_factory=list)
    shown: int = 0
    result: Tensor = field(default_factory=lambda: torch.empty(0))

    def run(self, inputs: Tensor, classes: Tensor | None) -> None:
        """One round."""
        counted = 0

        def count(_module: nn.Module, args: tuple[Any, ...]) -> None:
            nonlocal counted
            counted += len(args[0])

        with_count = self.module.register_forward_pre_hook(count)
        start = time.process_time()
        self.result = self.work(inputs, classes)
        self.seconds.append(time.process_time() - start)
        with_count.remove()
        self.shown = counted


def chosen(module: nn.Module, inputs: Tensor, classes: Tensor | None) -> Tensor:
    """The classes; where they are to be found, what a user of a tool that must be told writes."""
    if classes is not None:
        return classes
    with torch.no_grad():
        return module(inputs).argmax(dim=1)


def enlarged(maps: Tensor, inputs: Tensor) -> Tensor:
    return F.interpolate(maps[:, None].detach().float(), inputs.shape[-2:], mode="bilinear")[:, 0]


def ours(model: TargetModel, method: str, inputs: Tensor, classes: Tensor | None) -> Tensor:
    target = "top1" if classes is None else [[int(c)] for c in classes]
    return aha.explain(model, inputs, method, target, batch_size=len(inputs)).maps


def captum_maps(module: nn.Module, job: str, inputs: Tensor, classes: Tensor | None) -> Tensor:
    from captum.attr import IntegratedGradients, LayerGradCam, Saliency

    target = chosen(module, inputs, classes)
    if job == "grad_cam":
        return enlarged(
            LayerGradCam(module, module.layer4).attribute(inputs, target, relu_attributions=True)[:, 0], inputs
        )
    if job == "gradient":
        return Saliency(module).attribute(inputs.clone().requires_grad_(), target).amax(dim=1)
    return IntegratedGradients(module).attribute(inputs, target=target, n_steps=IG_STEPS).sum(dim=1).float()


def torch_cam_maps(extractor: Any, module: nn.Module, inputs: Tensor, classes: Tensor | None) -> Tensor:
    scores = module(inputs)
    target = scores.argmax(dim=1) if classes is None else classes
    return enlarged(extractor(target.tolist(), scores, normalized=False)[0], inputs)


def grad_cam_maps(cam: Any, inputs: Tensor, classes: Tensor | None) -> Tensor:
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    targets = None if classes is None else [ClassifierOutputTarget(int(c)) for c in classes]
    return torch.from_numpy(cam(input_tensor=inputs, targets=targets))


def our_deletion(model: TargetModel, maps: Tensor, steps: int | str, inputs: Tensor, classes: Tensor | None) -> Tensor:
    """Deletion curves (B, S) without their first point, which Quantus leaves out."""
    metric = f"deletion(steps={steps!r}, references=(zeros_normalised,), ties='raster')"
    target = "top1" if classes is None else [[int(c)] for c in classes]
    scores = aha.evaluate(model, inputs, maps, metric, target=target)
    grid = np.arange(1, FLIPS + 1) / FLIPS
    curves = [np.interp(grid, row.fractions, row.scores) for row in scores.curve_rows]
    return torch.tensor(np.array(curves))


def quantus_deletion(module: nn.Module, maps: Tensor, inputs: Tensor, classes: Tensor | None) -> Tensor:
    import quantus

    target = chosen(module, inputs, classes)
    flipping = quantus.PixelFlipping(
        features_in_step=inputs[0].numel() // FLIPS,  # Quantus counts the values of all channels
        perturb_baseline=0.0,
        disable_warnings=True,
        display_progressbar=False,
    )
    found = flipping(
        model=module,
        x_batch=inputs.numpy(),
        y_batch=target.numpy(),
        a_batch=maps[:, None].numpy(),
        device="cpu",
        softmax=True,
        channel_first=True,
    )
    return torch.tensor(np.array(found))


def tools(job: str, module: nn.Module, spec: TargetModel, maps: Tensor) -> Iterator[Tool]:
    """Whoever can do the job, this package first; each with a network of its own."""

    def own_model() -> TargetModel:
        return load_model(
            copy.deepcopy(module),
            input_size=spec.stated_preprocessing().size,
            mean=spec.stated_preprocessing().mean,
            std=spec.stated_preprocessing().std,
        )

    model = own_model()
    if job == "deletion":
        yield Tool("aha", model.module, partial(our_deletion, model, maps, FLIPS))
        model = own_model()
        yield Tool("aha, adaptive", model.module, partial(our_deletion, model, maps, "adaptive"))
        if find_spec("quantus"):
            network = copy.deepcopy(module)
            yield Tool("Quantus", network, partial(quantus_deletion, network, maps))
        return
    text = f"integrated_gradients(steps={IG_STEPS})" if job == "integrated_gradients" else job
    yield Tool("aha", model.module, partial(ours, model, text))
    if job != "layer_cam" and find_spec("captum"):
        network = copy.deepcopy(module)
        yield Tool("captum", network, partial(captum_maps, network, job))
    if "cam" in job and find_spec("torchcam"):
        from torchcam import methods

        network = copy.deepcopy(module)
        kind = methods.GradCAM if job == "grad_cam" else methods.LayerCAM
        yield Tool("torch-cam", network, partial(torch_cam_maps, kind(network, "layer4"), network))
    if "cam" in job and find_spec("pytorch_grad_cam"):
        import pytorch_grad_cam

        network = copy.deepcopy(module)
        cam = pytorch_grad_cam.GradCAM if job == "grad_cam" else pytorch_grad_cam.LayerCAM
        yield Tool("pytorch-grad-cam", network, partial(grad_cam_maps, cam(network, [network.layer4])))


def agreement(job: str, result: Tensor, reference: Tensor) -> str:
    if job == "deletion":
        return f"{float((result - reference).abs().max()):.3f} apart"
    pairs = zip(result.flatten(1), reference.flatten(1), strict=True)
    return f"{np.mean([spearmanr(a, b).statistic for a, b in pairs]):.3f}"


def measure(job: str, module: nn.Module, spec: TargetModel, inputs: Tensor, given: bool, rounds: int) -> Iterator[str]:
    """The table's rows of one job."""
    maps = torch.rand(len(inputs), *inputs.shape[-2:], generator=torch.Generator().manual_seed(1))
    classes = chosen(module, inputs, None) if given else None
    every = list(tools(job, module, spec, maps))
    for turn in range(rounds + 1):  # the first, which warms up, does not count
        for tool in every:
            tool.run(inputs, classes)
            tool.seconds = tool.seconds if turn else []
    best = {tool.name: min(tool.seconds) / len(inputs) for tool in every}
    for tool in every:
        cells = [
            job,
            "given" if given else "found",
            str(len(inputs)),
            tool.name,
            f"{1e3 * best[tool.name]:.0f}",
            f"{best[tool.name] / best['aha']:.2f}",
            f"{tool.shown / len(inputs):.4g}",
            "" if tool.name == "aha" else agreement(job, tool.result, every[0].result),
        ]
        yield "| " + " | ".join(cells) + " |"


def read_inputs(model: TargetModel, folder: Path | None, count: int) -> Tensor:
    if folder is None:
        return torch.randn(count, 3, *model.stated_preprocessing().size, generator=torch.Generator().manual_seed(0))
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png"))[:count]
    return torch.stack([model.stated_preprocessing()(Image.open(file).convert("RGB"))[0] for file in files])


def main() -> None:
    jobs = ["grad_cam", "layer_cam", "gradient", "integrated_gradients", "deletion"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights")
    parser.add_argument("--images", type=Path)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--jobs", nargs="+", choices=jobs, default=jobs)
    parser.add_argument("--target", nargs="+", choices=["given", "found"], default=["given", "found"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model = load_model("timm:resnet18", weights=options.weights, pretrained=options.weights is not None, device="cpu")
    module = model.module.eval().requires_grad_(True)  # as users have it
    print("| job | class | batch | tool | CPU ms per image | time, ours = 1 | passes per image | agreement |")
    print("|---|---|---|---|---|---|---|---|")
    for job in options.jobs:
        for batch in options.batch:
            inputs = read_inputs(model, options.images, batch)
            for target in options.target:
                for line in measure(job, module, model, inputs, target == "given", options.rounds):
                    print(line, flush=True)


if __name__ == "__main__":
    main()

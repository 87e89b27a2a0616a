"""How good maps are by the hard metrics: pixels sorted for real, as `aha.metrics` measures them, with fewer steps.

Training optimises soft masks of grid cells; only the hard score of pixels says whether that helped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from aha.core.launch import parts_of
from aha.data.images import LabelledImage, read_image
from aha.data.targets import top_classes
from aha.errors import AhaWarning, ImageError, warn
from aha.learned.explainer import Explainer
from aha.learned.settings import TrainConfig
from aha.learned.training.data import readable
from aha.learned.training.distributed import Engine
from aha.metrics import Case, Sample
from aha.metrics.curves.ins_del import InsDel, both_curves
from aha.models import TargetModel
from aha.perturb.perturbation import area, step_counts
from aha.perturb.references import Reference


def measurable(held_out: Sequence[LabelledImage], *, warns: bool) -> list[LabelledImage]:
    """Those of the held-out images that can be read: all measurements of a run are of the same ones.

    Found out before the first step, since by default the first measurement comes after the last one.
    """
    failures: list[str] = []
    found = list(readable(held_out, failures.append))
    if not found:
        why = failures[0] if failures else "there are none"
        raise ImageError(f"no held-out image can be read, give others as validation: {why}")
    if failures and warns:
        count = f"{len(failures)} of {len(held_out)}"
        warn(f"held-out images that cannot be read are left out, {count}: {failures[0]}", AhaWarning)
    return found


def validation_curves(
    explainer: Explainer, target: TargetModel, samples: Sequence[LabelledImage], config: TrainConfig, engine: Engine
) -> Tensor:
    """Deletion and Insertion curves (N, 2, S + 1) of the predicted classes by hard pixel masks (T = 0)."""
    reviser = explainer if explainer.revision is not None else None

    def draw(target: TargetModel, inputs: Tensor, classes: Tensor) -> Tensor:
        return explainer.maps(target, inputs, classes, reviser)

    return _curves_of(draw, target, samples, config, engine)


def grad_cam_scores(
    target: TargetModel, samples: Sequence[LabelledImage], config: TrainConfig, engine: Engine
) -> Tensor:
    """Ins-Del (N,) of Grad-CAM on the same images: what an explainer has to beat."""
    curves = _curves_of(_grad_cam, target, samples, config, engine)
    return areas(curves, math.prod(target.stated_preprocessing().size))["ins_del"]


def _curves_of(
    draw: Callable[[TargetModel, Tensor, Tensor], Tensor],
    target: TargetModel,
    samples: Sequence[LabelledImage],
    config: TrainConfig,
    engine: Engine,
) -> Tensor:
    """Curves (N, 2, S + 1) of the maps that `draw` gives for inputs (1, C, H, W) and their predicted classes (1,)."""
    preprocessing = target.stated_preprocessing()
    rows = []
    for index in parts_of(len(samples), engine.share):
        inputs = preprocessing(read_image(samples[index].read()))[0][None].to(target.device)
        classes = top_classes(target.outputs(inputs), 1, target.num_classes)[:, 0]
        maps = draw(target, inputs, classes)
        rows.append(hard_curves(target, inputs, classes, maps, config.references, config.validation_steps))
    return engine.gather(torch.cat(rows) if rows else torch.empty(0, 2, config.validation_steps + 1))


def _grad_cam(target: TargetModel, inputs: Tensor, classes: Tensor) -> Tensor:
    """Maps (B, H, W) of the method of this name, which lies above this package."""
    stage = target.cam_stage()
    trace = target.trace(inputs, features=(stage,))
    (slope,) = trace.gradients(classes, trace.features[stage])
    weighted = (trace.features[stage].detach() * slope.mean(dim=(2, 3), keepdim=True)).sum(dim=1, keepdim=True)
    return F.interpolate(weighted.relu().float(), inputs.shape[-2:], mode="bilinear", align_corners=False)[:, 0]


def mean_scores(curves: Sequence[Tensor], targets: Sequence[TargetModel]) -> dict[str, float]:
    """Mean Deletion, Insertion and Ins-Del of curves (N, 2, S + 1), one set of them for each target."""
    found = [
        areas(one, math.prod(target.stated_preprocessing().size)) for one, target in zip(curves, targets, strict=True)
    ]
    means = {name: float(torch.stack([scores[name].mean() for scores in found]).mean()) for name in found[0]}
    each = torch.cat([scores["ins_del"] for scores in found])
    error = float(each.std()) / math.sqrt(len(each)) if len(each) > 1 else 0.0
    return {**means, "ins_del_error": error, "images": float(len(each))}


def areas(curves: Tensor, num_pixels: int) -> dict[str, Tensor]:
    """Deletion, Insertion and their difference (B,) from curves (B, 2, S + 1)."""
    counts = torch.tensor(step_counts(num_pixels, curves.shape[-1] - 1)).to(curves)
    deletion, insertion = area(counts / num_pixels, curves).unbind(dim=1)
    return {"deletion": deletion, "insertion": insertion, "ins_del": insertion - deletion}


def hard_curves(
    model: TargetModel,
    inputs: Tensor,
    classes: Tensor,
    maps: Tensor,
    references: Sequence[Reference],
    steps: int,
) -> Tensor:
    """Deletion and Insertion curves (B, 2, S + 1) over equal shares of the pixels, averaged over the references."""
    protocol = InsDel(steps=steps, references=tuple(references))
    cases = [
        Case(Sample(model, f"image {index}", own), int(target), values)
        for index, (own, target, values) in enumerate(zip(inputs, classes, maps, strict=True))
    ]
    with torch.no_grad():
        found = [torch.stack([scores for _, scores in both_curves(case, protocol).values()]) for case in cases]
        return torch.stack(found).float().mean(dim=1)

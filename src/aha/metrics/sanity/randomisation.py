"""Cascading randomisation: does the map change when the model's weights are replaced by noise, layer after layer?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from aha.core.validation import NonNegativeInt
from aha.data.images import find_images, read_image
from aha.errors import MetricError, ModelError
from aha.metrics.base import Direction, Metric, Value, metric
from aha.metrics.case import Case
from aha.metrics.statistics import cosine, pearson, spearman
from aha.models import TargetModel
from aha.models.weight_randomization import kept_copies

KINDS = ("spearman", "pearson", "cosine", "ssim")
COLUMNS: dict[str, Direction] = {f"randomisation_{kind}{end}": "lower" for end in ("", "_mean") for kind in KINDS}


def similarities(a: Tensor, b: Tensor) -> dict[str, float]:
    """Similarities of two maps (H, W), by the names of `KINDS`; all 0 if one of them is constant."""
    a, b = a.detach().cpu().double(), b.detach().cpu().double()
    if any(bool(values.min() == values.max()) for values in (a, b)):
        return dict.fromkeys(KINDS, 0.0)
    flat = a.flatten(), b.flatten()
    found = (spearman(*flat), pearson(*flat), cosine(*flat), structural_similarity(_unit(a), _unit(b)))
    return {kind: float(value) for kind, value in zip(KINDS, found, strict=True)}


def structural_similarity(a: Tensor, b: Tensor, *, window: int = 11, sigma: float = 1.5) -> Tensor:
    """SSIM (Wang et al. 2004) of two maps (H, W) in [0, 1], the mean over all windows that lie inside the map.

    Gaussian windows; smaller ones, down to the whole map, for maps below the window's size.
    """
    side = min(window, *(s - 1 + s % 2 for s in a.shape))  # odd
    offsets = torch.arange(side, dtype=a.dtype) - side // 2
    line = (-(offsets**2) / (2 * sigma**2)).exp()
    line = (line / line.sum()).view(1, 1, -1, 1)
    stack = torch.stack([a, b, a * a, b * b, a * b])[:, None]  # (5, 1, H, W)
    mean_a, mean_b, aa, bb, ab = F.conv2d(F.conv2d(stack, line), line.transpose(2, 3))
    c1, c2 = 0.01**2, 0.03**2  # for values in [0, 1]
    level = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    spread_a, spread_b, common = aa - mean_a**2, bb - mean_b**2, ab - mean_a * mean_b
    result: Tensor = (level * (2 * common + c2) / (spread_a + spread_b + c2)).mean()
    return result


def _unit(values: Tensor) -> Tensor:
    return (values - values.min()) / (values.max() - values.min())


def pink_pictures(count: int, channels: int, size: tuple[int, int]) -> Tensor:
    """Inputs (N, C, H, W) with the 1/f spectrum of photographs, zero mean and unit deviation, the same every time."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(count, 1, *size, generator=generator)
    noise = noise + 0.3 * torch.randn(count, channels, *size, generator=generator)  # colours differ, but not much
    rows, columns = torch.fft.fftfreq(size[0])[:, None], torch.fft.rfftfreq(size[1])
    frequency = (rows**2 + columns**2).sqrt()
    frequency[0, 0] = torch.inf  # no common brightness
    pictures: Tensor = torch.fft.irfft2(torch.fft.rfft2(noise) / frequency, s=size)
    return pictures / pictures.std(dim=(1, 2, 3), keepdim=True)


@dataclass(frozen=True)
class CalibrationInputs:
    """Inputs for running statistics that do not depend on which image an evaluation happens to see first."""

    size: tuple[int, int]
    folder: str = ""
    count: int = 16
    channels: int = 3

    def __call__(self, model: TargetModel) -> Tensor:
        """The inputs (N, C, H, W) for a model."""
        if not self.folder:
            return pink_pictures(self.count, self.channels, self.size)
        preprocess = replace(model.stated_preprocessing(), size=self.size)
        paths = find_images(Path(self.folder))[: self.count]
        if len(paths) < 2:
            raise ModelError(f"{self.folder} must hold at least two images for running statistics")
        return torch.stack([preprocess(read_image(path))[0] for path in paths])


@metric(
    "randomisation",
    columns={**COLUMNS, "randomisation_constant": "neither"},
    bounds=(-1.0, 1.0),
    needs={"method"},
    citation="Adebayo et al., NeurIPS 2018",
)
@dataclass(frozen=True)
class Randomisation(Metric):
    """Similarity of the map to the maps of the model while its layers are re-initialised from output to input.

    The columns are Spearman, Pearson, cosine and SSIM at the end of the cascade, where no trained weight is left, and
    their mean over the cascade (`_mean`). The class stays the explained one; the original demo follows the randomised
    model's prediction instead. `aha.models.weight_randomization` says what is re-initialised how.

    Low is good as far as 0: a strongly negative number still means dependence. Constant maps count as 0, and
    `randomisation_constant` is the share of stages that gave one; without a look at it, a broken method wins. Many
    exact zeros lower rank correlations, see `sparseness`.

    Attributes:
        stages: at most so many stages, evenly spaced, the last with all layers; 0 for all.
        absolute: compare |map| instead of the signed map.
        calibration: folder of images for the running statistics of batch norms; synthetic ones by default.
    """

    for_volumes: ClassVar[bool] = False

    stages: NonNegativeInt = 0
    absolute: bool = False
    calibration: str = ""

    def __call__(self, case: Case) -> list[Value]:
        if case.explain is None:
            raise MetricError(f"{case.sample.name}: randomisation needs the method, not only its map")
        inputs = case.sample.inputs[None]
        classes = torch.tensor([case.target], device=case.model.device)
        source = CalibrationInputs((inputs.shape[-2], inputs.shape[-1]), self.calibration, channels=inputs.shape[1])
        copies = kept_copies(case.model, case.seed, stages=self.stages, calibration=source)
        maps = [case.explain(model, inputs, classes)[0] for _, model in copies]
        if not all(bool(values.isfinite().all()) for values in maps):
            raise MetricError(f"{case.sample.name}: a map of a randomised model is not finite")
        first, *others = (values.abs() if self.absolute else values for values in (case.values, *maps))
        found = [similarities(first, values) for values in others]
        constant = sum(bool(values.min() == values.max()) for values in others) / len(others)
        return [
            *(Value(f"randomisation_{kind}", found[-1][kind]) for kind in KINDS),
            *(Value(f"randomisation_{kind}_mean", sum(f[kind] for f in found) / len(found)) for kind in KINDS),
            Value("randomisation_constant", constant),
        ]

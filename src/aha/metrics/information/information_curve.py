"""Performance information curves: how fast the class comes back as the map adds information to a blurred image."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from aha.core.seeds import generator_of
from aha.core.validation import FILLED, Fraction
from aha.errors import MetricError, SpecError
from aha.metrics.base import Metric, Pooled, Value, metric
from aha.metrics.case import Case
from aha.metrics.information.codec import Curve, Mask, Picture, information_area, interpolated, webp_bytes

THRESHOLDS = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.10, 0.13, 0.21, 0.34, 0.5, 0.75)


class Canvas(NamedTuple):
    """What all maps of one image share: the picture, its first pixels, and the picture that these alone give."""

    picture: Picture
    revealed: Mask
    blurred_outputs: Tensor  # (K,)
    blurred_bytes: int
    picture_bytes: int


@metric(
    "information_curve",
    columns={"aic": "higher", "sic": "higher"},
    citation="Kapishnikov et al., ICCV 2019",
)
@dataclass(frozen=True)
class InformationCurve(Metric):
    """Area under the accuracy (`aic`) and class score (`sic`) over the information in the image shown.

    A random 1 % of the pixels, the same for every map of an image, gives the blurred start; each threshold t then adds
    the pixels with `map >= quantile(1 - t)`. Signed maps are taken as they are.

    The published code aggregates by the median curve. The mean of these per-image areas is the area under the mean
    curve; `sic_median` is the median area. Images whose class the model does not see clearly, or sees already in the
    blurred image, are left out, for `aic` more of them than for `sic`: then only `sic` is reported. Ties of patch
    maps reveal whole patches, more than t. Triangulation makes this the slowest metric, seconds per map of 224 pixels.

    Attributes:
        thresholds: shares of revealed pixels, ascending.
        fraction: share of the pixels that are known from the start.
        min_prediction: least score of the class on the clean image; 0.8 in the published function, 0.5 in its example.
    """

    for_volumes: ClassVar[bool] = False

    thresholds: Annotated[tuple[Fraction, ...], FILLED] = THRESHOLDS
    fraction: Fraction = 0.01
    min_prediction: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.thresholds) != sorted(self.thresholds):
            raise SpecError("information_curve: thresholds must increase")

    def __call__(self, case: Case) -> list[Value]:
        name, clean = case.sample.name, case.sample.clean[None]
        original = float(case.scores(clean)[0])
        if original < self.min_prediction:
            raise MetricError(f"{name}: class {case.target} scores {original:.2f}, less than {self.min_prediction}")
        canvas = self._canvas(case)
        if canvas.blurred_bytes >= canvas.picture_bytes:
            raise MetricError(f"{name}: the blurred image holds no less information than the image itself")
        ends = torch.stack([canvas.blurred_outputs, case.sample.clean])  # (2, K)
        scores, seen = case.scores(ends), case.recognised(ends, case.target)
        has_sic, has_aic = bool(scores[0] < scores[1]), bool(seen[1] & ~seen[0])
        if not (has_sic or has_aic):
            raise MetricError(f"{name}: the blurred image scores class {case.target} no lower than the image does")
        pictures = self._pictures(case, canvas)
        outputs = case.model.outputs(_inputs(case, pictures))  # (S, K)
        span = canvas.picture_bytes - canvas.blurred_bytes
        information = np.clip([(webp_bytes(p) - canvas.blurred_bytes) / span for p in pictures], 0.0, 1.0)
        values = []
        if has_aic:
            values.append(Value("aic", _area(information, case.recognised(outputs, case.target), seen)))
        if has_sic:
            values.append(Value("sic", _area(information, case.scores(outputs), scores)))
        return values

    def over_dataset(self, values: Mapping[str, Sequence[float]]) -> dict[str, Pooled]:
        found = values.get("sic")
        return {"sic_median": Pooled(median(found), len(found))} if found else {}

    def _canvas(self, case: Case) -> Canvas:
        """What the image contributes, made once; its random pixels follow from the seed and its name."""
        key = (self.name, self.fraction, case.seed)
        if key not in case.sample.cache:
            pixels = case.sample.pixels.detach().float().clamp(0, 1).cpu()  # (C, H, W)
            picture = (pixels * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
            seed = zlib.crc32(f"{case.seed} {case.sample.name}".encode())
            order = torch.randperm(case.num_pixels, generator=generator_of(seed))
            revealed = (order < max(1, int(self.fraction * case.num_pixels))).view(case.values.shape).numpy()
            blurred = interpolated(picture, revealed)
            outputs = case.model.outputs(_inputs(case, [blurred]))[0]
            case.sample.cache[key] = Canvas(picture, revealed, outputs, webp_bytes(blurred), webp_bytes(picture))
        canvas = case.sample.cache[key]
        assert isinstance(canvas, Canvas)
        return canvas

    def _pictures(self, case: Case, canvas: Canvas) -> list[Picture]:
        values = case.values.detach().cpu().double().numpy()
        cuts = np.quantile(values, [1 - t for t in self.thresholds])
        return [interpolated(canvas.picture, (values >= cut) | canvas.revealed) for cut in cuts]


def _inputs(case: Case, pictures: Sequence[Picture]) -> Tensor:
    pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).to(case.sample.inputs) / 255
    return case.model.to_inputs(pixels)


def _area(information: Curve, answers: Tensor, ends: Tensor) -> float:
    """The area for answers (S,) rescaled between those for the blurred and the clean picture (2,)."""
    answers, (low, high) = answers.detach().cpu().double(), ends.detach().cpu().double()
    return information_area(information, ((answers - low) / (high - low)).clamp(0, 1).numpy())

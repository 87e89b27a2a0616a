"""The common ground of the localisation metrics: where the object is, and how much of a map lies there.

Everything is computed on the CPU in double precision: ties and tiny masses decide these metrics, and one map is small.

Shapes: map, mask and region (H, W); boxes (n, 4) as x0, y0, x1, y1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aha.errors import MetricError, SpecError
from aha.metrics.case import Case

SMALLEST_MASS = 1e-7  # Rao et al.: a map with less positive mass counts as empty


def map_of(case: Case) -> Tensor:
    """The map (H, W) in double precision."""
    return case.values.detach().cpu().double()


def counted_pixels(case: Case) -> Tensor:
    """Where (H, W) the truth is known: everywhere but at the pixels marked to be ignored."""
    if case.sample.ignore is None:
        return torch.ones(case.values.shape, dtype=torch.bool)
    return ~case.sample.ignore.cpu().bool()


def mask_region(case: Case) -> Tensor:
    """The object's mask (H, W), without ignored pixels."""
    if case.sample.mask is None:
        raise MetricError(f"{case.sample.name}: there is no object mask")
    return _not_empty(case.sample.mask.cpu().bool() & counted_pixels(case), case, "the object mask")


def box_region(case: Case) -> Tensor:
    """The union (H, W) of the boxes; a pixel belongs to a box that contains its centre."""
    if case.sample.boxes is None:
        raise MetricError(f"{case.sample.name}: there are no boxes")
    height, width = case.values.shape
    rows, columns = (torch.arange(side, dtype=torch.float64) + 0.5 for side in (height, width))
    x0, y0, x1, y1 = case.sample.boxes.cpu().double().view(-1, 4).T[:, :, None]  # each (n, 1)
    in_rows = (rows >= y0) & (rows < y1)  # (n, H)
    in_columns = (columns >= x0) & (columns < x1)  # (n, W)
    inside = (in_rows[:, :, None] & in_columns[:, None, :]).any(dim=0)
    return _not_empty(inside & counted_pixels(case), case, "the union of the boxes")


def cell_region(case: Case) -> Tensor:
    """The cell (H, W) of the explained class in a mosaic."""
    cells = case.sample.cells
    if cells is None:
        raise MetricError(f"{case.sample.name}: the image is not a mosaic, so it has no cells")
    if case.target not in cells:
        raise MetricError(f"{case.sample.name}: no cell shows class {case.target}; it has {sorted(cells)}")
    y0, x0, y1, x1 = cells[case.target]
    region = torch.zeros(case.values.shape, dtype=torch.bool)
    region[y0:y1, x0:x1] = True
    return _not_empty(region, case, f"the cell of class {case.target}")


def _not_empty(region: Tensor, case: Case, what: str) -> Tensor:
    if not bool(region.any()):
        raise MetricError(f"{case.sample.name}: {what} contains no pixel of the model input")
    return region


def smoothed(values: Tensor, kernel: int, sigma: float) -> Tensor:
    """The map (H, W) after a Gaussian blur with reflected borders (OpenCV's default); kernel 1 leaves it alone."""
    from torchvision.transforms.functional import gaussian_blur

    size = min(kernel, 2 * min(values.shape) - 1)  # reflection cannot reach beyond the opposite border
    return gaussian_blur(values[None], [size, size], [sigma, sigma])[0]  # type: ignore[no-any-return]


def check_blur(name: str, kernel: int, sigma: float) -> None:
    """Refuses a blur that does not exist."""
    if kernel < 1 or kernel % 2 == 0 or sigma <= 0:
        raise SpecError(f"{name}: kernel must be odd and positive and sigma positive, not {kernel} and {sigma}")


def positive_share(values: Tensor, region: Tensor, counted: Tensor) -> float:
    """Share of the map's positive mass that lies in the region; 0 for an empty map, as in Rao et al."""
    positive = values.relu() * counted
    total = float(positive.sum())
    return float(positive[region].sum()) / total if total >= SMALLEST_MASS else 0.0


def average_precision(labels: Tensor, scores: Tensor) -> float:
    """Area under the precision-recall curve as a step function, scikit-learn's definition.

    `sum_n (R_n - R_{n-1}) P_n` over distinct scores: tied pixels enter together, so their order does not matter. The
    trapezoid rule would be optimistic for the long ties of patch maps.

    Args:
        labels: bool (n,), at least one of them true.
        scores: (n,), larger = more likely positive.
    """
    ordered, order = scores.flatten().sort(descending=True)
    hits = labels.flatten()[order].double().cumsum(0)  # true positives among the first k
    is_last = torch.cat([ordered[1:] != ordered[:-1], torch.ones(1, dtype=torch.bool)])  # of its group of ties
    places = is_last.nonzero().flatten()
    found = hits[places]
    precision = found / (places + 1)
    recall = found / hits[-1]
    return float((recall.diff(prepend=recall.new_zeros(1)) * precision).sum())


def ratio(part: float, whole: float) -> float:
    """`part / whole`, 0 where there is nothing to divide."""
    return part / whole if whole else 0.0

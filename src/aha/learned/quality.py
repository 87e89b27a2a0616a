"""How good a map probably is, before anything is measured.

Two things decide most of it: how sure the model is, and the shape of what the map puts first. Both are at hand with the
map, so a prediction costs no pass. One linear model makes it for all networks. It was fitted to the measured Ins-Del
of AHA's maps, and to what three refinement steps added (`benchmarks/fit_quality.py`).

Shapes: outputs (B, K); maps (B, H, W); what is read (B, FEATURES).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from aha.learned import universal
from aha.learned.looks import top_pixels
from aha.models import TargetModel

SHARES = (0.05, 0.2)
_SHAPE = 3
FEATURES = 4 + _SHAPE * len(SHARES)
STEPS = 3
"""Refinement steps whose gain is predicted."""
SHIPPED = Path(__file__).parent / "shipped" / "quality.safetensors"

QUANTILES = 101
_POOR = 0.2


@dataclass(frozen=True)
class Quality:
    """What is predicted of a map.

    Attributes:
        ins_del: its Ins-Del, the mean over black, mean and blur.
        error: standard deviation of the prediction's error.
        gain: what three refinement steps would add to it.
    """

    ins_del: float
    error: float
    gain: float

    @property
    def sentence(self) -> str:
        """In words."""
        advice = "; likely poor: refine it" if self.ins_del < _POOR and self.gain > 0 else ""
        return f"predicted Ins-Del {self.ins_del:.2f} ± {self.error:.2f}; refinement would add {self.gain:.2f}{advice}"


class QualityHead(nn.Module):
    """What is read (B, FEATURES) -> Ins-Del, the deviation of its error, and the gain (B, 3).

    Ins-Del is linear in what is read, and the gain is linear in the predicted Ins-Del: poor maps gain most.
    """

    weights: Tensor
    offset: Tensor
    error: Tensor
    slope: Tensor
    gains: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.zeros(FEATURES))
        self.register_buffer("offset", torch.zeros(()))
        self.register_buffer("error", torch.ones(()))
        self.register_buffer("slope", torch.zeros(2))  # of the gain: at an Ins-Del of 0, and per Ins-Del
        self.register_buffer("gains", torch.zeros(QUANTILES))  # quantiles of predicted gains, low to high

    def forward(self, read: Tensor) -> Tensor:
        """(B, FEATURES) -> (B, 3)."""
        found = read @ self.weights + self.offset
        return torch.stack([found, self.error.expand_as(found), self.slope[0] + self.slope[1] * found], dim=1)

    def least_gain(self, share: float) -> float:
        """The gain that this share of the images is predicted to exceed."""
        place = min(max(1 - share, 0.0), 1.0) * (QUANTILES - 1)
        low = int(place)
        if share >= 1:
            return -torch.inf
        high = min(low + 1, QUANTILES - 1)
        return float(torch.lerp(self.gains[low], self.gains[high], place - low))


def quality_features(target: TargetModel, outputs: Tensor, classes: Tensor, maps: Tensor) -> Tensor:
    """What is read (B, FEATURES): facts of the answer, and the shape of the map's first pixels.

    The shape is the order's alone: how far the first pixels spread, how far they lie from the centre, and how long
    their outline is. Rescaling a map changes nothing.
    """
    facts = universal.answer_facts(target, outputs.detach().float(), classes)
    return torch.cat([facts, *(_shape(top_pixels(maps.float(), share)) for share in SHARES)], dim=1).float()


def _shape(top: Tensor) -> Tensor:
    """Spread, distance from the centre, and outline (B, 3) of masks (B, H, W), in units of the image's side."""
    height, width = top.shape[-2:]
    rows = torch.linspace(-0.5, 0.5, height, device=top.device)[:, None].expand(height, width)
    columns = torch.linspace(-0.5, 0.5, width, device=top.device).expand(height, width)
    weight = top / top.sum(dim=(1, 2), keepdim=True).clamp(min=1)
    means = [(weight * axis).sum(dim=(1, 2)) for axis in (rows, columns)]
    squares = [(weight * axis.square()).sum(dim=(1, 2)) for axis in (rows, columns)]
    variance = squares[0] - means[0] ** 2 + squares[1] - means[1] ** 2
    distance = (means[0] ** 2 + means[1] ** 2).sqrt()
    edges = (top[:, 1:] != top[:, :-1]).sum(dim=(1, 2)) + (top[:, :, 1:] != top[:, :, :-1]).sum(dim=(1, 2))
    return torch.stack([variance.clamp(min=0).sqrt(), distance, edges / (height + width) / 4], dim=1)


@cache
def shipped_head() -> QualityHead | None:
    """The one that comes with the package."""
    if not SHIPPED.is_file():
        return None
    head = QualityHead()
    with safe_open(SHIPPED, framework="pt") as file:
        head.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    return head.requires_grad_(False).eval()


def predicted(target: TargetModel, outputs: Tensor, classes: Tensor, maps: Tensor) -> list[Quality]:
    """What is predicted of each map; nothing where the score is no probability, which predictions are made of."""
    head = shipped_head()
    if head is None or not target.score.is_probability or not len(maps):
        return []
    with torch.no_grad():
        found = head(quality_features(target, outputs, classes, maps).cpu())
    return [Quality(float(a), float(b), float(c)) for a, b, c in found]

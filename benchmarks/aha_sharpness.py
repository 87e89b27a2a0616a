"""Do maps follow the outlines of objects? Measured on photographs with masks of the object.

    python benchmarks/aha_sharpness.py PETS --model timm:resnet18 --weights FILE --method aha --method grad_cam

`PETS` has `images/NAME.jpg` and `trimaps/NAME.png` (1 object, 2 background, 3 border), as Oxford-IIIT Pet does. For
each map, of the predicted class:

- outline: the share of the map's gradient energy that lies within 3 pixels of the object's outline; beside it, the
  share of the pixels that lie there, which is what a map that knows no outlines would have;
- mIoU of the map cut at its mean, and AUPR, for the object.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import aha
from aha.metrics.localisation.base import average_precision
from aha.metrics.localisation.segmentation import overlap
from aha.models.loading.preprocessing import Preprocessing

REACH = 3  # pixels from the outline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pets", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--weights")
    parser.add_argument("--method", action="append", required=True)
    parser.add_argument("--limit", type=int, default=100)
    given = parser.parse_args()
    model = aha.load_model(given.model, weights=given.weights)
    names = sorted(path.stem for path in (given.pets / "trimaps").glob("*.png"))
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(0)).tolist()[: given.limit]
    rows: dict[str, list[list[float]]] = {method: [] for method in given.method}
    for index in order:
        mask = object_mask(given.pets / "trimaps" / f"{names[index]}.png")
        for method in given.method:
            maps = aha.explain(model, given.pets / "images" / f"{names[index]}.jpg", method).maps[0]
            rows[method].append(measured(maps, as_seen(mask, model.stated_preprocessing())))
    print(f"{given.model}, {len(order)} photographs\n")
    print("| method | energy at the outline | of the pixels | mIoU | AUPR |\n|---|---|---|---|---|")
    for method, values in rows.items():
        print(f"| `{method}` | " + " | ".join(f"{v:.3f}" for v in torch.tensor(values).mean(dim=0)) + " |")


def object_mask(file: Path) -> Tensor:
    """The object with its border (H, W)."""
    return torch.from_numpy(np.array(Image.open(file))) != 2


def as_seen(mask: Tensor, preprocessing: Preprocessing) -> Tensor:
    """The part of a mask that the model sees: its shorter side resized, then cut at the centre."""
    size, scale = preprocessing.size, preprocessing.resize_to / min(mask.shape)
    height, width = (round(side * scale) for side in mask.shape)
    large = F.interpolate(mask[None, None].float(), (height, width), mode="nearest")[0, 0] > 0.5
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    return large[top : top + size[0], left : left + size[1]]


def measured(values: Tensor, mask: Tensor) -> list[float]:
    """Energy at the outline, share of the pixels there, mIoU, AUPR of one map (H, W)."""
    near = outline(mask)
    energy = gradient_energy(values)
    return [
        float(energy[near].sum() / energy.sum().clamp(min=1e-30)),
        float(near.float().mean()),
        overlap(values > values.mean(), mask).miou,
        average_precision(mask.flatten(), values.flatten().double()),
    ]


def outline(mask: Tensor) -> Tensor:
    """Where (H, W) both object and background lie within reach."""
    grown = F.max_pool2d(mask[None, None].float(), 2 * REACH + 1, stride=1, padding=REACH)[0, 0] > 0
    shrunk = F.max_pool2d((~mask)[None, None].float(), 2 * REACH + 1, stride=1, padding=REACH)[0, 0] == 0
    return grown & ~shrunk


def gradient_energy(values: Tensor) -> Tensor:
    """Squared gradient (H, W) by central differences."""
    down, across = torch.gradient(values.double())
    return down.square() + across.square()


if __name__ == "__main__":
    main()

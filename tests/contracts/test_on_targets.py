"""What every method promises on targets: a finite map of the right shape without a trace, or one line that refuses."""

from __future__ import annotations

import pytest
import torch
from every_method import example
from torch import Tensor, nn

import aha
from aha.errors import CapabilityError
from aha.explaining import Asked
from aha.methods import METHODS, Method
from aha.models import TargetModel, load_model
from fakes import CLASSES, SIZE, TinyCNN, changes, randomised, snapshot, surroundings, tiny_vit

METHODS_HERE = [example(name) for name in METHODS]


class Places(nn.Module):
    """A CNN whose last stage is read as a segmentation, or as candidates that lie still."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        whole = TinyCNN()
        self.stem, self.body, self.head = whole.stem, whole.body, nn.Conv2d(16, CLASSES, 1)
        self.kind = kind

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        scores = self.head(self.body(self.stem(images)))  # (B, 5, h, w)
        if self.kind == "region":
            return {"out": scores}
        height, width = scores.shape[-2:]
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        corners = torch.stack([x, y, x + 1, y + 1], dim=-1).flatten(0, 1) * (SIZE / width)
        return {
            "boxes": corners.to(scores).expand(len(images), -1, 4),
            "scores": scores.flatten(2).movedim(1, 2).sigmoid(),
        }


ASKED = {
    "contrast": (lambda: randomised(TinyCNN()), "contrast(0, 2)"),
    "tokens": (tiny_vit, "contrast(0, 2)"),
    "neuron": (lambda: randomised(TinyCNN()), "neuron('body', 1)"),
    "similarity": (lambda: randomised(TinyCNN()), "similarity(vector=(0.0, 1.0, 2.0, 3.0, 4.0))"),
    "region": (lambda: randomised(Places("region")), "region(cls=1, box=(0, 0, 16, 32))"),
    "box": (lambda: randomised(Places("box")), "box(4, 4, 12, 12, cls=1)"),
}
REFUSED_AT_MOST = {"contrast": 0.45, "tokens": 0.35, "neuron": 0.45, "similarity": 0.45, "region": 0.45, "box": 0.45}
"""Share of the methods that may refuse; attention methods do on CNNs, and what reads class vectors everywhere."""


@pytest.fixture(scope="module")
def models() -> dict[str, TargetModel]:
    return {
        name: load_model(build(), input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
        for name, (build, _) in ASKED.items()
    }


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("method", METHODS_HERE, ids=lambda method: method.name)
@pytest.mark.parametrize("kind", list(ASKED))
@pytest.mark.filterwarnings("ignore::aha.errors.MapWarning")  # a miniature may have a flat map
def test_a_map_or_one_line(method: Method, kind: str, models: dict[str, TargetModel], images: Tensor) -> None:
    model = models[kind]
    before = snapshot(model.module) | surroundings()
    try:
        found = aha.explain(model, images, method, ASKED[kind][1], progress=False)
    except CapabilityError as error:
        assert "\n" not in str(error) and str(error)
    else:
        assert found.maps.shape == (2, SIZE, SIZE) and bool(found.maps.isfinite().all())
    assert changes(before, snapshot(model.module) | surroundings()) == []


@pytest.mark.parametrize("kind", list(ASKED))
def test_few_methods_refuse(kind: str, models: dict[str, TargetModel]) -> None:
    asked = Asked.of(models[kind], ASKED[kind][1])
    refused = []
    for method in METHODS_HERE:
        try:
            aha.methods.check_fit(method, asked.model, (3, SIZE, SIZE))
        except CapabilityError:
            refused.append(method.name)
    assert len(refused) <= REFUSED_AT_MOST[kind] * len(METHODS_HERE), refused
    assert not {"gradient", "grad_cam", "rise", "mda", "aha"} & set(refused)

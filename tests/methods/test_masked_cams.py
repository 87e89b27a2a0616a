"""Score-CAM and Ablation-CAM against slow loops on hooked features; the restart behind a layer against full runs."""

from __future__ import annotations

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import aha
from aha.methods import load_method
from aha.methods.cam.score_cam import unit_range
from aha.models import load_model
from fakes import (
    CLASSES,
    SIZE,
    InPlaceViT,
    ReusedReluCNN,
    SharedBlockViT,
    TinyCNN,
    changes,
    randomised,
    snapshot,
    tiny_vit,
)

CHOSEN = torch.tensor([0, 1, 2, 4])


def agrees(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    assert ours.shape == theirs.shape
    worst = float((ours.double() - theirs.detach().double()).abs().max() / theirs.detach().abs().max())
    assert worst < tolerance, f"off by {worst:.2g} of the largest value"


def native(module: nn.Module, images: Tensor, method: str) -> Tensor:
    return load_method(method)(load_model(module), images, CHOSEN).detach()


CASES = {
    "cnn": (lambda: randomised(TinyCNN()), "body", 0, -1),
    "shallow": (lambda: randomised(TinyCNN()), "stem", 0, -2),
    "vit": (lambda: tiny_vit(depth=3), "blocks.2.norm1", 1, -1),
    "deeper vit": (lambda: tiny_vit(depth=3, reg_tokens=2), "blocks.1.norm1", 3, -2),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module, int, int]:
    """A model in double precision, the module that a stage ends in, its prefix tokens, and the layer's number."""
    build, name, prefix, layer = CASES[request.param]
    module = build().double()
    return module, module.get_submodule(name), prefix, layer


def hooked_features(module: nn.Module, place: nn.Module, image: Tensor, prefix: int) -> Tensor:
    seen: list[Tensor] = []
    handle = place.register_forward_hook(lambda *call: seen.append(call[2].detach().clone()))
    module(image[None])
    handle.remove()
    raw = seen[0][0]
    return raw if raw.dim() == 3 else raw[prefix:].T.reshape(-1, 4, 4)


def weighted(weights: list[float], features: Tensor) -> Tensor:
    return sum(w * f for w, f in zip(weights, features, strict=True)).relu()  # type: ignore[union-attr]


def test_score_cam_is_its_definition(case: tuple[nn.Module, nn.Module, int, int], images: Tensor) -> None:
    module, place, prefix, layer = case
    expected = []
    for image, chosen in zip(images.double(), CHOSEN.tolist(), strict=True):
        features = hooked_features(module, place, image, prefix)
        scores = []
        for channel in features:
            mask = F.interpolate(channel[None, None], size=(SIZE, SIZE), mode="bilinear")[0, 0]
            mask = (mask - mask.min()) / (mask.max() - mask.min() + 1e-8)
            with torch.no_grad():
                scores.append(module((mask * image)[None])[0, chosen])
        expected.append(weighted(torch.stack(scores).softmax(dim=0).tolist(), features))
    agrees(native(module, images.double(), f"score_cam(layer={layer})"), torch.stack(expected), 1e-9)


def test_ablation_cam_is_its_definition(case: tuple[nn.Module, nn.Module, int, int], images: Tensor) -> None:
    module, place, prefix, layer = case
    expected = []
    for image, chosen in zip(images.double(), CHOSEN.tolist(), strict=True):
        features = hooked_features(module, place, image, prefix)
        with torch.no_grad():
            whole = float(module(image[None])[0, chosen])
        weights = []
        for index in range(len(features)):

            def ablate(_module: nn.Module, _args: object, output: Tensor, index: int = index) -> Tensor:
                output = output.clone()
                if output.dim() == 4:
                    output[:, index] = 0
                else:
                    output[:, prefix:, index] = 0
                return output

            handle = place.register_forward_hook(ablate)
            with torch.no_grad():
                weights.append((whole - float(module(image[None])[0, chosen])) / abs(whole))
            handle.remove()
        expected.append(weighted(weights, features))
    agrees(native(module, images.double(), f"ablation_cam(layer={layer})"), torch.stack(expected), 1e-8)


def test_ablation_cam_before_a_linear_head_is_cam(images: Tensor) -> None:
    """Without channel k the logit loses `w_k mean(F_k)`."""
    module = randomised(TinyCNN()).double()
    images = images.double()
    with torch.no_grad():
        features, logits = module.body(module.stem(images)), module(images)[range(4), CHOSEN]
    weights = module.head.weight[CHOSEN] * features.mean(dim=(2, 3)) / logits.abs()[:, None]
    agrees(native(module, images, "ablation_cam"), torch.einsum("bc,bchw->bhw", weights, features).relu(), 1e-9)


def test_masks_are_scaled_each_by_itself() -> None:
    maps = torch.tensor([[[0.0, 2.0]], [[-3.0, -1.0]], [[5.0, 5.0]]])
    assert torch.allclose(unit_range(maps), torch.tensor([[[0.0, 1.0]], [[0.0, 1.0]], [[0.0, 0.0]]]))


@pytest.mark.parametrize("method", ["score_cam", "ablation_cam"])
def test_classes_share_forward_passes(images: Tensor, method: str) -> None:
    model = load_model(randomised(TinyCNN()))
    costs = []
    for target in (2, [[0, 1, 2, 4]] * 2):
        model.passes.clear()
        aha.explain(model, images[:2], method, target)
        costs.append(model.passes["forward"])
    assert costs[0] == costs[1]


# Running a model from a layer on


class Batched(TinyCNN):
    """Remembers the batch size before its layers: its later part does not take another one."""

    def forward(self, x: Tensor) -> Tensor:
        batch = len(x)
        return self.head(self.pool(self.body(self.stem(x))).view(batch, 16))


class Wavering(TinyCNN):
    """Takes another batch, but computes something else with it."""

    def forward(self, x: Tensor) -> Tensor:
        factor = len(x)
        return super().forward(x) * factor


BUILDERS = {
    "cnn": (lambda: TinyCNN(), True),
    "vit": (lambda: tiny_vit(), True),
    "registers": (lambda: tiny_vit(reg_tokens=3, global_pool="avg"), True),
    "shared block": (lambda: SharedBlockViT(), True),
    "in place": (lambda: InPlaceViT(), None),
    "one relu": (lambda: ReusedReluCNN(), True),
    "convnext": (lambda: timm.create_model("test_convnext", num_classes=CLASSES), True),
    "vit with gap": (lambda: timm.create_model("test_vit3", num_classes=CLASSES, img_size=SIZE), None),
    "batch kept": (lambda: Batched(), False),
    "batch counted": (lambda: Wavering(), False),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_outputs_from_features(name: str, images: Tensor) -> None:
    """Equal to replacing the stage's output in a full run of copies, whether or not the shortcut is possible."""
    build, restarts = BUILDERS[name]
    module = randomised(build())
    model = load_model(module)
    before = snapshot(module)
    for stage, site in enumerate(model.structure((SIZE, SIZE)).stages):
        (maps,), outputs = model.features(images, [stage])
        model.passes.clear()
        found = model.outputs_from_features(images[0], stage, maps)
        if restarts is not None:
            assert (model.passes["forward"] == 1) == restarts
        calls = [0]

        def put(_module: nn.Module, _args: object, output: Tensor, calls: list[int] = calls) -> Tensor | None:
            calls[0] += 1
            return site.layout.from_map(maps, output) if calls[0] - 1 == site.call else None  # noqa: B023

        handle = module.get_submodule(site.name).register_forward_hook(put)
        with torch.no_grad():
            expected = module(images[:1].repeat(4, 1, 1, 1))
        handle.remove()
        agrees(found, expected, 1e-5)
        if name != "batch counted":
            agrees(found[:1], outputs[:1], 1e-5)
    assert changes(before, snapshot(module)) == []

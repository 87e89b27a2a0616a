"""Models with habits of their own, and models that need more memory than there is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reading import one_line, plain_outputs
from torch import Tensor, nn

import aha
from aha.errors import ModelError
from aha.models import load_model
from aha.models.running.blocks import BlockLimits
from aha.models.running.memory import Chunks
from fakes import (
    SIZE,
    FrozenBackboneCNN,
    FunctionalCNN,
    GreedyCNN,
    Hungry,
    ReusedReluCNN,
    TinyCNN,
    changes,
    randomised,
    snapshot,
    surroundings,
    tiny_vit,
)

# Models with habits


def test_in_place_functional_and_reused_activations(images: Tensor) -> None:
    maps = []
    modules = [FunctionalCNN(), FunctionalCNN(F.relu_), FunctionalCNN(torch.relu), ReusedReluCNN()]
    modules.append(FunctionalCNN(lambda x: F.relu(x, inplace=True)))
    modules.append(FunctionalCNN(Tensor.relu_))
    for module in modules:
        randomised(module)
        maps.append([aha.explain(module, images, m).maps for m in ("gradient", "hires_cam(layer=-2)")])
    for other in maps[1:]:
        for one, two in zip(maps[0], other, strict=True):
            assert torch.allclose(one, two, atol=1e-6)


def test_features_are_not_overwritten_by_what_follows(images: Tensor) -> None:
    module = randomised(nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 5)))
    convolution = module[0]
    model = load_model(module)
    with model.patched({"1": lambda x: x}):  # a hook on the activation changes nothing
        trace = model.trace(images, features=[0])
    assert torch.allclose(trace.outputs, plain_outputs(module, images), atol=1e-6)
    with torch.no_grad():
        assert torch.allclose(trace.features[0], convolution(images).relu(), atol=1e-6)


def test_a_backbone_without_gradients(images: Tensor) -> None:
    frozen, free = randomised(FrozenBackboneCNN()), randomised(TinyCNN())
    for method in ("grad_cam", "hires_cam", "grad_cam(layer=-2)"):
        assert torch.allclose(
            aha.explain(frozen, images, method).maps, aha.explain(free, images, method).maps, atol=1e-6
        )
    with pytest.raises(ModelError, match="no gradient reaches") as caught:
        aha.explain(frozen, images, "gradient")
    one_line(caught)


def test_a_model_that_works_in_place_on_its_input(images: Tensor) -> None:
    module, kept = randomised(GreedyCNN()), images.clone()
    model = load_model(module)
    outputs = model.outputs(images)
    for method in ("gradient", "grad_cam", "integrated_gradients(steps=3)", "edge_map"):
        aha.explain(model, images, method)
    assert torch.equal(images, kept)
    assert torch.equal(outputs, plain_outputs(module, images))


def test_wrapped_modules(images: Tensor) -> None:
    module = randomised(TinyCNN())
    expected = aha.explain(module, images, "grad_cam").maps
    compiled = torch.compile(module, backend="eager")
    both = (nn.DataParallel(compiled), torch.compile(nn.DataParallel(module), backend="eager"))
    for wrapped in (nn.DataParallel(module), nn.DataParallel(nn.DataParallel(module)), compiled, *both):
        explanation = aha.explain(wrapped, images, "grad_cam")
        assert torch.equal(explanation.maps, expected)
        assert explanation.model == "module:TinyCNN"
        assert explanation.digest == load_model(module).digest


def test_double_precision(images: Tensor) -> None:
    for module in (randomised(TinyCNN()), tiny_vit()):
        single = {m: aha.explain(module, images, m).maps for m in METHODS_FOR_ALL}
        module.double()
        for method, expected in single.items():
            for inputs in (images, images.double()):
                found = aha.explain(module, inputs, method).maps
                assert found.dtype == torch.float32
                assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


METHODS_FOR_ALL = (
    "gradient",
    "input_x_gradient",
    "integrated_gradients(steps=4)",
    "grad_cam",
    "hires_cam",
    "smooth(gradient, n=2)",
    "edge_map",
)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(images: Tensor, dtype: torch.dtype) -> None:
    for module in (randomised(TinyCNN()), tiny_vit()):
        single = {m: aha.explain(module, images, m, target=1).maps for m in METHODS_FOR_ALL}
        module.to(dtype)
        for method, expected in single.items():
            for inputs in (images, images.to(dtype)):
                found = aha.explain(module, inputs, method, target=1).maps
                assert found.dtype == torch.float32
                both = torch.stack([found.flatten(), expected.flatten()])
                assert torch.corrcoef(both)[0, 1] > 0.9, method


def test_autocast_is_for_outputs_only(images: Tensor) -> None:
    module = randomised(TinyCNN())
    full, half = load_model(module), load_model(module, precision="bfloat16")
    outputs = half.outputs(images)
    assert outputs.dtype == torch.float32
    assert not torch.equal(outputs, full.outputs(images))
    assert torch.allclose(outputs, full.outputs(images), atol=0.2)
    assert torch.equal(
        aha.explain(full, images, "grad_cam", target=0).maps, aha.explain(half, images, "grad_cam", target=0).maps
    )


def test_what_a_model_allows_does_not_depend_on_the_precision() -> None:
    full = load_model(tiny_vit())
    for half in (load_model(tiny_vit(), precision="bfloat16"), load_model(tiny_vit().bfloat16())):
        assert half.block_limits((SIZE, SIZE)) == full.block_limits((SIZE, SIZE)) == BlockLimits()
        assert half.structure((SIZE, SIZE)).missing == full.structure((SIZE, SIZE)).missing


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_every_way_of_reading_leaves_no_trace(mode: Callable[[], Any], images: Tensor) -> None:
    module, classes = tiny_vit(), torch.tensor([1] * 4)
    model = load_model(module)
    with mode():
        given = images.clone()
        before = (snapshot(module), surroundings())
        model.structure((SIZE, SIZE))
        model.cam_stage((SIZE, SIZE))
        model.readout((SIZE, SIZE))
        model.outputs(given)
        model.scores(given, classes)
        model.input_gradients(given, classes)
        trace = model.trace(given, features=[0], tokens=True, attention=True, inputs=True)
        trace.gradients(classes, trace.features[0], trace.tokens[0], trace.attention[0])
        model.outputs_from_tokens(given, trace.tokens[-1])
        assert changes(before[0], snapshot(module)) == []
        assert changes(before[1], surroundings()) == []


def test_passes_are_counted_without_our_own_curiosity(images: Tensor) -> None:
    model = load_model(tiny_vit())
    aha.explain(model, images, "grad_cam(form='features')", target=1)  # finds structure, readout and stage on the way
    assert model.passes == {"forward": 4, "backward": 4}
    model.passes.clear()
    aha.explain(model, images, "gradient", target=1)
    assert model.passes == {"forward": 4, "backward": 4}


def test_outputs_follow_the_callers_gradient_mode(images: Tensor) -> None:
    model = load_model(randomised(TinyCNN()))
    assert not model.outputs(images).requires_grad
    leaf = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model.outputs(leaf)[:, 1].sum(), leaf)
    assert torch.allclose(gradient, model.input_gradients(images, torch.tensor([1] * 4)), atol=1e-6)
    with torch.no_grad():
        assert not model.outputs(leaf).requires_grad


def test_pixels_and_inputs_are_inverse(images: Tensor) -> None:
    model = load_model(randomised(TinyCNN()), input_size=SIZE, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    assert torch.allclose(model.to_inputs(model.to_pixels(images)), images, atol=1e-5)
    black = model.to_inputs(torch.zeros(1, 3, 1, 1)).flatten()
    assert torch.allclose(black, torch.tensor([-0.25, -0.4, -0.5]))


def test_threads_take_turns(images: Tensor) -> None:
    """Hooks are global to a module: two threads that explain the same one must not see each other."""
    module = tiny_vit()
    expected = {m: aha.explain(module, images, m).maps for m in ("legrad", "grad_cam", "rollout", "gradient")}
    wrong: list[str] = []

    def work(method: str) -> None:
        for _ in range(8):
            if not torch.equal(aha.explain(module, images, method).maps, expected[method]):
                wrong.append(method)

    threads = [threading.Thread(target=work, args=(method,)) for method in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# Memory


@pytest.mark.parametrize("method", ["gradient", "grad_cam", "integrated_gradients(steps=3)", "smooth(hires_cam, n=2)"])
def test_batches_shrink_until_they_fit(method: str) -> None:
    inputs = torch.randn(13, 3, SIZE, SIZE)
    module = randomised(TinyCNN())
    expected = aha.explain(module, inputs, method, batch_size=1).maps
    hungry = Hungry(module, most=3)
    model = load_model(hungry, batch_size=16)
    assert torch.allclose(aha.explain(model, inputs, method).maps, expected, atol=1e-5)
    assert model.chunks.size <= 3
    hungry.batches.clear()
    aha.explain(model, inputs, method)
    assert max(hungry.batches) <= 3, "the size that fitted is remembered"


class HungryForGradients(Hungry):
    """Has room for many images as long as nothing is recorded."""

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(len(x))
        features = self.module.body(self.module.stem(x))
        if features.requires_grad and len(x) > self.most:
            raise RuntimeError("CUDA out of memory. Tried to allocate a lot")
        return self.module.head(self.module.pool(features).flatten(1))


def test_the_size_that_fits_a_backward_pass_is_remembered() -> None:
    inputs, module = torch.randn(9, 3, SIZE, SIZE), randomised(TinyCNN())
    hungry = HungryForGradients(module, most=2)
    model = load_model(hungry, batch_size=8)
    expected = aha.explain(module, inputs, "grad_cam").maps
    assert torch.allclose(aha.explain(model, inputs, "grad_cam").maps, expected, atol=1e-5)
    assert model.chunks.size == 2
    assert torch.allclose(aha.explain(model, inputs, "grad_cam", batch_size=4).maps, expected, atol=1e-5)
    assert model.chunks.size == 2


@pytest.mark.parametrize("method", ["gradient", "grad_cam", "random_map"])
def test_one_image_too_many_is_one_line(method: str, images: Tensor) -> None:
    module = Hungry(randomised(TinyCNN()), most=0)
    with pytest.raises(ModelError, match="out of memory even for a single image") as caught:
        aha.explain(module, images, method)
    one_line(caught)


def test_chunks_cover_everything_once() -> None:
    calls: list[tuple[int, int]] = []

    def work(part: slice) -> int:
        if part.stop - part.start > 4:
            raise MemoryError
        calls.append((part.start, part.stop))
        return part.stop - part.start

    chunks = Chunks(10)
    assert sum(chunks.run(work, 11)) == 11
    assert [start for start, _ in calls] == [0, *[stop for _, stop in calls[:-1]]]
    assert chunks.run(work, 0) == []
    with pytest.raises(RuntimeError, match="something else"):
        chunks.run(_fails_otherwise, 3)


def _fails_otherwise(_part: slice) -> None:
    raise RuntimeError("something else")

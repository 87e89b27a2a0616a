"""Randomised models and the metrics that explain again, against scipy, scikit-image and known methods."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import spearmanr
from skimage.metrics import structural_similarity as skimage_ssim
from torch import Tensor, nn

import aha
from aha.errors import MetricError, ModelError, SpecError
from aha.metrics import Case, Sample, load_metric
from aha.metrics.sanity.randomisation import CalibrationInputs, pink_pictures, similarities, structural_similarity
from aha.metrics.sanity.stability import noisy_copies
from aha.models import TargetModel, load_model
from aha.models.weight_randomization import KEPT, kept_copies, randomised_copies
from fakes import (
    CLASSES,
    SIZE,
    EncoderViT,
    QueryPoolCNN,
    SharedBlockViT,
    TinyCNN,
    changes,
    plain_module,
    randomised,
    snapshot,
    surroundings,
    tiny_vit,
)

BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "vit": lambda: tiny_vit(init_values=0.5, class_token=True),
    "cnn": lambda: randomised(TinyCNN()),
    "encoder": lambda: randomised(EncoderViT()),
    "shared": lambda: randomised(SharedBlockViT()),
    "pooled": lambda: randomised(QueryPoolCNN()),
    "plain": lambda: randomised(plain_module()),
}


def target(module: nn.Module, **options: Any) -> TargetModel:
    return aha.load_model(module, input_size=(SIZE, SIZE), mean=[0.5] * 3, std=[0.5] * 3, **options)


def calibration(count: int = 8) -> Tensor:
    return pink_pictures(count, 3, (SIZE, SIZE))


def changed(module: nn.Module, other: nn.Module) -> list[str]:
    """Names of the parameters that differ, in order of registration."""
    theirs = dict(other.named_parameters())
    return [name for name, value in module.named_parameters() if not torch.equal(value, theirs[name])]


def numbers(metric: str, judged: Case) -> dict[str, float]:
    values = load_metric(metric)(judged)
    assert {value.column for value in values} == set(load_metric(metric).columns)
    return {value.column: value.value for value in values}


# Randomised copies


@pytest.mark.parametrize("kind", BUILDERS)
def test_copies_grow_from_output_to_input_and_leave_the_model_alone(kind: str) -> None:
    module = BUILDERS[kind]().train()
    before, around = snapshot(module), surroundings()
    stages = list(randomised_copies(target(module), 0, calibration=calibration()))
    assert not changes(before, snapshot(module)) and not changes(around, surroundings())
    shares = [share for share, _ in stages]
    assert shares == sorted(set(shares)) and shares[-1] == 1.0
    previous: set[str] = set()
    for _, made in stages:
        now = set(changed(module, made.module))
        assert previous <= now
        previous = now
        outputs = made.outputs(calibration(2))
        assert outputs.shape == (2, CLASSES) and bool(outputs.isfinite().all())
        assert not any(p.requires_grad for p in made.module.parameters())
    assert previous == {name for name, _ in module.named_parameters()}


def first_parts(kind: str) -> list[str]:
    """What each stage adds, by the first part of the names that tells units apart."""
    module = BUILDERS[kind]()
    seen: set[str] = set()
    parts = []
    for _, made in randomised_copies(target(module), 0, calibration=calibration()):
        new = [name for name in changed(module, made.module) if name not in seen]
        seen |= set(new)
        parts.append(new[0] if new[0].count(".") < 2 else ".".join(new[0].split(".")[:-2]))
    return parts


def test_units_come_in_reverse_order_of_execution() -> None:
    assert first_parts("vit") == ["head.weight", "norm.weight", "blocks.1", "blocks.0", "patch_embed", "cls_token"]
    assert first_parts("cnn") == ["head.weight", "body", "body", "stem", "stem"]
    assert first_parts("plain") == ["4.weight", "1.weight"]
    assert [part.split(".")[0] for part in first_parts("encoder")] == ["head", "encoder", "encoder", "embedding"]
    assert [part.split(".")[0] for part in first_parts("pooled")] == ["out", "project", "body"]  # project is no call
    assert first_parts("shared")[0] == "head.weight"


class HeadFirst(nn.Module):
    """Registers its layers in the wrong order."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, CLASSES)
        self.stem = nn.Conv2d(3, 4, 8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stem(x).mean(dim=(2, 3)))


def test_execution_and_not_registration_decides() -> None:
    module = randomised(HeadFirst())
    _, first = next(randomised_copies(target(module), 0, calibration=calibration()))
    assert changed(module, first.module) == ["head.weight", "head.bias"]


def test_draws_follow_from_the_seed_and_not_from_the_stages() -> None:
    module = BUILDERS["vit"]()
    model = target(module)

    def last(seed: int, stages: int = 0) -> nn.Module:
        *_, (share, made) = randomised_copies(model, seed, calibration=calibration(), stages=stages)
        assert share == 1.0
        return made.module

    torch.manual_seed(1)
    one = last(3)
    torch.manual_seed(2)
    assert not changed(one, last(3, stages=2))
    assert changed(one, last(4))


@pytest.mark.parametrize(("stages", "expected"), [(0, 6), (1, 1), (2, 2), (4, 4), (99, 6)])
def test_stages_are_evenly_spaced_and_end_with_all_layers(stages: int, expected: int) -> None:
    found = list(randomised_copies(target(BUILDERS["vit"]()), 0, calibration=calibration(), stages=stages))
    assert len(found) == expected and found[-1][0] == 1.0


def test_copies_share_what_they_do_not_change() -> None:
    module = BUILDERS["vit"]()
    stages = list(randomised_copies(target(module), 0, calibration=calibration()))
    places = {made.module.head.weight.data_ptr() for _, made in stages}
    assert len(places) == 1 and places != {module.head.weight.data_ptr()}  # drawn once
    assert stages[0][1].module.patch_embed.proj.weight.data_ptr() == module.patch_embed.proj.weight.data_ptr()


def test_bare_parameters_and_scales() -> None:
    module = BUILDERS["vit"]()
    with torch.no_grad():
        module.blocks[0].ls1.gamma.uniform_(1, 3)
    *_, (_, made) = randomised_copies(target(module), 0, calibration=calibration())
    fresh = made.module
    assert 0.015 < float(fresh.pos_embed.std()) < 0.025 and float(fresh.pos_embed.abs().max()) <= 0.04
    assert bool((fresh.blocks[0].ls1.gamma == 0.5).all())  # its own initialiser
    assert bool((fresh.norm.weight == 1).all()) and bool((fresh.norm.bias == 0).all())


class Bare(nn.Module):
    """Parameters that no layer can reset, a weight used twice, and a layer that forgets one of its own."""

    class Forgetful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = nn.Parameter(torch.randn(4))
            self.reset = nn.Parameter(torch.randn(4))

        def reset_parameters(self) -> None:
            nn.init.ones_(self.reset)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 8, 8)
        self.gamma = nn.Parameter(torch.tensor([1.0, -2.0, 3.0, -4.0]))
        self.q_bias = nn.Parameter(torch.randn(4))
        self.empty = nn.Parameter(torch.zeros(0))
        self.forgetful = self.Forgetful()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).mean(dim=(2, 3)) * self.gamma + self.q_bias
        x = x * self.forgetful.kept + self.forgetful.reset
        return self.head(self.second(self.first(x).relu()).relu())


def test_unusual_parameters() -> None:
    torch.manual_seed(0)
    module = Bare()
    *_, (_, made) = randomised_copies(target(module), 0, calibration=calibration())
    fresh = made.module
    assert bool((fresh.gamma == 2.5).all()) and not fresh.q_bias.any()
    assert bool((fresh.forgetful.reset == 1).all()) and float(fresh.forgetful.kept.abs().max()) <= 0.04
    assert fresh.first.weight is fresh.second.weight and not torch.equal(fresh.first.weight, module.first.weight)


def test_running_statistics_are_estimated_anew_where_layers_are_random() -> None:
    module = BUILDERS["cnn"]()
    inputs = calibration(16)
    stages = [made.module for _, made in randomised_copies(target(module), 0, calibration=inputs)]
    head_only, everything = stages[0], stages[-1]
    for block in ("stem", "body"):
        old, kept = (getattr(m, block)[1] for m in (module, head_only))
        assert torch.equal(old.running_mean, kept.running_mean) and torch.equal(old.running_var, kept.running_var)
    convolved = everything.stem[0](inputs)
    norm = everything.stem[1]
    assert torch.allclose(norm.running_mean, convolved.mean(dim=(0, 2, 3)), atol=1e-5)
    assert torch.allclose(norm.running_var, convolved.var(dim=(0, 2, 3)), rtol=1e-4)
    assert norm.momentum == module.stem[1].momentum and not any(m.training for m in everything.modules())
    with pytest.raises(ModelError, match="at least two"):
        list(randomised_copies(target(module), 0, calibration=inputs[:1]))


@pytest.mark.parametrize("batch_size", [1, 5, 32])
def test_statistics_do_not_hang_on_the_batch_size(batch_size: int) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 8, 8), nn.BatchNorm2d(4), nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, CLASSES)]
    module = nn.Sequential(*layers).eval()
    *_, (_, made) = randomised_copies(load_model(module, batch_size=batch_size), 0, calibration=calibration(16))
    *_, (_, expected) = randomised_copies(load_model(module), 0, calibration=calibration(16))
    for ours, theirs in zip(made.module.buffers(), expected.module.buffers(), strict=True):
        assert torch.equal(ours, theirs)


def test_norms_without_weights_are_layers_too() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.BatchNorm2d(4, affine=False), nn.Flatten(), nn.Linear(64, CLASSES))
    stages = [made.module for _, made in randomised_copies(target(module), 0, calibration=calibration())]
    assert len(stages) == 3
    assert not stages[0][1].running_mean.any() and bool(stages[1][1].running_mean.all())
    assert changed(module, stages[1]) == ["3.weight", "3.bias"]


def test_copies_made_in_inference_mode_can_be_differentiated(images: Tensor) -> None:
    model = target(BUILDERS["cnn"]())
    with torch.inference_mode():
        stages = list(randomised_copies(model, 0, calibration=calibration()))
    for _, made in stages:
        assert bool(made.input_gradients(images[:1], torch.tensor([1])).any())


def test_models_that_cannot_be_randomised_say_so() -> None:
    with pytest.raises(ModelError, match="no parameters"):
        list(randomised_copies(target(nn.Sequential(nn.Flatten())), 0, calibration=calibration()))
    module = plain_module()
    module.cached = module[1].weight * 2  # a tensor with a history cannot be copied
    with pytest.raises(ModelError, match="cannot be copied"):
        list(randomised_copies(target(module), 0, calibration=calibration()))


def test_copies_are_kept_while_the_model_lives() -> None:
    source = CalibrationInputs((SIZE, SIZE))
    model = target(BUILDERS["cnn"]())
    first = kept_copies(model, 0, calibration=source, stages=2)
    assert kept_copies(model, 0, calibration=CalibrationInputs((SIZE, SIZE)), stages=2) is first
    with torch.no_grad():
        model.module.stem[1].running_mean += 1
    first, former = kept_copies(model, 0, calibration=source, stages=2), first
    assert first is not former  # of other weights
    del former
    for seed in range(1, KEPT + 1):
        kept_copies(model, seed, calibration=source, stages=2)
    assert kept_copies(model, 0, calibration=source, stages=2) is not first  # the oldest had to go
    gone = weakref.ref(kept_copies(model, 0, calibration=source, stages=2)[0][1])
    del model, first
    gc.collect()
    assert gone() is None


def test_calibration_pictures_are_pink_or_the_users(tmp_path: Any) -> None:
    pictures = pink_pictures(4, 3, (64, 64))
    assert torch.equal(pictures, pink_pictures(4, 3, (64, 64)))
    power = torch.fft.rfft2(pictures).abs().square().mean(dim=(0, 1))
    ratio = float(power[0, 4] / power[0, 16])
    assert 8 < ratio < 32  # 1/f amplitude: four times the frequency, a sixteenth of the power
    assert torch.allclose(pictures.std(dim=(1, 2, 3)), torch.ones(4))
    model = target(BUILDERS["cnn"]())
    for index in range(3):
        Image.new("RGB", (50, 40), (80 * index, 0, 0)).save(tmp_path / f"{index}.png")
    inputs = CalibrationInputs((SIZE, SIZE), str(tmp_path))(model)
    assert inputs.shape == (3, 3, SIZE, SIZE) and float(inputs[0, 0, 0, 0]) == -1.0
    (tmp_path / "0.png").unlink()
    (tmp_path / "1.png").unlink()
    with pytest.raises(ModelError, match="at least two"):
        CalibrationInputs((SIZE, SIZE), str(tmp_path))(model)


# Similarities


@pytest.mark.parametrize("size", [(32, 32), (11, 20), (12, 40)])
def test_structural_similarity_is_scikit_images(size: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    a = torch.rand(size, generator=generator, dtype=torch.float64)
    b = (0.7 * a + 0.3 * torch.rand(size, generator=generator)).double()
    expected = skimage_ssim(
        a.numpy(), b.numpy(), data_range=1.0, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
    )
    assert float(structural_similarity(a, b)) == pytest.approx(expected, abs=1e-9)
    assert float(structural_similarity(a, a)) == pytest.approx(1.0)


def test_structural_similarity_shrinks_its_window_on_small_maps() -> None:
    a = torch.rand(8, 6, dtype=torch.float64)
    assert float(structural_similarity(a, a)) == pytest.approx(1.0)
    assert float(structural_similarity(a, 1 - a)) < 0.2


def test_similarities_of_maps() -> None:
    a, b = torch.randn(16, 16), torch.randn(16, 16).round()
    found = similarities(a, b)
    x, y = a.double().flatten().numpy(), b.double().flatten().numpy()
    assert found["spearman"] == pytest.approx(spearmanr(x, y).statistic)
    assert found["pearson"] == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert found["cosine"] == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
    assert similarities(a, 3 * a) == pytest.approx({"spearman": 1, "pearson": 1, "cosine": 1, "ssim": 1})
    assert set(similarities(a, torch.ones(16, 16)).values()) == {0.0}


# The metrics


def of_method(model: TargetModel, method: str, images: Tensor, class_index: int = 1, **options: Any) -> Case:
    chosen = aha.load_method(method).seeded(0)

    def explain(model: TargetModel, inputs: Tensor, classes: Tensor) -> Tensor:
        maps = chosen(model, inputs, classes).float()
        return nn.functional.interpolate(maps[:, None], size=inputs.shape[-2:], mode="bilinear")[:, 0]

    values = explain(model, images[:1], torch.tensor([class_index]))[0]
    return Case(Sample(model, "image", images[0]), class_index, values, method, explain=explain, **options)


def test_a_map_that_ignores_the_model_stays_the_same(images: Tensor) -> None:
    found = numbers("randomisation(stages=2)", of_method(target(BUILDERS["cnn"]()), "edge_map", images))
    assert found.pop("randomisation_constant") == 0.0
    assert set(found) == {
        f"randomisation_{k}{m}" for k in ("spearman", "pearson", "cosine", "ssim") for m in ("", "_mean")
    }
    assert list(found.values()) == pytest.approx([1.0] * 8)


def test_randomisation_compares_with_every_stage(images: Tensor) -> None:
    model = target(BUILDERS["cnn"]())
    judged = of_method(model, "gradient(channels='sum')", images)
    found = numbers("randomisation", judged)
    inputs = CalibrationInputs((SIZE, SIZE))(model)
    assert judged.explain is not None
    expected = []
    for _, made in randomised_copies(model, 0, calibration=inputs):
        values = judged.explain(made, images[:1], torch.tensor([1]))[0]
        expected.append(spearmanr(judged.values.flatten(), values.flatten()).statistic)
    assert found["randomisation_spearman"] == pytest.approx(expected[-1], abs=1e-6)
    assert found["randomisation_spearman_mean"] == pytest.approx(np.mean(expected), abs=1e-6)
    assert abs(found["randomisation_spearman"]) < 0.3
    signed = found["randomisation_spearman"]
    assert numbers("randomisation(absolute=True)", judged)["randomisation_spearman"] != signed


def test_randomisation_leaves_everything_as_it_was(images: Tensor) -> None:
    module = BUILDERS["vit"]().train()
    judged = of_method(target(module), "grad_cam", images)
    before, around = snapshot(module), surroundings()
    first = numbers("randomisation(stages=3)", judged)
    assert not changes(before, snapshot(module)) and not changes(around, surroundings())
    assert numbers("randomisation(stages=3)", judged) == first


def test_constant_maps_count_as_no_similarity(images: Tensor) -> None:
    judged = of_method(target(BUILDERS["cnn"]()), "gradient", images)
    judged.explain = lambda _model, inputs, _classes: torch.zeros(len(inputs), SIZE, SIZE)
    found = numbers("randomisation(stages=2)", judged)
    assert found.pop("randomisation_constant") == 1.0
    assert set(found.values()) == {0.0}
    judged.explain = lambda _model, inputs, _classes: torch.full((len(inputs), SIZE, SIZE), torch.nan)
    with pytest.raises(MetricError, match="not finite"):
        numbers("randomisation(stages=2)", judged)


def test_class_sensitivity_compares_with_the_other_class(images: Tensor) -> None:
    model = target(BUILDERS["cnn"]())
    judged = of_method(model, "gradient(channels='sum')", images)
    ranked = [c for c in model.outputs(images[:1])[0].argsort().tolist() if c != 1]
    assert judged.explain is not None
    for other, index in (("least", ranked[0]), ("second", ranked[-1])):
        values = judged.explain(model, images[:1], torch.tensor([index]))[0]
        expected = spearmanr(judged.values.flatten(), values.flatten()).statistic
        found = numbers(f"class_sensitivity(other='{other}')", judged)
        assert found["class_sensitivity"] == pytest.approx(expected, abs=1e-6)
    assert numbers("class_sensitivity", of_method(model, "edge_map", images))["class_sensitivity"] == pytest.approx(1.0)


def test_class_sensitivity_needs_a_second_class(images: Tensor) -> None:
    value = target(randomised(TinyCNN(classes=1)), score="regression")
    judged = of_method(value, "gradient", images, class_index=0)
    with pytest.raises(MetricError, match=r"compares classes; .* has one output only"):
        numbers("class_sensitivity", judged)


def test_randomisation_of_networks_with_four_channels() -> None:
    network = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    found = aha.evaluate(aha.load_model(network.eval()), torch.randn(2, 4, SIZE, SIZE), "gradient", "randomisation")
    assert not found.failures and found.rows


def test_class_sensitivity_of_a_single_output_and_of_constant_maps(images: Tensor) -> None:
    single = target(randomised(TinyCNN(classes=1)), score="sigmoid")
    judged = of_method(single, "gradient(channels='sum')", images)
    assert numbers("class_sensitivity", judged)["class_sensitivity"] == pytest.approx(-1.0)
    judged.explain = lambda _model, inputs, _classes: torch.ones(len(inputs), SIZE, SIZE)
    assert numbers("class_sensitivity", judged) == {"class_sensitivity": 0.0}
    judged.values = torch.zeros(SIZE, SIZE)
    with pytest.raises(MetricError, match="both constant"):
        numbers("class_sensitivity", judged)


def test_stability_of_a_method_without_noise_in_it(images: Tensor) -> None:
    linear = target(randomised(nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, CLASSES))))
    found = numbers("stability", of_method(linear, "gradient", images))  # the gradient of a linear model never changes
    assert found["stability_spearman"] == pytest.approx(1.0) and found["stability_change"] == pytest.approx(0, abs=1e-6)


def test_stability_measures_what_it_says(images: Tensor) -> None:
    judged = of_method(target(BUILDERS["cnn"]()), "input_x_gradient", images, seed=5)
    found = numbers("stability(n=3, sigma=0.1)", judged)
    copies = noisy_copies(images[0], 3, 0.1, seed=5)
    noise = (copies - images[0]) / (0.1 * (images[0].max() - images[0].min()))
    assert abs(float(noise.std()) - 1) < 0.05 and not torch.equal(noise[0], noise[1])
    assert judged.explain is not None
    maps = judged.explain(judged.model, copies, torch.tensor([1, 1, 1]))
    ranks = [spearmanr(judged.values.flatten(), values.flatten()).statistic for values in maps]
    sizes = [float((values - judged.values).norm() / judged.values.norm()) for values in maps]
    assert found["stability_spearman"] == pytest.approx(np.mean(ranks), abs=1e-6)
    assert found["stability_change"] == pytest.approx(max(sizes), rel=1e-5)
    assert numbers("stability(n=3, sigma=0.1)", judged) == found


def test_what_cannot_be_explained_again_is_refused(images: Tensor) -> None:
    judged = of_method(target(BUILDERS["cnn"]()), "gradient", images)
    judged.explain = None
    for name in ("randomisation", "class_sensitivity", "stability"):
        assert load_metric(name).needs == {"method"}
        with pytest.raises(MetricError, match="needs the method"):
            load_metric(name)(judged)
    for text in ("stability(n=0)", "stability(sigma=0.0)", "randomisation(stages=-1)"):
        with pytest.raises(SpecError):
            load_metric(text)

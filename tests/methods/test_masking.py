"""The engine of the black-box methods: which images are run, how often, and what is read from the outputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import aha
from aha.errors import MissingExtra, ModelError, SpecError
from aha.methods import load_method
from aha.models import load_model
from aha.models.running.memory import Chunks
from aha.models.scores import SCORES
from aha.perturb.masking import MaskedModel, explain_each
from aha.perturb.partitions import Patches, Slic
from aha.perturb.references import load_reference, reference_inputs
from fakes import CLASSES, SIZE, Hungry, TinyCNN, plain_module, randomised

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)

BLACK_BOX = [
    "occlusion(window=8, stride=8)",
    "rise(n=30)",
    "lime(n=30, parts=patches(grid=3))",
    "kernel_shap(n=40, parts=patches(grid=4))",
    "shapley_sampling(orders=2, parts=patches(grid=4))",
    "simple_insertion(grid=4, reference=zeros_normalised)",
    "simple_deletion(grid=4, reference=zeros_normalised)",
]


@pytest.fixture
def module() -> nn.Module:
    return randomised(TinyCNN())


@pytest.mark.parametrize("method", BLACK_BOX)
def test_classes_of_one_image_share_its_forward_passes(module: nn.Module, images: Tensor, method: str) -> None:
    model = load_model(module)
    costs = []
    for target in (2, [[0, 1, 2, 4]] * 2):
        model.passes.clear()
        aha.explain(model, images[:2], method, target)
        costs.append(model.passes["forward"])
    assert costs[0] == costs[1]
    assert model.passes["backward"] == 0


@pytest.mark.parametrize("method", BLACK_BOX)
def test_memory_that_runs_out_is_no_matter(module: nn.Module, images: Tensor, method: str) -> None:
    expected = aha.explain(module, images[:2], method).maps
    hungry = Hungry(module, most=3)
    found = aha.explain(load_model(hungry, batch_size=8), images[:2], method).maps
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    most = max(hungry.batches)
    assert most in (7, 8), "a chunk may hold the picture itself, whose answer is known"
    assert hungry.batches.count(most) <= 2, "the size that fitted is remembered"


@pytest.mark.parametrize("method", BLACK_BOX)
def test_an_interrupt_passes(images: Tensor, method: str) -> None:
    class Interrupted(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == 4:
                raise KeyboardInterrupt
            return x.mean(dim=(2, 3))

    module = Interrupted()
    model = load_model(module, batch_size=4)
    with pytest.raises(KeyboardInterrupt):
        aha.explain(model, images[:1], method)
    assert module.calls == 4


def test_masks_mix_image_and_blank(images: Tensor) -> None:
    seen: list[Tensor] = []

    class Watcher(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.clone())
            return x.flatten(1)[:, :CLASSES]

    blank = torch.full_like(images[0], 9.0)
    masks = torch.rand(5, SIZE, SIZE)
    masks[0], masks[1] = 0, 1
    masked = MaskedModel(load_model(Watcher(), batch_size=2), images[0], blank, torch.tensor([0, 3]), SCORES["logit"])
    scores = masked.scores(lambda part: masks[part], 5)
    shown = torch.cat(seen)
    expected = masks[:, None] * images[0] + (1 - masks[:, None]) * blank
    assert torch.allclose(shown, expected, atol=1e-6)
    assert torch.equal(shown[0], blank)
    assert torch.equal(shown[1], images[0])
    assert torch.equal(scores, shown.flatten(1)[:, [0, 3]])
    assert [len(batch) for batch in seen] == [2, 2, 1]
    assert torch.equal(masked.scores_at(0.0, 1.0), torch.stack([blank.flatten()[[0, 3]], images[0].flatten()[[0, 3]]]))
    assert masked.scores(lambda part: masks[part], 0).shape == (0, 2)


@pytest.mark.parametrize("scale", ["score", "logit"])
def test_the_chosen_scale_is_read(module: nn.Module, images: Tensor, scale: str) -> None:
    model = load_model(module)
    found = explain_each(
        lambda masked: masked.scores_at(1.0).T[:, :, None],
        model,
        images,
        torch.tensor([0, 1, 2, 4]),
        scale=scale,  # type: ignore[arg-type]
    )
    logits = module(images)
    expected = (logits.softmax(dim=1) if scale == "score" else logits)[range(4), [0, 1, 2, 4]]
    assert torch.allclose(found[:, 0, 0], expected, atol=1e-6)


def test_references_that_depend_on_the_class_are_different_questions(images: Tensor) -> None:
    model = load_model(randomised(TinyCNN()), input_size=SIZE, mean=MEAN, std=STD)
    inputs = images[:1].repeat(3, 1, 1, 1)
    blanks = torch.stack([torch.zeros_like(images[0]), torch.ones_like(images[0]), torch.ones_like(images[0])])
    asked: list[int] = []

    class ByClass(type(load_reference("black"))):  # type: ignore[misc]
        def __call__(self, model: aha.TargetModel, pixels: Tensor, classes: Tensor) -> Tensor:
            return blanks

    def count(masked: MaskedModel) -> Tensor:
        asked.append(len(masked.classes))
        return torch.zeros(len(masked.classes), 1, 1)

    explain_each(count, model, inputs, torch.arange(3), ByClass())
    assert asked == [1, 2]


def test_references_are_model_inputs(module: nn.Module, images: Tensor) -> None:
    stated = load_model(module, input_size=SIZE, mean=MEAN, std=STD)
    classes = torch.zeros(4, dtype=torch.long)
    white = reference_inputs(load_reference("white"), stated, images, classes)
    for channel in range(3):
        assert torch.allclose(white[:, channel], torch.tensor((1 - MEAN[channel]) / STD[channel]))
    assert not reference_inputs(load_reference("zeros_normalised"), load_model(module), images, classes).any()
    with pytest.raises(SpecError, match="state input_size, mean and std"):
        reference_inputs(load_reference("white"), load_model(module), images, classes)


def test_chunks_stream_what_they_run() -> None:
    chunks, seen = Chunks(4), []
    stream = chunks.stream(lambda part: seen.append(part) or part.stop, 10)  # type: ignore[func-returns-value]
    assert seen == []
    assert next(stream) == 4
    assert len(seen) == 1, "the next chunk runs when it is asked for"
    assert [4, *stream] == chunks.run(lambda part: part.stop, 10) == [4, 8, 10]
    with pytest.raises(ModelError, match="single image"):
        Chunks(2).run(lambda _: (_ for _ in ()).throw(MemoryError()), 2)


# Parts of an image


@pytest.mark.parametrize(("size", "grid"), [((32, 32), 4), ((32, 32), 14), ((30, 45), 7), ((5, 9), 5), ((8, 8), 1)])
def test_patches(size: tuple[int, int], grid: int) -> None:
    index = Patches(grid)(load_model(plain_module()), torch.zeros(3, *size))
    assert index.shape == size
    counts = index.unique(return_counts=True)
    assert counts[0].tolist() == list(range(grid**2))
    down, across = index[:, 0].unique(return_counts=True)[1], index[0].unique(return_counts=True)[1]
    assert down.max() - down.min() <= 1
    assert across.max() - across.min() <= 1
    assert Patches(grid).as_map(torch.arange(grid**2), index)[-1, 0] == grid * (grid - 1)


def test_superpixels_follow_colours(images: Tensor) -> None:
    pytest.importorskip("skimage")
    picture = torch.zeros(3, SIZE, SIZE)
    picture[0, :, 11:] = 1.0
    picture[1, 20:, 11:] = 1.0
    stated = load_model(plain_module(), input_size=SIZE, mean=MEAN, std=STD)
    for model, image in ((stated, stated.to_inputs(picture)), (load_model(plain_module()), picture)):
        index = Slic(n=9, sigma=0)(model, image)
        assert index.unique().tolist() == list(range(int(index.max()) + 1))
        for part in range(int(index.max()) + 1):
            assert len(picture[:, index == part].unique(dim=1)[0]) == 1, "a part has one colour"
    grey = Slic(n=9)(load_model(plain_module()), images[0, :1])
    assert grey.shape == (SIZE, SIZE)


@pytest.mark.parametrize("name", ["lime", "kernel_shap", "shapley_sampling"])
def test_superpixel_maps_are_flat_on_superpixels(module: nn.Module, images: Tensor, name: str) -> None:
    pytest.importorskip("skimage")
    amount = "orders=2" if name == "shapley_sampling" else "n=100"
    maps = aha.explain(module, images[:2], f"{name}({amount}, parts=slic(n=9))").maps
    for image, values in zip(images, maps, strict=False):
        index = Slic(n=9)(load_model(module), image)
        assert len(values.unique()) == int(index.max()) + 1
        assert all(len(values[index == part].unique()) == 1 for part in range(int(index.max()) + 1))


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, images: Tensor) -> None:
    monkeypatch.setitem(__import__("sys").modules, "skimage.segmentation", None)
    with pytest.raises(MissingExtra, match=r"aha-attribution\[superpixels\]"):
        aha.explain(randomised(TinyCNN()), images[:1], "lime(n=20, parts=slic)")


# Refusals


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("occlusion(stride=0)", "stride"),
        ("occlusion(window=8, stride=9)", "window=8"),
        ("rise(n=0)", "n must be a whole number of at least 1, not 0"),
        ("rise(p=1.0)", "p must be a number above 0 and below 1, not 1.0"),
        ("lime(n=1)", "n must be a whole number of at least 2, not 1"),
        ("lime(kernel_width=0)", "kernel_width"),
        ("lime(parts=patches(grid=0))", "grid"),
        ("lime(parts=slic(n=0))", "slic"),
        ("lime(parts=black)", "parts must be a partition"),
        ("kernel_shap(n=1)", "n must be"),
        ("shapley_sampling(orders=0)", "orders"),
        ("simple_insertion(window=2)", "window"),
        ("simple_deletion(grid=0)", "grid"),
    ],
)
def test_bad_parameters_are_refused(text: str, says: str) -> None:
    with pytest.raises(SpecError, match=says) as caught:
        load_method(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("occlusion(window=33)", "larger than the image"),
        ("lime(n=20, parts=patches(grid=33))", "does not fit"),
        ("kernel_shap(n=100, parts=patches(grid=8))", "at least 128"),
        ("simple_insertion(grid=33, reference=zeros_normalised)", "does not fit"),
        ("simple_insertion", "state input_size, mean and std"),
    ],
)
def test_parameters_that_do_not_fit_the_image_are_refused(
    module: nn.Module, images: Tensor, text: str, says: str
) -> None:
    with pytest.raises(SpecError, match=says):
        aha.explain(module, images, text)

"""Which classes are explained: every way of asking gives the classes that were meant, or one clear line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import aha
from aha.data.targets import resolve_targets, top_classes
from aha.errors import MapWarning, SpecError, TargetError
from aha.models import TargetModel, load_model
from aha.models.loading.class_names import index_of
from aha.models.loading.metadata import imagenet_names
from fakes import CLASSES, SIZE, LinearModel, TinyCNN, randomised

NAMES = ["Ant", "bee", "great white shark", "dog", "top1"]


@pytest.fixture
def model() -> TargetModel:
    return load_model(randomised(TinyCNN()), input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3, class_names=NAMES)


@pytest.fixture
def outputs() -> Tensor:
    return torch.tensor([[0.0, 3.0, 1.0, 2.0, -1.0], [5.0, 4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0]])


ONE_FOR_ALL: list[Any] = [3, "3", "dog", "DOG", np.int64(3), torch.tensor(3)]
ONE_EACH: list[Any] = [
    [1, 0, 4],
    (1, 0, 4),
    torch.tensor([1, 0, 4]),
    np.array([1, 0, 4]),
    torch.tensor([[1], [0], [4]]),
    np.array([[1], [0], [4]]),
    [[1], [0], [4]],
    [np.int64(1), torch.tensor(0), 4],
    ["bee", "ant", 4],
]


@pytest.mark.parametrize("target", ONE_FOR_ALL, ids=repr)
def test_one_class_for_all(target: Any, model: TargetModel, outputs: Tensor) -> None:
    assert resolve_targets(target, model, outputs, None) == [[3], [3], [3]]


@pytest.mark.parametrize("target", ONE_EACH, ids=repr)
def test_one_class_for_each(target: Any, model: TargetModel, outputs: Tensor) -> None:
    assert resolve_targets(target, model, outputs, None, total=3) == [[1], [0], [4]]
    assert resolve_targets(target, model, outputs, None) == [[1], [0], [4]]


def test_several_classes(model: TargetModel, outputs: Tensor) -> None:
    assert resolve_targets([[1, 2], [0], [4, 4, 3]], model, outputs, None) == [[1, 2], [0], [4, 4, 3]]
    one = outputs[:1]
    assert resolve_targets([[1, 2]], model, one, None, total=1) == [[1, 2]]
    assert resolve_targets([["bee", "dog"]], model, one, None, total=1) == [[1, 3]]
    assert resolve_targets("bee, dog", model, one, None, total=1) == [[1, 3]]


@pytest.mark.parametrize("target", [["bee", "dog"], [1, 3], torch.tensor([1, 3])], ids=repr)
def test_a_list_is_one_class_per_image_however_many_images_there_are(
    target: Any, model: TargetModel, outputs: Tensor
) -> None:
    assert resolve_targets(target, model, outputs[:2], None, total=2) == [[1], [3]]
    assert resolve_targets(target[:1], model, outputs[:1], None, total=1) == [[1]]
    with pytest.raises(TargetError, match=r"2 targets for 1 image; .* as a list in the list: \[\["):
        resolve_targets(target, model, outputs[:1], None, total=1)


def test_the_best_classes(model: TargetModel, outputs: Tensor) -> None:
    assert resolve_targets("top1", model, outputs, None) == [[1], [0], [4]]
    assert resolve_targets("top3", model, outputs, None) == [[1, 3, 2], [0, 1, 2], [4, 3, 2]]
    assert resolve_targets("top5", model, outputs, None)[1] == [0, 1, 2, 3, 4]


def test_the_best_class_of_a_single_output() -> None:
    outputs = torch.tensor([[2.0], [-3.0]])
    assert top_classes(outputs, 1).tolist() == [[1], [0]]
    assert top_classes(outputs, 2).tolist() == [[1, 0], [0, 1]]
    assert top_classes(outputs, 1, num_classes=1).tolist() == [[0], [0]]


def test_true_classes(model: TargetModel, outputs: Tensor) -> None:
    assert resolve_targets("label", model, outputs, torch.tensor([4, 0, 2])) == [[4], [0], [2]]
    with pytest.raises(TargetError, match="needs labels: pass labels="):
        resolve_targets("label", model, outputs, None)


def test_later_batches_take_their_own_part(model: TargetModel, outputs: Tensor) -> None:
    target = [[0], [1], [2], [3], [4], [0, 1]]
    assert resolve_targets(target, model, outputs, None, first=3, total=6) == [[3], [4], [0, 1]]
    assert resolve_targets(target, model, outputs, None, positions=[1, 4, 5]) == [[1], [4], [0, 1]]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (5, "class 5 does not exist; module:TinyCNN has classes 0 to 4"),
        (-1, "class -1 does not exist"),
        ("5", "class 5 does not exist"),
        ("9" * 40, "does not exist"),
        (10**30, "does not exist"),
        ([0, 1, 7], "class 7 does not exist"),
        ("top6", "target='top6' asks for 6 classes; module:TinyCNN has 5"),
        ("top0", "asks for 0 classes"),
        ("shrak", "unknown target 'shrak'"),
        ("white", "did you mean great white shark"),
        ("great white shrk", "did you mean great white shark"),
        ("zzz", "write top1, top5, label, a class index or a class name"),
        ("", "unknown target ''"),
        ([0, 1], "2 targets for 3 images; give one per image, or a list of classes for each"),
        ([0, 1, 2, 3], "4 targets for 3 images"),
        ([], "0 targets for 3 images"),
        ([[0], [], [1]], "empty list of classes"),
        (1.0, "1.0 is not a class"),
        ([0, 1.5, 2], "1.5 is not a class"),
        (True, "True is not a class"),
        (None, "None is not a class"),
        ([0, None, 1], "None is not a class"),
        (torch.tensor([0.5, 1.0, 2.0]), "0.5 is not a class"),
        ({"a": 1}, "is not a class"),
        ([["bee"], ["be"], [0]], "did you mean bee"),
    ],
)
def test_what_cannot_be_explained(target: Any, says: str, model: TargetModel, outputs: Tensor) -> None:
    with pytest.raises(TargetError, match=says) as caught:
        model._num_classes = CLASSES
        resolve_targets(target, model, outputs, None, total=3)
    assert "\n" not in str(caught.value)


def test_too_few_targets_show_when_they_run_out(model: TargetModel, outputs: Tensor) -> None:
    with pytest.raises(TargetError, match="4 targets are too few; image number 5 has none"):
        resolve_targets([0, 1, 2, 3], model, outputs, None, first=3)


def test_a_name_that_is_a_word_of_ours_is_reached_by_its_number(model: TargetModel, outputs: Tensor) -> None:
    assert resolve_targets("top1", model, outputs, None)[0] == [1]
    assert model.class_index("4") == 4


def test_targets_reach_the_explanation(images: Tensor) -> None:
    model = load_model(LinearModel(), class_names=NAMES)
    found = aha.explain(model, images, "gradient(channels='sum')", target=[[0, 4], [1], [2], [3]], batch_size=2)
    assert found.targets.tolist() == [0, 4, 1, 2, 3]
    assert found.labels == ["Ant", "top1", "bee", "great white shark", "dog"]
    assert [subject.name for subject in found.subjects] == [f"image-{i}" for i in (0, 0, 1, 2, 3)]
    weights = model.module.linear.weight.detach().view(CLASSES, 3, SIZE, SIZE).sum(dim=1)
    assert torch.allclose(found.maps, weights[[0, 4, 1, 2, 3]], atol=1e-6)
    labelled = aha.explain(model, images, "gradient", target="label", labels=[3, 3, 0, 1])
    assert labelled.targets.tolist() == [3, 3, 0, 1]


def test_words_inside_imagenets_names() -> None:
    names = imagenet_names()
    with pytest.raises(TargetError, match=r"unknown target 'cat'; did you mean tabby, tiger cat, .*Egyptian cat"):
        index_of("cat", names)
    assert index_of("tabby cat", names) == index_of("Tabby", names) == 281  # another name of the same class
    with pytest.raises(TargetError, match=r"did you mean .*retriever"):
        index_of("retriever", names)
    for misspelt, meant in (
        ("catt", "tabby, tiger cat"),
        ("Persion cat", "Persian cat"),
        ("goldn retriever", "golden"),
    ):
        with pytest.raises(TargetError, match=f"did you mean .*{meant}"):
            index_of(misspelt, names)


def test_classes_of_a_contrast_by_name(model: TargetModel, images: Tensor) -> None:
    first, second = (model.class_names or ())[:2]
    by_name = aha.explain(model, images, f"var(gradient, classes=[{first!r}, {second!r}])", target=0)
    assert torch.equal(by_name.maps, aha.explain(model, images, "var(gradient, classes=[0, 1])", target=0).maps)
    with pytest.raises(TargetError, match="unknown target 'nobody'"):
        aha.explain(model, images, "var(gradient, classes=['nobody', 1])")
    with pytest.raises(SpecError, match="name a class twice"):
        aha.explain(model, images, f"var(gradient, classes=[0, {first!r}])")


def test_bytes_are_no_class(model: TargetModel, outputs: Tensor) -> None:
    """They are sequences of numbers in Python: b"1" would be class 49."""
    for target in (b"1", bytearray(b"1"), [b"1", 0, 0]):
        with pytest.raises(TargetError, match="not a class"):
            resolve_targets(target, model, outputs, None)  # type: ignore[arg-type]


def test_what_is_no_number_is_not_the_largest() -> None:
    outputs = torch.tensor([[1.0, torch.nan, 3.0], [torch.nan] * 3])
    assert top_classes(outputs, 2)[0].tolist() == [2, 0]


def test_outputs_that_are_no_numbers_are_spoken_of() -> None:
    class OneBad(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(dim=(2, 3)) * torch.tensor([1.0, torch.nan, 2.0])

    images = torch.rand(2, 3, SIZE, SIZE)
    with pytest.warns(MapWarning, match="outputs are NaN or infinite"):
        found = aha.explain(OneBad(), images, "center_map")
    assert 1 not in found.targets.tolist()

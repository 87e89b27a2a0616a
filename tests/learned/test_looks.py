"""Maps that are corrected by more looks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import aha
from aha.errors import ModelError, SpecError
from aha.learned import universal
from aha.learned.explainer import Explainer
from aha.learned.looks import Whole, contrast_maps, part_evidence, top_pixels
from aha.learned.settings import Design, load_settings
from aha.methods.aha import AHA
from aha.models import TargetModel, load_model
from command_line import pictures
from fakes import TinyCNN, changes, randomised, snapshot, tiny_vit

SIZE = 64
STATED = {"input_size": SIZE, "mean": [0.5] * 3, "std": [0.5] * 3}


def cnn() -> TargetModel:
    return load_model(randomised(TinyCNN(), seed=1), **STATED)


def vit() -> TargetModel:
    return load_model(randomised(tiny_vit(), seed=1), **(STATED | {"input_size": 32}))


def explainer_for(target: TargetModel) -> Explainer:
    """A fresh one whose corrections are large enough to be seen."""
    found = Explainer.for_target(target, Design(form="universal", revise=True, width=16))
    assert found.revision is not None
    for head in found.revision.heads:
        torch.nn.init.normal_(head.draw.weight, generator=torch.Generator().manual_seed(3))
    return found


def images_for(target: TargetModel, count: int = 3) -> Tensor:
    size = target.stated_preprocessing().size
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(0))


def whole(target: TargetModel, images: Tensor, classes: Tensor) -> Whole:
    captured = universal.captures(target, images.shape[1:])
    trace = target.trace(images, features=captured.features, tokens=captured.tokens, attention=captured.attention)
    return Whole.read(target, trace, images, classes)


def test_the_top_share_of_the_pixels_is_cut_out() -> None:
    maps = torch.arange(200.0).view(2, 10, 10)
    top = top_pixels(maps, 0.2)
    assert top.sum(dim=(1, 2)).tolist() == [20, 20]
    assert top[:, 8:].all() and not top[:, :8].any()


def test_what_giving_back_would_add_is_zero_where_nothing_was_taken() -> None:
    f, g = torch.rand(2, 4, 5, 5), torch.rand(2, 4, 5, 5)
    before = f.clone()
    before[:, :, 1, 2] += 3
    maps = contrast_maps(before, f, g)
    flat = maps[:, 0].flatten(1)
    assert (flat.argmax(dim=1) == 7).all()
    assert torch.allclose(flat[:, :7], flat[:, :1].expand(-1, 7))  # all other locations are alike


def test_evidence_of_the_whole_image_against_itself_is_nothing() -> None:
    target = cnn()
    images, classes = images_for(target), torch.tensor([0, 1, 2])
    known = whole(target, images, classes)
    levels, _ = part_evidence(target, torch.cat([images, images]), torch.cat([classes, classes]), known)
    there = [level for level, features in zip(levels, known.features, strict=True) if features is not None]
    assert there and all(level[:, :2].abs().max() == 0 for level in there)
    assert any(level[:, 2].abs().max() > 0 for level in there)


@pytest.mark.parametrize("make", [cnn, vit])
def test_a_batch_gives_what_single_images_give(make: Callable[[], TargetModel]) -> None:
    target = make()
    explainer, images, classes = explainer_for(target), images_for(target), torch.tensor([0, 1, 2])
    before = snapshot(target.module)
    together = explainer.maps(target, images, classes, explainer)
    alone = [explainer.maps(target, images[i : i + 1], classes[i : i + 1], explainer) for i in range(3)]
    assert torch.allclose(together, torch.cat(alone), atol=1e-4)
    assert not torch.allclose(together, explainer.maps(target, images, classes), atol=1e-2)
    assert not changes(before, snapshot(target.module))


def test_passes_are_counted_as_the_cost_says(tmp_path: Path) -> None:
    target = cnn()
    explainer_for(target).save_pretrained(tmp_path)
    for looks in (1, 3, 5, 11):
        method = AHA(explainer=str(tmp_path), looks=looks)
        before = target.passes.total()
        method(target, images_for(target, 1), torch.tensor([0]))
        assert target.passes.total() - before == method.cost(target, (SIZE, SIZE)).passes == 2 * looks


def test_refinement_starts_from_the_better_map(tmp_path: Path) -> None:
    target = cnn()
    explainer_for(target).save_pretrained(tmp_path)
    images, classes = images_for(target), torch.tensor([0, 1, 2])
    looked = AHA(explainer=str(tmp_path), looks=3, calibrated=False)(target, images, classes)
    still = AHA(explainer=str(tmp_path), looks=3, refine=1, learning_rate=1e-9, calibrated=False)
    assert torch.allclose(still(target, images, classes), looked, atol=1e-3)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="looks is an odd number"):
        AHA(looks=2)
    target = cnn()
    explainer = Explainer.for_target(target, Design(form="universal", width=8))
    with pytest.raises(ModelError, match="has learned no correction"):
        explainer.maps(target, images_for(target), torch.tensor([0, 1, 2]), explainer)


def test_saved_and_read_again(tmp_path: Path) -> None:
    target = cnn()
    explainer = explainer_for(target)
    again = Explainer.from_pretrained(explainer.save_pretrained(tmp_path))
    assert again.digest == explainer.digest and again.revision is not None
    images, classes = images_for(target), torch.tensor([0, 1, 2])
    assert torch.equal(again.maps(target, images, classes, again), explainer.maps(target, images, classes, explainer))


def test_training_leaves_the_first_look_as_it_is(tmp_path: Path) -> None:
    target = cnn()
    folder = pictures(tmp_path / "images", 6)
    start = Explainer.for_target(target, Design(form="universal", width=8)).save_pretrained(tmp_path / "start")
    changed = ["steps=3", "batch_size=2", "width=8", "validation_images=2", "validation_steps=2", "vary=0"]
    settings = load_settings("looks", changed)
    aha.train([target, target], folder, tmp_path / "run", settings=settings, start=start)
    trained = Explainer.from_pretrained(tmp_path / "run" / "last")  # the best one may be the start
    first = Explainer.from_pretrained(start)
    for name, value in first.decoder.state_dict().items():
        assert torch.equal(value, trained.decoder.state_dict()[name])
    fresh = Explainer.for_target(target, settings.design)
    assert trained.revision is not None and fresh.revision is not None
    assert any(
        not torch.equal(a, b) for a, b in zip(trained.revision.parameters(), fresh.revision.parameters(), strict=True)
    )

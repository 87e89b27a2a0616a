"""References that depend on which pixels are removed, and those made of patches, against independent answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import aha
from aha.errors import SpecError
from aha.learned.training.references import blanks_of
from aha.metrics import Case, Sample, load_metric
from aha.perturb.filling import filled_softly
from aha.perturb.imputation import imputed
from aha.perturb.references import REFERENCES, load_reference
from fakes import SIZE, TinyCNN, randomised

FILLING = ["imputed", "inpainted(shrink=1)"]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def dense(picture: Tensor, keep: Tensor) -> Tensor:
    """The published equations, one removed pixel after the other, solved by numpy."""
    channels, height, width = picture.shape
    gone = [(y, x) for y in range(height) for x in range(width) if not keep[y, x]]
    number = {place: row for row, place in enumerate(gone)}
    matrix, right = np.zeros((len(gone), len(gone))), np.zeros((len(gone), channels))
    for (y, x), row in number.items():
        for dy in (-1, 0, 1):
            for dx in (-1, 0, 1):
                there = (y + dy, x + dx)
                if (dy, dx) == (0, 0) or not (0 <= there[0] < height and 0 <= there[1] < width):
                    continue
                weight = 1 / 6 if dy == 0 or dx == 0 else 1 / 12
                matrix[row, row] -= weight
                if there in number:
                    matrix[row, number[there]] += weight
                else:
                    right[row] -= weight * picture[:, there[0], there[1]].numpy()
    found = picture.clone()
    for (y, x), values in zip(gone, np.linalg.solve(matrix, right), strict=True):
        found[:, y, x] = torch.from_numpy(values)
    return found


@pytest.mark.parametrize(("height", "width"), [(5, 4), (17, 19), (32, 24)])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_imputation_solves_the_published_system(height: int, width: int, share: float) -> None:
    pictures = torch.rand(3, 2, height, width, generator=seeded(1)).double()
    order = torch.rand(3, height, width, generator=seeded(2))
    order[1] = -(torch.arange(height)[:, None] + torch.arange(width)).float()  # a hole in one piece
    keep = order < order.flatten(1).quantile(1 - share, dim=1)[:, None, None]
    found = imputed(pictures, keep)
    expected = torch.stack([dense(picture, mask) for picture, mask in zip(pictures, keep, strict=True)])
    assert torch.allclose(found, expected, atol=2e-4)
    assert torch.equal(found[keep[:, None].expand_as(found)], pictures[keep[:, None].expand_as(pictures)])


def test_imputation_gives_the_values_of_the_published_code() -> None:
    """By hand: a hole in the middle, one in a corner, and two beside each other."""
    picture = torch.arange(9.0).view(1, 1, 3, 3) ** 2  # 0 1 4 / 9 16 25 / 36 49 64
    keep = torch.ones(1, 3, 3, dtype=torch.bool)
    middle, corner, pair = keep.clone(), keep.clone(), keep.clone()
    middle[0, 1, 1], corner[0, 0, 0], pair[0, 0, :2] = False, False, False
    assert float(imputed(picture, middle)[0, 0, 1, 1]) == pytest.approx((1 + 9 + 25 + 49) / 6 + (4 + 36 + 64) / 12)
    # Without what lies beyond the border: two direct neighbours and a diagonal one, 5/12 in all.
    assert float(imputed(picture, corner)[0, 0, 0, 0]) == pytest.approx(((1 + 9) / 6 + 16 / 12) / (5 / 12))
    # 5/12 a = b/6 + 9/6 + 16/12 and 8/12 b = a/6 + 4/6 + 16/6 + (9 + 25)/12
    a, b = np.linalg.solve([[5 / 12, -1 / 6], [-1 / 6, 8 / 12]], [9 / 6 + 16 / 12, 4 / 6 + 16 / 6 + 34 / 12])
    assert imputed(picture, pair)[0, 0, 0, :2].tolist() == pytest.approx([a, b], abs=1e-3)


def test_a_picture_is_imputed_as_if_it_were_alone() -> None:
    pictures = torch.rand(4, 3, 40, 40, generator=seeded(3))
    keep = torch.rand(4, 40, 40, generator=seeded(4)) < torch.tensor([0.9, 0.5, 0.1, 0.005])[:, None, None]
    together = imputed(pictures, keep)
    alone = torch.cat([imputed(pictures[row : row + 1], keep[row : row + 1]) for row in range(4)])
    assert torch.allclose(together, alone, atol=1e-6)


def test_the_noise_is_on_removed_pixels_alone_and_seeded() -> None:
    pictures, keep = torch.full((1, 3, 64, 64), 0.5), torch.rand(1, 64, 64, generator=seeded(5)) < 0.5
    found = [load_reference(f"imputed(noise=0.1, seed={seed})").fill(pictures, keep) for seed in (0, 0, 1)]
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    assert torch.equal(found[0].permute(0, 2, 3, 1)[keep], pictures.permute(0, 2, 3, 1)[keep])
    changed = (found[0] - pictures).permute(0, 2, 3, 1)[~keep]
    assert float(changed.std()) == pytest.approx(0.1, rel=0.05) and abs(float(changed.mean())) < 0.01


def test_inpainting_is_that_of_scikit_image() -> None:
    inpaint = pytest.importorskip("skimage.restoration").inpaint_biharmonic
    picture, keep = torch.rand(1, 3, 12, 12, generator=seeded(6)), torch.ones(1, 12, 12, dtype=torch.bool)
    keep[0, 3:8, 4:9] = False
    found = load_reference("inpainted(shrink=1)").fill(picture, keep)[0]
    expected = inpaint(picture[0].permute(1, 2, 0).double().numpy(), ~keep[0].numpy(), channel_axis=-1)
    assert torch.allclose(found, torch.from_numpy(expected).permute(2, 0, 1).float(), atol=1e-5)


@pytest.mark.parametrize("text", ["imputed(noise=0.0)", "inpainted(shrink=1)", "inpainted", "inpainted(shrink=50)"])
def test_holes_in_one_colour_are_filled_with_it(text: str) -> None:
    pictures = torch.tensor([0.2, 0.5, 0.7]).view(1, 3, 1, 1).expand(2, 3, 30, 26)
    keep = torch.rand(2, 30, 26, generator=seeded(7)) < torch.tensor([0.8, 0.05])[:, None, None]
    assert torch.allclose(load_reference(text).fill(pictures, keep), pictures, atol=1e-4)


@pytest.mark.parametrize("text", FILLING)
def test_where_nothing_is_left_there_is_the_mean_colour(text: str) -> None:
    pictures = torch.rand(2, 3, 16, 16, generator=seeded(8))
    found = load_reference(text)(aha.load_model(randomised(TinyCNN())), pictures, torch.zeros(2).long())
    assert torch.allclose(found.mean(dim=(2, 3)), pictures.mean(dim=(2, 3)), atol=2e-3)
    assert float(found.std(dim=(2, 3)).max()) < 0.02


class Seen(nn.Module):
    """Remembers the images that it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, generator=seeded(9)))
        self.shown: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        self.shown += list(images.detach())
        return images.mean(dim=(2, 3)) * self.weight


def test_metrics_show_what_was_filled_in() -> None:
    module = Seen()
    model = aha.load_model(module, input_size=16, mean=[0.0] * 3, std=[1.0] * 3)
    picture = torch.rand(3, 16, 16, generator=seeded(10))
    case = Case(Sample(model, "seen", picture), 0, torch.rand(16, 16, generator=seeded(11)))
    load_metric("deletion(fractions=(0.25, 0.5), references=(imputed(noise=0.0), black))")(case)
    keep = case.ranks() >= 64
    expected = dense(picture.double(), keep).float()
    assert any(torch.allclose(image, expected, atol=2e-4) for image in module.shown)
    assert any(torch.equal(image, picture * keep) for image in module.shown)  # beside it, black stays black


@pytest.mark.parametrize("text", ["occlusion(window=8, stride=8, {})", "lime(n=4, parts=patches(grid=2), {})"])
def test_masking_methods_show_what_was_filled_in(text: str) -> None:
    module = Seen()
    picture = torch.rand(1, 3, 16, 16, generator=seeded(12))
    aha.explain(module, picture, text.format("reference=imputed(noise=0.0)"), target=0)
    corner = torch.ones(16, 16, dtype=torch.bool)
    corner[:8, :8] = False
    if text.startswith("occlusion"):
        expected = dense(picture[0].double(), corner).float()
        assert any(torch.allclose(image, expected, atol=2e-4) for image in module.shown)
    mean = picture.mean(dim=(2, 3))[0]
    halves = [image for image in module.shown if bool((image == picture[0]).any() & (image != picture[0]).any())]
    assert halves and not any(torch.allclose(image[:, :4, :4].mean(dim=(1, 2)), mean, atol=1e-6) for image in halves)


@pytest.mark.parametrize("name", ["search(parts=patches(grid=2), budget=200, {})", "mda(grid=2, insertion={r}, {})"])
def test_searches_take_them(name: str) -> None:
    model = aha.load_model(randomised(TinyCNN()), input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
    text = name.replace("{r}", "imputed").format("deletion=imputed" if name.startswith("mda") else "reference=imputed")
    found = aha.explain(model, torch.randn(1, 3, SIZE, SIZE, generator=seeded(13)), text, target=1)
    assert found.maps.isfinite().all()


# Patches


@pytest.mark.parametrize("size", [(28, 28), (30, 23)])
def test_shuffled_moves_every_patch(size: tuple[int, int]) -> None:
    model = aha.load_model(randomised(TinyCNN()))
    picture = torch.arange(size[0] * size[1]).view(1, 1, *size).float()
    for text in ("shuffled(grid=7)", "shuffled(grid=None)"):
        found = load_reference(text)(model, picture, torch.zeros(1).long())
        assert not bool((found == picture).any()) and set(found.flatten().tolist()) <= set(picture.flatten().tolist())
        assert torch.equal(found, load_reference(text)(model, picture, torch.zeros(1).long()))
        assert not torch.equal(found, load_reference(text[:-1] + ", seed=1)")(model, picture, torch.zeros(1).long()))
    alone = load_reference("shuffled(grid=None)")(model, picture, torch.zeros(1).long())
    assert alone.flatten().sort().values.tolist() == picture.flatten().tolist()  # nothing is lost, nothing comes twice
    if size == (28, 28):
        patches = load_reference("shuffled(grid=7)")(model, picture, torch.zeros(1).long())
        assert set(patches.unfold(2, 4, 4).unfold(3, 4, 4).diff(dim=-1).unique().tolist()) == {1.0}


def test_neighbours_come_from_the_other_images_of_the_batch() -> None:
    model = aha.load_model(randomised(TinyCNN()))
    colours = torch.tensor([1.0, 1.0, 2.0, 3.0]).view(4, 1, 1, 1).expand(4, 3, 14, 14)  # two classes of the first
    found = load_reference("neighbours")(model, colours, torch.zeros(4).long())
    assert [set(image.unique().tolist()) for image in found] == [{2.0, 3.0}, {2.0, 3.0}, {1.0, 3.0}, {1.0, 2.0}]


def test_neighbours_of_one_image_need_files(tmp_path: Path) -> None:
    model = aha.load_model(randomised(TinyCNN()), input_size=16, mean=(0.5,) * 3, std=(0.5,) * 3)
    with pytest.raises(SpecError, match=r"neighbours needs other images.*files="):
        load_reference("neighbours")(model, torch.rand(1, 3, 16, 16), torch.zeros(1).long())
    for name, colour in (("a", 51), ("b", 102)):
        Image.new("RGB", (16, 16), (colour,) * 3).save(tmp_path / f"{name}.png")
    chosen = load_reference(f"neighbours(files=({str(tmp_path)!r},))")
    found = chosen(model, torch.full((1, 3, 16, 16), 0.2), torch.zeros(1).long())
    assert found.unique().tolist() == pytest.approx([0.4], abs=1e-6)  # not of the picture itself
    both = chosen(model, torch.rand(1, 3, 16, 16), torch.zeros(1).long())
    assert both.unique().tolist() == pytest.approx([0.2, 0.4], abs=1e-6)


def test_training_takes_them_by_image(tmp_path: Path) -> None:
    Image.new("RGB", (SIZE, SIZE), (51, 102, 153)).save(tmp_path / "a.png")
    model = aha.load_model(randomised(TinyCNN()), input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
    texts = ["noise", "shuffled", "imputed", "inpainted", "own_mean", f"neighbours(files=({str(tmp_path)!r},))"]
    pixels = torch.rand(6, 3, SIZE, SIZE, generator=seeded(15))
    options = [load_reference(text) for text in texts]
    found = blanks_of(model, pixels, torch.zeros(6).long(), options)
    assert found.shape == pixels.shape and found.isfinite().all() and not torch.isclose(found, pixels).all()
    assert found[5, :, 0, 0].tolist() == pytest.approx([0.2, 0.4, 0.6], abs=1e-6)


@pytest.mark.parametrize("text", FILLING)
def test_under_soft_masks_both_sides_are_filled_from_the_other(text: str) -> None:
    pixels = torch.rand(2, 3, SIZE, SIZE, generator=seeded(16))
    keep = torch.rand(2, SIZE, SIZE, generator=seeded(17))
    kinds = [load_reference(text), load_reference("black")]
    found = filled_softly(pixels, torch.zeros_like(pixels), keep, kinds)
    left = keep[0] >= 0.5
    assert torch.equal(found[0][:, ~left], kinds[0].fill(pixels[:1], left[None])[0][:, ~left])
    assert torch.equal(found[0][:, left], kinds[0].fill(pixels[:1], ~left[None])[0][:, left])
    assert not (found[0] == pixels[0]).any() and not found[1].any()


@pytest.mark.parametrize(
    "text", ["shuffled(grid=1)", "neighbours(grid=0)", "imputed(noise=-1.0)", "inpainted(shrink=0)"]
)
def test_bad_references_are_refused(text: str) -> None:
    with pytest.raises(SpecError):
        load_reference(text)


@pytest.mark.parametrize("name", [name for name in REFERENCES if name != "image"])
def test_a_reference_is_a_picture_and_its_text_is_read_back(name: str) -> None:
    model = aha.load_model(randomised(TinyCNN()), input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
    chosen = load_reference("adaptive_blur(threshold=1.0)" if name == "adaptive_blur" else name)
    assert load_reference(str(chosen)) == chosen
    pixels = torch.rand(2, 3, SIZE, SIZE, generator=seeded(14))
    found = chosen(model, pixels, torch.tensor([0, 1]))
    assert found.shape == pixels.shape and found.isfinite().all()
    assert torch.equal(found, chosen(model, pixels, torch.tensor([0, 1])))

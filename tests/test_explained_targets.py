"""Targets that are no classes: the number that is explained, on every kind of network, and what is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import aha
import tiny_places
import two_towers
from aha.bench.runner import planned_view
from aha.errors import AhaError, CapabilityError, ModelError, OutputError, TargetError
from aha.explain_folder import FileRun, find_pictures
from aha.explaining import Asked
from aha.learned.explainer import Explainer
from aha.learned.library import remember
from aha.learned.settings import Design
from aha.methods import load_method
from aha.models.loading.preprocessing import Geometry
from aha.targets.base import OBJECTIVES, Shown, read_target
from aha.targets.dense import dense_scores
from aha.targets.detections import overlap
from aha.targets.kinds import kind_of
from fakes import CLASSES, SIZE, TinyCNN, changes, randomised, snapshot, surroundings, tiny_vit

NORMAL = {"mean": (0.5,) * 3, "std": (0.5,) * 3}


class Dense(nn.Module):
    """Scores (B, 5, 8, 8) of classes at places, in the dict of torchvision's segmentation networks."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU()
        )
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"out": self.head(self.body(images))}


class Detector(nn.Module):
    """Two candidates that lie still, whose scores (B, 2, 3) follow the left and the right half of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        maps = self.body(images)
        halves = torch.stack([maps[..., : SIZE // 2].mean(dim=(2, 3)), maps[..., SIZE // 2 :].mean(dim=(2, 3))], dim=1)
        boxes = images.new_tensor([[0, 0, SIZE / 2, SIZE], [SIZE / 2, 0, SIZE, SIZE]]).expand(len(images), 2, 4)
        return {"boxes": boxes, "scores": halves.sigmoid()}


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def cnn() -> aha.TargetModel:
    return aha.load_model(randomised(TinyCNN()), input_size=SIZE, **NORMAL, class_names=["a", "b", "c", "d", "e"])


@pytest.fixture(scope="module")
def dense() -> aha.TargetModel:
    return aha.load_model(randomised(Dense()), input_size=SIZE, **NORMAL)


@pytest.fixture(scope="module")
def detector() -> aha.TargetModel:
    return aha.load_model(randomised(Detector()), input_size=SIZE, **NORMAL)


# Texts


@pytest.mark.parametrize(
    "text",
    [
        "contrast('a', 2)",
        "logit(cls=3)",
        "value(3)",
        "neuron('body', 5, place=(1, 2))",
        "box(1.0, 2.0, 3.0, 4.0, cls='dog')",
        "region(cls=2, at=(3.0, 4.0))",
        "similarity(text='a cat')",
    ],
)
def test_texts_come_back(text: str) -> None:
    assert str(read_target(text)) == text


def test_class_may_be_written_as_people_write_it() -> None:
    assert str(read_target('box(1, 2, 3, 4, class="a class=b")')) == "box(1.0, 2.0, 3.0, 4.0, cls='a class=b')"
    assert read_target('class("tabby")') == "tabby"
    assert read_target("class(281)") == "281"


def test_names_of_classes_come_first(cnn: aha.TargetModel) -> None:
    named = aha.load_model(randomised(TinyCNN()), class_names=["logit", "b", "c", "d", "value(1)"])
    assert read_target("logit", named) == "logit" and read_target("value(1)", named) == "value(1)"
    assert str(read_target("logit", cnn)) == "logit"


def test_arrays_are_known_by_their_content() -> None:
    one, same, other = (aha.targets.region(cls=1, mask=np.full((4, 4), value)) for value in (1, 1, 2))
    assert one == same and str(one) == str(same) and str(one) != str(other)


# Numbers


def test_every_number_is_its_formula(cnn: aha.TargetModel, images: Tensor) -> None:
    outputs = cnn.outputs(images)
    features: list[Tensor] = []
    handle = cnn.module.body.register_forward_hook(lambda *call: features.append(call[2]))
    cnn.outputs(images)
    handle.remove()
    cosine = nn.functional.cosine_similarity(outputs, torch.arange(5.0)[None])
    expected: dict[Any, Tensor] = {
        "contrast('a', 2)": outputs[:, 0] - outputs[:, 2],
        "value(3)": outputs[:, 3],
        "logit(3)": outputs[:, 3],
        "probability(3)": outputs.softmax(dim=1)[:, 3],
        "log_odds(3)": outputs.softmax(dim=1)[:, 3].logit(),
        "neuron('body', 1)": features[0][:, 1].mean(dim=(1, 2)),
        "neuron('body', 1, place=(2, 3))": features[0][:, 1, 2, 3],
        "similarity(vector=(0.0, 1.0, 2.0, 3.0, 4.0))": cosine,
        (lambda found: found[:, 1] ** 2): outputs[:, 1] ** 2,
    }
    for target, values in expected.items():
        found = aha.explain(cnn, images, "random_map", target)
        torch.testing.assert_close(found.scores, values, msg=str(target))


def test_a_picture_is_like_itself(cnn: aha.TargetModel, images: Tensor) -> None:
    found = aha.explain(cnn, images, "random_map", aha.targets.similarity(picture=images[0]))
    assert float(found.scores[0]) == pytest.approx(1) and float(found.scores[1]) < 0.999


def test_a_region_is_a_mean_over_what_it_covers(dense: aha.TargetModel, images: Tensor) -> None:
    scores = dense.module(images)["out"].detach()  # (2, 5, 8, 8)
    by_box = aha.explain(dense, images, "random_map", "region(cls=1, box=(0, 0, 8, 16))").scores
    torch.testing.assert_close(by_box, scores[:, 1, :4, :2].mean(dim=(1, 2)))
    mask = torch.zeros(SIZE, SIZE)
    mask[:16, :8] = 1
    by_mask = aha.explain(dense, images, "random_map", aha.targets.region(cls=1, mask=mask)).scores
    torch.testing.assert_close(by_mask, by_box)
    best = aha.explain(dense, images, "random_map", "region(box=(0, 0, 8, 16))").scores
    torch.testing.assert_close(best, scores[:, :, :4, :2].mean(dim=(2, 3)).amax(dim=1))


def test_a_segment_is_fixed_on_the_image(dense: aha.TargetModel, images: Tensor) -> None:
    image = images[:1]
    scores = dense.module(image)["out"].detach()[0]
    cls = int(scores.argmax(dim=0).flatten().mode().values)
    segment = scores.argmax(dim=0) == cls
    shown = Shown(image, Geometry.identity((SIZE, SIZE)))
    view = aha.targets.region(cls=cls).view(dense, shown)
    torch.testing.assert_close(view.outputs(image)[0, 0], scores[cls][segment].mean())
    other = dense.module(images[1:])["out"].detach()[0]
    torch.testing.assert_close(view.outputs(images[1:])[0, 0], other[cls][segment].mean())


def test_a_part_is_what_hangs_together() -> None:
    class Fixed(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            scores = torch.zeros(1, 2, 8, 8)
            scores[:, 1, :3, :3] = 1
            scores[:, 1, 6:, 6:] = 5
            return scores.expand(len(images), -1, -1, -1) + images.mean() * 0

    model = aha.load_model(Fixed(), input_size=SIZE, **NORMAL)
    image = torch.zeros(1, 3, SIZE, SIZE)
    assert float(aha.explain(model, image, "random_map", "region(cls=1, at=(4, 4))").scores[0]) == 1
    assert float(aha.explain(model, image, "random_map", "region(cls=1, at=(30, 30))").scores[0]) == 5
    with pytest.raises(TargetError, match="not in the segment"):
        aha.explain(model, image, "random_map", "region(cls=1, at=(16, 16))")


def test_a_box_is_the_best_overlap_times_score(detector: aha.TargetModel, images: Tensor) -> None:
    scores = detector.module(images)["scores"].detach()
    left = aha.explain(detector, images, "gradient", "box(0, 0, 16, 32, cls=1)")
    torch.testing.assert_close(left.scores, torch.maximum(scores[:, 0, 1], scores[:, 1, 1] * 0))
    assert not left.maps[..., SIZE // 2 + 1 :].any() and left.maps[..., : SIZE // 2].abs().amin() > 0
    found = aha.explain(detector, images, "random_map", "box(0, 0, 16, 32)").scores
    torch.testing.assert_close(found, scores[:, 0].amax(dim=1))
    assert float(overlap(torch.tensor([0.0, 0, 2, 2]), torch.tensor([1.0, 0, 3, 2]))) == pytest.approx(1 / 3)


def test_pixels_are_those_of_the_picture(detector: aha.TargetModel, tmp_path: Path) -> None:
    """A picture of twice the size: its left half is the candidate's box."""
    pixels = np.random.default_rng(0).integers(0, 255, (2 * SIZE, 2 * SIZE, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    found = aha.explain(detector, tmp_path / "a.png", "random_map", "box(0, 0, 32, 64, cls=1)")
    inputs = detector.stated_preprocessing()(Image.fromarray(pixels))[0][None]
    torch.testing.assert_close(found.scores[0], detector.module(inputs)["scores"][0, 0, 1].detach())


# Methods and metrics

FITTING = ["gradient", "grad_cam", "integrated_gradients(steps=3)", "lrp", "rise(n=8)", "occlusion", "aha", "mda"]


@pytest.mark.parametrize("text", FITTING)
def test_methods_explain_every_kind(
    text: str, cnn: aha.TargetModel, dense: aha.TargetModel, detector: aha.TargetModel, images: Tensor
) -> None:
    asked = [(cnn, "contrast(0, 2)"), (cnn, "neuron('body', 1)"), (dense, "region(cls=1, box=(0, 0, 16, 32))")]
    asked += [(cnn, "similarity(vector=(0.0, 1.0, 2.0, 3.0, 4.0))"), (detector, "box(0, 0, 16, 32, cls=1)")]
    for model, target in asked:
        try:
            found = aha.explain(model, images, text, target, progress=False)
        except CapabilityError as error:
            assert model is detector and "\n" not in str(error), error  # it has no stage to read
            continue
        assert found.maps.shape == (2, SIZE, SIZE) and bool(found.maps.isfinite().all())
        assert found.settings["target"] == str(read_target(target)) and found.labels[0] == found.settings["target"]


@pytest.mark.parametrize("target", ["contrast(0, 1)", "neuron('blocks.1', 3)", "value(2)"])
def test_transformers_too(target: str, images: Tensor) -> None:
    model = aha.load_model(tiny_vit(), input_size=SIZE, **NORMAL)
    for text in ("legrad", "grad_cam(layer=-2)", "aha"):
        maps = aha.explain(model, images, text, target).maps
        assert bool(maps.isfinite().all()) and bool((maps.flatten(1).std(dim=1) > 0).all())


def test_gradients_are_captums(cnn: aha.TargetModel, images: Tensor) -> None:
    saliency = pytest.importorskip("captum.attr").Saliency

    def difference(inputs: Tensor) -> Tensor:
        outputs: Tensor = cnn.module(inputs)
        return outputs[:, 0] - outputs[:, 2]

    theirs = saliency(difference).attribute(images.clone().requires_grad_(), abs=False)
    ours = aha.targets.contrast(0, 2).view(cnn).input_gradients(images, torch.zeros(2, dtype=torch.int64))
    torch.testing.assert_close(ours, theirs)


def test_nothing_is_left_behind(cnn: aha.TargetModel, dense: aha.TargetModel, images: Tensor) -> None:
    for model, target in ((cnn, "neuron('body', 1)"), (dense, "region(cls=1, box=(0, 0, 8, 8))")):
        before = snapshot(model.module) | surroundings()
        aha.explain(model, images, "grad_cam", target)
        with pytest.raises(AhaError):
            aha.explain(model, images, "grad_cam", "neuron('body', 99)")
        assert changes(before, snapshot(model.module) | surroundings()) == []


def test_metrics_and_cards_watch_the_number(cnn: aha.TargetModel, dense: aha.TargetModel, images: Tensor) -> None:
    for model, target in ((cnn, "contrast(0, 2)"), (dense, "region(cls=1, box=(0, 0, 16, 32))")):
        found = aha.explain(model, images, "gradient", target, card=True)
        assert found.settings["target"] in found.cards[0].sentence
        scores = aha.evaluate(model, images, {"mine": found}, ["deletion(steps=4)"], progress=False)
        curve = scores.curves()[0].scores
        assert curve[0] == pytest.approx(float(found.scores[0]), abs=1e-4) and len(scores.curves()) >= 2
        again = aha.evaluate(model, images, "gradient", ["deletion(steps=4)"], target=target, progress=False)
        assert again.values("gradient", "deletion") == pytest.approx(scores.values("mine", "deletion"), abs=1e-4)


def test_a_box_is_where_localisation_looks(detector: aha.TargetModel, images: Tensor) -> None:
    scores = aha.evaluate(
        detector, images, "gradient", "pointing_game", target="box(0, 0, 16, 32, cls=1)", progress=False
    )
    assert scores.values("gradient", "pointing_game") == [1.0, 1.0]


def test_a_mask_is_where_localisation_looks(dense: aha.TargetModel, images: Tensor) -> None:
    mask = np.zeros((SIZE, SIZE), dtype=bool)
    mask[:, :16] = True
    asked = aha.targets.region(cls=1, mask=mask)
    own = aha.evaluate(dense, images, "gradient", "mass_in_truth", target=asked, progress=False)
    same = aha.evaluate(dense, images, "gradient", "mass_in_truth", target=asked, masks=[mask] * 2, progress=False)
    assert own.values("gradient", "mass_in_truth") == same.values("gradient", "mass_in_truth")


WATCHING = ["stability(n=2)", "randomisation", "road", "single_deletion(grids=(4,))"]


@pytest.mark.parametrize("metric", WATCHING)
def test_metrics_of_every_family_watch_the_number(metric: str, dense: aha.TargetModel, images: Tensor) -> None:
    for target in ("region(cls=1, box=(0, 0, 16, 32))", "region(cls=1, box=(16, 0, 32, 32))"):
        scores = aha.evaluate(dense, images, "gradient", metric, target=target, progress=False)
        assert not scores.failures and len(scores.rows) >= 2


def test_a_card_says_how_much_of_the_best_order_is_reached(dense: aha.TargetModel, images: Tensor) -> None:
    oracle = "search(parts=patches(grid=4), budget=300)"
    found = aha.explain(
        dense, images[:1], "gradient", "region(cls=1, box=(0, 0, 16, 32))", card=True, oracle=oracle, progress=False
    )
    assert found.cards[0].headroom is not None


def test_the_best_method_for_a_target_is_recommended(cnn: aha.TargetModel, tmp_path: Path) -> None:
    for seed in range(4):
        pixels = np.random.default_rng(seed).integers(0, 255, (SIZE, SIZE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{seed}.png")
    found = aha.recommend(
        cnn,
        tmp_path,
        passes=3000,
        methods=["gradient", "grad_cam"],
        out=tmp_path / "race",
        target="contrast('a', 'b')",
    )
    assert found.method in ("gradient", "grad_cam")


def test_an_explainer_of_classes_leaves_targets_to_the_universal_one(
    cnn: aha.TargetModel, images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AHA_DATA", str(tmp_path))
    explainer = Explainer.for_target(cnn, Design(width=16, stride=8), seed=1)
    remember(explainer)
    assert aha.explain(cnn, images, "aha", "contrast(0, 2)").settings["explainer"] == "universal"
    with pytest.raises(ModelError, match="trained for classes"):
        aha.explain(cnn, images, f"aha({str(tmp_path / 'explainers' / cnn.digest)!r})", "contrast(0, 2)")


def test_folders_name_the_target_and_resume(dense: aha.TargetModel, cnn: aha.TargetModel, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (40, 48, 3), dtype=np.uint8)
    (tmp_path / "in").mkdir()
    Image.fromarray(pixels).save(tmp_path / "in" / "a.png")
    for model, target in ((dense, "region(cls=1, box=(0, 0, 24, 40))"), (cnn, "contrast('a', 'b')")):
        out, counts = tmp_path / model.spec.replace(":", "-"), []
        for asked in (target, target, target.replace("1", "2").replace("'b'", "'c'")):
            pictures = find_pictures([str(tmp_path / "in")], out, Asked.of(model, asked).model)
            run = FileRun(model, pictures, [load_method("gradient")], asked, out)
            run.run(2)
            counts.append((run.done, run.skipped))
        assert counts == [(1, 0), (0, 1), (1, 0)]
        assert "(" in json.loads((out / "manifest.json").read_text())["items"][0]["label"]


def test_plans_take_one_target_for_all_images(cnn: aha.TargetModel) -> None:
    assert planned_view(cnn, ["top1", "label"]) is cnn
    assert planned_view(cnn, ["contrast('a', 'b')"]).score.name == "contrast('a', 'b')"
    for targets, why in ((["top1", "value(1)"], "a plan of its own"), (["box(0, 0, 8, 8)"], "aha.evaluate")):
        with pytest.raises(TargetError, match=why):
            planned_view(cnn, targets)


# Adapters


def test_dense_scores_of_libraries() -> None:
    dense = torch.randn(1, 3, 4, 4)
    assert dense_scores({"out": dense, "aux": dense * 2}) is dense
    assert dense_scores(SimpleNamespace(logits=dense)) is dense
    masks, classes = torch.randn(1, 2, 4, 4), torch.randn(1, 2, 4)
    found = dense_scores(SimpleNamespace(masks_queries_logits=masks, class_queries_logits=classes))
    expected = sum(classes.softmax(-1)[0, q, 1] * masks[0, q].sigmoid() for q in range(2))
    torch.testing.assert_close(found[0, 1], expected)
    with pytest.raises(ModelError, match="not scores of classes at places"):
        dense_scores(torch.zeros(1, 5))


@pytest.mark.parametrize("kind", ["yolo", "detr"])
def test_detectors_by_what_they_return(kind: str, images: Tensor) -> None:
    def network(inputs: Tensor) -> Any:
        scale = inputs.mean(dim=(1, 2, 3))[:, None, None].sigmoid()
        boxes = torch.tensor([[8.0, 16, 16, 32]]).expand(len(inputs), 1, 4)  # centre and size
        if kind == "yolo":
            return torch.cat([boxes, scale.expand(-1, 1, 2)], dim=2).movedim(1, 2).repeat(1, 1, 9), None
        return SimpleNamespace(pred_boxes=boxes / SIZE, logits=torch.cat([scale, scale * 0, scale * 0], dim=2))

    model = aha.load_model(network, input_size=SIZE, **NORMAL)
    found = aha.explain(model, images, "random_map", "box(0, 0, 16, 32, cls=0)").scores
    score = images.mean(dim=(1, 2, 3)).sigmoid()
    expected = score if kind == "yolo" else score.exp() / (score.exp() + 2)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["fasterrcnn_mobilenet_v3_large_320_fpn", "ssdlite320_mobilenet_v3_large"])
def test_torchvision_detectors(name: str) -> None:
    detection = pytest.importorskip("torchvision.models.detection")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=4).eval()
    network.transform.min_size, network.transform.max_size = (64,), 64
    model = aha.load_model(network, input_size=64, mean=(0.0,) * 3, std=(1.0,) * 3)
    before = snapshot(network)
    found = aha.explain(model, torch.rand(1, 3, 64, 64), "gradient", "box(10, 20, 50, 60)")
    assert changes(before, snapshot(network)) == []
    assert 0 < float(found.scores[0]) <= 1 and float(found.maps.abs().max()) > 0


@pytest.mark.parametrize("name", ["detr", "rt_detr", "segformer", "mask2former", "oneformer"])
def test_networks_of_transformers(name: str) -> None:
    pytest.importorskip("transformers")
    is_detector = name in tiny_places.DETECTORS
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = (tiny_places.DETECTORS | tiny_places.SEGMENTERS)[name]().eval()
    model = aha.load_model(network, input_size=tiny_places.SIDE, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert kind_of(model) == ("box" if is_detector else "region")
    inputs = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    before = snapshot(network)
    target = "box(10, 20, 50, 60, cls=1)" if is_detector else "region(cls=1, box=(10, 20, 50, 60))"
    found = aha.explain(model, inputs, "gradient", target)
    assert changes(before, snapshot(network)) == []
    assert bool(found.maps.isfinite().all()) and float(found.maps.abs().max()) > 0
    with torch.no_grad():
        returned = network(inputs)
    if name == "rt_detr":  # each class has a score of its own, without one for "none"
        boxes, scores = returned.pred_boxes[0], returned.logits[0].sigmoid()[:, 1]
        corners = torch.cat([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], dim=1) * 64
        expected = (overlap(corners, torch.tensor([10.0, 20, 50, 60])) * scores).amax()
        torch.testing.assert_close(found.scores[0], expected, rtol=1e-4, atol=1e-6)
    if name == "segformer":
        mean = returned.logits[0, 1].repeat_interleave(4, 0).repeat_interleave(4, 1)[20:60, 10:50].mean()
        torch.testing.assert_close(found.scores[0], mean, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("build", ["tiny_clip", "tiny_siglip"])
def test_two_towers_compare_pictures_and_texts(build: str, images: Tensor) -> None:
    pytest.importorskip("transformers")
    network = getattr(two_towers, build)().eval()
    model = aha.load_model(network, processor=two_towers.tiny_processor(), texts=["a cat", "b dog"])
    by_picture = aha.explain(model, images, "gradient", aha.targets.similarity(picture=images[0]))
    assert float(by_picture.scores[0]) == pytest.approx(1, abs=1e-5) and float(by_picture.scores[1]) < 0.9999
    assert float(by_picture.maps[1].abs().max()) > 0
    by_text = aha.explain(model, images, "gradient", aha.targets.similarity(text="b dog"))
    with torch.no_grad():
        found = network.get_image_features(images)
        embeddings = found if isinstance(found, Tensor) else found.pooler_output
    expected = nn.functional.cosine_similarity(embeddings, model.class_vectors[1:2].to(embeddings), dim=1)
    torch.testing.assert_close(by_text.scores, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(TargetError, match="not one of the model's texts"):
        aha.explain(model, images, "gradient", aha.targets.similarity(text="a bird"))


# Other libraries, on the same network


def test_grad_cam_of_a_region_is_captums(dense: aha.TargetModel, images: Tensor) -> None:
    layer_cam = pytest.importorskip("captum.attr").LayerGradCam
    network = dense.module

    def region(inputs: Tensor) -> Tensor:
        return network(inputs)["out"][:, 1, :4, :2].mean(dim=(1, 2))  # type: ignore[no-any-return]

    theirs = layer_cam(region, network.body).attribute(images, relu_attributions=True)[:, 0]
    target = aha.targets.region(cls=1, box=(0, 0, 8, 16))
    for row in range(2):
        view = target.view(dense, Shown(images[row : row + 1], Geometry.identity((SIZE, SIZE))))
        own = load_method("grad_cam(layer='body')")(view, images[row : row + 1], torch.zeros(1, dtype=torch.int64))
        torch.testing.assert_close(own / own.amax(), theirs[row : row + 1].detach() / theirs[row].detach().amax())


def test_grad_cam_of_a_contrast_is_torch_cams(images: Tensor) -> None:
    """torch-cam takes the gradient of one output: here of a last layer that subtracts two classes."""
    methods = pytest.importorskip("torchcam.methods")
    network = randomised(TinyCNN())
    model = aha.load_model(network, input_size=SIZE, **NORMAL)
    subtracted = nn.Sequential(network, nn.Linear(CLASSES, 1, bias=False))
    with torch.no_grad():
        subtracted[1].weight.copy_(torch.tensor([[1.0, 0, -1, 0, 0]]))
    with methods.GradCAM(subtracted, "0.body") as extractor:
        theirs = extractor(0, subtracted(images), normalized=False)[0]
    view = aha.targets.contrast(0, 2).view(model)
    own = load_method("grad_cam(layer='body')")(view, images, torch.zeros(2, dtype=torch.int64))
    torch.testing.assert_close(own, theirs.relu().detach(), rtol=1e-4, atol=1e-6)


def test_targets_of_pytorch_grad_cam(dense: aha.TargetModel, detector: aha.TargetModel, images: Tensor) -> None:
    theirs = pytest.importorskip("pytorch_grad_cam.utils.model_targets")
    returned = dense.module(images[:1])["out"].detach()  # (1, 5, 8, 8)
    mask = np.zeros((8, 8), dtype=np.float32)
    mask[:4, :2] = 1
    summed = theirs.SemanticSegmentationTarget(1, mask)(returned[0])
    own = aha.explain(dense, images[:1], "random_map", "region(cls=1, box=(0, 0, 8, 16))").scores[0]
    torch.testing.assert_close(own * 8, summed)  # theirs is a sum over 8 places, ours a mean
    found = {name: values[0].detach() for name, values in detector.module(images[:1]).items()}
    best = {"boxes": found["boxes"], "labels": torch.tensor([1, 1]), "scores": found["scores"][:, 1]}
    boxes = np.array([[0, 0, SIZE / 2, SIZE]], dtype=np.float32)
    both = theirs.FasterRCNNBoxScoreTarget([1], boxes)(best)  # overlap plus score, where ours is the product
    own = aha.explain(detector, images[:1], "random_map", "box(0, 0, 16, 32, cls=1)").scores[0]
    torch.testing.assert_close(1 + own, both[0])


class Returned(nn.Module):
    """What another library reads of a network: one entry of what it returns, or a dict of it for each image."""

    def __init__(self, network: nn.Module, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.network, self.read = network, read

    def forward(self, inputs: Tensor) -> Any:
        return self.read(self.network(inputs))


def unit_scaled(maps: Any) -> Tensor:
    """Maps (B, H, W) between 0 and 1, as pytorch-grad-cam returns them."""
    values = torch.as_tensor(maps)
    low, high = values.amin(dim=(1, 2), keepdim=True), values.amax(dim=(1, 2), keepdim=True)
    return (values - low) / (high - low)


def test_grad_cam_of_a_region_is_that_of_pytorch_grad_cam(dense: aha.TargetModel, images: Tensor) -> None:
    targets = pytest.importorskip("pytorch_grad_cam.utils.model_targets")
    grad_cam = pytest.importorskip("pytorch_grad_cam").GradCAM
    network = copy.deepcopy(dense.module)
    mask = np.zeros((8, 8), dtype=np.float32)
    mask[:4, :2] = 1
    target = targets.SemanticSegmentationTarget(1, mask)
    with grad_cam(Returned(network, lambda returned: returned["out"]), [network.body]) as other:
        theirs = other(images, [target] * 2)
    own = aha.explain(dense, images, "grad_cam(layer='body')", "region(cls=1, box=(0, 0, 8, 16))").maps
    torch.testing.assert_close(unit_scaled(own), unit_scaled(theirs), rtol=0, atol=1e-5)


def test_grad_cam_of_a_box_is_that_of_pytorch_grad_cam(detector: aha.TargetModel, images: Tensor) -> None:
    """Where boxes lie still, both are the gradient of the score of the candidate that fits."""
    targets = pytest.importorskip("pytorch_grad_cam.utils.model_targets")
    grad_cam = pytest.importorskip("pytorch_grad_cam").GradCAM
    network = copy.deepcopy(detector.module)

    def as_torchvision(found: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        ones = torch.ones(2, dtype=torch.long)
        rows = zip(found["boxes"], found["scores"], strict=True)
        return [{"boxes": boxes, "labels": ones, "scores": scores[:, 1]} for boxes, scores in rows]

    boxes = np.array([[0, 0, SIZE / 2, SIZE]], dtype=np.float32)
    target = targets.FasterRCNNBoxScoreTarget([1], boxes)
    with grad_cam(Returned(network, as_torchvision), [network.body]) as other:
        theirs = other(images, [target] * 2)
    own = aha.explain(detector, images, "grad_cam(layer='body')", "box(0, 0, 16, 32, cls=1)").maps
    torch.testing.assert_close(unit_scaled(own), unit_scaled(theirs), rtol=0, atol=1e-5)


# Refusals


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("value(9)", "values 0 to 4"),
        ("contrast(0, 9)", "classes 0 to 4"),
        ("contrast('a', 'a')", "with itself"),
        ("contrast('a')", "needs second"),
        ("neuron('boddy', 1)", "did you mean body"),
        ("neuron('body', 999)", "has channels 0 to"),
        ("neuron('body', 1, place=(1,))", "has places"),
        ("region(cls=1, box=(0, 0, 8, 8))", "output="),
        ("region(of='logit')", "name a class"),
        ("box(0, 0, 8, 8)", "boxes (B, N, 4)"),
        ("box(8, 0, 0, 8)", "x0 < x1"),
        ("similarity(text='a cat')", "no texts"),
        ("similarity(vector=(1.0, 2.0))", "the embedding has 5"),
        ("similarity(vector='nothing.npy')", "cannot read the vector"),
        (["value(1)", "value(2)"], "class"),
        (lambda found: found.mean(), "one number for each"),
    ],
)
def test_refusals_are_one_line(cnn: aha.TargetModel, images: Tensor, target: Any, why: str) -> None:
    with pytest.raises(AhaError) as caught:
        aha.explain(cnn, images, "gradient", target)
    assert why in str(caught.value) and "\n" not in str(caught.value)


def test_what_needs_a_class_vector_refuses(cnn: aha.TargetModel) -> None:
    with pytest.raises(CapabilityError, match="no class vector"):
        _ = aha.targets.contrast(0, 1).view(cnn).class_vectors


def test_every_objective_is_public() -> None:
    assert set(OBJECTIVES) <= set(aha.targets.__all__)


# One colour scale


def test_a_shared_scale_gives_equal_values_equal_colours(cnn: aha.TargetModel, images: Tensor) -> None:
    found = aha.explain(cnn, images, ["gradient", "input_x_gradient"], "contrast(0, 2)")
    maps = torch.zeros(2, SIZE, SIZE)
    maps[0, :, :16], maps[1, :, :16], maps[1, :, 16:] = 1, 1, 4
    one = replace(found["gradient"], maps=maps, subjects=[found["gradient"].subjects[0]] * 2)
    own, shared = ([np.asarray(one.overlay(i, scale=s, caption=False)) for i in (0, 1)] for s in ("own", "shared"))
    assert np.array_equal(shared[0][:, :16], shared[1][:, :16]) and not np.array_equal(own[0][:, :16], own[1][:, :16])
    plain, common = found.figure(), found.figure(scale="shared")
    assert common.height > plain.height  # the bar
    with pytest.raises(OutputError, match="'own' or 'shared'"):
        found.figure(scale="mine")

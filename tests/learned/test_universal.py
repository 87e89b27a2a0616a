"""What every network is read by, and one explainer for several of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import aha
from aha.errors import AhaWarning, ModelError
from aha.learned import universal
from aha.learned.decoder import Decoder
from aha.learned.explainer import Explainer, ExplainerWarning, universal_config
from aha.learned.settings import Design, TrainConfig, load_settings
from aha.learned.training.sampling import dropped_levels
from aha.learned.training.zoo import Grouped, Zoo, add_noise
from aha.models import TargetModel, load_model
from command_line import pictures
from fakes import TinyCNN, changes, randomised, snapshot, tiny_vit

SIZE = 64
STATED = {"input_size": SIZE, "mean": [0.5] * 3, "std": [0.5] * 3}


class Chain(nn.Module):
    """Stages of the given strides, and a classifier over the mean of the last."""

    def __init__(self, *strides: int, classes: int = 5) -> None:
        super().__init__()
        widths = [3, *range(8, 8 + len(strides))]
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(i, o, 3, stride=stride, padding=1), nn.ReLU())
            for i, o, stride in zip(widths, widths[1:], strides, strict=False)
        )
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        out: Tensor = self.head(x.mean(dim=(2, 3)))
        return out


def chain(*strides: int, **options: int) -> TargetModel:
    return load_model(randomised(Chain(*strides, **options), seed=1), **STATED)


@pytest.fixture
def images() -> Tensor:
    return torch.randn(3, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("strides", "there"),
    [
        ((2, 2, 2, 2, 2), (True, True, True, True)),
        ((4, 2), (True, True, False, False)),
        ((2, 1), (True, False, False, False)),  # both too fine: they count as the finest level
        ((8, 4), (False, True, False, True)),
    ],
)
def test_levels_follow_the_strides_that_a_network_has(
    strides: tuple[int, ...], there: tuple[bool, ...], images: Tensor
) -> None:
    target = chain(*strides)
    found = universal.stages_by_stride(target, images.shape[1:])
    assert tuple(stage is not None for stage in found) == there
    explainer = Explainer.for_target(target, Design(form="universal", width=16))
    maps = explainer.maps(target, images, torch.tensor([0, 1, 2]))
    assert maps.shape == images[:, 0].shape and maps.isfinite().all()


def test_the_evidence_of_a_stage_by_hand() -> None:
    features = torch.randn(2, 6, 4, 5, generator=torch.Generator().manual_seed(1))
    gradients = torch.randn(2, 6, 4, 5, generator=torch.Generator().manual_seed(2))
    maps, balance = universal.stage_maps(features, gradients)
    product = features * gradients
    raw = [
        product.sum(1),
        product.clamp(min=0).sum(1),
        product.abs().sum(1).sqrt(),
        (features * gradients.mean(dim=(2, 3), keepdim=True)).sum(1),
        features.norm(dim=1),
        gradients.norm(dim=1),
    ]
    for index, expected in enumerate(raw):
        unit = (expected - expected.mean(dim=(1, 2), keepdim=True)) / expected.std(
            dim=(1, 2), keepdim=True, correction=0
        )
        assert torch.allclose(maps[:, index], unit, atol=1e-4), index
    order = maps[:, 6].flatten(1).argsort(dim=1)
    assert torch.equal(order, product.sum(1).flatten(1).argsort(dim=1))
    assert torch.allclose(balance, product.sum(dim=(1, 2, 3)) / product.abs().sum(dim=(1, 2, 3)), atol=1e-6)


def test_a_level_that_is_dropped_is_as_if_the_network_lacked_it(images: Tensor) -> None:
    target, classes = chain(4, 2, 2), torch.tensor([0, 1, 2])
    explainer = Explainer.for_target(target, Design(form="universal", width=16))
    given = explainer.read(target, explainer.look(target, images), classes, dropped={1, 2})
    whole = explainer.read(target, explainer.look(target, images), classes)
    assert not given.evidence[1].any() and not given.evidence[2].any() and given.evidence[0].any()
    assert torch.equal(given.start, given.evidence[0][:, 0])  # the deepest that is left
    assert torch.equal(given.evidence[0], whole.evidence[0])
    there = given.vectors[:, 4:8]
    assert torch.equal(there, torch.tensor([1.0, 0, 0, 0]).expand(3, -1))
    everything = explainer.read(target, explainer.look(target, images), classes, dropped={0, 1, 2, 3})
    assert everything.evidence[2].any(), "the deepest level stays"


def test_facts_say_how_sure_the_model_is(images: Tensor) -> None:
    target = chain(4, 2)
    outputs = torch.tensor([[9.0, 0, 0, 0, 0], [0.0, 0, 0, 0, 0]])
    known, odds, probability, entropy = universal.answer_facts(target, outputs, torch.tensor([0, 0])).unbind(1)
    assert known.tolist() == [1, 1] and probability[1] == pytest.approx(0.2)
    assert odds[0] > 1 and entropy[0] < 0.02 and entropy[1] == pytest.approx(1)
    regression = load_model(randomised(Chain(4, 2, classes=1), seed=1), score="regression", **STATED)
    assert not universal.answer_facts(regression, regression.outputs(images), torch.zeros(3).long()).any()


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "regression", "logit", "log_softmax"])
@pytest.mark.parametrize("classes", [1, 5])
def test_any_score_and_any_number_of_classes(score: str, classes: int, images: Tensor) -> None:
    target = load_model(randomised(Chain(4, 2, 2, classes=classes), seed=1), score=score, **STATED)
    found = aha.explain(target, images, "aha('universal')", target=0)
    assert found.maps.isfinite().all() and found.maps.flatten(1).std(dim=1).min() > 0


def test_other_numbers_of_channels(images: Tensor) -> None:
    grey = nn.Sequential(nn.Conv2d(1, 3, 1), Chain(4, 2, 2))
    target = load_model(randomised(grey, seed=2), input_size=SIZE, mean=[0.5], std=[0.5])
    assert aha.explain(target, images[:, :1], "aha('universal')").maps.isfinite().all()
    bands = load_model(randomised(nn.Sequential(nn.Conv2d(7, 3, 1), Chain(4, 2)), seed=2))
    assert aha.explain(bands, torch.randn(1, 7, SIZE, SIZE), "aha('universal')").maps.isfinite().all()


def test_a_transformer_of_any_depth_is_pooled(images: Tensor) -> None:
    classes = torch.tensor([0, 1, 2])
    for depth in (1, 3, 4, 7):
        target = load_model(tiny_vit(depth=depth, img_size=SIZE), **STATED)
        explainer = Explainer.for_target(target, Design(form="universal", width=16))
        assert explainer.config.form == "tokens"
        given = explainer.read(target, explainer.look(target, images), classes)
        assert {tuple(level.shape[:2]) for level in given.evidence} == {(3, universal.MAPS["tokens"])}
        assert sum(bool(level.any()) for level in given.evidence) == min(4, depth)
        assert explainer.maps(target, images, classes).isfinite().all()


def test_the_default_is_aha_and_falls_back_with_a_word(images: Tensor) -> None:
    target = chain(4, 2, 2)
    assert aha.explain(target, images).method == "aha"

    class Rounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Chain(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.from_numpy(self.inner(x).detach().numpy().copy())

    closed = load_model(randomised(Rounded(), seed=1), **STATED)
    with pytest.warns(AhaWarning, match=r"rise is used instead of aha: .* do not depend differentiably"):
        found = aha.explain(closed, images[:1])
    assert found.method == "rise"


def test_a_universal_explainer_of_the_other_kind_is_refused(images: Tensor, tmp_path: Path) -> None:
    vit = load_model(tiny_vit(img_size=SIZE), **STATED)
    folder = Explainer.for_target(vit, Design(form="universal", width=16)).save_pretrained(tmp_path / "e")
    with pytest.raises(ModelError, match=r"reads tokens of a network, .* has stages"):
        aha.explain(chain(4, 2), images, f"aha({str(folder)!r})")


# Several networks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return pictures(tmp_path / "data", 10)


SMOKE = ["steps=3", "batch_size=2", "perturbations=2", "width=16", "validation_images=2", "validation_steps=4"]


def test_one_explainer_for_several_networks(folder: Path, tmp_path: Path, images: Tensor) -> None:
    members = [chain(4, 2, 2), chain(2, 2, 2, classes=7)]
    before = [snapshot(member.module) for member in members]
    settings = load_settings("universal", [*SMOKE, "vary=0.9", "drop=0.5"])
    explainer = aha.train(members, folder, tmp_path / "run", settings=settings, progress=False)
    assert explainer.config.is_for_all and explainer.config.name == "universal"
    assert explainer.config.target == " + ".join(member.spec for member in members)
    for member, former in zip(members, before, strict=True):
        assert changes(former, snapshot(member.module)) == []
    other = chain(8, 2)
    found = aha.explain(other, images, explainer)  # no warning: it belongs to every network
    assert found.settings["explainer_digest"] == explainer.digest
    with pytest.raises(ModelError, match="an explainer of several models must be universal"):
        aha.train(members, folder, tmp_path / "own", settings=load_settings("smoke"), progress=False)
    with pytest.raises(ModelError, match="cannot be trained on both kinds of networks"):
        both = [members[0], load_model(tiny_vit(img_size=SIZE), **STATED)]
        aha.train(both, folder, tmp_path / "both", settings=settings, progress=False)
    with pytest.raises(ModelError, match="has 3 numbers for 2 models"):
        uneven = load_settings("universal", [*SMOKE, "mix=(1.0, 1.0, 1.0)"])
        aha.train(members, folder, tmp_path / "uneven", settings=uneven, progress=False)


def test_a_run_of_several_networks_can_be_resumed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [chain(4, 2, 2), chain(2, 2, 2)]
    settings = load_settings("universal", [*SMOKE, "vary=0.9", "drop=0.5", "save_every=1"])
    whole = aha.train(members, folder, tmp_path / "whole", settings=settings, progress=False)

    def stop(record: dict[str, float]) -> None:
        if record["step"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        aha.train(members, folder, tmp_path / "parts", settings=settings, on_step=stop, progress=False)
    resumed = aha.train(members, folder, tmp_path / "parts", settings=settings, resume=True, progress=False)
    assert resumed.digest == whole.digest


def test_adapting_starts_from_the_universal_explainer(folder: Path, tmp_path: Path, images: Tensor) -> None:
    target = chain(4, 2, 2)
    settings = load_settings("adapt", ["steps=1", "batch_size=2", "learning_rate=1e-9"])
    explainer = aha.train(target, folder, tmp_path / "run", settings=settings, start="universal", progress=False)
    assert explainer.config.target_digest == target.digest and explainer.config.name == f"of {target.spec}"
    universal_maps = aha.explain(target, images, "aha('universal', calibrated=False)", target=1).maps
    adapted = explainer.maps(target, images, torch.ones(3).long())
    assert torch.allclose(adapted, universal_maps, atol=1e-3)
    with pytest.warns(ExplainerWarning, match="trained for"):
        aha.explain(chain(4, 2, 2, classes=7), images, explainer)


WILD = ["learning_rate=0.5", "clip=100.0", "ema=0.0"]


def test_adapting_never_ends_below_its_start(folder: Path, tmp_path: Path, images: Tensor) -> None:
    target = chain(4, 2, 2)
    settings = load_settings("adapt", ["steps=2", "batch_size=2", "validation_images=2", "validation_steps=4", *WILD])
    explainer = aha.train(target, folder, tmp_path / "run", settings=settings, start="universal", progress=False)
    last = Explainer.from_pretrained(tmp_path / "run" / "last")
    best, spoilt = (e.maps(target, images, torch.ones(3).long()) for e in (explainer, last))
    start = aha.explain(target, images, "aha('universal', calibrated=False)", target=1).maps
    assert explainer.config.training["finished"] in (0, 1, 2)
    assert torch.allclose(best, start, atol=1e-5) == (explainer.config.training["finished"] == 0)
    assert not torch.allclose(spoilt, start, atol=1e-2)


def test_grouped_classes_have_the_sum_of_their_probabilities(images: Tensor) -> None:
    module, groups = randomised(Chain(4, 2), seed=1), torch.tensor([0, 1, 0, 1, 1])
    share = module(images).softmax(dim=1)
    grouped = Grouped(module, groups, None)(images).softmax(dim=1)
    assert torch.allclose(grouped[:, 0], share[:, [0, 2]].sum(dim=1), atol=1e-6)


def test_turns_follow_the_mix_and_the_seed() -> None:
    members = [chain(4, 2, 2), chain(2, 2, 2)]
    zoo = Zoo(members, [], TrainConfig(mix=(3.0, 1.0)))
    drawn = [zoo.turn(step).target for step in range(200)]
    assert 130 < sum(target is members[0] for target in drawn) < 170
    assert drawn == [Zoo(members, [], TrainConfig(mix=(3.0, 1.0))).turn(step).target for step in range(200)]


def test_noise_is_of_the_size_of_the_weights() -> None:
    module = nn.Linear(100, 100)
    former = module.weight.detach().clone()
    bias = module.bias.detach().clone()
    add_noise(module, 0.1, torch.Generator().manual_seed(0))
    assert float((module.weight.detach() - former).std() / former.std()) == pytest.approx(0.1, rel=0.05)
    assert torch.equal(module.bias, bias)


def test_levels_are_dropped_by_chance() -> None:
    drawn = [dropped_levels(TrainConfig(drop=0.3), step, 4) for step in range(400)]
    assert 0.2 < sum(map(len, drawn)) / 1600 < 0.4
    assert drawn[7] == dropped_levels(TrainConfig(drop=0.3), 7, 4)


def test_it_is_small() -> None:
    for target in (chain(4, 2, 2), load_model(tiny_vit(img_size=SIZE), **STATED)):
        decoder = Decoder(universal_config(target, Design()).decoder)
        assert sum(value.numel() for value in decoder.parameters()) < 160_000


def test_a_cnn_reads_like_its_own_kind() -> None:
    assert universal.reading_of(load_model(TinyCNN(), **STATED)) == "stages"

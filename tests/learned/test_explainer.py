"""The explainer as a thing one keeps: saved, loaded, refused, shared; any size, any class, one encoder pass."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aha
from aha.errors import ModelError, SpecError, WeightsError
from aha.learned import library
from aha.learned.explainer import Explainer, ExplainerWarning, default_stages
from aha.learned.settings import Design, Evidence, load_settings
from aha.learned.training.data import StepBatch
from aha.learned.training.loop import training_step
from aha.learned.training.sampling import explained_classes
from aha.models import TargetModel, load_model
from fakes import CLASSES, SIZE, TinyCNN, randomised, tiny_vit


@pytest.fixture(params=["vit", "cnn"])
def target(request: pytest.FixtureRequest) -> TargetModel:
    module = tiny_vit() if request.param == "vit" else randomised(TinyCNN())
    return load_model(module, input_size=SIZE, mean=[0.5] * 3, std=[0.5] * 3)


@pytest.fixture
def explainer(target: TargetModel) -> Explainer:
    return stirred(Explainer.for_target(target, Design(stride=8, width=16)))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("AHA_DATA", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    library._load.cache_clear()


def stirred(explainer: Explainer) -> Explainer:
    """As after training: no part is zero any more."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for value in explainer.parameters():
            value.add_(0.05 * torch.randn(value.shape, generator=generator))
    return explainer.eval()


def maps_of(explainer: Explainer, target: TargetModel, images: Tensor) -> Tensor:
    return explainer.maps(target, images, torch.arange(len(images)) % CLASSES)


def test_saved_and_loaded_it_draws_the_same_maps(
    explainer: Explainer, target: TargetModel, images: Tensor, tmp_path: Path
) -> None:
    explainer.save_pretrained(tmp_path / "e")
    assert {path.name for path in (tmp_path / "e").iterdir()} == {"model.safetensors", "config.json", "README.md"}
    assert torch.equal(
        maps_of(Explainer.from_pretrained(tmp_path / "e"), target, images), maps_of(explainer, target, images)
    )
    explainer.save_pretrained(tmp_path / "half", dtype=torch.float16)
    half, whole = ((tmp_path / name / "model.safetensors").stat().st_size for name in ("half", "e"))
    assert half < 0.7 * whole
    close = maps_of(Explainer.from_pretrained(tmp_path / "half"), target, images) - maps_of(explainer, target, images)
    assert close.abs().max() < 0.02 * maps_of(explainer, target, images).std()


def test_the_config_says_what_belongs_to_it(explainer: Explainer, target: TargetModel, tmp_path: Path) -> None:
    config = json.loads((explainer.save_pretrained(tmp_path / "e") / "config.json").read_text())
    assert config["target"] == target.spec and config["target_digest"] == target.digest
    assert config["preprocessing"]["size"] == [SIZE, SIZE] and config["preprocessing"]["mean"] == [0.5] * 3
    assert config["version"] == aha.__version__ and config["num_classes"] == CLASSES
    assert target.digest in (tmp_path / "e" / "README.md").read_text()


def test_the_encoder_is_not_saved(explainer: Explainer, target: TargetModel) -> None:
    ours, theirs = sum(p.numel() for p in explainer.parameters()), target.module.state_dict().keys()
    assert ours < 100_000 and not theirs & explainer.state_dict().keys()


def test_any_size_also_not_square(images: Tensor) -> None:
    target = load_model(randomised(TinyCNN()), input_size=SIZE, mean=[0.5] * 3, std=[0.5] * 3)
    explainer = Explainer.for_target(target, Design(stride=8, width=16)).eval()
    for size in ((32, 32), (48, 32), (33, 57)):
        maps = explainer.maps(target, torch.rand(2, 3, *size), torch.tensor([0, 1]))
        assert maps.shape == (2, *size) and bool(maps.isfinite().all())


def test_classes_of_one_image_share_the_encoder_pass(
    explainer: Explainer, target: TargetModel, images: Tensor, cache: Path
) -> None:
    library.remember(explainer)
    target.passes.clear()
    explanation = aha.explain(target, images, "aha", target=[[0, 1, 2]] * 4)
    assert explanation.maps.shape == (12, SIZE, SIZE)
    assert target.passes["forward"] == 4  # the pass that chooses the classes is the one that is read
    alone = [explainer.maps(target, images[:1], torch.tensor([c]))[0] for c in range(3)]
    assert torch.allclose(explanation.maps[:3], torch.stack(alone), atol=1e-4)
    assert not torch.allclose(alone[0], alone[1], atol=1e-2)


@pytest.mark.parametrize("evidence", ["backward", "forward"])
def test_a_map_takes_one_forward_pass_and_is_that_of_a_pass_of_its_own(
    evidence: Evidence, target: TargetModel, images: Tensor, tmp_path: Path
) -> None:
    drawn = stirred(Explainer.for_target(target, Design(width=8, evidence=evidence)))
    drawn.save_pretrained(tmp_path / "own")
    classes = target.outputs(images).argmax(dim=1)
    alone = drawn.calibrated(drawn.maps(target, images, classes))
    target.passes.clear()
    found = aha.explain(target, images, f"aha('{tmp_path / 'own'}')").maps
    assert target.passes["forward"] == len(images)
    assert target.passes["backward"] == (len(images) if evidence == "backward" else 0)
    assert torch.allclose(found, alone, atol=1e-5)


def test_the_explainer_of_a_model_is_found_by_its_weights(
    explainer: Explainer, target: TargetModel, images: Tensor, cache: Path
) -> None:
    assert aha.explain(target, images, "aha").settings["explainer"] == "universal"
    library.remember(explainer)
    assert torch.allclose(
        aha.explain(target, images, "aha", target=1).maps, explainer.maps(target, images, torch.ones(4).long())
    )


def test_other_weights_are_a_warning_and_another_class_count_is_an_error(
    explainer: Explainer, target: TargetModel, images: Tensor, tmp_path: Path
) -> None:
    explainer.save_pretrained(tmp_path / "e")
    module = tiny_vit(seed=3) if "Transformer" in target.spec else randomised(TinyCNN(), seed=3)
    other = load_model(module, input_size=SIZE, mean=[0.5] * 3, std=[0.5] * 3)
    with pytest.warns(ExplainerWarning, match="trained for .* with other weights"):
        aha.explain(other, images, f"aha({str(tmp_path / 'e')!r})")
    wide = load_model(tiny_vit(num_classes=7), input_size=SIZE, mean=[0.5] * 3, std=[0.5] * 3)
    with pytest.raises(ModelError, match=f"knows {CLASSES} classes; .* has 7"):
        aha.explain(wide, images, f"aha({str(tmp_path / 'e')!r})")


def test_what_is_no_explainer_is_refused_in_one_line(explainer: Explainer, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is not an explainer: it has no config\.json"):
        Explainer.from_pretrained(tmp_path)
    with pytest.raises(ModelError, match="no explainer at nobody/nothing"):
        Explainer.from_pretrained("nobody/nothing")
    folder = explainer.save_pretrained(tmp_path / "e")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "surprise": 1}))
    with pytest.raises(WeightsError, match="is not as it was saved"):
        Explainer.from_pretrained(folder)
    for name in set(config) - {"config_sha256"}:  # whatever is edited
        (folder / "config.json").write_text(json.dumps({**config, name: None}))
        with pytest.raises(WeightsError, match="is not as it was saved"):
            Explainer.from_pretrained(folder)
    wider = {**config, "decoder": {**config["decoder"], "width": 32}}
    (folder / "config.json").write_text(json.dumps(wider))
    with pytest.raises(WeightsError):
        Explainer.from_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    assert Explainer.from_pretrained(folder).digest == explainer.digest
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(WeightsError, match="cannot be read"):
        Explainer.from_pretrained(folder)


def test_a_changed_byte_of_the_weights_is_noticed(explainer: Explainer, tmp_path: Path) -> None:
    """The last byte is one of a number: the file can be read as before, and says something else."""
    file = explainer.save_pretrained(tmp_path / "e") / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(WeightsError, match=r"model\.safetensors is damaged") as caught:
        Explainer.from_pretrained(tmp_path / "e")
    assert "\n" not in str(caught.value)


def test_a_save_that_is_killed_leaves_a_whole_explainer(
    explainer: Explainer, target: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each move of a file into place, what can be read is the former explainer or the new one."""
    other = stirred(Explainer.for_target(target, Design(stride=8, width=16), seed=9))
    former, new = explainer.digest, other.digest
    assert former != new
    folder = explainer.save_pretrained(tmp_path / "e")
    move, seen = Path.replace, []

    def watched(self: Path, place: Path) -> Path:
        seen.append(Explainer.from_pretrained(folder).digest)
        return move(self, place)

    monkeypatch.setattr(Path, "replace", watched)
    other.save_pretrained(folder)
    assert seen == [former, former, former, new]
    assert Explainer.from_pretrained(folder).digest == new


def test_an_embedding_stands_in_where_there_is_no_linear_classifier(
    target: TargetModel, images: Tensor, tmp_path: Path
) -> None:
    explainer = stirred(
        Explainer.for_target(target, Design(stride=8, width=16, conditioning="embedding", class_dim=12))
    )
    assert explainer.embedding is not None and explainer.embedding.weight.shape == (CLASSES, 12)
    maps = maps_of(explainer, target, images)
    again = Explainer.from_pretrained(explainer.save_pretrained(tmp_path / "e"))
    assert torch.equal(maps_of(again, target, images), maps)


def test_another_encoder_sees_the_same_pixels(images: Tensor) -> None:
    """A foreign encoder at its own size and scale; the target runs for nothing."""
    target = load_model(randomised(TinyCNN()), input_size=SIZE, mean=[0.5] * 3, std=[0.5] * 3)
    explainer = Explainer.for_target(target, Design(encoder="target", evidence="none", stride=8, width=16))
    encoder = load_model(tiny_vit(img_size=48), input_size=48, mean=[0.2] * 3, std=[0.3] * 3)
    stages = default_stages(encoder)
    decoder = replace(explainer.config.decoder, channels=(32,) * len(stages))
    foreign = Explainer(replace(explainer.config, encoder="elsewhere", stages=stages, decoder=decoder))
    foreign._encoder = encoder
    target.passes.clear()
    features = foreign.look(target, images[:1]).features
    assert target.passes["forward"] == 0 and features[0].shape[-2:] == (6, 6)
    pixels = torch.nn.functional.interpolate(
        target.to_pixels(images[:1]), (48, 48), mode="bilinear", antialias=True
    ).clamp(0, 1)
    expected, _ = encoder.features(encoder.to_inputs(pixels), foreign.config.stages)
    assert all(torch.equal(a, b) for a, b in zip(features, expected, strict=True))


def test_default_stages() -> None:
    stated = {"input_size": SIZE, "mean": [0.5] * 3, "std": [0.5] * 3}
    assert default_stages(load_model(tiny_vit(depth=8), **stated)) == (
        1,
        3,
        5,
        7,
    )  # stage 8, the final norm, is not read at patches
    assert default_stages(load_model(tiny_vit(depth=8, global_pool="avg"), **stated))[-1] == 8
    assert default_stages(load_model(tiny_vit(), **stated)) == (0, 1)


def test_class_weights_that_do_not_fit_the_features_give_no_evidence(images: Tensor) -> None:
    """The classifier reads a hidden layer, not the features themselves."""
    trunk = randomised(TinyCNN())
    hidden = torch.nn.Sequential(trunk, torch.nn.ReLU(), torch.nn.Linear(CLASSES, 7), torch.nn.Linear(7, CLASSES))
    target = load_model(hidden.eval(), input_size=SIZE, mean=[0.5] * 3, std=[0.5] * 3)
    explainer = Explainer.for_target(target, Design(evidence="forward", width=16))
    assert explainer.config.evidence == "none"
    assert maps_of(explainer, target, images).shape == images[:, 0].shape


@pytest.mark.parametrize("evidence", ["backward", "forward"])
def test_both_classes_of_a_single_output(evidence: Any, images: Tensor) -> None:
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    module = randomised(nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 1)))
    options: dict[str, Any] = {"input_size": SIZE, "mean": (0.5,) * 3, "std": (0.5,) * 3, "score": "sigmoid"}
    target = load_model(module, **options)
    explainer = Explainer.for_target(target, Design(conditioning="head", evidence=evidence))
    maps = [explainer.maps(target, images, torch.full((len(images),), index)) for index in (0, 1)]
    assert all(bool(one.isfinite().all()) for one in maps) and not torch.equal(*maps)
    outputs, unknown = torch.tensor([[5.0], [-5.0]]), torch.tensor([-1, -1])
    per_class = target.score.per_class(outputs)
    assert explained_classes(per_class, unknown, torch.tensor([0, 0])).tolist() == [1, 0]
    assert explained_classes(per_class, unknown, torch.tensor([2, 2])).tolist() == [0, 1]
    config = load_settings("small", ["perturbations=2", "classes=[0, 1, 0]", "grids=[2,4]"]).training
    batch = StepBatch(images[:2], torch.tensor([1, 1]), [0, 1], ["a", "b"])
    loss = training_step(explainer, target, batch, config, 0)
    assert loss is not None


def test_class_vectors_are_those_of_the_weights_that_there_are() -> None:
    module = randomised(TinyCNN())
    target = load_model(module, input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
    former = target.class_vectors.clone()
    module.load_state_dict({name: value.clone() + 1 for name, value in module.state_dict().items()}, assign=True)
    assert torch.equal(target.class_vectors, former + 1)


@pytest.mark.parametrize("change", ["stride=6", "stride=64", "stages=[0,1,2,3,4]", "width=12", "width=1"])
def test_designs_that_cannot_be_built_are_refused(change: str) -> None:
    with pytest.raises(SpecError, match=f"^{change.partition('=')[0]} must be"):
        load_settings("small", [change])


@pytest.mark.parametrize("width", [2, 3, 7, 16])
def test_any_width_that_is_allowed_can_be_built(width: int, target: TargetModel, images: Tensor) -> None:
    design = load_settings("small", [f"width={width}"]).design
    explainer = Explainer.for_target(target, design)
    assert explainer.maps(target, images[:1], torch.tensor([0])).shape == (1, *images.shape[-2:])


def test_stages_that_are_not_there_are_refused(target: TargetModel) -> None:
    with pytest.raises(SpecError, match="has the stages 0 to"):
        Explainer.for_target(target, Design(stages=(0, 99)))


@pytest.mark.parametrize(
    "text", ["aha(refine=-1)", "aha(refine='much')", "aha(steps=0)", "aha(budget=1)", "aha(budget=8, looks=3)"]
)
def test_bad_parameters_are_one_line(text: str) -> None:
    with pytest.raises(SpecError, match="aha: "):
        aha.load_method(text)


def test_upload(explainer: Explainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub is asked for a repository and given exactly the three files."""
    import huggingface_hub

    asked: dict[str, object] = {}

    class Hub:
        def create_repo(self, name: str, **options: object) -> None:
            asked["made"] = (name, options["private"])

        def upload_folder(self, repo_id: str, folder_path: str) -> str:
            asked["files"] = sorted(path.name for path in Path(folder_path).iterdir())
            return f"https://hub/{repo_id}"

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    assert explainer.push_to_hub("me/mine", private=True) == "https://hub/me/mine"
    assert asked == {"made": ("me/mine", True), "files": ["README.md", "config.json", "model.safetensors"]}


def test_download(explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    folder = explainer.save_pretrained(tmp_path / "e")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(folder))
    assert Explainer.from_pretrained("me/mine").config == Explainer.from_pretrained(folder).config

"""Weights from files: read from any honest one, and nothing in them is ever run."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from reading import one_line
from safetensors.torch import save_file
from torch import Tensor, nn

from aha.errors import WeightsError
from aha.models import TargetModel, load_model
from fakes import (
    randomised,
)


@pytest.fixture
def small_vit() -> nn.Module:
    """A registered timm model with seven classes instead of its own thousand."""
    return randomised(timm.create_model("test_vit", num_classes=7, img_size=64))


def same(model: TargetModel, module: nn.Module) -> bool:
    state = module.state_dict()
    return all(torch.equal(value, state[key]) for key, value in model.module.state_dict().items())


SAVERS: dict[str, Callable[[dict[str, Tensor], Path], None]] = {
    "w.safetensors": save_file,
    "w.pth": torch.save,
    "w.pt": lambda state, path: torch.save({"epoch": 3, "state_dict": state, "best": 0.5}, path),
    "w.bin": lambda state, path: torch.save({"model": state, "optimizer": {"lr": 0.1}}, path),
    "w.ckpt": lambda state, path: torch.save({f"module.{k}": v for k, v in state.items()}, path),
    "w2.safetensors": lambda state, path: save_file({f"module.{k}": v for k, v in state.items()}, path),
    "w2.pth": lambda state, path: torch.save(
        {"model_state_dict": {f"module._orig_mod.{k}": v for k, v in state.items()}}, path
    ),
    "w3.pth": lambda state, path: torch.save(state, path, _use_new_zipfile_serialization=False),
}


@pytest.mark.parametrize("name", SAVERS)
def test_weights_are_read_from_any_honest_file(name: str, small_vit: nn.Module, tmp_path: Path) -> None:
    SAVERS[name](small_vit.state_dict(), tmp_path / name)
    model = load_model("timm:test_vit", weights=f"torch:{tmp_path}/{name}", input_size=64)
    assert same(model, small_vit)
    assert model.num_classes == 7  # read off the head
    assert model.class_names is None
    assert model.preprocessing is not None and model.preprocessing.size == (64, 64)


@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenet_v3_small", "resnet18"])
@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_torchvision_weights_with_other_classes(name: str, ending: str, tmp_path: Path) -> None:
    module = torchvision.models.get_model(name, num_classes=3)
    path = tmp_path / f"w.{ending}"
    {"pth": torch.save, "safetensors": save_file}[ending](module.state_dict(), path)
    model = load_model(f"torchvision:{name}", weights=f"torch:{path}")
    assert same(model, module)
    assert model.num_classes == 3


def test_weights_of_the_demo_model(tmp_path: Path) -> None:
    module = randomised(timm.create_model("tf_efficientnet_lite0"))
    save_file(module.state_dict(), tmp_path / "w.safetensors")
    assert same(load_model("demo:efficientnet_lite0", weights=tmp_path / "w.safetensors"), module)


def test_weights_that_do_not_fit_are_named(small_vit: nn.Module, tmp_path: Path) -> None:
    state = small_vit.state_dict()
    state["stray.weight"] = torch.zeros(1)
    del state["norm.bias"]
    state["blocks.0.mlp.fc1.bias"] = torch.zeros(3)
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(WeightsError) as caught:
        load_model("timm:test_vit", weights=f"torch:{tmp_path}/w.pth", input_size=64)
    text = one_line(caught)
    assert "missing: norm.bias" in text
    assert "unexpected: stray.weight" in text
    assert "wrong shape: blocks.0.mlp.fc1.bias (3,) instead of" in text


def test_many_mismatches_are_summed_up(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1)}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"missing: .*, .*, .* and \d+ more; unexpected: a$") as caught:
        load_model("timm:test_vit", weights=f"torch:{tmp_path}/w.pth")
    assert len(one_line(caught)) < 400


@pytest.mark.parametrize("name", [name for name in SAVERS if not name.endswith(".safetensors")])
def test_other_files_than_safetensors_are_a_choice(name: str, small_vit: nn.Module, tmp_path: Path) -> None:
    SAVERS[name](small_vit.state_dict(), tmp_path / name)
    with pytest.raises(WeightsError, match=rf"not a \.safetensors file; .* torch:.*{name}") as caught:
        load_model("timm:test_vit", weights=tmp_path / name)
    one_line(caught)


class Malicious:
    """An object whose unpickling would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("how", ["torch", "torch in a dict", "old torch", "pickle"])
def test_pickled_objects_are_refused_and_never_run(how: str, tmp_path: Path) -> None:
    evil, path = Malicious(tmp_path / "hacked"), tmp_path / "w.pth"
    if how == "pickle":
        path.write_bytes(pickle.dumps(evil))
    elif how == "torch in a dict":
        torch.save({"state_dict": {}, "config": evil}, path)
    else:
        torch.save(evil, path, _use_new_zipfile_serialization=how == "torch")
    with pytest.raises(WeightsError, match=r"unpickled, which can run code; save its state_dict as") as caught:
        load_model("timm:test_vit", weights=f"torch:{path}")
    one_line(caught)
    assert not (tmp_path / "hacked").exists()
    with path.open("rb") as file:  # the trap is a real one
        (torch.load(file, weights_only=False) if how != "pickle" else pickle.load(file))
    assert (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("w.pth", b"no weights at all"),
        ("w.pth", b""),
        ("w.pth", b"PK\x03\x04 cut short"),
        ("w.safetensors", b"\xff" * 64),
        ("w.safetensors", b""),
    ],
)
def test_damaged_files_are_one_line(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightsError, match=name) as caught:
        load_model("timm:test_vit", weights=f"torch:{tmp_path}/{name}")
    one_line(caught)


def test_files_without_a_state_dict_are_refused(tmp_path: Path) -> None:
    for index, content in enumerate([torch.zeros(3), [torch.zeros(3)], {"lr": 0.1}, {"a": {"b": 1}}]):
        torch.save(content, tmp_path / f"{index}.pth")
        with pytest.raises(WeightsError, match="not a state dict of named tensors"):
            load_model("timm:test_vit", weights=f"torch:{tmp_path}/{index}.pth")

"""`python:PACKAGE.MODULE:FUNCTION`: a user's own code as a source of models, by explicit choice and said aloud."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from reading import one_line
from safetensors.torch import save_file
from torch import Tensor

from aha.bench.plan import read_plans
from aha.errors import AhaWarning, ModelError, SpecError, WeightsError
from aha.learned.explainer import Explainer
from aha.learned.settings import Design
from aha.models import TargetModel, load_model

CODE = """
import torch
from torch import nn

import aha


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))


def stated():
    half = (0.5, 0.5, 0.5)
    return aha.load_model(network(), input_size=32, mean=half, std=half, score="sigmoid", class_names=list("abcde"))


def fast():
    half = (0.5, 0.5, 0.5)
    return aha.load_model(
        network(), input_size=32, mean=half, std=half, precision="bfloat16", engine="auto", batch_size=4
    )


def broken():
    raise ValueError("no such file")


number = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "my_nets").mkdir()
    (tmp_path / "my_nets" / "small.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield tmp_path
    assert sys.path == before
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_nets"]:
        del sys.modules[name]


def load(name: str, **options: Any) -> TargetModel:
    with pytest.warns(AhaWarning, match=r"runs code: .* is imported, from ") as heard:
        model = load_model(f"python:{name}", device="cpu", **options)
    assert heard[0].filename == __file__  # the line that asked for it
    return model


def test_a_function_of_the_current_folder(here: Path, images: Tensor) -> None:
    stated = {"input_size": 32, "mean": (0.5,) * 3, "std": (0.5,) * 3}
    model = load("my_nets.small:network", **stated)
    assert model.spec == "python:my_nets.small:network"
    assert model.num_classes == 5
    told = load("my_nets.small:stated")
    assert (told.score.name, told.class_name(1), told.stated_preprocessing().size) == ("sigmoid", "b", (32, 32))
    assert torch.equal(model.outputs(images), told.outputs(images))


def test_what_the_function_states_is_kept_or_said(here: Path) -> None:
    own = load("my_nets.small:fast", input_size=32)
    assert (own.precision, own.engine, own.chunks.size) == ("bfloat16", "auto", 4)
    other = load("my_nets.small:fast", precision="float16", engine="compiled", batch_size=2)
    assert (other.precision, other.engine, other.chunks.size) == ("float16", "compiled", 2)
    with pytest.warns(AhaWarning), pytest.raises(ModelError, match=r"states the input size \(32, 32\), not ") as caught:
        load_model("python:my_nets.small:fast", input_size=48)
    one_line(caught)


def test_with_weights(here: Path, images: Tensor) -> None:
    own = load("my_nets.small:network").module.state_dict()
    state = {name: torch.zeros(value.shape) for name, value in own.items()}
    save_file(state, here / "zeros.safetensors")
    assert not load("my_nets.small:network", weights=here / "zeros.safetensors").outputs(images).any()
    save_file({"other": torch.zeros(1)}, here / "other.safetensors")
    with pytest.warns(AhaWarning), pytest.raises(WeightsError, match="does not fit the model"):
        load_model("python:my_nets.small:network", weights=here / "other.safetensors")


def test_files_from_elsewhere_cannot_name_it(here: Path, images: Tensor) -> None:
    plan = here / "plan.toml"
    plan.write_text('model = "python:my_nets.small:stated"\ndata = "photos"\nmethods = ["gradient"]\n')
    with pytest.raises(ModelError, match=r"names python:my_nets.small:stated, which would run code") as caught:
        read_plans(plan)
    one_line(caught)
    assert read_plans(plan, {"model": ["python:my_nets.small:network"]})  # said by the user himself
    target = load("my_nets.small:stated")
    with pytest.raises(ModelError, match="the explainer names python:"):
        Explainer.for_target(target, Design(encoder="python:my_nets.small:stated"))


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("my_nets.small", SpecError, "write python:PACKAGE.MODULE:FUNCTION"),
        ("my_nets.tiny:network", ModelError, "cannot import my_nets.tiny from .*: ModuleNotFoundError"),
        ("my_nets.small:netwrk", ModelError, "my_nets.small has no netwrk; did you mean network"),
        ("my_nets.small:broken", ModelError, "python:my_nets.small:broken failed: ValueError: no such file"),
        ("my_nets.small:number", ModelError, "gives int; it must return a torch.nn.Module"),
    ],
)
@pytest.mark.filterwarnings("ignore::aha.errors.AhaWarning")
def test_what_is_refused(here: Path, name: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        load_model(f"python:{name}")
    one_line(caught)

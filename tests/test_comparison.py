"""The table in the README that compares tools: what can be checked is checked on the installed packages."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

README = Path(__file__).parents[1] / "README.md"
if not README.is_file():
    pytest.skip("the README is part of the source tree, not of the package", allow_module_level=True)

STATED = dict(re.findall(r"(captum|grad-cam|torch-cam) (\d+\.\d+\.\d+)", README.read_text(encoding="utf-8")))
INSTALLED_AS = {"captum": "captum", "grad-cam": "grad-cam", "torch-cam": "torchcam"}


def installed(name: str) -> Any:
    """The package, if it is the version that the table speaks of."""
    pytest.importorskip({"grad-cam": "pytorch_grad_cam"}.get(name, INSTALLED_AS[name]))
    found = distribution(INSTALLED_AS[name])
    if found.version != STATED[name]:
        pytest.skip(f"the table speaks of {name} {STATED[name]}; {found.version} is installed")
    return found


def small() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))


def is_required(function: Any, name: str) -> bool:
    return inspect.signature(function).parameters[name].default is inspect.Parameter.empty


def test_versions_are_stated() -> None:
    assert STATED.keys() == INSTALLED_AS.keys()


@pytest.mark.parametrize("name", INSTALLED_AS)
def test_no_command_line(name: str) -> None:
    assert [entry for entry in installed(name).entry_points if entry.group == "console_scripts"] == []


def test_captum() -> None:
    installed("captum")
    import captum.attr
    import captum.metrics

    assert is_required(captum.attr.LayerGradCam.__init__, "layer")
    assert {"Lime", "KernelShap", "Occlusion"} <= set(captum.attr.__all__)
    assert not [name for name in captum.attr.__all__ if "rise" in name.lower()]
    assert {"infidelity", "sensitivity_max"} <= set(captum.metrics.__all__)
    assert not [name for name in captum.metrics.__all__ if "deletion" in name or "insertion" in name]

    module, images = small().train(), torch.rand(1, 3, 8, 8)
    captum.attr.LayerGradCam(module, module[0]).attribute(images, target=1)
    assert module.training
    assert all(parameter.grad is None for parameter in module.parameters())


def test_torch_cam() -> None:
    installed("torch-cam")
    import torchcam.methods
    import torchcam.metrics

    assert not is_required(torchcam.methods.GradCAM.__init__, "target_layer")
    assert {"LeGrad", "ScoreCAM"} <= set(dir(torchcam.methods))
    assert hasattr(torchcam.metrics, "DeletionInsertionMetric")


@pytest.mark.filterwarnings("ignore")
def test_grad_cam() -> None:
    installed("grad-cam")
    import pytorch_grad_cam
    from pytorch_grad_cam.metrics import cam_mult_image, road

    assert is_required(pytorch_grad_cam.GradCAM.__init__, "target_layers")
    assert "reshape_transform" in inspect.signature(pytorch_grad_cam.GradCAM.__init__).parameters
    assert {"ScoreCAM", "AblationCAM"} <= set(dir(pytorch_grad_cam))
    assert hasattr(road, "ROADCombined") and hasattr(cam_mult_image, "DropInConfidence")

    module = small().train()
    with pytorch_grad_cam.GradCAM(model=module, target_layers=[module[0]]) as cam:
        cam(input_tensor=torch.rand(1, 3, 8, 8), targets=None)
    assert not module.training
    assert any(parameter.grad is not None for parameter in module.parameters())

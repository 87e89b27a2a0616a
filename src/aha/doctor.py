"""Does this installation work? Versions, devices, extras, caches, and explanations whose answers are known."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import torch
from huggingface_hub.constants import HF_HUB_CACHE
from torch import nn

from aha.api import explain
from aha.core.disk import check_writable, versions
from aha.demo import MODEL, photographs
from aha.errors import AhaError
from aha.models import load_model

_PACKAGE = "aha-attribution"
# Extras for those who work on the project, not for those who use it.
_INTERNAL = {"browser", "dev", "docs", "test"}
_CLEAR_CUT, _ANSWER = "camera.png", "tripod"
_TOLERANCE = 1e-4
_PERCENT = 20


@dataclass(frozen=True)
class Check:
    """One thing that was tried."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Extra:
    """An optional part of the installation."""

    name: str
    installed: bool
    install: str


@dataclass(frozen=True)
class Diagnosis:
    """Everything worth knowing about an installation."""

    versions: dict[str, str]
    devices: dict[str, str]
    extras: list[Extra]
    checks: list[Check]

    @property
    def ok(self) -> bool:
        """No check failed."""
        return all(check.ok for check in self.checks)


def diagnose() -> Diagnosis:
    """Looks at the installation and tries it; takes a few seconds."""
    devices, extras = find_devices(), find_extras()
    checks = [
        _tried("weights cache of the hub", partial(_check_cache, Path(HF_HUB_CACHE))),
        _tried("weights cache of PyTorch", partial(_check_cache, Path(torch.hub.get_dir()))),
        *(_tried(f"known answer on {name}", partial(check_known_answer, name)) for name in devices),
    ]
    if all(extra.installed for extra in extras if extra.name == "demo"):
        checks.append(_tried("demo explanation", check_demo))
    return Diagnosis(find_versions(), devices, extras, checks)


def find_versions() -> dict[str, str]:
    """Versions of the packages that matter, optional ones included where they are installed."""
    optional = [package for packages in extra_packages().values() for package in packages]
    others = ("huggingface_hub", "safetensors", *optional)
    return versions() | {name: found for name in others if (found := _version(name)) is not None}


def find_devices() -> dict[str, str]:
    """Devices that PyTorch can use, with a word about each."""
    devices = {"cpu": f"{torch.get_num_threads()} threads"}
    devices |= {f"cuda:{i}": torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
    return devices | ({"mps": "Apple GPU"} if torch.backends.mps.is_available() else {})


def find_extras() -> list[Extra]:
    """Which extras are installed, and how to get them."""
    return [
        Extra(name, all(map(_version, packages)), f"pip install '{_PACKAGE}[{name}]'")
        for name, packages in extra_packages().items()
    ]


def extra_packages() -> dict[str, list[str]]:
    """Optional packages, by the extra that installs them."""
    found: dict[str, list[str]] = {}
    for line in requires(_PACKAGE) or ():
        optional = re.match(r"([\w.-]+).*;.*\bextra == ['\"]([\w-]+)['\"]", line)
        if optional and optional[2] not in _INTERNAL:
            found.setdefault(optional[2], []).append(optional[1])
    return found


def check_known_answer(device: str = "cpu") -> str:
    """Explains a linear model, whose input times gradient adds up to its score."""
    linear = nn.Linear(3 * 8 * 8, 5, bias=False)
    linear.weight.data = torch.arange(float(linear.weight.numel())).view_as(linear.weight).sin()
    network = nn.Sequential(nn.Flatten(), linear).to(device)
    inputs = torch.linspace(-1, 1, 3 * 8 * 8).view(1, 3, 8, 8)
    explanation = explain(load_model(network, score="logit"), inputs, "input_x_gradient", target=3, progress=False)
    total, score = float(explanation.maps.sum()), float(explanation.scores[0])
    if abs(total - score) > _TOLERANCE * max(1.0, abs(score)):
        raise AhaError(f"input times gradient of a linear model sums to {total:.6g}, not to its score {score:.6g}")
    return f"input times gradient sums to the score, {score:.4g}"


def check_demo() -> str:
    """Explains a photograph whose answer is clear-cut: the class and where its evidence lies are known beforehand.

    Hiding the strongest evidence must cost more than hiding the weakest. That tests the installation, not the method:
    the picture was chosen because the margin is wide, and on others, such as the demo's motorcycle, it goes the other
    way.
    """
    model = load_model(MODEL)
    explanation = explain(model, photographs([_CLEAR_CUT]), "grad_cam", progress=False)
    if explanation.labels[0] != _ANSWER:
        raise AhaError(f"the model takes {_CLEAR_CUT} for: {explanation.labels[0]}; expected: {_ANSWER}")
    inputs, _ = model.stated_preprocessing()(explanation.subjects[0].image)
    order = explanation.maps[0].flatten().argsort()
    count = len(order) * _PERCENT // 100
    strongest, weakest = (inputs.flatten(1).clone() for _ in range(2))
    strongest[:, order[-count:]] = 0
    weakest[:, order[:count]] = 0
    hidden = torch.stack([strongest, weakest]).view(2, *inputs.shape)
    without_strong, without_weak = model.scores(hidden, explanation.targets.expand(2)).tolist()
    found = f"{without_strong:.2f} without the strongest {_PERCENT} %, {without_weak:.2f} without the weakest"
    if not without_strong < without_weak:
        raise AhaError(f"grad_cam highlights the wrong pixels: {_ANSWER} is {found}")
    return f"{explanation.caption(0)}; {found}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _check_cache(folder: Path) -> str:
    check_writable(folder)
    return str(folder)


def _tried(name: str, check: Callable[[], str]) -> Check:
    """A check's outcome; whatever it throws is a finding, not the end of the diagnosis."""
    try:
        return Check(name, True, check())
    except Exception as error:
        return Check(name, False, " ".join(str(error).split()) or type(error).__name__)

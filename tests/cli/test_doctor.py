"""`aha doctor` finds a sound installation sound and a broken one broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from aha import doctor
from command_line import run


def test_doctor_finds_a_sound_installation() -> None:
    told = json.loads(run("doctor", "--json").stdout)
    assert told["ok"]
    assert {check["name"] for check in told["checks"]} >= {"known answer on cpu", "demo explanation"}
    assert told["versions"]["torch"] == torch.__version__
    assert "cpu" in told["devices"]
    assert {extra["name"]: extra["installed"] for extra in told["extras"]}["demo"]
    assert run("doctor", "--quiet").output == ""
    assert "pip install" in run("doctor").stdout or all(extra["installed"] for extra in told["extras"])


def test_doctor_fails_when_a_check_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(doctor, "HF_HUB_CACHE", str(tmp_path / "file" / "hub"))
    original = doctor.explain

    def doubled(*args: Any, **options: Any) -> Any:
        explanation = original(*args, **options)
        explanation.maps.mul_(2)
        return explanation

    monkeypatch.setattr(doctor, "explain", doubled)
    result = run("doctor", "--quiet")
    assert result.exit_code == 1
    failed = [line for line in result.stdout.splitlines() if line.startswith("failed")]
    assert any("weights cache of the hub" in line for line in failed)
    assert any("linear model" in line for line in failed)
    assert run("doctor", "--json").exit_code == 1


def test_extras_are_read_from_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = ["torch>=2.4", "pytest>=8; extra == 'test'", 'uvicorn; extra == "web"', "a-b.c[d]>=1,<2 ; extra == 'web'"]
    monkeypatch.setattr(doctor, "requires", lambda name: stated)
    assert doctor.extra_packages() == {"web": ["uvicorn", "a-b.c"]}
    (web,) = doctor.find_extras()
    assert not web.installed
    assert web.install == "pip install 'aha-attribution[web]'"

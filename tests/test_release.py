"""A release that can be trusted: one version, floors and constraints that fit, workflows that call what exists."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import aha

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
if not GITHUB.is_dir():
    pytest.skip("workflows are part of the clone, not of the package", allow_module_level=True)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [
    Requirement(line) for line in (*PROJECT["dependencies"], *(one for own in EXTRAS.values() for one in own))
]
WORKFLOWS = {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in GITHUB.glob("workflows/*.yml")}


def script(name: str) -> ModuleType:
    spec = spec_from_file_location(f"ci_{name}", ROOT / ".ci" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The version


def test_nothing_speaks_against_a_release_of_this_version() -> None:
    assert list(script("release").problems(f"v{aha.__version__}", PROJECT["urls"]["Repository"])) == []
    assert version(PROJECT["name"]) == aha.__version__ and PROJECT["dynamic"] == ["version"]


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    for name in ("src/aha/__init__.py", "CITATION.cff", "CHANGELOG.md", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace(f'__version__ = "{aha.__version__}"', '__version__ = "9.8.7"'))
    told = list(script("release").problems("v9.8.6", "https://github.com/somebody/fork", tmp_path))
    for line, words in zip(told, ("v9.8.6", "CITATION.cff", "CHANGELOG.md", "somebody/fork"), strict=True):
        assert words in line
    clone = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "release.py"), "v9.8.6"], capture_output=True, text=True, env={}
    )
    assert clone.returncode == 1 and "the tag is v9.8.6" in clone.stderr


def test_the_changelog_is_by_user_effect() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert sections[0] == "Unreleased" and sections[1].startswith(f"{aha.__version__} (")
    effects = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert set(effects) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


# Versions of others


def test_every_requirement_has_a_floor_and_the_floors_are_written_once() -> None:
    lines = list(script("floors").floors(PROJECT))
    assert "torch==2.10" in lines and "ray==2.40" in lines  # of the package, of an extra with an extra of its own
    assert not [line for line in lines if line.startswith(("ruff", "pytest"))]  # tools are the newest
    names = [canonicalize_name(line.partition("==")[0]) for line in lines]
    assert len(names) == len(set(names)), "a requirement with two floors"
    with pytest.raises(SystemExit, match="states no oldest version"):
        list(script("floors").floors({"dependencies": ["torch"], "optional-dependencies": {}}))


def test_constraints_fit_the_requirements() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {canonicalize_name(name): pin for name, pin in (line.split("==") for line in lines)}
    peers_only = {canonicalize_name(Requirement(line).name) for line in EXTRAS["peers"]}
    unused = {"tensorboard", "datasets", *peers_only}  # of extras that contributors do not install
    for requirement in REQUIREMENTS:
        name = canonicalize_name(requirement.name)
        if name in pins:
            assert requirement.specifier.contains(pins[name]), (
                f"{requirement}, but {pins[name]}: run `make constraints`"
            )
        else:
            assert name in {*unused, canonicalize_name(PROJECT["name"])}, f"no pin for {name}: run `make constraints`"


# What GitHub reads


def steps() -> list[tuple[str, dict[str, Any]]]:
    jobs = [(name, job) for name, workflow in WORKFLOWS.items() for job in workflow["jobs"].values()]
    return [(name, step) for name, job in jobs for step in job.get("steps", [])]


def test_all_workflows_call_the_one_command() -> None:
    commands = [step["run"] for _, step in steps() if "run" in step]
    called = [shlex.split(command)[1:] for command in commands if command.startswith(".ci/run ")]
    assert [one for one in commands if not one.startswith((".ci/run ", "command -v make"))] == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {words[0] for words in called}
    assert targets == {"check", "smoke", "package", "site", "floors", "release"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_the_pythons_of_the_classifiers_are_checked() -> None:
    stated = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)]
    assert WORKFLOWS["check.yml"]["jobs"]["check"]["strategy"]["matrix"]["python"] == stated
    assert PROJECT["requires-python"] == f">={stated[0]}"


def test_only_the_job_that_publishes_may_publish_and_only_after_the_checks() -> None:
    jobs = WORKFLOWS["release.yml"]["jobs"]
    trusted = [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})]
    assert (
        trusted == ["publish"] and jobs["publish"]["needs"] == "check" and jobs["check"]["needs"] == "may-be-published"
    )
    assert all(workflow["permissions"] == {"contents": "read"} for workflow in WORKFLOWS.values())


def test_the_form_for_bugs_asks_for_the_doctor() -> None:
    form = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / "bug.yml").read_text(encoding="utf-8"))
    (doctor,) = (part for part in form["body"] if part["id"] == "doctor")
    assert "aha doctor" in doctor["attributes"]["label"] and doctor["validations"]["required"]


# What git calls


def test_hooks_name_what_exists() -> None:
    (own,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    for hook in own["hooks"]:
        words = hook["entry"].split()
        named = [word for word in words if "/" in word and not word.startswith(".venv/")]
        assert all((ROOT / word).is_file() for word in named), hook["entry"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
@pytest.mark.parametrize(("length", "fine"), [(72, True), (73, False)])
def test_a_subject_has_at_most_72_characters(tmp_path: Path, length: int, fine: bool) -> None:
    (tmp_path / "message").write_text("x" * length + "\n\n" + "why " * 40)
    done = subprocess.run(["bash", str(ROOT / ".ci" / "subject"), str(tmp_path / "message")], capture_output=True)
    assert (done.returncode == 0) == fine

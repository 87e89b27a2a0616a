"""No test is skipped in silence: a run says how many were and why, and `.ci/browser` gets the browser or says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from skips import summary

HERE = Path(__file__).parent
CI = HERE.parent / ".ci"
TESTS = """
import pytest

@pytest.mark.parametrize("i", range(3))
def test_page(i):
    pytest.skip("no Chromium on this machine")

@pytest.mark.skipif(True, reason="needs Linux")
def test_system():
    pass

def test_sum():
    assert 1 + 1 == 2
"""


def test_reasons_are_counted_most_frequent_first() -> None:
    assert summary([]) == "skipped: 0"
    assert summary(["Skipped: b", "a", "b"]) == "skipped: 3 (2 because b; 1 because a)"


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["one process", "two workers"])
def test_the_line_stands_before_the_closing_one(tmp_path: Path, workers: list[str]) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "skips", "-ra", *workers, "test_some.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(HERE)}, capture_output=True, text=True, timeout=120
    )
    *_, told, closing = done.stdout.strip().splitlines()
    assert told == "skipped: 4 (3 because no Chromium on this machine; 1 because needs Linux)"
    assert "1 passed, 4 skipped in" in closing


# The browser


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder that is the whole path: with the few programs that the script needs, and no browser."""
    if not CI.is_dir() or os.name == "nt":
        pytest.skip("the scripts of .ci run under Linux and macOS, from the source tree")
    for name in ("bash", "sh", "timeout"):
        if found := shutil.which(name):
            (tmp_path / name).symlink_to(found)
    program(tmp_path / "id", "echo 0")
    return tmp_path


def program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def told_by_browser(machine: Path) -> str:
    done = subprocess.run(
        [str(machine / "bash"), str(CI / "browser")], env={"PATH": str(machine)}, capture_output=True, text=True
    )
    assert done.returncode == 0
    return (done.stdout + done.stderr).strip().splitlines()[-1]


def test_a_browser_that_is_there_is_named(machine: Path) -> None:
    program(machine / "google-chrome", "true")
    assert told_by_browser(machine) == f"browser tests: {machine / 'google-chrome'}"


def test_root_installs_it(machine: Path) -> None:
    if shutil.which("timeout") is None:
        pytest.skip("no `timeout` on this machine")
    # The stand-in of apt-get makes a program where it is asked to install one.
    program(
        machine / "apt-get",
        f'case "$*" in *install*) echo > {machine}/chromium; /bin/chmod +x {machine}/chromium;; esac',
    )
    assert told_by_browser(machine) == f"browser tests: {machine / 'chromium'}"


@pytest.mark.parametrize(
    ("programs", "word"),
    [
        ({}, "no apt-get"),
        ({"apt-get": "true", "id": "echo 1000"}, "only root"),
        ({"apt-get": "echo E: no network >&2; exit 100"}, "E: no network"),
        ({"apt-get": "true"}, "brought no program"),
    ],
    ids=["no apt-get", "not root", "no network", "a package without it"],
)
def test_what_cannot_be_installed_is_said(machine: Path, programs: dict[str, str], word: str) -> None:
    for name, line in programs.items():
        program(machine / name, line)
    told = told_by_browser(machine)
    assert "WILL BE SKIPPED" in told and word in told

"""What the tests of the command line share: running it, and pictures good and bad."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from aha import explain_folder as files
from aha.cli import app

MODEL = ("--model", "timm:test_resnet", "--no-pretrained")


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def picture(path: Path, seed: int = 0, size: tuple[int, int] = (48, 40)) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def pictures(folder: Path, count: int) -> Path:
    folder.mkdir()
    for number in range(count):
        picture(folder / f"{number:02}.png", number)
    return folder


def bomb(path: Path) -> Path:
    """A PNG of a few bytes that claims to be of 900 million pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b""))
    return path


def truncated(path: Path) -> Path:
    whole = picture(path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path


def assert_refused(result: Result, *words: str) -> None:
    """One line on stderr that names the problem, nothing on stdout, exit code 1."""
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line


def items(out: Path) -> list[dict[str, Any]]:
    manifest: list[dict[str, Any]] = json.loads((out / "manifest.json").read_text())["items"]
    return manifest


def watch_explained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the images that pass through the model from now on, each once per method."""
    names: list[str] = []
    original = files.explain

    def spy(model: Any, batch: Any, *args: Any, **options: Any) -> Any:
        names.extend(subject.name for subject in batch.subjects)
        return original(model, batch, *args, **options)

    monkeypatch.setattr(files, "explain", spy)
    return names

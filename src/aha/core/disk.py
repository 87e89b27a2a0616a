"""Files: written whole or not at all, errors of the disk in one line, and what a result depends on."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import torch

from aha.errors import OutputError

_HOST = re.sub(r"[^A-Za-z0-9]+", "-", platform.node())[:40] or "here"
MANIFEST, JOURNAL = "manifest.json", "journal.jsonl"
"""Files by which a folder of results is known, so that its pictures are not taken for pictures to look at."""


def place_of(path: str | Path) -> Path:
    """Where results go, or a line that says that this is no path."""
    if not isinstance(path, str | os.PathLike) or not str(path) or "\0" in str(path):
        raise OutputError(f"{path!r} is not a path to write to; name a file or a folder")
    return Path(path)


def check_writable(folder: Path) -> None:
    """Refuses a folder that cannot be written to, or could not be made; creates nothing."""
    place_of(folder)
    with writing(folder):
        existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        if not existing.is_dir():
            raise OutputError(f"cannot write to {folder}: {existing} is not a folder")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise OutputError(f"cannot write to {folder}: no permission to write in {existing}")


def check_regular(path: Path) -> None:
    """Refuses, as an OSError, what is there but is no file: a pipe or a device would be waited for without end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(f"{path.name} is a pipe or a device, not a file")


def readable(path: str | Path) -> str:
    """A path as text that every file can hold; names in another encoding than UTF-8 are spelled out."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def result_key(*parts: object) -> str:
    """Digest of everything a result depends on."""
    return hashlib.blake2b(json.dumps([str(part) for part in parts]).encode(), digest_size=16).hexdigest()


def versions() -> dict[str, str]:
    """Versions that a result may depend on."""
    packages = {name: version(name) for name in ("aha-attribution", "timm", "torchvision", "pillow", "numpy")}
    return {"python": platform.python_version(), "torch": torch.__version__, **packages}


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Writes beside the file and moves into place, so that readers see the old file or the new one, never a part."""
    partial = path.with_name(f".{path.name}.{_HOST}-{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            write(file)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def remove_partials(folder: Path) -> None:
    """Deletes what `write_atomically` of processes of this machine that were killed left below a folder."""
    for path in folder.rglob(".*.partial"):
        host, _, number = path.name.removesuffix(".partial").rpartition(".")[2].rpartition("-")
        is_elsewhere = host not in ("", _HOST)  # whether a process of another machine is running cannot be known here
        if not is_elsewhere and not (number.isdecimal() and _is_running(int(number))):
            path.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    if os.name == "nt" or process == os.getpid():
        return True  # Windows has no harmless signal to ask with
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # somebody else's
    return not _has_ended(process)


def _has_ended(process: int) -> bool:
    """Killed, but still listed because its parent has not asked for it yet; where Linux says so."""
    try:
        facts = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return facts.rpartition(")")[2].split()[0] in "ZX"  # behind the name, which may hold anything


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns an error of the disk into one line."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from error

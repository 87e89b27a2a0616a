"""Explainers at hand: shipped with the package, or trained here, found by the digest of the model they belong to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from platformdirs import user_cache_path

from aha.errors import ModelError
from aha.learned.explainer import CONFIG, WEIGHTS, Explainer
from aha.models import TargetModel

SHIPPED = Path(__file__).parent / "shipped"


def cache_folder() -> Path:
    """Where trained explainers are remembered: $AHA_CACHE, or the user's cache folder."""
    if chosen := os.environ.get("AHA_CACHE"):
        return Path(chosen) / "explainers"
    return user_cache_path("aha", appauthor=False) / "explainers"


def explainer_of(target: TargetModel, named: str = "", size: Sequence[int] | None = None) -> Explainer:
    """The explainer that is named, or else the one that belongs to the model; refused if it does not fit it.

    `size` (C, H, W) is that of the inputs, for a model that does not state it.
    """
    source = named or explainer_folder(target)
    if source is not None:
        found = load_explainer(source, target.device)
        found.check_target(target, size)
        return found
    raise ModelError(
        f"no explainer belongs to {target.spec}; train one: aha train --model {target.spec} --data IMAGES --out RUN "
        "--remember; or name one: aha('FOLDER')"
    )


def explainer_folder(target: TargetModel) -> Path | None:
    """Where the explainer that belongs to the model is, if there is one."""
    folders = (cache_folder() / target.digest, SHIPPED / target.digest)
    return next((folder for folder in folders if (folder / CONFIG).is_file()), None)


def remember(explainer: Explainer) -> Path:
    """Saves an explainer where `explainer_of` finds it."""
    return explainer.save_pretrained(cache_folder() / explainer.config.target_digest)


def load_explainer(source: str | Path, device: torch.device) -> Explainer:
    """An explainer from a folder or the hub, read once as long as the files stay the same."""
    files = [path.stat() for name in (CONFIG, WEIGHTS) if (path := Path(source) / name).is_file()]
    # Files are replaced whole, so that another content is another file.
    version = tuple((file.st_ino, file.st_mtime_ns, file.st_size) for file in files)
    return _load(str(source), str(device), version)


@lru_cache(maxsize=4)
def _load(source: str, device: str, _version: tuple[tuple[int, ...], ...]) -> Explainer:
    return Explainer.from_pretrained(source, device=device)

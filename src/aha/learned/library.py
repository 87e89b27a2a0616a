"""Explainers at hand: universal ones, and those that belong to a model, shipped or trained here, by its digest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch
from platformdirs import user_data_path

from aha.core.disk import writing
from aha.errors import AhaWarning, ModelError, SpecError, warn
from aha.learned import universal
from aha.learned.explainer import CONFIG, WEIGHTS, Explainer
from aha.models import TargetModel

SHIPPED = Path(__file__).parent / "shipped"
UNIVERSAL = "universal"
"""Names the explainers that belong to no model: one reads stages of features, one the tokens of a transformer."""

Origin = Literal["remembered", "shipped", "universal"]


def remembered_folder() -> Path:
    """Where trained explainers are remembered: $AHA_DATA, or the user's folder for data of programs."""
    if chosen := os.environ.get("AHA_DATA"):
        return Path(chosen) / "explainers"
    return user_data_path("aha", appauthor=False) / "explainers"


def explainer_of(target: TargetModel, named: str = "", size: Sequence[int] | None = None) -> Explainer:
    """The explainer that is named, else the one that belongs to the model, else the universal one.

    `size` (C, H, W) is that of the inputs, for a model that does not state it.
    """
    found = load_explainer(_source(target, named, size), target.device)
    found.check_target(target, size)
    return found


def _source(target: TargetModel, named: str, size: Sequence[int] | None) -> str | Path:
    if named and named != UNIVERSAL:
        return named
    own = None if named else explainer_folder(target)
    return own or universal_folder(target, size)


def explainer_folder(target: TargetModel) -> Path | None:
    """Where the explainer that belongs to the model is, if there is one. It knows classes, and no other target."""
    if target.explained is not None:
        return None
    folders = (remembered_folder() / target.digest, SHIPPED / target.digest)
    return next((folder for folder in folders if (folder / CONFIG).is_file()), None)


def universal_folder(target: TargetModel, size: Sequence[int] | None = None) -> Path:
    """Where the universal explainer for networks of this kind is."""
    return SHIPPED / UNIVERSAL / universal.reading_of(target, size)


@dataclass(frozen=True)
class KnownExplainer:
    """An explainer on this machine."""

    origin: Origin
    folder: Path
    explainer: Explainer


def known_explainers() -> Iterator[KnownExplainer]:
    """All of them: remembered ones first, as they come first when a model is explained."""
    places: tuple[tuple[Origin, Path], ...] = (
        ("remembered", remembered_folder()),
        ("shipped", SHIPPED),
        ("universal", SHIPPED / UNIVERSAL),
    )
    for origin, place in places:
        for config in sorted(place.glob(f"*/{CONFIG}")):
            yield KnownExplainer(origin, config.parent, load_explainer(config.parent, torch.device("cpu")))


def find_entry(text: str) -> KnownExplainer:
    """The known explainer whose digest, model or model's digest begins with this text."""
    found = [
        entry
        for entry in known_explainers()
        if text in (entry.explainer.config.target, str(entry.folder))
        or any(digest.startswith(text) for digest in (entry.explainer.digest, entry.folder.name))
    ]
    if len(found) != 1:
        many = f"{len(found)} explainers are" if found else "no explainer is"
        raise SpecError(f"{many} known by {text!r}; `aha explainers list` shows all, each with its digest")
    return found[0]


def remember(explainer: Explainer) -> Path:
    """Saves an explainer where `explainer_of` finds it; says so where it takes another one's place."""
    digest = explainer.config.target_digest
    if not digest:
        raise ModelError("an explainer of several models belongs to none of them; name its folder: aha('FOLDER')")
    for place, kind in ((remembered_folder(), "remembered"), (SHIPPED, "shipped")):
        if (place / digest / CONFIG).is_file():
            warn(
                f"{explainer.config.target} had a {kind} explainer, which this one replaces; "
                f"`aha explainers forget {digest[:8]}` undoes it",
                AhaWarning,
            )
            break
    return explainer.save_pretrained(remembered_folder() / digest)


def forget(entry: KnownExplainer) -> None:
    """Removes a remembered explainer; those of the package stay."""
    if entry.origin != "remembered":
        raise SpecError(f"{entry.folder.name} is part of the package; only remembered explainers can be forgotten")
    with writing(entry.folder):
        shutil.rmtree(entry.folder)


def load_explainer(source: str | Path, device: torch.device) -> Explainer:
    """An explainer from a folder or the hub, read once as long as the files stay the same."""
    files = [path.stat() for name in (CONFIG, WEIGHTS) if (path := Path(source) / name).is_file()]
    # Files are replaced whole, so that another content is another file.
    version = tuple((file.st_ino, file.st_mtime_ns, file.st_size) for file in files)
    return _load(str(source), str(device), version)


@lru_cache(maxsize=8)
def _load(source: str, device: str, _version: tuple[tuple[int, ...], ...]) -> Explainer:
    return Explainer.from_pretrained(source, device=device)

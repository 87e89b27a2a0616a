"""Files and folders explained into a result folder: streamed, resumable, each picture read once for all methods.

Everything is checked when a `FileRun` is made, before a picture is read or a file written. An image is known by its
path, size and time of change, so that what an earlier run finished costs neither decoding nor a model run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from aha import __version__
from aha.api import UPSAMPLING, explain_batch
from aha.core.disk import result_key
from aha.core.progress import Listener, heard_by, in_parts
from aha.data.batches import Batch, iter_batches
from aha.data.images import find_images
from aha.data.targets import resolve_targets
from aha.errors import ImageError, ModelError, OutputError, TargetError
from aha.methods import Method, check_fit
from aha.models import TargetModel
from aha.results.folder import ResultFolder


@dataclass(frozen=True)
class Failure:
    """A picture that could not be explained, and why."""

    image: str
    error: str


def find_files(paths: Iterable[Path], out: Path) -> list[Path]:
    """All pictures at the paths, each once; results of an earlier run below `out` are not taken for pictures.

    Raises:
        ImageError: A path does not exist, or a folder has no pictures.
        OutputError: `out` is one of the folders, or around it.
    """
    results = out.absolute()
    files: dict[Path, None] = {}
    for path in paths:
        inside = path.is_dir() and results in (path.absolute(), *path.absolute().parents)
        if inside:
            raise OutputError(f"{out} holds the pictures themselves; choose another output folder")
        found = find_images(path)
        # A file that is named itself is always meant.
        files |= dict.fromkeys(file for file in found if file == path or results not in file.absolute().parents)
    if not files:
        raise ImageError(f"no pictures besides the results in {out}")
    return list(files)


def read_class_names(path: Path) -> list[str]:
    """Class names from a text file, one per line."""
    try:
        return path.read_text(encoding="utf-8").strip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read class names from {path}: {error}") from None


class FileRun:
    """Explanations of many files by several methods.

    Attributes:
        pending: names of the images that are not finished yet; some of their maps may be.
        done: images explained by this run.
        skipped: images that an earlier run had finished.
        failures: images that could not be read.
        manifest: where the results are listed; None as long as there are none.
    """

    def __init__(
        self,
        model: TargetModel,
        files: Sequence[Path],
        methods: Sequence[Method],
        target: str,
        out: Path,
        *,
        seed: int = 0,
    ) -> None:
        for method in methods:
            check_fit(method, model)
        if model.class_names is not None and len(model.class_names) != model.num_classes:
            raise ModelError(
                f"{len(model.class_names)} class names for the {model.num_classes} classes of {model.spec}"
            )
        self._model, self._methods, self._target, self._seed = model, list(dict.fromkeys(methods)), target, seed
        self._maps_per_image = _count_classes(target, model)
        settings = self._settings()
        self._results = ResultFolder(out, model.spec, model.digest, settings)
        self._finished = self._results.keys
        self._common_key = result_key(
            __version__, model.spec, model.digest, model.preprocessing, model.class_names, sorted(settings.items())
        )
        identities = {str(file): self._identity(file) for file in files}
        self._identities = {name: known for name, known in identities.items() if not self._is_finished(known)}
        self.done, self.skipped = 0, len(files) - len(self._identities)
        self.failures: list[Failure] = []
        self.manifest: Path | None = None

    @property
    def pending(self) -> list[str]:
        """Names of the images that are not finished yet; some of their maps may be."""
        return list(self._identities)

    def run(self, batch_size: int, on_progress: Callable[[float], None] = lambda count: None) -> None:
        """Explains what is pending; `on_progress` is told how many images' worth of work was done since the last call.

        Whatever ends it, an interrupt included, the manifest lists what is done.
        """

        def on_error(name: str, error: ImageError) -> None:
            text = str(error)
            self.failures.append(Failure(name, text if name in text else f"{name}: {text}"))
            on_progress(1)

        try:
            if self._identities:
                for batch in iter_batches(self._model, self.pending, batch_size, on_error=on_error):
                    with heard_by(_since_last_time(on_progress, len(batch.subjects))):
                        for method in in_parts(self._methods):
                            self._explain(batch, method)
                    self.done += len(batch.subjects)
        finally:
            if len(self._results):
                self._results.note(self._model.engine_facts)
                self.manifest = self._results.finish()

    def _explain(self, batch: Batch, method: Method) -> None:
        identities = [self._identities[subject.name] for subject in batch.subjects]
        rows = [row for row, known in enumerate(identities) if not self._has_maps(known, method)]
        if not rows:
            return
        part = Batch(batch.inputs[rows], [batch.subjects[row] for row in rows])
        explanation = explain_batch(self._model, part, method, self._target, seed=self._seed)
        for index in range(len(explanation)):
            image, rank = divmod(index, self._maps_per_image)
            self._results.add(explanation.item(index, self._key(identities[rows[image]], method, rank)))

    def _is_finished(self, identity: str) -> bool:
        return all(self._has_maps(identity, method) for method in self._methods)

    def _has_maps(self, identity: str, method: Method) -> bool:
        keys = (self._key(identity, method, rank) for rank in range(self._maps_per_image))
        return all(key in self._finished for key in keys)

    def _key(self, identity: str, method: Method, rank: int) -> str:
        return result_key(self._common_key, identity, method, rank)

    def _identity(self, file: Path) -> str:
        try:
            stat = file.stat()
        except OSError:
            return "gone"  # reading it will say so
        return result_key(file.absolute(), stat.st_size, stat.st_mtime_ns)

    def _settings(self) -> dict[str, object]:
        preprocessing = self._model.stated_preprocessing()
        return {
            "target": self._target,
            "seed": self._seed,
            "score": self._model.score.name,
            "upsampling": UPSAMPLING,
            "precision": self._model.precision,
            **({"engine_asked": self._model.engine} if self._model.engine_key else {}),
            "input_size": list(preprocessing.size),
            "fit": preprocessing.fit,
        }


def _since_last_time(on_progress: Callable[[float], None], images: int) -> Listener:
    """Hears what share of the work on some images is done, and hands on how much was added."""
    told = 0.0

    def listener(share: float) -> None:
        nonlocal told
        on_progress(images * (share - told))
        told = share

    return listener


def _count_classes(target: str, model: TargetModel) -> int:
    """How many classes of each image the target stands for; refuses a target that the model does not have."""
    if target == "label":
        raise TargetError("files carry no labels; write top1, top5, a class index or a class name")
    return len(resolve_targets(target, model, torch.zeros(1, model.num_classes), None)[0])

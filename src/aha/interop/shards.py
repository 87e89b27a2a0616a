"""Shards of explanations: one file per batch, Parquet or WebDataset, written whole or not at all.

    out/
      shards.json               what all results depend on; a folder of other work is refused
      3f0c...9e.parquet         or .tar; named by the pictures in it, so that a batch done twice is there once

What is finished is known by the rows in the shards: a picture's key, and the state of all that its maps depend on, its
content and what trained methods have learned included (`aha.interop.shelf`). A picture that has changed is explained
again, and its former rows are taken out. A shard whose rows have not its checksum any more is dropped and made again.
Any number of processes may write to a folder; they wait for each other only where rows are taken out.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from aha import __version__
from aha.core.disk import check_writable, result_key, versions
from aha.core.launch import parts_of
from aha.core.store import read_record, write_record
from aha.data.datasets import content_digest
from aha.data.images import LabelledImage
from aha.errors import AhaError, DamageWarning, OutputError, SpecError
from aha.interop.arrow import Batch, Explain, arrow, keys_of, pictures_of
from aha.interop.shelf import SUFFIXES, Format, Shelf
from aha.methods import Method, load_method
from aha.methods.base import UPSAMPLING
from aha.models import TargetModel
from aha.results.score_table import Failure

RECORD = "shards.json"
_NO_MATTER = ("device", "batch_size")  # options that no result depends on


class ShardRun:
    """Pictures explained into a folder of shards, by this process or by workers that get its `arguments`.

    Attributes:
        manifest: the file that says what the shards beside it hold.
        done: pictures explained by this run.
        skipped: pictures that an earlier run had finished.
        failures: pictures that could not be read.
        arguments: of `WriteShards`.
    """

    def __init__(
        self,
        out: Path,
        model: str,
        methods: str | Method | Sequence[str | Method] = "grad_cam",
        target: Any = "top1",
        *,
        form: Format = "parquet",
        **options: Any,
    ) -> None:
        if form not in SUFFIXES:
            raise SpecError(f"shards are written as {' or '.join(SUFFIXES)}, not {form!r}")
        listed = [methods] if isinstance(methods, str | Method) else list(methods)
        texts = [str(load_method(method)) for method in listed]
        settings = {"model": model, "methods": texts, "target": target, "form": form, **options}
        begin(out, {name: _plain(value) for name, value in settings.items() if name not in _NO_MATTER})
        self.arguments: dict[str, Any] = {**settings, "out": str(out.absolute())}
        self.manifest, self.done, self.skipped = out / RECORD, 0, 0
        self.failures: list[Failure] = []

    @property
    def model(self) -> TargetModel:
        """The model, loaded in this process."""
        return self._writer.model

    @property
    def methods(self) -> list[Method]:
        """What makes the maps."""
        return self._writer.methods

    @cached_property
    def _writer(self) -> WriteShards:
        return WriteShards(**self.arguments)

    def run(
        self,
        images: Sequence[LabelledImage],
        share: tuple[int, int] = (0, 1),
        size: int = 64,
        on_progress: Callable[[float], None] = lambda count: None,
    ) -> None:
        """Explains each n-th of the images in this process, one shard after the other."""
        own = [images[index] for index in parts_of(len(images), share)]
        for start in range(0, len(own), size):
            part = own[start : start + size]
            report = self._writer(self._read(part))
            self.count({name: values[0] for name, values in report.items()})
            on_progress(len(part))

    def _read(self, images: Sequence[LabelledImage]) -> dict[str, list[Any]]:
        """The batch of these images; what a data set does not give is noted."""
        batch: dict[str, list[Any]] = {"key": [], "image": [], "label": []}
        for image in images:
            try:
                picture = image.content()  # mostly a path, whose file is opened where it is explained
            except AhaError as error:
                self.failures.append(Failure.of_image(image.id, error))
                continue
            for name, value in (("key", image.id), ("image", picture), ("label", image.label)):
                batch[name].append(value)
        if None in batch["label"]:
            del batch["label"]
        return batch

    def count(self, report: Mapping[str, Any]) -> None:
        """Adds a worker's report on a shard."""
        self.done += report["done"]
        self.skipped += report["skipped"]
        self.failures += [Failure(key, "", "", reason) for key, reason in json.loads(report["failures"])]


class WriteShards(Explain):
    """Explains batches, writes each as a shard, and returns only a report on it."""

    def __init__(
        self, model: Any, methods: Any, target: Any, out: str | Path, *, form: Format = "parquet", **options: Any
    ) -> None:
        super().__init__(model, methods, target, **options)
        # Read now: what a worker in whose place this one stands has finished is not done again.
        self.shelf = Shelf(Path(out), form)
        if self.shelf.has_others(self.model.digest):
            raise OutputError(f"{out} holds results of other weights than those of {self.model.spec}; choose another")
        model = self.model
        self._common = result_key(
            __version__,
            model.spec,
            model.digest,
            model.preprocessing,
            model.class_names,
            model.score.name,
            model.precision,
            *model.engine_key,
            UPSAMPLING,
            self.target,
            self.maps,
            self.seed,
            *(method.fingerprint(model) for method in self.methods),
        )

    def __call__(self, batch: Batch) -> dict[str, Any]:
        """How many pictures were explained and skipped, and what was wrong with the others: columns of one row."""
        states = self._states(batch)
        left = [place for place, (key, state) in enumerate(states) if not self.shelf.has(key, state)]
        report = {"done": 0, "skipped": len(states) - len(left), "failures": "[]"}
        if left:
            table = super().__call__({name: [column[place] for place in left] for name, column in batch.items()})
            is_bad = arrow().compute.is_valid(table["error"])
            failed = table.filter(is_bad)
            self.shelf.add(table.filter(arrow().compute.invert(is_bad)), dict(states[place] for place in left))
            failures = dict(zip(failed["key"].to_pylist(), failed["error"].to_pylist(), strict=True))
            report |= {"done": len(left) - len(failures), "failures": json.dumps(list(failures.items()))}
        self.shelf.drop_former(dict(states))
        return {name: [value] for name, value in report.items()}

    def _states(self, batch: Batch) -> list[tuple[str, str]]:
        """Each picture's key, and the state of all that its maps depend on."""
        pictures, labels = pictures_of(batch), self.labels_in(batch)
        digests = [_digest(picture) for picture in pictures]
        return [
            (key, result_key(self._common, digest, "" if labels is None else labels[place]))
            for place, (key, digest) in enumerate(zip(keys_of(batch), digests, strict=True))
        ]


def _digest(picture: Any) -> str:
    return content_digest(lambda: picture)


def _plain(value: Any) -> Any:
    """An option as the record of a run can hold it."""
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def begin(out: Path, settings: Mapping[str, Any]) -> None:
    """Makes the folder and notes what its results depend on; refuses one that holds something else."""
    check_writable(out)
    record = out / RECORD
    wanted = json.loads(json.dumps(settings))
    known = _known_settings(record)
    if known is not None:
        if known != wanted:
            differing = sorted(name for name in {*known, *wanted} if known.get(name) != wanted.get(name))
            raise OutputError(f"{out} holds results of another {', '.join(differing)}; choose another folder")
        return
    if not record.is_file() and out.is_dir() and any(out.iterdir()):
        raise OutputError(f"{out} holds something other than shards; choose another folder")
    write_record(record, {"settings": wanted, "versions": versions()})


def _known_settings(record: Path) -> dict[str, Any] | None:
    """What a folder says that its results depend on; None where it says nothing that can be trusted."""
    if not record.is_file():
        return None
    found = read_record(record)
    if found is None:
        # Nothing is lost: every row has the state of all that it depends on.
        warnings.warn(f"{record} is damaged; it is written again", DamageWarning, stacklevel=3)
        return None
    settings: dict[str, Any] = found["settings"]
    return settings

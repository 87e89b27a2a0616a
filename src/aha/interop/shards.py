"""Shards of explanations: one file per batch, Parquet or WebDataset, written whole or not at all.

    out/
      shards.json               what the results depend on; a folder of other work is refused
      3f0c...9e.parquet         or .tar; named by the pictures in it, so that a batch done twice is there once

What is finished is known by the keys in the shards. Any number of processes may write to a folder; nothing is locked.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from aha.core.disk import check_writable, result_key, versions, write_atomically, writing
from aha.data.datasets import BenchImage
from aha.data.images import read_image
from aha.errors import ImageError, OutputError, SpecError
from aha.files import Failure
from aha.interop.arrow import Batch, Explain, arrow, keys_of
from aha.learned.engine import parts_of
from aha.methods import Method, load_method
from aha.models import TargetModel

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["parquet", "webdataset"]
RECORD = "shards.json"
_NO_MATTER = ("device", "batch_size")  # options that no result depends on
SUFFIXES: dict[str, str] = {"parquet": ".parquet", "webdataset": ".tar"}


class ShardRun:
    """Pictures explained into a folder of shards, by this process or by workers that are told its `arguments`.

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
        images: Sequence[BenchImage],
        share: tuple[int, int] = (0, 1),
        size: int = 64,
        on_progress: Callable[[float], None] = lambda count: None,
    ) -> None:
        """Explains each n-th of the images in this process, one shard after the other."""
        own = [images[index] for index in parts_of(len(images), share)]
        for start in range(0, len(own), size):
            part = own[start : start + size]
            told = self._writer(self._read(part))
            self.count({name: values[0] for name, values in told.items()})
            on_progress(len(part))

    def _read(self, images: Sequence[BenchImage]) -> dict[str, list[Any]]:
        """A batch of those that are still to be explained; what cannot be read is noted."""
        batch: dict[str, list[Any]] = {"key": [], "image": [], "label": []}
        for image in images:
            try:
                picture = None if image.id in self._writer.finished else read_image(image.read())
            except (ImageError, OSError) as error:
                text = str(error)
                self.failures.append(Failure(image.id, text if image.id in text else f"{image.id}: {text}"))
                continue
            for name, value in (("key", image.id), ("image", picture), ("label", image.label)):
                batch[name].append(value)
        if None in batch["label"]:
            del batch["label"]
        return batch

    def count(self, told: Mapping[str, Any]) -> None:
        """Adds what a worker has told of a shard."""
        self.done += told["done"]
        self.skipped += told["skipped"]
        self.failures += [Failure(key, reason) for key, reason in json.loads(told["failures"])]


class WriteShards(Explain):
    """Explains batches, writes each as a shard, and hands on only what became of it."""

    def __init__(
        self, model: Any, methods: Any, target: Any, out: str | Path, *, form: Format = "parquet", **options: Any
    ) -> None:
        super().__init__(model, methods, target, **options)
        self._out, self._form = Path(out), form
        # Read now: what a worker in whose place this one stands has finished is not done again.
        self.finished = finished_keys(self._out)
        digests = digests_of(self._out) - {self.model.digest}
        if digests:
            raise OutputError(f"{out} holds results of other weights than those of {self.model.spec}; choose another")

    def __call__(self, batch: Batch) -> dict[str, Any]:
        """How many pictures were explained and skipped, and what was wrong with the others: columns of one row."""
        keys = keys_of(batch)
        left = [place for place, key in enumerate(keys) if key not in self.finished]
        told = {"done": 0, "skipped": len(keys) - len(left), "failures": "[]"}
        if left:
            table = super().__call__({name: [column[place] for place in left] for name, column in batch.items()})
            rows = table.filter(arrow().compute.is_null(table["error"]))
            failed = table.filter(arrow().compute.is_valid(table["error"]))
            if len(rows):
                name = result_key(*sorted(keys[place] for place in left))[:32] + SUFFIXES[self._form]
                with writing(self._out):
                    write_atomically(self._out / name, partial(_WRITERS[self._form], rows))
            failures = dict(zip(failed["key"].to_pylist(), failed["error"].to_pylist(), strict=True))
            told |= {"done": len(left) - len(failures), "failures": json.dumps(list(failures.items()))}
        return {name: [value] for name, value in told.items()}


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
    if record.is_file():
        known = json.loads(record.read_text(encoding="utf-8"))["settings"]
        if known != wanted:
            differing = sorted(name for name in {*known, *wanted} if known.get(name) != wanted.get(name))
            raise OutputError(f"{out} holds results of another {', '.join(differing)}; choose another folder")
        return
    if out.is_dir() and any(out.iterdir()):
        raise OutputError(f"{out} holds something else than shards; choose another folder")
    text = json.dumps({"settings": wanted, "versions": versions()}, indent=1).encode()
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(record, lambda file: file.write(text))


def finished_keys(out: Path) -> set[str]:
    """Keys of the pictures that are in shards."""
    found: set[str] = set()
    for shard in sorted(out.glob("*.parquet")):
        found.update(arrow().parquet.read_table(shard, columns=["key"])["key"].to_pylist())
    for shard in sorted(out.glob("*.tar")):
        found.update(entry["key"] for entry in _entries(shard))
    return found


def digests_of(out: Path) -> set[str]:
    """Digests of the weights that the shards' maps are of."""
    found = {arrow().parquet.read_schema(shard).metadata[b"digest"].decode() for shard in out.glob("*.parquet")}
    return found | {next(_entries(shard))["digest"] for shard in out.glob("*.tar")}


def _entries(shard: Path) -> Iterator[dict[str, Any]]:
    with tarfile.open(shard) as tar:
        for member in tar:
            if member.name.endswith(".json") and (file := tar.extractfile(member)) is not None:
                yield json.load(file)


def _write_parquet(rows: pa.Table, file: Any) -> None:
    arrow().parquet.write_table(rows.drop_columns(["error"]), file, compression="zstd")


def _write_webdataset(rows: pa.Table, file: Any) -> None:
    """A sample per map: NAME.json with the row, NAME.npy with the map."""
    metadata = {name.decode(): value.decode() for name, value in rows.schema.metadata.items()}
    with tarfile.open(fileobj=file, mode="w") as tar:
        for row in rows.drop_columns(["error"]).to_pylist():
            values, key = row.pop("map"), f"{row['key']} {row['method']} {row['target']}"
            # Dots end a sample's name, and slashes would be folders.
            name = f"{re.sub(r'[^A-Za-z0-9_-]+', '-', key)[:80].strip('-')}-{result_key(key)[:8]}"
            _add(tar, f"{name}.json", json.dumps({**row, **metadata}).encode())
            if values is not None:
                content = io.BytesIO()
                np.save(content, np.asarray(values).reshape(row["height"], row["width"]), allow_pickle=False)
                _add(tar, f"{name}.npy", content.getvalue())


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


_WRITERS: dict[str, Callable[[Any, Any], None]] = {"parquet": _write_parquet, "webdataset": _write_webdataset}

"""Images in, maps out, as Arrow tables: what a worker of a data pipeline does with one batch.

A batch has a column of images and, if they are to be recognised later, one of keys:

    bytes, path, image, jpg, jpeg, png, webp    content of a file, its path, or an array (H, W[, 3]); the first there is
    key, __key__                                the path, or a digest of the image, if there is none
    label, cls                                  true class, for target="label"

The table has one row per image, method and class.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from aha.api import explain_batches
from aha.core.axes import is_volume
from aha.data.targets import Target
from aha.errors import ImageError, MissingExtra, SpecError, TargetError
from aha.methods import Method, check_fit, load_method
from aha.models import load_model
from aha.results.explanation import Explanation

if TYPE_CHECKING:
    import pyarrow as pa

KeepMaps = Literal["none", "float16", "float32"]
Batch = Mapping[str, Sequence[Any]]

_PICTURES = ("bytes", "path", "image", "jpg", "jpeg", "png", "webp")
_KEYS = ("key", "__key__")
_LABELS = ("label", "cls")


class Explain:
    """A callable for batches: the model is loaded once, when it is made.

    Args:
        model: as in `aha.load_model`, which also takes the `options`.
        methods: texts of methods.
        target: as in `aha.explain`.
        maps: precision of the maps in the table; "none" leaves them out.
        seed: of methods that draw random numbers.
        options: of `aha.load_model`.
    """

    def __init__(
        self,
        model: Any,
        methods: str | Method | Sequence[str | Method] = "grad_cam",
        target: Target = "top1",
        *,
        maps: KeepMaps = "float16",
        seed: int = 0,
        **options: Any,
    ) -> None:
        if maps not in ("none", "float16", "float32"):
            raise SpecError(f"maps is one of none, float16, float32, not {maps!r}")
        listed = [methods] if isinstance(methods, str | Method) else list(methods)
        self.model = load_model(model, **options)
        self.methods = [load_method(method) for method in listed]
        if self.model.preprocessing is not None and is_volume(self.model.input_shape(None)):
            raise SpecError(f"tables have maps of images, and {self.model.spec} reads volumes; use aha.explain")
        for method in self.methods:
            check_fit(method, self.model)
        self.target, self.maps, self.seed = target, maps, seed

    def __call__(self, batch: Batch) -> pa.Table:
        """Rows of all images; one that cannot be read has a row with the reason in `error`."""
        sources, keys, labels = pictures_of(batch), keys_of(batch), self.labels_in(batch)
        rows: list[dict[str, Any]] = []
        for method in self.methods:
            rows += self._rows(sources, keys, labels, method)
        return arrow().Table.from_pylist(rows, schema=self.schema())

    def labels_in(self, batch: Batch) -> list[int] | None:
        """The true classes, where they are explained; else the column may hold anything."""
        return labels_of(batch) if isinstance(self.target, str) and self.target == "label" else None

    def schema(self) -> pa.Schema:
        """Columns of the table, and which model made it."""
        pa = arrow()
        number = pa.float32() if self.maps == "float32" else pa.float16()
        columns = {
            "key": pa.string(),
            "method": pa.string(),
            "target": pa.int32(),
            "label": pa.string(),
            "score": pa.float32(),
            "height": pa.int32(),
            "width": pa.int32(),
            "map": pa.list_(number),
            "error": pa.string(),
        }
        return pa.schema(columns, metadata={"model": self.model.spec, "digest": self.model.digest})

    def _rows(
        self, sources: Sequence[Any], keys: Sequence[str], labels: Sequence[int] | None, method: Method
    ) -> Iterator[dict[str, Any]]:
        names = {_name(source, place): key for place, (source, key) in enumerate(zip(sources, keys, strict=True))}
        failed: dict[str, str] = {}

        def on_error(name: str, error: ImageError) -> None:
            failed[names[name]] = str(error)

        parts = explain_batches(
            self.model, list(sources), method, self.target, labels=labels, seed=self.seed, on_error=on_error
        )
        for found in parts:
            for index in range(len(found)):
                yield self._row(found, index, names[found.subjects[index].name])
        for key, reason in failed.items():
            yield {"key": key, "method": str(method), "error": reason}

    def _row(self, found: Explanation, index: int, key: str) -> dict[str, Any]:
        values = found.maps[index].numpy()  # (H, W)
        if self.maps == "float16":
            values = in_half_range(values)
        return {
            "key": key,
            "method": found.method,
            "target": int(found.targets[index]),
            "label": found.labels[index],
            "score": float(found.scores[index]),
            "height": values.shape[0],
            "width": values.shape[1],
            "map": None if self.maps == "none" else values.ravel(),
        }


def in_half_range(values: Any) -> Any:
    """A map as float16. Maps have no unit: one whose numbers lie outside the range of halves is scaled to at most 1."""
    largest = float(np.abs(values).max())
    is_outside = largest > float(np.finfo(np.float16).max) or 0 < largest < 1e-2
    return (values / largest if is_outside else values).astype(np.float16)


def pictures_of(batch: Batch) -> list[Any]:
    """The pictures of a batch, as `aha.explain` takes them."""
    found = next((name for name in _PICTURES if name in batch), None)
    if found is None:
        raise ImageError(f"a batch needs one of the columns {', '.join(_PICTURES)}; it has {', '.join(batch)}")
    values = list(batch[found])
    return [Path(str(value)) for value in values] if found == "path" else values


def keys_of(batch: Batch) -> list[str]:
    """What the pictures of a batch are known by."""
    found = next((name for name in (*_KEYS, "path") if name in batch), None)
    if found is not None:
        return [str(value) for value in batch[found]]
    return [hashlib.blake2b(_content(picture), digest_size=16).hexdigest() for picture in pictures_of(batch)]


def labels_of(batch: Batch) -> list[int] | None:
    """The true classes, where the batch has them; shards hold them as texts."""
    found = next((name for name in _LABELS if name in batch), None)
    if found is None:
        return None
    try:
        return [int(value.decode() if isinstance(value, bytes) else value) for value in batch[found]]
    except (TypeError, ValueError):
        raise TargetError(f"target='label' needs class numbers; the column {found} holds something else") from None


def _content(picture: Any) -> bytes:
    return picture if isinstance(picture, bytes) else np.ascontiguousarray(picture).tobytes()


def _name(source: Any, place: int) -> str:
    """What `aha.explain` calls a picture."""
    return str(source) if isinstance(source, Path) else f"image-{place}"


def arrow() -> Any:
    """pyarrow, or the line that installs it."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("Arrow and Parquet", "parquet") from None
    return pyarrow

"""Ray: explanations of millions of pictures with Ray Data.

    import ray
    from aha.interop.ray import Explain

    pictures = ray.data.read_parquet("pictures/")      # columns: bytes (or path), key
    maps = pictures.map_batches(
        Explain,
        fn_constructor_kwargs={"model": "timm:resnet50", "methods": "grad_cam"},
        batch_size=64,
        compute=ray.data.ActorPoolStrategy(size=8),
    )
    maps.write_parquet("maps/")

`explain_pictures` is the same with shards that a stopped run continues. A worker that dies is replaced, and its batch
is done again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aha.data.images import find_images
from aha.errors import ImageError, MissingExtra
from aha.interop.arrow import Explain, KeepMaps
from aha.interop.shards import Format, ShardRun, WriteShards
from aha.methods import Method

__all__ = ["Explain", "explain_pictures", "read_pictures"]


def explain_pictures(
    pictures: Any,
    out: str | Path,
    model: str,
    methods: str | Method | Sequence[str | Method] = "grad_cam",
    target: Any = "top1",
    *,
    workers: int = 2,
    gpus_per_worker: float = 0,
    shard_size: int = 256,
    form: Format = "parquet",
    maps: KeepMaps = "float16",
    seed: int = 0,
    **options: Any,
) -> ShardRun:
    """Explains pictures into shards, on workers of a Ray cluster or of this machine; the same call continues a run.

    Args:
        pictures: paths (see `read_pictures`), or a Ray dataset with the columns that `aha.interop.arrow` describes.
        out: folder of the shards, which all workers reach.
        model: `SOURCE:NAME`, loaded by each worker.
        methods: texts of methods.
        target: as in `aha.explain`.
        workers: processes that explain, each on one processor.
        gpus_per_worker: of the cluster's GPUs; may be a fraction.
        shard_size: pictures per shard.
        form: "parquet" or "webdataset".
        maps: precision of the maps.
        seed: of methods that draw random numbers.
        options: of `aha.load_model`.
    """
    ray, run = _started(), ShardRun(Path(out), model, methods, target, form=form, maps=maps, seed=seed, **options)
    dataset = read_pictures(pictures) if isinstance(pictures, list | tuple | str | Path) else pictures
    told = dataset.map_batches(
        WriteShards,
        fn_constructor_kwargs=run.arguments,
        batch_size=shard_size,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=1,
        num_gpus=gpus_per_worker or None,
    )
    for row in told.iter_rows():
        run.count(row)
    return run


def read_pictures(paths: str | Path | Sequence[str | Path]) -> Any:
    """A Ray dataset of pictures: files, folders of files, Parquet files, or tar shards in WebDataset's layout."""
    ray = _started()
    found = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    kinds = {path.suffix if path.suffix in (".parquet", ".tar") else "" for path in found}
    if len(kinds) != 1:
        raise ImageError("give pictures, Parquet files or tar shards, one kind at a time")
    for path in found:
        if not path.exists():
            raise ImageError(f"{path} does not exist; check the path")
    if kinds == {".parquet"}:
        return ray.data.read_parquet([str(path.absolute()) for path in found])
    if kinds == {".tar"}:
        return ray.data.read_webdataset([str(path.absolute()) for path in found], decoder=False)
    files = dict.fromkeys(file for path in found for file in find_images(path))
    return ray.data.from_items([{"key": str(file), "path": str(file.absolute())} for file in files])


def _started() -> Any:
    """Ray, connected to the cluster that the environment names, or started on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingExtra("Ray", "ray") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # it announces every step of its plans
    return ray

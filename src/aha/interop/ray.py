"""Ray: explanations of millions of images with Ray Data, and benchmarks on the workers of a cluster.

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
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aha.core.validation import Range, checked
from aha.data.images import find_images
from aha.errors import AhaError, ImageError, MissingExtra
from aha.interop.arrow import Explain, KeepMaps
from aha.interop.shards import ShardRun, WriteShards
from aha.interop.shelf import Format
from aha.methods import Method

__all__ = ["Explain", "explain_pictures", "read_pictures", "share_out", "write_shards"]

_MOST_PER_PROCESSOR = 8  # workers on this machine
_RETRIES = 8  # of a share whose worker died; one that kills every worker ends the run at last


def explain_pictures(
    pictures: Any,
    out: str | Path,
    model: str,
    methods: str | Method | Sequence[str | Method] = "grad_cam",
    target: Any = "top1",
    *,
    workers: int = 2,
    gpus_per_worker: float | None = None,
    shard_size: int = 256,
    form: Format = "parquet",
    maps: KeepMaps = "float16",
    seed: int = 0,
    **options: Any,
) -> ShardRun:
    """Explains images into shards, on workers of a Ray cluster or of this machine; the same call resumes a run.

    Args:
        pictures: paths (see `read_pictures`), or a Ray dataset with the columns that `aha.interop.arrow` describes.
        out: folder of the shards, which all workers reach.
        model: `SOURCE:NAME`, loaded by each worker.
        methods: texts of methods.
        target: as in `aha.explain`.
        workers: processes that explain, each on one processor.
        gpus_per_worker: may be a fraction; by default the cluster's GPUs are dealt out equally.
        shard_size: images per shard.
        form: "parquet" or "webdataset".
        maps: precision of the maps.
        seed: of methods that draw random numbers.
        options: of `aha.load_model`.
    """
    run = ShardRun(Path(out), model, methods, target, form=form, maps=maps, seed=seed, **options)
    write_shards(run, pictures, workers=workers, gpus_per_worker=gpus_per_worker, shard_size=shard_size)
    return run


def write_shards(
    run: ShardRun, pictures: Any, *, workers: int = 2, gpus_per_worker: float | None = None, shard_size: int = 256
) -> None:
    """What `explain_pictures` does, for a run that has been checked."""
    _check_workers(workers)
    ray = _started(workers)
    dataset = read_pictures(pictures) if isinstance(pictures, list | tuple | str | Path) else pictures
    reports = dataset.map_batches(
        WriteShards,
        fn_constructor_kwargs=run.arguments,
        batch_size=shard_size,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=1,
        num_gpus=(_share_of_gpus(ray, workers) if gpus_per_worker is None else gpus_per_worker) or None,
    )
    for row in reports.iter_rows():
        run.count(row)


def share_out(
    work: Callable[[tuple[int, int]], None], *, workers: int = 2, gpus_per_worker: float | None = None
) -> None:
    """Has `work((i, n))` done by n workers, for all i; where one dies, another does the same share from the start.

    For work that skips by itself what it finds done, such as a benchmark. Workers start in the folder of this process.
    """
    _check_workers(workers)
    ray, folder = _started(workers), Path.cwd()

    def part(share: tuple[int, int]) -> None:
        os.chdir(folder)
        work(share)

    gpus = _share_of_gpus(ray, workers) if gpus_per_worker is None else gpus_per_worker
    task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=_RETRIES)(part)
    try:
        ray.get([task.remote((index, workers)) for index in range(workers)])
    except ray.exceptions.RayTaskError as error:
        # What a worker refuses is refused here in its own words, without Ray's account of the way.
        raise error.cause if isinstance(error.cause, AhaError) else error from None


def read_pictures(paths: str | Path | Sequence[str | Path]) -> Any:
    """A Ray dataset of images: files, folders of files, Parquet files, or tar shards in WebDataset's layout."""
    found = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    kinds = {path.suffix if path.suffix in (".parquet", ".tar") else "" for path in found}
    if len(kinds) != 1:
        raise ImageError("give images, Parquet files or tar shards, not a mixture")
    for path in found:
        if not path.exists():
            raise ImageError(f"{path} does not exist; check the path")
    ray = _started()
    if kinds == {".parquet"}:
        return ray.data.read_parquet([str(path.absolute()) for path in found])
    if kinds == {".tar"}:
        return ray.data.read_webdataset([str(path.absolute()) for path in found], decoder=False)
    files = dict.fromkeys(file for path in found for file in find_images(path))
    return ray.data.from_items([{"key": str(file), "path": str(file.absolute())} for file in files])


def _share_of_gpus(ray: Any, workers: int) -> float:
    """Each worker's, of all that the cluster has; several workers share one where there are more of them."""
    gpus = int(ray.cluster_resources().get("GPU", 0))
    return 1 / math.ceil(workers / gpus) if gpus else 0.0


def _check_workers(workers: int) -> None:
    """Refuses numbers of workers that only a cluster could have, before any of them starts."""
    most = math.inf if "RAY_ADDRESS" in os.environ else _MOST_PER_PROCESSOR * (os.cpu_count() or 1)
    checked(workers, int, "the number of workers", Range(1, most))


def _started(workers: int = 1) -> Any:
    """Ray, connected to the cluster that the environment names, or started here with room for the workers."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if "RAY_ADDRESS" not in os.environ:
        # By this alone a Ray of one machine listens on that machine alone, as it does elsewhere than on Linux; it
        # would run the code of anybody on the network otherwise. Read when Ray is imported.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingExtra("Ray", "ray") from None
    if not ray.is_initialized():
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if "RAY_ADDRESS" in os.environ:
            ray.init(**quiet)
        else:  # one processor more than workers: where they take all, nothing is left for what reads the pictures
            processors = max(workers + 1, os.cpu_count() or 1)
            ray.init(address="local", num_cpus=processors, include_dashboard=False, **quiet)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # it announces every step of its plans
    return ray

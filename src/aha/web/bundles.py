"""Downloads: maps with their pictures and manifest in one archive, and the Python that makes them again."""

from __future__ import annotations

import io
import json
import tempfile
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch

from aha.errors import SpecError
from aha.methods.base import UPSAMPLING
from aha.results.explanation import Explanation
from aha.web.payloads import MapResult
from aha.web.records import SEED
from aha.web.workbench import Workbench

MOST_MAPS = 12
_PACKING = threading.Lock()  # one archive at a time: each holds a whole picture and several drawings of it
_PICTURE, _SNIPPET = "picture.png", "reproduce.py"


def map_records(bench: Workbench, keys: Sequence[str]) -> list[MapResult]:
    """The records of maps of one picture and model.

    Raises:
        SpecError: They are too many, no maps, or of different pictures.
    """
    if not 1 <= len(keys) <= MOST_MAPS:
        raise SpecError(f"name 1 to {MOST_MAPS} maps")
    found = [bench.store.get("results", key) for key in keys]
    records = [record for record in found if record["kind"] == "map"]
    if len(records) < len(found) or any(record.get("asked") for record in records):
        raise SpecError("only maps of classes can be downloaded; the target view shows the call for its own")
    if len({(record["picture"], record["model"]) for record in records}) > 1:
        raise SpecError("a download holds maps of one image and one model")
    return records


def explanation_of(bench: Workbench, record: MapResult) -> Explanation:
    """A stored map as what `aha.explain` returned for it."""
    served = bench.model_of(record)
    model = served.model
    batch = bench.pictures.batch(record["picture"], model)
    return Explanation(
        maps=torch.from_numpy(bench.store.array(record["key"], "values"))[None],
        targets=torch.tensor([record["target"]]),
        scores=torch.tensor([record["score"]]),
        subjects=batch.subjects,
        labels=[record["label"]],
        method=record["method"],
        model=model.spec,
        seconds=record["seconds"],
        digest=model.digest,
        settings={
            "seed": SEED,
            "score": model.score.name,
            "upsampling": UPSAMPLING,
            "precision": model.precision,
            "input_size": [record["height"], record["width"]],
        },
    )


def bundle(bench: Workbench, keys: Sequence[str]) -> bytes:
    """A zip archive with raw maps, pictures, manifest, the photograph and the snippet."""
    records = map_records(bench, keys)
    archive = io.BytesIO()
    with _PACKING, tempfile.TemporaryDirectory(prefix="aha-") as place:
        folder = Path(place)
        for record in records:
            explanation_of(bench, record).save(folder)
        bench.pictures.image(records[0]["picture"]).save(folder / _PICTURE)
        (folder / _SNIPPET).write_text(_snippet(bench, records), encoding="utf-8")
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
            for file in sorted(folder.rglob("*")):
                if file.is_file() and not file.name.startswith("."):  # locks of those who wrote it
                    target.write(file, file.relative_to(folder))
    return archive.getvalue()


def snippet(bench: Workbench, keys: Sequence[str]) -> str:
    """Python that computes the same maps from the photograph of the bundle."""
    return _snippet(bench, map_records(bench, keys))


def _snippet(bench: Workbench, records: Sequence[MapResult]) -> str:
    served = bench.model_of(records[0])
    options = "".join(f", {name}={value!r}" for name, value in served.options.items())
    wanted = "".join(f"    ({json.dumps(record['method'])}, {record['target']}),\n" for record in records)
    return (
        "import aha\n"
        "\n"
        f"model = aha.load_model({json.dumps(served.model.spec)}{options})\n"
        f"for method, target in [\n{wanted}]:\n"
        f'    explanation = aha.explain(model, "{_PICTURE}", method, target, seed={SEED})\n'
        '    explanation.save("explained")\n'
    )

"""Evaluations into a folder: `scores.csv`, `summary.csv` and what they were made with; interrupted ones continue.

out/
  scores.csv        one row per image, method, metric, protocol, target, reference
  summary.csv       mean, standard error, 95 % interval, n
  evaluation.json   model and digest, protocols in full, target, seed, versions, failures
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aha.bench.evaluate import evaluate
from aha.bench.truth import Truth, check_truth
from aha.core.disk import check_writable, versions, write_atomically
from aha.data.images import read_image
from aha.data.labelled import LabelledImage, Lazy, read_mask
from aha.data.mosaics import build_mosaics
from aha.errors import MetricError, OutputError
from aha.methods import Method, check_fit
from aha.metrics.protocols import Protocol
from aha.models import TargetModel
from aha.results.saved_maps import SavedMap
from aha.results.score_table import Row, Scores

SCORES, SUMMARY, RECORD = "scores.csv", "summary.csv", "evaluation.json"


class EvaluationRun:
    """Scores of many files; what an earlier run of the same kind finished is kept.

    Attributes:
        scores: all of them, earlier ones included.
        pending: number of maps that are still to be judged.
    """

    def __init__(
        self,
        model: TargetModel,
        images: Sequence[LabelledImage],
        methods: Sequence[Method],
        maps: Sequence[SavedMap],
        protocols: Sequence[Protocol],
        out: Path,
        *,
        target: str = "top1",
        seed: int = 0,
    ) -> None:
        check_writable(out)
        for method in methods:
            check_fit(method, model)
        self._model, self._images, self._protocols, self._out = model, list(images), tuple(protocols), out
        self._target, self._seed = target, seed
        masks = [image.mask for image in images]
        self._has_masks, self._has_boxes = all(masks) and bool(masks), any(image.boxes for image in images)
        self._on_mosaics = any("grid" in protocol.needs for protocol in protocols)
        if self._on_mosaics:
            self._check_mosaics(maps)
        else:
            check_truth(self._protocols, Truth(masks if self._has_masks else None, [()] if self._has_boxes else None))
        self.scores = Scores(protocols=self._protocols, model=model.spec)
        self._recall()
        self._methods = list(methods)
        self._maps: dict[str, list[SavedMap]] = defaultdict(list)
        for saved in maps:
            self._maps[saved.method].append(saved)

    @property
    def pending(self) -> int:
        """Number of images, counted once per method, that are still to be judged; of methods, for mosaics."""
        if self._on_mosaics:
            return len(self._unfinished_methods())
        own = sum(len(self._unfinished(str(method), self._images)) for method in self._methods)
        return own + sum(len(self._unfinished(name, self._images_of(maps))) for name, maps in self._maps.items())

    def run(self, batch_size: int, on_progress: Callable[[int], None] = lambda count: None) -> None:
        """Judges what is pending, one batch of images at a time; whatever ends it, the files hold what is done."""
        try:
            if self._on_mosaics:
                self._judge_mosaics(on_progress)
                return
            for start in range(0, len(self._images), batch_size):
                part = self._images[start : start + batch_size]
                for method in self._methods:
                    self._judge(self._unfinished(str(method), part), method, on_progress)
                self._write()
            for name, maps in self._maps.items():
                wanted = {image.path for image in self._unfinished(name, self._images_of(maps))}
                self._judge_maps(name, [saved for saved in maps if saved.image in wanted], on_progress)
        finally:
            if self.scores.rows or self.scores.failures:
                self._write()

    def _judge_mosaics(self, on_progress: Callable[[int], None]) -> None:
        """Quads of the labelled images, each used once; whole methods are the unit of resuming."""

        def picture(index: int) -> tuple[Any, int]:
            image = self._images[index]
            assert image.label is not None
            return read_image(image.path), image.label

        pictures: Any = Lazy(len(self._images), picture)
        mosaics = list(build_mosaics(self._model, pictures, count=len(self._images) // 4, seed=self._seed))
        for method in self._unfinished_methods():
            self.scores.extend(evaluate(self._model, mosaics, method, self._protocols, seed=self._seed))
            self._write()
            on_progress(1)

    def _unfinished_methods(self) -> list[Method]:
        return [method for method in self._methods if str(method) not in {row.method for row in self.scores.rows}]

    def _check_mosaics(self, maps: Sequence[SavedMap]) -> None:
        if not all("grid" in protocol.needs for protocol in self._protocols):
            raise MetricError("grid protocols judge mosaics made of the images; give them a run of their own")
        if maps or len(self._images) < 4 or self._labels(self._images) is None:
            raise MetricError(
                "mosaics need methods (not saved maps) and at least 4 images with labels, from a CSV file"
            )

    def _judge(self, images: Sequence[LabelledImage], method: Method, on_progress: Callable[[int], None]) -> None:
        if images:
            self._evaluate(images, method, self._target)
            on_progress(len(images))

    def _judge_maps(self, name: str, maps: Sequence[SavedMap], on_progress: Callable[[int], None]) -> None:
        for image in self._images_of(maps):
            own = [saved for saved in maps if saved.image == image.path]
            classes = [saved.target for saved in own if saved.target is not None]
            values = Lazy(len(own), lambda index, own=own: own[index].read())  # type: ignore[misc]
            self._evaluate([image], {name: values}, [classes] if classes else self._target)
            on_progress(1)

    def _evaluate(self, images: Sequence[LabelledImage], judged: Any, target: Any) -> None:
        def mask(index: int) -> Any:
            path = images[index].mask
            assert path is not None
            return read_mask(path)

        found = evaluate(
            self._model,
            [image.path for image in images],
            judged,
            self._protocols,
            targets=target,
            labels=self._labels(images),
            masks=Lazy(len(images), mask) if self._has_masks else None,
            boxes=[image.boxes for image in images] if self._has_boxes else None,
            seed=self._seed,
        )
        self.scores.extend(found)

    def _labels(self, images: Sequence[LabelledImage]) -> list[int] | None:
        known = [image.label for image in images if image.label is not None]
        return known if len(known) == len(images) else None

    def _images_of(self, maps: Sequence[SavedMap]) -> list[LabelledImage]:
        wanted = {saved.image for saved in maps}
        return [image for image in self._images if image.path in wanted]

    def _unfinished(self, method: str, images: Sequence[LabelledImage]) -> list[LabelledImage]:
        done = {row.image for row in self.scores.rows if row.method == method}
        return [image for image in images if str(image.path) not in done]

    def _record(self) -> dict[str, Any]:
        """Everything besides images and methods that the scores depend on."""
        return {
            "model": self._model.spec,
            "model_digest": self._model.digest,
            "protocols": {p.name: [metric.in_full() for metric in p.metrics] for p in self._protocols},
            "target": self._target,
            "seed": self._seed,
            "score": self._model.score.name,
            "precision": self._model.precision,
            **({"engine_asked": self._model.engine} if self._model.engine_key else {}),
            "preprocessing": str(self._model.preprocessing),
        }

    def _recall(self) -> None:
        """Rows of an earlier run with the same settings; other contents of the folder are refused."""
        record, rows = self._out / RECORD, self._out / SCORES
        if not record.is_file() or not rows.is_file():
            return
        try:
            known = json.loads(record.read_text(encoding="utf-8"))
            lines = list(csv.DictReader(rows.read_text(encoding="utf-8").splitlines()))
            self.scores.rows = [row_from_csv(line) for line in lines]
        except (ValueError, KeyError, TypeError):
            raise OutputError(f"{self._out} holds scores that cannot be read; choose another folder") from None
        # What the record of an older version does not say cannot be compared.
        if any(known.get(name, value) != value for name, value in self._record().items()):
            raise OutputError(
                f"{self._out} holds scores of another model, protocol, seed or setting; choose another folder"
            )

    def _write(self) -> None:
        self._out.mkdir(parents=True, exist_ok=True)
        failures = [failure._asdict() for failure in self.scores.failures]
        text = json.dumps(
            {**self._record(), **self._model.engine_facts, "versions": versions(), "failures": failures}, indent=1
        ).encode()
        self.scores.to_csv(self._out / SCORES)
        self.scores.summary_to_csv(self._out / SUMMARY)
        write_atomically(self._out / RECORD, lambda file: file.write(text))


def row_from_csv(line: dict[str, str]) -> Row:
    """One line of `scores.csv`, read by `csv.DictReader`."""
    return Row(
        line["image"],
        line["method"],
        line["metric"],
        line["protocol"],
        int(line["target"]),
        line["reference"],
        float(line["value"]),
    )

"""Which cells a plan has, what each is known by, and which are still to be done.

A cell is one image, method, protocol and kind of target. The first part of its key says which of them, the second is a
digest of all that its numbers depend on: weights, preprocessing, the method's parameters and what it has learned, the
metrics in full, the seed, the picture, its label, and its mask and boxes where a metric looks at them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from aha import __version__
from aha.bench.records import Cell
from aha.bench.store import work_of
from aha.core.disk import result_key
from aha.core.store import is_done
from aha.data.datasets import content_digest
from aha.data.images import LabelledImage
from aha.evaluation.saved_maps import SavedMaps
from aha.methods import Method
from aha.metrics.protocols import Protocol
from aha.models import TargetModel

Measured = Method | SavedMaps
"""Whose maps are scored."""


class Cells:
    """The cells of one model's plan; `done` has the keys of those that are finished, by what they are about."""

    def __init__(
        self,
        model: TargetModel,
        methods: Sequence[Measured],
        protocols: Sequence[Protocol],
        target_kinds: tuple[str, ...],
        seed: int,
        done: Mapping[str, str],
    ) -> None:
        self._model, self.done = model, done
        self._protocols = {protocol.name: protocol for protocol in protocols}
        self._saved = {str(method): method for method in methods if isinstance(method, SavedMaps)}
        common = result_key(
            __version__,
            model.spec,
            model.digest,
            model.preprocessing,
            model.score.name,
            model.precision,
            seed,
            *model.engine_key,
        )
        prints = {str(method): method.fingerprint(model) for method in methods}
        metrics = {p.name: [metric.in_full() for metric in p.metrics] for p in protocols}
        # Method, protocol and kind of target -> digest of what the cells of all images depend on.
        self._bases = {
            (method, protocol, target_kind): result_key(common, text, in_full, target_kind)
            for method, text in prints.items()
            for protocol, in_full in metrics.items()
            for target_kind in target_kinds
        }
        self._digests: dict[tuple[str, str], str] = {}

    @property
    def per_image(self) -> int:
        """Number of cells of one image for which everything is there."""
        return len(self._bases)

    def count(self, image: LabelledImage) -> int:
        """Number of cells of this image: saved maps need not be there for all."""
        return sum(self._covers(image, method) for method, _, _ in self._bases)

    def key(self, image: LabelledImage, method: str, protocol: str, target_kind: str) -> str:
        """What the cell is known by."""
        seen = self._protocols[protocol].looks_at
        truth = (
            image.label,
            image.boxes if "boxes" in seen else "",
            self._digest(image, "mask") if "mask" in seen else "",
            self._saved_digest(image, method),
        )
        state = result_key(self._bases[method, protocol, target_kind], self._digest(image, "picture"), *truth)
        return f"{self._work(image, method, protocol, target_kind)}-{state}"

    def keys(self, image: LabelledImage) -> list[str]:
        """What all cells of the image are known by."""
        return [self.key(image, *parts) for parts in self._bases if self._covers(image, parts[0])]

    def picture(self, image: LabelledImage) -> str:
        """Digest of the image's picture."""
        return self._digest(image, "picture")

    def missing(self, image: LabelledImage) -> list[tuple[str, str, str]]:
        """Method, protocol and kind of target of the image's cells that are to be done."""
        return [parts for parts in self._bases if self._covers(image, parts[0]) and not self._is_done(image, *parts)]

    def missing_protocols(self, image: LabelledImage, method: str, target_kind: str) -> tuple[Protocol, ...]:
        """Protocols by which the method's map of the image is still to be scored."""
        if not self._covers(image, method):
            return ()
        return tuple(p for p in self._protocols.values() if not self._is_done(image, method, p.name, target_kind))

    def empty(self, image: LabelledImage, method: str, protocol: str, target_kind: str) -> Cell:
        """The cell as it is written, with nothing found yet."""
        cell: Cell = {
            "key": self.key(image, method, protocol, target_kind),
            "model": self._model.spec,
            "digest": self._model.digest,
            "method": method,
            "protocol": protocol,
            "asked": target_kind,
            "image": image.id,
            "label": image.label,
            "found": [],
            "failures": [],
            "version": __version__,
            "made": round(time.time(), 3),
            "content": self._digest(image, "picture")[:16],
            "state": self._bases[method, protocol, target_kind][:16],
            "truth": self._truth(image, protocol),
        }
        if saved := self._saved_digest(image, method):
            cell["saved"] = saved[:16]
        return cell

    def _truth(self, image: LabelledImage, protocol: str) -> dict[str, str]:
        """Digests of what the protocol's metrics look at beside picture and label."""
        seen = self._protocols[protocol].looks_at
        boxes = {"boxes": result_key(image.boxes)[:16]} if "boxes" in seen else {}
        return boxes | ({"mask": self._digest(image, "mask")[:16]} if "mask" in seen else {})

    def _saved_digest(self, image: LabelledImage, method: str) -> str:
        return self._saved[method].digest(image) if method in self._saved else ""

    def _covers(self, image: LabelledImage, method: str) -> bool:
        return method not in self._saved or image.id in self._saved[method].maps

    def _work(self, image: LabelledImage, method: str, protocol: str, target_kind: str) -> str:
        return work_of(self._model.spec, self._model.digest, method, protocol, target_kind, image.id)

    def _is_done(self, image: LabelledImage, method: str, protocol: str, target_kind: str) -> bool:
        # Pictures are read for their digest only where there is something to compare it with.
        known = self._work(image, method, protocol, target_kind) in self.done
        return known and is_done(self.key(image, method, protocol, target_kind), self.done)

    def _digest(self, image: LabelledImage, what: str) -> str:
        if (image.id, what) not in self._digests:
            read = image.mask if what == "mask" else image.read
            self._digests[image.id, what] = "" if read is None else content_digest(read)
        return self._digests[image.id, what]

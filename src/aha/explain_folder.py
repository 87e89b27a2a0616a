"""Images explained into a result folder: streamed, resumable, each image read once for all methods.

Everything is checked when a `FileRun` is made, before a file is written. What an earlier run finished is known by all
that it depends on: weights, settings, the picture's content, the method's parameters and what it has learned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import torch
from torch import Tensor

from aha import __version__
from aha.api import explain
from aha.core.disk import MANIFEST, result_key
from aha.core.progress import Listener, heard_by, in_shares
from aha.data.batches import Batch, Subject, as_input
from aha.data.datasets import content_digest, find_data
from aha.data.images import LabelledImage
from aha.data.targets import resolve_targets
from aha.errors import ImageError, ModelError, OutputError, TargetError
from aha.explaining import Asked
from aha.methods import Method, check_fit
from aha.methods.base import UPSAMPLING, in_one_pass
from aha.models import NOTHING, TargetModel
from aha.results.folder import MapRecord, ResultFolder, ResultItem
from aha.results.index_page import write_index
from aha.results.score_table import Failure


def folder_beside(data: str) -> Path:
    """Where results go by default: beside the picture, or the folder of pictures."""
    place = Path(data)
    if not place.exists():
        raise OutputError(f"name a folder for the results of {data}: --out FOLDER")
    place = place.resolve()
    return place.with_name(f"{place.stem if place.is_file() else place.name}-aha")


def check_apart(data: Sequence[str], out: Path) -> None:
    """Refuses an output folder that is one of the folders of pictures, or around one."""
    for text in data:
        path = Path(text).absolute()
        if path.is_dir() and out.absolute() in (path, *path.parents):
            raise OutputError(f"{out} contains the images themselves; choose another output folder")


def find_pictures(data: Sequence[str], out: Path, model: TargetModel) -> list[LabelledImage]:
    """All pictures of the data, each once; results of an earlier run below `out` are not taken for pictures.

    Raises:
        ImageError: A path does not exist, or a folder has no pictures.
    """
    results = out.absolute() if (out / MANIFEST).is_file() else None
    named = {Path(text) for text in data}
    images = [
        image
        for image in find_data(data, model)
        # A file that is named itself is always meant.
        if image.path is None or image.path in named or results not in image.path.absolute().parents
    ]
    if not images:
        raise ImageError(f"there are no images, only results, in {out}")
    return images


def read_class_names(path: Path) -> list[str]:
    """Class names from a text file, one per line."""
    try:
        return path.read_text(encoding="utf-8").strip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read class names from {path}: {error}") from None


class FileRun:
    """Explanations of many pictures by several methods.

    With `shared`, other processes explain other pictures into the same folder at the same time: it is theirs whenever
    nothing is being written.

    Attributes:
        pending: names of the images that are not finished yet; some of their maps may be.
        maps_per_image: number of classes that are explained of each image.
        done: images explained by this run.
        skipped: images that an earlier run had finished.
        failures: images that could not be read.
        manifest: where the results are listed; None as long as there are none.
        index: a page of all maps in the folder; None without any, or where the folder has a page of another kind.
        cards: how far each map of this run can be trusted: image, method, class and a sentence.
    """

    def __init__(
        self,
        model: TargetModel,
        images: Sequence[LabelledImage],
        methods: Sequence[Method],
        target: str,
        out: Path,
        *,
        seed: int = 0,
        card: bool = False,
        shared: bool = False,
    ) -> None:
        asked = Asked.of(model, target)
        self._asked_of, model = asked, asked.model
        for method in methods:
            check_fit(method, model)
        if model.class_names is not None and len(model.class_names) != model.num_classes:
            raise ModelError(
                f"{len(model.class_names)} class names for the {model.num_classes} classes of {model.spec}"
            )
        self._model, self._methods, self._target, self._seed = model, list(dict.fromkeys(methods)), target, seed
        # By what they say they cost: a quick method must not look like half of the work.
        size = model.stated_preprocessing().places
        self._costs = {method: method.cost(model, size).passes for method in self._methods}
        self.maps_per_image = _count_classes(target, model, images)
        self._with_card, self._is_shared = card, shared
        self.cards: list[tuple[str, str, str, str]] = []
        settings = self._settings()
        self._results = ResultFolder(out, model.spec, model.digest, settings, wait=-1 if shared else 0)
        self._common_key = result_key(
            __version__, model.spec, model.digest, model.preprocessing, model.class_names, sorted(settings.items())
        )
        self._prints = {method: method.fingerprint(model) for method in self._methods}
        self._digests: dict[str, str] = {}
        self._pending = [image for image in images if not self._is_finished(image)]
        self.done, self.skipped = 0, len(images) - len(self._pending)
        self.failures: list[Failure] = []
        if drawn := {str(method): facts for method in methods if (facts := method.facts(model))}:
            self._results.note({"explainers": drawn})
        self.manifest: Path | None = None
        self.index: Path | None = None
        self._asked = {(image.id, str(method)) for image in images for method in self._methods}

    @property
    def pending(self) -> list[str]:
        """Names of the images that are not finished yet; some of their maps may be."""
        return [image.id for image in self._pending]

    def run(self, batch_size: int, on_progress: Callable[[float], None] = lambda count: None) -> None:
        """Explains what is pending; `on_progress` gets how many images' worth of work was done since the last call.

        Whatever ends it, an interrupt included, the manifest lists what is done.
        """
        try:
            with ExitStack() as stack:
                opened = False
                for images, batch in self._batches(batch_size, on_progress):
                    if not (opened or self._is_shared):  # now that there is something to write
                        stack.enter_context(self._results)
                        stack.callback(lambda: self._results.note(self._model.engine_facts))
                        opened = True
                    with heard_by(_since_last_time(on_progress, len(images))):
                        self._explain_by_all(images, batch)
                    self.done += len(images)
                if not opened and not self._results.is_listed():
                    stack.enter_context(self._results)
        finally:
            self.manifest = self._results.manifest if len(self._results) else None
        if self.manifest is not None:
            self.index = write_index(self.manifest.parent, self._results.records(), self._model.spec)

    @property
    def maps(self) -> list[MapRecord]:
        """The maps of the images and methods of this run, finished now or before."""
        return [record for record in self._results.records() if (record["image"], record["method"]) in self._asked]

    def _batches(self, size: int, on_progress: Callable[[float], None]) -> Iterator[tuple[list[LabelledImage], Batch]]:
        """What is pending, read; pictures that cannot be read are left out and noted."""
        images: list[LabelledImage] = []
        inputs: list[Tensor] = []
        subjects: list[Subject] = []
        for place, image in enumerate(self._pending, start=1):
            try:
                values, subject = as_input(self._model, image.content(), image.id, image.path)
            except (ImageError, OSError) as error:
                self.failures.append(Failure.of_image(image.id, error))
                on_progress(1)
            else:
                images.append(image)
                inputs.append(values)
                subjects.append(subject)
            if images and (len(images) == size or place == len(self._pending)):
                yield images, Batch(torch.stack(inputs), subjects)
                images, inputs, subjects = [], [], []

    def _explain_by_all(self, images: Sequence[LabelledImage], batch: Batch) -> None:
        """All methods that lack maps; the images are run once for those that read their pass."""
        missing = [m for m in self._methods if not all(self._has_maps(image, m) for image in images)]
        if self._asked_of.objective is not None and self._asked_of.objective.is_per_image:
            for method in in_shares(missing, [self._costs[method] for method in missing]):
                self._explain(images, batch, method)
            return
        ordered = sorted(missing, key=lambda m: m.reads(self._model, batch.inputs.shape[1:]) == NOTHING)
        with closing(in_one_pass(self._model, batch.inputs, ordered)) as methods:
            for method in in_shares(methods, [self._costs[method] for method in ordered]):
                self._explain(images, batch, method)

    def _explain(self, images: Sequence[LabelledImage], batch: Batch, method: Method) -> None:
        rows = [row for row, image in enumerate(images) if not self._has_maps(image, method)]
        if not rows:
            return
        part = batch.part(rows)
        labels = [images[row].label or 0 for row in rows] if self._target == "label" else None
        of_each = self._asked_of.objective is not None and self._asked_of.objective.is_per_image
        asked = (self._asked_of.whole, self._target) if of_each else (self._model, self._asked_of.classes)
        explanation = explain(asked[0], part, method, asked[1], labels=labels, seed=self._seed, card=self._with_card)
        cards = zip(explanation.subjects, explanation.labels, explanation.cards, strict=False)  # none unless asked for
        self.cards += [(subject.name, str(method), label, card.sentence) for subject, label, card in cards]
        places = [divmod(index, self.maps_per_image) for index in range(len(explanation))]
        keys = [self._key(images[rows[row]], method, rank) for row, rank in places]
        self._write(explanation.item(index, key) for index, key in enumerate(keys))

    def _write(self, items: Iterable[ResultItem]) -> None:
        if not self._is_shared:
            for item in items:
                self._results.add(item)
            return
        drawn = list(items)  # before the others have to wait
        with self._results:
            for item in drawn:
                self._results.add(item)
            self._results.note(self._model.engine_facts)

    def _is_finished(self, image: LabelledImage) -> bool:
        return all(self._has_maps(image, method) for method in self._methods)

    def _has_maps(self, image: LabelledImage, method: Method) -> bool:
        if not self._results.knows(image.id):  # then nothing has to be read to know it
            return False
        return all(self._results.has(self._key(image, method, rank)) for rank in range(self.maps_per_image))

    def _key(self, image: LabelledImage, method: Method, rank: int) -> str:
        work = result_key(image.id, method, self._target, rank)[:16]
        label = image.label if self._target == "label" else ""
        # A map that is finished without its card is not finished where one is wanted.
        wanted = ["card"] if self._with_card else []
        return f"{work}-{result_key(self._common_key, self._prints[method], self._digest(image), label, *wanted)}"

    def _digest(self, image: LabelledImage) -> str:
        if image.id not in self._digests:
            self._digests[image.id] = content_digest(image.read)
        return self._digests[image.id]

    def _settings(self) -> dict[str, object]:
        preprocessing = self._model.stated_preprocessing()
        return {
            "target": self._target,
            "seed": self._seed,
            "score": self._model.score.name,
            "upsampling": UPSAMPLING,
            "precision": self._model.precision,
            **({"engine_asked": self._model.engine} if self._model.engine_key else {}),
            "input_size": list(preprocessing.places),
            "fit": preprocessing.fit,
        }


def _since_last_time(on_progress: Callable[[float], None], images: int) -> Listener:
    """Hears what share of the work on some images is done, and passes on how much was added."""
    reported = 0.0

    def listener(share: float) -> None:
        nonlocal reported
        on_progress(images * (share - reported))
        reported = share

    return listener


def _count_classes(target: str, model: TargetModel, images: Sequence[LabelledImage]) -> int:
    """How many classes of each image the target stands for; refuses a target that the model does not have."""
    if target == "label":
        if any(image.label is None for image in images):
            raise TargetError("these files have no labels; write top1, top5, a class index or a class name")
        return 1
    return len(resolve_targets(target, model, torch.zeros(1, model.num_classes), None)[0])

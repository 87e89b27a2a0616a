"""Training images: which of them are learnt from, and which a step sees.

The images of a step follow from the seed and the step alone. So a run can be resumed at any step, and shared among any
number of processes, and still sees the same images. Each epoch goes through all images once, in an order of its own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from PIL.Image import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from aha.core.pictures import read_named
from aha.data.images import LabelledImage, read_image
from aha.data.samples import Data, find_samples
from aha.errors import ImageError
from aha.learned.seeds import CROP, HOLD_OUT, ORDER, generator_for
from aha.learned.settings import TrainConfig
from aha.models import TargetModel
from aha.models.loading.preprocessing import Preprocessing

_UNKNOWN = -1  # a label that is not known, inside a tensor of labels
_MOST_UNREADABLE = 10


@dataclass(frozen=True)
class StepBatch:
    """One process's share of a step's images.

    Attributes:
        inputs: model inputs (b, C, H, W).
        labels: true classes (b,), -1 where unknown.
        places: each image's place (b,) in the run; its random choices are seeded by it.
        files: where each image came from.
    """

    inputs: Tensor
    labels: Tensor
    places: list[int]
    files: list[str]


class StepImages(Dataset[tuple[Tensor, int, int, str]]):
    """The image at each place of a run: place p is in epoch p // N."""

    def __init__(
        self, samples: Sequence[LabelledImage], preprocessing: Sequence[Preprocessing], config: TrainConfig
    ) -> None:
        """`preprocessing[step]` makes the inputs of a step."""
        self._samples, self._preprocessing = samples, preprocessing
        self._seed, self._crop, self._batch_size = config.seed, config.crop, config.batch_size
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def __getitem__(self, place: int) -> tuple[Tensor, int, int, str]:
        for attempt in range(_MOST_UNREADABLE):  # a damaged file among a million is replaced by the next
            sample = self._sample(place + attempt)
            try:
                image = read_image(sample.read())
            except (ImageError, OSError) as error:
                failure = f"{sample.source}: {error}"
                continue
            label = _UNKNOWN if sample.label is None else sample.label
            preprocessing = self._preprocessing[place // self._batch_size]
            return preprocessing(self._cut(image, place))[0], label, place, sample.source
        raise ImageError(f"{_MOST_UNREADABLE} images in a row cannot be read, the last one being {failure}")

    def _cut(self, image: Image, place: int) -> Image:
        """A random part of the picture, of its own shape: with few pictures, parts of them are further ones."""
        if self._crop >= 1:
            return image
        share, x, y = torch.rand(3, generator=generator_for(self._seed, CROP, place)).tolist()
        side = math.sqrt(self._crop + (1 - self._crop) * share)
        width, height = round(side * image.width), round(side * image.height)
        left, top = round(x * (image.width - width)), round(y * (image.height - height))
        return image.crop((left, top, left + width, top + height))

    def _sample(self, place: int) -> LabelledImage:
        epoch, index = divmod(place, len(self._samples))
        if self._order[0] != epoch:
            self._order = (epoch, torch.randperm(len(self._samples), generator=generator_for(self._seed, ORDER, epoch)))
        return self._samples[int(self._order[1][index])]


def split_samples(
    data: Data, validation: Data | None, target: TargetModel, config: TrainConfig
) -> tuple[list[LabelledImage], list[LabelledImage]]:
    """Images to train on and images to measure on, the second some of the first where none are given."""
    samples = find_samples(data, target)
    others = samples if validation is None else find_samples(validation, target)
    if validation is None and len(samples) < 2:
        raise ImageError("the data has one image; training needs one to learn from and one to measure on")
    order = torch.randperm(len(others), generator=generator_for(config.seed, HOLD_OUT)).tolist()
    if validation is not None:
        return samples, [others[index] for index in order[: config.validation_images]]
    held_out = order[: max(1, min(config.validation_images, len(samples) // 10))]
    left_out = set(held_out)
    return [s for index, s in enumerate(samples) if index not in left_out], [samples[index] for index in held_out]


def readable(
    samples: Iterable[LabelledImage], on_error: Callable[[str], None] = lambda reason: None
) -> Iterator[LabelledImage]:
    """The samples whose pictures can be read; `on_error` is told why another one cannot."""
    for sample in samples:
        try:
            read_named(sample.read(), sample.source)
        except (ImageError, OSError) as error:
            on_error(str(error))
        else:
            yield sample


def step_batches(
    images: StepImages, steps: range, batch_size: int, share: tuple[int, int], workers: int
) -> Iterator[StepBatch]:
    """The batches of the given steps, as process `share[0]` of `share[1]` sees them.

    `workers` processes read ahead, at most one for each CPU core and step: a loader starts all that it is told to, at
    once, and each has a copy of everything.
    """
    rank, processes = share
    mine = range(rank * batch_size // processes, (rank + 1) * batch_size // processes)
    places = [[step * batch_size + index for index in mine] for step in steps]
    own = torch.Generator()  # a loader draws a seed for its workers: not from the caller's random state
    yield from DataLoader(
        images,
        batch_sampler=places,
        num_workers=min(workers, os.cpu_count() or 1, len(steps)),
        collate_fn=_collate,
        generator=own,
    )


def _collate(rows: list[tuple[Tensor, int, int, str]]) -> StepBatch:
    inputs, labels, places, files = zip(*rows, strict=True)
    return StepBatch(torch.stack(inputs), torch.tensor(labels), list(places), list(files))

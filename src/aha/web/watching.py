"""Looking over a model's shoulder while it works for a job: how far it is, what it costs, and whether to go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aha.core.interrupts import ended_by
from aha.core.progress import heard_by
from aha.models import TargetModel
from aha.web.jobs import Job


@contextmanager
def watched(job: Job, model: TargetModel) -> Iterator[None]:
    """The job hears of the model's progress and its passes, and may end the work before each of them."""
    before = model.passes.total()
    job.count_images = lambda: model.passes.total() - before
    with ended_by(lambda _images, _counts: job.checkpoint()), heard_by(job.report):
        yield

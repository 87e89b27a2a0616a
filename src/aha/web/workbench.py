"""What every question needs: models, pictures, a place in the queue, and answers kept under content keys."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from aha.core.disk import result_key
from aha.core.interrupts import ended_by
from aha.core.progress import heard_by
from aha.core.registry import nearest_names
from aha.data.batches import Batch
from aha.errors import UnknownName
from aha.methods import Method
from aha.metrics import Sample
from aha.models import TargetModel
from aha.web.cache import Cache
from aha.web.jobs import Job, Jobs
from aha.web.payloads import ContrastResult, MapResult, State
from aha.web.pictures import Pictures
from aha.web.served import Served

MOST_CLASSES = 8
# Places in the queue: what is waited for with the eyes on it, maps (cheap ones first, all below 2), curves.
QUICK, MAPS, COARSE_CURVES, FINE_CURVES = 0, 1, 2, 3
_FORMAT = 2  # of results: those of another format are never found, and so made anew


@contextmanager
def watched(job: Job, model: TargetModel) -> Iterator[None]:
    """The job hears of the model's progress and its passes, and may end the work before each of them."""
    before = model.passes.total()
    job.count_images = lambda: model.passes.total() - before
    with ended_by(lambda _images, _counts: job.checkpoint()), heard_by(job.report):
        yield


class Costs:
    """Costs of maps in images through the model: as seen before, else what the method's parameters allow."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def learn(self, served: Served, method: Method, images: int) -> None:
        """Takes note of what a map has cost."""
        with self._lock:
            self._seen[served.name, method.in_full()] = images

    def of(self, served: Served, method: Method) -> int:
        """What a map will cost."""
        with self._lock:
            known = self._seen.get((served.name, method.in_full()))
        return (
            method.cost(served.fitting, served.model.stated_preprocessing().places).passes if known is None else known
        )


class Workbench:
    """Models, pictures, jobs and results together."""

    def __init__(self, served: Sequence[Served], pictures: Pictures, store: Cache, jobs: Jobs) -> None:
        self.served = {one.name: one for one in served}
        self.pictures, self.store, self.jobs = pictures, store, jobs
        self.costs = Costs()
        self._identities: dict[str, str] = {}
        for one in served:
            one.fitting.structure()  # found now, once, so that checks of later requests never run the model
            self._identities[one.name] = result_key(_FORMAT, *one.identity)
        self._by_identity = {self._identities[one.name]: one for one in served}

    def model(self, name: str) -> Served:
        """The model of this name, on offer here.

        Raises:
            UnknownName: It is not; models are loaded at the start only.
        """
        if name not in self.served:
            hints = nearest_names(name, self.served) or list(self.served)
            raise UnknownName(f"the explorer has no model {name[:80]!r}; it has {', '.join(hints)}")
        return self.served[name]

    def identity_of(self, served: Served) -> str:
        """What results call a model: they outlive the session, in which alone its name means it."""
        return self._identities[served.name]

    def model_of(self, result: MapResult | ContrastResult) -> Served:
        """The model that a result was made with, whatever it is called here.

        Raises:
            UnknownName: It is not on offer here.
        """
        if result["model"] not in self._by_identity:
            raise UnknownName(f"the model of this result is not on offer; the explorer has {', '.join(self.served)}")
        return self._by_identity[result["model"]]

    def ask(
        self, key: str, kind: str, served: Served, work: Callable[[Job], None], owner: str, priority: float
    ) -> State:
        """The stored answer, or the job that finds it."""
        known = self.store.find("results", key)
        if known is not None:
            return {"key": key, "status": "done", "result": known}

        def watched_work(job: Job) -> None:
            with watched(job, served.model):
                work(job)

        return self.state(self.jobs.submit(key, kind, served.name, watched_work, owner=owner, priority=priority))

    def state(self, job: Job) -> State:
        """A job for the page, with its result once there is one."""
        known = self.store.find("results", job.key) if job.status == "done" else None
        state = job.state(self.jobs.ahead_of(job))
        if known is not None:
            state["result"] = known
        return state

    def place_of(self, served: Served, method: Method) -> float:
        """The place of a map in the queue: between `MAPS` and the first curves, expensive ones later."""
        cost = self.costs.of(served, method)
        return MAPS + cost / (cost + 1000.0)

    def sample(self, served: Served, picture: str) -> Sample:
        """The picture as what metrics look at."""
        batch: Batch = self.pictures.batch(picture, served.model)
        return Sample(served.model, batch.subjects[0].name, batch.inputs[0].to(served.model.device))

    def check(self, picture: str, served: Served, classes: Sequence[int]) -> None:
        """Refuses pictures that are not here, and classes that the model has not."""
        self.pictures.record(picture)
        served.check_classes()
        served.model.check_classes(classes)

    def key_of(self, served: Served, *parts: object) -> str:
        """The key of a result that depends on a model and on these parts."""
        return result_key(self.identity_of(served), *parts)

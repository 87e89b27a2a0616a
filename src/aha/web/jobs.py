"""Work that waits, runs, tells how far it is, and can be cancelled.

Each lane has one worker thread. A model is a lane, so no model ever works for two requests at once; quick questions
overtake slow ones in the queue. Equal work has an equal key and is done once, however many visitors ask for it.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from aha.errors import AhaError
from aha.web.payloads import RefinementStep, State, Status

Work = Callable[["Job"], None]

_SECONDS_TO_END = 20.0
_REMEMBERED = 512  # finished jobs that can still be asked for


class Busy(AhaError):
    """Too much work is waiting already."""


class Cancelled(BaseException):
    """Nobody wants the result any more. Not an `Exception`, so that no method that tries things out swallows it."""


@dataclass
class Job:
    """One piece of work.

    Attributes:
        key: content key of its result.
        kind: what it makes, for people.
        lane: name of the worker that does it.
        owners: visitors who asked for it; it is cancelled when all of them have left.
        priority: jobs with a smaller one come first.
        done: share that is finished, where it is known.
        count_images: how many images went through the model so far.
        parts: what it has found so far, where that can be shown before the rest.
        error: one line, if it failed.
    """

    key: str
    kind: str
    lane: str
    work: Work
    owners: set[str]
    status: Status = "waiting"
    done: float | None = None
    count_images: Callable[[], int] = lambda: 0
    parts: list[RefinementStep] = field(default_factory=list)
    error: str = ""
    asked: float = field(default_factory=time.monotonic)
    started: float | None = None
    finished: float | None = None
    deadline: float = float("inf")
    priority: float = 1

    @property
    def is_over(self) -> bool:
        """Nothing will change any more."""
        return self.status in ("done", "failed", "cancelled")

    def checkpoint(self) -> None:
        """Called by the work itself, often: ends it when nobody wants it or when it takes too long."""
        if not self.owners:
            raise Cancelled
        if time.monotonic() > self.deadline:
            raise AhaError("stopped: this took too long; choose fewer steps or samples")

    def report(self, share: float) -> None:
        """Called by the work itself: this share of it is done; a moment at which it may end."""
        self.checkpoint()
        self.done = share or None  # work that has just begun may never tell more

    def state(self, ahead: int) -> State:
        """The job for the page, with so many others before it."""
        since = self.started or self.asked
        return {
            "key": self.key,
            "kind": self.kind,
            "status": self.status,
            "progress": None if self.done is None else round(self.done, 4),
            "images": self.count_images(),
            "parts": list(self.parts),
            "seconds": round((self.finished or time.monotonic()) - since, 2),
            "error": self.error,
            "ahead": ahead,
        }


class Jobs:
    """All lanes and their queues.

    Args:
        max_waiting: jobs that may wait in all; more are refused.
        max_per_owner: jobs of one visitor that may wait or run.
        max_seconds: longest time that a job may run.
        report: called with one line for each unexpected error.
    """

    def __init__(
        self,
        *,
        max_waiting: int = 128,
        max_per_owner: int = 32,
        max_seconds: float = 1800.0,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._max_waiting, self._max_per_owner, self._max_seconds = max_waiting, max_per_owner, max_seconds
        self._report = report
        self._changed = threading.Condition()
        self._queues: dict[str, list[tuple[float, int, Job]]] = {}
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._numbers = itertools.count()
        self._workers: list[threading.Thread] = []
        self._is_closed = False

    def submit(self, key: str, kind: str, lane: str, work: Work, *, owner: str, priority: float = 1) -> Job:
        """The job with this key: the one that is under way, or a new one at the end of its lane.

        Raises:
            Busy: Too much is waiting, in all or of this visitor.
        """
        with self._changed:
            known = self._jobs.get(key)
            if known is not None and not known.is_over:
                known.owners.add(owner)
                return known
            self._refuse_too_many(owner)
            job = Job(key, kind, lane, work, {owner}, priority=priority)
            self._jobs[key] = job
            self._jobs.move_to_end(key)
            if lane not in self._queues:
                self._queues[lane] = []
                worker = threading.Thread(target=self._serve, args=(lane,), name=f"aha {lane}", daemon=True)
                self._workers.append(worker)
                worker.start()
            self._queue(job)
            self._forget_old()
            return job

    def get(self, key: str) -> Job | None:
        """The job with this key, if it is remembered."""
        with self._changed:
            return self._jobs.get(key)

    def ahead_of(self, job: Job) -> int:
        """How many jobs the lane does before this one."""
        with self._changed:
            if job.status != "waiting":
                return 0
            running = any(other.status == "running" and other.lane == job.lane for other in self._jobs.values())
            order = [waiting for _, _, waiting in sorted(self._queues[job.lane], key=lambda entry: entry[:2])]
            return running + order.index(job)

    def cancel(self, key: str, owner: str) -> Job | None:
        """Takes the visitor's wish back; the work ends when it was the last one."""
        with self._changed:
            job = self._jobs.get(key)
            if job is None or job.is_over:
                return job
            job.owners.discard(owner)
            if not job.owners and job.status == "waiting":
                self._queues[job.lane] = [entry for entry in self._queues[job.lane] if entry[2] is not job]
                heapq.heapify(self._queues[job.lane])
                self._finish(job, "cancelled")
            return job

    def wait(self, key: str, seconds: float) -> Job | None:
        """Waits until the job is over, at most so long; for tests and for programs."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs[key].is_over, seconds)
            return self._jobs[key]

    def close(self) -> None:
        """Cancels what waits or runs, and waits for the workers to end."""
        with self._changed:
            self._is_closed = True
            for job in self._jobs.values():
                job.owners.clear()
            self._changed.notify_all()
        # A thread that is inside a model when the interpreter ends takes the process down with an abort.
        end = time.monotonic() + _SECONDS_TO_END
        for worker in self._workers:
            worker.join(max(0.0, end - time.monotonic()))

    def _refuse_too_many(self, owner: str) -> None:
        waiting = sum(len(queue) for queue in self._queues.values())
        if waiting >= self._max_waiting:
            raise Busy(f"{waiting} jobs are waiting already; try again in a while")
        own = sum(owner in job.owners for job in self._jobs.values() if not job.is_over)
        if own >= self._max_per_owner:
            raise Busy(f"you have {own} jobs under way; wait for one of them, or cancel it")

    def _forget_old(self) -> None:
        over = [key for key, job in self._jobs.items() if job.is_over]
        for key in over[: max(0, len(over) - _REMEMBERED)]:
            del self._jobs[key]

    def _serve(self, lane: str) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or bool(self._queues[lane]))
                if self._is_closed:
                    return
                job = heapq.heappop(self._queues[lane])[2]
                job.status, job.started = "running", time.monotonic()
                job.deadline = job.started + self._max_seconds
            self._run(job)

    def _run(self, job: Job) -> None:
        status: Status = "failed"
        error = ""
        try:
            job.checkpoint()
            job.work(job)
            status = "done"
        except Cancelled:
            status = "cancelled"
        except AhaError as problem:
            error = " ".join(str(problem).split())
        except BaseException as problem:  # whatever a method does, the lane goes on
            error = f"{job.kind} failed unexpectedly ({type(problem).__name__})"
            self._report(f"{error}: {' '.join(str(problem).split())[:300]}")
        with self._changed:
            if status == "cancelled" and job.owners:  # somebody asked for it while it came to its end
                job.status, job.started, job.done, job.parts = "waiting", None, None, []
                self._queue(job)
            else:
                self._finish(job, status, error)

    def _queue(self, job: Job) -> None:
        heapq.heappush(self._queues[job.lane], (job.priority, next(self._numbers), job))
        self._changed.notify_all()

    def _finish(self, job: Job, status: Status, error: str = "") -> None:
        job.status, job.error, job.finished = status, error, time.monotonic()
        job.work = _nothing  # lets go of pictures and maps
        images = job.count_images()  # the model's next passes are for others
        job.count_images = lambda: images
        if status == "done":
            job.done = 1.0
        self._changed.notify_all()


def _nothing(_job: Job) -> None:
    """The work of a job that is over."""

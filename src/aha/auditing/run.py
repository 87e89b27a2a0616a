"""`audit`: measures what is missing, judges it, and writes the page. The folder is a run of the bench, and resumes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from torch import nn

from aha.auditing.against import RECORD, Other, compare, find_other, run_of
from aha.auditing.audit import Audit
from aha.auditing.page import write_audit
from aha.auditing.plans import plans_of, search_of, truth_metric
from aha.auditing.record import AuditRequest, check_same
from aha.auditing.thresholds import FILE, Thresholds, read_thresholds
from aha.bench.inputs import check_photographs
from aha.bench.run_reader import read_run
from aha.bench.runner import BenchRun, Step, planned_view, written_model
from aha.core.disk import check_writable, write_atomically, writing
from aha.data.datasets import choose, find_data
from aha.errors import SpecError
from aha.methods import Method, check_fit, load_method
from aha.models import TargetModel, load_model, loads_its_model

LIMIT, STEPS = 40, 16


@loads_its_model
def audit(
    model: TargetModel | str | nn.Module,
    data: str | Path,
    method: str | Method,
    *,
    against: str | Path | None = None,
    headroom: int | None = None,
    thresholds: str | Path | None = None,
    out: str | Path = "audit",
    limit: int = LIMIT,
    target: str = "top1",
    steps: int = STEPS,
    seed: int = 0,
    batch_size: int = 8,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Audit:
    """How far the maps of a method can be trusted on a model and images, part by part, each with a verdict.

    Args:
        model: as in `aha.explain`.
        data: images, as in `aha bench`: a folder, a CSV file with labels, masks or boxes, or `KIND:PLACE`.
        method: text of the method.
        against: what the maps are compared with: the folder of another explainer, of a run that kept its maps, of saved
            maps, or the text of a method.
        headroom: also run `search(budget=headroom)`, to judge how much of what is possible the maps reach.
        thresholds: a TOML file; what it leaves out is as shipped.
        out: folder of the audit: the same call resumes it.
        limit: number of images, a random sample by the seed.
        target: the explained class.
        steps: of deletion and insertion, for each of six references.
        seed: of the sample, of methods and metrics.
        batch_size: maximum number of images computed at once.
        on_step: called with what was done.

    Returns:
        An `Audit`; its page and its JSON are in `out`.
    """
    prepared = prepare(**{name: given for name, given in locals().items() if name != "on_step"})
    for run in prepared.begin():
        run.run(on_step)
    return prepared.settle()


@dataclass(frozen=True)
class PreparedAudit:
    """An audit, checked; nothing has been computed yet.

    Attributes:
        runs: what is to be measured, one after the other.
    """

    asked: AuditRequest
    thresholds: Thresholds
    out: Path
    runs: tuple[BenchRun, ...]
    other: Other | None

    def begin(self) -> tuple[BenchRun, ...]:
        """Notes in the folder what is asked for; gives the runs that measure it."""
        with writing(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
            write_atomically(self.out / FILE, lambda file: file.write(self.thresholds.as_toml().encode()))
            (self.out / RECORD).unlink(missing_ok=True)  # of other maps than those that are asked for now
        self.asked.write(self.out)
        return self.runs

    def settle(self) -> Audit:
        """Judges what was measured and writes the page."""
        if self.other is not None:
            compare(self.other, read_run(self.out), self.asked.method, self.out)
        return write_audit(self.out)


def prepare(
    model: TargetModel | str | nn.Module,
    data: str | Path,
    method: str | Method,
    *,
    against: str | Path | None = None,
    headroom: int | None = None,
    thresholds: str | Path | None = None,
    out: str | Path = "audit",
    limit: int = LIMIT,
    target: str = "top1",
    steps: int = STEPS,
    seed: int = 0,
    batch_size: int = 8,
    model_text: str | None = None,
) -> PreparedAudit:
    """The audit of `audit`, checked; writes nothing. `model_text` is how a call writes the model."""
    for name, value in (("limit", limit), ("steps", steps), ("batch_size", batch_size), ("headroom", headroom or 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SpecError(f"{name} must be a whole number of at least 1, not {value!r}")
    limits, chosen, out = read_thresholds(thresholds), load_method(method), Path(out)
    check_writable(out)
    loaded = planned_view(load_model(model), [target])
    check_photographs(loaded, "aha audit")
    check_fit(chosen, loaded)
    text = str(data).rstrip("/") or "/"
    asked = AuditRequest(
        model=loaded.spec,
        digest=loaded.digest,
        model_text=model_text or written_model(loaded),
        method=str(chosen),
        in_full=chosen.in_full(),
        facts=chosen.facts(loaded),
        data=text,
        target=target,
        limit=limit,
        steps=steps,
        seed=seed,
        against="" if against is None else str(against),
        headroom=headroom or 0,
        truth=truth_metric(choose(find_data(text, loaded), limit, seed)),
        begun=datetime.now(UTC).strftime("%Y-%m-%d"),
    )
    if asked.method == search_of(asked):
        raise SpecError(f"{asked.method} is what the headroom is measured by; audit it without --headroom")
    if against is not None and Path(against).expanduser().resolve() == out.resolve():
        raise SpecError(f"--against {against} is the folder of this audit; name another training, checkpoint or run")
    asked = check_same(out, asked)
    other = None if against is None else find_other(str(against), asked.method, loaded)
    plans = plans_of(asked, batch_size, loaded.num_classes)
    runs = [BenchRun(plan, out, model=loaded) for plan in plans]
    if other is not None and (made := run_of(other, plans[0], out, loaded)) is not None:
        runs.append(made)
    return PreparedAudit(asked, limits, out, tuple(runs), other)

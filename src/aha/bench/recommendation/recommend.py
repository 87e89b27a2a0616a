"""`recommend`: which explanation to use for a model, found on one's own images within a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from aha.bench.inputs import check_photographs
from aha.bench.plan import Plan
from aha.bench.recommendation.budget import Account, Budget, read_duration
from aha.bench.recommendation.race import Progress, Racing
from aha.bench.recommendation.record import Race
from aha.bench.recommendation.result import Recommendation, recommendation, write_page
from aha.bench.reporting.report import write_report
from aha.bench.runner import planned_view, written_model
from aha.errors import SpecError
from aha.methods import METHODS, list_methods, load_method
from aha.models import TargetModel, load_model, loads_its_model

DEFAULT_BUDGET = "30min"
# Methods that take thousands of passes as published, with what usually suffices to see how good they are.
LIGHTER = {
    "extremal_perturbation": "extremal_perturbation(steps=100)",
    "kernel_shap": "kernel_shap(n=300, parts=patches(grid=7))",
    "lime": "lime(n=300)",
    "mda": "mda(grid=7, screen=4)",
    "rise": "rise(n=500)",
    "shapley_sampling": "shapley_sampling(orders=3, parts=patches(grid=7))",
    "tis": "tis(masks=128)",
}


@loads_its_model
def recommend(
    model: TargetModel | str | nn.Module,
    data: str | Path,
    *,
    budget: str | float | None = None,
    passes: int | None = None,
    methods: Sequence[str] | None = None,
    must_be_below: str | float | None = None,
    out: str | Path = "recommendation",
    limit: int | None = None,
    target: str = "top1",
    seed: int = 0,
    batch_size: int = 8,
    on_step: Callable[[Progress], None] = lambda progress: None,
) -> Recommendation:
    """Races methods on your own images and says which one to use.

    Args:
        model: as in `aha.explain`.
        data: images, as in a bench plan: a folder, a CSV file, `imagenet:DIR`, ...
        budget: the time it may take, such as `"30min"` or a number of seconds; 30 minutes unless `passes` is given.
        passes: the images it may send through the model, forwards and backwards.
        methods: texts of the methods to race; all that fit the model by default, expensive ones in a lighter form.
        must_be_below: the time that a map may take, such as `"100ms"`, as one of a batch of at most `batch_size`;
            slower methods are out.
        out: folder of the race, which is a run of the bench: the same call continues it, or finds it finished and
            computes nothing; a larger budget goes on.
        limit: number of images, a seeded choice.
        target: the explained class.
        seed: of the choice of images, of methods and of metrics.
        batch_size: most images explained at once.
        on_step: called with what is being done, and what was spent.

    Returns:
        A `Recommendation`; its table, and the report of the run, are in `out`.
    """
    return settle(prepare(**locals()))


def settle(racing: Racing) -> Recommendation:
    """Brings a race to its end and writes what it says: the answer as a page, and the report of the run."""
    racing.run()
    found = recommendation(racing.out)
    write_page(found)
    write_report(racing.out)
    return found


def prepare(
    model: TargetModel | str | nn.Module,
    data: str | Path,
    *,
    budget: str | float | None = None,
    passes: int | None = None,
    methods: Sequence[str] | None = None,
    must_be_below: str | float | None = None,
    out: str | Path = "recommendation",
    limit: int | None = None,
    target: str = "top1",
    seed: int = 0,
    batch_size: int = 8,
    model_text: str | None = None,
    on_step: Callable[[Progress], None] = lambda progress: None,
) -> Racing:
    """The race of `recommend`, checked; nothing has been computed yet. `model_text` is how a call writes the model."""
    seconds = _seconds(budget)
    if seconds is None and passes is None:
        seconds = read_duration(DEFAULT_BUDGET)
    allowed = Budget(passes, seconds)
    below = _seconds(must_be_below)
    if not isinstance(methods, Sequence | None):
        raise SpecError(f"methods= takes a list of texts such as ['grad_cam', 'rise'], not {methods!r}")
    for text in methods or ():
        load_method(text)  # unknown names are refused before anything is loaded
    loaded = planned_view(load_model(model), [target])
    check_photographs(loaded, "aha recommend")
    chosen = tuple(methods) if methods else candidates(loaded)
    if len(chosen) < 2:
        raise SpecError("a race needs at least two methods")
    plan = Plan(
        model=loaded.spec,
        data=str(data).rstrip("/") or "/",
        methods=chosen,
        targets=(target,),
        limit=limit,
        seed=seed,
        batch_size=batch_size,
        title=f"Which explanation to use for {loaded.spec}",
    )
    text = model_text or written_model(loaded)
    return Racing(plan, Path(out), loaded, allowed, must_be_below=below, model_text=text, on_step=on_step)


def candidates(model: TargetModel) -> tuple[str, ...]:
    """All methods that fit the model, but wrappers and the search that only measures the others."""
    names = [name for name in list_methods(model) if METHODS[name].family != "wrapper" and name != "search"]
    lighter = {**LIGHTER, "occlusion": _lighter_occlusion(model)}
    texts = [lighter.get(name, name) for name in names]
    return (*texts, "aha(refine=3)") if "aha" in texts else tuple(texts)


def _lighter_occlusion(model: TargetModel) -> str:
    """Windows of three fourteenths of the picture: 48 pixels of 224."""
    side = min(model.stated_preprocessing().size)
    window = max(2, 3 * side // 14)
    return f"occlusion(window={window}, stride={window // 2})"


@dataclass(frozen=True)
class Outlook:
    """What a race will cost, before it is run.

    Attributes:
        methods, images: how many there are.
        first_passes: images through the model that a first round of all methods takes, by what they say they cost.
        forward_seconds: measured time of one image through the model.
        budget: what may be spent at most.
        spent: passes that the race in the folder has taken so far.
        is_finished: nothing would be computed.
    """

    methods: int
    images: int
    first_passes: int
    forward_seconds: float
    budget: Budget
    spent: int
    is_finished: bool


def outlook(racing: Racing) -> Outlook:
    """Tries one image, and reckons; writes nothing."""
    if racing.race.finished is None:
        racing.check_budget()
    known = Race.read(racing.out)
    return Outlook(
        len(racing.texts),
        len(racing.bench.images),
        racing.first_passes,
        racing.pace,
        racing.budget,
        Account(racing.out).passes,
        known is not None and racing.race.finished is not None,
    )


def _seconds(given: str | float | None) -> float | None:
    return read_duration(given) if isinstance(given, str) else given

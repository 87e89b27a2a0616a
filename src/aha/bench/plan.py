"""A plan: which methods and metrics, on which model and images. Everything in it is checked before any work.

```toml
# plan.toml
model = "timm:resnet18"            # or a list of models, each with the same work
data = "imagenet:/data/imagenet"   # see aha.data.datasets
methods = ["grad_cam", "rise(n=4000)", "center_map"]
metrics = ["aha", "cost"]
targets = ["top1", "label"]        # reported apart
limit = 1000
```
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

import tomli_w

from aha.core.model_options import ModelOptions
from aha.core.registry import nearest_names
from aha.core.validation import PLAIN, NonNegativeInt, PositiveInt, checked, hints_of
from aha.errors import AhaError, SpecError, deprecated
from aha.methods import Method, check_fit, load_method
from aha.metrics.protocols import Protocol, load_protocols
from aha.models import TargetModel, refuse_code
from aha.models.scores import load_score

Filter = Literal["none", "mda"]
KeepMaps = Literal["few", "none", "float16", "float32"]
FEW = 6
"""Images whose maps are kept if a plan does not say which, so that a report has some to show."""


@dataclass(frozen=True)
class Plan(ModelOptions):
    """One model's part of a benchmark, with the options that the model is loaded with.

    Attributes:
        model: `SOURCE:NAME`, as `aha.load_model` takes it.
        data: `KIND:PLACE`, or a path whose kind shows from what is there; of several, images are known by their paths.
        methods: texts of methods.
        metrics: protocols or texts of metrics.
        targets: explained classes: `top1`, `label`, `top5`, ...; each is reported apart.
        limit: number of images; a seeded choice of them, which grows when the limit does.
        filter: "mda" keeps images that are classified correctly with at least 60 %, at most 5 per class.
        seed: of the choice of images, of methods and of metrics.
        batch_size: most images computed at once; results do not depend on it.
        maps: precision in which all maps are kept for the report; "few" keeps those of a few images, "none" none.
        saved: folder of maps that were saved earlier, to be scored as well.
        title: heading of the report.
        paper: name of the published table that the plan repeats, if it does.
        optional: methods that may be missing or not fit the model are left out instead of refused.
    """

    model: str
    data: str | tuple[str, ...]
    methods: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("quick",)
    targets: tuple[str, ...] = ("top1",)
    limit: PositiveInt | None = None
    filter: Filter = "none"
    seed: NonNegativeInt = 0
    batch_size: PositiveInt = 32
    maps: KeepMaps = "few"
    saved: str = ""
    title: str = ""
    paper: str = ""
    optional: bool = False

    def as_dict(self) -> dict[str, Any]:
        """What differs from the defaults, as plain values."""
        shown = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in shown.items()}


@dataclass(frozen=True)
class Work:
    """What a plan asks for, understood: nothing in it is unknown any more.

    Attributes:
        left_out: optional methods that cannot be used, with the reason.
    """

    methods: tuple[Method, ...]
    protocols: tuple[Protocol, ...]
    left_out: dict[str, str] = field(default_factory=dict)


def read_plans(path: Path, changes: Mapping[str, Any] | None = None) -> list[Plan]:
    """The plans in a TOML file, one per model; `changes` come from the command line and win."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"cannot read the plan {path}: {error.strerror}") from None
    except RecursionError:
        raise SpecError(f"the plan {path} is nested too deeply to be a plan") from None
    except ValueError as error:  # TOML's own, or of another encoding
        raise SpecError(f"the plan {path} is not TOML: {error}") from None
    changes = changes or {}
    if "model" in changes and "weights" in table and "weights" not in changes:
        raise SpecError(f"the weights in {path} belong to the models there; with another model, give its --weights too")
    if "model" not in changes:
        for model in _listed(table.get("model")):
            refuse_code(model, f"the plan {path}")
    return make_plans({**table, **changes}, source=str(path))


def make_plans(settings: Mapping[str, Any], source: str = "the plan") -> list[Plan]:
    """Plans from plain settings; `model`, and `weights` with it, may be lists."""
    known = {f.name: f for f in fields(Plan)}
    if "img_size" in settings:
        deprecated(f"img_size in {source}", since="0.2", use="input_size")
        settings = {"input_size" if name == "img_size" else name: value for name, value in settings.items()}
    for name in settings:
        if name not in known:
            hints = nearest_names(name, list(known))
            advice = f"did you mean {', '.join(hints)}?" if hints else f"known are: {', '.join(known)}"
            raise SpecError(f"{source} has the unknown setting {name!r}; {advice}")
    for name in ("model", "data", "methods"):
        if not settings.get(name) and not (name == "methods" and settings.get("saved")):
            raise SpecError(f"{source} lacks {name}")
    models = _listed(settings["model"])
    weights = _listed(settings.get("weights")) or [None] * len(models)
    if len(weights) != len(models):
        raise SpecError(f"{source} has {len(models)} models but weights for {len(weights)}")
    common = {name: _value(name, value, source) for name, value in settings.items() if name not in ("model", "weights")}
    plans = [
        Plan(model=_value("model", model, source), weights=None if file is None else str(file), **common)
        for model, file in zip(models, weights, strict=True)
    ]
    for plan in plans:
        check_plan(plan)
    return plans


def check_plan(plan: Plan) -> Work:
    """Refuses unknown names; needs neither the model nor the data."""
    if plan.score is not None:
        load_score(plan.score)
    protocols = tuple(load_protocols(list(dict.fromkeys(plan.metrics))))
    names = [protocol.name for protocol in protocols]
    if len(set(names)) < len(names):
        raise SpecError(f"{plan.metrics} names a metric twice")
    methods, left_out = [], {}
    for text in dict.fromkeys(plan.methods):
        try:
            methods.append(load_method(text))
        except SpecError as error:
            if not plan.optional:
                raise
            left_out[text] = str(error)
    if not methods and not plan.saved:
        raise SpecError(f"none of the methods {', '.join(plan.methods)} is known")
    return Work(tuple(dict.fromkeys(methods)), protocols, left_out)


def fitted(work: Work, model: TargetModel, *, optional: bool) -> Work:
    """The work that the model allows; what does not fit is refused, or left out if it is optional."""
    methods, left_out = [], dict(work.left_out)
    for method in work.methods:
        try:
            check_fit(method, model)
            method.fingerprint(model)  # a trained method needs what it has learned
        except AhaError as error:
            if not optional:
                raise
            left_out[str(method)] = str(error)
        else:
            methods.append(method)
    if work.methods and not methods:
        raise SpecError(f"no method fits {model.spec}: {'; '.join(left_out.values())}")
    return replace(work, methods=tuple(methods), left_out=left_out)


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


_MAY_BE_EMPTY = ("title", "paper", "saved")
_LISTS = [field.name for field in fields(Plan) if isinstance(field.default, tuple)]


def _value(name: str, value: Any, source: str) -> Any:
    """The value of a setting, if it has the type and range of the plan's field."""
    place, wanted = f"{source}: {name}", hints_of(Plan)[name]
    value = [_plain(item) for item in value] if isinstance(value, list | tuple) else _plain(value)
    value = checked(_listed(value) if name in _LISTS else value, wanted, place, notation=PLAIN)
    texts = value if isinstance(value, tuple) else (value,)
    if "" in texts and name not in _MAY_BE_EMPTY:
        raise SpecError(f"{place} must not be empty")
    return value


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def plan_of(settings: Mapping[str, Any]) -> Plan:
    """A plan from what `Plan.as_dict` gave; settings of other versions are passed over."""
    known = {f.name for f in fields(Plan)}
    kept = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    return Plan(**cast("Any", {name: value for name, value in kept.items() if name in known}))


def as_toml(plans: Sequence[Plan]) -> str:
    """Plans that differ in their model alone, as the file that `read_plans` reads."""
    shown = plans[0].as_dict()
    if len(plans) > 1:
        shown["model"] = [plan.model for plan in plans]
        if any(plan.weights for plan in plans):
            shown["weights"] = [plan.weights or "" for plan in plans]
    return tomli_w.dumps(shown)

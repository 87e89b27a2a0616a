"""What a method is: a frozen value that turns (model, images, classes) into maps.

Shapes: images (B, C, H, W) normalised model inputs; classes (B,) int64; maps (B, h, w), signed, larger = more
important, at the method's own resolution. `aha.explain` enlarges them to the input; a method enlarges only what it
multiplies with pixels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import or_
from typing import Annotated, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from aha.core.axes import is_volume, resized
from aha.core.registry import Registry, nearest_names
from aha.core.registry_file import SYNONYMS
from aha.core.seeds import generator_of
from aha.core.spec import Spec, parse
from aha.core.validation import Range
from aha.errors import AhaError, AhaWarning, CapabilityError, SpecError, warn
from aha.learned.quality import Quality
from aha.methods.cost import Cost
from aha.methods.distribution import Distribution
from aha.models import NOTHING, Captures, TargetModel, Trace
from aha.perturb.partitions import PARTITIONS, Partition
from aha.perturb.references import REFERENCES, Reference, check_reference

UPSAMPLING = "bilinear"  # ranks, and so metrics, depend on it: it is part of every manifest

Layer = Annotated[int, Range(high=-1, note=" (-1 is the last)")] | str
"""Which layer: counted from the end, -1 being the last, or by the name of its module."""
METHODS: Registry[type[Method]] = Registry("method", SYNONYMS)

M = TypeVar("M", bound="type[Method]")
T = TypeVar("T")


@dataclass(frozen=True)
class Method(Spec):
    """Base of all methods. Subclasses are frozen dataclasses whose fields are the method's parameters.

    Attributes:
        family: baseline, gradient, cam, attention, perturbation, ... for lists and tables.
        required: capabilities that every variant of the method needs.
        captured: what every variant reads of the clean images' forward pass (see `reads`).
        citation: where the method comes from.
        for_volumes: it explains volumes and clips (B, C, D, H, W) too.
    """

    family: ClassVar[str] = ""
    required: ClassVar[frozenset[str]] = frozenset()
    captured: ClassVar[Captures] = NOTHING
    citation: ClassVar[str] = ""
    for_volumes: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        """Maps (B, h, w) of how much each place speaks for each image's class."""

    def with_distributions(
        self, model: TargetModel, images: Tensor, classes: Tensor
    ) -> tuple[Tensor, list[Distribution]]:
        """The maps and, of a method that lets classes compete, the distribution over them that each comes from."""
        return self(model, images, classes), []

    @property
    def needs(self) -> frozenset[str]:
        """Capabilities that the model must have for these parameters; a wrapper adds those of its inner methods."""
        return self.required.union(*(inner.needs for inner in self._inner()))

    def refusal(self, model: TargetModel, size: Sequence[int] | None = None) -> str:
        """Why a model that has all it needs cannot serve it for inputs of this size; empty where it can."""
        layer = getattr(self, "layer", None)
        if isinstance(layer, str) and (why := why_no_layer(model, size, layer)):
            return why
        return next((why for inner in self._inner() if (why := inner.refusal(model, size))), "")

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        """What one map at this size, (H, W) or (D, H, W), costs; a method that can become expensive says so."""
        return reduce(Cost.then, (inner.cost(model, size) for inner in self._inner()), Cost())

    def reads(self, model: TargetModel, size: Sequence[int]) -> Captures:
        """What `model.trace` or `model.features` will be asked about the images themselves, of this size (C, H, W).

        The pass that chooses the class then captures it, and several methods share one pass. A method that does not
        say so here is no less right, but runs its images once more.
        """
        return self.captured

    def seeded(self, seed: int) -> Self:
        """The same method with every open `seed`, its inner methods' included, filled in."""
        changes: dict[str, object] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Method):
                changes[field.name] = value.seeded(seed)
            elif field.name == "seed" and value is None:
                changes["seed"] = seed
        return replace(self, **changes) if changes else self

    def among(self, classes: Sequence[int]) -> Self:
        """The same method for classes of an image that are explained together; contrastive methods compare them."""
        inner = {f.name: v.among(classes) for f in fields(self) if isinstance(v := getattr(self, f.name), Method)}
        return replace(self, **inner) if inner else self

    def fingerprint(self, model: TargetModel) -> str:
        """A text of all that maps of the model depend on; trained methods add what they have learned."""
        return " ".join([self.in_full(), *(inner.fingerprint(model) for inner in self._inner())])

    def facts(self, model: TargetModel, size: Sequence[int] | None = None) -> dict[str, object]:
        """What a manifest says of its maps besides its text, of inner methods too; nothing for most methods."""
        return {name: fact for inner in self._inner() for name, fact in inner.facts(model, size).items()}

    def quality(self, model: TargetModel, outputs: Tensor, classes: Tensor, maps: Tensor) -> list[Quality]:
        """What is predicted of each of its maps (B, H, W), by the model's outputs (B, K); nothing for most methods."""
        return []

    @property
    def references(self) -> list[Reference]:
        """What stands in for removed pixels, in its inner methods too."""
        own = [value for field in fields(self) if isinstance(value := getattr(self, field.name), Reference)]
        return [*own, *(reference for inner in self._inner() for reference in inner.references)]

    def images_only(self) -> Spec | None:
        """Which of its parts, itself included, explains no volumes; None where all do."""
        if not self.for_volumes:
            return self
        parts = (value for field in fields(self) if isinstance(value := getattr(self, field.name), Partition))
        inner = (part for method in self._inner() if (part := method.images_only()))
        return next((part for part in parts if not part.for_volumes), None) or next(inner, None)

    def _inner(self) -> Iterable[Method]:
        """Methods among its parameters, and those whose maps its parts are made of."""
        own = [getattr(self, field.name) for field in fields(self)]
        of_parts = [
            getattr(value, field.name) for value in own if isinstance(value, Partition) for field in fields(value)
        ]
        return [value for value in (*own, *of_parts) if isinstance(value, Method)]


def method(
    name: str,
    *,
    family: str,
    needs: Iterable[str] = (),
    reads: Captures = NOTHING,
    volumes: bool = False,
    citation: str = "",
) -> Callable[[M], M]:
    """Class decorator that registers a method; the name is also its file, its command-line word and its table row."""

    def add(cls: M) -> M:
        cls.name, cls.family, cls.required, cls.citation = name, family, frozenset(needs), citation
        cls.captured, cls.for_volumes = reads, volumes
        METHODS.register(name)(cls)
        return cls

    return add


def in_one_pass(model: TargetModel, images: Tensor, methods: Sequence[Method]) -> Generator[Method, None, None]:
    """The methods one by one, those first that read the images' own forward pass; it is run once, and kept for them.

    What is done about a method has to be done before the next is asked for, and the iterator closed at the end.
    """
    reading = [chosen for chosen in methods if chosen.reads(model, images.shape[1:]) != NOTHING]
    if not methods:
        return
    with model.caching(images, read_by(reading, model, images.shape[1:])) as outputs:
        yield from reading
    with model.caching(images, outputs=outputs):
        yield from (chosen for chosen in methods if chosen not in reading)


def read_by(methods: Iterable[Method], model: TargetModel, size: Sequence[int]) -> Captures:
    """What a pass has to capture to serve all of the methods."""
    return reduce(or_, (chosen.reads(model, size) for chosen in methods), NOTHING)


def load_method(spec: str | Method) -> Method:
    """A method from its text, for example `smooth(gradient, n=20)`; a method passes through."""
    return spec if isinstance(spec, Method) else parse(spec, METHODS, METHODS, PARTITIONS, REFERENCES)


def list_methods(model: TargetModel | None = None) -> list[str]:
    """Names of all methods, or of those that work on this model."""
    return [name for name in METHODS if model is None or _fits(METHODS[name], model)]


def _fits(kind: type[Method], model: TargetModel, size: Sequence[int] | None = None) -> bool:
    if not kind.for_volumes and _is_of_volumes(model, size):
        return False
    if "gradients" in kind.required and model.gradient_refusal(size):
        return False
    if not kind.required <= model.structure(size).capabilities:
        return False
    # What wraps another method can refuse only together with that one.
    return kind.family == "wrapper" or _serves(kind(), model, size)


def _serves(chosen: Method, model: TargetModel, size: Sequence[int] | None) -> bool:
    is_stated = model.preprocessing is not None or not any(reference.is_pixels for reference in chosen.references)
    return is_stated and not chosen.refusal(model, size)


def check_fit(chosen: Method, model: TargetModel, size: Sequence[int] | None = None) -> None:
    """Refuses a method whose needs the model cannot meet for inputs of this size, before anything is computed."""
    if _is_of_volumes(model, size) and (images_only := chosen.images_only()):
        raise CapabilityError(
            f"{images_only} explains images (C, H, W), not volumes or clips (C, D, H, W). {_advice(model, size)}"
        )
    for reference in chosen.references:
        check_reference(reference, model, () if size is None else size)
    # Without a size, a module that states none can be asked only when its first inputs are there.
    is_known = size is not None or model.preprocessing is not None
    if is_known and "gradients" in chosen.needs and (why := model.gradient_refusal(size)):
        raise CapabilityError(
            f"{chosen} needs gradients, which {model.spec} does not give: {why} {_advice(model, size)}"
        )
    if chosen.needs <= {"gradients"}:
        return  # no need to look inside
    structure = model.structure(size)
    lacking = sorted(chosen.needs - structure.capabilities)
    if not lacking:
        why = chosen.refusal(model, size)
        if why:
            raise CapabilityError(f"{chosen} does not fit {model.spec}: {why}. {_advice(model, size)}")
        return
    reasons = {structure.missing.get(need, "") for need in lacking} - {""}
    because = f" ({'; '.join(sorted(reasons))})" if reasons else ""
    raise CapabilityError(
        f"{chosen} needs {', '.join(lacking)}; {model.spec} has {', '.join(sorted(structure.capabilities))}{because}. "
        f"{_advice(model, size)}"
    )


def _is_of_volumes(model: TargetModel, size: Sequence[int] | None) -> bool:
    stated = () if model.preprocessing is None else model.input_shape(None)
    return is_volume(stated if size is None else size)


def first_fitting(names: Iterable[str], model: TargetModel, size: Sequence[int] | None = None) -> Method | None:
    """The first of these methods that fits the model; None where none does."""
    for chosen in (METHODS[name]() for name in names):
        with suppress(AhaError):
            check_fit(chosen, model, size)
            return chosen
    return None


# What explains a model that nobody named a method for: the best that can read it.
_DEFAULTS = ("aha", "grad_cam", "integrated_gradients", "rise")
_UNTRAINED = "no explainer was trained on volumes; name aha to see what it draws"


def default_method(model: TargetModel, size: Sequence[int] | None = None) -> Method:
    """The method for a model, where none is named: `aha`, or what can still be done where AHA cannot read the model.

    Of volumes, on which AHA was never trained, the best of the others.
    """
    reason = _UNTRAINED if _is_of_volumes(model, size) else ""
    for chosen in (METHODS[name]() for name in _DEFAULTS[bool(reason) :]):
        try:
            check_fit(chosen, model, size)
        except AhaError as error:
            reason = reason or str(error).split(". Try:")[0]
            continue
        if reason:
            warn(f"{chosen} is used instead of aha: {reason}", AhaWarning)
        return chosen
    raise CapabilityError(reason)


# What to try first where a method does not fit: one of each kind, from exact and quick to general and slow.
_ALTERNATIVES = (
    "grad_cam",
    "legrad",
    "integrated_gradients",
    "transformer_attribution",
    "lrp",
    "rise",
    "occlusion",
    "lime",
)
_MOST_NAMED = 5


def _advice(model: TargetModel, size: Sequence[int] | None) -> str:
    """A few methods that fit the model, and where the others are."""
    fitting = [name for name in _ALTERNATIVES if name in METHODS and _fits(METHODS[name], model, size)]
    in_memory = model.spec.startswith(("module:", "function:"))  # no command can load it
    ask = "aha.list_methods(model)" if in_memory else f"`aha list methods --model {model.spec}`"
    return f"Try: {', '.join(fitting[:_MOST_NAMED])}; {ask} shows all that fit"


def why_no_layer(model: TargetModel, size: Sequence[int] | None, name: str) -> str:
    """Why no layer of this name can be read; empty where one can."""
    structure = model.structure(size)
    if structure.spot_named(name) is not None or structure.block_named(name) is not None:
        return ""
    known = list(dict.fromkeys(site.name for site in structure.spots if site.name))
    near = nearest_names(name, known)
    advice = f"did you mean {', '.join(map(repr, near))}?" if near else f"the last that do: {', '.join(known[-5:])}"
    return f"no module {name!r} hands on a map or tokens; {advice}"


def pick_block(trace: Trace, layer: Layer) -> int:
    """The transformer block counted from the end, or by its name."""
    structure = trace.structure
    if not isinstance(layer, str):
        return pick_layer(range(len(structure.blocks)), layer)
    found = structure.block_named(layer)
    if found is None:
        raise SpecError(
            f"layer={layer!r} is not a block; blocks are {', '.join(site.name for site in structure.blocks)}"
        )
    return found


def pick_layer(layers: Sequence[T], layer: int) -> T:
    """The layer counted from the end, or an error that says how many there are."""
    if -layer > len(layers):
        raise SpecError(f"layer={layer} does not exist; this model has {len(layers)} to choose from")
    return layers[layer]


def layers_from(chosen: Method, layers: Sequence[T], start: int) -> Sequence[T]:
    """The layers from the one numbered `start` on, or an error that says how many there are."""
    if start >= len(layers):
        raise SpecError(f"{chosen.name}: start_layer={start}, but there are {len(layers)} blocks")
    return layers[start:]


def seeded_generator(seed: int | None) -> torch.Generator:
    """A generator of one's own, on the CPU, so that every device draws the same numbers."""
    return generator_of(0 if seed is None else seed)


def runs_of_one_image(images: Tensor) -> Iterator[slice]:
    """Rows of the batch (B, C, H, W) that show the same image, one slice each: several classes of it can share passes.

    A caller's classes of one image follow each other, so that neighbours are all that has to be compared.
    """
    start = 0
    for row in range(1, len(images) + 1):
        if row == len(images) or not torch.equal(images[row], images[start]):
            yield slice(start, row)
            start = row


def enlarged(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Native maps (B, h, w), of volumes (B, d, h, w), as float32 at the size of the model input."""
    maps = maps.float()
    return maps if maps.shape[1:] == tuple(size) else resized(maps, size)

"""`explain` and its streaming form.

The command line, the explorer and the demo read images of their own and call it with a `Batch` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, overload

from torch import Tensor

from aha.core.interrupts import interrupts_wait
from aha.core.progress import Listener, in_parts
from aha.core.progress_line import shown
from aha.data.batches import Images
from aha.data.targets import Target
from aha.errors import ImageError, SpecError
from aha.evaluation.cards import with_cards
from aha.explaining import Asked, explanations
from aha.learned.explainer import Explainer
from aha.methods import Method, check_fit, load_method
from aha.methods.aha import AHA
from aha.models import AnyModel, TargetModel, load_model, loads_its_model
from aha.results.explanation import Explanation
from aha.results.explanations import Explanations

Methods = list[str] | list[Method] | list[str | Method] | tuple[str | Method, ...]


@overload
def explain(
    model: AnyModel,
    images: Images,
    method: str | Method | Explainer | None = ...,
    target: Target = ...,
    *,
    labels: Sequence[int] | Tensor | None = ...,
    seed: int = ...,
    batch_size: int | None = ...,
    card: bool = ...,
    oracle: str | Method | None = ...,
    progress: Listener | bool | None = ...,
) -> Explanation: ...
@overload
def explain(
    model: AnyModel,
    images: Images,
    method: Methods,
    target: Target = ...,
    *,
    labels: Sequence[int] | Tensor | None = ...,
    seed: int = ...,
    batch_size: int | None = ...,
    card: bool = ...,
    oracle: str | Method | None = ...,
    progress: Listener | bool | None = ...,
) -> Explanations: ...
@loads_its_model
def explain(
    model: AnyModel,
    images: Images,
    method: str | Method | Explainer | Methods | None = None,
    target: Target = "top1",
    *,
    labels: Sequence[int] | Tensor | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    card: bool = False,
    oracle: str | Method | None = None,
    progress: Listener | bool | None = None,
) -> Explanation | Explanations:
    """Which pixels are evidence for a class.

    Args:
        model: from `aha.load_model`, or what that accepts.
        images: a path, folder, PIL image, array (H, W[, 3]) of uint8 or of floats in [0, 1], uint8 tensor ([B,] C, H,
            W), a list of these, or normalised model inputs: a float tensor ([B,] C, H, W), a DataLoader of them, or a
            `Batch` from `aha.data.batches`. Models of volumes or bands take arrays, `.npy`, NIfTI, DICOM and TIFF, and
            inputs (B, C, D, H, W). A torch Dataset may hold images or inputs, with or without labels.
        method: text such as `"integrated_gradients(steps=50)"`, a method, or an explainer from `aha.train`; or a list
            of them. `aha` by default; if it cannot read the model, another one that fits, with a warning.
        target: `"top1"`, `"top5"`, `"label"`, a class index or name, or a list with one entry per image: its class, or
            a list of its classes. `[3, 5]` are two images, `[[3, 5]]` two classes of one. Besides classes, what
            `aha.targets` has: a contrast, a region, a box, a similarity, a value, a neuron, as a value or as text
            (`"contrast(281, 282)"`), or a function of what the network returns, `(outputs) -> (B,)`.
        labels: true classes, for `target="label"`.
        seed: random seed of methods that do not set their own.
        batch_size: maximum number of maps computed at once; the model's own by default, halved if memory runs out.
        card: also measure how far each map can be trusted (`Explanation.cards`): deletion and insertion curves next to
            those of random, centred and edge maps, at a few hundred forward passes per map.
        oracle: with `card`, a search such as `"search(budget=600)"`: each card then also says how much of the best
            found score the map reaches (`Card.headroom`).
        progress: a function that is called repeatedly with the completed share, from 0 to 1; it may raise to stop the
            work. By default a line shows the time left, in a terminal or a notebook; False turns it off.

    Returns:
        One map per image and class; see `Explanation`. For a list of methods, one explanation per method, which can be
        drawn as one figure; see `Explanations`.
    """
    options = {"labels": labels, "seed": seed, "batch_size": batch_size, "card": card, "oracle": oracle}
    with interrupts_wait(), shown(progress, "explaining"):
        if method is None or isinstance(method, str | Method | Explainer):
            return _explain(load_model(model), images, method, target, options)
        if not isinstance(method, Iterable):
            raise SpecError(f"a method is a text such as 'grad_cam' or a Method, not {method!r}")
        # All are read and checked before the first of them works.
        loaded, methods = load_model(model), [_method(each) for each in method]
        if not methods:
            raise SpecError("an empty list of methods; name at least one")
        if loaded.preprocessing is not None:
            viewed = Asked.of(loaded, target).model
            for each in methods:
                check_fit(each, viewed)
        found = {str(each): _explain(loaded, images, each, target, options) for each in in_parts(methods)}
        return Explanations(found)


def _method(given: str | Method | Explainer) -> Method:
    """A method by its text, or an explainer that was trained or loaded, as the method that draws its maps."""
    if not isinstance(given, Explainer):
        return load_method(given)
    if not given.source:
        raise SpecError("this explainer is in memory only: explainer.save_pretrained(FOLDER), then \"aha('FOLDER')\"")
    return AHA(explainer=given.source)


def _explain(
    model: TargetModel,
    images: Images,
    method: str | Method | Explainer | None,
    target: Target,
    options: Mapping[str, Any],
) -> Explanation:
    parts = list(explain_batches(model, images, method, target, **options))
    if not parts:
        raise ImageError("no images were given")
    if len({found.maps.shape[1:] for found in parts}) > 1:
        raise ImageError("the images differ in size; explain them one size at a time, or with explain_batches")
    return Explanation.join(parts)


@loads_its_model
def explain_batches(
    model: AnyModel,
    images: Images,
    method: str | Method | Explainer | None = None,
    target: Target = "top1",
    *,
    labels: Sequence[int] | Tensor | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    card: bool = False,
    oracle: str | Method | None = None,
    on_error: Callable[[str, ImageError], None] | None = None,
) -> Iterator[Explanation]:
    """`explain`, one batch at a time: memory does not grow with the number of images.

    With `on_error`, images that cannot be read are reported to it and skipped.
    """
    chosen = None if method is None else _method(method)
    yield from explanations(
        load_model(model),
        images,
        chosen,
        target,
        labels=labels,
        seed=seed,
        batch_size=batch_size,
        on_error=on_error,
        finish=partial(with_cards, seed=seed, oracle=oracle) if card else None,
    )

"""Named protocols: every choice of an evaluation written down, so that a number can be compared with a paper's.

A protocol is a list of metric texts. The references, steps and rules are those of the paper or its code; where the two
differ, the note says which was taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aha.core.registry import Registry
from aha.errors import SpecError
from aha.metrics import Metric, load_metric


@dataclass(frozen=True)
class Protocol:
    """Metrics that are computed together and reported under one name."""

    name: str
    metrics: tuple[Metric, ...]
    note: str

    @property
    def needs(self) -> frozenset[str]:
        """What the images must come with: "mask", "boxes", "grid", "method"."""
        return frozenset().union(*(chosen.needs for chosen in self.metrics))

    @property
    def looks_at(self) -> frozenset[str]:
        """What its numbers depend on where the images come with it."""
        return self.needs.union(*(chosen.looks_at for chosen in self.metrics))


PROTOCOLS: Registry[Protocol] = Registry("protocol")

_THREE = "references=(black, mean, blur(kernel=31, sigma=10.0))"
_AREAS = ("deletion", "insertion", "ins_del")
_CURVES = (*_AREAS, "positive", "negative", "neg_pos")
_MDA_DELETED = "references=(zeros_normalised,)"
_MDA_INSERTED = "references=(adaptive_blur(smallest=31, largest=101, threshold=0.01),)"
_MDA_MONOTONE = "references=(adaptive_blur(smallest=1, largest=101, threshold=0.01),)"  # as its script has it
_CHEFER = "references=(black,), fractions=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)"


def _define(name: str, note: str, *metrics: str) -> None:
    PROTOCOLS.register(name)(Protocol(name, tuple(load_metric(text) for text in metrics), note))


_define(
    "quick",
    "The `aha` curves with 32 steps, for development: black, mean colour and blur(31, 10), each and averaged.",
    *(f"{name}(steps=32, {_THREE})" for name in _AREAS),
)
_define(
    "quick-adaptive",
    "As close to the `aha` curves as `quick`, with half as many images: adaptive steps until the estimated error of "
    "the average over the references is below 0.003.",
    *(f"{name}(steps='adaptive', tolerance=0.003, {_THREE})" for name in _AREAS),
)
_define(
    "sketch",
    "For comparing methods on many images: adaptive steps until the estimated error of the average over the references "
    "is below 0.008, with about a quarter of the images of `quick`. That error is small compared with the variation "
    "between images.",
    *(f"{name}(steps='adaptive', tolerance=0.008, {_THREE})" for name in _AREAS),
)
_define(
    "aha",
    "AHA tables 1-3: 224 steps, trapezoid, probability of the explained class; each reference and their average. "
    "The paper does not state kernel and steps; they are chosen here. Its eq. 3-4 are the plain mean over the steps, "
    "which with 224 steps differs from the trapezoid by a 448th of the curve's total change, .002 at most.",
    *(f"{name}(steps=224, {_THREE})" for name in _CURVES),
    f"average_drop({_THREE})",
    f"confidence_increase({_THREE})",
)
_define(
    "aha-adaptive",
    "The protocol `aha` with fewer images: adaptive steps until the estimated error of the average over the "
    "references is below 0.002, for Positive and Negative 0.008.",
    *(f"{name}(steps='adaptive', tolerance=0.002, {_THREE})" for name in _CURVES),
    f"average_drop({_THREE})",
    f"confidence_increase({_THREE})",
)
_define(
    "rise",
    "RISE code: deletion to zero after normalisation, insertion into its blur(11, 5), 224 steps, trapezoid.",
    f"deletion(steps=224, {_MDA_DELETED})",
    "insertion(steps=224, references=(rise_blur(kernel=11, sigma=5.0),))",
    f"ins_del(steps=224, {_MDA_DELETED}, insert_into=(rise_blur(kernel=11, sigma=5.0),))",
)
_define(
    "mda",
    "MDA code: rescaled, clipped, monotone curves; adaptive blur for insertion, normalised zero for deletion. Images "
    "whose class survives every blur are skipped. Signed maps are ordered by their values; the code takes absolute "
    "values first. The image filter is not part of the protocol.",
    f"deletion(steps=224, {_MDA_DELETED}, normalised=True)",
    f"insertion(steps=224, {_MDA_INSERTED}, normalised=True)",
    f"ins_del(steps=224, {_MDA_DELETED}, insert_into=(adaptive_blur,), normalised=True)",
    "mas(steps=224)",
    f"monotonicity(steps=224, {_MDA_MONOTONE})",
)
_define(
    "chefer",
    "Chefer et al. 2021: 10 to 90 % of the pixels set to black; top-1 accuracy against the label, averaged over that.",
    *(f"{name}({_CHEFER}, against='label')" for name in ("positive", "negative", "neg_pos")),
)
_define("seg", "ImageNet-Segmentation: threshold at the map's mean, no oracle thresholds.", "segmentation")
_define(
    "truth",
    "Where the pixels that matter are known: precision at k, mass in truth, earth mover's distance on 16 x 16 cells.",
    "precision_at_k",
    "mass_in_truth",
    "earth_movers_distance",
)
_define("caap", "CAAP: average precision for object and background, pointing game, on masks.", "aupr", "pointing_game")
_define("grid", "Mosaics: GridPG, and VAR's region scores after an 11x11 blur.", "grid_pointing", "region")
_define(
    "var",
    "VAR tables 1 and 3 on mosaics: the `grid` scores with all that is above zero as a map's support. The paper does "
    "not state it, but its noisy maps' IoU of 0.20 implies it.",
    "grid_pointing",
    "region(support='positive')",
)
_define("pic", "Performance information curves with 13 thresholds and a 1 % random mask.", "information_curve")
_define(
    "f-fidelity",
    "F-Fidelity code: 50 draws of at most half of the top 5 to 100 % of the pixels, and of at most 10 % of all; "
    "zero after normalisation, accuracy. The fine-tuning of the model is the caller's.",
    "fidelity_bounded(shares=(0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, "
    "0.85, 0.9, 0.95, 1.0), alpha=0.5, beta=0.1, samples=50, accuracy=True, references=(zeros_normalised,))",
)
_define(
    "unseen",
    "What AHA is not trained on: removed pixels imputed, shuffled, noise or the image's mean colour, single patches, "
    "groups of pixels, small random shares. About 360 images a map, 80 of them the same for all maps of an image.",
    "road",
    "srg(steps=32, references=(noise, shuffled, own_mean))",
    "single_deletion",
    "saco",
    "fidelity_bounded",
)
_define(
    "sanity",
    "Cascading randomisation with the clean prediction's class, class sensitivity, stability under noise.",
    "randomisation",
    "class_sensitivity",
    "stability",
)


def load_protocols(metrics: str | Metric | Protocol | Sequence[str | Metric | Protocol]) -> list[Protocol]:
    """Protocols by name; a single metric is a protocol of its own, named by its full text."""
    if isinstance(metrics, str | Metric | Protocol):
        metrics = [metrics]
    if not isinstance(metrics, Sequence):
        raise SpecError(f"metrics are names of protocols or metrics, not a {type(metrics).__name__}")
    return [_load(chosen) for chosen in metrics]


def _load(chosen: str | Metric | Protocol) -> Protocol:
    if isinstance(chosen, Protocol):
        return chosen
    if isinstance(chosen, str) and chosen in PROTOCOLS:
        return PROTOCOLS[chosen]
    alone = load_metric(chosen)
    return Protocol(str(alone), (alone,), (type(alone).__doc__ or "").splitlines()[0])

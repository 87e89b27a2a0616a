"""The explainer that a training begins with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import torch

from aha.data.images import LabelledImage
from aha.errors import CapabilityError, ModelError
from aha.learned.decoder import Decoder
from aha.learned.explainer import Explainer
from aha.learned.settings import Conditioning, Design, TrainConfig
from aha.learned.training.data import readable
from aha.learned.training.distributed import Engine
from aha.learned.training.validation import mean_scores, validation_curves
from aha.learned.training.zoo import Zoo
from aha.models import TargetModel

# With fewer images of a class than this, a learned vector for it would know little more than its starting point.
_ENOUGH_PER_CLASS = 50

_SAMPLES_FOR_SIGN = 8


def fresh_explainer(zoo: Zoo, design: Design, samples: Sequence[LabelledImage], seed: int) -> Explainer:
    """A new explainer, the same for the same seed; "auto" conditioning is decided by the labels that there are."""
    target = zoo.members[0]
    if design.form == "universal":
        zoo.check_reading()
        explainer = Explainer.for_target(target, design, seed=seed)
        if len(zoo.members) > 1:  # it belongs to none of them
            explainer.config = replace(explainer.config, target=zoo.spec, target_digest="")
        return explainer
    if len(zoo.members) > 1:
        raise ModelError("an explainer of several models must be universal: add form=universal, or --preset universal")
    conditioning = _decided(target, samples) if design.conditioning == "auto" else design.conditioning
    return Explainer.for_target(target, replace(design, conditioning=conditioning), seed=seed)


def _decided(target: TargetModel, samples: Sequence[LabelledImage]) -> Conditioning:
    labelled = sum(sample.label is not None for sample in samples)
    is_closed = not target.has_texts  # a table of classes would know no other texts
    if is_closed and labelled >= _ENOUGH_PER_CLASS * target.num_classes:
        return "embedding"
    try:
        _ = target.class_vectors
    except CapabilityError:
        return "embedding"
    return "head"


def orient_evidence(
    explainer: Explainer, target: TargetModel, samples: Sequence[LabelledImage], config: TrainConfig, engine: Engine
) -> None:
    """Turns the class evidence round where it points away from what matters, as patch tokens of CLIP's ViTs do."""
    if isinstance(explainer.decoder, Decoder) and explainer.config.evidence == "forward":
        first = list(islice(readable(samples), _SAMPLES_FOR_SIGN))
        curves = validation_curves(explainer, target, first, config, engine)
        with torch.no_grad():
            explainer.decoder.evidence_gain.fill_(1.0 if mean_scores([curves], [target])["ins_del"] >= 0 else -1.0)

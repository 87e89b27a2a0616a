"""The models of a training run: they take turns, and are varied so that few of them stand for many.

An explainer that is to read networks it has never met must not learn the habits of those it is trained on. There are
never enough real classifiers; so a step may change its model a little: another input size, coarser classes, noise on
the weights. What is changed is a private copy, or only the way in and out; the caller's modules stay as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from aha.data.images import LabelledImage, read_image
from aha.errors import ModelError
from aha.learned import universal
from aha.learned.seeds import TURN, generator_for
from aha.learned.settings import TrainConfig
from aha.learned.training.data import readable
from aha.models import TargetModel
from aha.models.loading.preprocessing import Preprocessing
from aha.models.outputs import read_outputs

_SIZES = (5 / 7, 6 / 7, 8 / 7)  # of the model's own input size: 160, 192 and 256 for 224
_GROUPS = (10, 100)  # coarser classes
_NOISE = 0.1  # of the weights' own deviation; halved until the copy still gives most answers of the original
_COPIES = 2
_VARIANTS: dict[str, tuple[float, ...]] = {"size": _SIZES, "classes": _GROUPS, "weights": tuple(range(_COPIES))}
_AGREES = 0.6
_PICTURES = 16


@dataclass(frozen=True)
class Turn:
    """The model of a step.

    Attributes:
        target: the model itself, or a variant of it.
        groups: for coarser classes, the group (K,) of each class.
        knows_labels: do the labels of the pictures mean its classes?
    """

    target: TargetModel
    groups: Tensor | None = None
    knows_labels: bool = True

    def labels(self, labels: Tensor) -> Tensor:
        """Labels (b,) as classes of the model, -1 where unknown."""
        if not self.knows_labels:
            return torch.full_like(labels, -1)
        if self.groups is None:
            return labels
        return torch.where(labels < 0, labels, self.groups[labels.clamp(min=0)])


class Zoo:
    """Models that take turns step by step; which one, and how it is varied, follows from the seed and the step."""

    def __init__(self, members: Sequence[TargetModel], samples: Sequence[LabelledImage], config: TrainConfig) -> None:
        if config.mix and len(config.mix) != len(members):
            raise ModelError(f"mix={config.mix} has {len(config.mix)} numbers for {len(members)} models")
        self.members, self._samples, self._config = list(members), samples, config
        self._turns: dict[tuple[object, ...], Turn] = {}

    @property
    def spec(self) -> str:
        """The models in one text."""
        return " + ".join(member.spec for member in self.members)

    @property
    def digest(self) -> str:
        """Of their weights."""
        return " + ".join(member.digest for member in self.members)

    def check_reading(self) -> None:
        """Refuses models of several kinds: one explainer reads stages of features, or blocks of tokens."""
        kinds = {universal.reading_of(member): member.spec for member in self.members}
        if len(kinds) > 1:
            said = ", ".join(f"{spec} has {kind}" for kind, spec in kinds.items())
            raise ModelError(f"one explainer cannot be trained on both kinds of networks: {said}; train one of each")

    def turn(self, step: int) -> Turn:
        """The model of a step."""
        generator = generator_for(self._config.seed, TURN, step)
        weights = torch.tensor(self._config.mix or (1.0,) * len(self.members))
        index = int(torch.multinomial(weights, 1, generator=generator))
        is_varied, kind, which = torch.rand(3, generator=generator).tolist()
        if is_varied >= self._config.vary:
            return self._plain(index)
        return self._varied(index, list(_VARIANTS)[int(kind * len(_VARIANTS))], which)

    def preprocessing(self) -> list[Preprocessing]:
        """How the pictures of each step become inputs; known beforehand, since other processes may read them."""
        return [self.turn(step).target.stated_preprocessing() for step in range(self._config.steps)]

    def _plain(self, index: int) -> Turn:
        member = self.members[index]
        return Turn(member, knows_labels=member.num_classes == self.members[0].num_classes)

    def _varied(self, index: int, kind: str, which: float) -> Turn:
        """A variant, made once; the model itself where it cannot be varied so."""
        option = _VARIANTS[kind][int(which * len(_VARIANTS[kind]))]
        key = (index, kind, option)
        if key not in self._turns:
            vary: Callable[[Turn, Any], Turn] = {
                "size": self._resized,
                "classes": self._coarse,
                "weights": self._noisy,
            }[kind]
            self._turns[key] = plain = self._plain(index)
            with suppress(Exception):  # whatever a module may raise at another size, or when it is copied
                self._turns[key] = vary(plain, option)
        return self._turns[key]

    def _resized(self, turn: Turn, factor: float) -> Turn:
        """At another input size."""
        own = turn.target.stated_preprocessing()
        height, width = (max(32, round(side * factor / 32) * 32) for side in own.size)
        size = (height, width)
        scaled = round(own.resize_to * height / own.size[0]) if isinstance(own.resize_to, int) else None
        target = self._like(turn.target, preprocessing=replace(own, size=size, resize_to=scaled))
        if universal.reading_of(target) != universal.reading_of(turn.target) or target.num_classes < 1:
            raise ModelError("it is another kind of network at this size")
        return replace(turn, target=target)

    def _coarse(self, turn: Turn, count: int) -> Turn:
        """With classes that are groups of classes: a group's probability is the sum of theirs."""
        classes = turn.target.num_classes
        if turn.target.score.name != "softmax" or classes < 2 * count:
            raise ModelError("it has too few classes to group")
        groups = torch.arange(classes) % count
        groups = groups[torch.randperm(classes, generator=generator_for(self._config.seed, TURN, count))]
        module = Grouped(turn.target.module, groups, turn.target.output)
        return replace(turn, target=self._like(turn.target, module=module, output=None), groups=groups)

    def _noisy(self, turn: Turn, number: int) -> Turn:
        """With noise on the weights, as much as leaves most answers what they were."""
        pictures = self._pictures(turn.target)
        expected = turn.target.outputs(pictures).argmax(dim=1)
        amount = _NOISE
        while amount > _NOISE / 20:
            module = copy.deepcopy(turn.target.module)
            add_noise(module, amount, generator_for(self._config.seed, TURN, 1000 + number))
            target = self._like(turn.target, module=module)
            if (target.outputs(pictures).argmax(dim=1) == expected).float().mean() >= _AGREES:
                return replace(turn, target=target)
            amount /= 2
        raise ModelError("noise changes its answers too much")

    def _pictures(self, target: TargetModel) -> Tensor:
        preprocessing = target.stated_preprocessing()
        found = islice(readable(self._samples), _PICTURES)
        return torch.stack([preprocessing(read_image(sample.read()))[0] for sample in found]).to(target.device)

    @staticmethod
    def _like(target: TargetModel, **changes: Any) -> TargetModel:
        options = {
            "module": target.module,
            "preprocessing": target.preprocessing,
            "output": target.output,
            **changes,
        }
        return TargetModel(
            options.pop("module"), spec=target.spec, score=target.score, precision=target.precision, **options
        )


class Grouped(nn.Module):
    """A classifier of groups of another one's classes; `groups` (K,) names the group of each class."""

    def __init__(self, module: nn.Module, groups: Tensor, output: Any) -> None:
        super().__init__()
        self.module, self._output = module, output
        self.register_buffer("groups", groups, persistent=False)
        self._count = int(groups.max()) + 1

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, C, H, W) -> log-probabilities (B, groups)."""
        share = read_outputs(self.module(inputs), self._output).float().softmax(dim=1)
        groups: Tensor = self.groups.to(share.device)  # type: ignore[assignment]
        summed = share.new_zeros(len(share), self._count).index_add(1, groups, share)
        return summed.clamp(min=1e-12).log()


def add_noise(module: nn.Module, amount: float, generator: torch.Generator) -> None:
    """Adds normal noise to every weight matrix of the module itself, `amount` times its own deviation."""
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() > 1:
                noise = torch.randn(weight.shape, generator=generator).to(weight)
                weight.add_(amount * weight.std() * noise)

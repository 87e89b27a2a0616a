"""`neuron`: a unit inside the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from aha.core.registry import nearest_names
from aha.errors import TargetError
from aha.models import TargetModel
from aha.models.explained import Answer
from aha.models.running.hooks import first_tensor
from aha.targets.base import Number, Shown, objective


@objective("neuron")
@dataclass(frozen=True)
class Neuron(Number):
    """The activation of a channel of a module: its mean over all locations, or at one of them.

    Attributes:
        layer: the module's name, as in `model.module.named_modules()`.
        channel: number of the channel of maps (B, C, h, w) and volumes (B, C, d, h, w), of the feature of tokens
            (B, T, D), or of a vector (B, D).
        place: (row, column) of a map, (slice, row, column) of a volume's, or (token,) of tokens.
    """

    layer: str
    channel: int
    place: tuple[int, ...] | None = None

    def inside(self, model: TargetModel) -> tuple[str, ...]:
        """The module."""
        names = [name for name, _ in model.module.named_modules() if name]
        if self.layer not in names:
            near = nearest_names(self.layer, names) or names[-5:]
            raise TargetError(f"{model.spec} has no module {self.layer!r}; did you mean {', '.join(near)}?")
        return (self.layer,)

    def function(self, model: TargetModel, shown: Shown | None) -> Callable[[Answer], Tensor]:
        """The activation."""

        def activation(answer: Answer) -> Tensor:
            found = first_tensor(answer.inside.get(self.layer))
            if found is None or found.dim() not in (2, 3, 4, 5) or len(found) != answer.count:
                raise TargetError(f"{self}: {self.layer} gives no map, tokens or vector for each image")
            if found.dim() == 3:
                found = found.movedim(2, 1)  # (B, D, T)
            if not 0 <= self.channel < found.shape[1]:
                raise TargetError(f"{self}: {self.layer} has channels 0 to {found.shape[1] - 1}")
            channel = found[:, self.channel]
            if self.place is None:
                return channel.flatten(1).mean(dim=1) if channel.dim() > 1 else channel
            sizes = channel.shape[1:]
            if len(self.place) != len(sizes) or any(not 0 <= at < n for at, n in zip(self.place, sizes, strict=True)):
                raise TargetError(f"{self}: the channel has places {' x '.join(map(str, sizes)) or 'none'}")
            return channel.movedim(0, -1)[self.place]  # (B,)

        return activation

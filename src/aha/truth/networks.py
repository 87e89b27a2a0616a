"""Small networks, and their training on a CPU within a minute or so."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aha.core.progress import in_parts
from aha.core.seeds import generator_of
from aha.models.running.hooks import autograd, preserved_random_state
from aha.truth.trials import Answer, Trial

MEAN, STD = 0.5, 0.5
"""How pictures in [0, 1] become inputs."""
_RATE = 2e-3


def small_cnn(side: int, channels: int = 1, classes: int = 2) -> nn.Module:
    """Convolutions down to a grid of 4 x 4 cells, and two layers that see all of it."""
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU()]
    width = 16
    while side > 4:
        layers += [nn.Conv2d(width, 32, 3, stride=2, padding=1), nn.ReLU()]
        width, side = 32, side // 2
    head = [nn.Flatten(), nn.Linear(width * side * side, 64), nn.ReLU(), nn.Linear(64, classes)]
    return nn.Sequential(*layers, *head)


class Residual(nn.Module):
    """Two convolutions beside a shortcut that halves the side."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, out, 3, stride=2, padding=1, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.beside = nn.Conv2d(width, out, 1, stride=2)
        self.first_act, self.last_act = nn.ReLU(), nn.ReLU()

    def forward(self, features: Tensor) -> Tensor:
        """From (B, C, h, w) to (B, D, h / 2, w / 2)."""
        inner = self.first_act(self.first_norm(self.first(features)))
        found: Tensor = self.last_act(self.second_norm(self.second(inner)) + self.beside(features))
        return found


def tiny_resnet(classes: int) -> nn.Module:
    """Three residual blocks and a mean over places, for photographs of 64 x 64 pixels."""
    stem = [nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU()]
    blocks = [Residual(16, 24), Residual(24, 32), Residual(32, 64)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def trained(trial: Trial) -> nn.Module:
    """The trial's network after its training; the same each time, and the caller's random state is left alone."""
    generator = generator_of(trial.seed)
    with preserved_random_state(trial.seed), autograd(True):
        module = trial.network().train()
        optimiser = torch.optim.AdamW(module.parameters(), lr=_RATE, weight_decay=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=trial.steps)
        for _ in in_parts(range(trial.steps)):
            examples = trial.batch(generator)
            loss = F.cross_entropy(module((examples.pictures - MEAN) / STD), examples.labels)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    return module.eval().requires_grad_(False)


def answer_of(module: nn.Module) -> Answer:
    """The classes that a network gives to pictures."""

    def answer(pictures: Tensor) -> Tensor:
        with torch.no_grad():
            parts = torch.split(pictures, 128)
            return torch.cat([module((part - MEAN) / STD).argmax(dim=1) for part in parts])

    return answer

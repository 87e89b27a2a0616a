"""A small world with a known answer: coloured squares, and a classifier whose classes are colours."""

from __future__ import annotations

import torch
from torch import Tensor, nn

COLOURS = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 0.5, 0], [0.5, 0, 1]])
SIDE, SQUARE = 32, 8


class ColourNet(nn.Module):
    """Each class looks for its colour: the mean over places of how well they match it."""

    def __init__(self) -> None:
        super().__init__()
        self.match = nn.Conv2d(3, len(COLOURS), 1)
        self.local = nn.AvgPool2d(4)
        self.mix = nn.Conv2d(len(COLOURS), 16, 1, bias=False)
        self.head = nn.Linear(16, len(COLOURS))
        unit = nn.functional.normalize(COLOURS * 2 - 1, dim=1)
        generator = torch.Generator().manual_seed(0)
        mixing = torch.linalg.qr(torch.randn(16, len(COLOURS), generator=generator)).Q
        with torch.no_grad():
            self.match.weight.copy_(unit[:, :, None, None])
            self.match.bias.fill_(-1.2)
            self.mix.weight.copy_(mixing[:, :, None, None])
            self.head.weight.copy_(600 * mixing.T)
            self.head.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self.local(self.match(x).relu())).mean(dim=(2, 3)))


def square_image(colour: int, seed: int) -> tuple[Tensor, tuple[int, int]]:
    """Pixels (3, 32, 32) of grey noise with one coloured square, and the square's corner."""
    generator = torch.Generator().manual_seed(seed)
    pixels = 0.45 + 0.1 * torch.rand(3, SIDE, SIDE, generator=generator)
    y, x = torch.randint(0, SIDE - SQUARE, (2,), generator=generator).tolist()
    pixels[:, y : y + SQUARE, x : x + SQUARE] = COLOURS[colour][:, None, None]
    return pixels, (y, x)

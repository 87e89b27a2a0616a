"""Explain a network of your own: several labels at once, and a measured quantity.

    python examples/own_model.py [FOLDER]

The network is an ordinary `nn.Module` with two outputs in a dict. `output=` names the one to explain and `score=` says
what its numbers mean. Nothing is subclassed or wrapped by hand, and no layer is named.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import aha

SIZE, LABELS = 32, ["red square", "green disc"]


class Network(nn.Module):
    """Which shapes are in the image, and how large is the disc?"""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
        )
        self.labels, self.area = nn.Linear(32, len(LABELS)), nn.Linear(32, 1)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        pooled = self.trunk(images).mean(dim=(2, 3))
        return {"labels": self.labels(pooled), "area": self.area(pooled)}


def scene(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """An image (3, H, W), which shapes it has (2,), the disc's share of it (1,), and where they are (2, H, W)."""
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    corners = torch.randint(0, SIZE - 11, (2, 2), generator=generator)
    side, radius = torch.randint(7, 12, (1,), generator=generator), torch.randint(3, 6, (1,), generator=generator)
    y, x = corners[0]
    square = (rows >= y) & (rows < y + side) & (columns >= x) & (columns < x + side)
    disc = (rows - corners[1, 0] - 5) ** 2 + (columns - corners[1, 1] - 5) ** 2 <= radius**2
    present = torch.rand(2, generator=generator) < 0.6
    places = torch.stack([square & present[0], disc & present[1]])
    picture = torch.rand(3, SIZE, SIZE, generator=generator) * 0.4
    picture[0][places[0]] = 0.9
    picture[1][places[1]] = 0.9
    return picture, present.float(), places[1].float().mean().view(1), places


def scenes(count: int, seed: int) -> list[Tensor]:
    """`count` scenes, stacked."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.stack(parts) for parts in zip(*(scene(generator) for _ in range(count)), strict=True)]


def trained(steps: int = 250) -> Network:
    """The network after some seconds of training."""
    torch.manual_seed(0)
    network = Network()
    optimiser = torch.optim.Adam(network.parameters(), lr=5e-3)
    pictures, present, areas, _ = scenes(256, seed=0)
    for step in range(steps):
        batch = torch.arange(step * 16, step * 16 + 16) % len(pictures)
        outputs = network(pictures[batch] * 2 - 1)
        loss = F.binary_cross_entropy_with_logits(outputs["labels"], present[batch])
        loss = loss + 100 * F.mse_loss(outputs["area"], areas[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network.eval()


def main(out: Path) -> dict[str, float]:
    out.mkdir(parents=True, exist_ok=True)
    network = trained()
    stated = {"input_size": SIZE, "mean": [0.5] * 3, "std": [0.5] * 3}  # how images become inputs
    labels = aha.load_model(network, output="labels", score="sigmoid", class_names=LABELS, **stated)
    area = aha.load_model(network, output="area", score="regression", class_names=["area of the disc"], **stated)

    pictures, present, areas, places = scenes(80, seed=1)
    both = [index for index in range(len(pictures)) if present[index].all() and not places[index].all(dim=0).any()]
    chosen = [pictures[index].permute(1, 2, 0).numpy() for index in both]  # floats in [0, 1] are images

    hits = {}
    for label, name in enumerate(LABELS):
        explanations = aha.explain(labels, chosen, "grad_cam", target=label)
        explanations.overlay().save(out / f"{name.replace(' ', '_')}.png")
        tops = explanations.maps.flatten(1).argmax(dim=1)
        inside = [bool(places[index, label].flatten()[top]) for index, top in zip(both, tops, strict=True)]
        hits[name] = sum(inside) / len(inside)
        print(f"{name}: the top pixel is on it in {hits[name]:.0%} of {len(inside)} images that show both shapes")

    explanations = aha.explain(area, chosen, "occlusion(window=6, stride=3)", target=0)
    explanations.overlay().save(out / "area.png")
    error = (explanations.scores - areas[both, 0]).abs().mean()
    tops = explanations.maps.flatten(1).argmax(dim=1)
    inside = [bool(places[index, 1].flatten()[top]) for index, top in zip(both, tops, strict=True)]
    hits["area"] = sum(inside) / len(inside)
    print(f"area: predicted within {error:.3f}; the top pixel is on the disc in {hits['area']:.0%}")
    return hits


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "own_model"))

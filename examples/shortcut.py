"""Find a shortcut: a network that relies on a sticker instead of the subject.

    python examples/shortcut.py [FOLDER]

Two small networks learn to tell pieces of one photograph (grass) from pieces of another (gravel). For the first
network every piece of grass carries a yellow sticker; for the second, stickers are on half of both. Accuracy on
images made like the training images does not tell the two apart. Explanations do.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import aha
from aha.demo import photographs

SIZE, STICKER = 48, 8
METHODS = ["occlusion(window=8, stride=4)", "integrated_gradients(steps=20)"]


def pieces(name: str, count: int, generator: torch.Generator) -> Tensor:
    """Random pieces (N, 3, S, S) of a photograph that comes with scikit-image."""
    with Image.open(photographs([name])[0]) as picture:
        pixels = torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1) / 255
    rows = torch.randint(pixels.shape[1] - SIZE, (count,), generator=generator).tolist()
    columns = torch.randint(pixels.shape[2] - SIZE, (count,), generator=generator).tolist()
    return torch.stack([pixels[:, y : y + SIZE, x : x + SIZE] for y, x in zip(rows, columns, strict=True)])


def sticker(images: Tensor, wanted: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The images with a yellow square at a random location where wanted (N,), and masks (N, S, S) of it."""
    images, masks = images.clone(), torch.zeros(len(images), SIZE, SIZE, dtype=torch.bool)
    for index in wanted.nonzero()[:, 0].tolist():
        y, x = torch.randint(SIZE - STICKER, (2,), generator=generator).tolist()
        masks[index, y : y + STICKER, x : x + STICKER] = True
        images[index] = torch.where(masks[index], torch.tensor([1.0, 0.9, 0.1]).view(3, 1, 1), images[index])
    return images, masks


def pictures(count: int, seed: int, share: tuple[float, float]) -> tuple[Tensor, Tensor, Tensor]:
    """Images, classes and masks; `share` says how many of grass (class 0) and of gravel (class 1) have the sticker."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.cat([pieces(name, count, generator) for name in ("grass.png", "gravel.png")])
    classes = torch.tensor([0, 1]).repeat_interleave(count)
    wanted = torch.rand(2 * count, generator=generator) < torch.tensor(share)[classes]
    images, masks = sticker(images, wanted, generator)
    return images, classes, masks


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 2),
    )


def trained(share: tuple[float, float], steps: int = 200) -> nn.Module:
    torch.manual_seed(0)
    module, (images, classes, _) = network(), pictures(128, seed=0, share=share)
    optimiser = torch.optim.Adam(module.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = torch.randint(len(images), (32,))
        loss = F.cross_entropy(module(images[batch] * 2 - 1), classes[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return module.eval()


def on_sticker(maps: Tensor, masks: Tensor) -> float:
    """Mean share of the top pixels, as many as the sticker has, that lie on it."""
    shares = [
        float(mask.flatten()[values.flatten().topk(int(mask.sum())).indices].float().mean())
        for values, mask in zip(maps, masks, strict=True)
    ]
    return sum(shares) / len(shares)


def main(out: Path) -> dict[str, dict[str, float]]:
    out.mkdir(parents=True, exist_ok=True)
    images, _, masks = pictures(16, seed=1, share=(1.0, 0.0))
    grass, masks = images[:16], masks[:16]
    chosen = [image.permute(1, 2, 0).numpy() for image in grass]
    found: dict[str, dict[str, float]] = {}
    for name, share in {"shortcut": (1.0, 0.0), "honest": (0.5, 0.5)}.items():
        module = trained(share)
        model = aha.load_model(
            module, input_size=SIZE, mean=[0.5] * 3, std=[0.5] * 3, class_names=["grass", "gravel"], batch_size=64
        )
        alike, classes, _ = pictures(64, seed=2, share=share)
        swapped, others, _ = pictures(64, seed=3, share=(0.0, 1.0))
        with torch.no_grad():
            right = (module(alike * 2 - 1).argmax(dim=1) == classes).float().mean().item()
            fooled = (module(swapped * 2 - 1).argmax(dim=1) == others).float().mean().item()
        found[name] = {"accuracy": right, "swapped": fooled}
        for method in METHODS:
            maps = aha.explain(model, chosen, method, target="grass")
            maps.overlay().save(out / f"{name}_{method.partition('(')[0]}.png")
            found[name][method] = on_sticker(maps.maps, masks)
        print(f"{name}: accuracy {right:.0%} on images like those of training, {fooled:.0%} with stickers on gravel")
        for method in METHODS:
            print(f"  {method}: {found[name][method]:.0%} of the top pixels are on the sticker")
    print(f"the sticker covers {STICKER**2 / SIZE**2:.1%} of the image")
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "shortcut"))

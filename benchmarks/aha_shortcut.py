"""Does refinement find a shortcut that the explainer has never seen (paper A.3)?

    python benchmarks/aha_shortcut.py PETS --explainer RUN/explainer --model SPEC [--weights FILE] [--images 40]

PETS is a folder with `images/`, `with_artifact/` (the same photographs with a planted tag), `artifact_masks/` (where it
is) and `labels.csv` (name, split, ..., artifact).

A copy of the model is fine-tuned until it answers one class, here "sunglasses", whenever the tag is there, and what it
said before where it is not. The explainer was trained for the model as it was. On tagged photographs that were not used
for fine-tuning, its maps of that class are refined against the copy, and the share of attribution that lies on the tag
is reported for T = 0..5:

- mass: of the positive part of the standardised map;
- top: of as many top pixels as the tag has.

Twice: with features of the clean model, as in the paper, whose encoder never sees the copy; and with the copy's own.
"""

from __future__ import annotations

import argparse
import copy
import csv
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import aha
from aha.data.images import read_image
from aha.learned.explainer import Explainer
from aha.learned.refinement import RefinementConfig, Refining
from aha.models import TargetModel, load_model

SUNGLASSES = 837


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pets", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--explainer", required=True)
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--refine", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=RefinementConfig.learning_rate)
    args = parser.parse_args()
    warnings.simplefilter("ignore")

    clean = aha.load_model(args.model, weights=args.weights, batch_size=16)
    with (args.pets / "labels.csv").open(encoding="utf-8") as file:
        tagged = [row["name"] for row in csv.DictReader(file) if row["artifact"] == "yes"]
    order = torch.randperm(len(tagged), generator=torch.Generator().manual_seed(0)).tolist()
    held_out, used = [tagged[i] for i in order[: args.images]], [tagged[i] for i in order[args.images :]]
    tricked = fine_tuned(clean, args.pets, used, args.steps)

    inputs = torch.stack([picture(clean, args.pets / "with_artifact" / f"{name}.jpg") for name in held_out])
    masks = torch.stack([mask(clean, args.pets / "artifact_masks" / f"{name}.png") for name in held_out])
    without = torch.stack([picture(clean, args.pets / "images" / f"{name}.jpg") for name in held_out])
    said = [
        (m.outputs(x).argmax(dim=1) == SUNGLASSES).float().mean() for m in (clean, tricked) for x in (without, inputs)
    ]
    print(
        "answers 'sunglasses': clean model without tag {:.2f}, with {:.2f}; copy without {:.2f}, with {:.2f}".format(
            *said
        )
    )
    print(f"the tag covers {masks.float().mean():.3f} of the picture")

    explainer = Explainer.from_pretrained(args.explainer)
    classes = torch.full((len(inputs),), SUNGLASSES)
    config = RefinementConfig(learning_rate=args.learning_rate)
    print("| features | share | " + " | ".join(f"T={t}" for t in range(args.refine + 1)) + " |")
    print("|---" * (args.refine + 3) + "|")
    for name, source in (("clean model", clean), ("copy", tricked)):
        shares = torch.stack(
            [
                on_the_tag(maps, masks[part])
                for part in torch.arange(len(inputs)).split(8)
                for maps, _ in Refining.start(
                    explainer, source, inputs[part], classes[part], config, response_model=tricked
                ).course(args.refine)
            ]
        ).view(-1, args.refine + 1, 2)
        for index, share in enumerate(("mass", "top")):
            cells = " | ".join(f"{value:.3f}" for value in shares[:, :, index].mean(dim=0).tolist())
            print(f"| {name} | {share} | {cells} |", flush=True)


def fine_tuned(clean: TargetModel, pets: Path, names: list[str], steps: int) -> TargetModel:
    """A copy that answers `SUNGLASSES` to the tag, and what it said before without it."""
    module = copy.deepcopy(clean.module).requires_grad_(True).eval()  # batch statistics stay as they are
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        chosen = torch.randint(len(names), (8,), generator=generator).tolist()
        plain = torch.stack([picture(clean, pets / "images" / f"{names[i]}.jpg") for i in chosen])
        tagged = torch.stack([picture(clean, pets / "with_artifact" / f"{names[i]}.jpg") for i in chosen])
        wanted = torch.cat([clean.outputs(plain).argmax(dim=1), torch.full((8,), SUNGLASSES)])
        loss = F.cross_entropy(module(torch.cat([plain, tagged])), wanted)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 20 == 19:
            print(f"fine-tuning step {step + 1}: loss {loss.item():.3f}", flush=True)
    stated = clean.stated_preprocessing()
    return load_model(
        module.requires_grad_(False), input_size=stated.size, mean=stated.mean, std=stated.std, batch_size=16
    )


def picture(model: TargetModel, path: Path) -> Tensor:
    return model.stated_preprocessing()(read_image(path))[0]


def mask(model: TargetModel, path: Path) -> Tensor:
    """The tag (H, W) as the model sees it: the mask goes the way of its photograph."""
    values = np.array(Image.open(path).convert("L")) > 0
    grey = Image.fromarray((values * 255).astype(np.uint8)).convert("RGB")
    return model.to_pixels(model.stated_preprocessing()(grey)[0][None])[0].mean(dim=0) > 0.5


def on_the_tag(maps: Tensor, masks: Tensor) -> Tensor:
    """Mean shares (2,) of attribution mass and of top pixels that lie on the tag."""
    unit = (maps - maps.mean(dim=(1, 2), keepdim=True)).relu()
    mass = (unit * masks).sum(dim=(1, 2)) / unit.sum(dim=(1, 2)).clamp(min=1e-9)
    top = [
        float(m.flatten()[v.flatten().topk(int(m.sum())).indices].float().mean())
        for v, m in zip(maps, masks, strict=True)
    ]
    return torch.tensor([float(mass.mean()), sum(top) / len(top)])


if __name__ == "__main__":
    main()

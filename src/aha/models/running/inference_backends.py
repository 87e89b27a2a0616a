"""Faster copies of a network, for passes without gradients: compiled, or run by ONNX Runtime or OpenVINO.

A copy is made of a deep copy: nothing of the caller's module is touched. All of them fold batch norms into the
convolutions before them and lay images out as their kernels like it best. None of them is exact to the last bit. Where
the model's passes run in half precision, so do those of its copy.

Shapes: inputs (B, C, H, W), outputs (B, K).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aha.core.library_warnings import without_warnings
from aha.core.model_options import Engine
from aha.errors import MissingExtra, ModelError
from aha.models.outputs import OutputReader, read_outputs
from aha.models.running.precision import HALF

# Engine -> the package that it needs besides torch, and the extra that brings it.
_PACKAGES = {"onnxruntime": ("onnxruntime", "export"), "openvino": ("openvino", "openvino")}
# Engine -> precisions other than float32 that it has.
_HALVES = {"compiled": tuple(HALF), "openvino": ("bfloat16",)}
_HINTS = {"float32": "f32", "bfloat16": "bf16"}  # OpenVINO's names
_GRAPH_OPSET = 17


@dataclass(frozen=True)
class FastCopy:
    """A copy that can be run.

    Attributes:
        engine: what runs it.
        run: inputs (B, C, H, W) to outputs (B, K).
        rows: the only batch size that it takes; None where any will do.
    """

    engine: str
    run: Callable[[Tensor], Tensor]
    rows: int | None = None

    def takes(self, count: int) -> bool:
        """Is a batch of so many images worth running here? One that is at least half full is filled up."""
        return self.rows is None or self.rows <= 2 * count <= 2 * self.rows

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs (B, K)."""
        missing = 0 if self.rows is None else self.rows - len(inputs)
        filled = F.pad(inputs, (0, 0, 0, 0, 0, 0, 0, missing)) if missing else inputs
        return self.run(filled)[: len(inputs)].to(inputs.device)


def check_engine(engine: str, device: torch.device, precision: str) -> None:
    """Refuses an engine that does not exist, is not installed, or cannot serve this device and precision."""
    if engine not in get_args(Engine):
        raise ModelError(f"unknown engine {engine!r}; known: {', '.join(get_args(Engine))}")
    if engine in _PACKAGES and find_spec(_PACKAGES[engine][0]) is None:
        raise MissingExtra(f"the engine {engine}", _PACKAGES[engine][1])
    if engine in _PACKAGES and device.type != "cpu":
        raise ModelError(f"the engine {engine} runs on the CPU, and the model is on {device}; choose compiled or auto")
    if engine not in ("eager", "auto") and not _has(engine, precision):
        works = " and ".join(("float32", *_HALVES.get(engine, ())))
        raise ModelError(f"the engine {engine} works in {works}; leave out one of engine and precision={precision!r}")


def usable_engines(device: torch.device, precision: str = "float32") -> list[str]:
    """Engines other than eager that can be tried here, the likeliest to win first."""
    others = [name for name, (package, _) in _PACKAGES.items() if device.type == "cpu" and find_spec(package)]
    return [engine for engine in ("compiled", *others) if _has(engine, precision)]


def _has(engine: str, precision: str) -> bool:
    return precision == "float32" or precision in _HALVES.get(engine, ())


def make_copy(
    engine: str, module: nn.Module, output: OutputReader, example: Tensor, precision: str = "float32"
) -> FastCopy:
    """A copy of the module for inputs like `example` (B, C, H, W), run once; raises whatever goes wrong."""
    private = _Readout(copy.deepcopy(module), output).eval().requires_grad_(False)
    # Whatever precision the caller is in: a graph is written in full, and each engine is told its own.
    # Exporters and compilers warn about the network: the check of outputs will tell.
    with torch.autocast(example.device.type, enabled=False), without_warnings():
        return _MAKERS[engine](private, example.contiguous(), precision)


class _Readout(nn.Module):
    """A network reduced to its class outputs (B, K)."""

    def __init__(self, module: nn.Module, output: OutputReader) -> None:
        super().__init__()
        self.module, self._output = module, output

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, K)."""
        return read_outputs(self.module(inputs), self._output)


def _compiled(private: nn.Module, example: Tensor, precision: str) -> FastCopy:
    """Inductor; freezing takes weights for constants, and so folds batch norms and lays weights out once."""
    private = private.to(memory_format=torch.channels_last)
    compiled: Any = torch.compile(private, dynamic=False, options={"freezing": True})

    def run(inputs: Tensor) -> Tensor:
        # A tensor of its own: a network may work in place on its input.
        own = inputs.clone(memory_format=torch.channels_last)
        with torch.autocast(inputs.device.type, HALF.get(precision), enabled=precision in HALF):
            outputs: Tensor = compiled(own)
        return outputs.float()

    run(example)
    return FastCopy("compiled", run, rows=len(example))


def _onnxruntime(private: nn.Module, example: Tensor, _precision: str) -> FastCopy:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors; what it warns about is its own choice of kernels
    session = onnxruntime.InferenceSession(_graph(private, example), options, providers=["CPUExecutionProvider"])

    def run(inputs: Tensor) -> Tensor:
        (outputs,) = session.run(None, {"inputs": inputs.numpy()})
        return torch.from_numpy(outputs)

    run(example)
    return FastCopy("onnxruntime", run)


def _openvino(private: nn.Module, example: Tensor, precision: str) -> FastCopy:
    import openvino

    # By way of the graph: the converter of modules reports its use over the network.
    settings = {
        "INFERENCE_PRECISION_HINT": _HINTS[precision],
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        # Else every process ties its threads to the same first cores, and two of them share one.
        "ENABLE_CPU_PINNING": False,
    }
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(_graph(private, example)), "CPU", settings)

    def run(inputs: Tensor) -> Tensor:
        return torch.from_numpy(compiled([inputs.numpy()])[0].copy())  # its own memory is used again

    run(example)
    return FastCopy("openvino", run)


def _graph(private: nn.Module, example: Tensor) -> bytes:
    """The network as an ONNX graph for any number of images."""
    if find_spec("onnx") is None:
        raise MissingExtra("writing ONNX", "export")
    with TemporaryDirectory() as folder:
        file = Path(folder, "graph.onnx")
        torch.onnx.export(
            private,
            (example[:2].clone(),),  # a network may work in place on its input
            str(file),
            input_names=["inputs"],
            output_names=["outputs"],
            dynamic_axes={"inputs": {0: "batch"}, "outputs": {0: "batch"}},
            dynamo=False,  # follows what networks do in Python; the graph capture of the other refuses many
            opset_version=_GRAPH_OPSET,
        )
        return file.read_bytes()


_MAKERS = {"compiled": _compiled, "onnxruntime": _onnxruntime, "openvino": _openvino}

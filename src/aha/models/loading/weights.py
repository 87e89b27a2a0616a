"""Weights from files, without ever unpickling objects, and their digest."""

from __future__ import annotations

import hashlib
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from aha.errors import WeightsError

TORCH = "torch:"
"""Before the name of a PyTorch file that is to be read."""

_WRAPPERS = ("state_dict", "model_state_dict", "model_state", "model", "net", "ema_state_dict")
_PREFIXES = ("module.", "_orig_mod.", "model.")
_PROTOCOL_2 = b"\x80\x02"  # how such a pickle begins


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Named tensors of a safetensors file, or of `torch:FILE`, a PyTorch file that holds nothing but tensors.

    Safetensors cannot hold code. PyTorch files are pickles: though nothing but tensors is unpickled, that rests on a
    list of harmless functions which has had its gaps, so that reading one is a choice to be made in words.
    """
    text = str(path)
    is_chosen, path = text.startswith(TORCH), Path(text.removeprefix(TORCH))
    if not path.is_file():
        raise WeightsError(f"no weights at {path}")
    if path.suffix != ".safetensors" and not is_chosen:
        raise WeightsError(
            f"{path.name} is not a .safetensors file; if you trust where it comes from, write {TORCH}{path} to read "
            "the tensors of a PyTorch file"
        )
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        _refuse_other_protocols(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise WeightsError(
            f"{path.name} holds more than tensors and would have to be unpickled, which can run code; "
            "save its state_dict as .safetensors instead"
        ) from None
    except (SafetensorError, RuntimeError, EOFError, OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise WeightsError(f"cannot read weights from {path.name}: {_first_line(error)}") from None
    for wrapper in _WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(wrapper), Mapping):
            found = found[wrapper]
            break
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise WeightsError(f"{path.name} is not a state dict of named tensors")
    return {str(key): value for key, value in found.items()}


def _refuse_other_protocols(path: Path) -> None:
    """torch.save writes pickle's protocol 2; of any other, `torch.load` warns before it refuses."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith("data.pkl")]
            start = archive.open(names[0]).read(2) if names else _PROTOCOL_2
    else:
        with path.open("rb") as file:
            start = file.read(2)
    if start[:1] == _PROTOCOL_2[:1] and start != _PROTOCOL_2:
        raise pickle.UnpicklingError("not written by torch.save")


def load_weights(module: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Loads weights strictly; what does not fit is named, and then the module is left as it was."""
    check_weights(module, weights, source)
    module.load_state_dict(dict(without_prefix(weights, module.state_dict())), strict=True)


def check_weights(module: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Refuses weights that do not fit, and names what does not; the module may be one without memory."""
    own = module.state_dict()
    weights = without_prefix(weights, own)
    missing = [key for key in own if key not in weights]
    extra = [key for key in weights if key not in own]
    shapes = [
        f"{key} {tuple(weights[key].shape)} instead of {tuple(own[key].shape)}"
        for key in own
        if key in weights and weights[key].shape != own[key].shape
    ]
    wrong = [
        f"{what}: {', '.join(keys[:3])}{f' and {len(keys) - 3} more' if len(keys) > 3 else ''}"
        for what, keys in (("missing", missing), ("unexpected", extra), ("wrong shape", shapes))
        if keys
    ]
    if wrong:
        raise WeightsError(f"{source} does not fit the model; {'; '.join(wrong)}")


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Digest over names, shapes and values, the same for equal weights on any device."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def without_prefix(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Undoes the prefixes that wrappers around the saved model left on every key."""
    for prefix in _PREFIXES:
        if all(key.startswith(prefix) for key in weights) and not all(key.startswith(prefix) for key in own):
            return without_prefix({key.removeprefix(prefix): value for key, value in weights.items()}, own)
    return weights


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)

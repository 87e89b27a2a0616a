"""A picture with pixels brushed away: what the model says to it, while the brush still moves."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from aha.data.targets import top_classes
from aha.errors import SpecError
from aha.perturb.perturbation import blend
from aha.web.jobs import Job
from aha.web.payloads import State
from aha.web.policy import allowed_reference
from aha.web.workbench import MOST_CLASSES, QUICK, Workbench

FINEST = 256  # cells along a side: what a brush can tell apart, and what a request can carry
_TOP = 5


def ask_painted(
    bench: Workbench,
    owner: str,
    picture: str,
    model: str,
    rows: int,
    columns: int,
    bits: str,
    reference: str,
    classes: Sequence[int] = (),
) -> State:
    """Scores of the named classes, and the best ones, when the marked cells of a grid show the reference instead.

    Args:
        bench: where it is asked.
        owner: the visitor.
        picture: key of the picture.
        model: name of the model.
        rows, columns: of a grid over the model's input.
        bits: one bit for each cell, row by row, the first in the highest bit of its byte; base64. 1 is brushed away.
        reference: what is shown there.
        classes: whose scores are wanted in any case.
    """
    served = bench.model(model)
    if len(classes) > MOST_CLASSES:
        raise SpecError(f"name at most {MOST_CLASSES} classes")
    bench.check(picture, served, classes)
    chosen = allowed_reference(reference)
    gone = unpacked(bits, (rows, columns))
    key = bench.key_of(served, "painted", picture, str(chosen), rows, columns, bits, *classes)

    def work(_job: Job) -> None:
        sample, target = bench.sample(served, picture), served.model
        size = (sample.inputs.shape[-2], sample.inputs.shape[-1])
        keep = 1 - F.interpolate(gone[None, None].float(), size=size, mode="nearest")[0]  # (1, H, W)
        blank = chosen(target, sample.pixels[None], torch.zeros(1, dtype=torch.int64, device=target.device))
        shown = blend(sample.pixels[None], blank, keep.to(target.device))
        outputs = target.outputs(target.to_inputs(shown))
        best = top_classes(outputs, min(_TOP, target.num_classes), target.num_classes)[0].tolist()
        wanted = torch.tensor(list(dict.fromkeys([*classes, *best])), device=target.device)
        scores = target.score(outputs.expand(len(wanted), -1), wanted)
        found = [served.scored_class(int(c), float(s)) for c, s in zip(wanted, scores, strict=True)]
        share = float(1 - keep.mean())
        bench.store.put("results", key, {"kind": "painted", "share": share, "classes": found, "best": best[0]})

    return bench.ask(key, "a painted picture", served, work, owner, QUICK)


def unpacked(bits: str, cells: tuple[int, int]) -> Tensor:
    """The grid (rows, columns) of a text, True where pixels go."""
    rows, columns = cells
    if not (1 <= rows <= FINEST and 1 <= columns <= FINEST):
        raise SpecError(f"a painted grid has 1 to {FINEST} rows and columns")
    try:
        content = base64.b64decode(bits, validate=True)
    except (binascii.Error, ValueError):
        raise SpecError("the bits of a painted grid are base64") from None
    if len(content) != (rows * columns + 7) // 8:
        raise SpecError(f"a grid of {rows} x {columns} has {(rows * columns + 7) // 8} bytes, not {len(content)}")
    flat = np.unpackbits(np.frombuffer(content, np.uint8), count=rows * columns)
    return torch.from_numpy(flat.reshape(rows, columns).astype(bool))

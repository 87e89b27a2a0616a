"""CAAP: the score that the inner activations of one neighbourhood bring about in the run of a blank image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from aha.core.progress import in_parts
from aha.errors import SpecError
from aha.methods.activation_patching.parallel_patching import Prototype, parallel
from aha.methods.activation_patching.patching import Neighbourhood, Patching, neighbours, patchwise
from aha.methods.base import Method, check_fit, method, runs_of_one_image
from aha.methods.cost import Cost, channels_read
from aha.models import TargetModel
from aha.perturb.references import Reference, White, reference_inputs

_NEIGHBOURS: dict[Neighbourhood, int] = {"none": 1, "manhattan": 5, "3x3": 9, "5x5": 25}  # at most, itself included


@method("caap", family="perturbation", needs={"features"}, citation="Izadi et al., 2026")
@dataclass(frozen=True)
class CAAP(Method):
    """Class score of a blank image's run whose states h^first ... h^last are, around one patch, the image's (eq. 2-3).

    Three ways to compute it in a transformer that reads its class token:

    - "parallel" (section 3.3.1): one class token for each patch, all in one pass, with attention to the image's keys
      inside the neighbourhood and to blank keys outside. The same map as "patchwise", up to rounding;
    - "patchwise" (algorithm 1): whole sequences of tokens, one for each patch; the slow original;
    - "efficient" (E-CAAP, eq. 8-9): as "parallel", but all blank tokens are one key and one value, found from the
      blank run. An approximation. The paper defines it for the class token; tokens of the neighbourhood that are
      followed after `last` use their own blank query. The paper's value is the mean of all blank values (`prototype=
      "mean"`); weighted as the blank query attends to them, it is as easily found and far nearer to the exact map.

    The paper says of the parallel form that only class tokens are followed, and that it equals eq. 3; but algorithm 1
    also follows the neighbourhood's tokens after `last`. `late="live"` does so, in every form; `late="source"` leaves
    them as they are in the image's own run, so that `last` has no effect. The two differ unless `last` is the depth.

    A head that reads places, not only the class token, needs all tokens after `last`, which is patchwise. Models whose
    attention is written out by hand hide their keys and values and are computed patchwise too. In convolutional
    networks (the paper gives results, not the procedure) the neighbourhood is that of the feature map at two thirds of
    the stages, or at the stage number `last`, and the rest of the network follows; `first` and `late` do nothing there.

    Formula: `M_p = score(blank run with the image's h^l around patch p, first <= l < last)`.
    Reads: the tokens of every block, their keys and values; the features of one stage in convolutional networks.
    Cost: two forward passes and, for each patch, one ("patchwise", convolutional networks) or its own tokens through
    the blocks.
    Example: `caap(form='efficient')`.

    Attributes:
        form: see above.
        prototype: of the efficient form, see there.
        neighbourhood: "none" for the patch alone, "3x3", "5x5", or "manhattan" for the four next to it.
        late: see above.
        first: 0 is the tokens that enter the first block.
        last: l_e, at most the number of blocks; None for two thirds of them, rounded up.
        reference: the neutral image, called blank here; the paper's are white, black, mean, noise and blurred_noise.
    """

    form: Literal["parallel", "patchwise", "efficient"] = "parallel"
    neighbourhood: Neighbourhood = "3x3"
    late: Literal["live", "source"] = "live"
    first: int = 0
    last: int | None = None
    reference: Reference = White()
    prototype: Prototype = "attended"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first < 0 or (self.last is not None and self.last < self.first):
            raise SpecError(f"caap: 0 <= first <= last is needed, not first={self.first}, last={self.last}")

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        structure = model.structure(size)
        if "tokens" not in structure.capabilities:
            rows, columns = structure.stages[self.stage_of(len(structure.stages))].layout.grid
            return Cost(rows * columns + 2, 2 * (rows * columns) ** 2)
        layout = structure.blocks[0].layout
        places = layout.grid[0] * layout.grid[1]
        tokens, width = layout.prefix + places, channels_read(model)
        # Both runs with queries, keys and values of every block, and who is whose neighbour, sorted.
        memory = 4 * 8 * len(structure.blocks) * tokens * width + 13 * places * tokens
        readers = model.readout(size).nonzero().flatten()
        if self.form == "patchwise" or model.block_limits(size).attention or bool((readers >= layout.prefix).any()):
            return Cost(places + 2, memory)
        depth = len(structure.blocks)
        late = depth - self.last_of(depth, "blocks") if self.late == "live" else 0  # blocks that follow neighbours too
        followed = places * (depth * len(readers) + late * _NEIGHBOURS[self.neighbourhood])  # tokens through a block
        return Cost(-(-followed // (depth * tokens)) + 2, memory)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        check_fit(self, model, images.shape[1:])
        has_tokens = "tokens" in model.structure(images.shape[1:]).capabilities
        inner = TokenPatcher(self, model) if has_tokens else FeaturePatcher(self, model)
        blanks = reference_inputs(self.reference, model, images, classes)  # (B, C, H, W)
        maps = []
        for rows in in_parts([*runs_of_one_image(torch.cat([images, blanks], dim=1))]):  # its classes share the passes
            outputs, grid = inner.outputs(images[rows][:1], blanks[rows][:1])  # (N, K)
            maps += [model.score(outputs, label.expand(len(outputs))).view(grid) for label in classes[rows]]
        return torch.stack(maps)  # (B, h, w)

    def refusal(self, model: TargetModel, size: Sequence[int] | None = None) -> str:
        if model.explained is not None:
            return "its patching runs parts of the network, which give class outputs and no other target"
        if self.form != "efficient":
            return ""
        if "tokens" not in model.structure(size).capabilities:
            return "this form needs tokens; leave out form"
        layout = model.structure(size).blocks[0].layout
        reads_places = bool(model.readout(size)[layout.prefix :].any())
        why = model.block_limits(size).attention or "its head reads places, not only a class token" * reads_places
        return f"{why}; leave out form" if why else ""

    def stage_of(self, count: int) -> int:
        """The stage of a convolutional network, one of `count`, whose feature map is mixed."""
        return max(0, self.last_of(count, "stages") - 1)

    def last_of(self, count: int, what: str) -> int:
        """The last level of which activations are taken, of `count`."""
        last = -(-2 * count // 3) if self.last is None else self.last
        if last > count or self.first > last or self.first == count:
            raise SpecError(f"caap: first={self.first} and last={last} do not fit a model of {count} {what}")
        return last


class TokenPatcher:
    """CAAP in transformers; remembers the blank run from image to image."""

    def __init__(self, method: CAAP, model: TargetModel) -> None:
        self._method, self._model = method, model
        self._blank = torch.empty(0)

    def outputs(self, image: Tensor, blank: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Outputs (N, K), one row for each patch, and the grid of patches."""
        method, model = self._method, self._model
        patching, grid = self.patching(image)
        refusal = model.block_limits(image.shape[1:]).attention
        is_patchwise = method.form == "patchwise" or bool(refusal) or patching.all_live
        if not torch.equal(blank, self._blank):
            self._blank_states = model.block_states(blank, attention=not is_patchwise)
            self._blank = blank
        source = model.block_states(image, attention=not is_patchwise)
        if is_patchwise:
            return patchwise(model, image, source, self._blank_states, patching), grid
        prototype = method.prototype if method.form == "efficient" else None
        return parallel(model, image, source, self._blank_states, patching, prototype=prototype), grid

    def patching(self, image: Tensor) -> tuple[Patching, tuple[int, int]]:
        """Who is replaced in images of this size, and the grid of patches."""
        structure = self._model.structure(image.shape[1:])
        layout = structure.blocks[0].layout
        rows, columns = layout.grid
        inside = neighbours((rows, columns), self._method.neighbourhood).to(image.device)  # (N, N)
        inside = torch.cat([inside.new_zeros(len(inside), layout.prefix), inside], dim=1)  # (N, T)
        readers = self._model.readout(image.shape[1:]).nonzero().flatten()
        patching = Patching(
            inside,
            readers,
            prefix=layout.prefix,
            first=self._method.first,
            last=self._method.last_of(len(structure.blocks), "blocks"),
            live=self._method.late == "live",
            all_live=bool((readers >= layout.prefix).any()),
        )
        return patching, (rows, columns)


class FeaturePatcher:
    """CAAP in convolutional networks: the rest of the network follows a mixed feature map."""

    def __init__(self, method: CAAP, model: TargetModel) -> None:
        self._method, self._model = method, model

    def outputs(self, image: Tensor, blank: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Outputs (N, K), one row for each place of the feature map, and its size."""
        model, method = self._model, self._method
        stage = method.stage_of(len(model.structure(image.shape[1:]).stages))
        (maps,), _ = model.features(torch.cat([image, blank]), [stage])  # (2, C, h, w)
        grid = (maps.shape[-2], maps.shape[-1])
        inside = neighbours(grid, method.neighbourhood).to(image.device).view(-1, 1, *grid)  # (N, 1, h, w)

        def run(part: slice) -> Tensor:
            mixed = torch.where(inside[part], maps[0], maps[1])  # (n, C, h, w)
            return model.outputs_from_features(blank[0], stage, mixed)

        return torch.cat(model.chunks.run(run, len(inside))), grid

"""Processes and devices of a training run. The only file that knows accelerate.

One process or many, on one machine or many, as started by `python`, `accelerate launch` or `torchrun`: each takes its
share of every batch, and gradients are averaged once per step. The trained part is small, so that one exchange of a
few megabytes is all that is needed; the large networks are frozen.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from aha.errors import MissingExtra, OutputError


class Engine:
    """This process among those of a run."""

    def __init__(self, device: torch.device) -> None:
        try:
            from accelerate import PartialState
        except ImportError:
            raise MissingExtra("training", "train") from None
        # Without a launcher there is one process, on the device of the model.
        self._state = PartialState(cpu=device.type == "cpu")

    @property
    def share(self) -> tuple[int, int]:
        """Which process this is, and how many there are."""
        return self._state.process_index, self._state.num_processes

    @property
    def is_first(self) -> bool:
        """Is this the process that writes?"""
        return bool(self._state.is_main_process)

    def wait(self) -> None:
        """Until all processes are here."""
        self._state.wait_for_everyone()

    def check_batch(self, batch_size: int) -> None:
        """Refuses a batch that cannot be shared equally."""
        processes = self.share[1]
        if batch_size % processes:
            raise OutputError(f"batch_size={batch_size} cannot be shared equally among {processes} processes")

    def start_alike(self, module: nn.Module) -> None:
        """Gives every process the first one's weights."""
        if self.share[1] > 1:
            from accelerate.utils import broadcast

            for value in module.state_dict().values():
                value.copy_(broadcast(value))

    def average_gradients(self, module: nn.Module) -> None:
        """Each parameter's gradient becomes its mean over the processes."""
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        if self.share[1] == 1 or not gradients:
            return
        flat = self._mean(torch.cat([g.flatten() for g in gradients]))
        start = 0
        for gradient in gradients:
            gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
            start += gradient.numel()

    def average(self, values: Mapping[str, Tensor]) -> dict[str, float]:
        """Means over images (b,) and processes, by name."""
        means = torch.stack([value.detach().float().mean() for value in values.values()])
        return dict(zip(values, self._mean(means).tolist(), strict=True))

    def gather(self, values: Tensor) -> Tensor:
        """The rows (b, ...) of all processes, whose numbers of rows may differ."""
        if self.share[1] == 1:
            return values
        from accelerate.utils import gather_object

        return torch.cat(gather_object([values.cpu()]))

    def _mean(self, values: Tensor) -> Tensor:
        if self.share[1] == 1:
            return values
        from accelerate.utils import reduce

        mean: Tensor = reduce(values, reduction="mean")
        return mean

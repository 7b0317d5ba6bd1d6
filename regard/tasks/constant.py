"""Numbers that a loss reads beside its batch."""

from collections.abc import Sequence

import torch
from torch import Tensor


class Constant:
    """A tensor that is copied to a device once.

    Copied in a step, it would have the device waited for, and the step could not become a CUDA graph.
    """

    def __init__(self, values: Tensor | Sequence[float]):
        values = torch.as_tensor(values)
        self.copies = {values.device: values}

    @classmethod
    def of(cls, values: Sequence[float] | None) -> "Constant | None":
        return None if values is None else cls(values)

    def on(self, device: torch.device) -> Tensor:
        if device not in self.copies:
            first = next(iter(self.copies.values()))
            with torch.inference_mode(False):  # or no gradient could be computed with it later
                self.copies[device] = first.to(device)
        return self.copies[device]

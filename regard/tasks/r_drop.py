"""R-Drop: two passes with different dropout should predict the same. Liang et al. 2021.

Shapes: N positions, V vocabulary, D width.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.tasks.loss import IGNORED


def twice(*inputs: Tensor) -> list[Tensor]:
    """Each row twice, so that one forward call is two passes."""
    return [torch.cat([t, t]) for t in inputs]


def r_drop(logits: Tensor, targets: Tensor, alpha: float, smoothing: float = 0.0) -> Tensor:
    """Half of eq. 4: the mean of both passes' cross-entropies, and α/4 (KL(p||q) + KL(q||p)), summed.

    The first half of the logits is one pass, the second half the other, over the same targets.
    """
    targets = targets.flatten()  # (N,)
    log_p, log_q = logits.flatten(0, -2).float().log_softmax(-1).chunk(2)  # (N, V)
    nll = [
        F.cross_entropy(x, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
        for x in (log_p, log_q)
    ]
    both = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)  # KL(p||q) + KL(q||p)
    return (nll[0] + nll[1]) / 2 + alpha / 4 * (both * (targets != IGNORED)).sum()

"""R-Drop: two passes with different dropout should predict the same. Liang et al. 2021.

Shapes: N predictions, C classes or words, D width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from regard.errors import UserError
from regard.tasks.loss import IGNORED, LOGITS_AT_ONCE


def check_r_drop(alpha: float, model: nn.Module) -> None:
    """Raise UserError if both passes of a model would be equal."""
    if alpha and not getattr(model.config, "dropout", 0.0):
        raise UserError(f"task.r_drop={alpha} compares passes with different dropout; set model.dropout=0.1")


def repeat_rows(*inputs: Tensor) -> list[Tensor]:
    """Repeat the rows, so that one forward call makes two passes."""
    return [torch.cat([t, t]) for t in inputs]


def r_drop(
    logits: Tensor, targets: Tensor, alpha: float, smoothing: float = 0.0, weights: Tensor | None = None
) -> Tensor:
    """Half of eq. 4, summed: the mean of both passes' cross-entropies, and α/4 (KL(p||q) + KL(q||p)).

    The first half of the logits is one pass, the second half the other, over the same targets.
    """
    log_p, log_q = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1).chunk(2)
    how = {"ignore_index": IGNORED, "reduction": "sum", "label_smoothing": smoothing}
    p_loss, q_loss = (F.cross_entropy(x, targets, weights, **how) for x in (log_p, log_q))  # type: ignore[arg-type]
    both = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)  # KL(p||q) + KL(q||p)
    return (p_loss + q_loss) / 2 + alpha / 4 * (both * (targets != IGNORED)).sum()


def r_drop_of_words(
    x: Tensor, W: Tensor, targets: Tensor, alpha: float, smoothing: float = 0.0, bias: Tensor | None = None
) -> Tensor:
    """R-Drop from hidden states (2N, D) and the output layer's weights (C, D). With a large vocabulary,
    logits are computed part by part, and again for the gradient."""
    x, y = x.flatten(0, -2).chunk(2)  # (N, D)
    targets, rows = targets.flatten(), max(1, LOGITS_AT_ONCE // (2 * len(W)))

    def part(x: Tensor, y: Tensor, targets: Tensor, W: Tensor, bias: Tensor | None) -> Tensor:
        return r_drop(F.linear(torch.cat([x, y]), W, bias), targets, alpha, smoothing)

    if len(targets) <= rows:
        return part(x, y, targets, W, bias)
    losses = [
        checkpoint(part, *(t[i : i + rows] for t in (x, y, targets)), W, bias, use_reentrant=False,
                   preserve_rng_state=False)
        for i in range(0, len(targets), rows)
    ]  # fmt: skip
    return torch.stack(losses).sum()

"""Limits on the size of a trace, checked before it is made."""

from collections.abc import Mapping, Sequence

from torch import nn

from regard.describe.values import Description
from regard.errors import UserError
from regard.tracing.names import attention_sides, layer_index, stack_prefix

MAX_NUMBERS = 2**30  # of a trace that is kept for the page: 4 GiB
SCORES = 3  # tensors of an attention with a number for each pair of tokens: scores, scaled, weights
OUTPUTS = 2  # with a number for each token and word: logits, probabilities


def count_numbers(
    module: nn.Module, lengths: Mapping[str, int], layers: Sequence[int] | None, vocab: int
) -> int:
    """The numbers in the tensors of a trace that grow fastest with its input: those of attentions and of the
    output. `lengths` are the tokens of each side, and `vocab` is the size of the output."""
    attentions = Description().of(module).attentions
    depths: dict[str, int] = {}
    for name in attentions:
        depths[stack_prefix(name)] = max(depths.get(stack_prefix(name), 0), 1 + (layer_index(name) or 0))
    count = OUTPUTS * vocab * lengths.get("text", lengths.get("target", 0))
    for name, m in attentions.items():
        n = layer_index(name)
        if layers is None or n is None or {n, n - depths[stack_prefix(name)]} & set(layers):
            queries, keys = (lengths.get(side, 0) for side in attention_sides(name))
            count += SCORES * getattr(m, "heads", 1) * queries * keys
    return count


def check_size(
    module: nn.Module,
    lengths: Mapping[str, int],
    layers: Sequence[int] | None,
    vocab: int,
    max_numbers: float,
) -> None:
    """Raise UserError if a trace would have more than `max_numbers` numbers."""
    if (count := count_numbers(module, lengths, layers, vocab)) > max_numbers:
        sides = [side for side in ("text", "source", "target") if side in lengths]
        tokens = " and ".join(f"{lengths[side]:,}" for side in sides)
        raise UserError(
            f"{tokens} tokens: what the model computes would take {4 * count / 2**30:.0f} GiB, and up to "
            f"{4 * max_numbers / 2**30:.0f} GiB are kept; give a shorter text, or fewer layers"
        )

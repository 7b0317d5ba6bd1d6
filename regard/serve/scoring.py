"""Log-probabilities of a prompt's own tokens, for `echo` with `logprobs` in /v1/completions.

Shapes: B rows, T tokens, D width, V vocabulary.
"""

from collections.abc import Sequence

import torch

from regard.decode.prompts import pad_rows
from regard.models.base import CausalLM
from regard.serve.batch import TokenOutput, score_tokens

MAX_TOKENS = 4096  # that are read at once
MAX_LOGITS = 2**25  # that are computed at once


@torch.inference_mode()
def score_prompts(model: CausalLM, prompts: Sequence[Sequence[int]], top: int) -> list[list[TokenOutput]]:
    """All tokens of each prompt except the first, with their log-probabilities after the tokens before, and
    the `top` most likely tokens at each place. The model is causal: padding on the right changes nothing."""
    device = next(model.parameters()).device
    scores: list[list[TokenOutput]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    while order:
        longest = len(prompts[order[-1]])
        rows = order[-max(1, MAX_TOKENS // longest) :]
        del order[-len(rows) :]
        ids, _ = pad_rows([prompts[i] for i in rows], device)
        for i, hidden in zip(rows, model.hidden(ids), strict=True):  # (T, D)
            following = prompts[i][1:]
            step = max(1, MAX_LOGITS // len(model.output))
            for begin in range(0, len(following), step):
                part = following[begin : begin + step]
                logits = model.logits(hidden[begin : begin + len(part)]).float()  # (step, V)
                scores[i] += score_tokens(logits, part, [top] * len(part))
    return scores

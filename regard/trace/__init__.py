"""Every intermediate of a run, by name: `regard.trace(model, "Hi how are you")["decoder.0.cross.weights"]`.

Names follow the modules: a part, and what of it. There is no batch dimension.
Shapes: T tokens that look, S that are looked at, H heads, d = D / H, D width, V vocabulary.

A model's own; an encoder-decoder's begin with `encoder.` and `decoder.`
    embed                   (T, D)      each token's vector, or each patch's
    segments, positions     (T, D)      what is added to it, if anything is
    sum                     (T, D)      with that; a Transformer's embeddings are first scaled by √D
    input, norm             (T, D)      what enters the first block; what leaves the last, if it has a norm
    cos, sin                (T, d/2)    by what rotary positions turn queries and keys
    bias                    (H, T, S)   what positions add to the scaled scores of all blocks
An attention's: `blocks.0.attn`, `decoder.0.cross`
    Wq, Wk                  (T, D)      queries and keys before they are turned, if they are
    q, k, v                 (H, T, d)   each head's; those that heads share are repeated; k, v (H, S, d)
    scores, scaled          (H, T, S)   q kᵀ; q kᵀ / √d
    mask, reason            (T, S)      True where it may look; else why not, a number of REASONS
    weights                 (H, T, S)   softmax(scaled + bias, where it may look)
    heads, joined, out      (H, T, d)   weights v; side by side (T, D); W joined + b (T, D)
A feed-forward's: `blocks.0.ffn`
    up, gate, hidden, down  (T, hidden) W x; f(up), or f(gate) up; W hidden (T, D)
Of both
    norm, residual          (T, D)      the norm of what comes in, or (post-norm) of the sum; the sum
A block's: `blocks.0`
    output                  (T, D)
Recurrent ones': `encoder`, `decoder`, and the attention `decoder.look`
    states, hidden          (T, D)      of each token; from where the decoder sets out (N, D)
    look.*                              as an attention's, of one head, scores unscaled; k is U h or W h
    readout, output         (T, D)
The end
    logits, probabilities   (T, V)      or (classes,); of a span (T, 2); of a step (V,)
    pooled, vector          (D,)        of a whole text, before its head; of a model that makes vectors
Pictures
    pixels, patches                     bytes (C, height, width); (T, C · P · P), row by row

All other layers (BERT's `transform`, convolutions) have their output under their own name.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import torch

from regard.ensemble import Ensemble
from regard.errors import Mistake
from regard.run import Model

from .collecting import REASONS, collected, evaluating, layer, named, stack
from .kept import Trace, sides
from .reading import made, read
from .steps import stepwise

__all__ = ["REASONS", "Trace", "layer", "named", "sides", "stack", "trace"]


@overload
def trace(model: Model, inputs: Any, layers: Sequence[int] | None = None) -> Trace: ...
@overload
def trace(
    model: Model, inputs: Any, layers: Sequence[int] | None = None, *, steps: bool, **options: Any
) -> list[Trace]: ...
def trace(
    model: Model, inputs: Any, layers: Sequence[int] | None = None, *, steps: bool = False, **options: Any
) -> Trace | list[Trace]:
    """Every intermediate of a model's run on a text, a pair (text TAB other), or a picture: a `Trace`.

    An encoder-decoder reads (source, target), or source TAB target; without a target, it is the model's own
    greedy answer. `layers` keeps the blocks of these numbers only, from 0 or, negative, from the end; the
    others stay on the fast path.
    With `steps`, there is one trace for each step of writing an answer, with options as those of `ask`. A
    step's tensors are of the tokens that are new, its logits of the next one; with `num_beams` they are the
    best unfinished beam's, and `about["beam"]` are the candidates of the step, best first.
    """
    if isinstance(model.model, Ensemble):
        raise Mistake("several models at once can't be traced; load one of them")
    if options and not steps:
        raise Mistake(f"{next(iter(options))} is an option of writing step by step; add steps=True")
    inputs = str(inputs) if isinstance(inputs, Path) else inputs
    with evaluating(model.model), torch.no_grad():
        if steps:
            return stepwise(model, inputs, layers, **options)
        reading = read(model, inputs)
        assert reading.run is not None
        with collected(model.model, layers) as found:
            result = reading.run()
    whole = made(model, reading, found, result)
    whole.model, whole.given = model, inputs
    return whole

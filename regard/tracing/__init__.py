"""Every intermediate value of a run, by name: `regard.trace(model, "Hi how are
you")["decoder.0.cross.weights"]`.

A name consists of a module's name and a value's. There is no batch dimension.
Shapes: T queries, S keys, H heads, d = D / H, D width, V vocabulary.

Of a model; an encoder-decoder's names begin with `encoder.` and `decoder.`
    embed                   (T, D)      the embedding of each token or patch
    segment                 (T, 1)      the number of each token's segment, if the model has segments
    segments, positions     (T, D)      added to the embedding, if the model has them
    sum                     (T, D)      their sum; a Transformer's embeddings are first scaled by √D
    input, norm             (T, D)      the input of the first block; the final norm, if there is one
    cos, sin                (T, d/2)    the rotation of queries and keys by rotary positions
    bias                    (H, T, S)   added by positions to the scaled scores of all blocks
Of an attention: `blocks.0.attn`, `decoder.0.cross`
    Wq, Wk                  (T, D)      queries and keys before the rotation, if there is one
    q, k, v                 (H, T, d)   of each head, repeated where heads share them; k, v (H, S, d)
    scores, scaled          (H, T, S)   q kᵀ; q kᵀ / √d
    mask, reason            (T, S)      True where it may attend; why not, an index of REASONS
    weights                 (H, T, S)   softmax(scaled + bias, where it may attend)
    heads, joined, out      (H, T, d)   weights v; side by side (T, D); W joined + b (T, D)
Of a feed-forward layer: `blocks.0.ffn`
    up, gate, hidden, down  (T, hidden) W x; f(up), or f(gate) up; W hidden (T, D)
Of both
    norm, residual          (T, D)      the norm of the input, or (post-norm) of the sum; the sum
Of a block: `blocks.0`
    output                  (T, D)
Of recurrent models: `encoder`, `decoder`, and the attention `decoder.look`; a language model's have no prefix
    cells.0.*               (T, D)      gates, cells and states of a layer; of two ways, cells.0.forward.*
    carried                 (N, D)      of a step, the states after the text so far
    states, hidden          (T, D)      of each token; the decoder's first state (N, D)
    bridge, mean, first                 from the encoder's states to the first state
    look.*                              as of an attention with one head and unscaled scores; k is U h or W h
    readout, output         (T, D)
Of the output
    logits, probabilities   (T, V)      or (classes,); of a span (T, 2); of a step (V,)
    pooled, vector          (D,)        of a whole text, before its head; of a model that makes vectors
Of an image
    pixels, image                       bytes (C, height, width); normalised, as the network reads them
    patches, regions                    (T, C · P · P), row by row; of convolutions, (T, D)

All other layers (BERT's `transform`, convolutions) have their output under their own name.
"""

import math
from collections.abc import Sequence
from typing import Any, overload

import torch

from regard.decode.ensemble import Ensemble
from regard.describe.records import REASONS
from regard.describe.settings import output_vocab
from regard.describe.watch import evaluating, exclusive
from regard.errors import UserError
from regard.runs.model import Model
from regard.tracing.limits import check_size
from regard.tracing.reading import make_trace, read_input
from regard.tracing.record import record
from regard.tracing.steps import trace_steps
from regard.tracing.traces import Trace

__all__ = ["REASONS", "Trace", "trace"]


@overload
def trace(model: Model, inputs: Any, layers: Sequence[int] | None = None) -> Trace: ...
@overload
def trace(
    model: Model, inputs: Any, layers: Sequence[int] | None = None, *, steps: bool, **options: Any
) -> list[Trace]: ...
def trace(
    model: Model, inputs: Any, layers: Sequence[int] | None = None, *, steps: bool = False, **options: Any
) -> Trace | list[Trace]:
    """Trace a model's run on a text, a pair (text TAB other), or an image.

    An encoder-decoder reads (source, target), or source TAB target; by default, the target is the model's own
    greedy answer. `layers` records only the blocks of these indices, from 0 or, if negative, from the end;
    the others use the fused kernel.
    With `steps`, there is one trace for each step of generating an answer, with the options of `ask`. The
    tensors of a step are those of its new tokens, and its logits those of the next token; with `num_beams`
    they are those of the best unfinished beam, and `about["beam"]` has the step's candidates, best first.
    """
    if options and not steps:
        raise UserError(f"{next(iter(options))} is an option of writing step by step; add steps=True")
    inputs = model.open_input(inputs)
    if not steps:
        return trace_input(model, inputs, layers)
    check_single(model)
    with exclusive(model.model), evaluating(model.model), torch.no_grad():
        return trace_steps(model, inputs, layers, **options)


def trace_input(
    model: Model, inputs: Any, layers: Sequence[int] | None = None, max_numbers: float = math.inf
) -> Trace:
    """Trace a model's run on an input that is already a text or an image, never a path; raise UserError if
    the trace would have more than `max_numbers` numbers."""
    check_single(model)
    with exclusive(model.model), evaluating(model.model), torch.no_grad():
        reading = read_input(model, inputs)
        assert reading.run is not None
        lengths = {side: len(tokens) for side, tokens in reading.tokens.items()}
        check_size(
            model.model,
            lengths,
            layers,
            0 if "label" in lengths else output_vocab(model.model.config),
            max_numbers,
        )
        with record(model.model, layers) as recording:
            result = reading.run()
    result_trace = make_trace(model, reading, recording, result)
    result_trace.model, result_trace.input = model, inputs
    return result_trace


def check_single(model: Model) -> None:
    if isinstance(model.model, Ensemble):
        raise UserError("several models at once can't be traced; load one of them")

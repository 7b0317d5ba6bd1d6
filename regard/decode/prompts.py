"""Reading prompts of any lengths, and sources, as one batch.

Shapes: B rows, T tokens, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.decode.cpu_steps import speed_up

SHORT = 64  # tokens

Source = Sequence[int] | Tensor  # the input of an encoder: tokens, or an image's pixels, uint8


class Writer(Protocol):
    """A model that generates text, such as GPT. Its states have `reorder`, its config has `context`."""

    config: Any

    @property
    def start(self) -> Callable[..., tuple[Tensor, Any]]: ...
    def step(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]: ...
    def modules(self) -> Iterator[nn.Module]: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...


def attend_quickly(longest: float) -> AbstractContextManager[object]:
    """Use the best attention kernel on a GPU for rows of up to `tokens` tokens, whose number changes.

    cuDNN's, which torch prefers, is slower for short rows, and takes 0.1 s to prepare for each new shape.
    """
    return (
        sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]) if longest <= SHORT else nullcontext()
    )


def fit_context(text: Sequence[int], context: int) -> Sequence[int]:
    """The part of a text that the model reads: the whole, or its end if it is longer than the context.

    It moves by half a context at a time, to reuse the cache; its beginning depends only on the length.
    """
    hop = context - context // 2
    return text[-(-max(0, len(text) - context) // hop) * hop :]


def read_rows(
    model: Writer, windows: Sequence[Sequence[int]], sources: Sequence[Source] | None = None
) -> tuple[Tensor, Any]:
    """Call model.start on rows of any lengths, equal ones once; with sources, prompts are equally long."""
    device = next(model.parameters()).device
    source_keys = [()] * len(windows) if sources is None else [source_key(source) for source in sources]
    keys = [(s, tuple(w)) for s, w in zip(source_keys, windows, strict=True)]
    unique = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    prompt, attention_mask = pad_rows([w for _, w in unique], device, left=True)
    if sources is None:
        logits, state = model.start(prompt, attention_mask)
    else:
        if attention_mask is not None:
            raise ValueError("targets that begin with unequal numbers of tokens can't be read together")
        by_key = dict(zip(keys, sources, strict=True))
        source, attention_mask = collate_sources([by_key[key] for key in unique], device)
        logits, state = model.start(source, prompt, attention_mask)
    if len(unique) < len(keys):
        rows = torch.tensor([unique[key] for key in keys], device=device)
        state.reorder(rows)
        logits = logits[rows]
    speed_up(model, state)
    return logits, state


def source_key(source: Source) -> tuple[int, ...] | bytes:
    """A key of a source's content, to compare it with others."""
    return source.cpu().numpy().tobytes() if isinstance(source, Tensor) else tuple(source)


def collate_sources(sources: Sequence[Source], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Stack sources to one tensor, and return it with its attention mask; images have one size."""
    images = [source for source in sources if isinstance(source, Tensor)]
    if images:
        return torch.stack(images).to(device), None
    return pad_rows([source for source in sources if not isinstance(source, Tensor)], device)


def pad_rows(
    rows: Sequence[Sequence[int]], device: torch.device, left: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Stack rows to one tensor (B, T), and return it with its attention mask (None without padding)."""
    T = max(map(len, rows))
    gaps = [[0] * (T - len(row)) for row in rows]
    ids = [[*gap, *row] if left else [*row, *gap] for row, gap in zip(rows, gaps, strict=True)]
    if not any(gaps):
        return torch.tensor(ids, device=device), None
    attention_mask = [[i >= len(gap) if left else i < T - len(gap) for i in range(T)] for gap in gaps]
    return torch.tensor(ids, device=device), torch.tensor(attention_mask, device=device)

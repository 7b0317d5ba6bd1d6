"""Base classes of the models: checks of their sizes, logits, and one step of generation.

Shapes: B batch, T tokens, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.cache import Mask
from regard.describe import parts
from regard.describe.settings import check_settings

Parts = list[nn.Module | nn.Parameter]
Presets = dict[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Config:
    """The base of all configurations: presets, former names of settings, and checks of numbers."""

    PRESETS: ClassVar[Presets]
    ALIASES: ClassVar[dict[str, str]] = {}
    dim: int = 128

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class TextConfig(Config):
    """Settings of all models of texts; `vocab` is the source's if the target has its own."""

    vocab: int
    context: int = 128  # the longest text; for pairs, the longest source and the longest target
    dropout: float = 0.1


@dataclass(frozen=True, kw_only=True)
class BlocksConfig(Config):
    """Settings of all models of Transformer blocks."""

    depth: int = 4  # blocks; in an encoder-decoder, those of the encoder
    heads: int = 4
    hidden: int | None = None  # width of the feed-forward; default: its usual multiple of dim
    norm: Literal["layer", "rms"] = "layer"
    bias: bool = True  # in the blocks; BERT's heads always have biases


class LanguageModel(nn.Module):
    """A model with embeddings, and an output layer over a vocabulary: from `hidden` states to logits.

    The output layer shares its weights with the (target's) embedding where they are `tied`. A model that
    writes also has `decode(ids, state)`, which returns the hidden states of more tokens and updates the
    state.
    """

    config: Any
    hidden: Callable[..., Tensor]
    decode: Callable[..., Tensor]
    output_bias: Any  # its bias (vocab,), or None

    @property
    def output(self) -> Tensor:
        """The weights (vocab, D) of the output layer: its own, or those of the tied embedding."""
        return (self.head or self.target_embed or self.embed).weight

    def __init__(self, c: Any):
        super().__init__()
        self.config, target = c, getattr(c, "target_vocab", None)
        self.embed = nn.Embedding(c.vocab, getattr(c, "embed_dim", None) or c.dim)
        self.target_embed = None if target is None else nn.Embedding(target, c.dim)
        self.drop = nn.Dropout(getattr(c, "dropout", 0.0))
        self.head: nn.Linear | None = None

    def logits(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., vocab)"""
        return F.linear(x, self.output, self.output_bias)

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Return the logits (B, T, vocab) of all positions; the inputs are those of `hidden`."""
        return self.logits(self.hidden(*inputs, **options))

    def step(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read one more token (B, 1) of each row, or several; return the next one's logits (B, vocab)."""
        return self.logits(self.decode(ids, state)[:, -1]), state

    describe = parts.language_model

    def check_length(self, ids: Tensor, state: Any = None) -> None:
        if (length := ids.shape[1] + (state.length if state else 0)) > self.config.context:
            raise ValueError(f"{length} tokens do not fit context={self.config.context}")


class CausalLM(LanguageModel):
    """A language model that reads forwards: the state of a token does not depend on later tokens."""

    like = "gpt"  # it can be used for the tasks of a GPT
    output_bias = None

    def pooled(self, x: Tensor, attention_mask: Mask = None) -> Tensor:
        """The last token's vector (B, D), which alone depends on all tokens, Radford et al. 2018."""
        last = -1 if attention_mask is None else attention_mask.sum(1) - 1
        return x[torch.arange(len(x), device=x.device), last]

    def unused_by_head(self, pooled: bool) -> Parts:
        return [] if self.head is None else [self.head]


class EncoderDecoder(LanguageModel):
    """A language model that reads a source; `begin` makes the state that `decode` starts from."""

    decoder: Any
    begin: Callable[..., Any]

    def decode(self, target: Tensor, state: Any) -> Tensor:
        """Return the decoder's final hidden states of more target tokens, and update the state."""
        self.check_length(target, state)
        y = self.drop((self.target_embed or self.embed)(target))  # (B, T, D)
        return self.drop(self.decoder(y, state))  # (B, T, D)

    def hidden(self, source: Tensor, target: Tensor, attention_mask: Mask = None) -> Tensor:
        """The final hidden states (B, T, D), before the output layer."""
        return self.decode(target, self.begin(source, attention_mask))

    def start(self, source: Tensor, prompt: Tensor, attention_mask: Mask = None) -> tuple[Tensor, Any]:
        """Read sources and beginnings of targets (B, T). Return the next logits (B, vocab) and the state."""
        if attention_mask is not None and not attention_mask[:, 0].all():
            raise ValueError("pad sources of unequal length on the right; each begins with a real token")
        return LanguageModel.step(self, prompt, self.begin(source, attention_mask))

"""BERT: a bidirectional encoder that predicts masked tokens. Devlin et al. 2019.

Shapes: B batch, T tokens, D width.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.attention import GLOBAL_QKV, Globals
from regard.core.cache import Mask, next_positions, over_keys
from regard.core.layers import ACTIVATIONS, Stack, init_bert, make_block, make_norm
from regard.core.positions import make_positions
from regard.describe import export, parts
from regard.models.base import BlocksConfig, LanguageModel, Parts, Presets, TextConfig


@dataclass(frozen=True, kw_only=True)
class BertConfig(BlocksConfig, TextConfig):
    depth: int = 2
    heads: int = 2
    segments: int = 2  # kinds of segments in a text: first and second sentence; 0: none
    positions: Literal["none", "sinusoidal", "learned", "rotary", "relative"] = "learned"
    eps: float = 1e-12  # of the norms
    ffn: Literal["relu", "gelu", "gelu_tanh", "swiglu"] = "gelu"
    pre: bool = False  # norms before the layers instead of after them, as published
    pooler: Literal["tanh", "relu", "gelu"] = "tanh"  # relu: as DistilBERT, Sanh et al. 2019; gelu: ELECTRA
    embed_dim: int | None = None  # width of the embeddings, if it differs; as ELECTRA
    window: int | None = None  # how far away a token may attend; default: any distance
    windows: tuple[int, ...] | None = None  # the window of each layer, if they differ
    globals: int = 1  # with a window, how many first tokens attend to all tokens, and all to them: [CLS]
    global_qkv: bool = False  # these have their own projections; as Longformer, Beltagy et al. 2020

    PRESETS: ClassVar[Presets] = {  # Turc et al. 2019
        "tiny": {"context": 128, "dim": 128, "depth": 2, "heads": 2},
        "mini": {"context": 256, "dim": 256, "depth": 4, "heads": 4},
        "small": {"context": 512, "dim": 512, "depth": 4, "heads": 8},
        "base": {"context": 512, "dim": 768, "depth": 12, "heads": 12},
    }


class Bert(LanguageModel):
    """logits[:, t] scores the token at t, which may be masked in ids, given all of ids.

    With a `window`, the cost is linear in the length, Beltagy et al. 2020 (Longformer).
    """

    def __init__(self, c: BertConfig):
        super().__init__(c)
        norm, width = make_norm(c.norm, c.eps), c.embed_dim or c.dim
        self.segments = nn.Embedding(c.segments, width) if c.segments else None
        self.positions = make_positions(c, both_ways=True, **({"dim": width} if c.embed_dim else {}))
        self.embed_norm = nn.Identity() if c.pre else norm(width)
        self.project = nn.Linear(width, c.dim) if c.embed_dim else nn.Identity()
        self.blocks = Stack(make_block(c, window=w) for w in c.windows or [c.window] * c.depth)
        self.norm = norm(c.dim) if c.pre else nn.Identity()  # a post-norm block ends with a norm
        self.transform, self.transform_norm = nn.Linear(c.dim, width), norm(width)
        self.activation = ACTIVATIONS.get(c.ffn, F.gelu)
        self.pooler_activation = ACTIVATIONS.get(c.pooler, torch.tanh)
        self.bias = nn.Parameter(torch.zeros(c.vocab))
        self.pooler, self.next = nn.Linear(c.dim, c.dim), nn.Linear(c.dim, 2)
        init_bert(self)

    output_bias = property(lambda self: self.bias)

    def encode(
        self, ids: Tensor, attention_mask: Mask = None, segments: Tensor | None = None,
        blocks: Stack | None = None, globals: Globals | None = None
    ) -> Tensor:  # fmt: skip
        """A hidden state for each token of texts (B, T), padded on the right where not `attention_mask`.

        `segments` (B, T) are the tokens' segments, 0 by default. `blocks` and `globals` replace the model's
        own blocks and the configuration's number of global tokens.
        """
        self.check_length(ids)
        pos, _ = next_positions(None, ids.shape[1], ids.device)
        x = self.embed(ids)  # (B, T, D)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(ids) if segments is None else segments)  # (B, T, D)
        elif segments is not None:
            raise ValueError("segments were given, but the model has segments=0")
        x = self.project(self.drop(self.embed_norm(self.positions.add(x, pos))))  # (B, T, D)
        mask, blocks = over_keys(attention_mask), self.blocks if blocks is None else blocks
        return self.norm(blocks(x, pos, self.positions, mask, globals=globals))  # (B, T, D)

    def lm_head(self, x: Tensor) -> Tensor:
        """norm(f(W x)) of encoded tokens, all or some, before the output layer."""
        y = self.activation(self.transform(x)).to(x.dtype)  # autocast changes the type, but norms need one
        return self.transform_norm(y)  # (..., D)

    def hidden(self, ids: Tensor, attention_mask: Mask = None, segments: Tensor | None = None) -> Tensor:
        """The final hidden states of the masked language model, before the output layer."""
        return self.lm_head(self.encode(ids, attention_mask, segments))

    def pooled(self, x: Tensor, attention_mask: Mask = None) -> Tensor:
        """f(W x₀): a vector for a text, from that of its first token, [CLS]."""
        return self.pooler_activation(self.pooler(x[:, 0]))  # (B, D)

    def next_sentence(self, x: Tensor) -> Tensor:
        """Logits of yes and no: does the second sentence of an encoded text follow the first?"""
        return self.next(self.pooled(x))  # (B, 2)

    def unused_by_head(self, pooled: bool) -> Parts:
        unused = [] if pooled else [self.pooler, *self.global_projections()]
        return [self.transform, self.transform_norm, self.bias, self.next, *unused]

    def global_projections(self) -> Parts:
        """The projections that only global tokens use."""
        return [part for name, part in self.named_modules() if name.endswith(GLOBAL_QKV)]

    describe, describe_pooled = parts.bert, parts.pooled_by_layer
    graphs, stacks = export.masked_text_graphs, export.encoder_stacks

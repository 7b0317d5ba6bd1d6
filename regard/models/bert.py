"""BERT: a bidirectional encoder that predicts masked tokens. Devlin et al. 2019.

Shapes: B batch, T tokens, D width.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.cache import Mask, next_positions, over_keys
from regard.core.layers import ACTIVATIONS, Stack, init_bert, make_block, make_norm
from regard.core.positions import make_positions
from regard.describe import parts
from regard.describe.export import TEXT, Graph, StackParts
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
    pooler: Literal["tanh", "relu"] = "tanh"  # relu: as DistilBERT, Sanh et al. 2019
    window: int | None = None  # how far away a token may attend; default: any distance
    globals: int = 1  # with a window, how many first tokens attend to all, and all to them: [CLS]

    PRESETS: ClassVar[Presets] = {  # Turc et al. 2019
        "tiny": {"context": 128, "dim": 128, "depth": 2, "heads": 2},
        "mini": {"context": 256, "dim": 256, "depth": 4, "heads": 4},
        "small": {"context": 512, "dim": 512, "depth": 4, "heads": 8},
        "base": {"context": 512, "dim": 768, "depth": 12, "heads": 12},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is not None and self.positions == "relative":
            raise ValueError(f"window={self.window} does not go with positions=relative; rotary ones do")


class Bert(LanguageModel):
    """logits[:, t] scores the token at t, which may be masked in ids, given all of ids.

    With a `window`, the cost is linear in the length, Beltagy et al. 2020 (Longformer), but global tokens
    have no projections of their own.
    """

    def __init__(self, c: BertConfig):
        super().__init__(c)
        norm = make_norm(c.norm, c.eps)
        self.segments = nn.Embedding(c.segments, c.dim) if c.segments else None
        self.positions = make_positions(c, both_ways=True)
        self.embed_norm = nn.Identity() if c.pre else norm(c.dim)
        self.blocks = Stack(make_block(c) for _ in range(c.depth))
        self.norm = norm(c.dim) if c.pre else nn.Identity()  # a post-norm block ends with a norm
        self.transform, self.transform_norm = nn.Linear(c.dim, c.dim), norm(c.dim)
        self.activation = ACTIVATIONS.get(c.ffn, F.gelu)
        self.bias = nn.Parameter(torch.zeros(c.vocab))
        self.pooler, self.next = nn.Linear(c.dim, c.dim), nn.Linear(c.dim, 2)
        init_bert(self)

    output_bias = property(lambda self: self.bias)

    def encode(
        self,
        ids: Tensor,
        attention_mask: Mask = None,
        segments: Tensor | None = None,
        blocks: Stack | None = None,
    ) -> Tensor:
        """A hidden state for each token of texts (B, T), padded on the right where not `attention_mask`.

        `segments` (B, T) are the tokens' segments, 0 by default. Other `blocks` may replace the model's own.
        """
        self.check_length(ids)
        pos, _ = next_positions(None, ids.shape[1], ids.device)
        x = self.embed(ids)  # (B, T, D)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(ids) if segments is None else segments)  # (B, T, D)
        elif segments is not None:
            raise ValueError("segments were given, but the model has segments=0")
        x = self.drop(self.embed_norm(self.positions.add(x, pos)))  # (B, T, D)
        x = (self.blocks if blocks is None else blocks)(x, pos, self.positions, over_keys(attention_mask))
        return self.norm(x)  # (B, T, D)

    def lm_head(self, x: Tensor) -> Tensor:
        """norm(f(W x)) of encoded tokens, all or some, before the output layer."""
        y = self.activation(self.transform(x)).to(x.dtype)  # autocast changes the type, but norms need one
        return self.transform_norm(y)  # (..., D)

    def hidden(self, ids: Tensor, attention_mask: Mask = None, segments: Tensor | None = None) -> Tensor:
        """The final hidden states of the masked language model, before the output layer."""
        return self.lm_head(self.encode(ids, attention_mask, segments))

    def pooled(self, x: Tensor, attention_mask: Mask = None) -> Tensor:
        """tanh(W x₀): a vector for a text, from that of its first token, [CLS]."""
        y = self.pooler(x[:, 0])  # (B, D)
        return torch.tanh(y) if self.config.pooler == "tanh" else F.relu(y)  # (B, D)

    def next_sentence(self, x: Tensor) -> Tensor:
        """Does the second sentence of an encoded text follow the first? Logits of yes and of no."""
        return self.next(self.pooled(x))  # (B, 2)

    def unused_by_head(self, pooled: bool) -> Parts:
        return [self.transform, self.transform_norm, self.bias, self.next, *([] if pooled else [self.pooler])]

    describe = parts.bert

    describe_pooled = parts.pooled_by_layer

    def graphs(self) -> list[Graph]:
        inputs = {"ids": TEXT, "mask": TEXT} | ({} if self.segments is None else {"segments": TEXT})
        return [Graph("model", self.forward, inputs)]

    def stacks(self) -> list[StackParts]:
        more: dict[str, Any] = {"embed_norm": self.embed_norm, "segments": self.segments}
        more |= {"encode": self.encode, "pooler": self.pooler, "pooler_activation": self.config.pooler}
        return [StackParts("encoder", self.embed, self.positions, self.blocks, self.norm, **more)]

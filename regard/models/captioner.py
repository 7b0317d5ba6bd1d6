"""Image captions: an encoder makes vectors of regions, a decoder attends to them for every word.

Shapes: B batch, C channels, N pixels each way, S regions, T words, D width.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.attention import Additive
from regard.core.cache import State, next_positions
from regard.core.layers import Stack, make_block
from regard.core.positions import Learned, Sinusoidal
from regard.core.recurrent import Decoder, Hidden, RecurrentAttention, RecurrentState, init_recurrent
from regard.describe import export, images, parts
from regard.models.base import EncoderDecoder, Presets, TextConfig
from regard.models.vit import ViT, ViTConfig
from regard.vision.cnn import ConvNet, EfficientNet


@dataclass(frozen=True, kw_only=True)
class CaptionerConfig(TextConfig):
    size: int = 32  # of an image, in pixels each way
    channels: int = 3
    context: int = 64  # the longest caption
    encoder: Literal["cnn", "vit", "efficientnet"] = "cnn"
    decoder: Literal["lstm", "transformer"] = "lstm"
    attention: Literal["soft", "hard"] = "soft"  # of an LSTM: to the mean of all regions, or to one
    patch: int = 4  # pixels of a region, each way; EfficientNet has its own
    zoom: int = 1  # the factor by which the image is enlarged first
    depth: int = 1  # of the encoder: blocks; of a CNN, at each size
    decoder_depth: int = 1
    heads: int = 4  # of Transformers

    PRESETS: ClassVar[Presets] = {
        "tiny": {"context": 64, "dim": 64, "depth": 1, "decoder_depth": 1, "heads": 4},
        "small": {"context": 64, "dim": 256, "depth": 2, "decoder_depth": 2, "heads": 4},
        "base": {"context": 64, "dim": 512, "depth": 2, "decoder_depth": 3, "heads": 8},
    }

    @property
    def side(self) -> int:
        """Regions each way."""
        region = EfficientNet.stride if self.encoder == "efficientnet" else self.patch
        return -(-self.size * self.zoom // region)


def make_net(c: CaptionerConfig) -> nn.Module:
    """The network that makes vectors of regions."""
    if c.encoder == "efficientnet":
        return EfficientNet(c.channels)
    if c.encoder == "cnn":
        return ConvNet(c.channels, c.dim, c.patch.bit_length() - 1, c.depth)
    same = {name: getattr(c, name) for name in ("channels", "patch", "dim", "depth", "heads", "dropout")}
    return ViT(ViTConfig(size=c.size * c.zoom, pool="mean", **same))


class ImageEncoder(nn.Module):
    """The regions of an image, row by row, with positions, because the decoder averages over them."""

    def __init__(self, c: CaptionerConfig):
        super().__init__()
        self.net, self.zoom = make_net(c), c.zoom
        self.project = nn.Linear(EfficientNet.width if c.encoder == "efficientnet" else c.dim, c.dim)
        self.norm, self.drop = nn.LayerNorm(c.dim), nn.Dropout(c.dropout)
        self.positions = Learned(c.side**2, c.dim, c.heads)

    def forward(self, pixels: Tensor) -> Tensor:
        x = pixels if pixels.is_floating_point() else pixels / 255  # (B, C, N, N)
        x = ((255 * x - 127) / 128).to(self.project.weight.dtype)  # (B, C, N, N)
        if self.zoom > 1:
            x = F.interpolate(x, scale_factor=self.zoom, mode="bilinear")
        x = self.project(self.net(x))  # (B, S, D)
        pos = torch.arange(x.shape[1], device=x.device)
        return self.drop(self.norm(self.positions.add(x, pos)))  # (B, S, D)

    describe = images.image_encoder


class GatedAttention(RecurrentAttention):
    """β c, where β = σ(W h) is how much the image matters for this word, Xu et al. 2015, 4.2.1."""

    def __init__(self, dim: int):
        super().__init__("additive", dim)
        self.gate = nn.Linear(dim, 1)

    def output(self, q: Tensor, y: Tensor) -> Tensor:
        return self.gate(q).sigmoid() * y


class HardAttention(GatedAttention):
    """Attention to one region: in training drawn by the weights, else the most likely, Xu et al. 2015, 4.1.

    All others are masked. No gradient passes through the choice: `scores` learn by the task's REINFORCE.
    """

    score: Additive
    baseline: Tensor

    def __init__(self, dim: int, context: int):
        super().__init__(dim)
        self.register_buffer("baseline", torch.zeros(context))  # the usual reward of each word, so far

    def forward(self, q: Tensor, state: RecurrentState) -> Tensor:
        state.keys = self.project_keys(state.source) if state.keys is None else state.keys
        scores = torch.tanh(F.linear(q, self.score.W.weight) + state.keys) @ self.score.w.weight[0]  # (B, S)
        before, soft = state.attention_mask, torch.zeros_like(scores[:, :1], dtype=torch.bool)
        if self.training:  # the largest of s - log(E), E ~ Exp(1), is drawn by softmax(s), Gumbel 1954
            scores = scores - torch.empty_like(scores).exponential_().log()
            # Half of the images keep all regions: this trains the scores with less variance.
            soft = torch.rand_like(scores[:, :1]) < 0.5 if before is None else before.all(1, keepdim=True)
        state.attention_mask = F.one_hot(scores.argmax(-1), scores.shape[-1]).bool() | soft
        return super().forward(q, state)


class SoftAttentionDecoder(Decoder):
    """LSTM with attention over regions, Xu et al. 2015; it starts from their mean, section 3.1.2."""

    def __init__(self, c: CaptionerConfig):
        super().__init__("lstm", "additive", c.dim, c.decoder_depth, dropout=c.dropout)
        self.look = HardAttention(c.dim, c.context) if c.attention == "hard" else GatedAttention(c.dim)
        self.first = nn.Linear(c.dim, 2 * c.decoder_depth * c.dim)

    def first_hidden(self, regions: Tensor) -> Hidden:
        first = torch.tanh(self.first(regions.mean(1))).unflatten(1, (2, -1, regions.shape[-1]))
        return first.permute(1, 2, 0, 3).contiguous().unbind()

    def forward(self, y: Tensor, state: RecurrentState) -> Tensor:
        state.hidden = state.hidden or self.first_hidden(state.source)
        return super().forward(y, state)


class TransformerDecoder(nn.Module):
    """The Transformer's decoder, Vaswani et al. 2017, with norms before the layers."""

    def __init__(self, c: CaptionerConfig):
        super().__init__()
        self.positions, self.scale = Sinusoidal(c.context, c.dim, c.heads), math.sqrt(c.dim)
        self.blocks = Stack(make_block(c, causal=True, cross=True) for _ in range(c.decoder_depth))
        self.norm = nn.LayerNorm(c.dim)

    def start(self, regions: Tensor) -> State:
        return self.blocks.new_state(encoded=regions)

    def forward(self, y: Tensor, state: State) -> Tensor:
        pos, mask = next_positions(state, y.shape[1], y.device)
        x = self.positions.add(self.scale * y, pos)  # (B, T, D)
        x = self.blocks(x, pos, self.positions, mask, state)  # (B, T, D)
        return self.norm(x)  # (B, T, D)

    describe = parts.caption_decoder


class Captioner(EncoderDecoder):
    """logits[:, t] scores the word that follows target[:, : t + 1], given the image, uint8 (B, C, N, N)."""

    output_bias = None

    def __init__(self, c: CaptionerConfig):
        encoder = ImageEncoder(c)
        super().__init__(c)
        self.encoder = encoder
        self._modules["embed"] = self._modules.pop("embed")  # their order decides how gradient norms round
        self.decoder = SoftAttentionDecoder(c) if c.decoder == "lstm" else TransformerDecoder(c)
        # Pretrained weights of the encoder may learn slowly, or not at all.
        self.blocks: list[nn.Module] = [self.encoder.net, self.decoder]
        init_recurrent(self)

    def begin(self, source: Tensor, attention_mask: None = None) -> Any:
        return self.decoder.start(self.encoder(source))

    describe, graphs = parts.encoder_decoder, export.caption_graphs

"""Convolutions that turn a picture into a grid of vectors, one for each of its regions.

Shapes: B batch, S regions, row by row, D width of a region's vector. K channels inside.
"""

from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.layers import Residual
from regard.describe import images


class SamePadConv2d(nn.Conv2d):
    """A convolution whose output is as large as its input, divided by the stride; an odd pixel of padding
    goes to the right and below, as in TensorFlow."""

    def forward(self, x: Tensor) -> Tensor:
        (k, *_), (s, *_) = self.kernel_size, self.stride
        down, across = (max((-(-n // s) - 1) * s + k - n, 0) for n in x.shape[-2:])
        x = F.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2))
        return super().forward(x)


class ConvNet(nn.Module):
    """x + W₂ relu(norm(W₁ relu(norm(x)))), He et al. 2016, `depth` times at every size, halved by strides.

    Norms are over a whole picture, Wu & He 2018: batch norms would make the rows of a batch depend on each
    other.
    """

    def __init__(self, channels: int, dim: int, halvings: int, depth: int):
        super().__init__()
        norm, layers = partial(nn.GroupNorm, 1), list[nn.Module]()
        for i in range(1 - halvings, 1):
            K = max(1, dim >> -i)
            layers.append(SamePadConv2d(channels, K, 3, 2))
            for _ in range(depth):
                f = nn.Sequential(
                    nn.ReLU(), SamePadConv2d(K, K, 3), norm(K), nn.ReLU(), SamePadConv2d(K, K, 3)
                )
                layers.append(Residual(K, f, norm, pre=True, dropout=0.0))
            channels = K
        self.layers = nn.Sequential(*layers, norm(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).flatten(2).mT  # (B, S, D)

    describe = images.conv_net


class InvertedResidual(nn.Module):
    """Widen, convolve each channel by itself, narrow again: Sandler et al. 2018, without squeezing."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, widen: int):
        super().__init__()
        K = inputs * widen
        self.expand = SamePadConv2d(inputs, K, 1) if widen > 1 else None
        self.depthwise = SamePadConv2d(K, K, kernel, stride, groups=K)
        self.project = SamePadConv2d(K, outputs, 1)
        self.adds = inputs == outputs and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else F.relu6(self.expand(x))
        y = self.project(F.relu6(self.depthwise(y)))
        return x + y if self.adds else y


LITE0 = [  # repeats, kernel, stride, widening, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
]


class EfficientNet(nn.Module):
    """EfficientNet-lite0, Tan & Le 2019, a region for every 32 pixels each way. Its batch norms are merged
    into the convolutions, so their statistics no longer change."""

    stride, width = 32, 1280

    def __init__(self, channels: int = 3) -> None:
        if channels != 3:
            raise ValueError(f"{channels=}: EfficientNet reads images in colour; give 3")
        super().__init__()
        self.stem = SamePadConv2d(3, 32, 3, 2)
        blocks, inputs = [], 32
        for repeats, kernel, stride, widen, outputs in LITE0:
            for i in range(repeats):
                blocks.append(InvertedResidual(inputs, outputs, kernel, 1 if i else stride, widen))
                inputs = outputs
        self.blocks = nn.ModuleList(blocks)
        self.head = SamePadConv2d(inputs, self.width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return F.relu6(self.head(x)).flatten(2).mT

    describe = images.efficient_net

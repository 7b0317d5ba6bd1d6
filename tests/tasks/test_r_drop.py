"""R-Drop: the loss by hand, in parts, and in training."""

import pytest
import torch
from torch.nn import functional as F

from helpers.errors import user_error
from helpers.runs import at_step, rows, same, stopped, tiny, write_data
from regard.tasks import r_drop as module
from regard.tasks.classify import ClassifyConfig
from regard.tasks.loss import IGNORED, cross_entropy
from regard.tasks.pairs import TranslateConfig
from regard.tasks.r_drop import r_drop, r_drop_of_words, repeat_rows
from regard.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("quick")


def test_it_is_half_of_equation_4():
    torch.manual_seed(0)
    logits, targets = torch.randn(10, 7, dtype=torch.float64), torch.tensor([3, 0, IGNORED, 6, 1])
    p, q = logits.softmax(-1).chunk(2)
    counts = targets != IGNORED
    divergences = [(a * (a / b).log()).sum(-1)[counts].sum() for a, b in ((p, q), (q, p))]
    nll = -sum(x[counts].gather(1, targets[counts, None]).log().sum() for x in (p, q))
    expected = (nll + 3.0 / 2 * sum(divergences)) / 2  # alpha = 3
    torch.testing.assert_close(r_drop(logits, targets, 3.0), expected)


def test_two_passes_that_agree_are_the_plain_loss():
    x, W, targets = torch.randn(2, 3, 5), torch.randn(11, 5), torch.randint(11, (2, 3))
    bias = torch.randn(11)
    for smoothing in (0.0, 0.1):
        plain = cross_entropy(x, W, targets, smoothing, bias)
        torch.testing.assert_close(r_drop_of_words(*repeat_rows(x), W, targets, 5.0, smoothing, bias), plain)


def test_in_parts_it_is_the_same(monkeypatch):
    x, W, targets = (
        torch.randn(26, 5, requires_grad=True),
        torch.randn(11, 5, requires_grad=True),
        torch.randint(11, (13,)),
    )
    results = []
    for at_once in (10**6, 2 * 11 * 4):  # four positions at a time
        monkeypatch.setattr(module, "LOGITS_AT_ONCE", at_once)
        loss = r_drop_of_words(x, W, targets, 2.0, 0.1)
        results.append([loss, *torch.autograd.grad(loss, [x, W])])
    for undivided, parts in zip(*results, strict=True):
        torch.testing.assert_close(undivided, parts)


def test_class_weights_count():
    logits, targets, weights = torch.randn(6, 4), torch.tensor([0, 3, 1]), torch.tensor([1.0, 2.0, 3.0, 0.5])
    twice_same = torch.cat([logits[:3]] * 2)
    expected = F.cross_entropy(logits[:3], targets, weights, reduction="sum")
    torch.testing.assert_close(r_drop(twice_same, targets, 1.0, weights=weights), expected)


@pytest.mark.parametrize("case", ["translate-transformer", "translate-gru", "classify-bert"])
def test_training_is_resumed_bit_for_bit_and_evaluated_plainly(case, tmp_path):
    data = write_data(case, tmp_path)
    settings = {"case": case, "steps": 5, "train__evaluate": 5, "model__dropout": 0.2}
    tiny(data, tmp_path / "straight", **settings, task__r_drop=2.0)
    with stopped(Trainer, "train_step", at_step(3)):
        tiny(data, tmp_path / "out", **settings, task__r_drop=2.0)
    tiny(data, tmp_path / "out", **settings, task__r_drop=2.0, resume=True)
    same(tmp_path / "straight", tmp_path / "out")
    tiny(data, tmp_path / "plain", **settings)
    first, plain = (rows(tmp_path / name)[0]["loss"] for name in ("straight", "plain"))
    assert first != plain


def test_it_is_refused_where_it_would_do_nothing(tmp_path):
    pairs, labels = (write_data(case, tmp_path) for case in ("translate-gru", "classify-t5"))
    of_pairs = {"case": "translate-transformer", "steps": 1, "task__r_drop": 1.0}
    user_error(lambda: tiny(pairs, tmp_path / "out", **of_pairs), "task.r_drop", "model.dropout")
    written = {"case": "classify-t5", "steps": 1, "task__r_drop": 1.0, "model__dropout": 0.1}
    user_error(lambda: tiny(labels, tmp_path / "out", **written), "task.r_drop")
    for config, name in ((TranslateConfig, "translate"), (ClassifyConfig, "classify")):
        with pytest.raises(ValueError, match="r_drop"):
            config(name=name, r_drop=-1.0)

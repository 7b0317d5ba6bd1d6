"""Hard attention of captioners: one region for each word, learned by REINFORCE."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

import regard
from helpers.errors import user_error
from helpers.runs import unmeasured, write_captions
from regard.describe.watch import watch
from regard.files.tensors import read_tensors
from regard.models import Captioner, CaptionerConfig
from regard.runs.recipe import fill
from regard.tasks.caption import MEMORY, Caption, CaptionConfig, CaptionData, log_probabilities
from regard.tasks.loss import IGNORED
from regard.tasks.request import DataRequest
from regard.training.build import train

TINY = {"model.dim": 16, "model.heads": 2, "data.vocab": 320, "train.batch": 7, "train.device": "cpu"}
REGIONS = 9  # of 12 x 12 pixels, 4 x 4 each


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_captions(tmp_path_factory.mktemp("captions") / "caption.tsv")


def setting(table: str, **settings: Any) -> tuple[Caption, Captioner, tuple[Tensor, ...]]:
    config = CaptionConfig(name="caption", **settings)
    corpus = Caption.read(DataRequest([table], (), CaptionData(vocab=320, holdout=0.2), config, 23))
    task = Caption(CaptionConfig(**vars(config) | corpus.task_settings), corpus.tokenizer, 23)
    torch.manual_seed(1)
    sizes = {"vocab": task.tokenizer.vocab, "size": 12, "context": 23, "dim": 16, "heads": 2, "dropout": 0.0}
    model = Captioner(CaptionerConfig(**sizes, attention="hard"))
    samples = task.samples(corpus.train, 5, 6, None)
    return task, model, task.batch(samples, samples.rows(0))


def run(model: Captioner, pixels: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The hidden states, and the scores and weights of every word (B, T, S)."""
    with watch(model.decoder) as records:
        hidden = model.hidden(pixels, target)
    parts = (torch.cat([r[name][:, 0] for r in records["look"]], dim=1) for name in ("scores", "weights"))
    return hidden, *parts  # type: ignore[return-value]


def test_weights_are_one_hot_and_the_likeliest_when_asked(table: str) -> None:
    _, model, (pixels, _, target, _) = setting(table)
    model.eval()
    _, scores, weights = run(model, pixels, target)
    assert torch.equal(weights, F.one_hot(scores.argmax(-1), REGIONS).float())
    assert torch.equal(run(model, pixels, target)[2], weights)


def test_regions_are_drawn_by_the_softmax_of_the_scores(table: str) -> None:
    _, model, (pixels, *_) = setting(table)
    model.train()
    with torch.no_grad():
        model.decoder.look.score.w.weight.mul_(5)  # so that the weights differ
        look, count = model.decoder.look, 20_000
        state = model.begin(pixels[:1].expand(count, -1, -1, -1)[:1])
        state.source = state.source.expand(count, -1, -1)
        q = model.decoder.first_hidden(state.source[:1])[0][-1][:, None].expand(count, -1, -1)
        with watch(model.decoder) as records:
            torch.manual_seed(3)
            look(q, state)
    (record,) = records["look"]
    weights = record["weights"][:, 0, 0]
    chosen = weights.amax(1) == 1  # the others keep all regions
    assert chosen.float().mean() == pytest.approx(0.5, abs=0.02)
    shares = weights[chosen].mean(0)
    expected = record["scores"][0, 0, 0].softmax(-1)
    assert expected.max() > 1.5 * expected.min()
    assert_close(shares, expected, atol=4 * math.sqrt(0.5 / count), rtol=0)


def test_the_loss_has_the_gradient_of_reinforce(table: str) -> None:
    """Xu et al. 2015, eq. 12, written out word by word."""
    task, model, (pixels, how, target, following) = setting(table, reward=0.7, entropy=0.3, smoothing=0.0)
    model.train()
    with torch.no_grad():
        model.decoder.look.baseline.copy_(torch.linspace(-9, -1, 23))
    before = model.decoder.look.baseline.clone()
    torch.manual_seed(4)
    loss = task.loss(model, pixels, how, target, following)
    loss.backward()
    actual = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    after = model.decoder.look.baseline.clone()

    model.zero_grad()
    torch.manual_seed(4)
    hidden, scores, chosen = run(model, pixels, target)
    log_p = model.logits(hidden).log_softmax(-1)
    want, plain = torch.zeros(()), torch.zeros(())
    rewards: dict[int, list[float]] = {}
    for b, row in enumerate(following):
        n = int((row != IGNORED).sum())
        words = log_p[b, range(n), row[:n]]
        plain = plain - words.sum()
        for t in range(n):
            alpha = scores[b, t].softmax(-1)
            reward = words[t:].sum().item()
            rewards.setdefault(t, []).append(reward)
            if chosen[b, t].max() == 1:
                want = want - 0.7 * (reward - before[t]) * alpha[chosen[b, t].argmax()].log()
            want = want + 0.3 * (alpha * alpha.log()).sum()
    assert 0 < (chosen.amax(-1) == 1).float().mean() < 1  # half of the images keep all regions
    (plain + want).backward()
    assert_close(loss, plain)
    for name, p in model.named_parameters():
        if p.grad is not None:
            assert_close(actual[name], p.grad, atol=1e-4, rtol=1e-3, msg=lambda m, name=name: f"{name}: {m}")
    assert actual["decoder.look.score.w.weight"].abs().sum() > 0
    for t, several in rewards.items():
        mean = sum(several) / len(several)
        assert after[t] == pytest.approx(float(MEMORY * before[t] + (1 - MEMORY) * mean), rel=1e-4)
    assert torch.equal(after[len(rewards) :], before[len(rewards) :])


def test_log_probabilities_are_those_of_the_right_words(table: str) -> None:
    _, model, (pixels, _, target, following) = setting(table)
    model.eval()
    hidden = model.hidden(pixels, target)
    log_p = model.logits(hidden).log_softmax(-1)
    expected = log_p.gather(-1, following.clamp(min=0)[..., None])[..., 0] * (following != IGNORED)
    assert_close(log_probabilities(model, hidden, following), expected)


def test_a_choice_that_pays_becomes_likelier(table: str) -> None:
    """A bandit: of nine regions one has a reward, and after a while it is the one that is chosen."""
    task, model, _ = setting(table, reward=1.0, entropy=0.0)
    look = model.decoder.look
    scores = torch.zeros(1, 1, REGIONS, requires_grad=True)
    optimizer, rng = torch.optim.SGD([scores], lr=0.5), torch.Generator().manual_seed(5)
    for _ in range(300):
        choice = torch.multinomial(scores[0, 0].detach().softmax(-1), 1, generator=rng)
        reward = -torch.ones(1, 1) * (choice.item() != 4)
        chosen = F.one_hot(choice, REGIONS)[None].float()
        optimizer.zero_grad()
        task.reinforce(look, reward, scores, chosen, torch.ones(1, 1, dtype=torch.bool)).backward()
        optimizer.step()
    assert scores[0, 0].softmax(-1)[4] > 0.9


def test_resumed_is_uninterrupted(table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unmeasured(monkeypatch)
    settings = TINY | {"model.attention": "hard", "train.save": 2, "train.schedule": "noam"}
    train("caption", table, out=tmp_path / "parts", steps=2, set=settings)
    train("caption", table, out=tmp_path / "whole", steps=4, set=settings)
    train("caption", table, out=tmp_path / "parts", steps=4, resume=True)
    path = Path("checkpoints") / "step-4" / "model.safetensors"
    undivided, parts = (read_tensors(tmp_path / name / path) for name in ("whole", "parts"))
    assert undivided["decoder.look.baseline"].abs().sum() > 0
    assert all(torch.equal(t, parts[name]) for name, t in undivided.items())
    model = regard.load(tmp_path / "parts", "cpu")
    picture = model.open_input(str(Path(table).with_suffix("") / "3.png"))
    weights, _, _ = model.task.cross_attention(model.model, picture, "fox 3")
    assert weights.flatten(1).amax(1).tolist() == [1.0] * len(weights)


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="hard"):
        CaptionerConfig(vocab=5, attention="hard", decoder="transformer")
    for name in ("reward", "entropy"):
        user_error(lambda name=name: fill("task", {"name": "caption", name: -1.0}, CaptionConfig), name)

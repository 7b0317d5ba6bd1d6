"""Several models as one: against the mean of their probabilities, computed directly."""

import pytest
import torch
from torch import nn

from helpers.errors import user_error
from regard.decode.beam import beam_search
from regard.decode.ensemble import Ensemble, States, mean_logits
from regard.decode.generate import generate
from regard.decode.sampling import Sampling
from regard.models import MODELS
from regard.runs.ensemble import ensemble
from regard.runs.model import Model
from regard.tasks import Chat, ChatConfig, Translate, TranslateConfig, Write, WriteConfig
from regard.text.tokenizer_kinds import train_tokenizer

VOCAB, CONTEXT, BEGIN, END = 17, 13, 1, 2
SIZES = {"vocab": VOCAB, "dim": 8, "depth": 1, "dropout": 0.0, "tied": False}


def build(kind="transformer", context=CONTEXT, **settings):
    cls, config, _ = MODELS[kind]
    own = {"heads": 2} if kind in ("transformer", "gpt") else {}
    model = cls(config(**SIZES | own | {"context": context} | settings)).double().eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight)
    return model


@pytest.fixture
def pair():
    """Models of different families."""
    return [build("transformer"), build("lstm", attention="additive")]


@pytest.fixture
def inputs():
    attention_mask = torch.arange(7) < torch.tensor([[7], [3], [5]])
    return torch.randint(3, VOCAB, (3, 7)), torch.randint(3, VOCAB, (3, 5)), attention_mask


def likely(model, *inputs):
    return model(*inputs).softmax(-1)


def test_two_equal_models_are_the_model(inputs):
    model = build()
    both = Ensemble([model, model])
    expected = model(*inputs).log_softmax(-1).float()
    torch.testing.assert_close(both(*inputs).float(), expected)
    sources = [row[mask].tolist() for row, mask in zip(inputs[0], inputs[2], strict=True)]
    for sampling in (Sampling(max_new_tokens=9, temperature=0), Sampling(max_new_tokens=9, seed=3)):
        alone, together = (
            list(generate(m, [[BEGIN]] * 3, sampling, sources=sources, end=END)) for m in (model, both)
        )
        assert alone == together
        assert len(alone) > 2


def test_the_mean_of_the_probabilities(pair, inputs):
    expected = torch.stack([likely(model, *inputs) for model in pair]).mean(0)
    logits = Ensemble(pair)(*inputs)
    torch.testing.assert_close(logits.exp(), expected.float())
    assert (expected - likely(pair[0], *inputs)).abs().max() > 0.1
    torch.testing.assert_close(Ensemble(pair).hidden(*inputs), logits)
    three = mean_logits(
        [torch.log(torch.tensor([[0.2, 0.8]])), torch.zeros(1, 2), 70 + torch.tensor([[0.0, 99.0]])]
    )
    torch.testing.assert_close(three.exp(), torch.tensor([[0.7 / 3, 2.3 / 3]]))


def test_stepwise_is_full(pair, inputs):
    source, target, attention_mask = inputs
    both = Ensemble(pair)
    full = both(source, target, attention_mask)
    logits, state = both.start(source, target[:, :2], attention_mask)
    torch.testing.assert_close(logits, full[:, 1])
    for t in range(2, 5):
        if t == 3:  # rows in another order, one of them twice
            order = torch.tensor([2, 0, 0])
            state.reorder(order)
            full, target = full[order], target[order]
        logits, state = both.step(target[:, t : t + 1], state)
        torch.testing.assert_close(logits, full[:, t])


def test_beams_move_in_both(pair, inputs):
    """Scores equal those of a full forward pass; a state that is not reordered would give others."""
    source, _, attention_mask = inputs
    both = Ensemble(pair)
    logits, state = both.start(source, torch.full((3, 1), BEGIN), attention_mask)
    moved = []

    class Watched(States):
        def reorder(self, rows):
            moved.append(rows.tolist())
            super().reorder(rows)

    def step(ids, state):
        logits, state = both.step(ids, state)
        return logits, Watched(state.each)

    options = {"beams": 3, "end": END, "max_new_tokens": 7}
    best = beam_search(step, logits, Watched(state.each), **options)
    assert any(rows != list(range(len(rows))) for rows in moved[1:])
    for row, hypotheses in enumerate(best):
        for h in hypotheses:
            ids = torch.tensor([*h.tokens, END][:7])
            target = torch.cat([torch.tensor([BEGIN]), ids[:-1]])[None]
            each = [likely(m, source[row : row + 1, attention_mask[row]], target) for m in pair]
            words = torch.stack(each).mean(0)[0].gather(1, ids[:, None]).log().sum()
            assert h.score == pytest.approx(words.item() / len(ids), abs=1e-4)


def test_the_smallest_context_holds(pair):
    both = Ensemble([build(context=11), build(context=7), build(context=13)])
    assert both.config.context == 7
    steps = list(generate(both, [[BEGIN]], Sampling(max_new_tokens=99, temperature=0), sources=[[3, 4]]))
    assert len(steps) == 7


# Of runs


def model(cls, config, letters="abcdefgh ", folder=None, kind="transformer", **settings):
    tokenizer = train_tokenizer("char", [letters], 0, cls.specials)
    module = build(kind, vocab=tokenizer.vocab, **settings)
    generation = cls.generation | {"max_new_tokens": 5}
    return Model(module, cls(config, tokenizer, module.config.context), generation, folder)


TRANSLATE, CHAT = TranslateConfig(name="translate"), ChatConfig(name="chat")


def test_another_vocabulary_or_task_is_refused(tmp_path):
    mine = model(Translate, TRANSLATE, folder=tmp_path / "mine")
    other = model(Translate, TRANSLATE, "abcdefg ", folder=tmp_path / "other")
    user_error(lambda: ensemble([mine, other]), tmp_path / "other", tmp_path / "mine", "data.tokenizer=")
    chat = model(Chat, CHAT, folder=tmp_path / "chat")
    user_error(lambda: ensemble([mine, chat]), tmp_path / "chat", "another task")


def test_an_ensemble_is_asked_like_a_model():
    first = model(Translate, TRANSLATE)
    second = model(Translate, TRANSLATE, kind="gru", context=11)
    both = ensemble([first, second])
    assert both.task.context == 11
    assert both.generation == first.generation
    assert both.task.tokenizer is first.tokenizer
    texts = ["abc", "", "had a bag", "he fed a cab and a bed"]
    answers = both.ask(texts)
    assert answers == [both.ask(text) for text in texts]
    doubled = ensemble([first, first])
    assert doubled.ask(texts[:2]) == first.ask(texts[:2])
    scores = [[a.score for a in m.answers("abc", num_return_sequences=3)[0]] for m in (doubled, first)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


@pytest.mark.parametrize("cls", [Translate, Write])
def test_its_loss(tmp_path, cls):
    """-log of the mean probability of every target; never worse than the mean of the losses."""
    path = tmp_path / ("a.tsv" if cls is Translate else "a.txt")
    path.write_text("abc\tcab\nhad a bag\tfed\n")
    if cls is Translate:
        models = [model(Translate, TRANSLATE), model(Translate, TRANSLATE, kind="rnn")]
    else:
        letters, config = "abcdefgh \t\n", WriteConfig(name="write")
        models = [model(Write, config, letters, kind="gpt") for _ in "ab"]
    both = ensemble(models)
    scores = both.score(str(path))
    assert scores["loss"] < sum(m.score(str(path))["loss"] for m in models) / 2
    total = count = 0.0
    for *inputs, following in both.task.evaluation_batches(both.task.held_out([str(path)]), 1):
        if cls is Translate:
            source, attention_mask, target = inputs
            inputs = [source, target, attention_mask]
        words = torch.stack([likely(m.model, *inputs) for m in models]).mean(0)
        total -= words.gather(2, following[..., None]).log().sum().item()
        count += following.numel()
    assert scores["loss"] == pytest.approx(total / count, rel=1e-5)

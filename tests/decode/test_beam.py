"""Beam search: against exhaustive search, against Hugging Face's, and its limits and errors."""

import itertools
import math

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from regard.decode.beam import beam_search, highest, penalize_length
from regard.decode.sampling import Sampling, beam_processor
from regard.models import GPT, GPTConfig

END = 0


class Table:
    """A "model" whose next-token logits are a fixed random function of everything read so far."""

    def __init__(self, vocab, seed=0):
        self.vocab, self.seed = vocab, seed

    def logits(self, text):
        noise = torch.Generator().manual_seed(hash((self.seed, *text)) % 2**31)
        return 2 * torch.randn(self.vocab, generator=noise)

    def start(self, prompts):
        state = State([list(p) for p in prompts])
        return torch.stack([self.logits(t) for t in state.texts]), state

    def step(self, ids, state):
        state.texts = [[*t, i] for t, i in zip(state.texts, ids[:, 0].tolist(), strict=True)]
        return torch.stack([self.logits(t) for t in state.texts]), state


class State:
    def __init__(self, texts):
        self.texts = texts

    def reorder(self, rows):
        self.texts = [list(self.texts[i]) for i in rows.tolist()]


def everything(model, prompt, longest, penalty):
    """All possible answers, best first."""
    hypotheses = []
    for n in range(1, longest + 1):
        for text in itertools.product(range(model.vocab), repeat=n):
            if END in text[:-1] or (text[-1] != END and n < longest):
                continue
            total = sum(
                model.logits([*prompt, *text[:i]]).log_softmax(-1)[token].item()
                for i, token in enumerate(text)
            )
            hypotheses.append((total / n**penalty, [i for i in text if i != END]))
    return sorted(hypotheses, reverse=True)


@pytest.mark.parametrize("penalty", [-0.5, 0.0, 0.6, 1.0, 2.0])
def test_wide_enough_it_finds_what_trying_everything_finds(penalty):
    model, longest = Table(vocab=3), 4
    prompts = [[1], [2], [1, 2]]
    logits, state = model.start(prompts)
    got = beam_search(
        model.step, logits, state, beams=30, end=END, max_new_tokens=longest, length_penalty=penalty
    )
    for prompt, hypotheses in zip(prompts, got, strict=True):
        want = everything(model, prompt, longest, penalty)[: len(hypotheses)]
        assert len(hypotheses) >= 20
        assert [h.tokens for h in hypotheses] == [text for _, text in want]
        assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in want], abs=1e-5)


def test_a_score_is_its_texts_own():
    model = Table(vocab=7, seed=3)
    logits, state = model.start([[1, 2], [3]])
    for prompt, hypotheses in zip(
        [[1, 2], [3]],
        beam_search(model.step, logits, state, beams=4, end=END, max_new_tokens=9, length_penalty=0.7),
        strict=True,
    ):
        assert hypotheses == sorted(hypotheses, key=lambda h: -h.score)
        for h in hypotheses:
            text = [*h.tokens, END] if len(h.tokens) < 9 else h.tokens
            total = sum(model.logits(prompt + text[:i]).log_softmax(-1)[w].item() for i, w in enumerate(text))
            assert h.score == pytest.approx(total / len(text) ** 0.7, abs=1e-5)


@pytest.mark.parametrize("beams", [1, 2, 5])
def test_batched_is_alone(beams):
    model, prompts = Table(vocab=11, seed=5), [[n] for n in range(1, 9)]
    options = {"beams": beams, "end": END, "max_new_tokens": 12}
    together = beam_search(model.step, *model.start(prompts), **options)
    for prompt, hypotheses in zip(prompts, together, strict=True):
        assert beam_search(model.step, *model.start([prompt]), **options) == [hypotheses]


def test_one_beam_is_greedy():
    model = Table(vocab=11, seed=6)
    (hypotheses,) = beam_search(model.step, *model.start([[4]]), beams=1, end=END, max_new_tokens=20)
    text = [4]
    while len(text) < 21 and (token := int(model.logits(text).argmax())) != END:
        text.append(token)
    assert hypotheses[0].tokens == text[1:]


def test_it_stops_when_nothing_can_win():
    """A model that ends at once needs no more steps than there are beams."""
    steps = []

    class Sure(Table):
        def logits(self, text):
            return torch.tensor([9.0, 0.0, -1.0])

        def step(self, ids, state):
            steps.append(len(ids))
            return super().step(ids, state)

    model = Sure(3)
    beam_search(model.step, *model.start([[1]]), beams=2, end=END, max_new_tokens=500, length_penalty=0.0)
    assert len(steps) < 5


@pytest.mark.parametrize("at", [0, 2])
def test_broken_weights(at):
    class Broken(Table):
        def logits(self, text):
            scores = super().logits(text)
            return scores.fill_(math.nan) if len(text) > at else scores

    model = Broken(vocab=7)
    options = {"beams": 3, "end": END, "max_new_tokens": 5}
    with pytest.raises(ValueError, match="weights gave NaN"):
        beam_search(model.step, *model.start([[1], [2]]), **options)


def hugging_face(penalty, beams, inputs, **options):
    torch.manual_seed(0)
    sizes = {"vocab_size": 7, "n_positions": 64, "n_embd": 12, "n_layer": 2, "n_head": 3}
    theirs = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=END)).eval()
    for weight in theirs.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.3)
    theirs.generation_config.pad_token_id = END
    answer = theirs.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        do_sample=False,
        num_beams=beams,
        num_return_sequences=beams,
        length_penalty=penalty,
        early_stopping="never",
        max_new_tokens=13,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    return theirs, answer


class Wrapped:
    """Hugging Face's model, without a cache."""

    def __init__(self, model):
        self.model = model

    def start(self, prompts):
        state = State(prompts.tolist())
        return self.model(prompts).logits[:, -1], state

    def step(self, ids, state):
        state.texts = [[*t, i] for t, i in zip(state.texts, ids[:, 0].tolist(), strict=True)]
        return self.model(torch.tensor(state.texts)).logits[:, -1], state


@pytest.mark.parametrize(("penalty", "beams"), [(1.0, 4), (0.0, 4), (0.6, 3), (1.5, 5), (1.0, 2)])
def test_as_hugging_face_finds_them(penalty, beams):
    inputs = torch.randint(1, 7, (50, 5), generator=torch.Generator().manual_seed(1))
    theirs, answer = hugging_face(penalty, beams, inputs)
    model = Wrapped(theirs)
    got = beam_search(
        model.step, *model.start(inputs), beams=beams, end=END, max_new_tokens=13, length_penalty=penalty
    )
    texts = [[i for i in text if i != END] for text in answer.sequences[:, 5:].tolist()]
    scores = answer.sequences_scores.tolist()
    assert [h.tokens for hypotheses in got for h in hypotheses] == texts
    assert [h.score for hypotheses in got for h in hypotheses] == pytest.approx(scores, abs=1e-4)
    assert 0 < sum(len(text) < 13 for text in texts) < len(texts)  # some ended, some were cut off


@pytest.mark.parametrize("penalty", [0.6, -0.5])
@pytest.mark.parametrize(
    "options",
    [{"no_repeat_ngram_size": 3}, {"repetition_penalty": 1.4}, {"repetition_penalty": 0.7},
     {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2}],
    ids=lambda options: "-".join(f"{name}={value}" for name, value in options.items()),
)  # fmt: skip
def test_what_beams_may_say_is_hugging_faces(options, penalty):
    """Fifty different prompts in one batch, whose rows end at different steps."""
    inputs = torch.randint(1, 7, (50, 5), generator=torch.Generator().manual_seed(1))
    theirs, answer = hugging_face(penalty, 4, inputs, **options)
    model = Wrapped(theirs)
    rule, left = beam_processor(Sampling(**options), inputs.tolist()), []

    def watched(logits, texts, rows):
        left.append(rows.tolist())
        return rule(logits, texts, rows)

    search = {"beams": 4, "end": END, "max_new_tokens": 13, "length_penalty": penalty}
    got = beam_search(model.step, *model.start(inputs), **search, process=watched)
    texts = [[i for i in text if i != END] for text in answer.sequences[:, 5:].tolist()]
    assert [h.tokens for hypotheses in got for h in hypotheses] == texts
    scores = answer.sequences_scores.tolist()
    assert [h.score for hypotheses in got for h in hypotheses] == pytest.approx(scores, abs=1e-4)
    free = beam_search(model.step, *model.start(inputs), **search)
    assert sum(a != b for a, b in zip(got, free, strict=True)) > 5, "it matters"
    if penalty < 0:
        assert any(0 < len(rows) < 50 and rows != list(range(len(rows))) for rows in left)


def test_extreme_length_penalties():
    assert penalize_length(7, 1.5) == 7**1.5
    for length, penalty in ((4096, 100), (4096, -100), (2, 100), (1, -100)):
        assert torch.tensor(penalize_length(length, penalty), dtype=torch.float32).isfinite()
        assert penalize_length(length, penalty) > 0


def test_with_a_cache():
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab=13, context=23, dim=12, depth=2, heads=3, kv_heads=1)).double().eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    prompts = torch.randint(1, 13, (3, 4))
    full = Uncached(model)
    options = {"beams": 3, "end": END, "max_new_tokens": 11}
    cached = beam_search(model.step, *model.start(prompts), **options)
    uncached = beam_search(full.step, *full.start(prompts), **options)
    for a, b in zip(itertools.chain(*cached), itertools.chain(*uncached), strict=True):
        assert a.tokens == b.tokens
        assert math.isclose(a.score, b.score, abs_tol=1e-6)


class Uncached(Wrapped):
    """Our model without its cache."""

    def start(self, prompts):
        return self.model(prompts)[:, -1], State(prompts.tolist())

    def step(self, ids, state):
        state.texts = [[*t, i] for t, i in zip(state.texts, ids[:, 0].tolist(), strict=True)]
        return self.model(torch.tensor(state.texts))[:, -1], state


@pytest.mark.parametrize("V", [5, 97, 32 * 7, 32 * 60 + 11])
def test_the_highest_are_topks(V: int) -> None:
    x = torch.randn(2, 3, V).masked_fill(torch.rand(2, 3, V) < 0.1, -math.inf)
    best, index = highest(x, 4)
    assert torch.equal(best, x.topk(4).values)
    assert torch.equal(x.gather(2, index), best)

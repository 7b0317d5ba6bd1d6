import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel

from helpers.slow import slow_after
from regard.core.cache import KVCache, State
from regard.decode.generate import Stopper, generate
from regard.decode.prompts import fit_context, pad_rows, read_rows
from regard.decode.sampling import Sampling, no_repeat_ngram
from regard.errors import UserError
from regard.models import GPT, MODELS, GPTConfig

VOCAB, CONTEXT = 29, 11
PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5, 3], [5], [8, 9, 7, 9, 3, 2, 3]]
GREEDY = Sampling(max_new_tokens=37, temperature=0)
SAMPLED = Sampling(max_new_tokens=37, temperature=0.9, top_k=17, top_p=0.95, min_p=0.01, seed=7)
FUSSY = Sampling(max_new_tokens=37, repetition_penalty=1.3, no_repeat_ngram_size=3, seed=8)


@pytest.fixture(autouse=True)
def one_thread():
    """One thread: small models gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def gpt(positions="rotary", context=CONTEXT, **kw):
    """A GPT in double precision with weights so large that its next token depends on the whole prompt."""
    torch.manual_seed(0)
    sizes = {"vocab": VOCAB, "context": context, "dim": 12, "depth": 2, "heads": 3, "kv_heads": 1}
    model = GPT(GPTConfig(**sizes, positions=positions, tied=False, **kw))
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.5)
    return model.double()


def write(model, prompts, sampling, **kw):
    """The text of each row. A row that has ended stays so."""
    steps = list(generate(model, prompts, sampling, **kw))
    rows = [list(row) for row in zip(*steps, strict=True)]
    texts = [[t for t in row if t is not None] for row in rows]
    assert all(row == text + [None] * (len(row) - len(text)) for row, text in zip(rows, texts, strict=True))
    return texts


# A row is what it is, however it is computed


@pytest.mark.parametrize(
    ("positions", "sampling"),
    [
        *((kind, SAMPLED) for kind in ("none", "sinusoidal", "learned", "rotary", "alibi", "relative")),
        *(("rotary", GREEDY), ("learned", FUSSY), ("alibi", FUSSY)),
    ],
)
def test_cached_is_uncached_and_batched_is_alone_past_the_context(positions, sampling):
    model = gpt(positions)
    prompts = PROMPTS + [list(range(2 * CONTEXT + 3))]  # and one longer than the context
    together = write(model, prompts, sampling)
    assert together == write(model, prompts, sampling, cached=False)
    assert together == [write(model, [prompt], sampling)[0] for prompt in prompts]
    assert all(len(text) == sampling.max_new_tokens for text in together)
    assert len({tuple(text) for text in together}) == len(prompts)
    assert all(len(set(text)) > 2 for text in together)


@pytest.mark.parametrize("context", [1, 2, 3])
def test_tiny_contexts(context):
    model = gpt(context=context)
    assert write(model, PROMPTS, SAMPLED) == write(model, PROMPTS, SAMPLED, cached=False)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("samples", slow_after(1, [3, 1]))
def test_rows_that_end_leave_the_others_as_they_are(cached, samples):
    model, lengths = gpt(), set()
    together = write(model, PROMPTS, SAMPLED, samples=samples)
    for end in range(0, VOCAB, 2):
        expected = [text[: text.index(end)] if end in text else text for text in together]
        if cached or end < 5:
            texts = write(model, PROMPTS, SAMPLED, samples=samples, end=end, cached=cached)
            assert texts == (expected if any(expected) else [])
            lengths |= set(map(len, texts))
    assert len(lengths) > 3
    several = write(model, PROMPTS, SAMPLED, samples=samples, end=(1, 2, 3))
    assert several == [
        text[: next((i for i, t in enumerate(text) if t in (1, 2, 3)), None)] for text in together
    ]


class Counting(nn.Module):
    """A model that records its calls. After token t comes t + 1."""

    def __init__(self, context=100):
        super().__init__()
        self.config, self.calls = SimpleNamespace(context=context), []
        self.weight = nn.Parameter(torch.eye(VOCAB).roll(1, dims=1))

    def start(self, prompt, attention_mask=None):
        self.calls.append(("start", *prompt.shape, attention_mask is not None))
        return self.weight[prompt[:, -1]], State([KVCache()], attention_mask)

    def step(self, ids, state):
        self.calls.append(("step", *ids.shape))
        return self.weight[ids[:, -1]], state


def test_what_is_read():
    model = Counting()
    steps = list(generate(model, [[1, 2], [4, 5]], Sampling(temperature=0, max_new_tokens=4), end=8))
    assert steps == [[3, 6], [4, 7], [5, None], [6, None]]
    assert model.calls == [("start", 2, 2, False), ("step", 2, 1), ("step", 2, 1), ("step", 1, 1)]

    model = Counting()
    list(generate(model, [[1, 2], [4]], Sampling(max_new_tokens=2), samples=3))
    assert model.calls == [("start", 2, 2, True), ("step", 6, 1)], "a prompt is read once for all its samples"

    model = Counting(context=4)
    list(generate(model, [[1, 2, 3]], Sampling(max_new_tokens=6)))
    assert [call[:3] for call in model.calls] == [
        ("start", 1, 3), ("step", 1, 1), ("start", 1, 3), ("step", 1, 1), ("start", 1, 3), ("step", 1, 1)
    ]  # fmt: skip

    model = Counting()
    assert list(generate(model, [[7], [7]], GREEDY, end=8)) == []
    assert list(generate(model, [], GREEDY)) == []
    assert len(model.calls) == 1


@pytest.mark.parametrize("context", range(1, 9))
def test_window(context):
    text, start = list(range(50)), 0
    for n in range(1, 50):
        if n - start > context:  # it moves only when full, and half a context or more stays
            start += context - context // 2
        assert fit_context(text[:n], context) == text[start:n]
        assert min(n, context // 2 + 1) <= n - start <= context


# Randomness


def test_seeds_and_samples():
    model = gpt()
    texts = write(model, PROMPTS, SAMPLED, samples=5)
    assert texts == write(model, PROMPTS, SAMPLED, samples=5)
    assert len({tuple(text) for text in texts}) == 20
    assert [texts[5 * i] for i in range(4)] == write(model, PROMPTS, SAMPLED)
    assert texts[10:15] == write(model, PROMPTS[2:3], SAMPLED, samples=5)
    assert texts != write(model, PROMPTS, Sampling(max_new_tokens=37, seed=8), samples=5)
    free = Sampling(max_new_tokens=20)
    assert write(model, PROMPTS, free) != write(model, PROMPTS, free)


def test_global_randomness_is_neither_used_nor_changed():
    model = gpt()
    before, before_np, before_py = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    first = write(model, PROMPTS, SAMPLED)
    write(model, PROMPTS, Sampling(max_new_tokens=3))
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == before_np).all()  # noqa: NPY002
    assert random.getstate() == before_py
    torch.manual_seed(12345)
    assert write(model, PROMPTS, SAMPLED) == first


def test_a_ban_on_everything_is_none():
    logits = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    assert no_repeat_ngram(logits, [[0, 1], [1]], 1).tolist() == [[1.0, 2.0], [1.0, -math.inf]]
    assert (
        len(write(gpt(), PROMPTS, Sampling(max_new_tokens=VOCAB + 5, no_repeat_ngram_size=1))[0]) == VOCAB + 5
    )


class Wrapped(nn.Module):
    """Hugging Face's GPT-2 with start and step, without a cache."""

    def __init__(self, model):
        super().__init__()
        self.model, self.config = model, SimpleNamespace(context=model.config.n_positions)

    def start(self, prompt, attention_mask=None):
        attention_mask = (
            torch.ones_like(prompt, dtype=torch.bool) if attention_mask is None else attention_mask
        )
        state = State([KVCache()], attention_mask)
        state.layers[0].kv = (prompt[:, None, :, None],) * 2  # the tokens are all that it remembers
        return self.read(state), state

    def step(self, ids, state):
        state.layers[0].extend(lambda: (ids[:, None, :, None],) * 2)
        state.attention_mask = nn.functional.pad(state.attention_mask, (0, 1), value=True)
        return self.read(state), state

    def read(self, state):
        positions = (state.attention_mask.cumsum(1) - 1).clamp(min=0)
        ids = state.layers[0].kv[0][:, 0, :, 0]
        mask = state.attention_mask.long()
        return self.model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits[:, -1]


@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2}])
def test_greedy_is_hugging_faces(options):
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "n_positions": 64, "n_embd": 12, "n_layer": 2, "n_head": 3}
    config = GPT2Config(**sizes, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None)
    model = GPT2LMHeadModel(config).double().eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=0.5)
    ours = write(Wrapped(model), PROMPTS, Sampling(temperature=0, max_new_tokens=31, **options))
    model.generation_config.pad_token_id = 0
    for prompt, text in zip(PROMPTS, ours, strict=True):
        ids = torch.tensor([prompt])
        theirs = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=31, **options
        )
        assert theirs[0, len(prompt) :].tolist() == text
    assert sum(len(set(text)) for text in ours) > 15


# With sources


SOURCES = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9], [7, 9], [3, 1, 4, 1, 5]]
START = [[1]] * len(SOURCES)


def pairs(kind="transformer", **settings):
    """An encoder-decoder in double precision whose answers depend on the source."""
    cls, config, _ = MODELS[kind]
    sizes = {"vocab": VOCAB, "context": CONTEXT, "dim": 8, "depth": 1, "dropout": 0.0, "tied": False}
    torch.manual_seed(5)
    model = cls(config(**sizes | settings)).double().eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight)
    return model


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, FUSSY], ids=["greedy", "sampled", "fussy"])
@pytest.mark.parametrize("kind", ["transformer", "gru"])
def test_with_sources_cached_is_uncached_and_batched_is_alone(kind, sampling):
    model = pairs(kind, **({"heads": 2} if kind == "transformer" else {}))
    together = write(model, START, sampling, sources=SOURCES)
    assert together == write(model, START, sampling, sources=SOURCES, cached=False)
    assert together == [write(model, [[1]], sampling, sources=[source])[0] for source in SOURCES]
    assert together[0] == together[4]
    assert len({tuple(text) for text in together}) > 2
    assert all(len(text) == CONTEXT for text in together), "a target ends when the context is full"
    longer = write(model, [[1, 2, 3]] * 5, sampling, sources=SOURCES)
    assert all(len(text) == CONTEXT - 2 for text in longer)
    several = write(model, START, sampling, sources=SOURCES, samples=3)
    assert several[::3] == together
    for end in {text[4] for text in together}:
        expected = [text[: text.index(end)] if end in text else text for text in together]
        assert write(model, START, sampling, sources=SOURCES, end=end) == (expected if any(expected) else [])


def test_prompts_of_unequal_length_have_no_place_beside_sources():
    model = pairs(heads=2)
    with pytest.raises(ValueError, match="unequal numbers of tokens"):
        write(model, [[1], [1, 2]], GREEDY, sources=[[3], [4]])
    with pytest.raises(ValueError, match="longer"):
        write(model, [[1], [1]], GREEDY, sources=[[3]])


class Sourced(Counting):
    def start(self, source, prompt, attention_mask=None):
        self.calls.append(
            (source.tolist(), prompt.tolist(), None if attention_mask is None else attention_mask.tolist())
        )
        return self.weight[prompt[:, -1]], State([KVCache()])


def test_what_is_read_of_sources():
    """Shorter prompts are padded on the right, and equal prompts are read once."""
    model = Sourced()
    logits, _ = read_rows(model, [[1], [2], [1], [1]], [[5, 6], [5, 6], [7], [5, 6]])
    source, prompt = [[5, 6], [5, 6], [7, 0]], [[1], [2], [1]]
    assert model.calls == [(source, prompt, [[True, True], [True, True], [True, False]])]
    assert logits.argmax(-1).tolist() == [2, 3, 2, 2]
    model = Sourced()
    read_rows(model, [[1], [2]], [[5, 6], [8, 9]])
    assert model.calls == [([[5, 6], [8, 9]], [[1], [2]], None)]
    cpu = torch.device("cpu")
    ids, attention_mask = pad_rows([[1, 2, 3], [4]], cpu, left=True)
    assert (ids.tolist(), attention_mask.tolist()) == (
        [[1, 2, 3], [0, 0, 4]],
        [[True] * 3, [False, False, True]],
    )
    assert pad_rows([[1], [2]], cpu)[1] is None


def test_random_numbers_depend_on_the_source():
    """Different texts must not use the same random numbers."""
    model = Sourced()
    with torch.no_grad():
        model.weight.zero_()  # all tokens are equally likely
    texts = write(model, [[1]] * 3, Sampling(max_new_tokens=9, seed=3), sources=[[5], [6], [5]])
    assert texts[0] == texts[2] != texts[1]


class Marian(nn.Module):
    """Hugging Face's Marian with start and step, without a cache."""

    def __init__(self, model):
        super().__init__()
        self.model, self.config = model, SimpleNamespace(context=model.config.max_position_embeddings)

    def start(self, source, prompt, attention_mask=None):
        attention_mask = (
            torch.ones_like(source, dtype=torch.bool) if attention_mask is None else attention_mask
        )
        state = State([KVCache()], attention_mask)
        state.layers[0].kv, state.source_ids = (prompt[:, None, :, None],) * 2, source
        keep, true = state.reorder, state

        def reorder(rows):
            keep(rows)
            true.source_ids = true.source_ids[rows]

        state.reorder = reorder
        return self.read(state), state

    def step(self, ids, state):
        state.layers[0].extend(lambda: (ids[:, None, :, None],) * 2)
        return self.read(state), state

    def read(self, state):
        ids, mask = state.layers[0].kv[0][:, 0, :, 0], state.attention_mask.long()
        return self.model(state.source_ids, mask, decoder_input_ids=ids, use_cache=False).logits[:, -1]


@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2}])
def test_greedy_with_sources_is_hugging_faces(options):
    torch.manual_seed(0)
    model = MarianMTModel(
        MarianConfig(
            vocab_size=VOCAB, max_position_embeddings=37, d_model=12, encoder_layers=1, decoder_layers=1,
            encoder_attention_heads=3, decoder_attention_heads=3, encoder_ffn_dim=17, decoder_ffn_dim=17,
            pad_token_id=0, eos_token_id=None, decoder_start_token_id=1, forced_eos_token_id=None,
            tie_word_embeddings=True,
        )
    ).double().eval()  # fmt: skip
    for name, weight in model.named_parameters():
        if weight.ndim > 1 and "embed_positions" not in name:
            nn.init.normal_(weight, std=3.0 if "encoder_attn" in name else 0.4)
    sampling = Sampling(temperature=0, max_new_tokens=19, **options)
    ours = write(Marian(model), START, sampling, sources=SOURCES)
    for source, text in zip(SOURCES, ours, strict=True):
        ids = torch.tensor([source])
        mask = torch.ones_like(ids)
        theirs = model.generate(
            ids, attention_mask=mask, do_sample=False, num_beams=1, max_new_tokens=19, bad_words_ids=None,
            **options,
        )  # fmt: skip
        assert theirs[0, 1:].tolist() == text
    assert len({tuple(text) for text in ours}) > 1


# Side effects


def test_training_mode_is_put_back_and_gradients_stay_on():
    model = gpt(dropout=0.5).train()
    model.blocks[0].eval()
    before = [m.training for m in model.modules()]
    for n, step in enumerate(generate(model, PROMPTS, SAMPLED)):
        assert len(step) == 4
        assert not any(m.training for m in model.modules())
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
        if n == 3:
            break
    assert [m.training for m in model.modules()] == before
    iterator = generate(model, PROMPTS, SAMPLED)
    assert [m.training for m in model.modules()] == before
    next(iterator)
    del iterator
    assert [m.training for m in model.modules()] == before
    write(model, PROMPTS, SAMPLED)
    assert [m.training for m in model.modules()] == before
    model(torch.tensor(PROMPTS[:1])).sum().backward()


def test_prompts_are_left_alone():
    prompts = [list(p) for p in PROMPTS]
    write(gpt(), prompts, GREEDY)
    assert prompts == PROMPTS


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, FUSSY])
def test_broken_weights(value, sampling):
    model = Counting().train()
    with torch.no_grad():
        model.weight[:, 9] = 50.0  # leads both rows to the token after which nothing is sound
        model.weight[9, 3] = value
    iterator = generate(model, [[1], [8]], sampling)
    with pytest.raises(ValueError, match="weights gave NaN"):
        list(iterator)
    assert model.training


def test_mistakes():
    for options, words in [
        ({"max_new_tokens": 0}, "max_new_tokens=0: give a whole number from 1"),
        ({"max_new_tokens": 2.5}, "max_new_tokens=2.5"),
        ({"max_new_tokens": True}, "max_new_tokens=True"),
        ({"temperature": -1}, "temperature=-1: give a number from 0"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"temperature": "hot"}, "temperature='hot'"),
        ({"top_k": -1}, "top_k=-1"),
        ({"top_p": 1.1}, "top_p=1.1: give a number from 0 to 1"),
        ({"min_p": -0.1}, "min_p=-0.1"),
        ({"repetition_penalty": 0}, "repetition_penalty=0: give a number from 0.001"),
        ({"no_repeat_ngram_size": -2}, "no_repeat_ngram_size=-2"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**64}, "seed=18446744073709551616"),
    ]:
        with pytest.raises(UserError) as e:
            Sampling(**options)
        assert str(e.value).startswith(words)
        assert "\n" not in str(e.value)
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        generate(gpt(), [[1], []], GREEDY)
    with pytest.raises(UserError, match="samples=0"):
        generate(gpt(), [[1]], GREEDY, samples=0)
    with pytest.raises(UserError, match="stop="):
        Stopper(["a", ""])
    with pytest.raises(UserError, match="stop='abc'"):
        Stopper("abc")


# Stop strings


def test_stopper_by_brute_force():
    rng = random.Random(0)
    stopped = 0
    for _ in range(20_000):
        text = "".join(rng.choices("abc", k=rng.randrange(15)))
        stops = ["".join(rng.choices("abc", k=rng.randrange(1, 6))) for _ in range(rng.randrange(4))]
        cut = min((text.find(s) for s in stops if s in text), default=len(text))
        stopper, shown, at = Stopper(stops), "", 0
        while at < len(text):
            size = rng.randrange(5)
            shown += stopper.push(text[at : at + size])
            at += size
            assert text[:cut].startswith(shown)
            if stopper.done:
                assert shown == text[:cut]
            elif cut == len(text):  # held back is only what a stop could begin with
                held = text[len(shown) : at]
                assert not held or any(s.startswith(held) for s in stops), (text, stops, shown)
        shown += stopper.finish()
        assert shown == text[:cut], (text, stops)
        assert stopper.done == (cut < len(text))
        assert stopper.push("more") == stopper.finish() == "" or not stopper.done
        stopped += stopper.done
    assert 5_000 < stopped < 15_000


def test_stopper_shows_what_it_can():
    stopper = Stopper(["ab", "abc"])
    assert stopper.push("xab") == "x"
    assert stopper.done, "more text would change nothing"
    stopper = Stopper(["\nUser:", "</s>"])
    pieces = ["Hi", " there", "\n", "Us", "ual", " <", "/", "s>", "gone"]
    assert [stopper.push(p) for p in pieces] == ["Hi", " there", "", "", "\nUsual", " ", "", "", ""]
    assert stopper.done
    assert stopper.finish() == ""

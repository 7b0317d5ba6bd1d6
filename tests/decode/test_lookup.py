from dataclasses import replace

import pytest
import torch
from torch import nn

from regard.decode.generate import generate
from regard.decode.lookup import guess_next
from regard.decode.sampling import Sampling
from regard.models import GPT, GPTConfig, Transformer, TransformerConfig
from regard.models.rnn import RecurrentLM, RecurrentLMConfig

PROMPT = [3, 1, 4, 1, 5, 9, 2, 3, 1, 4]
GREEDY = Sampling(max_new_tokens=60, temperature=0)
SAMPLED = Sampling(max_new_tokens=60, temperature=0.6, top_k=5, seed=7)
FUSSY = Sampling(max_new_tokens=30, repetition_penalty=1.3, frequency_penalty=0.5, seed=8)


def with_large_weights(model):
    torch.manual_seed(0)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.5)
    return model.double().eval()


def gpt(**kw):
    sizes = {"vocab": 13, "context": 47, "dim": 12, "depth": 2, "heads": 3, "kv_heads": 1, "dropout": 0.0}
    return with_large_weights(GPT(GPTConfig(**sizes | kw)))


def count_calls(model):
    """A list that grows by the number of tokens of each later call of `decode`."""
    calls, decode = [], model.decode
    model.decode = lambda ids, state: calls.append(ids.shape[1]) or decode(ids, state)
    return calls


def write(model, sampling, **kw):
    return [row[0] for row in generate(model, [PROMPT], sampling, **kw)]


def test_guesses_are_what_followed_before():
    assert guess_next(PROMPT, 4) == [1, 5, 9, 2]
    assert guess_next(PROMPT, 2) == [1, 5]
    assert guess_next([7, 8, 1, 2, 3, 7, 8, 4, 7, 8], 1) == [4]  # the latest place
    assert guess_next([7, 8, 1, 2, 3, 7, 8, 4, 7, 8], 5) == [1, 2, 3, 7, 8]  # with so many behind it
    assert guess_next([1, 2, 3], 4) == guess_next([1], 4) == guess_next(PROMPT, 0) == []


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, FUSSY], ids=["greedy", "sampled", "fussy"])
@pytest.mark.parametrize("positions", ["rotary", "learned", "alibi"])
def test_the_text_is_the_plain_one(positions, sampling):
    """Also past the context, where the text is read anew."""
    plain = write(gpt(positions=positions), sampling)
    assert write(gpt(positions=positions), replace(sampling, prompt_lookup_num_tokens=5)) == plain
    assert len(plain) == sampling.max_new_tokens


def test_a_text_that_repeats_itself_takes_fewer_steps():
    model = gpt(context=97)
    calls = count_calls(model)
    plain = write(model, GREEDY)
    steps = len(calls)
    assert write(model, replace(GREEDY, prompt_lookup_num_tokens=7)) == plain
    assert len(calls) - steps < 0.5 * steps
    assert max(calls[steps + 1 :]) == 8


def test_it_ends_where_the_plain_one_does():
    plain = write(gpt(), GREEDY)
    looked_up = replace(GREEDY, prompt_lookup_num_tokens=6)
    for end in plain[9], plain[20]:
        assert write(gpt(), looked_up, end=end) == write(gpt(), GREEDY, end=end)


def test_an_encoder_decoder():
    config = TransformerConfig(vocab=13, context=61, dim=12, depth=2, heads=3, dropout=0.0)
    model = with_large_weights(Transformer(config))
    calls = count_calls(model)
    plain = write(model, GREEDY, sources=[[5, 6, 7]])
    steps = len(calls)
    assert write(model, replace(GREEDY, prompt_lookup_num_tokens=5), sources=[[5, 6, 7]]) == plain
    assert len(calls) - steps < steps


def test_a_window_and_models_without_a_cache_to_shorten():
    plain = write(gpt(sliding_window=7), GREEDY)
    assert write(gpt(sliding_window=7), replace(GREEDY, prompt_lookup_num_tokens=5)) == plain
    model = with_large_weights(RecurrentLM(RecurrentLMConfig(vocab=13, context=97, dim=12, dropout=0.0)))
    plain = write(model, GREEDY)
    calls = count_calls(model)
    assert write(model, replace(GREEDY, prompt_lookup_num_tokens=5)) == plain
    assert set(calls[1:]) == {1}

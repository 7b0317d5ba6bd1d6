"""Tiny translators and chatbots, and a model that repeats its source."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from regard.decode.sampling import Sampling
from regard.models import MODELS
from regard.tasks import Chat, ChatConfig, Translate, TranslateConfig
from regard.tasks.request import Request
from regard.text.tokenizer_kinds import train_tokenizer

LETTERS = "abcdefgh .\n"
CONTEXT = 19
TEXTS = ["a", "bad cab", "", "face a bed", "hedge", "a", "   ", "each bag had a beg"]
GREEDY = Sampling(max_new_tokens=11, temperature=0)
SAMPLED = Sampling(max_new_tokens=11, temperature=3.0, top_k=13, top_p=0.97, seed=7)
FUSSY = Sampling(max_new_tokens=11, repetition_penalty=1.4, no_repeat_ngram_size=2, seed=3)
BEAMS = Sampling(max_new_tokens=7, num_beams=3, length_penalty=0.6)
SIZES = {"context": CONTEXT, "dim": 8, "depth": 1, "dropout": 0.0, "tied": False}
CASES = [
    ("transformer", {"heads": 2}),
    ("transformer", {"heads": 2, "positions": "rotary", "pre": True, "kv_heads": 1}),
    ("transformer", {"heads": 2, "positions": "relative", "decoder_depth": 2}),
    *(
        (cell, {"attention": attention})
        for cell in ("rnn", "gru", "lstm")
        for attention in ("none", "additive", "dot", "general")
    ),
    ("lstm", {"attention": "dot", "bidirectional": False, "depth": 2, "tied": True}),
]
every_pair = pytest.mark.parametrize(
    ("kind", "settings"), CASES, ids=["-".join([kind, *map(str, s.values())]) for kind, s in CASES]
)


def tokenizer(letters=LETTERS, cls=Translate):
    return train_tokenizer("char", [letters], 0, cls.specials)


def translator(context=CONTEXT, separate=False, **settings):
    other = [tokenizer("vwxyz .")] if separate else []
    return Translate(TranslateConfig(name="translate", **settings), tokenizer(), context, *other)


def chatter(context=CONTEXT, turns=1):
    return Chat(ChatConfig(name="chat", turns=turns), tokenizer(cls=Chat), context)


def build(task, kind="gru", **settings):
    """A model in double precision, with weights so large that its first token depends on the source."""
    cls, config, _ = MODELS[kind]
    other = task.target_tokenizer
    settings = SIZES | {"context": task.context} | settings
    model = cls(config(vocab=task.tokenizer.vocab, target_vocab=other and other.vocab, **settings))
    model = model.double().eval()
    sources = torch.randint(4, task.tokenizer.vocab, (13, 5))
    for _ in range(500):
        for weight in model.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight)
        first = model(sources, torch.full((13, 1), task.begin)).argmax(-1)
        if len(first.unique()) > 3 and task.end not in first:
            return model
    raise AssertionError("none of these looks at its source")


def ask(task, model, texts, sampling, **options):
    """The joined pieces of a stream."""
    return [
        "".join(row) for row in zip(*task.stream(model, Request(texts, sampling, **options)), strict=True)
    ]


def texts_of(answers):
    return [answer.text for several in answers for answer in several]


class Echo(nn.Module):
    """A "model" that repeats its source, or gives `said` instead."""

    def __init__(self, task, said=None):
        super().__init__()
        self.config, self.task, self.said = SimpleNamespace(context=task.context), task, said
        self.weight = nn.Parameter(torch.zeros(1))
        self.sources = []  # all that was read

    def start(self, source, prompt, attention_mask=None):
        attention_mask = (
            torch.ones_like(source, dtype=torch.bool) if attention_mask is None else attention_mask
        )
        rows = [row[mask].tolist() for row, mask in zip(source, attention_mask, strict=True)]
        self.sources += rows
        return self._next(state := Rows(rows, prompt.shape[1])), state

    def step(self, ids, state):
        state.length += 1
        return self._next(state), state

    def _next(self, state):
        said = [row if self.said is None else [*self.said, self.task.end] for row in state.rows]
        ids = torch.tensor([row[min(state.length, len(row)) - 1] for row in said])
        return 50.0 * F.one_hot(ids, self.task.output_tokenizer.vocab)


class Rows:
    def __init__(self, rows, length):
        self.rows, self.length = rows, length

    def reorder(self, rows):
        self.rows = [self.rows[i] for i in rows.tolist()]


def written(path, pairs):
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return str(path)


GREEDY_LONG = replace(GREEDY, max_new_tokens=50)

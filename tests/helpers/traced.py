"""Models of every kind, and inputs to trace them with."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor
from torch.testing import assert_close

from helpers.looking import captioner, noise, reader, seer, shaken, words
from models.test_gpt import GPT2_STYLE
from regard.models import Word2Vec, WordsConfig
from regard.runs.model import Model
from regard.tasks import TASKS, WordsTask

TEXT = "the quick brown fox jumps"
PAIR = "the quick brown fox", "der Fuchs springt"


def named_words() -> Model:
    config, task = TASKS["words"][1](name="words"), words(WordsTask)
    model = Word2Vec(WordsConfig(vocab=task.vocab, dim=7))
    return Model(shaken(model), WordsTask(config, task, 1), {}, kind="words")


# Of every kind of model: how it is made, what it reads
KINDS: dict[str, tuple[Callable[[], Model], Any]] = {
    "gpt": (lambda: reader("write", "gpt"), TEXT),
    "gpt-grouped": (lambda: reader("write", "gpt", dim=16, heads=4, kv_heads=2, qk_norm=True), TEXT),
    "gpt-2": (lambda: reader("write", "gpt", **GPT2_STYLE), TEXT),
    "gpt-alibi": (lambda: reader("write", "gpt", positions="alibi", ffn="geglu"), TEXT),
    "gpt-window": (lambda: reader("write", "gpt", positions="relative", sliding_window=2, tied=False), TEXT),
    "gpt-classify": (lambda: reader("classify", "gpt", task_labels=("a", "b")), TEXT),
    "bert": (lambda: reader("fill", "bert"), "the [MASK] brown fox"),
    "bert-plain": (lambda: reader("fill", "bert", segments=0, positions="rotary", pre=True), TEXT),
    "bert-relative": (lambda: reader("fill", "bert", positions="relative"), TEXT),
    "bert-window": (lambda: reader("fill", "bert", window=1, positions="sinusoidal"), TEXT),
    "bert-electra": (lambda: reader("fill", "bert", task_replaced=True), "the [MASK] brown fox"),
    "bert-electra-told": (lambda: reader("fill", "bert", task_replaced=True), TEXT),
    "bert-classify": (lambda: reader("classify", "bert", task_labels=("a", "b")), f"{TEXT}\tthe lazy dog"),
    "bert-score": (lambda: reader("classify", "bert", task_low=0.0, task_high=5.0), TEXT),
    "bert-tag": (lambda: reader("tag", "bert", task_labels=("a", "b", "c")), TEXT),
    "bert-span": (lambda: reader("span", "bert"), f"the fox\t{TEXT}"),
    "bert-embed": (lambda: reader("embed", "bert"), TEXT),
    "elmo": (lambda: reader("fill", "elmo"), "the [MASK] brown fox"),
    "elmo-next": (lambda: reader("fill", "elmo"), f"{TEXT}\tthe lazy dog"),
    "elmo-classify": (lambda: reader("classify", "elmo", task_labels=("a", "b")), TEXT),
    "elmo-tag": (lambda: reader("tag", "elmo", task_labels=("a", "b", "c")), TEXT),
    "elmo-span": (lambda: reader("span", "elmo"), f"the fox\t{TEXT}"),
    "elmo-embed": (lambda: reader("embed", "elmo"), TEXT),
    "transformer": (lambda: reader("translate", "transformer"), PAIR),
    "transformer-pre": (lambda: reader("chat", "transformer", pre=True, positions="rotary"), PAIR),
    "t5": (lambda: reader("restore", "t5"), ("the ___ brown ___ jumps", "lazy ___ dog")),
    "t5-classify": (lambda: reader("classify", "t5", task_labels=("fox", "lazy dog")), TEXT),
    "rnn": (lambda: reader("translate", "rnn", attention="none", bidirectional=False), PAIR),
    "gru": (lambda: reader("translate", "gru", attention="additive", depth=2), PAIR),
    "lstm": (lambda: reader("translate", "lstm", attention="general"), PAIR),
    "lstm-dot": (lambda: reader("chat", "lstm", attention="dot", tied=False), PAIR),
    "recurrent": (lambda: reader("write", "recurrent", cell="lstm", depth=2), TEXT),
    "recurrent-rnn": (lambda: reader("write", "recurrent", cell="rnn", tied=False), TEXT),
    "recurrent-classify": (
        lambda: reader("classify", "recurrent", cell="gru", task_labels=("a", "b"), bidirectional=True),
        TEXT,
    ),
    "vit": (lambda: seer(), noise(6)),
    "vit-mean": (lambda: seer("mean"), noise(6)),
    "captioner": (lambda: captioner(), (noise(12), "the lazy fox")),
    "captioner-hard": (lambda: captioner(attention="hard"), (noise(12), "the lazy fox")),
    "captioner-vit": (lambda: captioner(encoder="vit", decoder="transformer"), (noise(12), "the fox")),
    "words": (named_words, "fox dog"),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def model_and_input(kind: str) -> tuple[Model, Any]:
    build, input = KINDS[kind]
    return build(), input


def close(a: Tensor, b: Tensor) -> None:
    assert_close(a, b, atol=2e-6, rtol=2e-5)


def inner(model: Model) -> Any:
    return getattr(model.model, "model", model.model)


def module(model: Model, part: str) -> Any:
    """The module with this name; blocks are wrapped by residuals."""
    result = model.model if part.startswith("generator") else inner(model)
    for name in part.split("."):
        result = result[int(name)] if name.isdecimal() else getattr(result, name)
    return result

"""Tiny models of every family and setting whose numbers are computed in a way of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from helpers.browsing import MODELS, WORDS
from helpers.folders import save_folder
from helpers.looking import captioner, hearer, noise, reader, recording, seer
from regard import load
from regard.runs.model import Model

BLANK = "the ___ fox"
PAIR = "the quick fox\tthe lazy dog"
LONG: dict[str, Any] = {"window": 1, "globals": 0, "global_qkv": True, "segments": 0}
MORE: dict[str, Callable[[], tuple[Model, Any]]] = {
    "geglu": lambda: (reader("translate", "transformer", ffn="geglu"), WORDS),
    "untied": lambda: (reader("translate", "transformer", tied=False, output_bias=True), WORDS),
    "t5-geglu": lambda: (reader("restore", "t5", ffn="geglu"), BLANK),
    "swiglu": lambda: (reader("write", "gpt", ffn="swiglu", bias=True), WORDS),
    "relative": lambda: (reader("write", "gpt", positions="relative"), WORDS),
    "waves": lambda: (reader("write", "gpt", positions="sinusoidal"), WORDS),
    "qk-norm": lambda: (reader("write", "gpt", qk_norm=True, kv_heads=1), WORDS),
    "qk-norm-learned": lambda: (reader("write", "gpt", qk_norm=True, positions="learned"), WORDS),
    "rnn": lambda: (reader("translate", "rnn", attention="dot", bidirectional=False), WORDS),
    "rnn-both": lambda: (reader("translate", "rnn", attention="none", depth=2), WORDS),
    "gru-forward": lambda: (reader("translate", "gru", attention="none", bidirectional=False), WORDS),
    "lstm-additive": lambda: (reader("translate", "lstm", attention="additive", depth=2), WORDS),
    "rnn-writer": lambda: (reader("write", "recurrent", cell="rnn", depth=2), WORDS),
    "gru-writer": lambda: (reader("write", "recurrent", cell="gru", tied=False), WORDS),
    "lstm-writer": lambda: (reader("write", "recurrent", cell="lstm", depth=2), WORDS),
    "gru-classes": lambda: (
        reader("classify", "recurrent", cell="gru", task_labels=("a", "b"), bidirectional=True),
        WORDS,
    ),
    "lstm-classes": lambda: (
        reader("classify", "recurrent", task_labels=("a", "b"), bidirectional=True, depth=2),
        WORDS,
    ),
    "rnn-classes": lambda: (reader("classify", "recurrent", cell="rnn", task_labels=("a", "b")), PAIR),
    "lstm-mean": lambda: (
        reader("classify", "recurrent", task_labels=("a", "b"), task_mean=True, bidirectional=True),
        WORDS,
    ),
    "lstm-tags": lambda: (
        reader("tag", "recurrent", bidirectional=True, task_labels=("O", "B-X")),
        WORDS,
    ),
    "electra": lambda: (reader("fill", "bert", task_replaced=True), WORDS),
    "electra-blank": lambda: (reader("fill", "bert", task_replaced=True), BLANK),
    "next": lambda: (reader("fill", "bert"), PAIR),
    "electra-next": lambda: (reader("fill", "bert", task_replaced=True), PAIR),
    "pair": lambda: (reader("classify", "bert", task_labels=("a", "b")), PAIR),
    "pair-mean": lambda: (reader("classify", "bert", task_labels=("a", "b"), task_mean=True), PAIR),
    "long-classes": lambda: (reader("classify", "bert", task_labels=("a", "b"), **LONG), WORDS),
    "long-fill": lambda: (reader("fill", "bert", **LONG), BLANK),
    "long-span": lambda: (reader("span", "bert", task_separators=2, **LONG), "the fox\tthe quick brown fox"),
    "narrow": lambda: (reader("fill", "bert", embed_dim=6, pooler="gelu"), BLANK),
    "narrow-next": lambda: (reader("fill", "bert", embed_dim=6, pooler="gelu"), PAIR),
    "gpt-classes": lambda: (reader("classify", "gpt", task_labels=("a", "b")), WORDS),
    "score": lambda: (reader("classify", "bert", task_low=0.0, task_high=5.0), PAIR),
    "tag": lambda: (reader("tag", "bert", task_labels=("O", "B-X")), WORDS),
    "span": lambda: (reader("span", "bert"), "the fox\tthe quick brown fox jumps"),
    "embed": lambda: (reader("embed", "bert"), WORDS),
    "embed-first": lambda: (reader("embed", "bert", task_pooling="first"), WORDS),
    "elmo": lambda: (reader("fill", "elmo"), BLANK),
    "elmo-next": lambda: (reader("fill", "elmo"), PAIR),
    "elmo-classes": lambda: (reader("classify", "elmo", task_labels=("a", "b")), WORDS),
    "elmo-tag": lambda: (reader("tag", "elmo", task_labels=("O", "B-X")), WORDS),
    "elmo-span": lambda: (reader("span", "elmo"), "the fox\tthe quick brown fox jumps"),
    "elmo-embed": lambda: (reader("embed", "elmo"), WORDS),
    "words": lambda: (reader("words", "words"), "fox dog"),
    "vit-mean": lambda: (seer("mean"), noise(6)),
    "vit-waves": lambda: (seer(positions="sinusoidal"), noise(6)),
    "hear": lambda: (hearer(), recording(24)),
    "hear-mean": lambda: (hearer("mean"), recording(16)),
    "hear-waves": lambda: (hearer(positions="sinusoidal"), recording(16)),
    "vit-larger": lambda: (seer(), noise(8)),
    "hard": lambda: (captioner(attention="hard"), noise(12)),
    "zoom": lambda: (captioner(zoom=2), noise(12)),
    "efficientnet": lambda: (captioner(encoder="efficientnet", size=64), noise(64)),
}
FAMILIES = MODELS | MORE


def whole_input(model: Model, input: Any) -> Any:
    """The input, with an answer of several words if the model writes one: its own may be short."""
    answers = {"translate": "der Fuchs springt", "chat": "der Fuchs springt", "caption": "the fox"}
    answer = answers.get(model.task.config.name)
    return input if answer is None else (input, answer)


def load_folder(folder: Path, kind: str, seed: int = 0) -> tuple[Model, Any]:
    """A Hugging Face model of random settings, loaded, and an input for it."""
    save_folder(folder, kind, seed)
    model = load(folder, device="cpu")
    if model.task.reads == "image":
        torch.manual_seed(seed)
        return model, torch.randint(256, model.task.image_shape, dtype=torch.uint8)
    return model, "The cat ___ on" if model.task.config.name in ("restore", "fill") else "The cat sleeps"

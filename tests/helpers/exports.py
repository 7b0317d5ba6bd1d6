"""Tiny models with random weights, as if trained, to be exported."""

from typing import Any

import torch

from helpers.folders import CONTEXT, TEXT, VOCAB
from regard.models import MODELS
from regard.runs import recipe
from regard.runs.model import Model
from regard.tasks import TASKS
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_kinds import train_tokenizer

RECURRENT = ("rnn", "gru", "lstm", "recurrent", "elmo")


def train_tokens(kind: str, task: str) -> Tokenizer:
    return train_tokenizer(kind, TEXT, VOCAB, TASKS[task][0].specials)


def trained_model(
    kind: str,
    task: str,
    tokenizer: Tokenizer | None,
    section: dict[str, Any],
    other: Tokenizer | None = None,
    **sizes: Any,
) -> Model:
    """Return a model as if trained; `other` is the target's tokenizer."""
    built, config, _ = MODELS[kind]
    task_class, task_config = TASKS[task]
    settings = recipe.fill("task", {"name": task} | section, task_config)
    more = {} if tokenizer is None else {"vocab": tokenizer.vocab, "context": CONTEXT}
    more |= {} if kind in RECURRENT else {"heads": 4}
    more |= {} if other is None else {"target_vocab": other.vocab}
    model = task_class.add_head(built(config(**more | {"dim": 40} | sizes)), settings)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.15 * torch.randn_like(p))
    tokenizers = [] if other is None else [other]
    built_task = task_class(settings, tokenizer, model.config.context, *tokenizers)
    return Model(model.eval(), built_task, dict(built_task.generation), None, kind)

"""Models of our own as they come from training, tiny, to be exported."""

from typing import Any

import torch
from folders import CONTEXT, TEXT, VOCAB

from regard import recipe
from regard.models import MODELS
from regard.run import Model
from regard.tasks import TASKS
from regard.text import Tokenizer, train_tokenizer

RECURRENT = ("rnn", "gru", "lstm")


def tokens(kind: str, task: str) -> Tokenizer:
    return train_tokenizer(kind, TEXT, VOCAB, TASKS[task][0].specials)


def made(
    kind: str,
    task: str,
    tokenizer: Tokenizer | None,
    section: dict[str, Any],
    other: Tokenizer | None = None,
    **sizes: Any,
) -> Model:
    """A model as it comes from training; `other`: what it writes has a vocabulary of its own."""
    built, config, _ = MODELS[kind]
    task_class, task_config = TASKS[task]
    settings = recipe.fill("task", {"name": task} | section, task_config)
    more = {} if tokenizer is None else {"vocab": tokenizer.vocab, "context": CONTEXT}
    more |= {} if kind in RECURRENT else {"heads": 4}
    more |= {} if other is None else {"target_vocab": other.vocab}
    model = task_class.headed(built(config(**more | {"dim": 40} | sizes)), settings)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.15 * torch.randn_like(p))
    others = [] if other is None else [other]
    made = task_class(settings, tokenizer, model.config.context, *others)
    return Model(model.eval(), made, dict(made.generation), None, kind)

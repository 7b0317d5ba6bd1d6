"""Models in other libraries' files: folders in Hugging Face's layout, and GGUF."""

from pathlib import Path
from typing import Any

import torch

from regard.convert.huggingface.load import load_folder
from regard.convert.huggingface.tokenizer_json import rename_special_tokens
from regard.errors import UserError
from regard.runs import recipe
from regard.runs.model import Model, best_device
from regard.tasks import TASKS
from regard.text.chat_template import Template
from regard.text.tokenizer import Tokenizer


def load_foreign(folder: Path, device: str | torch.device | None = None) -> Model:
    """The model of a folder in Hugging Face's layout, or of a GGUF file; its task follows from its head."""
    found = load_folder(folder)
    task_class, task_config = TASKS[found.task["name"]]
    config, options = recipe.fill("task", found.task, task_config), dict(found.generation)
    begin, ends, first = options.pop("begin", None), options.pop("ends", []), options.pop("first", None)
    tokenizers: list[Tokenizer | None] = [None]
    if found.tokenizer is not None:
        tokenizers = [load_tokenizer(folder, found)]
        if found.target_tokenizer is not None:
            tokenizers.append(Tokenizer.adopt(found.target_tokenizer, folder))
        for tokenizer in tokenizers if ends else ():
            tokenizer.end = ends[0]  # type: ignore[union-attr]
    module = task_class.add_head(found.model, config)
    if found.head:
        module.head.load_state_dict(found.head)  # type: ignore[union-attr]
    module.to(device or best_device()).eval()
    task = task_class(config, tokenizers[0], found.model.config.context, *tokenizers[1:])  # type: ignore[union-attr, arg-type]
    template = None
    if found.chat_template is not None:
        template = Template(found.chat_template, found.special_tokens, str(found.template_path))
    task.adopt_prompt_format(begin, ends, first, template)
    greedy = {"temperature": 0.0} if template is not None else {}  # a model that answers need not be original
    model = Model(module, task, task.generation | greedy | options, folder, found.kind)
    model.request([], {})  # raises an error for impossible options now
    return model


def load_tokenizer(folder: Path, found: Any) -> Tokenizer:
    """Theirs, with our names for its special tokens."""
    if isinstance(found.tokenizer, Path):
        where, tokenizer = found.tokenizer, Tokenizer.load(found.tokenizer)
    else:
        where, tokenizer = folder, Tokenizer.adopt(found.tokenizer, folder)
    if found.token_names:
        tokenizer = Tokenizer.read(rename_special_tokens(tokenizer.inner.to_str(), found.token_names), where)
    if tokenizer.vocab > (vocab := found.model.config.vocab):
        raise UserError(
            f"{where}: its {tokenizer.vocab} tokens are more than the model's {vocab}; "
            "they don't belong together"
        )
    return tokenizer

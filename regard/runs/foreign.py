"""Load models from other libraries' files: folders in Hugging Face's layout, GGUF, and word vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.convert.huggingface.family import EmptyWeights
from regard.convert.huggingface.load import load_folder
from regard.convert.huggingface.tokenizer_json import rename_special_tokens
from regard.data.word_vectors import read_vectors
from regard.errors import UserError
from regard.models import Electra, Word2Vec, WordsConfig
from regard.quantize.model import pack_layers
from regard.runs import recipe
from regard.runs.model import Model, best_device
from regard.tasks import TASKS, WordsTask, WordsTaskConfig
from regard.text.chat_template import Template
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_kinds import known_words


def load_foreign(folder: Path, device: str | torch.device | None = None, small: bool = False) -> Model:
    """Load a folder in Hugging Face's layout, or a GGUF file; the task follows from the model's head.

    On a CPU, quantised weights of a GGUF file stay quantised if `small`.
    """
    device = torch.device(device or best_device())
    loaded = load_folder(folder, small and device.type == "cpu")
    task_class, task_config = TASKS[loaded.task["name"]]
    config, options = recipe.fill("task", loaded.task, task_config), dict(loaded.generation)
    begin, ends, first = options.pop("begin", None), options.pop("ends", []), options.pop("first", None)
    tokenizers: list[Tokenizer | None] = [None]
    if loaded.tokenizer is not None:
        tokenizers = [load_tokenizer(folder, loaded)]
        if loaded.target_tokenizer is not None:
            tokenizers.append(Tokenizer.adopt(loaded.target_tokenizer, folder))
        for tokenizer in tokenizers if ends else ():
            tokenizer.end = ends[0]  # type: ignore[union-attr]
    module = task_class.add_head(loaded.model, config)
    if isinstance(module, Electra):
        module.load_state_dict(loaded.head, strict=False)
    elif loaded.head:
        module.head.load_state_dict(loaded.head)  # type: ignore[union-attr]
    pack_layers(module)
    module.to(device).eval()
    task = task_class(config, tokenizers[0], loaded.model.config.context, *tokenizers[1:])  # type: ignore[union-attr, arg-type]
    template = None
    if loaded.chat_template is not None:
        template = Template(loaded.chat_template, loaded.special_tokens, str(loaded.template_path))
    task.adopt_prompt_format(begin, ends, first, template)
    greedy = {"temperature": 0.0} if template is not None else {}  # a model that answers need not be original
    model = Model(module, task, task.generation | greedy | options, folder, loaded.kind)
    model.request([], {})  # raises an error for impossible options
    return model


def load_vectors(path: Path, device: str | torch.device | None = None) -> Model:
    """Load a file of GloVe or word2vec as a model, which is used like one that was trained here.

    Such files have no vectors of words as neighbours: these are 0, as in an untrained model.
    """
    words, vectors = read_vectors(str(path))
    tokenizer = known_words(words)
    matrix = torch.from_numpy(vectors[: tokenizer.vocab])  # (V, D)
    with EmptyWeights():
        module = Word2Vec(WordsConfig(vocab=len(matrix), dim=matrix.shape[1]))
    near = torch.from_numpy(np.zeros(matrix.shape, np.float32))  # takes no memory until it is written to
    module.load_state_dict({"embed.weight": matrix, "near.weight": near}, assign=True)
    module.to(device or best_device()).eval()
    task = WordsTask(WordsTaskConfig(name="words"), tokenizer, module.config.context)
    return Model(module, task, dict(task.generation), path, "words")


def load_tokenizer(folder: Path, loaded: Any) -> Tokenizer:
    """Load the tokenizer of such a folder, and rename its special tokens to Regard's names."""
    if isinstance(loaded.tokenizer, Path):
        where, tokenizer = loaded.tokenizer, Tokenizer.load(loaded.tokenizer)
    else:
        where, tokenizer = folder, Tokenizer.adopt(loaded.tokenizer, folder)
    if loaded.token_names:
        tokenizer = Tokenizer.read(rename_special_tokens(tokenizer.inner.to_str(), loaded.token_names), where)
    if tokenizer.vocab > (vocab := loaded.model.config.vocab):
        raise UserError(
            f"{where}: its {tokenizer.vocab} tokens are more than the model's {vocab}; "
            "they don't belong together"
        )
    return tokenizer

"""Run folders with random weights, for measurements through `regard.load` and `regard serve`."""

import json
from pathlib import Path
from typing import Any

import torch

from regard.files.tensors import write_tensors
from regard.models import GPT, GPTConfig, Transformer, TransformerConfig
from regard.runs import recipe
from regard.runs.folder import begin
from regard.runs.layout import GENERATION, WEIGHTS
from regard.tasks import Task, Translate, TranslateConfig, Write, WriteConfig
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_kinds import train_tokenizer


def write_run(folder: Path, model: torch.nn.Module, task: Task[Any, Any, Any], name: str) -> Path:
    """Write a run whose answers never end before the requested number of tokens."""
    begin(folder, model, task, recipe.read(name))
    write_tensors(folder / WEIGHTS, dict(model.state_dict()))
    tokenizer = task.tokenizer
    never = [tokenizer.id(token) for token in (*task.specials, "<unk>")]
    suppressed = sorted({id for id in never if id is not None} | set(task.end_ids))
    (folder / GENERATION).write_text(json.dumps({"suppress_tokens": suppressed}))
    return folder


def letters(count: int) -> str:
    """Return `count` different characters."""
    ranges = (range(0x3400, 0x4DB6), range(0x4E00, 0x9FA6), range(0xAC00, 0xD7A4), range(0x20000, 0x23000))
    return "".join(chr(c) for part in ranges for c in part)[:count]


def gpt_run(folder: Path, size: str, vocab: int) -> tuple[Path, str]:
    """A GPT with a token for each of `vocab` characters; and these characters, to ask with."""
    text = letters(vocab - len(Write.specials) - 1)
    tokenizer = train_tokenizer("char", [text], vocab, Write.specials)
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab=tokenizer.vocab, **GPTConfig.PRESETS[size]))
    task = Write(WriteConfig(name="write"), tokenizer, model.config.context)
    return write_run(folder, model, task, "write"), text


def transformer_run(folder: Path, preset: str, tokenizer: Tokenizer) -> Path:
    """As published: post-norm, ReLU, sinusoids; the same shapes as Marian's."""
    torch.manual_seed(0)
    sizes = TransformerConfig.PRESETS[preset]
    model = Transformer(TransformerConfig(vocab=tokenizer.vocab, **sizes))
    task = Translate(TranslateConfig(name="translate"), tokenizer, sizes["context"])
    return write_run(folder, model, task, "translate")

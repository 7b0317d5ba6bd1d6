"""A model as a folder for other programs."""

import copy
from dataclasses import asdict
from pathlib import Path

import torch

from regard.convert.export import ExportRequest
from regard.convert.formats import EXPORTS
from regard.errors import UserError
from regard.runs.layout import BASE
from regard.runs.model import Model

TRIED = 200  # texts, with which an exported model is tried


def export(model: Model, folder: str | Path, to: str = "hf") -> str:
    """Write a folder of the model for other programs; return a line that says what trying it showed.

    `hf` is Hugging Face's layout, which `load` reads, too.
    """
    if to not in EXPORTS:
        raise UserError(f"to={to} is not known; known are {', '.join(EXPORTS)}")
    task, tokenizer, module = model.task, model.tokenizer, model.model
    if any(p.is_cuda or p.dtype != torch.float32 for p in module.parameters()):
        module = copy.deepcopy(module).to("cpu", torch.float32)
    end = task.end if task.end is not None or tokenizer is None else tokenizer.end
    other, template = task.target_tokenizer, task.template
    request = ExportRequest(
        model=module,
        task=asdict(task.config),
        generation=model.generation,
        tokenizer=None if tokenizer is None else tokenizer.inner.to_str(),
        begin=task.begin,
        end=end,
        ends=task.ends,
        target_tokenizer=None if other is None else other.inner.to_str(),
        source_end=task.end if task.source_end is None else task.source_end,
        samples=[
            ids for text in sample_texts(task.config.name) if tokenizer and (ids := tokenizer.encode(text))
        ],
        chat_template=None if template is None else template.text,
        special_tokens={} if template is None else template.specials,
        adapter=model.folder if model.folder and (model.folder / BASE).is_file() else None,
    )
    return EXPORTS[to](folder, request)


def sample_texts(task: str) -> list[str]:
    """Texts to try an exported model with: of the task's built-in data, or of another's."""
    here = Path(__file__).parents[1] / "builtin"
    names = [f"{name}.tsv" for name in (task, "translate")]
    path = next(here / name for name in names if (here / name).is_file())
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.split("\t")[0] for line in lines[:TRIED]]

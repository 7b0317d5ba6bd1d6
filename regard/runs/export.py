"""Write a model as a folder for other programs."""

import copy
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import torch

from regard.convert.export import ExportRequest
from regard.convert.formats import EXPORTS
from regard.convert.huggingface.hub import HUB
from regard.convert.model_card import CardFacts, small_card
from regard.describe.export import as_exported
from regard.errors import UserError
from regard.files.atomic import as_private_as, new_folder
from regard.files.tensors import write_tensors
from regard.quantize.model import PRECISIONS, dequantize_model, is_quantized, quantized_tensors
from regard.runs.folder import write_model_files
from regard.runs.layout import BASE, CARD, RECIPE, WEIGHTS
from regard.runs.model import Model
from regard.runs.summary import read_run

MAX_CARD = 2**16  # bytes of a model card that are read
TRIED = 200  # texts with which an exported model is checked


def export(
    model: Model, folder: str | Path, to: str = "hf", dtype: str = "auto", license: str | None = None
) -> str:
    """Write a folder of the model for other programs; return a line with the result of checking it.

    `hf` is Hugging Face's layout, which `load` reads, too. With a `dtype` of fewer bits than float32, it is a
    folder for `load` alone, or a GGUF file. `license` is the hub's name of a licence, such as apache-2.0, for
    the model's card; by default it is the licence on the card of the model that it was trained from. Weights
    of fewer bits are written as they were loaded: load a GGUF file in float32 to write what it holds. What is
    written is as private as the model's own files.
    """
    if to not in EXPORTS:
        raise UserError(f"to={to} is not known; known are {', '.join(EXPORTS)}")
    if dtype not in ("auto", "float32", *PRECISIONS):
        raise UserError(f"dtype={dtype} is not known; known are auto, float32, {', '.join(PRECISIONS)}")
    if dtype not in ("auto", "float32") and to != "gguf":
        if to != "hf":
            raise UserError(f"dtype={dtype} is not for --to {to}; leave one of them out")
        return export_small(model, Path(folder), dtype, license)
    task, tokenizer, module = model.task, model.tokenizer, model.model
    if is_quantized(module):
        module = copy.deepcopy(module)
        dequantize_model(module)
    if any(p.is_cuda or p.dtype != torch.float32 for p in module.parameters()):
        module = copy.deepcopy(module).to("cpu", torch.float32)
    end = task.end if task.end is not None or tokenizer is None else tokenizer.end
    other, template = task.target_tokenizer, task.template
    request = ExportRequest(
        model=as_exported(module),
        task=asdict(task.config),
        generation=model.generation,
        tokenizer=None if tokenizer is None else tokenizer.inner.to_str(),
        begin=task.begin,
        end=end,
        ends=task.ends,
        first=task.starts,
        target_tokenizer=None if other is None else other.inner.to_str(),
        source_end=task.end if task.source_end is None else task.source_end,
        samples=[
            ids for text in sample_texts(task.config.name) if tokenizer and (ids := tokenizer.encode(text))
        ],
        chat_template=None if template is None else template.text,
        special_tokens={} if template is None else template.specials,
        adapter=model.folder if model.folder and (model.folder / BASE).is_file() else None,
        card=card_facts(model, Path(folder).name, license),
        dtype=dtype,
    )
    with as_private_as(model.weight_files):
        return EXPORTS[to](folder, request)


def export_small(model: Model, folder: Path, dtype: str, license: str | None) -> str:
    """Write a folder like a run's, with the layers' weights in fewer bits; return a line with its size."""
    if model.folder is None or not (model.folder / RECIPE).is_file():
        raise UserError(f"{model.folder}: dtype={dtype} is for models that were trained here; leave it out")
    card = small_card(model.task.config.name, dtype, card_facts(model, folder.name, license))
    tensors = quantized_tensors(model.model, dtype)
    with as_private_as(model.weight_files), new_folder(folder, "DIR") as draft:
        write_model_files(draft.path, model.model, model.task, str(model.kind), model.generation)
        write_tensors(draft.path / WEIGHTS, tensors)
        (draft.path / CARD).write_text(card, encoding="utf-8")
        for name in model.task.files:
            if (file := model.folder / name).is_file():
                shutil.copyfile(file, draft.path / name)
        draft.publish(last=WEIGHTS)
    size, before = (sum(t.nbytes for t in ts.values()) for ts in (tensors, model.model.state_dict()))
    return f"{size / 2**20:.1f} MiB of weights, {size / before:.0%} of those in float32"


def card_facts(model: Model, name: str, license: str | None) -> CardFacts:
    """Return the facts that a model's folder has about it: its origin, its scores, its licence."""
    if license is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,60}", license):
        raise UserError(f"license={license!r}: give the hub's name of a licence, such as apache-2.0")
    if model.folder is None or not (model.folder / RECIPE).is_file():
        own = None if model.folder is None else card_license(model.folder)
        return CardFacts(name=name, license=license or own)
    run = read_run(model.folder)
    if run.problem is not None:  # without an error, the card would silently lack scores and origin
        raise UserError(f"{model.folder}: the facts for its model card can't be read: {run.problem}")
    scores = {
        key.removeprefix("valid_"): value
        for key, value in (run.best or {}).items()
        if key.startswith("valid_")
    }
    base = run.base or ""
    on_hub = base.removeprefix(HUB) if base.startswith(HUB) else None
    data = [Path(file).name for file in run.valid or run.files]
    license = license or (card_license(Path(base)) if base and on_hub is None else None)
    return CardFacts(name=name, license=license, base_model=on_hub, data=data, scores=scores)


def card_license(folder: Path) -> str | None:
    """The licence in the head of a folder's model card, if there is one."""
    file = folder / "README.md"
    if not file.is_file():
        return None
    with file.open("rb") as card:
        head = card.read(MAX_CARD).decode("utf-8", "replace").split("---")[1:2]
    match = re.search(r"^license: *([A-Za-z0-9][A-Za-z0-9.+-]{0,60}) *$", "".join(head), re.MULTILINE)
    return match[1] if match and match[1] != "unknown" else None


def sample_texts(task: str) -> list[str]:
    """Texts to check an exported model with, from the built-in data of its task or of another one."""
    here = Path(__file__).parents[1] / "builtin"
    names = [f"{name}.tsv" for name in (task, "translate")]
    path = next(here / name for name in names if (here / name).is_file())
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.split("\t")[0] for line in lines[:TRIED]]

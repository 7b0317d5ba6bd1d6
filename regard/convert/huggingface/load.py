"""Load models in Hugging Face's layout, one file a family, and GGUF files.

Nothing of a folder is executed, and nothing is skipped silently: a key that would change the computation, or
a tensor without a place, raises an error that names it.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from torch import nn

from regard.convert.gguf.llamacpp import read_gguf
from regard.convert.huggingface import (
    bert,
    distilbert,
    electra,
    gpt2,
    llama,
    longformer,
    marian,
    megatron_bert,
    pegasus,
    roberta,
    siglip,
    t5,
    vit,
)
from regard.convert.huggingface.chat import read_chat_template
from regard.convert.huggingface.config import Config
from regard.convert.huggingface.family import Family, build_model
from regard.convert.huggingface.files import CONFIG, TOKENIZER, WEIGHTS, find_weights, read_weights
from regard.convert.huggingface.generation import read_generation
from regard.convert.huggingface.identify import HEAD_NAMES, MASKED_LM_HEADS, NEXT_HEAD, TASK_OF_CLASS
from regard.convert.huggingface.sentence_transformers import MODULES, read_dense, read_modules
from regard.convert.huggingface.sentencepiece import SOURCE, marian_tokenizers
from regard.errors import UserError
from regard.files.tensors import Tensors
from regard.files.untrusted import read_json, read_text

FAMILIES: dict[str, Family] = {  # by model_type
    "bert": bert.FAMILY,
    "distilbert": distilbert.FAMILY,
    "electra": electra.FAMILY,
    "gpt2": gpt2.FAMILY,
    "llama": llama.FAMILY,
    "longformer": longformer.FAMILY,
    "marian": marian.FAMILY,
    "megatron-bert": megatron_bert.FAMILY,
    "mistral": llama.FAMILY,
    "pegasus": pegasus.FAMILY,
    "qwen2": llama.FAMILY,
    "qwen3": llama.FAMILY,
    "roberta": roberta.FAMILY,
    "siglip": siglip.FAMILY,
    "t5": t5.FAMILY,
    "vit": vit.FAMILY,
}
KINDS = tuple(FAMILIES)
WRITING_TASKS = {"gpt": "write", "transformer": "translate", "t5": "restore"}  # write text
LIKE_ROBERTA = ("roberta", "longformer")  # in their special tokens
SENTINEL = "<extra_id_0>"  # T5's token for the first missing span
MAX_TOKENIZER = 2**26  # bytes


@dataclass(frozen=True, kw_only=True)
class LoadedFolder:
    """The content of a folder: the model, a fine-tuned head's weights, and the task to use it for."""

    kind: str  # a name in MODELS
    model: nn.Module
    task: dict[str, Any]  # the section of a recipe
    head: Tensors = field(default_factory=dict)
    tokenizer: Path | tokenizers.Tokenizer | None = None
    target_tokenizer: tokenizers.Tokenizer | None = None  # the target's own, if it has one
    token_names: dict[str, str] = field(default_factory=dict)  # their names of special tokens: Regard's
    generation: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    special_tokens: dict[str, str] = field(default_factory=dict)  # by role, for the chat template
    template_path: Path | None = None


def is_huggingface(folder: Path) -> bool:
    """Return whether this is a folder in Hugging Face's layout (not a run of Regard), or a file."""
    if folder.is_file() or (folder / MODULES).exists():
        return True
    if not (folder / CONFIG).is_file():
        return False
    config = read_json(folder / CONFIG)
    first_bert = "model_type" not in config and "hidden_size" in config
    return "task" not in config and (first_bert or config.get("model_type") in KINDS)


def load_folder(path: str | Path, small: bool = False) -> LoadedFolder:
    """The model of a folder or a GGUF file, and its task, which follows from the kind and the head.

    Quantised weights of a GGUF file stay quantised if `small`, or become float32.
    """
    folder = top = Path(path)
    if folder.is_file():
        return load_gguf(folder, small)
    sentences: dict[str, Any] | None = None
    dense: Path | None = None
    if (folder / MODULES).exists():
        folder, sentences, dense = read_modules(folder)
    family, c, model, names, head = load_model(folder)
    writes = family.kind in WRITING_TASKS
    if (head and (writes or sentences is not None)) or (writes and dense):
        raise UserError(
            f"{c.weights}: a head for classes or answers is not supported in such a folder; remove it"
        )
    tokenizer, target = load_tokenizers(family, folder, top)
    if writes:
        task = writing_task(family.kind, tokenizer)
    elif dense:
        head = read_dense(dense)
        task = head_task(c, head, model.config.dim, "classify") | (sentences or {})
    elif sentences is not None:
        task = {"name": "embed"} | sentences
    elif head:
        task = head_task(c, head, model.config.dim)
        if task["name"] == "see":
            task |= vit.read_preprocessor(folder, model.config.size, model.config.channels)
    elif any(name.startswith((*MASKED_LM_HEADS, NEXT_HEAD)) for name in names):
        words, follows = (
            any(name.startswith(head) for name in names) for head in (MASKED_LM_HEADS, NEXT_HEAD)
        )
        task = {"name": "fill", "next": follows, "words": words}
    elif family.kind == "vit":
        raise UserError(f"{folder}: a ViT without a head for classes; save a ForImageClassification")
    else:
        task = {"name": "embed"}
    template, special_tokens, template_path = (
        read_chat_template(top) if family.kind == "gpt" else (None, {}, None)
    )
    return LoadedFolder(
        kind=family.kind,
        model=model,
        task=task,
        head=head,
        tokenizer=tokenizer,
        target_tokenizer=target,
        token_names=roberta.TOKEN_NAMES if c.kind in LIKE_ROBERTA else {},
        generation=read_generation(folder, c, family.kind != "gpt", model.config.vocab) if writes else {},
        chat_template=template,
        special_tokens=special_tokens,
        template_path=template_path,
    )


def load_gguf(path: Path, small: bool) -> LoadedFolder:
    file = read_gguf(path, small)
    return LoadedFolder(
        kind="gpt",
        model=file.model,
        task={"name": "write"},
        tokenizer=file.tokenizer,
        generation=file.generation,
        chat_template=file.chat_template,
        special_tokens=file.special_tokens,
        template_path=path,
    )


def load_model(folder: Path) -> tuple[Family, Config, Any, set[str], Tensors]:
    """Load a folder's family, settings and model, its tensors' names, and a fine-tuned head's weights."""
    path = find_weights(folder)
    c = Config.read(folder)
    if c.kind not in FAMILIES:
        raise c.unknown("model_type", c.kind, ", ".join(KINDS))
    if c.values.get("auto_map"):
        raise UserError(f"{c.path}: auto_map asks for the folder's own code, which is never run; remove it")
    family = FAMILIES[c.kind]
    c.weights = path
    state = family.unpack(read_weights(path), c)
    heads = [(head, end) for head in HEAD_NAMES for end in ("weight", "bias")]
    head = {end: state.pop(f"{name}.{end}") for name, end in heads if f"{name}.{end}" in state}
    head |= electra.take_discriminator(state, c) if family is electra.FAMILY else {}
    settings = family.settings(c, state)
    c.finish()
    names = set(state)
    model = build_model(family, settings, state, c.path, path)
    return family, c, model, names, head


def writing_task(kind: str, tokenizer: Path | tokenizers.Tokenizer | None) -> dict[str, Any]:
    """The task of a model that writes text. A T5 restores spans only if its tokenizer has tokens for them."""
    if kind == "t5" and not (isinstance(tokenizer, Path) and SENTINEL in read_text(tokenizer, MAX_TOKENIZER)):
        return {"name": "translate"}
    return {"name": WRITING_TASKS[kind]}


def head_task(c: Config, head: Tensors, dim: int, task: str | None = None) -> dict[str, Any]:
    """The task of a fine-tuned folder, by its class, with the names of the labels; or of an ELECTRA's
    discriminator."""
    if "found.weight" in head:
        return {"name": "fill", "next": False, "words": False, "replaced": True}
    architecture, sees = c.architecture or "BertForSequenceClassification", c.kind in ("vit", "siglip")
    task = task or next((task for end, task in TASK_OF_CLASS.items() if architecture.endswith(end)), None)
    if task is None or (task == "see") != sees:
        name = "ViT" if sees else "Bert"
        supported = ", ".join(
            f"{name}{end}" for end, task in TASK_OF_CLASS.items() if (task == "see") == sees
        )
        raise c.unknown("architectures", architecture, supported)
    outputs = head["bias"].numel() if "bias" in head else 0
    if task == "span" and outputs != 2:
        raise UserError(
            f"{c.path}: {architecture} should have two outputs, for an answer's first token and its last"
        )
    shapes = [t.shape for t in (head.get("weight"), head.get("bias")) if t is not None]
    if shapes != [(outputs, dim), (outputs,)]:
        raise UserError(f"{c.weights}: its head does not fit the model of {CONFIG}; copy both files again")
    if task == "span":
        return {"name": "span", "separators": 2 if c.kind in LIKE_ROBERTA else 1}
    if (problem := c.values.get("problem_type")) not in (None, "single_label_classification"):
        raise c.unknown("problem_type", problem, "single_label_classification")
    labels = c.values.get("id2label") or {str(i): f"LABEL_{i}" for i in range(outputs)}
    if outputs < 2 or not isinstance(labels, dict) or sorted(labels) != sorted(map(str, range(outputs))):
        raise UserError(
            f"{c.path}: id2label should name the {outputs} classes of {WEIGHTS}, two or more, from 0 up"
        )
    return {"name": task, "labels": [str(labels[str(i)]) for i in range(outputs)]}


def load_tokenizers(
    family: Family, folder: Path, top: Path
) -> tuple[Path | tokenizers.Tokenizer | None, tokenizers.Tokenizer | None]:
    """Load a folder's tokenizer.json, which may be in the parent folder, and the target's own."""
    if family.kind == "vit":
        return None, None
    if family is marian.FAMILY and not (folder / TOKENIZER).is_file() and (folder / SOURCE).is_file():
        return marian_tokenizers(folder)
    for place in (folder, top):
        if (place / TOKENIZER).is_file():
            return place / TOKENIZER, None
    raise UserError(
        f"{top}: no {TOKENIZER}; write it with transformers: "
        f"AutoTokenizer.from_pretrained({str(top)!r}).save_pretrained({str(top)!r})"
    )

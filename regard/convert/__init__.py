"""Other people's folders, both ways: models in Hugging Face's layout into ours, and ours into theirs.

One file a family, with its names both ways in one table. Nothing of a folder is run, and nothing is left out
unsaid: a key that would change what is computed, or a tensor without a place, is a Mistake that names it.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import tokenizers
from torch import nn

from ..checkpoint import Tensors, write_tensors
from ..errors import Mistake
from ..files import read_text
from ..models import GPT, Bert, Labelled, Transformer, ViT
from . import bert, distilbert, gpt2, llama, marian, pegasus, roberta, siglip, t5, vit
from .card import card
from .chat import read_chat
from .ctranslate2 import export_ctranslate2
from .family import Config, Family, fitted, weights_of
from .files import (
    CONFIG,
    GENERATION,
    PREPROCESSOR,
    TOKENIZER,
    WEIGHTS,
    read_json,
    read_weights,
    weights_file,
    whole_folder,
    write_json,
)
from .generation import read_generation, written_generation
from .hub import HUB, fetched
from .llamacpp import read_gguf
from .made import Made
from .onnx import export_onnx
from .sentences import MODULES, read_parts, write_parts
from .spm import SOURCE, marian_tokenizers
from .tokens import framed, numbered, renamed, roles

FAMILIES: dict[str, Family] = {  # by their model_type
    "bert": bert.FAMILY,
    "distilbert": distilbert.FAMILY,
    "gpt2": gpt2.FAMILY,
    "llama": llama.FAMILY,
    "marian": marian.FAMILY,
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
HEADED = {  # how the name of their class ends: the task
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "tag",
    "ForQuestionAnswering": "span",
    "ForImageClassification": "see",
}
SENTINEL = "<extra_id_0>"  # stands for the first missing span
LABELS = ("classifier", "qa_outputs")  # their names of such heads
WRITE = {"gpt": "write", "transformer": "translate", "t5": "restore"}  # what models that write are for


@dataclass(frozen=True)
class Found:
    """What a folder holds: the model, a fine-tuned head's weights apart, and the task to use it for."""

    kind: str  # a name in MODELS
    model: nn.Module
    task: dict[str, Any]  # the section of a recipe
    head: Tensors
    tokenizer: Path | tokenizers.Tokenizer | None
    names: dict[str, str]  # of special tokens, theirs: ours
    generation: dict[str, Any]
    template: str | None = None  # of one that talks
    specials: dict[str, str] = field(default_factory=dict)  # tokens by their roles, for the template
    told: Path | None = None  # where the template stands
    target: tokenizers.Tokenizer | None = None  # of what is written, where it is not that of what is read


def is_theirs(folder: Path) -> bool:
    """Whether a folder is in Hugging Face's layout, and not a run of ours; or it is a file."""
    if folder.is_file() or (folder / MODULES).exists():
        return True
    if not (folder / CONFIG).is_file():
        return False
    config = read_json(folder / CONFIG)
    first = "model_type" not in config and "hidden_size" in config  # the first ones did not say
    return "task" not in config and (first or config.get("model_type") in KINDS)


def load_folder(folder: str | Path) -> Found:
    """The model of a folder, and what it is for: one that writes writes on, translates or restores; with a
    head for classes, it classifies, tags or sees; with one for answers, it finds them; with one for hidden
    words, it fills in; an encoder alone, or with sentence-transformers' parts, embeds. A file is a GGUF."""
    folder, top = Path(folder), Path(folder)
    if folder.is_file():
        file = read_gguf(folder)
        told = file.generation, file.template, file.specials, folder
        return Found("gpt", file.model, {"name": "write"}, {}, file.tokenizer, {}, *told)
    sentences: dict[str, Any] | None = None
    if (folder / MODULES).exists():
        folder, sentences = read_parts(folder)
    family, c, model, held, head = load_model(folder)
    if head and (family.kind in WRITE or sentences is not None):
        raise Mistake(
            f"{c.weights}: its head for classes or answers has no place in such a folder; remove it"
        )
    generation: dict[str, Any] = {}
    tokenizer: Path | tokenizers.Tokenizer | None = None
    target = None
    if family is marian.FAMILY and not (folder / TOKENIZER).is_file() and (folder / SOURCE).is_file():
        tokenizer, target = marian_tokenizers(folder)
    elif family.kind != "vit":
        tokenizer = tokenizer_of(folder, top)
    if family.kind in WRITE:
        task: dict[str, Any] = {"name": WRITE[family.kind]}
        known = read_text(tokenizer, 2**26) if isinstance(tokenizer, Path) else ""
        if family.kind == "t5" and SENTINEL not in known:
            task = {"name": "translate"}  # it was not made to put spans back
        generation = read_generation(folder, c, family.kind != "gpt", model.config.vocab)
    elif sentences is not None:
        task = {"name": "embed"} | sentences
    elif head:
        task = headed(c, head, model.config.dim)
        if task["name"] == "see":
            task |= vit.pictures(folder, model.config.size, model.config.channels)
    elif any(name.startswith(("cls.predictions.", "lm_head.", "vocab_")) for name in held):
        task = {"name": "fill", "next": any(name.startswith("cls.seq_relationship.") for name in held)}
    elif family.kind == "vit":
        raise Mistake(f"{folder}: a ViT without a head for classes; only {wanted('see')} are known")
    else:
        task = {"name": "embed"}
    names = roberta.SPECIALS if family is roberta.FAMILY else {}
    found = Found(family.kind, model, task, head, tokenizer, names, generation, target=target)
    if family.kind == "gpt":
        template, specials, where = read_chat(top)
        return replace(found, template=template, specials=specials, told=where)
    return found


def load_model(folder: Path) -> tuple[Family, Config, Any, set[str], Tensors]:
    """The model of a folder; the names of what its files hold; and a fine-tuned head."""
    where = weights_file(folder)
    c = Config.read(folder)
    if c.kind not in FAMILIES:
        raise c.wrong("model_type", c.kind, ", ".join(KINDS))
    if c.told.get("auto_map"):
        raise Mistake(f"{c.where}: auto_map asks for code of the folder's own, which is never run; remove it")
    family = FAMILIES[c.kind]
    c.weights = where
    state = family.unpack(read_weights(where), c)
    head = {end: state.pop(f"{label}.{end}") for label in LABELS for end in ("weight", "bias")
            if f"{label}.{end}" in state}  # fmt: skip
    settings = family.settings(c, state)
    c.finish()
    names = set(state)
    model = fitted(family, settings, state, c.where, where)
    return family, c, model, names, head


def headed(c: Config, head: Tensors, dim: int) -> dict[str, Any]:
    """The task of a fine-tuned folder, with the names of its classes."""
    made, sees = c.made or "BertForSequenceClassification", c.kind in ("vit", "siglip")
    task = next((task for end, task in HEADED.items() if made.endswith(end)), None)
    if task is None or (task == "see") != sees:
        name = "ViT" if sees else "Bert"
        known = ", ".join(f"{name}{end}" for end in HEADED if (HEADED[end] == "see") == sees)
        raise Mistake(f"{c.where}: architectures={made} is not known; known are {known}")
    many = head["bias"].numel() if "bias" in head else 0
    if task == "span" and many != 2:
        raise Mistake(f"{c.where}: {made} should have two outputs, an answer's first word and its last")
    if [t.shape for t in (head.get("weight"), head.get("bias")) if t is not None] != [(many, dim), (many,)]:
        raise Mistake(f"{c.weights}: its head does not fit the model; {CONFIG} and it don't belong together")
    if task == "span":
        return {"name": "span"}
    if (problem := c.told.get("problem_type")) not in (None, "single_label_classification"):
        raise c.wrong("problem_type", problem, "single_label_classification")
    names = c.told.get("id2label") or {str(i): f"LABEL_{i}" for i in range(many)}
    if many < 2 or not isinstance(names, dict) or sorted(names) != sorted(map(str, range(many))):
        raise Mistake(
            f"{c.where}: id2label should name the {many} classes of {WEIGHTS}, two or more, from 0 up"
        )
    return {"name": task, "labels": [str(names[str(i)]) for i in range(many)]}


def wanted(task: str) -> str:
    return next(end for end, name in HEADED.items() if name == task)


def tokenizer_of(folder: Path, top: Path) -> Path:
    """A folder's tokenizer.json, or that of the folder around it."""
    for place in (folder, top):
        if (place / TOKENIZER).is_file():
            return place / TOKENIZER
    raise Mistake(
        f"{top}: no {TOKENIZER}; write it with transformers: "
        f"AutoTokenizer.from_pretrained({str(top)!r}).save_pretrained({str(top)!r})"
    )


# Out


def export_folder(folder: str | Path, made: Made) -> str:
    """A folder in Hugging Face's layout, at once or not at all."""
    folder, inner = Path(folder), cast("Any", made.module)
    task = str(made.task["name"])
    head: Any = None
    if isinstance(inner, Labelled):
        if inner.mean:
            raise Mistake(
                "task.mean=true has no place in their heads, which read the first token; train without"
            )
        inner, head = inner.model, inner.head
    family, config = described(inner, task, made.task, head, made.tokenizer)
    first, last = ("[CLS]", "[SEP]") if family.kind == "bert" else (None, None)
    if config["model_type"] == "roberta":
        first, last = "<s>", "</s>"
        spelt = {ours: name for name, ours in roberta.SPECIALS.items()}
        made = replace(made, tokenizer=renamed(made.tokenizer or "", spelt))
    tensors = weights_of(family, inner)
    if head is not None:
        label = LABELS[task == "span"]
        tensors |= {f"{label}.{end}": t for end, t in head.state_dict().items()}
    tensors = family.pack(tensors, config["architectures"][0])
    tokens = special_ids(made, family)
    with whole_folder(folder) as beside:
        write_json(beside / CONFIG, config | tokens | {"dtype": "float32", "torch_dtype": "float32"})
        write_tensors(beside / WEIGHTS, {name: t.float() for name, t in tensors.items()})
        if made.tokenizer is not None:
            if family.kind in ("transformer", "t5"):
                last = next((name for name, id in numbered(made.tokenizer).items() if id == made.end), None)
            (beside / TOKENIZER).write_text(framed(made.tokenizer, first, last) + "\n", encoding="utf-8")
            told = roles(made.tokenizer, made.end if family.kind in WRITE else None, inner.config.context)
            if config["model_type"] == "roberta":
                there = numbered(made.tokenizer)
                told |= {role: name for role, name in roberta.ROLES.items() if name in there}
            if made.template is not None:
                told |= {**made.specials, "chat_template": made.template}
            write_json(beside / "tokenizer_config.json", told)
            special = {role: name for role, name in told.items() if role.endswith("_token")}
            write_json(beside / "special_tokens_map.json", special)
        if family.kind in WRITE:
            write_json(beside / GENERATION, written_generation(made.generation, tokens))
        if task == "see":
            write_json(beside / PREPROCESSOR, vit.preprocessor(made.task))
        if task == "embed":
            write_parts(beside, made.task, inner.config.dim)
        (beside / "README.md").write_text(card(task, config), encoding="utf-8")
    return ""  # there is nothing to try it with


EXPORTS = {"hf": export_folder, "onnx": export_onnx, "ctranslate2": export_ctranslate2}


def described(
    inner: nn.Module, task: str, section: dict[str, Any], head: nn.Linear | None, tokenizer: str | None
) -> tuple[Family, dict[str, Any]]:
    """The family that has such a model, and its config.json."""
    if isinstance(inner, GPT) and task == "write":
        family = gpt2.FAMILY if inner.config.positions == "learned" else llama.FAMILY
        return family, family.describe(inner)
    if isinstance(inner, Transformer) and task in ("translate", "chat", "restore"):
        if inner.config.positions == "rotary":
            raise Mistake(
                "model.positions=rotary beside an encoder has no shape in transformers; train with "
                "model.positions=relative (a T5), or use --to ctranslate2 or --to onnx"
            )
        family = pegasus.FAMILY if inner.config.pre else marian.FAMILY
        family = t5.FAMILY if inner.config.positions == "relative" else family
        return family, family.describe(inner)
    if isinstance(inner, ViT) and head is not None:
        family = siglip.FAMILY if inner.config.pool == "mean" else vit.FAMILY
        return family, family.describe(inner) | labelled(section)
    if isinstance(inner, Bert):
        family = distilbert.FAMILY if inner.config.pooler == "relu" else bert.FAMILY
        ends = {name: end for end, name in HEADED.items()}
        following = task == "fill" and section.get("next") and family is bert.FAMILY
        if not following and (pad := roberta.pads(tokenizer, inner.config)) is not None:
            family = roberta.leaving(pad)
        end = (
            "ForPreTraining"
            if following
            else {"fill": "ForMaskedLM", "embed": "Model"}.get(task) or ends[task]
        )
        config = family.describe(inner) | (labelled(section) if task in ("classify", "tag") else {})
        name = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert"}[config["model_type"]]
        return family, config | {"architectures": [name + end]}
    raise Mistake(f"a model of kind {type(inner).__name__} for the task {task} has no shape in transformers")


def labelled(section: dict[str, Any]) -> dict[str, Any]:
    names = section.get("labels")
    if not names:
        raise Mistake("a model that tells scores, not classes, has no shape in transformers that is the same")
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
        "problem_type": "single_label_classification",
    }


def special_ids(made: Made, family: Family) -> dict[str, Any]:
    """The tokens with a part to play, by the names of theirs."""
    if made.tokenizer is None:
        return {}
    known = numbered(made.tokenizer)
    pad = next((known[name] for name in ("[PAD]", "<pad>") if name in known), made.end)
    found: dict[str, Any] = {"pad_token_id": pad}
    if family.kind in WRITE:
        ends = list(made.ends) if len(made.ends) > 1 else made.end
        found |= {"eos_token_id": ends, "decoder_start_token_id": made.begin}
    return {name: id for name, id in found.items() if id is not None}


__all__ = [
    "EXPORTS",
    "FAMILIES",
    "HUB",
    "KINDS",
    "Found",
    "Made",
    "export_folder",
    "fetched",
    "is_theirs",
    "load_folder",
    "load_model",
    "renamed",
]

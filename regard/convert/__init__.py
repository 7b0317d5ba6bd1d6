"""Other people's folders, both ways: models in Hugging Face's layout into ours, and ours into theirs.

One file a family, with its names both ways in one table. Nothing of a folder is run, and nothing is left out
unsaid: a key that would change what is computed, or a tensor without a place, is a Mistake that names it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import nn

from ..checkpoint import Tensors, write_tensors
from ..errors import Mistake
from ..models import GPT, Bert, Labelled, Transformer, ViT
from . import bert, distilbert, gpt2, llama, marian, roberta, t5, vit
from .card import card
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
from .sentences import MODULES, read_parts, write_parts
from .tokens import framed, numbered, renamed, roles

FAMILIES: dict[str, Family] = {  # by their model_type
    "bert": bert.FAMILY,
    "distilbert": distilbert.FAMILY,
    "gpt2": gpt2.FAMILY,
    "llama": llama.FAMILY,
    "marian": marian.FAMILY,
    "mistral": llama.FAMILY,
    "qwen2": llama.FAMILY,
    "qwen3": llama.FAMILY,
    "roberta": roberta.FAMILY,
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
    tokenizer: Path | None
    names: dict[str, str]  # of special tokens, theirs: ours
    generation: dict[str, Any]


def is_theirs(folder: Path) -> bool:
    """Whether a folder is in Hugging Face's layout, and not a run of ours."""
    if (folder / MODULES).is_file():
        return True
    if not (folder / CONFIG).is_file():
        return False
    config = read_json(folder / CONFIG)
    first = "model_type" not in config and "hidden_size" in config  # the first ones did not say
    return "task" not in config and (first or config.get("model_type") in KINDS)


def load_folder(folder: str | Path) -> Found:
    """The model of a folder, and what it is for: one that writes writes on, translates or restores; with a
    head for classes, it classifies, tags or sees; with one for answers, it finds them; with one for hidden
    words, it fills in; an encoder alone, or with sentence-transformers' parts, embeds."""
    folder, top = Path(folder), Path(folder)
    sentences: dict[str, Any] | None = None
    if (folder / MODULES).is_file():
        folder, sentences = read_parts(folder)
    family, c, model, held, head = load_model(folder)
    if head and (family.kind in WRITE or sentences is not None):
        raise Mistake(
            f"{c.weights}: its head for classes or answers has no place in such a folder; remove it"
        )
    generation: dict[str, Any] = {}
    tokenizer = None if family.kind == "vit" else tokenizer_of(folder, top)
    if family.kind in WRITE:
        task: dict[str, Any] = {"name": WRITE[family.kind]}
        if tokenizer is not None and family.kind == "t5" and SENTINEL not in tokenizer.read_text("utf-8"):
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
    return Found(family.kind, model, task, head, tokenizer, names, generation)


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
    made = c.made or "BertForSequenceClassification"
    task = next((task for end, task in HEADED.items() if made.endswith(end)), None)
    if task is None:
        known = ", ".join(f"Bert{end}" for end in HEADED if HEADED[end] != "see")
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
    if (top / "source.spm").is_file():
        raise Mistake(
            f"{top}: no {TOKENIZER}, and sentencepiece's files are not read; make a Unigram of tokenizers' "
            "library from source.spm's pieces and scores, in the order of vocab.json, and save it there"
        )
    raise Mistake(
        f"{top}: no {TOKENIZER}; write it with transformers: "
        f"AutoTokenizer.from_pretrained({str(top)!r}).save_pretrained({str(top)!r})"
    )


# Out


@dataclass(frozen=True)
class Made:
    """What goes into a folder."""

    module: nn.Module
    task: dict[str, Any]  # the section of a recipe, all settings
    generation: dict[str, Any]  # the usual options of `ask`
    tokenizer: str | None  # a tokenizer.json
    begin: int | None = None  # before what is written in view of a source
    end: int | None = None
    ends: Sequence[int] = ()  # where any of several ends a text


def export_folder(folder: str | Path, made: Made) -> None:
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
    family, config = described(inner, task, made.task, head)
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
            reads = family.kind == "bert"
            first, last = ("[CLS]", "[SEP]") if reads else (None, None)
            if family.kind in ("transformer", "t5"):
                last = next((name for name, id in numbered(made.tokenizer).items() if id == made.end), None)
            (beside / TOKENIZER).write_text(framed(made.tokenizer, first, last) + "\n", encoding="utf-8")
            told = roles(made.tokenizer, None if reads else made.end, inner.config.context)
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


def described(
    inner: nn.Module, task: str, section: dict[str, Any], head: nn.Linear | None
) -> tuple[Family, dict[str, Any]]:
    """The family that has such a model, and its config.json."""
    if isinstance(inner, GPT) and task == "write":
        family = gpt2.FAMILY if inner.config.positions == "learned" else llama.FAMILY
        return family, family.describe(inner)
    if isinstance(inner, Transformer) and task in ("translate", "chat", "restore"):
        family = t5.FAMILY if inner.config.positions == "relative" else marian.FAMILY
        return family, family.describe(inner)
    if isinstance(inner, ViT) and head is not None:
        return vit.FAMILY, vit.FAMILY.describe(inner) | labelled(section)
    if isinstance(inner, Bert):
        family = distilbert.FAMILY if inner.config.pooler == "relu" else bert.FAMILY
        ends = {name: end for end, name in HEADED.items()}
        following = task == "fill" and section.get("next") and family is bert.FAMILY
        end = (
            "ForPreTraining"
            if following
            else {"fill": "ForMaskedLM", "embed": "Model"}.get(task) or ends[task]
        )
        config = family.describe(inner) | (labelled(section) if task in ("classify", "tag") else {})
        name = "Bert" if family is bert.FAMILY else "DistilBert"
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
    "FAMILIES",
    "KINDS",
    "Found",
    "Made",
    "export_folder",
    "is_theirs",
    "load_folder",
    "load_model",
    "renamed",
]

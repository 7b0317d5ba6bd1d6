"""Other people's models into ours: Hugging Face's BERT folders. Only safetensors are read, no pickles."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .checkpoint import Tensors, read_tensors
from .errors import Mistake
from .models import Bert, BertConfig

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
INDEX = "model.safetensors.index.json"  # which file has which tensor, where they are spread over several
MODULES = "modules.json"  # the parts of a folder of sentence-transformers
POOLINGS = {"mean": "mean", "mean_tokens": "mean", "cls": "first", "cls_token": "first"}  # theirs: ours
KINDS = ("bert",)  # their model_type
FINE_TUNED = {  # and the task of each
    "BertForSequenceClassification": "classify",
    "BertForTokenClassification": "tag",
    "BertForQuestionAnswering": "span",
}
ARCHITECTURES = ("BertModel", "BertForMaskedLM", "BertForPreTraining", *FINE_TUNED)
SETTINGS = {  # ours: theirs
    "vocab": "vocab_size",
    "context": "max_position_embeddings",
    "dim": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "hidden": "intermediate_size",
    "segments": "type_vocab_size",
    "eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
}
DEFAULTS = {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_dropout_prob": 0.1}  # old files leave out
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
PLAIN: dict[str, Any] = {  # what a BERT may not be, and ours is not
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
NAMES = {  # ours: theirs, without their `bert.`
    "blocks.": "encoder.layer.",
    ".attn.f.q.": ".attention.self.query.",
    ".attn.f.k.": ".attention.self.key.",
    ".attn.f.v.": ".attention.self.value.",
    ".attn.f.out.": ".attention.output.dense.",
    ".attn.norm.": ".attention.output.LayerNorm.",
    ".ffn.f.up.": ".intermediate.dense.",
    ".ffn.f.down.": ".output.dense.",
    ".ffn.norm.": ".output.LayerNorm.",
    "embed_norm.": "embeddings.LayerNorm.",
    "embed.": "embeddings.word_embeddings.",
    "segments.": "embeddings.token_type_embeddings.",
    "positions.table.": "embeddings.position_embeddings.",
    "pooler.": "pooler.dense.",
    "next.": "cls.seq_relationship.",
    "transform_norm.": "cls.predictions.transform.LayerNorm.",
    "transform.": "cls.predictions.transform.dense.",
}
HEADS = ("pooler.", "cls.seq_relationship.", "cls.predictions.")  # which a folder need not have
LABELS = ("classifier", "qa_outputs")  # the heads of fine-tuned ones
EMBEDDING, DECODER = "embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"


@dataclass(frozen=True)
class Found:
    """What a folder holds: the model, a fine-tuned head's weights apart, and the task to use it for."""

    kind: str  # a name in MODELS
    model: Bert
    task: dict[str, Any]  # the section of a recipe
    head: Tensors
    tokenizer: Path


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
    """The model of a folder, and what it is for: with a head for classes, it classifies or tags; with one for
    answers, it finds them; with one for hidden words, it fills in; an encoder alone, or with
    sentence-transformers' parts, embeds."""
    folder, top = Path(folder), Path(folder)
    sentences: dict[str, Any] | None = None
    if (folder / MODULES).is_file():
        folder, sentences = sentence_parts(folder)
    model, state = _read(folder)
    if not (folder / TOKENIZER).is_file():
        folder = top
    if not (folder / TOKENIZER).is_file():
        raise Mistake(
            f"{folder}: no {TOKENIZER}; write it with transformers: "
            f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        )
    head: Tensors = {}
    if sentences is not None:
        task = {"name": "embed"} | sentences
    elif any(name.startswith(LABELS) for name in state):
        task, head = fine_tuned(folder / CONFIG, state), head_weights(state)
    elif any(name.startswith("cls.predictions.") for name in state):
        task = {"name": "fill", "next": any(name.startswith("cls.seq_relationship.") for name in state)}
    else:
        task = {"name": "embed"}
    return Found("bert", model, task, head, folder / TOKENIZER)


def sentence_parts(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Where a sentence-transformers folder has its encoder, and how tokens' vectors become a text's."""
    where = folder / MODULES
    parts = read_json(where, list)
    if not all(isinstance(part, dict) and {"type", "path"} <= part.keys() for part in parts):
        raise Mistake(f"{where}: should list the parts of a model, each with type and path")
    kinds = [str(part["type"]).rsplit(".", 1)[-1] for part in parts]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        known = "Transformer, Pooling and perhaps Normalize"
        raise Mistake(f"{where}: its parts are {', '.join(kinds) or 'none'}; known are {known}")
    places = [str(part["path"]) for part in parts[:2]]
    if any(Path(place).is_absolute() or ".." in Path(place).parts for place in places):
        raise Mistake(f"{where}: a part's path leads out of the folder; remove it")
    encoder, pooling = (folder / place for place in places)
    about = read_json(pooling / CONFIG)
    named = about.get("pooling_mode")  # as of late; before, each had a yes or no
    modes = [named] if named else [k.removeprefix("pooling_mode_") for k, v in about.items() if v is True]
    modes = [mode for mode in modes if named or f"pooling_mode_{mode}" in about]
    if len(modes) != 1 or str(modes[0]) not in POOLINGS:
        raise Mistake(f"{pooling / CONFIG}: pools by {', '.join(map(str, modes))}; known are mean and cls")
    found: dict[str, Any] = {"pooling": POOLINGS[str(modes[0])], "normalize": kinds[2:] == ["Normalize"]}
    beside = encoder / "sentence_bert_config.json"
    longest = read_json(beside).get("max_seq_length") if beside.is_file() else None
    return encoder, found | ({} if longest is None else {"longest": longest})


def fine_tuned(where: Path, state: Tensors) -> dict[str, Any]:
    """The task of a fine-tuned folder, with the names of its classes."""
    config = read_json(where)
    made = str((config.get("architectures") or ["BertForSequenceClassification"])[0])
    if made not in FINE_TUNED:
        raise Mistake(f"{where}: architectures={made} is not known; known are {', '.join(ARCHITECTURES)}")
    if FINE_TUNED[made] == "span":
        if "qa_outputs.bias" not in state or len(state["qa_outputs.bias"]) != 2:
            raise Mistake(f"{where}: {made} should have two outputs, an answer's first word and its last")
        return {"name": "span"}
    if (problem := config.get("problem_type")) not in (None, "single_label_classification"):
        raise Mistake(f"{where}: problem_type={problem} is not known; known are single_label_classification")
    many = len(state["classifier.bias"]) if "classifier.bias" in state else 0
    names = config.get("id2label") or {str(i): f"LABEL_{i}" for i in range(many)}
    if many < 2 or not isinstance(names, dict) or sorted(names) != sorted(map(str, range(many))):
        raise Mistake(
            f"{where}: id2label should name the {many} classes of {WEIGHTS}, two or more, from 0 up"
        )
    return {"name": FINE_TUNED[made], "labels": [str(names[str(i)]) for i in range(many)]}


def load_bert(folder: str | Path) -> Bert:
    """The model of a folder; heads that it lacks are new."""
    return _read(Path(folder))[0]


def _read(folder: Path) -> tuple[Bert, Tensors]:
    """The model, and all that its files hold."""
    if not folder.is_dir():
        raise Mistake(f"{folder}: no such model folder")
    where = folder / (WEIGHTS if (folder / WEIGHTS).is_file() else INDEX)
    if not where.is_file():
        raise Mistake(f"{folder}: no {WEIGHTS}; save it again with save_pretrained(safe_serialization=True)")
    settings = bert_config(read_json(folder / CONFIG), folder / CONFIG)
    try:
        model = Bert(BertConfig(**settings))
    except (TypeError, ValueError) as e:
        raise Mistake(f"{folder / CONFIG}: {e}") from None
    state = read_tensors(where) if where.name == WEIGHTS else read_shards(where)
    model.load_state_dict(bert_weights(state, model, where))
    return model.eval(), state


def read_shards(index: Path) -> Tensors:
    """The tensors of all files that an index names, each where it says."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise Mistake(f"{index}: weight_map should name the file of every tensor")
    found: Tensors = {}
    for name in sorted(set(places.values())):
        if Path(name).name != name:
            raise Mistake(f"{index}: the file {name} would be outside of the folder; remove it")
        if not (index.parent / name).is_file():
            raise Mistake(f"{index}: the file {name} is not there; copy it, too")
        part = read_tensors(index.parent / name)
        for tensor in part.keys() | {tensor for tensor, place in places.items() if place == name}:
            if places.get(tensor) != name or tensor not in part:
                raise Mistake(f"{index}: {tensor} is not where it says; {name} and it don't belong together")
        found |= part
    return found


def bert_config(hf: dict[str, Any], where: str | Path = CONFIG) -> dict[str, Any]:
    """Settings for BertConfig. There, attention may have a dropout of its own; here there is one."""
    kind = hf.get("model_type", "bert")  # the first ones did not say
    if kind not in KINDS:
        raise Mistake(f"{where}: model_type={kind} is not known; known are {', '.join(KINDS)}")
    for key, plain in PLAIN.items():
        if (value := hf.get(key, plain)) != plain:
            raise Mistake(f"{where}: {key}={value} is not known; known are {plain}")
    act = hf.get("hidden_act", "gelu")
    if act not in ACTIVATIONS:
        raise Mistake(f"{where}: hidden_act={act} is not known; known are {', '.join(ACTIVATIONS)}")
    settings: dict[str, Any] = {"ffn": ACTIVATIONS[act]}
    for ours, theirs in SETTINGS.items():
        if (value := hf.get(theirs, DEFAULTS.get(theirs))) is None:
            raise Mistake(f"{where}: {theirs} is missing")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Mistake(f"{where}: {theirs}={value!r} should be a number")
        settings[ours] = value
    return settings


def bert_weights(state: Tensors, model: Bert, where: str | Path = WEIGHTS) -> Tensors:
    """The weights for `model`: a folder's, and where it lacks a head, the model's own."""
    found = {plain_name(name): t for name, t in state.items()}
    decoder = found.pop(DECODER, None)  # a copy
    if decoder is not None and EMBEDDING in found and not torch.equal(decoder, found[EMBEDDING]):
        raise Mistake(f"{where}: {DECODER} is not the embedding; only models that tie them are known")
    if (bias := found.pop("cls.predictions.decoder.bias", None)) is not None:
        found.setdefault("cls.predictions.bias", bias)
    there = {head for head in HEADS if any(name.startswith(head) for name in found)}
    weights = {}
    for ours, own in model.state_dict().items():
        theirs = their_name(ours)
        if theirs in found:
            weights[ours] = found.pop(theirs).to(own.dtype)
            if weights[ours].shape != own.shape:
                shapes = f"{list(weights[ours].shape)}, not {list(own.shape)}"
                raise Mistake(f"{where}: {theirs} is {shapes}; it does not belong to this {CONFIG}")
        elif theirs.startswith(HEADS) and not theirs.startswith(tuple(there)):
            weights[ours] = own
        else:
            raise Mistake(f"{where}: {theirs} is missing; this is no BERT, or not all of it")
    for name in found:
        if not name.startswith(LABELS) and name != "embeddings.position_ids":
            raise Mistake(f"{where}: {name} has no place in a BERT of this {CONFIG}")
    return weights


def head_weights(state: Tensors) -> Tensors:
    """The head of a fine-tuned folder, as `Labelled.head` has it; nothing, if it was not fine-tuned."""
    names = [(label, kind) for label in LABELS for kind in ("weight", "bias")]
    return {kind: state[f"{label}.{kind}"] for label, kind in names if f"{label}.{kind}" in state}


def plain_name(name: str) -> str:
    """Theirs, with or without a prefix, and with the norms' names of TensorFlow or torch."""
    name = name.removeprefix("bert.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def their_name(ours: str) -> str:
    if ours == "bias":
        return "cls.predictions.bias"
    for a, b in NAMES.items():
        if a.startswith(".") or ours.startswith(a):
            ours = ours.replace(a, b)
    return ours


def read_json(path: Path, kind: type = dict) -> Any:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Mistake(f"{path.parent}: not a model folder, it has no {path.name}") from None
    except (OSError, ValueError) as e:
        raise Mistake(f"{path}: not readable as JSON: {e}") from None
    if not isinstance(found, kind):
        raise Mistake(f"{path}: should hold one JSON {'object' if kind is dict else 'list'}")
    return found

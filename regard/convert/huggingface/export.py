"""Export a model in Hugging Face's layout."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from regard.convert.export import ExportRequest
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
from regard.convert.huggingface.family import Family, export_weights
from regard.convert.huggingface.files import CONFIG, GENERATION, PREPROCESSOR, TOKENIZER, WEIGHTS
from regard.convert.huggingface.generation import generation_config
from regard.convert.huggingface.load import HEAD_NAMES, LIKE_ROBERTA, TASK_OF_CLASS
from regard.convert.huggingface.sentence_transformers import write_modules
from regard.convert.huggingface.tokenizer_json import (
    add_template,
    rename_special_tokens,
    special_token_ids,
    tokenizer_config,
)
from regard.convert.model_card import huggingface_card
from regard.describe.export import as_exported
from regard.errors import UserError
from regard.files.atomic import atomic_folder
from regard.files.tensors import Tensors, write_tensors
from regard.files.untrusted import write_json
from regard.models import GPT, Bert, Electra, Transformer, ViT
from regard.models.head import ModelWithHead

CLASS_OF_TASK = {task: end for end, task in TASK_OF_CLASS.items()} | {"fill": "ForMaskedLM", "embed": "Model"}
CLASSES = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert", "longformer": "Longformer"}
CLASSES |= {"electra": "Electra", "megatron-bert": "MegatronBert"}


def export_folder(folder: str | Path, request: ExportRequest) -> str:
    """Write a folder in Hugging Face's layout, or nothing. An ELECTRA's generator is a folder inside it."""
    with atomic_folder(Path(folder)) as temporary:
        write_folder(temporary, request)
        if isinstance(request.model, Electra) and len(request.model.generator):
            inner = temporary / "generator"
            inner.mkdir()
            generator, task = electra.generator(request.model), {"name": "fill", "next": False}
            write_folder(inner, replace(request, model=as_exported(generator), task=task))
    return ""  # no check: transformers need not be installed


def write_folder(folder: Path, request: ExportRequest) -> None:
    family, model, head, mean = find_shape(request)
    task, config = str(request.task["name"]), cast(Any, model.config)
    own_head = {} if mean else head_weights(head, task)
    if isinstance(model, Electra):
        own_head, model = electra.discriminator_weights(model), model.model
    content = describe(family, model, request, mean)
    if content["model_type"] in LIKE_ROBERTA:
        names = {ours: theirs for theirs, ours in roberta.TOKEN_NAMES.items()}
        request = replace(request, tokenizer=rename_special_tokens(request.tokenizer or "", names))
    tensors = family.pack(export_weights(family, model) | own_head, content["architectures"][0])
    ids = special_ids(request)
    write_json(folder / CONFIG, content | ids | {"dtype": "float32", "torch_dtype": "float32"})
    write_tensors(folder / WEIGHTS, {name: t.float() for name, t in tensors.items()})
    if request.tokenizer is not None:
        write_tokenizer(folder, request, family, content["model_type"], config)
    if request.generates:
        write_json(folder / GENERATION, generation_config(request.generation, ids))
    if task == "see":
        write_json(folder / PREPROCESSOR, vit.preprocessor(request.task))
    if task == "embed":
        write_modules(folder, request.task, config.dim)
    if mean and head is not None:
        write_modules(folder, {"pooling": "mean", "normalize": False}, config.dim, head.state_dict())
    (folder / "README.md").write_text(huggingface_card(task, content, request.card, mean), encoding="utf-8")


def find_shape(request: ExportRequest) -> tuple[Family, nn.Module, nn.Linear | None, bool]:
    """Return the model's family in transformers, the model below its head, the head, and whether the head
    reads the mean of all tokens."""
    model: nn.Module = request.model
    task = str(request.task["name"])
    head: nn.Linear | None = None
    mean = False  # the heads of transformers read the first token; sentence-transformers has one for the mean
    if getattr(model, "has_task_head", False):
        with_head = cast(ModelWithHead, model)  # or any other model that declares a head
        mean, model, head = with_head.mean, with_head.model, with_head.head
    if (type(model), task) not in FAMILIES or (head is None) != (task not in TASK_OF_CLASS.values()):
        raise UserError(
            f"a model of kind {type(model).__name__} for the task {task} has no shape in transformers; use "
            "--to onnx"
        )
    return FAMILIES[type(model), task](model.config, request), model, head, mean


def model_config(request: ExportRequest) -> dict[str, Any]:
    """Return the config.json that transformers reads; empty if it has no such model."""
    try:
        family, model, _, mean = find_shape(request)
        inner = model.model if isinstance(model, Electra) else model
        return describe(family, inner, request, mean) | special_ids(request)
    except UserError:
        return {}


# The family of a model


def gpt_family(c: Any, request: ExportRequest) -> Family:
    return gpt2.FAMILY if c.positions == "learned" else llama.FAMILY


def transformer_family(c: Any, request: ExportRequest) -> Family:
    if c.positions == "rotary":
        raise UserError(
            "model.positions=rotary beside an encoder has no equivalent in transformers; train with "
            "model.positions=relative (a T5), or use --to ctranslate2 or --to onnx"
        )
    return t5.FAMILY if c.positions == "relative" else pegasus.FAMILY if c.pre else marian.FAMILY


def vit_family(c: Any, request: ExportRequest) -> Family:
    return siglip.FAMILY if c.pool == "mean" else vit.FAMILY


def bert_family(c: Any, request: ExportRequest) -> Family:
    if c.pooler == "gelu" or c.embed_dim or isinstance(request.model, Electra):
        return electra.FAMILY
    if c.pooler == "relu":
        return distilbert.FAMILY
    if c.pre:
        return megatron_bert.FAMILY
    pad = roberta.padding_id(request.tokenizer, c)
    if pad is None or (predicts_next(bert.FAMILY, request) and not c.global_qkv):
        return bert.FAMILY
    return roberta.with_padding(longformer.FAMILY if c.global_qkv else roberta.FAMILY, pad)


def predicts_next(family: Family, request: ExportRequest) -> bool:
    """Return whether a head for the next sentence is also exported."""
    has_head = family.names.get("next") == bert.NAMES["next"]
    return request.task["name"] == "fill" and bool(request.task.get("next")) and has_head


FAMILIES: dict[tuple[type[nn.Module], str], Callable[[Any, ExportRequest], Family]] = {  # by model and task
    **{(GPT, task): gpt_family for task in ("write", "converse")},
    **{(Transformer, task): transformer_family for task in ("translate", "chat", "restore")},
    **{(Bert, task): bert_family for task in ("fill", "embed", "classify", "tag", "span")},
    (Electra, "fill"): bert_family,
    (ViT, "see"): vit_family,
}


def describe(family: Family, model: nn.Module, request: ExportRequest, bare: bool) -> dict[str, Any]:
    """The content of config.json, except the ids of special tokens; of a `bare` model, without a head."""
    config, task = family.describe(model), str(request.task["name"])
    if config["model_type"] == "longformer" and request.task.get("separators") == 1:
        raise UserError(
            "transformers finds a Longformer's question by two [SEP] after it; train with task.separators=2"
        )
    if task in ("classify", "tag", "see"):
        config |= label_names(request.task)
    if family.kind == "bert":
        end = "ForPreTraining" if predicts_next(family, request) else CLASS_OF_TASK[task]
        if bare:
            end = "Model"
        elif isinstance(request.model, Electra):
            end = "ForPreTraining"
        elif task == "fill" and not request.task.get("words", True):
            end = "ForNextSentencePrediction"
        config["architectures"] = [CLASSES[config["model_type"]] + end]
    return config


def label_names(task: dict[str, Any]) -> dict[str, Any]:
    labels = task.get("labels")
    if not labels:
        raise UserError(
            "a model that predicts scores, not classes, has no equivalent in transformers; use --to onnx"
        )
    return {
        "id2label": {str(i): name for i, name in enumerate(labels)},
        "label2id": {name: i for i, name in enumerate(labels)},
        "problem_type": "single_label_classification",
    }


def head_weights(head: nn.Linear | None, task: str) -> Tensors:
    name = HEAD_NAMES[task == "span"]
    return {} if head is None else {f"{name}.{end}": t for end, t in head.state_dict().items()}


# The tokenizer


def special_ids(request: ExportRequest) -> dict[str, Any]:
    """The ids of special tokens, by their names in config.json."""
    if request.tokenizer is None:
        return {}
    known = special_token_ids(request.tokenizer)
    pad = next((known[name] for name in ("[PAD]", "<pad>") if name in known), request.end)
    ids: dict[str, Any] = {"pad_token_id": pad}
    if request.generates:
        ends = list(request.ends) if len(request.ends) > 1 else request.end
        ids |= {"eos_token_id": ends, "decoder_start_token_id": request.begin}
    return {name: id for name, id in ids.items() if id is not None}


def write_tokenizer(folder: Path, request: ExportRequest, family: Family, model_type: str, c: Any) -> None:
    assert request.tokenizer is not None
    ids = special_token_ids(request.tokenizer)
    first, last = ("[CLS]", "[SEP]") if family.kind == "bert" else (None, None)
    if model_type in LIKE_ROBERTA:
        first, last = "<s>", "</s>"
    elif family.kind in ("transformer", "t5"):
        last = next((name for name, id in ids.items() if id == request.end), None)
    between = request.task.get("separators", 1)
    template = add_template(request.tokenizer, first, last, between)
    (folder / TOKENIZER).write_text(template + "\n", encoding="utf-8")
    config = tokenizer_config(request.tokenizer, request.end if request.generates else None, c.context)
    if family.kind == "bert":  # transformers 4 and 5 differ in whether they return segments by default
        segments = ["token_type_ids"] if c.segments > 1 else []
        config["model_input_names"] = ["input_ids", *segments, "attention_mask"]
    if model_type in LIKE_ROBERTA:
        config |= {role: name for role, name in roberta.ROLES.items() if name in ids}
    if request.chat_template is not None:
        config |= {**request.special_tokens, "chat_template": request.chat_template}
    write_json(folder / "tokenizer_config.json", config)
    special_tokens = {role: name for role, name in config.items() if role.endswith("_token")}
    write_json(folder / "special_tokens_map.json", special_tokens)

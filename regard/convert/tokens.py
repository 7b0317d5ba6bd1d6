"""tokenizer.json on its way in and out: special tokens by the names that are usual on either side."""

import json
from typing import Any

ROLES = {  # tokenizer_config.json's: the names that a token for it may have
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]",),
    "sep_token": ("[SEP]",),
    "mask_token": ("[MASK]",),
    "bos_token": ("<s>",),
}


def renamed(tokenizer: str, names: dict[str, str]) -> str:
    """A tokenizer.json in which special tokens have other names. What it would add to texts is left out."""
    told = json.loads(tokenizer)
    for token in told.get("added_tokens") or []:
        token["content"] = names.get(token["content"], token["content"])
    vocab = told["model"].get("vocab")
    if isinstance(vocab, dict):
        told["model"]["vocab"] = {names.get(token, token): id for token, id in vocab.items()}
    elif isinstance(vocab, list):
        told["model"]["vocab"] = [[names.get(token, token), score] for token, score in vocab]
    if (unknown := told["model"].get("unk_token")) is not None:
        told["model"]["unk_token"] = names.get(unknown, unknown)
    told["post_processor"] = None
    return json.dumps(told, ensure_ascii=False)


def numbered(tokenizer: str) -> dict[str, int]:
    """The special tokens, with their ids."""
    return {token["content"]: token["id"] for token in json.loads(tokenizer).get("added_tokens") or []}


def roles(tokenizer: str, end: int | None, context: int) -> dict[str, Any]:
    """tokenizer_config.json: which token is for what."""
    known = numbered(tokenizer)
    found: dict[str, Any] = {
        role: next(name for name in names if name in known)
        for role, names in ROLES.items()
        if any(name in known for name in names)
    }
    last = next((name for name, id in known.items() if id == end), None)
    if last is not None and last != found.get("sep_token"):
        found |= {"eos_token": last, "pad_token": found.get("pad_token", last)}
    return found | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }


def framed(tokenizer: str, before: str | None, after: str | None) -> str:
    """A tokenizer.json that puts these around texts, and `after` between two of them, as our tasks do."""
    told, known = json.loads(tokenizer), numbered(tokenizer)
    names = [name for name in (before, after) if name is not None]
    if names:
        pair = sequence("A", 0, before, after) + sequence("B", 1, None, after)
        told["post_processor"] = {
            "type": "TemplateProcessing",
            "single": sequence("A", 0, before, after),
            "pair": pair,
            "special_tokens": {name: {"id": name, "ids": [known[name]], "tokens": [name]} for name in names},
        }
    return json.dumps(told, ensure_ascii=False, indent=1)


def sequence(which: str, kind: int, before: str | None, after: str | None) -> list[dict[str, Any]]:
    text: list[dict[str, Any]] = [{"Sequence": {"id": which, "type_id": kind}}]
    first, last = (
        [] if name is None else [{"SpecialToken": {"id": name, "type_id": kind}}] for name in (before, after)
    )
    return first + text + last

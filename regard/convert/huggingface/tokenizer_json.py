"""Special tokens of a tokenizer.json: their names, their ids, and their places around texts."""

import json
from typing import Any

ROLES = {  # in tokenizer_config.json: the names that a token in this role may have
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]",),
    "sep_token": ("[SEP]",),
    "mask_token": ("[MASK]",),
    "bos_token": ("<s>",),
}


def rename_special_tokens(tokenizer: str, names: dict[str, str]) -> str:
    """Rename the special tokens of a tokenizer.json, and let it add none to texts."""
    content = json.loads(tokenizer)
    for token in content.get("added_tokens") or []:
        token["content"] = names.get(token["content"], token["content"])
    model = content["model"]
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(token, token): id for token, id in vocab.items()}
    elif isinstance(vocab, list):
        model["vocab"] = [[names.get(token, token), score] for token, score in vocab]
    if (unknown := model.get("unk_token")) is not None:
        model["unk_token"] = names.get(unknown, unknown)
    content["post_processor"] = None
    return json.dumps(content, ensure_ascii=False)


def special_token_ids(tokenizer: str) -> dict[str, int]:
    return {token["content"]: token["id"] for token in json.loads(tokenizer).get("added_tokens") or []}


def tokenizer_config(tokenizer: str, end: int | None, context: int) -> dict[str, Any]:
    """The content of tokenizer_config.json: the roles of special tokens."""
    ids = special_token_ids(tokenizer)
    config: dict[str, Any] = {
        role: next(name for name in names if name in ids)
        for role, names in ROLES.items()
        if any(name in ids for name in names)
    }
    last = next((name for name, id in ids.items() if id == end), None)
    if last is not None and last != config.get("sep_token"):
        config |= {"eos_token": last, "pad_token": config.get("pad_token", last)}
    return config | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }


def add_template(tokenizer: str, before: str | None, after: str | None, between: int = 1) -> str:
    """Let a tokenizer.json put `before` and `after` around texts, and `after` (perhaps several times) between
    two of them."""
    content, ids = json.loads(tokenizer), special_token_ids(tokenizer)
    names = [name for name in (before, after) if name is not None]
    if names:
        content["post_processor"] = {
            "type": "TemplateProcessing",
            "single": _sequence("A", 0, before, after),
            "pair": _sequence("A", 0, before, after, between) + _sequence("B", 1, None, after),
            "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in names},
        }
    return json.dumps(content, ensure_ascii=False, indent=1)


def _sequence(
    name: str, segment: int, before: str | None, after: str | None, times: int = 1
) -> list[dict[str, Any]]:
    text: list[dict[str, Any]] = [{"Sequence": {"id": name, "type_id": segment}}]
    first, last = (
        [] if token is None else [{"SpecialToken": {"id": token, "type_id": segment}}]
        for token in (before, after)
    )
    return first + text + last * times

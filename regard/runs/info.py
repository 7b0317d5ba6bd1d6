"""Describe a model from the headers of its files, without reading weights or importing torch."""

from collections import Counter
from itertools import dropwhile
from math import prod
from pathlib import Path
from typing import Any

from regard.convert.huggingface.files import CONFIG as THEIR_CONFIG
from regard.convert.huggingface.files import WEIGHTS as ONE_FILE
from regard.convert.huggingface.files import find_weights, read_index
from regard.convert.huggingface.hub import HUB, download
from regard.convert.huggingface.identify import identify_task
from regard.convert.huggingface.sentence_transformers import MODULES, read_modules
from regard.errors import UserError
from regard.files.header import DTYPES, Header, read_header
from regard.files.regular import list_matching, regular_stat
from regard.files.untrusted import read_json
from regard.runs import recipe
from regard.runs.layout import (
    BASE,
    CHECKPOINTS,
    CONFIG,
    LOG,
    RECIPE,
    STATE,
    STEP,
    TARGET_TOKENIZER,
    TOKENIZER,
    WEIGHTS,
    published,
)
from regard.runs.summary import checkpoint_steps, read_run

Facts = dict[str, Any]
MAX_TOKENIZER = 2**26  # bytes
SIZES = ("dim", "depth", "decoder_depth", "heads", "kv_heads", "hidden", "cell", "attention", "positions")
THEIR_SIZES = {  # Hugging Face's names: Regard's
    "dim": ("hidden_size", "n_embd", "d_model", "dim"),
    "depth": ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "n_layers"),
    "decoder_depth": ("decoder_layers", "num_decoder_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads", "n_heads"),
    "kv_heads": ("num_key_value_heads",),
    "hidden": ("intermediate_size", "n_inner", "d_ff", "encoder_ffn_dim", "hidden_dim"),
}
CONTEXTS = ("n_positions", "max_position_embeddings", "n_ctx")
SENTINEL = "<extra_id_0>"  # T5's token for the first missing span


def info(model: str | Path) -> Facts:
    """Describe a model: kind, task, size, tokenizer, precision, scores, data and origin.

    Takes the same names as `load`: a run's folder, RUN/checkpoints/step-N, a folder in Hugging Face's layout,
    a GGUF file, a file of word vectors, or hf:OWNER/NAME. Facts that are not known are left out.
    """
    name, path = str(model), Path(model)
    if name.startswith(HUB):
        path = download(name)
    if path.is_file():
        facts = describe_gguf(path) if is_gguf(path) else describe_vectors(path)
    elif (match := STEP.fullmatch(path.name)) and path.absolute().parent.name == CHECKPOINTS:
        facts = describe_checkpoint(path, int(match[1]))
    elif not path.is_dir():
        raise UserError(f"{name}: no such model; give a run's folder, one of Hugging Face's, or a GGUF file")
    elif (path / RECIPE).is_file() or "task" in read_settings(path):
        facts = describe_run(path)
    else:
        facts = describe_huggingface(path)
    return {"model": name} | {key: value for key, value in facts.items() if value not in (None, [], {})}


def read_settings(folder: Path) -> Facts:
    if (folder / MODULES).exists():
        return {}
    settings: Facts = read_json(folder / CONFIG)
    return settings


# Runs of Regard


def describe_run(folder: Path) -> Facts:
    config = read_json(folder / CONFIG)
    task = config.get("task") if isinstance(config.get("task"), dict) else {}
    weights = read_header(published(folder)) if published(folder).exists() else None
    run = read_run(folder) if (folder / RECIPE).is_file() else None
    facts: Facts = {
        "format": "adapter" if (folder / BASE).exists() else "run",
        "kind": str(config.get("model_type", "?")).removeprefix("regard-"),
        "task": task.get("name"),
        "classes": task.get("labels"),
        **describe_weights([weights] if weights else []),
        "sizes": {name: config[name] for name in SIZES if config.get(name) is not None},
        "context": config.get("context"),
        **describe_tokenizer(folder / TOKENIZER, config.get("vocab")),
    }
    if run is not None and isinstance(kind := run.sections["data"].get("tokenizer"), str):
        facts["tokenizer"] = kind if (folder / TOKENIZER).exists() else None
    if (folder / TARGET_TOKENIZER).exists():
        facts["target_vocabulary"] = describe_tokenizer(folder / TARGET_TOKENIZER, None)["vocabulary"]
    if run is None:
        return facts
    scores = {name.removeprefix("valid_"): v for name, v in (run.best or {}).items() if name != "best"}
    return facts | {
        "scores": scores,
        "data": run.files,
        "understood": read_understood(folder),
        "valid": run.valid,
        "from": run.base,
        "state": run.state,
        "problem": run.problem,
        "step": run.step if (folder / LOG).exists() else None,
        "seconds": round(run.seconds, 1),
        "checkpoints": checkpoint_steps(folder),
    }


def read_understood(folder: Path) -> list[str]:
    """Return what was understood of the data when training began, from the comments of the recipe."""
    comments = dropwhile(lambda line: not line.startswith("data: "), recipe.read_comments(folder / RECIPE))
    return [line.removeprefix("data: ").strip() for line in comments]


def describe_checkpoint(path: Path, step: int) -> Facts:
    """Describe a run as it was at a step."""
    facts = describe_run(path.absolute().parents[1])
    state = read_json(path / STATE)
    last = state.get("best") if isinstance(state.get("best"), dict) else {}
    parts = list_matching(path, "model-*.safetensors")
    return facts | {
        "format": "checkpoint",
        **describe_weights([read_header(file) for file in parts or [path / WEIGHTS]]),
        "scores": {name.removeprefix("valid_"): value for name, value in last.items()},
        "step": step,
        "seconds": round(float(state.get("elapsed", 0)), 1),
        "state": None,
        "checkpoints": None,
    }


# Other libraries' files


def describe_huggingface(folder: Path) -> Facts:
    top, sentences, dense = folder, (folder / MODULES).exists(), None
    if sentences:
        folder, _, dense = read_modules(folder)
    config = read_json(folder / THEIR_CONFIG)
    path = find_weights(folder)
    files = [path] if path.name == ONE_FILE else [path.parent / name for name in read_index(path)]
    headers = [read_header(file) for file in files]
    place = next((p / TOKENIZER for p in (folder, top) if (p / TOKENIZER).is_file()), folder / TOKENIZER)
    restores = place.is_file() and SENTINEL.encode() in place.read_bytes()
    names = {name for header in headers for name in header.shapes}
    labels = config.get("id2label")
    task = "classify" if dense else "embed" if sentences else identify_task(config, names, restores)
    sizes = {
        ours: next((config[n] for n in theirs if n in config), None) for ours, theirs in THEIR_SIZES.items()
    }
    template = config.get("chat_template") or (top / "chat_template.jinja").exists()
    return {
        "format": "huggingface",
        "kind": config.get("model_type", "bert"),
        "architecture": (config.get("architectures") or [None])[0],
        "task": task,
        "classes": list(labels.values())
        if isinstance(labels, dict) and task in ("classify", "tag", "see")
        else None,
        **describe_weights(headers),
        "sizes": {name: value for name, value in sizes.items() if value is not None},
        "context": next((config[name] for name in CONTEXTS if name in config), None),
        **describe_tokenizer(place, config.get("vocab_size")),
        "chat_template": bool(template) or has_template(top) or None,
        "from": config.get("_name_or_path"),
    }


def has_template(folder: Path) -> bool:
    path = folder / "tokenizer_config.json"
    return path.is_file() and "chat_template" in read_json(path)


def is_gguf(path: Path) -> bool:
    regular_stat(path)
    with path.open("rb") as file:
        return path.suffix == ".gguf" or file.read(4) == b"GGUF"


def describe_gguf(path: Path) -> Facts:
    from regard.convert.gguf.reader import Gguf  # needs numpy

    with path.open("rb") as open_file:
        file = Gguf(path, open_file)
    kind = str(file.values.get("general.architecture", "?"))
    own = {key.removeprefix(f"{kind}."): value for key, value in file.values.items() if key.startswith(kind)}
    counts: Counter[str] = Counter()
    for entry in file.entries.values():
        counts[entry.kind.name] += prod(entry.shape)
    tokens = file.values.get("tokenizer.ggml.tokens")
    names = {"dim": "embedding_length", "depth": "block_count", "heads": "attention.head_count"}
    names |= {"kv_heads": "attention.head_count_kv", "hidden": "feed_forward_length"}
    return {
        "format": "gguf",
        "name": file.values.get("general.name"),
        "kind": kind,
        "task": "write",
        "parameters": sum(counts.values()),
        "bytes": path.stat().st_size,
        "precision": ", ".join(name for name, _ in counts.most_common()),
        "sizes": {ours: own[theirs] for ours, theirs in names.items() if isinstance(own.get(theirs), int)},
        "context": own.get("context_length"),
        "tokenizer": file.values.get("tokenizer.ggml.model"),
        "vocabulary": len(tokens) if tokens is not None else None,
        "chat_template": "tokenizer.chat_template" in file.values or None,
        "from": file.values.get("general.source.url") or file.values.get("general.base_model.0.repo_url"),
    }


def describe_vectors(path: Path) -> Facts:
    """Describe a file of word vectors; in word2vec's formats, the first line has their number and width."""
    from regard.data.word_vectors import HEADER, is_vectors_file

    if not is_vectors_file(path.name):
        raise UserError(f"{path}: neither a model's folder nor a GGUF file nor word vectors")
    with path.open("rb") as file:
        line = file.readline(2**20)
    match = HEADER.fullmatch(line)
    dim = int(match[2]) if match else len(line.split()) - 1
    return {
        "format": "vectors",
        "kind": "words",
        "task": "words",
        "parameters": int(match[1]) * dim if match else None,
        "bytes": path.stat().st_size,
        "sizes": {"dim": dim},
        "vocabulary": int(match[1]) if match else None,
    }


# Parts


def describe_weights(headers: list[Header]) -> Facts:
    if not headers:
        return {}
    counts: Counter[str] = Counter()
    for header in headers:
        for name, dtype in header.dtypes.items():
            if dtype in DTYPES.values():
                counts[dtype] += prod(header.shapes[name])
    return {
        "parameters": sum(counts.values()),
        "bytes": sum(header.bytes for header in headers),
        "precision": ", ".join(name for name, _ in counts.most_common()),
    }


def describe_tokenizer(path: Path, vocab: int | None) -> Facts:
    """Describe a tokenizer: its kind and its number of tokens; `vocab` is the model's."""
    if not path.is_file():
        return {"vocabulary": vocab}
    content = read_json(path, limit=MAX_TOKENIZER)
    model = content.get("model") if isinstance(content.get("model"), dict) else {}
    entries = model.get("vocab") or {}
    pieces = set(entries) if isinstance(entries, dict) else {entry[0] for entry in entries}
    added = {token.get("content") for token in content.get("added_tokens") or () if isinstance(token, dict)}
    return {"tokenizer": str(model.get("type", "?")).lower(), "vocabulary": len(pieces | added)}

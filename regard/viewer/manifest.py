"""The manifest of a run: the facts that the page has before it requests any tensor.

Shapes: H heads, T queries, S keys.
"""

import codecs
import math
import re
from typing import Any, TypedDict

import torch
from torch import Tensor

from regard.files.locks import is_locked
from regard.quantize.model import precision_of
from regard.runs.film import film_losses
from regard.runs.layout import LOG
from regard.runs.load import steps_of
from regard.runs.model import Model
from regard.tracing import Trace
from regard.tracing.names import attention_sides, layer_index
from regard.viewer.heads import (
    Pattern,
    allowed_cells,
    attention_patterns,
    choose_opening,
    even_bits,
    name_heads,
)
from regard.viewer.sums import EXTRA_TEXTS, describe_run, describe_trace
from regard.viewer.trace_data import TraceData
from regard.viewer.tree import searches

SCORE_TENSORS = ("scores", "scaled", "mask", "reason", "weights")  # of an attention: queries by keys
BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # of a token that is a part of a character
SPECIAL = re.compile(r"<(?!0x)[^>]+>|\[[^\]]+\]")  # such as <s> and [CLS]
BYTES = re.compile(rf"(?:{BYTE.pattern})+")
WORD_MARKS = ("▁", "Ġ", "Ċ", " ", "\n")  # the beginning of a token that begins a word
PARTS = "cross", "self", "masked", "encoder", "decoder"


class TensorInfo(TypedDict):
    """A tensor's shape, and the sides whose tokens label its rows and columns."""

    shape: list[int]
    rows: str | None
    columns: str | None


class AttentionInfo(TypedDict):
    name: str
    layer: int
    heads: int
    rows: str
    columns: str
    masked: bool
    kinds: list[dict[str, float]]
    bits: float  # the entropy of an even spread
    patterns: dict[str, Pattern]
    roles: list[str | None]  # the pattern that each head is named after


class Column(TypedDict):
    title: str
    boxes: list[dict[str, Any]]


Manifest = dict[str, Any]  # as JSON


def build_manifest(data: TraceData) -> Manifest:
    trace, model = data.trace, data.model
    sums, texts = describe_trace(model, trace)
    names = [*trace.tensors, *(["rollout"] if data.rollout is not None else [])]
    attentions = describe_attentions(trace)
    return {
        "model": describe_model(data),
        "input": data.text,
        "exact": data.exact,
        "answer": data.answer,
        "tokens": {side: spell_bytes(t) if side in trace.ids else t for side, t in trace.tokens.items()},
        "ids": trace.ids,
        "words": word_sides(data),
        "unread": trace.about.get("unread", 0),
        "context": getattr(model.model.config, "context", None),
        "grid": trace.about.get("grid"),
        "difference": trace.difference if math.isfinite(trace.difference) else None,
        "tensors": {name: describe_tensor(data, name) for name in names},
        "sums": sums,
        "texts": {name: texts[name]._asdict() for name in names},
        "attentions": attentions,
        "opening": choose_opening(attentions),
        "layers": data.layers,
        "depth": data.depth,
        "graph": build_graph(model, trace),
        "outputs": data.outputs(),
        **describe_progress(model),
        "maps": data.space.names,
        "positions": data.space.positions,
        "searches": searches(model) and "written" in trace.tokens,
    }


def describe_progress(model: Model) -> Manifest:
    """The progress of the model's run: its checkpoints, its film, and whether it is being trained."""
    return {
        "logged": model.folder is not None and (model.folder / LOG).is_file(),
        "step": model.step,
        "steps": steps_of(model),
        "film": [] if model.folder is None else film_losses(model.folder),
        "training": model.folder is not None and is_locked(model.folder),
    }


def spell_bytes(tokens: list[str]) -> list[str]:
    """Tokens for people: a token that completes the bytes of a character is shown as the character."""
    labels, decoder = [], codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        text = ""
        if BYTES.fullmatch(token):
            text = decoder.decode(bytes(int(byte, 16) for byte in BYTE.findall(token)))
        else:
            decoder.reset()
        labels.append(token if not text or "\ufffd" in text else text)
    return labels


def word_sides(data: TraceData) -> dict[str, list[int]]:
    """The index of each token's word, for the sides that have sub-words."""
    sides: dict[str, list[int]] = {}
    for side, ids in data.trace.ids.items():
        tokenizer = data.model.task.tokenizer if side in ("text", "source") else data.writer
        if tokenizer is not None and side in data.trace.tokens:
            numbers = number_words([tokenizer.inner.id_to_token(id) or "" for id in ids])
            sides |= {side: numbers} if numbers is not None else {}
    return sides


def number_words(pieces: list[str]) -> list[int] | None:
    """The index of each token's word; None if all tokens are words, or if words can't be recognised."""
    wordpiece = any(piece.startswith("##") for piece in pieces)
    marked = [piece.startswith(WORD_MARKS) for piece in pieces]
    if not wordpiece and not any(marked):
        return None
    numbers: list[int] = []
    for i, piece in enumerate(pieces):
        alone = SPECIAL.fullmatch(piece) or (i > 0 and SPECIAL.fullmatch(pieces[i - 1]))
        begins = not piece.startswith("##") if wordpiece else bool(marked[i] or alone)
        numbers.append(numbers[-1] + begins if numbers else 0)
    return numbers if numbers and numbers[-1] + 1 < len(pieces) else None


def describe_model(data: TraceData) -> dict[str, Any]:
    model, module = data.model, data.model.model
    return {
        "name": None if model.folder is None else str(model.folder),
        "class": type(getattr(module, "model", module)).__name__,
        "task": model.task.config.name,
        "talks": model.task.converses,
        "parameters": sum(p.numel() for p in module.parameters()),
        "dtype": precision_of(module),
        "sees": data.reads_images,
        "hears": model.task.reads == "audio",
    }


def describe_tensor(data: TraceData, name: str) -> TensorInfo:
    trace = data.trace
    if name == "rollout":
        return {"shape": list(data.tensor(name).shape), "rows": "text", "columns": "text"}
    shape, columns = list(trace[name].shape), None
    rows: str | None = data.side(name)
    part, _, kind = name.rpartition(".")
    queries, keys = attention_sides(name)
    if kind in SCORE_TENSORS and f"{part}.weights" in trace:
        rows, columns = queries, keys
    elif kind in ("k", "v", "Wk") and f"{part}.weights" in trace:
        rows = keys
    elif kind == "q_global":
        rows = None  # only the first tokens have them
    elif name in ("logits", "probabilities"):
        columns = "label" if "label" in trace.tokens else "vocabulary" if len(shape) == 2 else None
    height = shape[-2] if len(shape) > 1 else 1
    labelled = rows is not None and len(shape) > 1 and len(trace.tokens.get(rows, [])) >= height
    image = len(shape) > 2 and f"{part}.weights" not in trace and kind != "bias"
    labelled = labelled and not image and name not in ("encoder.hidden", "decoder.hidden")
    return {"shape": shape, "rows": rows if labelled else None, "columns": columns}


def describe_attentions(trace: Trace) -> dict[str, list[AttentionInfo]]:
    """Every attention by its part of the model, layer by layer, with the behaviour of each head."""
    parts: dict[str, list[AttentionInfo]] = {}
    for name in trace.attentions:
        weights = trace[f"{name}.weights"].float()
        rows, columns = attention_sides(name)
        prefix = name.split(".")[0]
        part = prefix if prefix in ("encoder", "decoder") else "masked" if is_causal(trace, name) else "self"
        part = "cross" if name.endswith((".cross", ".look")) else part
        patterns = attention_patterns(trace, name)
        parts.setdefault(part, []).append(
            {
                "name": name,
                "layer": layer_index(name) or 0,
                "heads": len(weights),
                "rows": rows,
                "columns": columns,
                "masked": bool(trace[f"{name}.reason"].any()),
                "kinds": head_statistics(weights, rows == columns),
                "bits": even_bits(allowed_cells(trace, name)),
                "patterns": patterns,
                "roles": name_heads(patterns, len(weights)),
            }
        )
    return {part: parts[part] for part in PARTS if part in parts}


def is_causal(trace: Trace, attention: str) -> bool:
    """Return whether some tokens were masked because they come later."""
    return bool((trace[f"{attention}.reason"] == 2).any())


def head_statistics(weights: Tensor, same: bool = True) -> list[dict[str, float]]:
    """The statistics of each head (H, T, S): the entropy of its weights in bits, and the weight that goes to
    the first token; where queries and keys are the `same` tokens, also to the token itself and to the
    previous one."""
    entropy = -torch.xlogy(weights, weights).sum(-1).mean(-1) / math.log(2)  # (H,)
    diagonal = weights.diagonal(dim1=-2, dim2=-1).mean(-1)  # (H,)
    before = weights[:, 1:].diagonal(dim1=-2, dim2=-1)
    previous = before.mean(-1) if before.shape[-1] else torch.zeros_like(diagonal)  # (H,)
    first = weights[..., 0].mean(-1)  # (H,)
    columns = {"entropy": entropy, "first": first}
    if same:
        columns = {"entropy": entropy, "diagonal": diagonal, "previous": previous, "first": first}
    rows = zip(*(column.nan_to_num().tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def build_graph(model: Model, trace: Trace) -> list[Column]:
    """The parts of the model in the order of computation: one column that reads and one that writes.

    The model names its parts, except for attention and feed-forward layers, whose tensors say what they are.
    """
    boxes = {"pixels": EXTRA_TEXTS["pixels"].title} | describe_run(model, trace).boxes
    columns: dict[str, list[dict[str, Any]]] = {}
    names: set[str] = set()
    last_read = None
    for name in trace:
        box = describe_box(trace, name, boxes.get(name))
        if box is None or box["name"] in names:
            continue
        names.add(box["name"])
        writes = name.startswith("decoder") or "target" in trace.tokens
        reads = name.startswith("encoder") or (name == "pixels" and writes)
        column = "encoder" if reads else "decoder" if writes else "model"
        if box.pop("crosses"):
            box["from"] = last_read
        if column == "encoder":
            last_read = box["name"]
        columns.setdefault(column, []).append(box)
    titles = {"encoder": "reads", "decoder": "writes", "model": ""}
    return [{"title": titles[name], "boxes": boxes} for name, boxes in columns.items()]


def describe_box(trace: Trace, name: str, title: str | None) -> dict[str, Any] | None:
    """The part of the diagram that begins with a tensor; None if the tensor is inside of a part."""
    shape = list(trace[name].shape)
    if title is not None:
        return {"name": name, "title": title, "note": None, "shape": shape, "group": None, "crosses": False}
    part, number, crosses = name.rpartition(".")[0], layer_index(name), False
    if f"{part}.weights" in trace and name == first_tensor(trace, part):
        attention = part.rsplit(".", 1)[-1]
        self_title = "Masked self-attention" if is_causal(trace, part) else "Self-attention"
        title = {"cross": "Cross-attention", "look": "Attention"}.get(attention, self_title)
        crosses = attention in ("cross", "look")
        note = None if attention == "look" else f"{len(trace[f'{part}.weights'])} heads"
        out = f"{part}.residual" if f"{part}.residual" in trace else f"{part}.heads"
        shape = list(trace[out].shape)[-2:]
    elif f"{part}.hidden" in trace and name == first_tensor(trace, part):
        title, note = "Feed-forward", f"{trace[f'{part}.hidden'].shape[-1]} wide"
        shape = list(trace[f"{part}.residual"].shape)
    else:
        return None
    group = None if number is None else f"block {number}"
    return {"name": name, "title": title, "note": note, "shape": shape, "group": group, "crosses": crosses}


def first_tensor(trace: Trace, part: str) -> str:
    return next(name for name in trace if name.startswith(f"{part}."))

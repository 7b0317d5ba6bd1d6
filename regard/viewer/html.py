"""The page in one file: its HTML, CSS and JavaScript, and as many numbers of a run as fit."""

import base64
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from regard.viewer.manifest import Manifest
from regard.viewer.onefile import build_html, frame_html
from regard.viewer.trace_data import TraceData

PAGE_FOLDER = Path(__file__).parent / "page"
VIEWS = (
    *("look", "attention", "alignment", "picture", "map", "walk", "next"),
    *("space", "whatif", "compare", "talk", "take", "training"),
)
MAX_TENSOR_BYTES = 5_500_000  # of all tensors in a file, before base64
MAX_FILE_BYTES = 7_900_000
POOLED_SIDE = 256  # attention weights of long inputs are pooled to this many rows and columns
TOP_WORDS = 64  # words for each row of the logits
MAX_WORDS = 20_000


class PackedTensor(TypedDict):
    shape: list[int]
    type: str
    data: str  # base64
    row: NotRequired[int]  # the only row of the tensor that is there


def html_page(content: dict[str, Any]) -> str:
    return build_html(PAGE_FOLDER, content)


def page_data(data: TraceData, manifest: Manifest, state: dict[str, str]) -> dict[str, Any]:
    """The manifest, words and tensors of a run: attention weights first, then others until it is full."""
    row, words = pick_words(data)
    if "written" in data.trace.tokens:
        data.tree(1)
    content = {
        "manifest": manifest,
        "words": words,
        "log": data.log(),
        "state": state,
        "trees": {beams: tree.to_json() for beams, tree in data.trees.items()},
        "lenses": data.lenses,
        "attributions": data.attributions,
        "space": data.space.pack_for_file(),
    }
    bare = len(frame_html(html_page(content | {"tensors": {}})))
    room = (MAX_FILE_BYTES - bare) * 3 // 4  # base64 needs a third more
    return content | {"tensors": pack_tensors(data, min(MAX_TENSOR_BYTES, room), row)}


def pick_words(data: TraceData) -> tuple[int | None, dict[int, str]]:
    """The most likely words by id; and if the vocabulary is so large that only one row of the logits fits,
    the number of that row."""
    outputs = data.outputs()
    if outputs and outputs.get("parts"):
        data.attribution(data.default_row if outputs["rows"] else 0, None)
    if not outputs or outputs["kind"] == "classes":
        return None, {}
    logits = data.trace["logits"]
    row = data.default_row if logits.numel() * 4 > MAX_TENSOR_BYTES // 2 else None
    if row is not None:
        logits = logits[row : row + 1]
    count = min(TOP_WORDS, logits.shape[-1], max(5, MAX_WORDS // len(logits)))
    ids = logits.topk(count).indices.unique().tolist()
    if outputs.get("lens"):
        data.lens(data.default_row)
    return row, dict(zip(ids, data.words(ids), strict=True))


def tensor_order(data: TraceData, logits_first: bool) -> list[str]:
    """All names, the most important first."""
    trace = data.trace
    first = [f"beams.{beams}.{name}" for beams, tree in data.trees.items() for name in tree.rows]
    first += ["logits"] if logits_first else []
    first += [name for name in trace if is_attention(name)]
    first += [name for name in ("pixels", "logits") if name in trace]
    first += ["rollout"] if data.rollout is not None else []
    return list(dict.fromkeys([*first, *trace, *data.space.tensors, *data.weights]))


def is_attention(name: str) -> bool:
    return name.endswith((".weights", ".reason"))


def pack_tensors(data: TraceData, room: int, row: int | None) -> dict[str, PackedTensor]:
    """As many tensors as fit into `room` bytes; of the logits only one row, if it is given."""
    tensors: dict[str, PackedTensor] = {}
    for name in tensor_order(data, logits_first=row is not None):
        tensor = data.tensor(name)
        one_row = name == "logits" and row is not None
        pooled = is_attention(name) and name in data.trace and max(tensor.shape[-2:]) > 2 * POOLED_SIDE
        if not pooled and not one_row and tensor.numel() > room:
            continue
        rows = slice(row, row + 1) if one_row and row is not None else slice(None)
        values = data.numbers(name, rows=rows, max_side=POOLED_SIDE if pooled else None)
        if values.nbytes > room:
            continue
        room -= values.nbytes
        kind = "uint8" if values.dtype == np.uint8 else "float32"
        encoded = base64.b64encode(values.tobytes()).decode()
        tensors[name] = {"shape": list(values.shape), "type": kind, "data": encoded}
        if one_row and row is not None:
            tensors[name]["row"] = row
    return tensors

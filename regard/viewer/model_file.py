"""The file that is the model: the page, with the weights and the program that its engine runs offline."""

import base64
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.files.atomic import as_private_as, atomic_file
from regard.models.base import EncoderDecoder
from regard.quantize.weights import Int8Weight, SmallWeight, dequantized
from regard.runs.model import Model
from regard.viewer.head_corpus import measure_heads
from regard.viewer.html import html_page
from regard.viewer.program import Program
from regard.viewer.saved_template import pack_template
from regard.viewer.saved_tokenizer import check_places, pack_tokenizer
from regard.viewer.session import Session

# Of weights: browsers read the data of a file as one text of at most 2**29 characters, four for three bytes.
MAX_BYTES = 390_000_000
TASKS = (
    "write",
    "converse",
    "fill",
    "classify",
    "tag",
    "span",
    "embed",
    "translate",
    "chat",
    "restore",
    "see",
    "caption",
)
OF_TASK = "mask", "sentinels", "bounds", "before", "after", "room", "unknown"  # if a task has them
OF_CONFIG = "turns", "longest", "normalize", "separators", "unanswerable"
INSTEAD = "give an INPUT to save the page of that one"
LATER: dict[str, Any] = {
    "logged": False,
    "step": None,
    "steps": [],
    "film": [],
    "maps": [],
    "searches": False,
    "layers": None,
}


def save_model(
    model: Model, path: str | Path, input: Any = None, answer: str | None = None, **state: Any
) -> None:
    """Write one HTML file that runs the model in any browser, offline, and opens on this input."""
    content = model_content(model, input, answer, {name: str(value) for name, value in state.items()})
    with as_private_as(model.weight_files), atomic_file(Path(path)) as temporary:
        temporary.write_text(html_page(content), encoding="utf-8")


def model_content(
    model: Model, input: Any = None, answer: str | None = None, state: dict[str, str] | None = None
) -> dict[str, Any]:
    """The content of such a file: a manifest, as a template for other inputs, and the model."""
    check_model(model)
    session = trace_example(model) if input is None else Session(model, model.open_input(input), answer)
    program = Program(model, session.trace)
    tokenizers = [pack_tokenizer(tokenizer) for tokenizer in model.tokenizers]
    if model.task.predicts == "place":
        check_places(tokenizers[0])
    manifest: dict[str, Any] = session.manifest | LATER | {"logged": bool(session.log())}
    for part in ("tensors", "sums", "texts"):
        manifest[part] = {name: manifest[part][name] for name in program.names if name in manifest[part]}
    pixels = session.trace.tensors.get("pixels")
    return {
        "manifest": manifest,
        "model": {
            "program": program.steps(),
            "weights": pack_weights(program.weights),
            "tokenizers": tokenizers,
            "task": describe_task(model, session),
            "patchable": session.whatif.patchable if session.outputs() is not None else [],
            "heads": measure_heads(model),
            "pixels": None if pixels is None else {"shape": list(pixels.shape), "data": encode(pixels)},
        },
        "state": state or {},
        "log": session.log(),
        "tensors": pack_weights({name: torch.atleast_2d(t) for name, t in session.space.tensors.items()}),
    }


def trace_example(model: Model) -> Session:
    """A run on the example of the model's task, or on its first words if it is too long for the model."""
    example = model.task.example_input()
    words = example.split() if isinstance(example, str) else []
    for count in range(len(words), 1, -1):
        try:
            return Session(model, " ".join(words[:count]))
        except UserError:
            continue  # too long; the error of the shortest one is raised below
    return Session(model, words[0] if words else example)


def check_model(model: Model) -> None:
    """Raise UserError if this model can't run in a page."""
    task, size = model.task, sum(map(packed_size, model.model.parameters()))
    name: str = task.config.name
    if size > MAX_BYTES:
        smaller = "use a smaller model" if has_int8(model) else "--dtype int8 makes it about a quarter"
        raise UserError(
            f"{size / 1e6:,.0f} MB of weights are too many for a page; browsers open up to "
            f"{MAX_BYTES / 1e6:,.0f} MB; {smaller}"
        )
    if name not in TASKS or (name == "classify" and isinstance(model.model, EncoderDecoder)):
        kind = f"{name} by writing" if name in TASKS else name
        raise UserError(f"the task {kind} does not run in a page; {INSTEAD}")


def packed_size(weight: Tensor) -> int:
    """The bytes of a weight in a page."""
    return weight.numel() * (1 if is_int8(weight) else 4)


def is_int8(weight: Tensor) -> bool:
    return isinstance(weight, SmallWeight) and weight.name == "int8"


def has_int8(model: Model) -> bool:
    return any(map(is_int8, model.model.parameters()))


def describe_task(model: Model, session: Session) -> dict[str, Any]:
    """Describe how an input becomes tokens, and tokens an answer."""
    task, trace = model.task, session.trace
    name = {"converse": "write"}.get(task.config.name, task.config.name)  # in a chat template
    if name == "fill" and "label" in trace.tokens:
        name = "next"  # whether a text follows another
    elif name == "fill" and trace["logits"].ndim == 1:
        name = "replaced"  # which words were
    about: dict[str, Any] = {
        "reads": "image" if task.reads == "image" else name,
        "writes": task.has_source,
        "generates": task.generates,
        "context": task.context,
        "most": model.generation.get("max_new_tokens", 200),
        "ends": list(task.end_ids),
        "begin": task.begin,
        "end": task.end,
        "source_end": task.end if task.source_end is None else task.source_end,
        "labels": trace.tokens.get("label"),
    }
    own = {name: getattr(task, name) for name in OF_TASK if hasattr(task, name)}
    if (first := getattr(task, "first", None)) is not None:
        own["first"] = [first] if isinstance(first, int) else list(first)
    if task.template is not None:
        own["template"] = pack_template(task.template, task.tokenizer)
    if task.reads == "image":
        own["image"] = list(task.image_shape)
        own["counts"] = {side: len(trace.tokens[side]) for side in ("text", "source") if side in trace.tokens}
    else:
        own["blank"] = task.tokenizer.encode("\n") or [task.tokenizer.end or 0]
        own["separator"] = task.tokenizer.id("<sep>")
    own |= {name: getattr(task.config, name) for name in OF_CONFIG if hasattr(task.config, name)}
    return about | own


def pack_weights(weights: dict[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Weights as base64: float32, or eight bits with a scale for each row if the model was loaded like
    that. A weight with several names is stored once."""
    packed: dict[str, dict[str, Any]] = {}
    names: dict[tuple[Any, ...], str] = {}
    for name, weight in weights.items():
        small = isinstance(weight, SmallWeight)
        key = (id(weight),) if small else (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype)
        like = names.setdefault(key, name)
        t = dequantized(weight).detach().float().cpu()
        if like != name:
            packed[name] = {"shape": list(t.shape), "data": "", "like": like}
        elif is_int8(weight):
            integers, scale = Int8Weight.from_float(t).parts
            packed[name] = {"shape": list(t.shape), "data": encode(integers), "scale": encode(scale)}
        else:
            packed[name] = {"shape": list(t.shape), "data": encode(t)}
    return packed


def encode(t: Tensor) -> str:
    return base64.b64encode(t.cpu().contiguous().numpy().tobytes()).decode()

"""The map of a whole model, drawn from the records of a run."""

from typing import Any

from regard.draw.diagram import Box, Diagram
from regard.runs.model import Model
from regard.tracing import Trace, trace_input
from regard.viewer.manifest import build_graph


def model_map(model: Model, input: Any, choice: object) -> Diagram:
    """The parts of the model in the order of computation, with the shapes of their outputs."""
    trace, module = trace_input(model, input), model.model
    kind = type(getattr(module, "model", module)).__name__  # without its head
    columns = [
        (each["title"], [make_box(trace, box) for box in each["boxes"]]) for each in build_graph(model, trace)
    ]
    return Diagram(f"{kind}: its parts, and the shape that each passes on", columns)


def make_box(trace: Trace, box: dict[str, Any]) -> Box:
    """A part of the diagram, with its residual connection and where its norm is."""
    part, names = box["name"].rpartition(".")[0], list(trace)
    norm, residual = (
        names.index(name) if name in trace else None for name in (f"{part}.norm", f"{part}.residual")
    )
    notes = [box["note"]] if box["note"] else []
    if norm is not None and residual is not None:
        notes.append("pre-norm" if norm < residual else "post-norm")
    return Box(
        box["name"],
        box["title"],
        box["shape"],
        note=", ".join(notes),
        group=box["group"],
        source=box.get("from"),
        residual=residual is not None,
    )

"""The computation of each number of a trace, as the model and its task describe it."""

from torch import Tensor

from regard.describe.texts import Op, Text, layer_text
from regard.describe.values import Description, operands
from regard.runs.model import Model
from regard.tracing import Trace

EXTRA_TEXTS = {  # not part of the computation
    "pixels": Text("Picture", "The picture as it was given, channel by channel."),
    "rollout": Text(
        "Rollout",
        "What reaches each token through all layers: the mean over the heads of each layer, with the "
        "residual connection, multiplied.",
        "∏_l (A_l + I) / 2",
    ),
}


def weights(model: Model) -> dict[str, Tensor]:
    """The weights that operations name, each with an @ before its name."""
    return {name: t.detach() for name, t in Description().of(model.model).weights.items()}


def describe_run(model: Model, trace: Trace) -> Description:
    """Describe the computation of the model and its task."""
    description = Description().of(model.model)
    model.task.describe(description, model.model, trace["logits"].ndim if "logits" in trace else 1)
    return description


def describe_trace(model: Model, trace: Trace) -> tuple[dict[str, Op], dict[str, Text]]:
    """The operation of each tensor of a trace, by name, if all of its operands are available; and the text
    about every tensor."""
    description = describe_run(model, trace)
    known = description.weights.keys() | set(trace)
    values = [value for value in reversed(description.values) if value.name in trace]  # the first come last
    texts = {name: EXTRA_TEXTS.get(name, layer_text(name)) for name in (*trace, "rollout")}
    texts |= {value.name: value.text for value in values}
    ops: dict[str, Op] = {}
    for value in values:  # parts that do not run together may have values of the same name
        op = value.op or {}
        if operands(op) <= known and has_rows(op, value.name, trace):
            texts[value.name] = value.text
            ops |= {value.name: op} if op else {}
    last = ops.get("logits", {})
    if last.get("does") == "linear" and trace["logits"].ndim < trace[last["x"]].ndim:
        ops["logits"] = last | {"row": -1}  # a step only has the logits of its last token
    return {name: ops[name] for name in trace if name in ops}, texts


def has_rows(op: Op, name: str, trace: Trace) -> bool:
    """Return whether a value has all rows of its operation: a table of positions may be interpolated, and
    the keys of former steps are not computed again. Fewer rows belong to the first tokens."""
    rows = len(trace[name]) if trace[name].ndim < 3 else trace[name].shape[1]
    return op.get("rows", rows) == rows and ("share" not in op or trace[op["x"]].shape[-2] >= rows)

"""Compare exported graphs with the model, on random inputs of two sizes."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.convert.export import import_extra, load_by
from regard.describe.export import ExportedModel, Graph
from regard.errors import UserError

TOLERANCE = 1e-4  # the largest difference from the model's own outputs
IDS, PIXELS = ("input_ids", "token_type_ids"), "pixels"
MASKS = "attention_mask", "encoder_attention_mask"
UNBOUNDED = 2**31


@torch.inference_mode()
def check_graphs(folder: Path, graphs: list[Graph], model: ExportedModel) -> str:
    """Return the largest difference as one line; raise UserError if it is too large."""
    try:
        runtime = import_extra("onnx", "onnxruntime")
    except UserError:
        return "not checked, as onnxruntime is missing: pip install onnxruntime"
    largest = 0.0
    for graph in graphs:
        options = runtime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 3, torch.get_num_threads()
        session = load_by(runtime.InferenceSession, folder / f"{graph.name}.onnx", options)
        for seed, (batch, *lengths) in enumerate([(2, 11, 3), (5, 4, 13)]):
            inputs = random_inputs(graph, model, seed, batch, (lengths[0], lengths[1]))
            arrays = {name: t.numpy() for name, t in zip(graph.inputs, inputs, strict=True)}
            expected = graph.f(*inputs)
            expected = expected if isinstance(expected, tuple) else (expected,)
            for output, y in zip(session.run(list(graph.outputs), arrays), expected, strict=True):
                if output.shape != y.shape:
                    raise UserError(
                        f"{graph.name}.onnx returns the shape {output.shape}, the model {tuple(y.shape)}; "
                        "nothing was kept"
                    )
                largest = max(largest, float((torch.from_numpy(output) - y).abs().max()))
    if not largest <= TOLERANCE:
        raise UserError(f"onnxruntime's outputs are {largest:.1e} from the model's own; nothing was kept")
    return f"onnxruntime's outputs are the model's own, but for {largest:.0e}"


def random_inputs(
    graph: Graph, model: ExportedModel, seed: int, batch: int, lengths: tuple[int, int]
) -> tuple[Tensor, ...]:
    """Inputs of a graph, with sources and targets of these lengths or what the context allows.

    A mask covers the whole first row, and any part of the others.
    """
    rng, inputs = torch.Generator().manual_seed(seed), []
    sizes = axis_sizes(model.config, batch, *lengths)
    for name, axes in graph.inputs.items():
        shape = [sizes[axis] if isinstance(axis, str) else axis for axis in axes]
        if name in IDS:
            high = 2 if name == "token_type_ids" else vocab_size(model.config)
            inputs.append(torch.randint(high, shape, generator=rng))
        elif name in MASKS:
            rows = torch.randint(1, shape[1] + 1, (shape[0], 1), generator=rng)
            rows[0] = shape[1]
            inputs.append((torch.arange(shape[1]) < rows).long())
        elif name == PIXELS:
            inputs.append(torch.randint(256, shape, generator=rng, dtype=torch.uint8))
        else:
            inputs.append(torch.randn(shape, generator=rng))
    return tuple(inputs)


def axis_sizes(config: Any, batch: int, source: int, target: int) -> dict[str, int]:
    """The size of each named axis; with a window, sources are long enough for it to matter."""
    source, target = (max(1, min(length, config.context)) for length in (source, target))
    if window := getattr(config, "window", None) or getattr(config, "sliding_window", None):
        source = min(config.context, getattr(config, "globals", 0) + 3 * window + batch)
    return {"batch": batch, "length": source, "source": source, "target": target}


def vocab_size(config: Any) -> int:
    """The smaller vocabulary, if there are two: ids that exist in both."""
    return min(getattr(config, name, None) or UNBOUNDED for name in ("vocab", "target_vocab"))

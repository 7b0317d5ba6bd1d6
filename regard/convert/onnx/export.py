"""ONNX: the graphs that a model declares, each in a file, checked against the model itself.

A model that encodes and then decodes has two graphs. The decoder's returns the logits of the whole target so
far; a recurrent one's returns those of one token, and the next state.

Shapes: B batch, T tokens, D width.
"""

import logging
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.audio.mel import attention_mask
from regard.convert.export import ExportRequest, import_extra, write_tokenizers
from regard.convert.huggingface.export import model_config
from regard.convert.huggingface.files import CONFIG, GENERATION
from regard.convert.huggingface.generation import generation_config
from regard.convert.model_card import onnx_card
from regard.convert.onnx.check import MASKS, check_graphs, random_inputs
from regard.convert.onnx.recurrent import OPSET, recurrent_graph
from regard.core.cache import masked_mean
from regard.describe.export import ExportedModel, Graph
from regard.errors import UserError
from regard.files.atomic import atomic_folder
from regard.files.untrusted import write_json

LARGE = 2**30  # bytes: larger weights go into a separate file


class GraphModule(nn.Module):
    """A graph's function as a module, with the model's weights."""

    def __init__(self, model: ExportedModel, f: Callable[..., Any]):
        super().__init__()
        self.model, self.f = model, f

    def forward(self, *inputs: Tensor) -> Any:
        return self.f(*inputs)


def export_onnx(folder: str | Path, request: ExportRequest) -> str:
    """Write a folder of ONNX graphs, or nothing; return their difference from the model in one line."""
    import_extra("onnx", "onnxscript")
    model, task = request.model, request.task
    if task["name"] == "span" and getattr(model.config, "global_qkv", False):
        raise UserError("a Longformer that finds answers has no ONNX graph; use --to hf")
    graphs = [with_integer_masks(graph) for graph in task_graphs(model, task)]
    with atomic_folder(Path(folder)) as temporary:
        for graph in graphs:
            write_graph(temporary / f"{graph.name}.onnx", graph, model, task)
        ids = {"eos_token_id": request.end, "decoder_start_token_id": request.begin}
        tokens = {name: id for name, id in ids.items() if id is not None and request.generates}
        if request.tokenizer is not None:
            write_tokenizers(temporary, request)
        if request.generates:
            write_json(temporary / GENERATION, generation_config(request.generation, tokens))
        names = {
            graph.name: {"inputs": list(graph.inputs), "outputs": list(graph.outputs)} for graph in graphs
        }
        # Not of language models: transformers pads on the left, where their graphs have no mask.
        masked = any("attention_mask" in graph.inputs for graph in graphs)
        config = model_config(request) if masked else {}
        config |= {"task": task, "graphs": names, **tokens}
        config |= {name: size for name in ("context", "size") if (size := getattr(model.config, name, None))}
        write_json(temporary / CONFIG, config)
        card = onnx_card(
            str(task["name"]),
            names,
            two_tokenizers=request.target_tokenizer is not None,
            labels=task.get("labels") or (),
            tokens=tokens,
            context=model.config.context,
            facts=request.card,
        )
        (temporary / "README.md").write_text(card, encoding="utf-8")
        return check_graphs(temporary, graphs, model)


def task_graphs(model: ExportedModel, task: dict[str, Any]) -> list[Graph]:
    """The model's graphs, with the task's computation before and after them."""
    if not hasattr(model, "graphs"):
        raise UserError(f"a model of kind {type(model).__name__} declares no graphs for ONNX; use --to hf")
    graphs: list[Graph] = model.graphs()
    backwards = any(isinstance(m, nn.RNNBase) and m.bidirectional for m in model.modules())
    if backwards and task["name"] != "fill" and not any(graph.recurrent for graph in graphs):
        # torch's exporter would read the padding first
        graphs = [replace(graph, recurrent=True) for graph in graphs]
    if task["name"] == "embed":
        return [pool_vectors(graph, model.encode, task) for graph in graphs]
    if task["name"] == "span":
        return [graph if graph.recurrent else split_places(graph) for graph in graphs]
    if task["name"] in ("see", "hear"):
        return [normalize_pixels(graph, model.config, task) for graph in graphs]
    return graphs


def with_integer_masks(graph: Graph) -> Graph:
    """Masks go in as whole numbers, as tokenizers give them."""

    def f(*inputs: Tensor) -> Any:
        named = zip(graph.inputs, inputs, strict=True)
        return graph.f(*(t.bool() if name in MASKS else t for name, t in named))

    return replace(graph, f=f)


def pool_vectors(graph: Graph, encode: Callable[..., Tensor], task: dict[str, Any]) -> Graph:
    """One vector for each text."""

    def vectors(ids: Tensor, mask: Tensor) -> Tensor:
        x = encode(ids, mask)  # (B, T, D)
        y = x[:, 0] if task["pooling"] == "first" else masked_mean(x, mask)
        return F.normalize(y, dim=1) if task["normalize"] else y

    inputs = dict.fromkeys(("input_ids", "attention_mask"), graph.inputs["input_ids"])
    return replace(graph, f=vectors, inputs=inputs, outputs=("vectors",))


def split_places(graph: Graph) -> Graph:
    """Where an answer begins and where it ends, as optimum names them."""

    def places(*inputs: Tensor) -> tuple[Tensor, ...]:
        logits: Tensor = graph.f(*inputs)  # (B, T, 2)
        return logits.unbind(-1)

    return replace(graph, f=places, outputs=("start_logits", "end_logits"))


def normalize_pixels(graph: Graph, config: Any, task: dict[str, Any]) -> Graph:
    """Images and spectrograms go in as bytes; of spectrograms, 0 is padding."""
    mean, std = (torch.tensor(task[name])[:, None, None] for name in ("mean", "std"))

    def logits(pixels: Tensor) -> Tensor:
        mask = (attention_mask(pixels, config.patch, config.pool == "first"),) if config.mels else ()
        return graph.f((pixels / 255 - mean) / std, *mask)

    if config.mels:
        return replace(graph, f=logits)
    return replace(
        graph, f=logits, inputs={"pixels": ("batch", task["channels"], task["size"], task["size"])}
    )


@torch.no_grad()
def write_graph(path: Path, graph: Graph, model: ExportedModel, task: dict[str, Any]) -> None:
    if graph.recurrent:
        import_extra("onnx").save_model(recurrent_graph(model, graph, task), str(path))
        return
    inputs = random_inputs(graph, model, 0, batch=3, lengths=(7, 5))
    shapes = tuple(
        {i: axis for i, axis in enumerate(axes) if isinstance(axis, str)} for axes in graph.inputs.values()
    )
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the exporter logs every step, and optional packages that are missing
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                GraphModule(model, graph.f).eval(),
                inputs,
                str(path),
                input_names=list(graph.inputs),
                output_names=list(graph.outputs),
                dynamic_shapes=(shapes,),
                opset_version=OPSET,
                dynamo=True,
                external_data=sum(p.numel() * p.element_size() for p in model.parameters()) > LARGE,
                verbose=False,
            )
    finally:
        logging.disable(disabled)

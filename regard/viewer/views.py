"""Views of a model's run: the figures of `look`, made from a model and an input.

Shapes: L layers, H heads, T queries, S keys, D width; an image has R rows and C columns of regions.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.core.positions import Positions
from regard.describe.watch import evaluating, watch
from regard.draw.arcs import Arcs
from regard.draw.diagram import Diagram
from regard.draw.heat import Atlas, Matrix
from regard.draw.maps import Maps, to_image
from regard.draw.plots import Curves
from regard.draw.word_map import Points
from regard.errors import UserError
from regard.runs.model import Model
from regard.tasks import Prompt, Request
from regard.text.vectors import embeddings as embedding_table
from regard.tracing import trace
from regard.tracing.names import trace_names
from regard.viewer.figures import similarity_matrix, waves, word_map
from regard.viewer.model_map import model_map
from regard.viewer.space import grid_table

MAX_ARCS = 200  # words

View = Matrix | Arcs | Atlas | Maps | Curves | Points | Diagram


@dataclass(frozen=True)
class Choice:
    """The choices of a view."""

    layer: int | None = None  # default: the last
    head: int | None = None  # default: the mean of all; in `heads`, the first
    part: str | None = None  # of an encoder-decoder: encoder, decoder or cross, the default
    patch: int | None = None  # counted row by row; default: nine of them
    answer: str | None = None  # default: the model's own


Views = dict[str, tuple[Callable[[Model, Any, Choice], View], tuple[str, ...]]]


def view(model: Model, input: Any, name: str | None = None, choice: Choice | None = None) -> View:
    """The view with this name, or the model's first, of a text or an image."""
    known, choice = views(model), choice or Choice()
    has_layers = len(getattr(inner(model.model), "blocks", "?")) > 0  # vectors of words have none
    has_first = bool(attentions(model)) or "gates" in known or not has_layers
    if not known or (name is None and not has_first):
        other = f", or choose view={' or '.join(known)}" if known else ""
        raise UserError(
            f"this model has no attention to draw; train a recurrent one with model.attention=additive{other}"
        )
    name = name or next(iter(known))
    if name not in known:
        raise UserError(f"view={name}: no such view; this model has {', '.join(known)}")
    make, takes = known[name]
    for option, value in vars(choice).items():
        if value is not None and option not in takes:
            raise UserError(
                f"{option}={value}: the view {name} takes {', '.join(takes) or 'nothing'}; leave {option} out"
            )
    return make(model, input, choice)


def views(model: Model) -> Views:
    """The views of a model, the default first: the function of each, and the choices it takes."""
    return special_views(model) | ({} if model.task is None else {"map": (model_map, ())})


def special_views(model: Model) -> Views:
    """The views that depend on the kind of model."""
    names, table, task = attentions(model), position_table(model), model.task
    placed = {} if table is None else position_views(table)
    images, writes = (task.reads != "text", task.has_source) if task is not None else (False, False)
    if images and not writes:
        which = "layer", "head"
        return {
            "classes": (classes, which),
            "rollout": (rollout, ()),
            "patches": (patches, (*which, "patch")),
        } | placed
    answer = ("answer",) if writes else ()
    if images:
        return {"words": (words, ("layer", "head", *answer))} | placed
    if model.task is not None and isinstance(getattr(inner(model.model), "embed", None), nn.Embedding):
        placed |= {"embeddings": (embeddings, ())}
    if isinstance(getattr(inner(model.model), "rnn", None), nn.RNNBase):
        return {"gates": (gates, ("layer",))} | placed
    if not names:
        return placed
    aligned: Views = {"alignment": (alignment, ("layer", "head", *answer))} if writes else {}
    part = ("part",) if writes and any(name.endswith("attn.f") for name in names) else ()
    return (
        aligned
        | {
            "heads": (heads, ("layer", "head", *part, *answer)),
            "atlas": (atlas, (*part, *answer)),
            "arcs": (arcs, ("layer", "head", *part, *answer)),
        }
        | placed
    )


def attentions(model: Model) -> list[str]:
    """The names of the modules that record attention weights."""
    return [name for name, m in model.model.named_modules() if hasattr(m, "records")]


# Texts


@dataclass(frozen=True)
class Looks:
    """The attention weights of one part of a model."""

    weights: np.ndarray  # (L, H, T, S)
    rows: Sequence[str]
    columns: Sequence[str]


def alignment(model: Model, text: str, choice: Choice) -> Matrix:
    """The source words that each word of an answer attends to, Bahdanau et al. 2015, figure 3."""
    return make_matrix(looks(model, text, replace(choice, part="cross")), choice)


def heads(model: Model, text: str, choice: Choice) -> Matrix:
    """One head of one layer."""
    return make_matrix(looks(model, text, choice), replace(choice, head=choice.head or 0))


def arcs(model: Model, text: str, choice: Choice) -> Arcs:
    part = looks(model, text, choice)
    if (words := max(len(part.rows), len(part.columns))) > MAX_ARCS:
        raise UserError(f"arcs between {words} words overlap; shorten the text, or choose view=heads")
    weights, title = choose_weights(part.weights, choice)
    return Arcs(title, weights, part.rows, part.columns)


def atlas(model: Model, text: str, choice: Choice) -> Atlas:
    part = looks(model, text, choice)
    L, H = part.weights.shape[:2]
    counts = [f"{n} {name}{'s' * (n > 1)}" for n, name in ((L, "layer"), (H, "head"))]
    return Atlas(f"{', '.join(counts)}; each from 0 to its largest", part.weights)


def embeddings(model: Model, text: str, choice: Choice) -> Points:
    """The embeddings of a text's tokens in the plane."""
    ids = list(dict.fromkeys(model.task.tokenizer.encode(text)))
    if len(ids) < 3:
        raise UserError(f"the text has {len(ids)} different tokens; give one of 3 or more for a map")
    table = embedding_table(model.model)
    title = (
        f"{len(ids)} of {len(table):,} embeddings, {table.shape[1]} wide, by their two principal components"
    )
    return word_map(title, model.task.tokenizer.tokens(ids), table[ids])


def gates(model: Model, text: str, choice: Choice) -> Matrix:
    """The gates of a recurrent layer at each token, averaged over its units."""
    run, depth = trace(model, text), inner(model.model).rnn.num_layers
    layer = depth - 1 if choice.layer is None else choice.layer
    if not 0 <= layer < depth:
        raise UserError(f"layer={layer}: there are layers 0 to {depth - 1}")
    cells = f"cells.{layer}."
    names = [name for name in run if name.startswith(cells) and name.endswith("_gate")]
    names = names or [name for name in run if name.startswith(cells) and name.endswith(".state")]  # an RNN
    title = (
        f"layer {layer}, mean of {'the gates' if names[0].endswith('_gate') else 'the states, without sign'}"
    )
    values = torch.stack([run[name].abs().mean(-1) for name in names]).float().cpu().numpy()
    rows = [name.removeprefix(cells).replace("_", " ").replace(".", " ") for name in names]
    return Matrix(title, values, rows, run.tokens["text"])


def make_matrix(part: Looks, choice: Choice) -> Matrix:
    weights, title = choose_weights(part.weights, choice)
    return Matrix(title, weights, part.rows, part.columns)


def choose_weights(weights: np.ndarray, choice: Choice) -> tuple[np.ndarray, str]:
    """The weights (T, S) of one layer, of one head or the mean of all; and their title."""
    L, H = weights.shape[:2]
    for name, value, count in (("layer", choice.layer, L), ("head", choice.head, H)):
        if value is not None and not 0 <= value < count:
            known = f"are {name}s 0 to {count - 1}" if count > 1 else f"is one {name}, 0"
            raise UserError(f"{name}={value}: there {known}")
    layer = L - 1 if choice.layer is None else choice.layer
    if choice.head is not None:
        return weights[layer, choice.head], f"layer {layer}, head {choice.head}"
    title = f"layer {layer}" if L > 1 else "attention"
    return weights[layer].mean(0), title + (f", mean of {H} heads" if H > 1 else "")


def looks(model: Model, text: str, choice: Choice) -> Looks:
    """The chosen part of a model, by default cross-attention, or the self-attention of a text."""
    if not isinstance(text, str) or not text.strip():
        raise UserError("nothing to look at; give a text")
    if model.task.has_source:
        parts = between(model, text, choice.answer)
    else:
        parts = within(model, text)
    name = choice.part or next(iter(parts))
    if name not in parts:
        raise UserError(f"part={name}: no such part; this model has {', '.join(parts)}")
    return parts[name]


def between(model: Model, text: str, answer: str | None) -> dict[str, Looks]:
    """The parts of an encoder-decoder: cross, encoder and decoder."""
    task = model.task
    prompt, writer = task.source_prompt(model.model, text), task.output_tokenizer
    source, begin = list(prompt.source or ()), prompt.ids[0]
    if answer is None and task.streams:
        answer = model.ask(text)
    if answer is None:
        written = task.write_target(model.model, prompt, model.request(text, {}).sampling)
    else:
        written = task.encode_target(prompt, answer)
    written = written[: task.context]
    read = [begin, *written[:-1]]
    device = next(model.model.parameters()).device
    both = [torch.tensor([ids], device=device) for ids in (source, read)]
    weights = watched(model.model, lambda: model.model(*both))
    source_tokens, read_tokens = task.tokenizer.tokens(source), writer.tokens(read)
    names = {
        "cross": (writer.tokens(written), source_tokens),
        "encoder": (source_tokens, source_tokens),
        "decoder": (read_tokens, read_tokens),
    }
    return {name: Looks(weights[name], *names[name]) for name in names if name in weights}


def within(model: Model, text: str) -> dict[str, Looks]:
    """The self-attention of a text; of the first part, if it is read in several."""
    task, module = model.task, inner(model.model)
    heard: list[Tensor] = []
    hook = module.embed.register_forward_pre_hook(lambda _, inputs: heard.append(inputs[0]))
    try:
        weights = watched(module, lambda: task.run_once(model.model, text))
    finally:
        hook.remove()
    tokens = task.tokenizer.tokens(heard[0][0].tolist())
    return {name: Looks(weights[name], tokens, tokens) for name in ("self", "encoder") if name in weights}


# Images


def classes(model: Model, picture: Any, choice: Choice) -> Maps:
    """The patches that the class token attends to, or the mean over all patches if there is none."""
    pixels, weights, answer = classify_image(model, picture)
    layer, title = choose_weights(weights, choice)
    maps = weights_by_patch(model, layer, pixels)
    return Maps(f"{answer}; {title}", to_image(pixels), maps, ["where it looked"])


def rollout(model: Model, picture: Any, choice: Choice) -> Maps:
    """Attention through all layers and their residuals: Π (A + I) / 2, Abnar & Zuidema 2020, section 3.1."""
    pixels, weights, answer = classify_image(model, picture)
    flow = np.eye(weights.shape[-1], dtype=weights.dtype)
    for layer in weights.mean(1):
        flow = (layer + np.eye(len(layer), dtype=layer.dtype)) / 2 @ flow
    title = f"{answer}; rollout of {len(weights)} layers"
    return Maps(title, to_image(pixels), weights_by_patch(model, flow, pixels), ["what reached it"])


def patches(model: Model, picture: Any, choice: Choice) -> Maps:
    """The patches that one patch attends to, or nine patches, spread over the image."""
    pixels, weights, answer = classify_image(model, picture)
    layer, title = choose_weights(weights, choice)
    R, C = grid(model, pixels)
    if choice.patch is not None and not 0 <= choice.patch < R * C:
        raise UserError(f"patch={choice.patch}: there are patches 0 to {R * C - 1}, row by row")
    queries = [r * C + c for r in spread(R) for c in spread(C)] if choice.patch is None else [choice.patch]
    first = len(layer) - R * C  # after the class token, if there is one
    maps = layer[first:, first:][queries].reshape(-1, R, C)
    return Maps(f"{answer}; {title}", to_image(pixels), maps, [f"patch {n}" for n in queries], queries)


def words(model: Model, picture: Any, choice: Choice) -> Maps:
    """The regions that each word of a caption attends to, Xu et al. 2015, figure 3."""
    task = model.task
    pixels = task.pixels(picture)
    answer = model.ask([pixels])[0] if choice.answer is None else choice.answer  # type: ignore[list-item]
    written = task.encode_target(Prompt([]), answer)[: task.context]
    device = next(model.model.parameters()).device
    target = torch.tensor([[task.begin or 0, *written[:-1]]], device=device)
    cross = watched(model.model, lambda: model.model(pixels[None].to(device), target))["cross"]
    weights, title = choose_weights(cross, choice)
    side = math.isqrt(weights.shape[1])
    maps = weights.reshape(-1, side, side)
    tokens = task.tokenizer.tokens(written)
    if written[-1] == task.end and len(written) > 1:  # the end token is not a word
        maps, tokens = maps[:-1], tokens[:-1]
    title = answer if cross.shape[:2] == (1, 1) else f"{answer}; {title}"
    return Maps(title, to_image(pixels), maps, tokens)


def classify_image(model: Model, picture: Any) -> tuple[Tensor, np.ndarray, str]:
    """The image as the model reads it (channels, height, width), all weights (L, H, T, T), and the answer."""
    task = model.task
    pixels = task.pixels(picture)
    answers: list[Any] = []
    weights = watched(
        inner(model.model), lambda: answers.extend(task.answers(model.model, Request([pixels])))
    )
    ((best,),) = answers
    return pixels, weights["self"], f"{best.text} {best.score:.0%}"


def weights_by_patch(model: Model, weights: np.ndarray, pixels: Tensor) -> np.ndarray:
    """The weights (T, T) of the class token, or the mean of all patches, on each patch: (1, R, C)."""
    R, C = grid(model, pixels)
    first = len(weights) - R * C
    row = weights[0] if first else weights.mean(0)
    return row[first:].reshape(1, R, C)


def grid(model: Model, pixels: Tensor) -> tuple[int, int]:
    rows, columns = inner(model.model).grid(pixels)
    return rows, columns


def spread(n: int) -> list[int]:
    """Three numbers spread over range(n), or all of them."""
    return sorted({n // 6, n // 2, n - 1 - n // 6})


# Positions


def position_views(table: np.ndarray) -> Views:
    """Views of the vectors (T, D) that positions add: the same for every input."""
    rows, columns = (list(map(str, range(n))) for n in table.shape)
    least = float(table.min())
    return {
        "positions": (lambda *_: Matrix("positions, and what each adds", table, rows, columns, least), ()),
        "waves": (lambda *_: waves("what each position adds", table), ()),
        "similarity": (lambda *_: similarity_matrix("positions, and how alike they are", table), ()),
    }


@torch.inference_mode()
def position_table(model: Model) -> np.ndarray | None:
    """The vectors (T, D) that positions add, or None; in an encoder-decoder, the encoder's."""
    names = dict(trace_names(model.model))
    encoding = names.get("encoder.positions", names.get("positions"))
    table = encoding.vectors() if isinstance(encoding, Positions) else grid_table(inner(model.model))
    return None if table is None else table.float().cpu().numpy()


# Watching


def inner(module: Any) -> Any:
    """The model without its head."""
    return getattr(module, "model", module)


@torch.inference_mode()
def watched(module: nn.Module, run: Callable[[], Any]) -> dict[str, np.ndarray]:
    """The weights (L, H, T, S) of the first row of the batch, by part: encoder, decoder, cross or self."""
    with watch(module) as records, evaluating(module):
        run()
    parts: dict[str, list[Tensor]] = {}
    for name, calls in records.items():
        if calls:
            stepwise = name.endswith("look")  # recurrent: a record for every word
            rows = [record["weights"][0] for record in (calls if stepwise else calls[:1])]
            begins = name.split(".")[0]
            part = begins if begins in ("encoder", "decoder") else "self"
            part = "cross" if stepwise or name.endswith("cross.f") else part
            parts.setdefault(part, []).append(torch.cat(rows, dim=1))
    return {part: torch.stack(layers).float().cpu().numpy() for part, layers in parts.items()}

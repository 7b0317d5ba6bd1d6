"""What a model looked at, as numbers: from a model and an input to weights, with the words beside them.

Shapes: L layers, H heads, T queries, S keys, N maps; a picture is a grid of R rows and C columns of regions.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.pictures import one
from regard.errors import Mistake
from regard.generate import Sampling
from regard.models import Captioner, ViT
from regard.positions import Learned, Sinusoidal
from regard.run import Model
from regard.tasks import Caption, Fill, Restore, See, Write
from regard.tasks.pairs import PairTask
from regard.tasks.restore import BLANK
from regard.vectors import embeddings as table_of
from regard.watch import watch

from .figures import Curves, Points, waves, word_map

MOST_ARCS = 200  # words


@dataclass(frozen=True)
class Matrix:
    """Who looks at what: each row is a word that looks, and what it gives to each column sums to 1."""

    title: str
    weights: np.ndarray  # (T, S)
    rows: Sequence[str]
    columns: Sequence[str]
    low: float = 0.0  # what the lightest colour stands for; the darkest is the largest


class Arcs(Matrix):
    """The same, to be drawn as lines between the words."""


@dataclass(frozen=True)
class Atlas:
    """All heads of all layers."""

    title: str
    weights: np.ndarray  # (L, H, T, S)


@dataclass(frozen=True)
class Maps:
    """A picture, and maps that lie over it."""

    title: str
    picture: np.ndarray  # uint8 (pixels down, pixels across, 3)
    maps: np.ndarray  # (N, R, C)
    words: Sequence[str]  # N
    marks: Sequence[int] = ()  # N regions, counted row by row, that looked


View = Matrix | Atlas | Maps | Curves | Points


@dataclass(frozen=True)
class Choice:
    """What of a model is to be seen; None: the usual."""

    layer: int | None = None  # the last
    head: int | None = None  # the mean of all, in `heads` the first
    part: str | None = None  # of an encoder-decoder: encoder, decoder, or cross, the usual
    patch: int | None = None  # counted row by row; a few of them
    answer: str | None = None  # the model's own


Views = dict[str, tuple[Callable[[Model, Any, Choice], View], tuple[str, ...]]]


def view(model: Model, given: Any, name: str | None = None, choice: Choice | None = None) -> View:
    """The view of this name, or the model's first, on a text or a picture."""
    known, choice = views(model), choice or Choice()
    if name is None and not attentions(model):
        other = f"; without it there is view={' or '.join(known)}" if known else ""
        raise Mistake(
            "this model looks at nothing: it has no attention; of recurrent ones, train one with "
            f"model.attention=additive{other}"
        )
    name = name or next(iter(known))
    if name not in known:
        raise Mistake(f"view={name}: no such view; this model has {', '.join(known)}")
    make, takes = known[name]
    for option, value in vars(choice).items():
        if value is not None and option not in takes:
            raise Mistake(
                f"{option}={value}: the view {name} takes {', '.join(takes) or 'nothing'}, not this"
            )
    return make(model, given, choice)


def views(model: Model) -> Views:
    """The views that a model has, the usual one first: what makes each, and which choices it takes."""
    names = attentions(model)
    placed: Views = {} if places(model) is None else {"positions": (positions, ())}
    if placed:
        placed |= {"waves": (position_waves, ()), "similarity": (similarity, ())}
    if isinstance(model.task, See):
        which = "layer", "head"
        return {
            "classes": (classes, which),
            "rollout": (rollout, ()),
            "patches": (patches, (*which, "patch")),
        } | placed
    writes = isinstance(model.task, PairTask | Restore)
    answer = ("answer",) if writes else ()
    if isinstance(model.task, Caption):
        return {"words": (words, ("layer", "head", *answer))} | placed
    if model.task is not None and isinstance(getattr(inner(model.model), "embed", None), nn.Embedding):
        placed |= {"embeddings": (embeddings, ())}
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
    return [name for name, m in model.model.named_modules() if hasattr(m, "seen")]


# Texts


@dataclass(frozen=True)
class Looks:
    """The attention of one part of a model."""

    weights: np.ndarray  # (L, H, T, S)
    rows: Sequence[str]
    columns: Sequence[str]


def alignment(model: Model, text: str, choice: Choice) -> Matrix:
    """What each word of an answer looked at in the source, Bahdanau et al. 2015, figure 3."""
    return matrix(looks(model, text, replace(choice, part="cross")), choice)


def heads(model: Model, text: str, choice: Choice) -> Matrix:
    """One head of one layer."""
    return matrix(looks(model, text, choice), replace(choice, head=choice.head or 0))


def arcs(model: Model, text: str, choice: Choice) -> Arcs:
    found = looks(model, text, choice)
    if (many := max(len(found.rows), len(found.columns))) > MOST_ARCS:
        raise Mistake(f"arcs between {many} words can't be told apart; shorten the text, or take view=heads")
    return Arcs(**vars(matrix(found, choice)))


def atlas(model: Model, text: str, choice: Choice) -> Atlas:
    found = looks(model, text, choice)
    L, H = found.weights.shape[:2]
    many = [f"{n} {name}{'s' * (n > 1)}" for n, name in ((L, "layer"), (H, "head"))]
    return Atlas(f"{', '.join(many)}; each from 0 to its largest", found.weights)


def embeddings(model: Model, text: str, choice: Choice) -> Points:
    """The tokens of a text in the plane, by what the model looks them up in: near where they are alike."""
    ids = list(dict.fromkeys(model.task.tokenizer.encode(text)))
    if len(ids) < 3:
        raise Mistake(f"a map of {len(ids)} different tokens shows little; give a text of 3 or more")
    table = table_of(model.model)
    title = (
        f"{len(ids)} of {len(table):,} embeddings, {table.shape[1]} wide, by their two principal components"
    )
    return word_map(title, model.task.tokenizer.tokens(ids), table[ids])


def matrix(found: Looks, choice: Choice) -> Matrix:
    weights, title = chosen(found.weights, choice)
    return Matrix(title, weights, found.rows, found.columns)


def chosen(weights: np.ndarray, choice: Choice) -> tuple[np.ndarray, str]:
    """One layer's weights (T, S), of one head or the mean of all; and what to call them."""
    L, H = weights.shape[:2]
    for name, value, many in (("layer", choice.layer, L), ("head", choice.head, H)):
        if value is not None and not 0 <= value < many:
            has = f"{name}s 0 to {many - 1}" if many > 1 else f"one {name}, 0"
            raise Mistake(f"{name}={value}: there {'are' if many > 1 else 'is'} {has}")
    layer = L - 1 if choice.layer is None else choice.layer
    if choice.head is not None:
        return weights[layer, choice.head], f"layer {layer}, head {choice.head}"
    title = f"layer {layer}" if L > 1 else "attention"
    return weights[layer].mean(0), title + (f", mean of {H} heads" if H > 1 else "")


def looks(model: Model, text: str, choice: Choice) -> Looks:
    """The part that was chosen, or the usual one: an answer looks at its source, a text at itself."""
    if not isinstance(text, str) or not text.strip():
        raise Mistake("there is nothing to look at; give a text")
    if isinstance(model.task, PairTask | Restore):
        parts = between(model, text, choice.answer)
    else:
        parts = within(model, text)
    name = choice.part or next(iter(parts))
    if name not in parts:
        raise Mistake(f"part={name}: no such part; this model has {', '.join(parts)}")
    return parts[name]


def between(model: Model, text: str, answer: str | None) -> dict[str, Looks]:
    """A source is read, and an answer written: cross, encoder and decoder."""
    task = model.task
    if isinstance(task, Restore):
        source, begin, writer = task.source(text), task.begin, task.tokenizer
        written = restored(model, source, answer)
    else:
        parts = task.parts(text)
        if len(parts) != 1:
            raise Mistake(f"the text is read in {len(parts)} parts, one after another; look at one sentence")
        source, begin, writer = task.sourced(parts[0]), task.begin, task.writer
        written = [*writer.encode(model.ask(text) if answer is None else answer), task.end]
    written = written[: task.context]
    read = [begin, *written[:-1]]
    device = next(model.model.parameters()).device
    both = [torch.tensor([ids], device=device) for ids in (source, read)]
    found = watched(model.model, lambda: model.model(*both))
    seen, told, heard = task.tokenizer.tokens(source), writer.tokens(written), writer.tokens(read)
    names = {"cross": (told, seen), "encoder": (seen, seen), "decoder": (heard, heard)}
    return {name: Looks(found[name], *names[name]) for name in names if name in found}


def restored(model: Model, source: list[int], answer: str | None) -> list[int]:
    """What was missing, each after its sentinel: by the model, or by an answer as "jumps ___ lazy"."""
    task = model.task
    if answer is None:
        sampling = Sampling(**model.generation)
        ((best,),) = task._written(model.model, [source], sampling, 1)
        return [*best.tokens, task.end]
    blanks = [id for id in source if id in task.sentinels]
    parts = BLANK.split(answer)
    if len(parts) != len(blanks):
        raise Mistake(
            f"answer: give what goes into the {len(blanks)} blanks, with ___ between: jumps ___ lazy"
        )
    both = zip(blanks, parts, strict=True)
    return [id for blank, part in both for id in (blank, *task.tokenizer.encode(part))] + [task.end]


def within(model: Model, text: str) -> dict[str, Looks]:
    """A text looks at itself; of one that is read in parts, the first."""
    task, module = model.task, inner(model.model)
    device = next(module.parameters()).device
    heard: list[Tensor] = []
    hook = module.embed.register_forward_pre_hook(lambda _, given: heard.append(given[0]))

    def run() -> None:
        if isinstance(task, Write):
            ids = task.plain(text)[-task.context :]
            module(torch.tensor([ids], device=device))
        elif isinstance(task, Fill) and not BLANK.search(text):  # nothing is asked, but all can be seen
            ids = [task.first, *task.tokenizer.encode(text)[: task.context - 2], task.end]
            module(torch.tensor([ids], device=device))
        else:
            task.answers(model.model, [text], Sampling())

    try:
        found = watched(module, run)
    finally:
        hook.remove()
    tokens = task.tokenizer.tokens(heard[0][0].tolist())
    return {name: Looks(found[name], tokens, tokens) for name in ("self", "encoder") if name in found}


# Pictures


def classes(model: Model, picture: Any, choice: Choice) -> Maps:
    """What the class token looked at, or all patches on average if there is none."""
    pixels, weights, answer = seeing(model, picture)
    layer, title = chosen(weights, choice)
    return Maps(f"{answer}; {title}", shown(pixels), over_patches(model, layer, pixels), ["where it looked"])


def rollout(model: Model, picture: Any, choice: Choice) -> Maps:
    """The same through all layers, and past them: Π (A + I) / 2, Abnar & Zuidema 2020, section 3.1."""
    pixels, weights, answer = seeing(model, picture)
    flow = np.eye(weights.shape[-1], dtype=weights.dtype)
    for layer in weights.mean(1):
        flow = (layer + np.eye(len(layer), dtype=layer.dtype)) / 2 @ flow
    title = f"{answer}; rollout of {len(weights)} layers"
    return Maps(title, shown(pixels), over_patches(model, flow, pixels), ["what reached it"])


def patches(model: Model, picture: Any, choice: Choice) -> Maps:
    """Where a patch looks, or nine of them, spread over the picture."""
    pixels, weights, answer = seeing(model, picture)
    layer, title = chosen(weights, choice)
    R, C = grid(model, pixels)
    if choice.patch is not None and not 0 <= choice.patch < R * C:
        raise Mistake(f"patch={choice.patch}: there are patches 0 to {R * C - 1}, row by row")
    some = [r * C + c for r in spread(R) for c in spread(C)] if choice.patch is None else [choice.patch]
    first = len(layer) - R * C  # after the class token, if there is one
    maps = layer[first:, first:][some].reshape(-1, R, C)
    return Maps(f"{answer}; {title}", shown(pixels), maps, [f"patch {n}" for n in some], some)


def words(model: Model, picture: Any, choice: Choice) -> Maps:
    """Where each word of a caption looked, Xu et al. 2015, figure 3."""
    task = model.task
    (pixels,) = task.parts(picture)
    answer = model.ask([pixels])[0] if choice.answer is None else choice.answer
    written = [*task.tokenizer.encode(answer), task.end][: task.context]
    device = next(model.model.parameters()).device
    target = torch.tensor([[task.begin, *written[:-1]]], device=device)
    found = watched(model.model, lambda: model.model(pixels[None].to(device), target))["cross"]
    weights, title = chosen(found, choice)
    side = math.isqrt(weights.shape[1])
    maps = weights.reshape(-1, side, side)
    told = task.tokenizer.tokens(written)
    if written[-1] == task.end and len(written) > 1:  # which is no word
        maps, told = maps[:-1], told[:-1]
    title = answer if found.shape[:2] == (1, 1) else f"{answer}; {title}"
    return Maps(title, shown(pixels), maps, told)


def seeing(model: Model, picture: Any) -> tuple[Tensor, np.ndarray, str]:
    """The picture as the model sees it (C, H, W), all its weights (L, H, T, T), and what it says."""
    task = model.task
    size, channels = task.config.size, task.config.channels
    pixels = one(picture, size, channels) if isinstance(picture, str) else picture
    answers: list[Any] = []
    weights = watched(
        inner(model.model), lambda: answers.extend(task.answers(model.model, [pixels], Sampling()))
    )
    ((best,),) = answers
    return pixels, weights["self"], f"{best.text} {best.score:.0%}"


def over_patches(model: Model, flow: np.ndarray, pixels: Tensor) -> np.ndarray:
    """What what stands for the picture takes from each patch (1, R, C), of weights (T, T)."""
    R, C = grid(model, pixels)
    first = len(flow) - R * C
    row = flow[0] if first else flow.mean(0)
    return row[first:].reshape(1, R, C)


def grid(model: Model, pixels: Tensor) -> tuple[int, int]:
    P = inner(model.model).config.patch
    return pixels.shape[-2] // P, pixels.shape[-1] // P


def spread(n: int) -> list[int]:
    """Three of n, or all."""
    return sorted({n // 6, n // 2, n - 1 - n // 6})


def shown(pixels: Tensor) -> np.ndarray:
    """Bytes (C, H, W) as they are drawn: (H, W, 3)."""
    return pixels.expand(3, -1, -1).permute(1, 2, 0).cpu().numpy()


# Positions


def positions(model: Model, given: Any, choice: Choice) -> Matrix:
    """What is added to the embeddings at each position: a row each, whatever is read."""
    found = places(model)
    assert found is not None
    rows, columns = (list(map(str, range(n))) for n in found.shape)
    return Matrix("positions, and what each adds", found, rows, columns, float(found.min()))


def position_waves(model: Model, given: Any, choice: Choice) -> Curves:
    """Some of the numbers that positions add, along the positions."""
    found = places(model)
    assert found is not None
    return waves("what each position adds", found)


def similarity(model: Model, given: Any, choice: Choice) -> Matrix:
    """How alike positions are: the cosine of what each adds."""
    found = places(model)
    assert found is not None
    return alike("positions, and how alike they are", found)


def alike(title: str, table: np.ndarray) -> Matrix:
    """Cosines between the rows of a table (T, D)."""
    unit = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    names, found = list(map(str, range(len(table)))), unit @ unit.T  # (T, T)
    return Matrix(title, found, names, names, float(found.min()))


@torch.inference_mode()
def places(model: Model) -> np.ndarray | None:
    """A vector for each position (T, D), if these are added; of an encoder-decoder, its encoder's."""
    module = inner(model.model)
    if isinstance(module, ViT):
        found = module.places(module.side, module.side)
        return None if found is None else found.float().cpu().numpy()
    module = module.encoder if isinstance(module, Captioner) else module
    own = getattr(module, "encoder_positions", getattr(module, "positions", None))
    if not isinstance(own, Learned | Sinusoidal):
        return None
    table = own.table if isinstance(own.table, Tensor) else own.table.weight
    return table.float().cpu().numpy()


# Watching


def inner(module: Any) -> Any:
    """The model below a head."""
    return getattr(module, "model", module)


@torch.inference_mode()
def watched(module: nn.Module, run: Callable[[], Any]) -> dict[str, np.ndarray]:
    """The weights (L, H, T, S) of the first row while it runs, by part: encoder, decoder, cross or self."""
    training = module.training
    module.eval()
    try:
        with watch(module) as seen:
            run()
    finally:
        module.train(training)
    found: dict[str, list[Tensor]] = {}
    for name, records in seen.items():
        if records:
            stepwise = name.endswith("look")  # recurrent: a record for every word
            some = [each["weights"][0] for each in (records if stepwise else records[:1])]
            begins = name.split(".")[0]
            part = begins if begins in ("encoder", "decoder") else "self"
            part = "cross" if stepwise or name.endswith("cross.f") else part
            found.setdefault(part, []).append(torch.cat(some, dim=1))
    return {part: torch.stack(layers).float().cpu().numpy() for part, layers in found.items()}

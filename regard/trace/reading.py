"""What a model reads of a text, a pair or a picture, as its task would have it; and what comes of that."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.pictures import one
from regard.errors import Mistake
from regard.generate import Sampling, window
from regard.models import Electra, Transformer
from regard.run import Model
from regard.tasks import Classify, Embed, Fill, Restore, See, SpanTask, WordsTask, Write
from regard.tasks.answers import written
from regard.tasks.pairs import PairTask
from regard.tasks.restore import BLANK
from regard.tasks.span import asked

from .collecting import Found
from .kept import Trace


@dataclass
class Reading:
    """What a model reads of one input, and how to run it on that: the result has a batch dimension."""

    ids: dict[str, list[int]] = field(default_factory=dict)
    tokens: dict[str, list[str]] = field(default_factory=dict)
    run: Callable[[], Tensor] | None = None
    pixels: Tensor | None = None
    grid: tuple[int, int] | None = None
    may: Tensor | None = None  # where an answer may begin or end, of a model that finds spans


def read(model: Model, given: Any) -> Reading:
    """What the task would have its model read."""
    task, module = model.task, model.model
    if isinstance(given, str) and not given.strip():
        raise Mistake("there is nothing to trace; give a text, or the path of a picture")
    if isinstance(task, PairTask | Restore) or isinstance(module, Transformer):
        return read_pair(model, given)
    if isinstance(given, tuple | list):
        given = "\t".join(given)
    if isinstance(task, Write | Embed | WordsTask) or (isinstance(task, Fill) and not BLANK.search(given)):
        return read_text(model, given)
    return read_asked(model, given)


def on_device(module: nn.Module, *rows: Sequence[int]) -> list[Tensor]:
    device = next(module.parameters()).device
    return [torch.tensor([list(row)], device=device) for row in rows]


def read_text(model: Model, text: str) -> Reading:
    """One text on its own, as ids."""
    task, module = model.task, model.model
    ids = task.tokenizer.encode(text)
    if isinstance(task, Write):
        ids = list(window(task.plain(text), task.context))
    elif isinstance(task, Embed):
        ids = task.framed(task.tokenizer.encode_batch([text])[0])[0].tolist()
    elif isinstance(task, Fill):
        ids = [task.first, *ids[: task.context - 2], task.end]
    if not ids:
        raise Mistake(f"{text}: the model knows none of its words")
    (row,) = on_device(module, ids)
    runs: dict[type, Callable[[], Tensor]] = {
        Embed: lambda: task.pooled(module, row, torch.ones_like(row, dtype=torch.bool)),
        Electra: lambda: module.replaced(module.model.encode(row)),  # type: ignore[operator, union-attr]
    }
    run = runs.get(type(task)) or runs.get(type(module)) or (lambda: module(row))
    return Reading({"text": ids}, {"text": task.tokenizer.tokens(ids)}, run)


def read_asked(model: Model, given: Any) -> Reading:
    """What the task itself gives to its model when it is asked."""
    task, module = model.task, model.model
    calls: list[tuple[tuple[Any, ...], Tensor]] = []
    hook = module.register_forward_hook(lambda _, args, result: calls.append((args, result)))
    try:
        task.answers(module, [given], Sampling())
    finally:
        hook.remove()
    if (parts := sum(len(result) for _, result in calls)) != 1:
        raise Mistake(f"the text is read in {parts} parts, each on its own; trace a shorter one")
    ((args, result),) = calls
    reading = Reading(run=lambda: module(*args))
    if isinstance(task, See):
        size, channels = task.config.size or 1, task.config.channels or 1
        reading.pixels = one(given, size, channels) if isinstance(given, str) else given
        P = module.config.patch  # type: ignore[union-attr]
        reading.grid = args[0].shape[-2] // P, args[0].shape[-1] // P
        first = ["class"] if module.model.first is not None else []  # type: ignore[union-attr]
        reading.tokens["text"] = first + regions(*reading.grid)
    else:
        reading.ids["text"] = args[0][0].tolist()
        reading.tokens["text"] = task.tokenizer.tokens(reading.ids["text"])
    if isinstance(task, SpanTask):
        reading.may = torch.tensor(task.windows([asked(given)])[0][0].may, device=result.device)
        reading.tokens["label"] = ["first", "last"]
    elif getattr(task.config, "labels", None):
        reading.tokens["label"] = list(task.config.labels)
    return reading


def regions(rows: int, columns: int) -> list[str]:
    """A name for each: its row and its column."""
    return [f"{r},{c}" for r in range(rows) for c in range(columns)]


def pair(given: Any) -> tuple[Any, Any]:
    """A source, and a target if there is one."""
    if isinstance(given, str):
        given = tuple(given.split("\t", 1))
    return (*given, None)[:2] if isinstance(given, tuple | list) else (given, None)


def read_pair(model: Model, given: Any) -> Reading:
    """A source and a target, the model's own if none is given."""
    task, module = model.task, model.model
    source, begin, written_ids = sourced(model, given)
    reading, told = read_source(model, source), written_ids()[: task.context]
    writer = getattr(task, "writer", task.tokenizer)
    (target,) = on_device(module, [begin, *told[:-1]])
    first = source[None].to(target.device) if isinstance(source, Tensor) else on_device(module, source)[0]
    for side, ids in (("target", [begin, *told[:-1]]), ("written", told)):
        reading.ids[side], reading.tokens[side] = ids, writer.tokens(ids)
    reading.run = lambda: module(first, target)
    return reading


def read_source(model: Model, source: Any) -> Reading:
    """What an encoder reads: ids, or a picture."""
    if isinstance(source, Tensor):
        side = model.model.config.side  # type: ignore[union-attr]
        grid: Any = (side, side)
        return Reading(tokens={"source": regions(*grid)}, pixels=source, grid=grid)
    return Reading({"source": source}, {"source": model.task.tokenizer.tokens(source)})


def sourced(model: Model, given: Any) -> tuple[Any, int, Callable[[], list[int]]]:
    """What an encoder reads, what a target begins with, and how to come by what is written, with its end."""
    task, module = model.task, model.model
    if isinstance(task, Classify):
        text, label = labelled(task, given)
        return classified(model, text, label)
    text, answer = pair(given)
    if isinstance(task, Restore):
        source = task.source(text)
    else:
        parts = task.parts(text)
        if len(parts) != 1:
            raise Mistake(f"the text is read in {len(parts)} parts, one after another; trace one sentence")
        source = task.sourced(parts[0])

    def written_ids() -> list[int]:
        if answer is None:
            most = {"max_new_tokens": model.generation.get("max_new_tokens", 200)}
            greedy = Sampling(temperature=0, **most)
            ((best,),) = written(module, [[task.begin]], greedy, task.end, 1, [source])
            return [*best.tokens, task.end]
        if not isinstance(task, Restore):
            return [*task.writer.encode(answer), task.end]
        blanks, fillings = [id for id in source if id in task.sentinels], BLANK.split(answer)
        if len(fillings) != len(blanks):
            raise Mistake(f"give what goes into the {len(blanks)} blanks, with ___ between: jumps ___ lazy")
        both = zip(blanks, fillings, strict=True)
        return [i for blank, some in both for i in (blank, *task.tokenizer.encode(some))] + [task.end]

    return source, task.begin, written_ids


def labelled(task: Classify, given: Any) -> tuple[str, str | None]:
    """A text, or two with a tab between; and a class, if it is given besides."""
    return (given, None) if isinstance(given, str) else (given[0], given[1])


def classified(model: Model, text: str, label: str | None) -> tuple[list[int], int, Callable[[], list[int]]]:
    """A text whose class, or score, is written: the likeliest, if none is given."""
    task, module = model.task, model.model
    heard: list[Tensor] = []
    hook = module.embed.register_forward_pre_hook(lambda _, args: heard.append(args[0]))  # type: ignore[union-attr]
    try:
        task.answers(module, [text], Sampling())
    finally:
        hook.remove()
    source = heard[0]

    def written_ids() -> list[int]:
        if label is not None:
            return [*task.tokenizer.encode(label), task.end or 0]
        best = task.likelihoods(module, source, torch.ones_like(source, dtype=torch.bool)).argmax()
        return [i for i in task.names[best].tolist() if i >= 0]

    return source[0].tolist(), int(heard[1][0, 0]), written_ids


def made(model: Model, reading: Reading, found: Found, result: Tensor) -> Trace:
    tensors = {} if reading.pixels is None else {"pixels": reading.pixels}
    tensors |= found.tensors() | ended(model, reading, result)
    about = {"kind": model.kind, "task": model.task.config.name}
    if reading.grid is not None:
        about["grid"] = list(reading.grid)
    return Trace(tensors, reading.tokens, reading.ids, found.difference, about)


def ended(model: Model, reading: Reading, result: Tensor) -> dict[str, Tensor]:
    """What a run comes to: logits and their probabilities, or a vector."""
    task, y = model.task, result.detach()[0]
    if isinstance(task, Embed):
        return {"vector": y}
    found, logits = {"logits": y}, y.to(torch.promote_types(y.dtype, torch.float32))
    if reading.may is not None:  # each place as the first of an answer, and as the last
        return found | {"probabilities": logits.masked_fill(~reading.may[:, None], -math.inf).softmax(0)}
    if isinstance(task, Classify) and task.config.labels is None and y.ndim == 1:  # a score
        return found
    if y.ndim == 1 and isinstance(task, Fill):  # of each word, whether it was replaced
        return found | {"probabilities": logits.sigmoid()}
    return found | {"probabilities": logits.softmax(-1)}

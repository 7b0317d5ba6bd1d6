"""What if: change what a model computes, by hooks, and see its answer change.

    with regard.change(model, silence={"decoder.1.cross": [0, 2]}):
        model.ask("Hi how are you")

Shapes: B batch, H heads, T tokens that look, S that are looked at, d width of a head, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .attention import Additive, Attention, joined
from .errors import Mistake
from .layers import Block, FeedForward, Residual, SwiGLU
from .models import Captioner, Labelled, Seq2Seq, Transformer
from .models.captioner import Blocks, Gated, Regions
from .models.cnn import Inverted
from .positions import Positions
from .recipe import nearest
from .recurrent import Decoder, Look, RecurrentState
from .run import Model
from .tasks import Fill, Write
from .trace import layer, named, sides, stack
from .trace.collecting import LEAVES, evaluating
from .trace.reading import ended, read
from .watch import Record, watch

Value = Tensor | Callable[[Tensor], Tensor]  # in the place of a tensor; or what makes it of the one there


@contextmanager
def change(
    model: Model,
    values: Mapping[str, Value] | None = None,
    *,
    silence: Mapping[str, Sequence[int]] | None = None,
    hide: Sequence[int] = (),
) -> Iterator[None]:
    """While it lasts, parts of the model compute something else; afterwards, nothing is left of that.

    values: names of a trace, and what to put there: a tensor of the shape that the trace has it in, which may
    be that of another input's trace (patching), or a function of what is there. So can be changed: an
    attention's `weights`, `heads`, `joined`; a feed-forward's `hidden`; `residual`, `input`, `output`; and
    the output of any other layer by its own name: `out`, `norm`, `up`, `embed`.
    silence: attentions, and those of their heads that are to say nothing.
    hide: places of tokens that nothing may look at: of the source, if there is one.
    """
    every = named(model.model)
    there = changeable(every)
    with ExitStack() as undo:
        for name, value in (values or {}).items():
            if name not in there:
                raise Mistake(f"{name} can't be changed; {nearest(name, there)}")
            undo.enter_context(there[name](partial(put, name, value)))
        for name, heads in (silence or {}).items():
            if f"{name}.heads" not in there:
                parts = [part.removesuffix(".heads") for part in there if part.endswith(".heads")]
                raise Mistake(f"{name}: no attention of this model; {nearest(name, parts)}")
            undo.enter_context(there[f"{name}.heads"](partial(silenced, name, heads)))
        if hide:
            looks = [(name, m) for name, m in every if isinstance(m, Attention | Look)]
            side = "source" if any(sides(name)[1] == "source" for name, _ in looks) else "text"
            for name, m in looks:
                if sides(name)[1] == side:
                    undo.enter_context(hiding(m, hide))
        yield


def put(name: str, value: Value, x: Tensor, first: int | None = None) -> Tensor:
    """A value in the place of each row of x; of a value for all tokens, the part from `first` on."""
    if isinstance(value, Tensor):
        part = value if first is None else value[..., first : first + x.shape[-2], :]
        new = part.to(x).expand(len(x), *part.shape)
    else:
        new = torch.stack([value(row) for row in x])
    if new.shape != x.shape:
        shapes = f"{tuple(new.shape[1:])} was given, {tuple(x.shape[1:])} is there"
        raise Mistake(f"{name}: {shapes}; give a function, or as many tokens as here, of a target too")
    return new


def silenced(name: str, heads: Sequence[int], x: Tensor, first: int = 0) -> Tensor:
    """x (B, H, T, d) with nothing in these heads."""
    for head in heads:
        if not 0 <= head < x.shape[1]:
            raise Mistake(f"{name}: there are heads 0 to {x.shape[1] - 1}, not {head}")
    return x.index_fill(1, torch.tensor(list(heads), device=x.device, dtype=torch.long), 0.0)


# Where values can be put: what makes a new tensor of the one there is hooked in, for a time

New = Callable[..., Tensor]
Place = Callable[[New], Any]


def changeable(every: list[tuple[str, nn.Module]]) -> dict[str, Place]:
    """Everything that can be changed, by its name in a trace."""
    found: dict[str, Place] = {}
    skipped: set[nn.Module] = set()  # whose output has no such name in a trace
    for name, m in every:
        if isinstance(m, Block | Regions | Decoder | Blocks | Inverted):
            found[f"{name}.output"] = partial(after, m)
            if isinstance(m, Block) and layer(name) == 0:
                found[f"{stack(name)}input"] = partial(before, m)
        elif isinstance(m, Residual):
            found[f"{name}.residual"] = partial(after, m) if m.pre else partial(before, m.norm)
        elif isinstance(m, FeedForward | SwiGLU):
            found[f"{name}.hidden"] = partial(before, m.down)
        elif isinstance(m, Attention):
            found[f"{name}.joined"] = partial(before, m.out)
            found[f"{name}.heads"] = partial(of_heads, m)
            found[f"{name}.weights"] = partial(of_weights, m)
            skipped |= {m.q, m.k, m.v}
        elif isinstance(m, Look):
            found[f"{name}.heads"] = partial(of_look, m, "heads")
            found[f"{name}.weights"] = partial(of_look, m, "weights")
            skipped |= set(m.modules())
        elif isinstance(m, Positions):
            skipped |= set(m.children())
        elif isinstance(m, Labelled):
            found["logits"] = partial(after, m.head)
            skipped.add(m.head)
        elif isinstance(m, Captioner):
            found["decoder.embed"] = partial(after, m.embed)
            skipped.add(m.embed)
        elif isinstance(m, Transformer | Seq2Seq):  # both sides may share it
            skipped.add(m.embed)
        elif isinstance(m, LEAVES) and m not in skipped:
            found[name] = partial(after, m)
    return found


@contextmanager
def after(m: nn.Module, new: New) -> Iterator[None]:
    hook = m.register_forward_hook(lambda _, args, result: new(result))
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def before(m: nn.Module, new: New) -> Iterator[None]:
    hook = m.register_forward_pre_hook(lambda _, args: (new(args[0]), *args[1:]))
    try:
        yield
    finally:
        hook.remove()


def of_heads(m: Attention, new: New) -> Any:
    """What the heads have averaged, before it is joined: (B, H, T, d)."""

    def rejoined(x: Tensor) -> Tensor:
        heads = new(x.unflatten(-1, (m.heads, -1)).transpose(1, 2))
        if m.seen:
            m.seen[-1]["heads"] = heads
        return heads.transpose(1, 2).flatten(2)

    return before(m.out, rejoined)


@contextmanager
def of_weights(m: Attention, new: New) -> Iterator[None]:
    """The weights (B, H, T, S); the values are averaged anew."""

    def averaged(x: Tensor) -> Tensor:
        record = newest(m, own[""])
        record["weights"] = new(record["weights"])
        record["heads"] = record["weights"] @ record["v"]
        return record["heads"].transpose(1, 2).flatten(2)

    with watch(m) as own, before(m.out, averaged):
        yield


@contextmanager
def of_look(m: Look, what: str, new: New) -> Iterator[None]:
    """What a recurrent decoder sees (B, 1, T, D), or its weights (B, 1, T, S): some words at a time."""

    def seen(q: Tensor, state: RecurrentState) -> Tensor:
        record, T = newest(m, own[""]), q.shape[1]
        first = state.length - (0 if isinstance(m.score, Additive) else T)  # others look after the cell moved
        record[what] = new(record[what], first)
        if what == "weights":
            record["heads"] = record["weights"] @ record["v"]
        y = record["heads"][:, 0]  # (B, T, D)
        return m.gate(q).sigmoid() * y if isinstance(m, Gated) else y

    with watch(m) as own:
        hook = m.register_forward_hook(lambda _, args, result: seen(*args))
        try:
            yield
        finally:
            hook.remove()


def newest(m: Attention | Look, own: list[Record]) -> Record:
    """The record of the call that goes on; if nobody else looks on, it is forgotten after that."""
    assert m.seen is not None
    record = m.seen[-1]
    if m.seen is own:
        own.clear()
    return record


@contextmanager
def hiding(m: Attention | Look, places: Sequence[int]) -> Iterator[None]:
    """Some keys are as padding."""

    def shown(S: int, device: torch.device) -> Tensor:
        real = torch.ones(S, dtype=torch.bool, device=device)
        for place in places:
            if place < S:
                real[place] = False
        return real

    def masked(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if isinstance(m, Look):
            q, state = args
            S = state.source.shape[1]
            real = shown(S, q.device).expand(len(q), S)
            return (q, replace(state, real=joined(state.real, real))), given
        x, *source = args
        past = 0 if given.get("cache") is None else given["cache"].length
        if source:
            S = source[0].shape[1] if source[0] is not None else past
        else:
            S = past + x.shape[1]
        mask = joined(given.get("mask"), shown(S, x.device)[None, None, None])
        return args, given | {"mask": mask}

    hook = m.register_forward_pre_hook(masked, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


# What it does to the answer


@dataclass(frozen=True)
class Effect:
    """What silencing a head does to what the model says, on average over the places of its answer."""

    part: str
    head: int
    kl: float  # Σ p log (p / p'), in nats: p with the head, p' without it
    log_probability: float  # of the answer: its change, below 0 if the answer has become less likely


def effects(model: Model, inputs: Any) -> list[Effect]:
    """All heads of a model, those first that change its answer to `inputs` (as of `trace`) the most, by KL.

    The answer is the class; the next token of a text that is gone on with; what fills each blank; or all that
    an encoder-decoder writes, its own greedy answer or the given one.
    """
    module = model.model
    found = []
    with evaluating(module), torch.no_grad():
        reading = read(model, inputs)
        assert reading.run is not None
        end = ended(model, reading, reading.run())
        if "probabilities" not in end or reading.may is not None or end["logits"].ndim > 2:
            raise Mistake("this model's answer is no choice of words or classes; its heads can't be ranked")
        rows = places(model, reading.ids.get("text", []), end["logits"])
        before = logs(end["logits"], rows)
        answer = before.argmax(-1)
        if "written" in reading.ids:
            answer = torch.tensor(reading.ids["written"], device=before.device)
        for name, m in named(module):
            if isinstance(m, Attention | Look):
                for head in range(m.heads if isinstance(m, Attention) else 1):
                    with change(model, silence={name: [head]}):
                        after = logs(reading.run().detach()[0], rows)
                    kl = (before.exp() * (before - after)).sum(-1).mean()
                    likelier = (after - before).gather(-1, answer[:, None]).mean()
                    found.append(Effect(name, head, float(kl), float(likelier)))
    return sorted(found, key=lambda effect: -effect.kl)


def places(model: Model, ids: list[int], logits: Tensor) -> list[int]:
    """The rows of the logits that are the answer."""
    if logits.ndim == 1:
        return [0]
    if isinstance(model.task, Write):
        return [len(logits) - 1]
    if isinstance(model.task, Fill):
        return [i for i, id in enumerate(ids) if id == model.task.mask] or list(range(len(logits)))
    return list(range(len(logits)))


def logs(logits: Tensor, rows: list[int]) -> Tensor:
    """The log-probabilities of these rows, (rows, V)."""
    logits = logits if logits.ndim == 2 else logits[None]
    return logits[rows].to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)

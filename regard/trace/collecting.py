"""What a model computes, seen by hooks on its modules: the models themselves know nothing of it.

Shapes: T tokens that look, S that are looked at, H heads, d = D / H, D width, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import Additive, Attention, look_ahead_mask, window_mask
from regard.errors import Mistake
from regard.layers import Block, FeedForward, Residual, SwiGLU
from regard.models import GPT, Captioner, Labelled, Seq2Seq, Transformer, ViT
from regard.models.captioner import Blocks, Regions
from regard.models.cnn import Inverted
from regard.positions import Learned, Positions, Sinusoidal, distances
from regard.recurrent import Decoder, Encoder, Look
from regard.watch import watch

REASONS = "may look", "padding", "future", "window"  # why a query sees a key, or not: numbers of `reason`
See = Callable[[Any], None]  # what a module is given, or gives
LEAVES = nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.Conv2d


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    training = [m for m in module.modules() if m.training]
    for m in training:
        m.training = False
    try:
        yield
    finally:
        for m in training:
            m.training = True


def named(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Every module by its part's name in a trace: without the `f` of the wiring, or the head it is under."""
    found = []
    for path, m in module.named_modules():
        parts = [part for part in path.split(".") if part != "f"]
        if parts[0] == "model":
            parts = parts[1:]
        if parts and parts[0].startswith(("encoder_", "decoder_")):
            parts[:1] = parts[0].split("_")
        if parts == ["target_embed"]:
            parts = ["decoder", "embed"]
        found.append((".".join(parts), m))
    return found


def layer(name: str) -> int | None:
    """The number of the block that a part belongs to."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


def stack(name: str) -> str:
    """How the names of what a block's stack shares begin: "" or "decoder.", for one."""
    parts = name.split(".")
    before = parts[: next((i for i, part in enumerate(parts) if part.isdecimal()), 0)]
    before = before[:-1] if before[-1:] == ["blocks"] else before
    return "".join(f"{part}." for part in before)


def chosen(module: nn.Module, layers: Sequence[int] | None) -> list[tuple[str, nn.Module]]:
    """The modules of these layers, and those of none."""
    every = named(module)
    if layers is None:
        return every
    numbers = {(stack(name), n) for name, _ in every if (n := layer(name)) is not None}
    depths = {of: 1 + max(n for other, n in numbers if other == of) for of, _ in numbers}
    deepest = max(depths.values(), default=0)
    for n in layers:
        if not -deepest <= n < deepest:
            there = f"there are layers 0 to {deepest - 1}" if deepest else "this model has none"
            raise Mistake(f"layers={list(layers)}: {there}")
    return [
        (name, m)
        for name, m in every
        if (n := layer(name)) is None or n in layers or n - depths[stack(name)] in layers
    ]


class Found:
    """What hooks have seen, by name, in the order of computing; several calls follow each other in time."""

    def __init__(self) -> None:
        self.calls: dict[str, list[Tensor]] = {}
        self.turns: dict[str, bool] = {}  # whether an attention's queries and keys are normed or turned
        self.window: int | None = None  # how many tokens back a GPT looks
        self.apart: list[Tensor] = []  # how far each attention's heads are from those of its fast path

    def keep(self, name: str, t: Tensor) -> None:
        """The first row of a batch."""
        self.calls.setdefault(name, []).append(t.detach()[0])

    def keep_head(self, name: str, t: Tensor) -> None:
        """The first row's only head."""
        self.keep(name, t[:, 0])

    def keep_turned(self, attention: str, name: str, t: Tensor) -> None:
        if self.turns[attention]:
            self.keep(f"{attention}.{name}", t)

    def keep_next(self, names: Iterator[str], t: Tensor) -> None:
        self.keep(next(names), t)

    def keep_once(self, name: str, t: Tensor) -> None:
        """What is the same at every call."""
        self.calls[name] = [t.detach()[0]]

    @property
    def difference(self) -> float:
        return float(torch.stack(self.apart).max()) if self.apart else 0.0

    def tensors(self) -> dict[str, Tensor]:
        return {
            name: calls[0] if len(calls) == 1 else torch.cat(calls, dim=-2)
            for name, calls in self.calls.items()
        }


@contextmanager
def collected(module: nn.Module, layers: Sequence[int] | None = None, reads: bool = True) -> Iterator[Found]:
    """What a model computes meanwhile. An encoder-decoder that only goes on writing no longer `reads`."""
    found, modules = Found(), chosen(module, layers)
    found.window = next((m.config.window for _, m in modules if isinstance(m, GPT)), None)
    skipped: set[nn.Module] = set()  # whose output has another name, or none
    with ExitStack() as undo:

        def after(m: nn.Module, see: See) -> None:
            undo.callback(m.register_forward_hook(lambda _, args, result: see(result)).remove)

        def before(m: nn.Module, see: See) -> None:
            undo.callback(m.register_forward_pre_hook(lambda _, args: see(args[0])).remove)

        def keep(name: str) -> See:
            return partial(found.keep, name)

        undo.enter_context(watch(module, [m for _, m in modules]))
        for name, m in named(module):
            if isinstance(m, Block) and layer(name) == 0:
                before(m, keep(f"{stack(name)}input"))
        for name, m in modules:
            prefix = f"{name}." if name else ""
            if isinstance(m, Attention):
                given: dict[str, Any] = {}
                see = turned(found, name, m, given)
                undo.callback(m.register_forward_pre_hook(see, with_kwargs=True).remove)
                check = compared(found, m, given)  # before anything is changed
                undo.callback(m.out.register_forward_pre_hook(check, prepend=True).remove)
                after(m.q, partial(found.keep_turned, name, "Wq"))
                after(m.k, partial(found.keep_turned, name, "Wk"))
                before(m.out, partial(looked, found, name, m))
                skipped |= {m.q, m.k, m.v}
            elif isinstance(m, Look):
                after(m, partial(looked, found, name, m))
                if isinstance(m.score, Additive):
                    after(m.score.W, partial(found.keep_head, f"{name}.Wq"))
                skipped |= set(m.score.modules() if m.score is not None else ())
            elif isinstance(m, Residual):
                (after if m.pre else before)(m if m.pre else m.norm, keep(f"{name}.residual"))
            elif isinstance(m, Block):
                after(m, keep(f"{name}.output"))
            elif isinstance(m, FeedForward | SwiGLU):
                before(m.down, keep(f"{name}.hidden"))
            elif isinstance(m, Regions | Decoder | Blocks | Inverted):
                after(m, keep(f"{name}.output"))
            elif isinstance(m, Encoder):
                after(m, partial(recurrent, found, f"{name}.hidden"))
            elif isinstance(m, nn.RNNBase):
                after(m, partial(recurrent, found, f"{name.removesuffix('rnn')}states"))
            elif isinstance(m, Positions):
                undo.enter_context(placing(found, name.removesuffix("positions"), m))
                skipped |= set(m.children())
            elif isinstance(m, ViT):
                undo.enter_context(spreading(found, prefix, m))
                before(m.embed, keep(f"{prefix}patches"))
            elif isinstance(m, Labelled):
                before(m.head, keep("output" if m.each else "pooled"))
                skipped.add(m.head)
            elif isinstance(m, Captioner):
                after(m.embed, keep("decoder.embed"))
                skipped.add(m.embed)
            elif isinstance(m, Transformer | Seq2Seq):  # both sides may share it: the source is read first
                embeds = iter(["encoder.embed"] * reads + ["decoder.embed"])
                after(m.embed, partial(found.keep_next, embeds))
                skipped.add(m.embed)
            elif isinstance(m, LEAVES) and m not in skipped:
                after(m, keep(name))
        yield found


def turned(found: Found, name: str, m: Attention, given: dict[str, Any]) -> Callable[..., None]:
    """Before an attention: by what it will turn queries and keys, if it does; whether these change at all
    after the product; and what it is `given`."""

    def see(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given.update(kwargs)
        turn = kwargs.get("turn")
        found.turns[name] = turn is not None or not isinstance(m.q_norm, nn.Identity)
        for part, t in zip(("cos", "sin"), turn or (), strict=False):
            found.keep_once(stack(name) + part, t.reshape(-1, *t.shape[-2:]))

    return see


def compared(found: Found, m: Attention, given: dict[str, Any]) -> Callable[..., None]:
    """After the heads of an attention: how far they are from those of the fast path, for the same queries."""

    def see(*_: Any) -> None:
        assert m.seen is not None
        record, step = m.seen[-1], m.heads // m.kv_heads
        k, v = (record[name][:, ::step] for name in "kv")  # as they were before heads shared them
        fast = m.fast(record["q"], k, v, given.get("mask"), given.get("bias"))
        found.apart.append((fast.float() - record["heads"].float()).abs().max())

    return see


def looked(found: Found, name: str, m: Attention | Look, result: Tensor) -> None:
    """After an attention: its record, by name."""
    assert m.seen is not None
    record = m.seen[-1]
    q, k, (T, S) = record["q"], record["k"], record["weights"].shape[-2:]
    found.keep(f"{name}.q", q)
    found.keep_once(f"{name}.k", k)
    found.keep_once(f"{name}.v", record["v"])
    if isinstance(m, Attention):
        found.keep(f"{name}.scores", q @ k.mT)
        found.keep(f"{name}.scaled", record["scores"])
    else:
        found.keep(f"{name}.scores", record["scores"])
    if "bias" in record:
        found.keep_once(f"{stack(name)}bias", record["bias"].expand(1, -1, -1, -1))
    may, reason = reasons(m, record.get("mask"), T, S, found.window, q.device)
    found.keep(f"{name}.mask", may)
    found.keep(f"{name}.reason", reason)
    found.keep(f"{name}.weights", record["weights"])
    found.keep(f"{name}.heads", record["heads"])
    found.keep(f"{name}.joined" if isinstance(m, Attention) else f"{name}.output", result)


def recurrent(found: Found, name: str, result: tuple[Any, Any]) -> None:
    """After cells: their states; after an encoder, what the decoder sets out from."""
    states, last = result
    if name.endswith("states"):
        found.keep(name, states)
    else:
        found.keep(name, torch.cat(last).transpose(0, 1))


def reasons(
    m: Attention | Look, mask: Tensor | None, T: int, S: int, window: int | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Where a query may look (1, T, S), and the numbers of the reasons."""
    may = torch.ones(1, T, S, dtype=torch.bool, device=device)
    reason = torch.zeros(1, T, S, dtype=torch.uint8, device=device)
    if mask is None:
        return may, reason
    may = mask.reshape(-1, *mask.shape[-2:])[:1].expand(1, T, S)  # the first row's, all heads' the same
    reason[~may] = REASONS.index("padding")
    if isinstance(m, Attention):
        if window is not None:
            reason[:, distances(T, S, device) <= -window] = REASONS.index("window")
        if m.window is not None:
            reason[:, ~window_mask(T, m.window, m.globals, device)] = REASONS.index("window")
        if m.causal:
            reason[:, ~look_ahead_mask(T, S, device)] = REASONS.index("future")
    return may, reason


@contextmanager
def replaced(m: nn.Module, method: str, by: Callable[..., Any]) -> Iterator[None]:
    """Another method in the place of one, of this module alone."""
    before = m.__dict__.get(method)
    object.__setattr__(m, method, by)
    try:
        yield
    finally:
        if before is None:
            m.__dict__.pop(method)
        else:
            object.__setattr__(m, method, before)


def placing(found: Found, prefix: str, m: Positions) -> Any:
    """While positions are added: what they are, and the sum."""
    add = m.add

    def see(x: Tensor, pos: Tensor) -> Tensor:
        if isinstance(m, Learned | Sinusoidal):
            table = m.table if isinstance(m.table, Tensor) else m.table.weight
            found.keep(f"{prefix}positions", table[pos].expand_as(x))
        y = add(x, pos)
        found.keep(f"{prefix}sum", y)
        return y

    return replaced(m, "add", see)


def spreading(found: Found, prefix: str, m: ViT) -> Any:
    """While positions are spread over a picture."""
    places = m.places

    def see(rows: int, columns: int) -> Tensor | None:
        if (there := places(rows, columns)) is not None:
            found.keep(f"{prefix}positions", there[None])
        return there

    return replaced(m, "places", see)

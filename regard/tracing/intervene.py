"""What if: change the computation of a model by hooks, and see its answer change.

    with regard.change(model, silence={"decoder.1.cross": [0, 2]}):
        model.ask("Hi how are you")

Shapes: B batch, H heads, T queries, S keys, d width of a head, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.attention import combine_masks
from regard.describe.cells import EditedCells, gate_values
from regard.describe.values import Description
from regard.describe.watch import Record, evaluating, exclusive, watch
from regard.errors import UserError, suggest
from regard.runs.model import Model
from regard.tracing.names import attention_sides
from regard.tracing.reading import name_outputs, read_input
from regard.tracing.record import recordable, replace_method

Replacement = Tensor | Callable[[Tensor], Tensor]  # a new value, or a function of the model's own
Edit = Callable[..., Tensor]  # maps the model's own tensor (and its first row, if known) to the new one
Place = Callable[[Edit], AbstractContextManager[None]]  # applies an edit to one tensor of a model


@contextmanager
def change(
    model: Model,
    values: Mapping[str, Replacement] | None = None,
    *,
    silence: Mapping[str, Sequence[int]] | None = None,
    hide: Sequence[int] = (),
) -> Iterator[None]:
    """Change the values of parts of the model inside this context only.

    values: by name in a trace, a tensor of the same shape as in the trace, which may come from the trace of
    another input (patching), or a function of the model's own tensor. These can be changed: an attention's
    `weights`, `heads`, `joined`; a feed-forward's `hidden`; `residual`, `input`, `output`; a recurrent cell's
    gates and states, which affect later ones; and the output of any other layer by its own
    name: `out`, `norm`, `up`, `embed`.
    silence: attentions, and the heads of each whose output is set to 0.
    hide: positions of tokens that nothing may attend to: of the source, if there is one.

    Inside, other threads wait before they trace or change the model. Those that only use it get the change.
    """
    with ExitStack() as stack:
        stack.enter_context(exclusive(model.model))
        places = changeable(model.model)
        attentions = Description().of(model.model).attentions
        for name, value in (values or {}).items():
            if name not in places:
                raise UserError(f"{name} can't be changed; {suggest(name, places)}")
            stack.enter_context(places[name](partial(replace_value, name, value)))
        for name, heads in (silence or {}).items():
            if f"{name}.heads" not in places:
                parts = [part.removesuffix(".heads") for part in places if part.endswith(".heads")]
                raise UserError(f"{name} is not an attention of this model; {suggest(name, parts)}")
            stack.enter_context(places[f"{name}.heads"](partial(silence_heads, name, heads)))
        if hide and not attentions:
            raise UserError("this model has no attention from which tokens can be hidden; leave hide out")
        if hide:
            side = "source" if any(attention_sides(name)[1] == "source" for name in attentions) else "text"
            for name, m in attentions.items():
                if attention_sides(name)[1] == side:
                    stack.enter_context(hide_keys(m, hide))
        yield


def replace_value(name: str, value: Replacement, x: Tensor, first: int | None = None) -> Tensor:
    """Replace each row of the batch x; from a value for all tokens, take the part from `first` on."""
    if isinstance(value, Tensor):
        part = value if first is None else value[..., first : first + x.shape[-2], :]
        new = part.to(x).expand(len(x), *part.shape)
    else:
        new = torch.stack([value(row) for row in x])
    if new.shape != x.shape:
        shapes = f"{tuple(new.shape[1:])} was given, {tuple(x.shape[1:])} is there"
        raise UserError(f"{name}: {shapes}; give a function, or as many tokens as here, of a target too")
    return new


def silence_heads(name: str, heads: Sequence[int], x: Tensor, first: int = 0) -> Tensor:
    """Set these heads of x (B, H, T, d) to zero."""
    for head in heads:
        if not 0 <= head < x.shape[1]:
            raise UserError(f"{name}: there are heads 0 to {x.shape[1] - 1}, not {head}")
    return x.index_fill(1, torch.tensor(list(heads), device=x.device, dtype=torch.long), 0.0)


# Places


def changeable(module: nn.Module) -> dict[str, Place]:
    """The values that can be changed, by name in a trace: inputs and outputs of modules, and attention."""
    places: dict[str, Place] = {}
    attentions = Description().of(module).attentions
    recurrent = {part for m in attentions.values() if not hasattr(m, "out") for part in m.modules()}
    values = [
        value
        for value in recordable(module)
        if value.pick is None and value.at in ("input", "output") and value.module not in recurrent
    ]
    names: dict[tuple[nn.Module | None, str], set[str]] = {}
    for value in values:
        names.setdefault((value.module, value.at), set()).add(value.name)
    for value in values:
        if value.module is not None and len(names[value.module, value.at]) == 1:  # parts may share a module
            edit = edit_input if value.at == "input" else edit_output
            places[value.name] = partial(edit, value.module)
    for value in recordable(module):
        if isinstance(value.pick, partial) and value.pick.func is gate_values:
            assert isinstance(value.module, nn.RNNBase)
            _, n, gate = value.pick.args
            places[value.name] = partial(edit_cells, value.module, n, gate)
    for name, m in attentions.items():
        places |= {f"{name}.{kind}": partial(edit_attention, m, kind) for kind in ("heads", "weights")}
    return places


@contextmanager
def edit_output(m: nn.Module, edit: Edit) -> Iterator[None]:
    hook = m.register_forward_hook(lambda _, args, result: edit(result))
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def edit_input(m: nn.Module, edit: Edit) -> Iterator[None]:
    hook = m.register_forward_pre_hook(lambda _, args: (edit(args[0]), *args[1:]))
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def edit_cells(rnn: nn.RNNBase, n: int, gate: str, edit: Edit) -> Iterator[None]:
    """Edit a gate or state (B, T, D) of one layer and direction; later ones follow from it."""
    before = rnn.forward.edits if isinstance(rnn.forward, EditedCells) else {}
    with replace_method(rnn, "forward", EditedCells(rnn, {**before, (n, gate): edit})):
        yield


@contextmanager
def edit_attention(m: Any, kind: str, edit: Edit) -> Iterator[None]:
    """Edit the heads (B, H, T, d), or the weights (B, H, T, S) and recompute the heads from them."""

    def new_heads(*first: int) -> Tensor:
        record = current_record(m, own[""])
        record[kind] = edit(record[kind], *first)
        if kind == "weights":
            record["heads"] = record["weights"] @ record["v"]
        return record["heads"]

    if kind == "heads" and hasattr(m, "out"):  # also without a record, on the fused path
        with edit_input(m.out, partial(edit_joined, m, edit)):
            yield
        return
    with watch(m) as own, ExitStack() as stack:
        if hasattr(m, "out"):
            stack.enter_context(edit_input(m.out, lambda x: new_heads().transpose(1, 2).flatten(2)))
        else:  # of a recurrent decoder, which may attend for one token at a time
            hook = m.register_forward_hook(
                lambda _, args, y: m.output(args[0], new_heads(first_position(m, *args))[:, 0])
            )
            stack.callback(hook.remove)
        yield


def first_position(m: Any, q: Tensor, state: Any) -> int:
    """The position of recurrent attention's queries: additive scores come before the cell's step."""
    return int(state.length) - (0 if hasattr(m.score, "U") else q.shape[1])


def edit_joined(m: Any, edit: Edit, x: Tensor) -> Tensor:
    """Edit the heads of x, which are side by side (B, T, H d)."""
    heads = edit(x.unflatten(-1, (m.heads, -1)).transpose(1, 2))
    if m.records:
        m.records[-1]["heads"] = heads
    return heads.transpose(1, 2).flatten(2)


def current_record(m: Any, own: list[Record]) -> Record:
    """The record of the current call; it is not kept unless the model is watched."""
    record: Record = m.records[-1]
    if m.records is own:
        own.clear()
    return record


@contextmanager
def hide_keys(m: nn.Module, places: Sequence[int]) -> Iterator[None]:
    """Mask the keys at some places as if they were padding."""

    def visible(S: int, device: torch.device) -> Tensor:
        mask = torch.ones(S, dtype=torch.bool, device=device)
        mask[[place for place in places if place < S]] = False
        return mask

    def add_mask(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        x, *source = args
        if "mask" not in signature(m.forward).parameters:  # a recurrent decoder has its mask in the state
            (state,) = source
            mask = combine_masks(
                state.attention_mask, visible(state.source.shape[1], x.device).expand(len(x), -1)
            )
            return (x, replace(state, attention_mask=mask)), kwargs
        past = 0 if kwargs.get("cache") is None else kwargs["cache"].length
        if source:
            S = source[0].shape[1] if source[0] is not None else past
        else:
            S = past + x.shape[1]
        mask = combine_masks(kwargs.get("mask"), visible(S, x.device)[None, None, None])
        return args, kwargs | {"mask": mask}

    hook = m.register_forward_pre_hook(add_mask, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


# Effects


@dataclass(frozen=True)
class Effect:
    """How silencing a head changes the prediction, on average over the rows of the answer."""

    part: str
    head: int
    kl: float  # Σ p log (p / p'), in nats: p with the head, p' without it
    log_probability: float  # change of the answer's; below 0 if the answer has become less likely


def effects(model: Model, inputs: Any) -> list[Effect]:
    """All heads of a model, ordered by how much silencing each changes the answer to `inputs`, by KL.

    `inputs` are those of `trace`. The answer is the class; the next token of a text; the tokens that fill the
    blanks; or the whole answer of an encoder-decoder, its own greedy one or the given one.
    """
    return rank_heads(model, model.open_input(inputs))


def rank_heads(model: Model, inputs: Any) -> list[Effect]:
    """Rank the heads for an input that is already a text or an image, never a path."""
    return sorted(measure_heads(model, inputs), key=lambda effect: -effect.kl)


def measure_heads(model: Model, inputs: Any) -> Iterator[Effect]:
    """The effect of silencing each head, one after another."""
    module = model.model
    with exclusive(module), evaluating(module), torch.no_grad():
        reading = read_input(model, inputs)
        assert reading.run is not None
        outputs = name_outputs(model, reading, reading.run())
        if "probabilities" not in outputs or reading.may is not None or outputs["logits"].ndim > 2:
            raise UserError(
                "this model's answer is not a choice of words or classes; its heads can't be ranked"
            )
        rows = answer_rows(model, reading.ids.get("text", []), outputs["logits"])
        before = log_probabilities(outputs["logits"], rows)
    answer = before.argmax(-1)
    if "written" in reading.ids:
        answer = torch.tensor(reading.ids["written"], device=before.device)
    for name, m in Description().of(module).attentions.items():
        for head in range(getattr(m, "heads", 1)):
            with change(model, silence={name: [head]}), evaluating(module), torch.no_grad():
                after = log_probabilities(reading.run().detach()[0], rows)
            kl = (before.exp() * (before - after)).sum(-1).mean()
            gain = (after - before).gather(-1, answer[:, None]).mean()
            yield Effect(name, head, float(kl), float(gain))


def answer_rows(model: Model, ids: list[int], logits: Tensor) -> list[int]:
    """The rows of the logits that predict the answer."""
    if logits.ndim == 1:
        return [0]
    return model.task.answer_rows(ids, len(logits))


def log_probabilities(logits: Tensor, rows: list[int]) -> Tensor:
    """The log-probabilities of these rows, (rows, V)."""
    logits = logits if logits.ndim == 2 else logits[None]
    return logits[rows].to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)

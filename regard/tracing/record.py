"""Record the values of a model by hooks on the places that it describes.

Shapes: T queries, S keys, H heads, d = D / H, D width, V vocabulary.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.describe.texts import layer_text
from regard.describe.values import Description, Value
from regard.describe.watch import watch
from regard.errors import UserError
from regard.tracing.names import layer_index, stack_prefix, trace_names

LEAVES = nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.Conv2d
Callback = Callable[[tuple[Any, ...], dict[str, Any], Any], None]  # positional, keyword arguments, result


class Recording:
    """The recorded tensors by name, in the order of computation; repeated calls are concatenated."""

    def __init__(self) -> None:
        self.calls: dict[str, list[Tensor]] = {}
        self.differences: list[Tensor] = []  # of each attention's heads from the fused kernel's

    def add(self, value: Value, t: Tensor | None) -> None:
        """Add the first row of a batch to a value."""
        if t is not None:
            before = [] if value.once else self.calls.get(value.name, [])
            self.calls[value.name] = [*before, t.detach()[0]]

    @property
    def difference(self) -> float:
        return float(torch.stack(self.differences).max()) if self.differences else 0.0

    def tensors(self) -> dict[str, Tensor]:
        return {
            name: calls[0] if len(calls) == 1 else torch.cat(calls, dim=-2)
            for name, calls in self.calls.items()
        }


@contextmanager
def record(module: nn.Module, layers: Sequence[int] | None = None, reads: bool = True) -> Iterator[Recording]:
    """Record the values of a model. `reads` is False if an encoder-decoder only continues its answer."""
    recording, values = Recording(), select_layers(recordable(module), layers)
    places: dict[tuple[nn.Module, str], list[Value]] = defaultdict(list)
    for value in values:
        assert value.module is not None
        if value.name not in [other.name for other in places[value.module, value.at]]:
            places[value.module, value.at].append(value)
    attentions = list(Description().of(module).attentions.values())
    if layers is not None:
        in_layers = {value.module for value in values if layer_index(value.name) is not None}
        attentions = [m for m in attentions if m in in_layers or getattr(m, "out", m) in in_layers]
    with ExitStack() as stack:
        stack.enter_context(watch(module, attentions))
        for m in attentions:
            if hasattr(m, "attend"):
                compare_fused(recording, m, stack)
        for (m, at), here in places.items():
            add_hook(m, at, make_callback(recording, here, reads), stack)
        yield recording


def recordable(module: nn.Module) -> list[Value]:
    """Everything that can be recorded: values that the model describes, and outputs of other layers."""
    description = Description().of(module)
    described = [value for value in description.values if value.module is not None]
    known = {m for value in described for m in covered_modules(value.module)}
    known |= {m for part in (*description.attentions.values(), *description.inner) for m in part.modules()}
    names = {value.name for value in described}
    leaves = [(name, m) for name, m in trace_names(module) if isinstance(m, LEAVES) and m not in known]
    return described + [Value(name, None, layer_text(name), m) for name, m in leaves if name not in names]


def covered_modules(module: nn.Module | None) -> list[nn.Module]:
    """A module and its submodules; only the module if its submodules have their own descriptions."""
    return [] if module is None else [module] if hasattr(module, "describe") else list(module.modules())


def select_layers(values: Sequence[Value], layers: Sequence[int] | None) -> list[Value]:
    """Select the values of these layers, and values that belong to no layer."""
    if layers is None:
        return list(values)
    depths: dict[str, int] = {}
    for value in values:
        prefix, n = stack_prefix(value.name), layer_index(value.name)
        depths[prefix] = max(depths.get(prefix, 0), 0 if n is None else n + 1)
    deepest = max(depths.values(), default=0)
    for n in layers:
        if not -deepest <= n < deepest:
            known = f"there are layers 0 to {deepest - 1}" if deepest else "this model has none"
            raise UserError(f"layers={list(layers)}: {known}")
    return [
        value
        for value in values
        if (n := layer_index(value.name)) is None
        or n in layers
        or n - depths[stack_prefix(value.name)] in layers
    ]


def make_callback(recording: Recording, values: list[Value], reads: bool) -> Callback:
    """The function that records these values from a call of their module.

    If parts of a model share the module, they call it in turn, the encoder first.
    """
    parts = list(dict.fromkeys(value.name.partition(".")[0] for value in values))
    shared = len(parts) > 1 and all(value.pick is None for value in values)
    call = 0 if reads else len(parts) - 1

    def callback(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        nonlocal call
        own = parts[min(call, len(parts) - 1)]
        call += 1
        for value in values:
            if shared and value.name.partition(".")[0] != own:
                continue
            if value.pick is not None:
                recording.add(value, value.pick(args, kwargs, result))
            else:
                recording.add(value, args[0] if value.at == "input" else result)

    return callback


def add_hook(m: nn.Module, at: str, callback: Callback, stack: ExitStack) -> None:
    """Call `callback` at a place of a module, until the stack is closed."""
    if at == "output":
        hook = m.register_forward_hook(lambda _, args, kwargs, y: callback(args, kwargs, y), with_kwargs=True)
        stack.callback(hook.remove)
    elif at == "input":
        hook = m.register_forward_pre_hook(
            lambda _, args, kwargs: callback(args, kwargs, None), with_kwargs=True
        )
        stack.callback(hook.remove)
    else:
        method = getattr(m, at)

        def observed(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            callback(args, kwargs, result)
            return result

        stack.enter_context(replace_method(m, at, observed))


def compare_fused(recording: Recording, m: Any, stack: ExitStack) -> None:
    """Measure the difference of an attention's heads from the fused kernel's, for the same q, k and v."""
    inputs: dict[str, Any] = {}

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs.update(kwargs)

    def after(*_: Any) -> None:
        last, step = m.records[-1], m.heads // m.kv_heads
        k, v = (last[name][:, ::step] for name in "kv")  # before they were repeated for shared heads
        globals = m.globals if inputs.get("globals") is None else inputs["globals"]
        fused = m.attend(last["q"], k, v, inputs.get("mask"), inputs.get("bias"), globals, None)
        g = last["q_global"].shape[2] if "q_global" in last else 0  # these have no fused kernel
        difference = (fused.float() - last["heads"].float())[:, :, g:].abs()
        recording.differences += [difference.max()] if difference.numel() else []

    stack.callback(m.register_forward_pre_hook(before, with_kwargs=True).remove)
    stack.callback(m.out.register_forward_pre_hook(after, prepend=True).remove)


@contextmanager
def replace_method(m: nn.Module, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """Replace a method of this module only."""
    before = m.__dict__.get(name)
    object.__setattr__(m, name, method)
    try:
        yield
    finally:
        if before is None:
            m.__dict__.pop(name)
        else:
            object.__setattr__(m, name, before)

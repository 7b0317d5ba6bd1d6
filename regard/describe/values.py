"""How a model describes itself: what it computes between its input and its output, value by value.

A module that computes something worth seeing has a method `describe(d, *inputs) -> output`. It mirrors
`forward`, but takes and returns *names* of values instead of tensors, and notes in `d` every value between:
its name, the operation that makes it, and where it can be seen. From these notes follow what a trace records,
how the page opens a number as a sum, and where one can intervene; none of them knows a model class.

Operations (`does`), their operands (names of values, or of weights, which begin with @) and what a number is:

| does | of | a number is |
|---|---|---|
| look up | W, side | W[id of the token] |
| add | terms: (name, times, first) | Σ times · name[row - first]; of @ names, only row 0 has them |
| same | x; row: always this one | x |
| concat | x: names | the values side by side |
| linear | x: a name, or some side by side; W, b, share, f | f(x · W[column] + b) |
| turn | x, cos, sin, share | each pair of x rotated by its angle |
| norm | x, W, b, eps, f, share; rms | (f(x) - mean) / deviation · W + b; rms: f(x) / root mean square · W |
| dot | q, k | q[row] · k[column] |
| additive | q, k, w | Σ w tanh(q[row] + k[column]) |
| scale | x, by | x · by |
| softmax | x, bias, mask | exp(x + bias) / Σ exp, along a row |
| average | w, v | Σ w[row] v[:, column] |
| join | x | heads side by side |
| activate | x, f, times | f(x) · times |
| multiply | x, by | x · by |
| combine | terms: (a, b or none), f | f(Σ a · b) |
| blend | x, y, by | by · y + (1 - by) · x |
| gate | x, by | σ(by) · x, one gate for a row |
| largest | x | of each two the larger |

`share`: so many neighbouring heads have the same. With `share`, a value per head (H, T, d) is made from one
for all heads (T, H d). An operation may carry `title`, `about` and `formula` for people to read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.describe.export import StackParts

Op = dict[str, Any]
Pick = Callable[[tuple[Any, ...], dict[str, Any], Any], Tensor | None]  # positional, keyword, result
Term = str | tuple[str, float] | tuple[str, float, int]  # a name, times, and the row that it begins at
SIDES = {"encoder": "source", "decoder": "target"}  # what the stacks of an encoder-decoder read
OPERANDS = "x", "y", "W", "b", "cos", "sin", "q", "k", "w", "v", "bias", "mask", "times", "by"


@dataclass(frozen=True)
class Value:
    """A value that a model computes: its name in a trace, how it is made, and where it can be seen."""

    name: str
    op: Op | None  # None: it is not opened as a sum
    module: nn.Module | None = None  # None: it is not recorded here
    at: str = "output"  # of the module: "output", "input", or a method whose result is seen
    pick: Pick | None = None  # the tensor among what was passed; None: the output, or the first input
    once: bool = False  # the same at every call


@dataclass
class Description:
    """The notes of a whole model, or of the part of it whose names begin with `prefix`."""

    prefix: str = ""
    values: list[Value] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)  # by names that begin with @
    attentions: dict[str, nn.Module] = field(default_factory=dict)  # by their part's name
    inner: set[nn.Module] = field(default_factory=set)  # modules whose outputs are no values of their own

    def at(self, *parts: str | int) -> "Description":
        """The same notes, for a part of the model."""
        below = "".join(f"{part}." for part in parts if part != "")
        return Description(self.prefix + below, self.values, self.weights, self.attentions, self.inner)

    def name(self, name: str) -> str:
        """The name in a trace of a value of this part."""
        return self.prefix + name

    def see(
        self,
        name: str,
        op: Op | None = None,
        module: nn.Module | None = None,
        at: str = "output",
        pick: Pick | None = None,
        once: bool = False,
    ) -> str:
        """Note a value; returns its full name."""
        self.values.append(Value(self.name(name), op, module, at, pick, once))
        return self.name(name)

    def weight(self, name: str, t: Tensor) -> str:
        """Make a weight available to operations, under its name with an @ before it."""
        self.weights[full := f"@{self.name(name)}"] = t.detach()
        return full

    def _affine(self, name: str, module: Any) -> Op:
        op = {"W": self.weight(f"{name}.weight", module.weight)}
        if getattr(module, "bias", None) is not None:
            op["b"] = self.weight(f"{name}.bias", module.bias)
        return op

    # The vocabulary

    def lookup(self, name: str, module: nn.Embedding, side: str) -> str:
        """Rows of an embedding for the tokens of a side: text, source or target."""
        W = self.weight(f"{name}.weight", module.weight)
        return self.see(name, {"does": "look up", "W": W, "side": side}, module)

    def linear(self, name: str, module: nn.Linear, x: str | list[str], **more: Any) -> str:
        """W x + b, seen as the module's output."""
        return self.see(name, {"does": "linear", "x": x} | self._affine(name, module) | more, module)

    def norm(self, name: str, module: nn.Module, x: str, **more: Any) -> str:
        """LayerNorm or RMSNorm; nn.Identity is no value of its own."""
        if isinstance(module, nn.Identity):
            return x
        rms = {"rms": True} if isinstance(module, nn.RMSNorm) else {}
        op = {"does": "norm", "x": x, "eps": module.eps} | self._affine(name, module) | rms | more
        return self.see(name, op, module)

    def logits(self, x: str, W: Tensor, b: Tensor | None = None) -> str:
        """What a run returns in the end: x Wᵀ + b."""
        bias = {} if b is None else {"b": self.weight("output_bias", b)}
        return self.see("logits", {"does": "linear", "x": x, "W": self.weight("output", W)} | bias)

    def add(self, name: str, *terms: Term, module: nn.Module | None = None, at: str = "output") -> str:
        rows = [[term, 1, 0] if isinstance(term, str) else [*term, 0][:3] for term in terms]
        return self.see(name, {"does": "add", "terms": rows}, module, at)

    def same(
        self,
        name: str,
        x: str,
        module: nn.Module | None = None,
        at: str = "output",
        pick: Pick | None = None,
        **more: Any,
    ) -> str:
        return self.see(name, {"does": "same", "x": x} | more, module, at, pick)

    def activate(
        self,
        name: str,
        f: Callable[[Tensor], Tensor],
        x: str,
        times: str | None = None,
        module: nn.Module | None = None,
        at: str = "output",
    ) -> str:
        """f(x), times another value if one is given."""
        op: Op = {"does": "activate", "x": x, "f": activation(f)} | (
            {} if times is None else {"times": times}
        )
        return self.see(name, op if activation(f) else None, module, at)

    def record(self, name: str, op: Op | None, module: Any, key: str, at: tuple[nn.Module, str]) -> str:
        """What `attend` left in `module.records`, seen at a place that comes after it."""
        return self.see(name, op, *at, pick=lambda *_: last(module).get(key), once=key in "kv")

    def heads(
        self,
        name: str,
        module: Any,
        x: str,
        share: int = 1,
        rotary: tuple[str, str] | None = None,
    ) -> str:
        """Queries, keys or values of an attention's heads: W x, normalised and rotated if they are."""
        linear, norm = getattr(module, name), getattr(module, f"{name}_norm", nn.Identity())
        op: Op = {"does": "linear", "x": x, "share": share} | self._affine(name, linear)
        if rotary or not isinstance(norm, nn.Identity):
            y = self.norm(f"{name}_norm", norm, self.linear(f"W{name}", linear, x), share=1)
            op = {"does": "same", "x": y, "share": share}
        if rotary:
            for part, i in zip(rotary, (0, 1), strict=True):
                self._rotation(part, i, module)
            op = op | {"does": "turn", "cos": rotary[0], "sin": rotary[1]}
        return self.record(name, op, module, name, (module.out, "input"))

    def _rotation(self, name: str, i: int, module: nn.Module) -> None:
        def angles(args: Any, kwargs: dict[str, Any], result: Any) -> Tensor | None:
            t = kwargs["rotary"][i] if kwargs.get("rotary") else None
            return None if t is None else t.reshape(-1, *t.shape[-2:])

        self.values.append(Value(name, None, module, "input", angles, once=True))

    def attend(
        self,
        module: Any,
        q: str,
        k: str,
        v: str,
        at: tuple[nn.Module, str],
        *,
        score: Op | None = None,
        scale: float | None = None,
        bias: str | None = None,
    ) -> str:
        """The steps of `attend`: scores, scaled if so, weights, and the values averaged by these."""
        self.attentions[self.prefix.removesuffix(".")] = module
        op = score or {"does": "dot", "q": q, "k": k}
        if scale is None:
            scores = self.record("scores", op, module, "scores", at)
        else:
            scores = self.see("scores", op, *at, pick=lambda *_: products(module))
            op = {"does": "scale", "x": scores, "by": scale}
            scores = self.record("scaled", op, module, "scores", at)
        more = {"mask": self.name("mask")}
        if bias is not None:
            more["bias"] = bias
            self.values.append(Value(bias, None, *at, lambda *_: biases(module), once=True))
        self.see("mask", None, *at, pick=lambda *_: reasons(module)[0])
        self.see("reason", None, *at, pick=lambda *_: reasons(module)[1])
        w = self.record("weights", {"does": "softmax", "x": scores} | more, module, "weights", at)
        return self.record("heads", {"does": "average", "w": w, "v": v}, module, "heads", at)

    def stacks(self, stacks: Sequence[StackParts], blocks: str = "blocks") -> str:
        """Embeddings, positions, blocks and the last norm of each stack; return the name of what comes out.

        Names begin with the role if there are several stacks; those of a single one's blocks, with `blocks`.
        """
        memory = None
        for stack in stacks:
            several = len(stacks) > 1
            part, side = (self.at(stack.role), SIDES[stack.role]) if several else (self, "text")
            x = part.lookup("embed", stack.embed, side)
            more = [] if stack.segments is None else [part.see("segments", None, stack.segments)]
            x, rotary, bias = cast("Any", stack.positions).describe(part, x, stack.embed_scale, more)
            if stack.embed_norm is not None:
                x = part.norm("embed_norm", stack.embed_norm, x)
            at, name = (part, "" if several else blocks) if blocks == "blocks" else (self.at(blocks), "")
            x = cast("Any", stack.blocks).describe(at, x, memory, name, rotary=rotary, bias=bias)
            memory = part.norm("norm", stack.norm, x)
        assert memory is not None
        return memory

    def of(self, model: Any) -> "Description":
        """The notes of a whole model."""
        if hasattr(model, "describe"):
            model.describe(self)
        return self


# Why a query attends to a key, or not: the values of `reason`.
REASONS = ("may look", "padding", "future", "window")


def last(module: Any) -> dict[str, Tensor]:
    """What a module that is watched recorded at its last call; of one that is not, nothing."""
    return module.records[-1] if module.records else {}


def products(module: Any) -> Tensor | None:
    """q kᵀ of the last call."""
    return last(module)["q"] @ last(module)["k"].mT if module.records else None


def biases(module: Any) -> Tensor | None:
    """What was added to the scores at the last call, (1, H, T, S)."""
    return last(module)["bias"].expand(1, -1, -1, -1) if "bias" in last(module) else None


def reasons(module: Any) -> tuple[Tensor | None, Tensor | None]:
    """Where a query may attend (1, T, S), and the numbers of the reasons, at the last call."""
    if not module.records:
        return None, None
    (T, S), mask = last(module)["weights"].shape[-2:], last(module).get("mask")
    device = last(module)["weights"].device
    may = torch.ones(1, T, S, dtype=torch.bool, device=device)
    reason = torch.zeros(1, T, S, dtype=torch.uint8, device=device)
    if mask is None:
        return may, reason
    may = mask.reshape(-1, *mask.shape[-2:])[:1].expand(1, T, S)  # the first row's; the same for all heads
    reason[~may] = REASONS.index("padding")
    i, j = torch.arange(S - T, S, device=device)[:, None], torch.arange(S, device=device)
    if getattr(module, "window", None) is not None:
        near = ((i - j).abs() <= module.window) | (i < module.globals) | (j < module.globals)
        reason[:, ~near] = REASONS.index("window")
    if getattr(module, "causal", False):
        reason[:, i < j] = REASONS.index("future")
    return may, reason


def activation(f: Any) -> str | None:
    """The name of an activation function, if the page knows it."""
    if isinstance(f, partial):
        return "gelu_tanh" if f.func is F.gelu and f.keywords.get("approximate") == "tanh" else None
    known = {F.relu: "relu", F.gelu: "gelu", F.silu: "silu", torch.tanh: "tanh", torch.sigmoid: "sigmoid"}
    return known.get(f)


def operands(op: Op) -> set[str]:
    """The names that go into a number."""
    names = [op[key] for key in OPERANDS if key in op] + [list(term) for term in op.get("terms", [])]
    flat = [one for name in names for one in (name if isinstance(name, list) else [name])]
    return {one for one in flat if isinstance(one, str)}

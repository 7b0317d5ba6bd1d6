"""Descriptions of models: the values that a model computes between its input and its output.

A module whose computation should be shown has a method `describe(d, *inputs) -> output`. It mirrors
`forward`, but takes and returns *names* of values instead of tensors, and notes in `d` every value between:
its name, the operation that makes it, and where it can be recorded. Traces, the sums on the page and
interventions follow from these notes; none of them knows a model class.

Operations (`does`), their operands (names of values, or of weights, which begin with @) and the meaning of a
number:

| does | of | a number is |
|---|---|---|
| look up | W, side; by, rows | W[id of the token]; by "position": W[position]; by a value: W[its number] |
| wave | W, side, f: names | f(position · W[i]), with each f in turn for the same i |
| distance | W; far | -W[head] · |j - i|; far: W[j - i, at most so far][head], of query i and key j |
| add | terms: (name, times, first) | Σ times · name[row - first]; of @ names, only row 0 has them |
| same | x; row: always this one; column: of each row of x this one | x |
| concat | x: names; row: of each | the values side by side |
| linear | x: a name, or some side by side; W, b, share, f; row | f(x · W[column] + b) |
| turn | x, cos, sin, share | each pair of x rotated by its angle |
| norm | x, W, b, eps, f, share; rms | (f(x) - mean) / deviation · W + b; rms: f(x) / root mean square · W |
|      | channels | of all channels, rows and columns together; W and b of the channel |
| dot | q, k; global: q, k | q[row] · k[column]; of the rows that the global q has, with these |
| additive | q, k, w | Σ w tanh(q[row] + k[column]) |
| scale | x, by | x · by |
| softmax | x, bias, mask | exp(x + bias) / Σ exp, along a row |
| average | w, v; global: q, v | Σ w[row] v[:, column]; of the rows that the global q has, with this v |
| mean | x | the mean of x[:, column] |
| join | x | heads side by side |
| activate | x, f, times; row | f(x) · times |
| multiply | x, by | x · by |
| combine | terms: (a, b or none), f | f(Σ a · b) |
| blend | x, y, by | by · y + (1 - by) · x |
| gate | x, by | σ(by) · x, one gate for a row |
| largest | x | of each two the larger |
| before | x; first, row; back | x of the row before, or after if `back`; at the end first[row], or 0 |
| rows | of: operations | that of the operation of this row |
| pixel | x, mean, std | (x / 255 - mean) / std of the channel |
| patch | x, side, height | the pixel of an image cut into squares, or so high rectangles, row by row |
| conv | x, W, b, f, size, stride, groups | Σ W f(x) over a square and all channels of the group, + b |
| regions | x | the channels of a pixel, row by row |

`share`: this many neighbouring heads share it. With `share`, a value per head (H, T, d) is made from one
for all heads (T, H d). A row below 0 counts from the end.

Every value carries a `Text` for people to read. Its formula is a line such as `A = softmax(Q Kᵀ / √d)`:
`_` and `^` begin a subscript and a superscript, of one sign or in braces, `/` a fraction of what is next to
it, `√` a root; names and signs are written as they are. `viewer/page/formula.js` draws it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from torch import Tensor, nn

from regard.describe.export import StackParts
from regard.describe.records import biases, last, products, reasons
from regard.describe.texts import (
    HEADS,
    MASK,
    REASON,
    Op,
    Text,
    activation,
    add_bias,
    as_title,
    norm_text,
    sign,
)

Pick = Callable[[tuple[Any, ...], dict[str, Any], Any], Tensor | None]  # positional, keyword, result
Term = str | tuple[str, float] | tuple[str, float, int]  # a name, times, and the row that it begins at
EMBEDDING, LINEAR, SOFTMAX = "Embedding", "Linear", "Softmax"  # titles of boxes that models share
SIDES = {"encoder": "source", "decoder": "target"}  # the inputs of the stacks of an encoder-decoder
OPERANDS = (
    "x",
    "y",
    "W",
    "b",
    "cos",
    "sin",
    "q",
    "k",
    "w",
    "v",
    "bias",
    "mask",
    "times",
    "by",
    "first",
    "global",
)


@dataclass(frozen=True)
class Value:
    """A value that a model computes: its name in a trace, its operation, and where it can be recorded."""

    name: str
    op: Op | None  # None: it is not opened as a sum
    text: Text
    module: nn.Module | None = None  # None: it is not recorded here
    at: str = "output"  # of the module: "output", "input", or a method whose result is seen
    pick: Pick | None = None  # the index among the tensors; None: the output, or the first input
    once: bool = False  # the same at every call


@dataclass
class Description:
    """The notes of a whole model, or of the part of it whose names begin with `prefix`."""

    prefix: str = ""
    values: list[Value] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)  # by names that begin with @
    attentions: dict[str, nn.Module] = field(default_factory=dict)  # by their part's name
    inner: set[nn.Module] = field(default_factory=set)  # modules whose outputs are not separate values
    boxes: dict[str, str] = field(
        default_factory=dict
    )  # titles of the parts of the map, by their first value

    def at(self, *parts: str | int) -> "Description":
        """The same notes, for a part of the model."""
        below = "".join(f"{part}." for part in parts if part != "")
        return replace(self, prefix=self.prefix + below)

    def name(self, name: str) -> str:
        """The name in a trace of a value of this part."""
        return self.prefix + name

    @property
    def side(self) -> str:
        """The side whose tokens are the rows of this part's values."""
        return SIDES.get(self.prefix.partition(".")[0], "text")

    def see(
        self,
        name: str,
        op: Op | None,
        text: Text,
        module: nn.Module | None = None,
        at: str = "output",
        pick: Pick | None = None,
        once: bool = False,
        box: str | None = None,
    ) -> str:
        """Note a value; returns its full name. `box` is the title of a part of the model's map, if one begins
        with this value."""
        if box is not None:
            self.boxes[self.name(name)] = box
        self.values.append(Value(self.name(name), op, text, module, at, pick, once))
        return self.name(name)

    def weight(self, name: str, t: Tensor) -> str:
        """Make a weight available to operations, under its name with an @ before it."""
        full = f"@{self.name(name)}"
        while full in self.weights and self.weights[full] is not t:  # another part's value of the same name
            full += "'"
        self.weights[full] = t
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
        about = "Each token becomes a vector: its row of the embedding matrix."
        text = Text("Embedding", about, "x = E[token]")
        return self.see(name, {"does": "look up", "W": W, "side": side}, text, module, box=EMBEDDING)

    def linear(
        self,
        name: str,
        module: nn.Linear,
        x: str | list[str],
        text: Text | None = None,
        b: str = "b",
        box: str | None = None,
        **more: Any,
    ) -> str:
        """W x + b, seen as the module's output; if there is a bias, it is added to the text's formula."""
        title, about, formula = text or Text(as_title(name), "A weighted sum for each number.", "W x")
        op = {"does": "linear", "x": x} | self._affine(name, module) | more
        return self.see(name, op, Text(title, about, add_bias(formula or "W x", module, b)), module, box=box)

    def norm(
        self, name: str, module: Any, x: str, title: str = "Norm", box: str | None = None, **more: Any
    ) -> str:
        """LayerNorm, RMSNorm or GroupNorm of one group; nn.Identity is not a separate value."""
        if isinstance(module, nn.Identity):
            return x
        kind = {"rms": True} if isinstance(module, nn.RMSNorm) else {}
        kind |= {"channels": True} if isinstance(module, nn.GroupNorm) else {}
        op = {"does": "norm", "x": x, "eps": module.eps} | self._affine(name, module) | kind | more
        return self.see(name, op, norm_text(title, op), module, box=box)

    def logits(self, x: str, W: Tensor, b: Tensor | None = None) -> str:
        """The logits that a run returns: x Wᵀ + b."""
        tied = any(t is W for t in self.weights.values())
        formula = ("z = h Eᵀ" if tied else "z = h Wᵀ") + ("" if b is None else " + b")
        about = "A score for every token: the last vector, compared with the vector of each."
        op = {"does": "linear", "x": x, "W": self.weight("output", W)}
        op |= {} if b is None else {"b": self.weight("output_bias", b)}
        return self.see("logits", op, Text("Logits", about, formula), box=LINEAR)

    def add(
        self, name: str, text: Text, *terms: Term, module: nn.Module | None = None, at: str = "output"
    ) -> str:
        rows = [[term, 1, 0] if isinstance(term, str) else [*term, 0][:3] for term in terms]
        return self.see(name, {"does": "add", "terms": rows}, text, module, at)

    def same(
        self,
        name: str,
        x: str,
        text: Text,
        module: nn.Module | None = None,
        at: str = "output",
        pick: Pick | None = None,
        box: str | None = None,
        **more: Any,
    ) -> str:
        return self.see(name, {"does": "same", "x": x} | more, text, module, at, pick, box=box)

    def activate(
        self,
        name: str,
        f: Callable[[Tensor], Tensor],
        x: str,
        times: str | None = None,
        module: nn.Module | None = None,
        at: str = "output",
        text: Text | None = None,
        box: str | None = None,
    ) -> str:
        """f(x), times another value if one is given."""
        op: Op = {"does": "activate", "x": x, "f": activation(f)} | (
            {} if times is None else {"times": times}
        )
        if text is None:
            formula = f"{sign(f)}(x)" + ("" if times is None else " ⊙ y")
            text = Text(as_title(name), "A function of each number.", formula)
        return self.see(name, op if activation(f) else None, text, module, at, box=box)

    def record(
        self, name: str, op: Op | None, text: Text, module: Any, key: str, at: tuple[nn.Module, str]
    ) -> str:
        """A value that `attend` left in `module.records`, recorded at a later place."""
        return self.see(name, op, text, *at, pick=lambda *_: last(module).get(key), once=key[0] in "kv")

    def heads(
        self,
        name: str,
        module: Any,
        x: str,
        share: int = 1,
        rotary: tuple[Value, Value] | None = None,
        reads: str = "X",
    ) -> str:
        """Queries, keys or values of an attention's heads: W x, normalised and rotated if they are.

        `reads` is the letter of x in formulas.
        """
        linear, norm = getattr(module, name), getattr(module, f"{name}_norm", nn.Identity())
        letter, (title, about) = name[0].upper(), HEADS[name]
        index = f"{{{letter[0]}g}}" if name[1:] else letter
        letter += "g" if name[1:] else ""
        formula = add_bias(f"{reads} W_{index}", linear, f"b_{index}")
        op: Op = {"does": "linear", "x": x, "share": share} | self._affine(name, linear)
        if rotary or not isinstance(norm, nn.Identity):
            after = "rotation" if isinstance(norm, nn.Identity) else "norm"
            plain = Text(f"{title} before the {after}", about, formula)
            y = self.see(f"W{name}", {"does": "linear", "x": x} | self._affine(name, linear), plain, linear)
            if not isinstance(norm, nn.Identity):
                y = self.norm(f"{name}_norm", norm, y, f"Norm of the {title.lower()}", share=1)
                formula = f"norm({formula})"
            op = {"does": "same", "x": y, "share": share}
        if rotary:
            for i in (0, 1):
                self._rotation(rotary[i], i, module)
            op = op | {"does": "turn", "cos": rotary[0].name, "sin": rotary[1].name}
            formula = (
                f"R_t ({formula})" if formula.endswith(letter) and " + " in formula else f"R_t {formula}"
            )
            about += " Rotated by an angle that grows with the position t."
        about += f" {share} neighbouring heads share them." if share > 1 else " Each head has its own part."
        text = Text(f"{title} {letter}", about, f"{letter} = {formula}")
        return self.record(name, op, text, module, name, (module.out, "input"))

    def _rotation(self, value: Value, i: int, module: nn.Module) -> None:
        def angles(args: Any, kwargs: dict[str, Any], result: Any) -> Tensor | None:
            t = kwargs["rotary"][i] if kwargs.get("rotary") else None
            return None if t is None else t.reshape(-1, *t.shape[-2:])

        self.values.append(replace(value, module=module, at="input", pick=angles, once=True))

    def attend(
        self,
        module: Any,
        q: str,
        k: str,
        v: str,
        at: tuple[nn.Module, str],
        *,
        score: tuple[Op, str] | None = None,
        scale: float | None = None,
        bias: Value | None = None,
        of_globals: Sequence[str] = (),
    ) -> str:
        """The steps of `attend`: scores, scaled if so, weights, and the values averaged by these.

        `score` is an operation other than the dot product, and its formula. `of_globals` are the queries,
        keys and values of global tokens, if they have their own and there are some.
        """
        self.attentions[self.prefix.removesuffix(".")] = module
        op, formula = score or ({"does": "dot", "q": q, "k": k}, "Q Kᵀ")
        about = "Each query is compared with each key: the larger the score, the better they match."
        text = Text("Scores", about, f"S = {formula}")
        if scale is None:
            scores, formula = self.record("scores", op, text, module, "scores", at), "S"
        else:
            if of_globals:
                own = op | {"global": list(of_globals[:2])}
                self.see("scores", own, text, *at, pick=lambda *_: products(module))
            scores, formula = self.see("scores", op, text, *at, pick=lambda *_: products(module)), "Q Kᵀ / √d"
            about = "Divided by the root of the width, so that wide heads don't saturate the softmax."
            op = {"does": "scale", "x": scores, "by": scale}
            scores = self.record("scaled", op, Text("Scaled", about, formula), module, "scores", at)
        more: Op = {"mask": self.name("mask")}
        if bias is not None:
            more["bias"], formula = bias.name, f"{formula} + B"
            added = replace(bias, module=at[0], at=at[1], pick=lambda *_: biases(module), once=True)
            self.values.append(added)
        self.see("mask", None, MASK, *at, pick=lambda *_: reasons(module)[0])
        self.see("reason", None, REASON, *at, pick=lambda *_: reasons(module)[1])
        about = "The scores of each row become weights that sum to 1; 0 where a token may not attend."
        text = Text("Weights: softmax", about, f"A = softmax({formula})")
        w = self.record("weights", {"does": "softmax", "x": scores} | more, text, module, "weights", at)
        about = "The output of each head: the values, averaged with the weights."
        text = Text("Weighted values", about, "head_h = A V")
        average = {"does": "average", "w": w, "v": v}
        if of_globals:
            more = {"global": [of_globals[0], of_globals[2]]}
            self.record("heads", average | more, text, module, "heads", at)
        return self.record("heads", average, text, module, "heads", at)

    def stacks(self, stacks: Sequence[StackParts], blocks: str = "blocks") -> str:
        """Embeddings, positions, blocks and the last norm of each stack; return the name of the output.

        Names begin with the role if there are several stacks; those of a single one's blocks, with `blocks`.
        """
        memory = None
        for stack in stacks:
            several = len(stacks) > 1
            part, side = (self.at(stack.role), SIDES[stack.role]) if several else (self, "text")
            x = part.lookup("embed", stack.embed, side)
            more = [] if stack.segments is None else [part.segments(stack.segments)]
            x, rotary, bias = cast("Any", stack.positions).describe(part, x, stack.embed_scale, more)
            if stack.embed_norm is not None:
                x = part.norm("embed_norm", stack.embed_norm, x, "Norm of the embeddings")
            if stack.project is not None:
                about = "The embeddings, brought to the width of the blocks."
                text = Text("Projection", about, "W x")
                x = part.linear("project", stack.project, x, text, box="Projection")
            at, name = (part, "" if several else blocks) if blocks == "blocks" else (self.at(blocks), "")
            x = cast("Any", stack.blocks).describe(at, x, memory, name, rotary=rotary, bias=bias)
            memory = part.norm("norm", stack.norm, x, box="Norm")
        assert memory is not None
        return memory

    def segments(self, module: nn.Embedding) -> str:
        """Rows of an embedding for the segments of the tokens, whose numbers are a separate value."""
        text = Text("Segment numbers", "The number of the text that a token belongs to.")
        by = self.see("segment", None, text, module, "input", lambda a, *_: a[0][..., None])
        op = {"does": "look up", "W": self.weight("segments.weight", module.weight), "by": by}
        text = Text("Segments", "Which of the texts a token belongs to, as a vector.", "s = S[segment]")
        return self.see("segments", op, text, module)

    def of(self, model: Any) -> "Description":
        """The notes of a whole model."""
        if hasattr(model, "describe"):
            model.describe(self)
        return self


def operands(op: Op) -> set[str]:
    """The names that go into a number."""
    names = [op[key] for key in OPERANDS if key in op] + [list(term) for term in op.get("terms", [])]
    flat = [one for name in names for one in (name if isinstance(name, list) else [name])]
    flat += [one for row in op.get("of", []) for one in operands(row)]
    return {one for one in flat if isinstance(one, str)} - {"position"}

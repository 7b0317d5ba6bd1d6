"""Texts about values for people: titles, explanations, and formulas of the actual module."""

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

Op = dict[str, Any]


class Text(NamedTuple):
    """The text about a value: its title, an explanation, and its formula, if it has one."""

    title: str
    about: str
    formula: str | None = None


HEADS = {
    "q": ("Queries", "What each token looks for."),
    "k": ("Keys", "What each token is found by."),
    "v": ("Values", "What each token passes on when it is attended to."),
    "q_global": ("Queries of global tokens", "What each global token looks for."),
    "k_global": ("Keys for global tokens", "What global tokens find each token by."),
    "v_global": ("Values for global tokens", "What each token passes on to global tokens."),
}
MASK = Text("Mask", "1 where a token may attend, 0 where it may not.")
REASON = Text(
    "Reason", "Why a token may not attend to another: it is padding, comes later, or is too far away."
)
SIGNS = {"gelu_tanh": "gelu", "sigmoid": "σ"}  # of activation functions, other than their names


def as_title(name: str) -> str:
    """The default title of a value: its name."""
    return name.replace("_", " ").capitalize()


def sign(f: Any) -> str:
    """An activation function in a formula."""
    name = f if isinstance(f, str) else activation(f) or "f"
    return SIGNS.get(name, name)


def add_bias(formula: str, module: Any, b: str = "b") -> str:
    """The formula, with a bias if the module has one."""
    return formula if getattr(module, "bias", None) is None else f"{formula} + {b}"


def scaled_term(times: float, x: str) -> str:
    """A number times x in a formula, as a root if it is one: √512 x."""
    square = round(times**2)
    root = f"√{square}" if math.isclose(times**2, square) else f"{times:.4g}"
    return x if times == 1 else f"{root} {x}"


def norm_text(title: str, op: Op) -> Text:
    """The formula and the explanation of a norm operation."""
    x, where = ("y", f", y = {sign(op['f'])}(x)") if "f" in op else ("x", "")
    if op.get("rms"):
        formula = f"{x} / √(mean({x}^2) + ε) ⊙ γ"
        return Text(title, "Each vector is divided by its root mean square, then scaled.", formula + where)
    each = "All channels are normalised together" if op.get("whole") else "Each vector is normalised"
    shift, more = (" + β", " and shifted") if "b" in op else ("", "")
    formula = f"({x} − μ) / √(σ^2 + ε) ⊙ γ{shift}{where}"
    return Text(title, f"{each} to mean 0 and deviation 1, then scaled{more}.", formula)


def activation(f: Any) -> str | None:
    """The name of an activation function, if the page knows it."""
    if isinstance(f, partial):
        return "gelu_tanh" if f.func is F.gelu and f.keywords.get("approximate") == "tanh" else None
    return ACTIVATIONS.get(f)


ACTIVATIONS: dict[Any, str] = {F.relu: "relu", F.relu6: "relu6", F.gelu: "gelu", F.silu: "silu"}
ACTIVATIONS |= {torch.tanh: "tanh", torch.sigmoid: "sigmoid"}


def layer_text(name: str) -> Text:
    """The text about a layer that no description mentions."""
    return Text(name, "The output of this layer.")

"""The data of a model's run on an input for the page: tensors, words, views and the log of its training.

Shapes: T tokens.
"""

import math
from functools import cached_property
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np
import torch
from torch import Tensor

from regard.describe.texts import Op
from regard.errors import UserError
from regard.runs.layout import LOG, read_log
from regard.runs.model import Model
from regard.tracing import Trace, limits, trace_input
from regard.tracing.names import layer_index, trace_names
from regard.tracing.reading import is_ids
from regard.viewer.attribution import Attribution, attribute_logit, list_parts
from regard.viewer.lens import layers, lens, output_head
from regard.viewer.space import Space
from regard.viewer.sums import describe_trace, weights
from regard.viewer.tree import Tree, path, search
from regard.viewer.whatif import WhatIf

MAX_LOG_ROWS = 4000
MAX_NOTICES, MAX_NOTICE = 50, 300  # of the log; letters of one
MAX_SCORES = 2**26  # attention weights of a run; the scores need twice as many numbers again


class Outputs(TypedDict):
    """The meaning of the logits: the next token, the token at this place, or classes."""

    kind: Literal["next", "fill", "classes"]
    rows: str | None
    goes_on: NotRequired[bool]  # the model continues its input
    between: NotRequired[str]  # a space, if tokens are words
    lens: NotRequired[bool]
    parts: NotRequired[bool]  # the logits can be split into the parts' contributions
    unsplit: NotRequired[str | None]  # why not


class TraceData:
    """A model's run on an input. Without `layers`, all are traced, or only the last one if the input is long.

    `computed` is a trace of this input, if there is one.
    """

    def __init__(
        self,
        model: Model,
        input: Any,
        answer: str | None = None,
        layers: list[int] | None = None,
        computed: Trace | None = None,
    ):
        self.trees, self.lenses = dict[int, Tree](), dict[int, dict[str, Any]]()
        self.attributions: dict[str, Attribution] = {}  # by row and token
        self.model, self.input, self.fixed_answer = model, input, answer
        self.full_input = input if answer is None else (input, answer)
        self.depth = 1 + max((layer_index(name) or 0 for name, _ in trace_names(model.model)), default=0)
        self.layers = [self.depth - 1] if layers is None and computed is None and self.is_long else layers
        if computed is None:
            computed = trace_input(model, self.full_input, self.layers, limits.MAX_NUMBERS)
        self.trace: Trace = computed
        self.weights = weights(model)

    @property
    def is_long(self) -> bool:
        """Return whether all attention weights of all layers would be too many."""
        ids = is_ids(self.input)
        if not (isinstance(self.input, str) or ids) or self.model.task.tokenizer is None:
            return False
        config: Any = self.model.model.config
        tokens = min(len(self.input if ids else self.model.task.tokenizer.encode(self.input)), config.context)
        return tokens**2 * getattr(config, "heads", 1) * self.depth > MAX_SCORES

    @property
    def exact(self) -> bool:
        """Return whether the input was given as token ids, and not as a text."""
        return is_ids(self.input[0] if isinstance(self.input, tuple) else self.input)

    @property
    def text(self) -> str | None:
        """The input as a text, if it is one."""
        if self.exact:
            ids = self.trace.ids
            return str(self.model.tokenizer.decode(ids.get("text", ids.get("source", []))))
        return self.input if isinstance(self.input, str) and not self.reads_images else None

    @property
    def reads_images(self) -> bool:
        return "pixels" in self.trace

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.trace.tensors.values())

    # Tensors

    def tensor(self, name: str) -> Tensor:
        """A tensor of the trace, or of the model if its name begins with @; at least two dimensions."""
        if name == "rollout" and self.rollout is not None:
            return self.rollout
        if name.startswith("beams."):  # "beams.4.decoder.look": attention of each beam, step by step
            beams = name.split(".")[1]
            tree = self.trees.get(int(beams)) if beams.isdecimal() else None
            tensors = {} if tree is None else {f"beams.{beams}.{key}": t for key, t in tree.rows.items()}
        elif name.startswith("~"):
            tensors = self.space.tensors
        else:
            tensors = self.weights if name.startswith("@") else self.trace.tensors
        if name not in tensors:
            raise UserError(f"{name[:100]}: there is no such tensor")
        tensor = tensors[name]
        return tensor[None] if tensor.ndim == 1 else tensor

    def numbers(
        self,
        name: str,
        head: int | None = None,
        rows: slice = slice(None),
        columns: slice = slice(None),
        max_side: int | None = None,
        as_bytes: bool = False,
    ) -> np.ndarray:
        """A tensor or a part of it as float32; boolean and uint8 tensors as uint8.

        `max_side` pools the last two dimensions to at most this many numbers each, those farthest from zero.
        `as_bytes` gives shares of the largest number, from 0 to 255.
        """
        tensor = self.tensor(name)
        if head is not None and tensor.ndim > 2:
            if not 0 <= head < len(tensor):
                raise UserError(f"head={head}: {name} has 0 to {len(tensor) - 1}")
            tensor = tensor[head]
        tensor = tensor[..., rows, columns]
        if tensor.dtype in (torch.bool, torch.uint8):
            values = tensor.to(torch.uint8).cpu().numpy()
            if name.endswith(".reason"):  # a pooled cell is masked if all its cells are
                return 255 - max_pool(255 - values, max_side)
            return max_pool(values, max_side)
        values = max_pool(tensor.float().cpu().numpy(), max_side)
        if not as_bytes:
            return values
        peak = np.maximum(values.max(axis=(-2, -1), keepdims=True, initial=0), 1e-30)
        return (255 * np.nan_to_num(values) / peak).clip(0, 255).round().astype(np.uint8)

    @cached_property
    def rollout(self) -> Tensor | None:
        """Attention rollout (T, T): the share of each token that reaches each other one through all layers
        and the residual connections, Abnar & Zuidema 2020."""
        names = [name for name in self.trace if name.endswith("attn.weights")]
        if "grid" not in self.trace.about or not names or "text" not in self.trace.tokens:
            return None
        flow = torch.eye(self.trace[names[0]].shape[-1])
        for name in names:
            mean = self.trace[name].float().cpu().mean(0)
            flow = (mean + torch.eye(len(mean))) / 2 @ flow
        return flow

    # Words

    @property
    def writer(self) -> Any:
        """The tokenizer of the output."""
        return self.model.task.output_tokenizer

    def words(self, ids: list[int]) -> list[str]:
        if self.writer is None:
            raise UserError("this model has no vocabulary")
        return self.writer.tokens(ids)

    def decode(self, ids: list[int]) -> str:
        """The text of an answer, without its end token."""
        return self.writer.decode(ids[:-1] if ids and ids[-1] == self.writer.end else ids)

    @property
    def answer(self) -> str | None:
        tokens = self.trace.tokens
        if "written" in tokens:
            return self.decode(self.trace.ids["written"])
        if "label" in tokens and "probabilities" in self.trace and self.trace["logits"].ndim == 1:
            best = int(self.trace["probabilities"].argmax())
            return f"{tokens['label'][best]} {float(self.trace['probabilities'][best]):.0%}"
        return None

    # Views

    def side(self, name: str) -> str:
        """The side whose tokens are the rows of a tensor."""
        if "text" in self.trace.tokens:
            return "text"
        return "source" if name.startswith("encoder.") else "target"

    def outputs(self) -> Outputs | None:
        """The meaning of the logits, if the page can show them."""
        if "probabilities" not in self.trace or self.model.task.predicts == "place":
            return None
        logits = self.trace["logits"]
        if "label" in self.trace.tokens:
            rows = self.side("logits") if logits.ndim == 2 else None
            return {"kind": "classes", "rows": rows, "parts": self.unsplit is None}
        if logits.ndim != 2 or self.writer is None:
            return None
        return {
            "kind": self.model.task.predicts,
            "rows": self.side("logits"),
            "goes_on": self.model.task.generates and not self.model.task.has_source,
            "between": space_between(self.writer),
            "lens": self.has_lens,
            "parts": self.unsplit is None,
            "unsplit": self.unsplit,
        }

    @property
    def default_row(self) -> int:
        """The row of the logits that is shown first, as in the page's `usualToken`: the last of a text, the
        last word of an answer, or a blank."""
        tokens, outputs = self.trace.tokens, self.outputs()
        assert outputs is not None
        side = outputs["rows"] or "text"
        words = tokens[side]
        if side == "target":
            return max(0, len(words) - 2)  # the end token is not informative
        if outputs["kind"] == "next":
            return len(self.trace["logits"]) - 1
        return words.index("[MASK]") if "[MASK]" in words else 0

    def tree(self, beams: int) -> Tree:
        """The search tree of the answer; with one beam, the path that was traced."""
        if beams not in self.trees:
            if beams == 1 and "written" not in self.trace.tokens:
                raise UserError("this model does not write answers to sources")
            tree = path(self.trace, self.writer) if beams == 1 else search(self.model, self.input, beams)
            self.trees[beams] = tree
        return self.trees[beams]

    @property
    def has_lens(self) -> bool:
        """Return whether the output projection can be applied to every layer."""
        if "label" in self.trace.tokens or "logits" not in self.trace or self.trace["logits"].ndim != 2:
            return False
        return output_head(self.model.model) is not None and bool(layers(self.trace))

    def lens(self, row: int) -> dict[str, Any]:
        """The prediction of each layer at a row; `final` is the model's."""
        if not self.has_lens:
            raise UserError("the layers of this model can't be turned into words")
        if not 0 <= row < len(self.trace["logits"]):
            raise UserError(f"row={row}: there are 0 to {len(self.trace['logits']) - 1}")
        if row not in self.lenses:
            final, predictions = lens(self.model.model, self.trace, row)
            by_layer = [{"words": self.words(one.pop("ids")), **one} for one in predictions]
            self.lenses[row] = {"final": self.words([final])[0], "layers": by_layer}
        return self.lenses[row]

    @cached_property
    def unsplit(self) -> str | None:
        """The reason why the logits can't be split into the parts' contributions; None if they can."""
        try:
            list_parts(self.sums)
        except UserError as error:
            return str(error)
        return None

    @cached_property
    def sums(self) -> dict[str, Op]:
        """The operation that made each tensor."""
        return describe_trace(self.model, self.trace)[0]

    def attribution(self, row: int, token: int | None) -> Attribution:
        """The contribution of each part to the logit of a token, by default the most likely one, at a row."""
        logits = np.atleast_2d(self.trace["logits"].float().cpu().numpy())
        if not 0 <= row < len(logits):
            raise UserError(f"row={row}: there are 0 to {len(logits) - 1}")
        token = int(logits[row].argmax()) if token is None else token
        if not 0 <= token < logits.shape[1]:
            raise UserError(f"token={token}: there are 0 to {logits.shape[1] - 1}")
        key = f"{row},{token}"
        if key not in self.attributions:
            self.attributions[key] = attribute_logit(self.trace, self.sums, self.weights, row, token)
        return self.attributions[key]

    @cached_property
    def space(self) -> Space:
        return Space(self.model, self.trace)

    @cached_property
    def whatif(self) -> WhatIf:
        return WhatIf(self)

    def log(self) -> list[dict[str, Any]]:
        """Losses of the training, thinned out if there are many; and its latest notices."""
        if self.model.folder is None:
            return []
        names = ("step", "loss", "valid_loss")
        everything = read_log(self.model.folder / LOG)
        logged = [row for row in everything if "notice" not in row]
        notices = [
            {"step": row["step"], "notice": str(row["notice"])[:MAX_NOTICE]}
            for row in everything
            if "notice" in row
        ]
        rows = [{k: row[k] for k in names if k in row} for row in logged]
        rows = [
            row for row in rows if all(isinstance(v, int | float) and math.isfinite(v) for v in row.values())
        ]
        every = max(1, len(rows) // MAX_LOG_ROWS)
        losses = [row for i, row in enumerate(rows) if i % every == 0 or "valid_loss" in row]
        return [*losses, *notices[-MAX_NOTICES:]]


def max_pool(x: np.ndarray, max_side: int | None) -> np.ndarray:
    """Reduce the last two dimensions to at most `max_side` each: of neighbouring numbers, the one that is
    farthest from zero; minus infinity, a masked score, only where all of them are."""
    for axis in (-2, -1):
        n = x.shape[axis]
        if max_side is not None and n > max_side:
            ends = np.arange(max_side + 1) * n // max_side
            best = x.take(ends[:-1], axis)
            for i in range(1, -(-n // max_side)):
                other = x.take(np.minimum(ends[:-1] + i, ends[1:] - 1), axis)
                best = np.where(pool_size(other) > pool_size(best), other, best)
            x = best
    return x


def pool_size(x: np.ndarray) -> np.ndarray:
    """The distance from zero; masked numbers (minus infinity) count as the nearest, NaN as the farthest."""
    return np.where(x == -np.inf, -1, np.nan_to_num(np.abs(x), nan=np.inf, posinf=np.inf))


def space_between(tokenizer: Any) -> str:
    """What decoding puts between two tokens: a space, if they are words."""
    pairs = ((tokenizer.decode([id]), tokenizer.decode([id, id])) for id in range(tokenizer.vocab))
    word, doubled = next(((one, two) for one, two in pairs if one.strip()), ("", ""))
    return " " if doubled == f"{word} {word}" else ""

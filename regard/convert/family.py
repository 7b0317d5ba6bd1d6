"""What all families of models share: settings asked for by name, and weights by a table of names.

A table has our names and theirs, layers' numbers as *, without the `.weight` or `.bias` at the end.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..checkpoint import Tensors
from ..errors import Mistake
from ..models import MODELS
from .files import CONFIG, read_json

ACTIVATIONS = {  # theirs: ours
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
FARTHEST = 2**20  # positions that are no weights: a table of them is made
TABLES = 2**23  # numbers in such tables that a model may have, if it has fewer weights
# Keys that change no number that a model gives.
HARMLESS = {
    "architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "_name_or_path",
    "name_or_path", "use_cache", "gradient_checkpointing", "initializer_range", "initializer_factor",
    "init_std", "id2label", "label2id", "problem_type", "num_labels", "finetuning_task", "bos_token_id",
    "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id",
    "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "is_encoder_decoder",
    "output_attentions", "output_hidden_states", "output_past", "output_scores", "return_dict",
    "torchscript", "use_bfloat16", "pruned_heads", "chunk_size_feed_forward", "max_length", "min_length",
    "num_beams", "num_beam_groups", "diversity_penalty", "early_stopping", "length_penalty",
    "temperature", "top_k", "top_p", "typical_p", "do_sample", "repetition_penalty",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "suppress_tokens",
    "begin_suppress_tokens", "num_return_sequences", "remove_invalid_values",
    "exponential_decay_length_penalty", "task_specific_params", "prefix", "tokenizer_class",
    "tf_legacy_loss", "use_return_dict", "directionality", "n_ctx", "_attn_implementation",
    "_attn_implementation_autoset", "attn_implementation", "_commit_hash", "custom_pipelines", "language",
    "license",
}  # fmt: skip
MISSING = object()


class Config:
    """A config.json, asked key by key. At the end, none may be left that would change what is computed."""

    def __init__(self, told: dict[str, Any], where: Path):
        self.told, self.where, self.left = told, where, set(told) - HARMLESS
        self.weights = where.parent  # the file that has them, once it is known

    @classmethod
    def read(cls, folder: Path) -> "Config":
        return cls(read_json(folder / CONFIG), folder / CONFIG)

    @property
    def kind(self) -> str:
        return str(self.told.get("model_type", "bert"))  # the first ones did not say

    @property
    def made(self) -> str:
        """The class that a folder was saved from."""
        names = self.told.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""

    def wrong(self, key: str, value: object, known: str) -> Mistake:
        return Mistake(f"{self.where}: {key}={short(value)} is not known; known are {known}")

    def take(self, *names: str, default: Any = MISSING) -> Any:
        """The value of the first of these keys that there is; null counts as none."""
        self.left -= set(names)
        for name in names:
            if self.told.get(name) is not None:
                return self.told[name]
        if default is MISSING:
            raise Mistake(f"{self.where}: {names[0]} is missing")
        return default

    def number(self, *names: str, default: Any = MISSING) -> Any:
        value = self.take(*names, default=default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise Mistake(f"{self.where}: {names[0]}={short(repr(value))} should be a number")
        return value

    def whole(self, *names: str, default: Any = MISSING) -> Any:
        """A size: a whole number from 1 up."""
        value = self.number(*names, default=default)
        if value is not default and (not isinstance(value, int) or value < 1):
            raise Mistake(f"{self.where}: {names[0]}={short(value)} should be a whole number from 1 up")
        return value

    def dropout(self, *names: str) -> Any:
        """There, attention may have a dropout of its own; here there is one."""
        return self.number(*names, default=0.1)

    def chosen(self, name: str, known: dict[str, str], default: str) -> str:
        """One of ours, by theirs."""
        if (value := self.take(name, default=default)) not in list(known):
            raise self.wrong(name, value, ", ".join(known))
        return known[value]

    def plain(self, **wanted: Any) -> None:
        """What a model must be to be one of ours; a key that is not there is as wanted."""
        for name, value in wanted.items():
            if (told := self.take(name, default=value)) != value:
                raise self.wrong(name, told, str(value))

    def finish(self) -> None:
        """Dropouts act in training only, and what is off changes nothing."""
        for key in sorted(self.left):
            if "drop" not in key and (value := self.told[key]) not in (None, False, "", [], {}):
                raise Mistake(
                    f"{self.where}: {key}={short(value)} is not known for model_type={self.kind}; "
                    "remove it if it changes nothing"
                )


def short(value: object) -> str:
    """A value as it may stand in a line."""
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


class Undrawn(TorchFunctionMode):
    """Weights that others are about to replace have no numbers: to draw them would take longer than to read,
    and as much memory again. What is computed from settings, as tables of positions, is there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}) | ({"device": "meta"} if func is torch.empty else {}))


def same(name: str, t: Tensor, config: Any) -> Tensor:
    return t


@dataclass(frozen=True)
class Family:
    """How models of one kind come in and go out."""

    kind: str  # ours, a name in MODELS
    names: dict[str, str]  # ours: theirs
    settings: Callable[[Config, Tensors], dict[str, Any]]  # of our configuration
    unpack: Callable[[Tensors, Config], Tensors]  # their tensors so that one of theirs is one of ours
    describe: Callable[[Any], dict[str, Any]]  # their config.json of our model; a Mistake if it has none
    pack: Callable[[Tensors, str], Tensors] = lambda state, made: state  # `unpack` back, for their class
    inward: Callable[[str, Tensor, Any], Tensor] = same  # a tensor of theirs as ours, by our name and config
    outward: Callable[[str, Tensor, Any], Tensor] = same
    heads: tuple[str, ...] = ()  # how names begin, of theirs, that a folder need not have
    more: Callable[[Any], Tensors] = lambda model: {}  # tensors of theirs that are no weights of ours


def theirs(names: dict[str, str], ours: str) -> str:
    """Their name of a tensor."""
    if ours in names:
        return names[ours]
    stem, _, end = ours.rpartition(".")
    number = next((part for part in stem.split(".") if part.isdigit()), "*")
    general = ".".join("*" if part == number else part for part in stem.split("."))
    return f"{names[general].replace('*', number)}.{end}"


def fitted(family: Family, settings: dict[str, Any], state: Tensors, config: Path, where: Path) -> nn.Module:
    """The model with a folder's weights, and where it lacks a head, new ones.

    All shapes are compared before anything is built, so that no file can ask for more memory than it fills.
    The state is used up.
    """
    if settings["depth"] > len(state) or settings.get("decoder_depth", 1) > len(state):
        raise Mistake(f"{config}: it tells of more layers than {where.name} has tensors")
    if settings.get("context", 1) > FARTHEST and settings.get("positions") != "learned":
        raise Mistake(f"{config}: {settings['context']} positions are more than {FARTHEST}; make them fewer")
    made, config_class, _ = MODELS[family.kind]
    try:
        sizes = config_class(**settings)
        with torch.device("meta"):
            empty = made(sizes)
        check_tables(empty, state)
        shapes = {name: t.shape for name, t in empty.state_dict().items()}
    except (TypeError, ValueError, RuntimeError, OverflowError) as e:
        raise Mistake(f"{config}: {str(e).splitlines()[0]}") from None
    there = {head for head in family.heads if any(name.startswith(head) for name in state)}
    weights = Tensors()
    for ours, shape in shapes.items():
        name = theirs(family.names, ours)
        if name not in state:
            if name.startswith(family.heads) and not name.startswith(tuple(there)):
                continue
            raise Mistake(
                f"{where}: {name} is missing; this is no {family.kind} of this {config.name}, or not all"
            )
        t = state.pop(name)
        try:
            weights[ours] = family.inward(ours, t.float(), sizes).contiguous() if t.is_floating_point() else t
        except (RuntimeError, IndexError):
            weights[ours] = t
        if weights[ours].shape != shape or not t.is_floating_point():
            told = f"{list(t.shape)}, not as wide as {list(shape)}"
            raise Mistake(f"{where}: {name} is {told}; it does not belong to this {config.name}")
    for name in state:
        raise Mistake(f"{where}: {name} has no place in a {family.kind} of this {config.name}")
    with Undrawn() if len(weights) == len(shapes) else nullcontext():
        model: nn.Module = made(sizes)
    model.load_state_dict(weights, strict=False, assign=True)
    return model.eval()


def check_tables(model: nn.Module, state: Tensors) -> None:
    """A long context's tables may be as large as the weights, so that no file can ask for more memory."""
    if sum(t.numel() for t in model.buffers()) > max(TABLES, sum(t.numel() for t in state.values())):
        raise ValueError("its tables of positions are larger than its weights; make the context shorter")


def weights_of(family: Family, model: Any) -> Tensors:
    """Our weights by their names."""
    found = model.state_dict().items()
    own = {theirs(family.names, name): family.outward(name, t, model.config) for name, t in found}
    return own | family.more(model)


def without(state: Tensors, prefix: str) -> Tensors:
    """Names with or without a prefix, without."""
    return {name.removeprefix(prefix): t for name, t in state.items()}


def untie(state: Tensors, copy: str, embedding: str, where: Path) -> None:
    """Removes a copy of the embedding, which tied weights may come with."""
    t = state.pop(copy, None)
    if t is not None and embedding in state and not torch.equal(t, state[embedding]):
        raise Mistake(f"{where}: {copy} is not the embedding, but tie_word_embeddings says so; set it false")


def need(config: Any, to: str, **wanted: Any) -> None:
    """A Mistake that names the setting, unless all are as the shape there has them."""
    for name, value in wanted.items():
        values = value if isinstance(value, tuple) else (value,)
        if (own := getattr(config, name)) not in values:
            known = " or ".join(str(v).lower() for v in values if v is not None)
            how = f"with model.{name}={known}" if known else "without"
            raise Mistake(f"model.{name}={short(own)} has no place in {to}; train {how}")

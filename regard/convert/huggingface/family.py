"""A family of models in Hugging Face's layout: its settings, and its weights by a table of names.

A table maps Regard's names to Hugging Face's ("theirs"), with * for a layer's number, without `.weight` or
`.bias` at the end.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.convert.huggingface.config import Config
from regard.errors import UserError, shorten
from regard.files.tensors import Tensors
from regard.models import MODELS
from regard.quantize.weights import SmallWeight

ACTIVATIONS = {  # their names: Regard's
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
MAX_CONTEXT = 2**20  # of computed positions, for which a table is made
MAX_TABLES = 2**23  # numbers in such tables, if the model has fewer weights than that


def unchanged(name: str, t: Tensor, config: Any) -> Tensor:
    return t


@dataclass(frozen=True)
class Family:
    """How one family of models is loaded and exported."""

    kind: str  # a name in MODELS
    names: dict[str, str]  # our names of weights: theirs
    settings: Callable[[Config, Tensors], dict[str, Any]]  # of our model's configuration
    unpack: Callable[[Tensors, Config], Tensors]  # split and clean their tensors, to one for each of ours
    describe: Callable[..., dict[str, Any]]  # our model's config.json; UserError if theirs differs
    pack: Callable[[Tensors, str], Tensors] = lambda state, architecture: state  # the inverse of `unpack`
    from_theirs: Callable[[str, Tensor, Any], Tensor] = unchanged  # convert a tensor, by our name and config
    to_theirs: Callable[[str, Tensor, Any], Tensor] = unchanged
    heads: tuple[str, ...] = ()  # prefixes of their names that a folder may lack
    extra_tensors: Callable[[Any], Tensors] = lambda model: {}  # in their files, but not used by Regard


def encoder_settings(c: Config) -> dict[str, Any]:
    """The settings that BERT and ViT share."""
    return {
        "dim": c.size("hidden_size"),
        "depth": c.size("num_hidden_layers"),
        "heads": c.size("num_attention_heads"),
        "hidden": c.size("intermediate_size"),
        "eps": c.number("layer_norm_eps", default=1e-12),
        "ffn": c.choice("hidden_act", ACTIVATIONS, "gelu"),
        "dropout": c.dropout("hidden_dropout_prob"),
    }


def their_name(names: dict[str, str], ours: str) -> str:
    """Hugging Face's name of a tensor."""
    if ours in names:
        return names[ours]
    stem, _, end = ours.rpartition(".")
    number = next((part for part in stem.split(".") if part.isdigit()), "*")
    pattern = ".".join("*" if part == number else part for part in stem.split("."))
    return f"{names[pattern].replace('*', number)}.{end}"


# Loading


class EmptyWeights(TorchFunctionMode):
    """Make new parameters without memory, since a file's weights replace them: this saves the time to
    initialise them and half of the memory. Buffers, such as tables of positions, are computed as usual;
    raises ValueError for a table of more than `largest` numbers."""

    def __init__(self, largest: float = math.inf) -> None:
        super().__init__()
        self.largest = largest

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.empty, torch.zeros, torch.ones):
            kwargs = kwargs | {"device": "meta"}
        elif (
            func.__name__ in ("normal_", "uniform_") and (t := args[0] if args else kwargs["tensor"]).is_meta
        ):
            return t  # otherwise torch imports its compiler, which takes a second
        shapes = [t.shape for t in args if isinstance(t, Tensor) and not t.is_meta]
        if len(shapes) > 1 and product_size(func, shapes) > self.largest:
            raise ValueError("the tables of positions are larger than the weights; make the context shorter")
        return func(*args, **kwargs)


def product_size(func: Any, shapes: Sequence[Sequence[int]]) -> int:
    """The numbers of an outer product, or of an operation on tensors that are expanded to one shape."""
    if func is torch.outer:
        return math.prod(map(math.prod, shapes))
    return math.prod(map(max, zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1)))


def build_empty(build: Callable[[], nn.Module], state: Tensors) -> nn.Module:
    """A model whose parameters have no memory.

    Raises ValueError if a long context needs larger tables than a file has weights, which takes memory.
    """
    with EmptyWeights(largest=max(MAX_TABLES, sum(t.numel() for t in state.values())) // 2):  # sin and cos
        return build()


def build_model(
    family: Family, settings: dict[str, Any], state: Tensors, config_path: Path, weights_path: Path
) -> nn.Module:
    """The model with a file's weights; heads that the file lacks are new.

    All shapes are compared before anything is built, so that no file can ask for more memory than it fills.
    Tensors are removed from `state` as they are used.
    """
    if settings["depth"] > len(state) or settings.get("decoder_depth", 1) > len(state):
        raise UserError(f"{config_path}: more layers than {weights_path.name} has tensors")
    if settings.get("context", 1) > MAX_CONTEXT and settings.get("positions") != "learned":
        raise UserError(
            f"{config_path}: {settings['context']} positions are more than {MAX_CONTEXT}; make them fewer"
        )
    model_class, config_class, _ = MODELS[family.kind]
    try:
        config = config_class(**settings)
        model: nn.Module = build_empty(lambda: model_class(config), state)
        shapes = {name: t.shape for name, t in model.state_dict().items()}
    except (TypeError, ValueError, RuntimeError, OverflowError) as e:
        raise UserError(f"{config_path}: {str(e).splitlines()[0]}") from None
    weights = take_weights(family, config, shapes, state, config_path, weights_path)
    if len(weights) < len(shapes):  # some heads are new
        model = model_class(config)
    model.load_state_dict(weights, strict=False, assign=True)
    return model.eval()


def take_weights(
    family: Family,
    config: Any,
    shapes: dict[str, torch.Size],
    state: Tensors,
    config_path: Path,
    weights_path: Path,
) -> Tensors:
    """Take the weights by Regard's names; raise UserError for a missing, misshapen or unused tensor."""
    own_heads = tuple(head for head in family.heads if any(name.startswith(head) for name in state))
    weights = Tensors()
    for ours, shape in shapes.items():
        name = their_name(family.names, ours)
        if name not in state:
            if name.startswith(family.heads) and not name.startswith(own_heads):
                continue
            raise UserError(
                f"{weights_path}: {name} is missing, but {config_path.name} asks for it; copy the model again"
            )
        t = state.pop(name)
        try:
            weights[ours] = convert_weight(family, ours, t, config)
        except (RuntimeError, IndexError):  # of another shape: the error is raised below
            weights[ours] = t
        if weights[ours].shape != shape or not t.is_floating_point():
            actual = f"{str(t.dtype).removeprefix('torch.')} of shape {list(t.shape)}"
            raise UserError(
                f"{weights_path}: {name} is {actual}, but {config_path.name} asks for floats of shape "
                f"{list(shape)}; copy the model again"
            )
    for name in state:
        raise UserError(f"{weights_path}: {name} is not part of a {family.kind} of this {config_path.name}")
    return weights


def convert_weight(family: Family, ours: str, t: Tensor, config: Any) -> Tensor:
    """Convert a tensor to Regard's layout; all parts of a quantised weight have its rows."""
    if isinstance(t, SmallWeight):
        return type(t)(*(family.from_theirs(ours, part, config).contiguous() for part in t.parts))
    return family.from_theirs(ours, t.float(), config).contiguous() if t.is_floating_point() else t


def remove_prefix(state: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): t for name, t in state.items()}


def remove_tied_copy(state: Tensors, copy: str, embedding: str, path: Path) -> None:
    """Remove a copy of the embedding that tied weights may be saved with."""
    t = state.pop(copy, None)
    if t is not None and embedding in state and not torch.equal(t, state[embedding]):
        raise UserError(
            f"{path}: {copy} is not the embedding, but tie_word_embeddings says so; set it to false"
        )


# Exporting


def export_weights(family: Family, model: nn.Module) -> Tensors:
    """The weights by Hugging Face's names."""
    weights = {
        their_name(family.names, name): family.to_theirs(name, t, model.config)
        for name, t in model.state_dict().items()
    }
    return weights | family.extra_tensors(model)


def require_settings(config: Any, target: str, **expected: Any) -> None:
    """Raise UserError for a setting of the model that the target cannot represent; a tuple lists several
    possible values."""
    for name, value in expected.items():
        values = value if isinstance(value, tuple) else (value,)
        if (actual := getattr(config, name)) not in values:
            possible = " or ".join(str(v).lower() for v in values if v is not None)
            fix = f"with model.{name}={possible}" if possible else "without"
            raise UserError(f"model.{name}={shorten(actual)} is not supported by {target}; train {fix}")

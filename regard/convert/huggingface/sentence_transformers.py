"""Folders of sentence-transformers: an encoder, pooling of its hidden states, and perhaps normalisation, or a
dense layer, which may be a head for classes.

Reimers & Gurevych 2019.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.convert.huggingface.files import CONFIG, WEIGHTS, read_weights
from regard.errors import UserError
from regard.files.untrusted import read_json, write_json

if TYPE_CHECKING:
    from regard.files.tensors import Tensors

MODULES = "modules.json"  # the list of a folder's modules
LENGTHS = "sentence_bert_config.json"
DENSE = "2_Dense"
IDENTITY = "torch.nn.modules.linear.Identity"  # the activation of a dense layer that is a head
POOLINGS = {"mean": "mean", "mean_tokens": "mean", "cls": "first", "cls_token": "first"}  # their names: ours


def read_modules(folder: Path) -> tuple[Path, dict[str, Any], Path | None]:
    """Return the folder of the encoder, the settings of the task (the pooling of hidden states), and the
    folder of a head for classes."""
    path = folder / MODULES
    modules = read_json(path, list)
    if not all(isinstance(module, dict) and {"type", "path"} <= module.keys() for module in modules):
        raise UserError(f"{path}: should list the modules of a model, each with type and path")
    kinds = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"], ["Dense"]):
        raise UserError(
            f"{path}: the modules {', '.join(kinds) or '(none)'} are not supported; supported: Transformer, "
            "Pooling and perhaps Normalize or Dense"
        )
    places = [str(module["path"]) for module in modules]
    if any(Path(place).is_absolute() or ".." in Path(place).parts for place in places):
        raise UserError(f"{path}: a module's path leads out of the folder; remove it")
    encoder, pooling = (folder / place for place in places[:2])
    how = read_pooling(pooling / CONFIG)
    if kinds[2:] == ["Dense"]:
        check_dense(folder / places[2] / CONFIG, how)
        return encoder, {"mean": True}, folder / places[2]
    settings: dict[str, Any] = {"pooling": how, "normalize": len(kinds) == 3}
    lengths = encoder / LENGTHS
    longest = read_json(lengths).get("max_seq_length") if lengths.exists() else None
    return encoder, settings | ({} if longest is None else {"longest": longest}), None


def check_dense(path: Path, pooling: str) -> None:
    """Raise UserError for a dense layer that is not a head for classes on the mean of the hidden states."""
    config = read_json(path)
    if pooling != "mean" or config.get("activation_function") != IDENTITY or config.get("bias") is not True:
        raise UserError(
            f"{path}: a dense layer is supported as a head for classes only: on the mean of all tokens, with "
            f"a bias, and activation_function {IDENTITY}"
        )


def read_dense(folder: Path) -> "Tensors":
    """The weight and the bias of a head for classes."""
    state = read_weights(folder / WEIGHTS)
    if set(state) != {"linear.weight", "linear.bias"}:
        raise UserError(f"{folder / WEIGHTS}: should have linear.weight and linear.bias, and nothing else")
    return {name.removeprefix("linear."): t.float() for name, t in state.items()}


def read_pooling(path: Path) -> str:
    config = read_json(path)
    mode = config.get("pooling_mode")  # older files have a boolean for each mode instead
    prefix = "pooling_mode_"
    flags = [k.removeprefix(prefix) for k, v in config.items() if k.startswith(prefix) and v is True]
    modes = [str(mode)] if mode else flags
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise UserError(
            f"{path}: pooling_mode={', '.join(modes) or '(none)'} is not supported; supported: mean, cls"
        )
    return POOLINGS[modes[0]]


def write_modules(folder: Path, task: dict[str, Any], dim: int, head: "Tensors | None" = None) -> None:
    """Write the files of sentence-transformers into a folder with an encoder; the last module is the `head`,
    if there is one."""
    last = ["Dense"] if head else ["Normalize"] if task["normalize"] else []
    kinds = ["Transformer", "Pooling", *last]
    paths = ["", "1_Pooling", DENSE if head else "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    write_json(folder / MODULES, modules)
    write_json(folder / LENGTHS, {"max_seq_length": task.get("longest"), "do_lower_case": False})
    for path in paths[1 : len(kinds)]:
        (folder / path).mkdir()
    pooling: dict[str, Any] = {"word_embedding_dimension": dim}
    for mode in ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens"):
        pooling[f"pooling_mode_{mode}"] = POOLINGS.get(mode) == task["pooling"]
    write_json(folder / paths[1] / CONFIG, pooling)
    if head:
        from regard.files.tensors import write_tensors  # needs torch, which `regard info` does without

        sizes = {"in_features": dim, "out_features": len(head["bias"])}
        write_json(folder / DENSE / CONFIG, sizes | {"bias": True, "activation_function": IDENTITY})
        write_tensors(folder / DENSE / WEIGHTS, {f"linear.{name}": t.float() for name, t in head.items()})

"""Load a trained model: from a run's folder, at one of its checkpoints, or from other libraries' files."""

import copy
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.convert.huggingface.chat import read_chat_template
from regard.convert.huggingface.family import build_empty
from regard.convert.huggingface.files import ADAPTER
from regard.convert.huggingface.generation import check_token
from regard.convert.huggingface.hub import HUB, download
from regard.data.word_vectors import is_vectors_file
from regard.decode.runners import DTYPES, set_dtype
from regard.errors import UserError
from regard.files.tensors import read_tensors
from regard.memory import allocator
from regard.models import MODELS
from regard.quantize.model import (
    PRECISIONS,
    dequantize_model,
    is_quantized,
    join_parts,
    pack_layers,
    pack_outputs,
    quantize_model,
)
from regard.quantize.weights import SmallWeight
from regard.runs import lora, recipe
from regard.runs.checkpoints import open_part, steps
from regard.runs.film import film_steps, frame_path
from regard.runs.folder import load_tokenizers, read_settings
from regard.runs.layout import (
    BASE,
    CHECKPOINTS,
    CONFIG,
    GENERATION,
    RECIPE,
    STEP,
    TARGET_TOKENIZER,
    TEMPLATE,
    TOKENIZER,
    WEIGHTS,
    published,
)
from regard.runs.model import Model, best_device
from regard.tasks import TASKS, Task
from regard.text.chat_template import Template
from regard.text.tokenizer import Tokenizer


def load(
    folder: str | Path,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = "auto",
    adapter: str | Path | None = None,
) -> Model:
    """Load a trained model from a run's folder, a folder in Hugging Face's layout, hf:OWNER/NAME (one on
    their hub), a GGUF file, or a file of word vectors (GloVe or word2vec). RUN/checkpoints/step-N is a
    run's model as it was at that step.

    `dtype` is the precision of the weights on a CPU: float32, bfloat16, int8 or int4; auto keeps the
    stored one. On a GPU it is the precision in which texts are generated, float32 or bfloat16 (auto);
    everything else is computed in float32. `adapter` is a folder with low-rank updates in PEFT's layout,
    which are added to a language model.
    """
    small = adapter is None and str(dtype).removeprefix("torch.") != "float32"
    model = load_model(folder, device, small)
    if next(model.model.parameters()).device.type == "cpu":
        allocator.keep()
    if adapter is not None:
        from regard.runs.adapter import merge_adapter  # imports other formats

        merge_adapter(model.model, Path(adapter))
        model.adapter = Path(adapter)
    set_precision(model, str(dtype).removeprefix("torch."))
    return model


def set_precision(model: Model, name: str) -> None:
    """Convert a model to the precision of this name."""
    names = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
    known = ["auto", *dict.fromkeys([*names, *PRECISIONS])]
    if name not in known:
        raise UserError(f"dtype={name}: give one of {', '.join(known)}")
    model.dtype = name
    if name in names:
        set_dtype(model.model, names[name])
    on_cpu = next(model.model.parameters()).device.type == "cpu"
    if name == "float32":
        dequantize_model(model.model)
    elif on_cpu and name in PRECISIONS:
        quantize_model(model.model, name)
    elif name in PRECISIONS and name not in names:
        raise UserError(f"dtype={name} is for a CPU; give device=cpu, or one of {', '.join(names)}")


def load_model(folder: str | Path, device: str | torch.device | None, small: bool = False) -> Model:
    folder = download(str(folder)) if str(folder).startswith(HUB) else Path(folder)
    if (match := STEP.fullmatch(folder.name)) and folder.absolute().parent.name == CHECKPOINTS:
        return at_step(load_model(folder.absolute().parents[1], device), int(match[1]))
    if not has_task(folder):
        from regard.convert.huggingface.load import is_huggingface  # imports all families
        from regard.runs.foreign import load_foreign, load_vectors

        if folder.is_file() and is_vectors_file(folder.name):
            return load_vectors(folder, device)
        if is_huggingface(folder):
            return load_foreign(folder, device, small)
        if (folder / ADAPTER).is_file() and not (folder / CONFIG).is_file():
            raise UserError(f"{folder}: an adapter; give its model, too: regard ask MODEL --adapter {folder}")
    kind, settings, section = read_config(folder)
    if not published(folder).is_file():
        file = published(folder).name
        raise UserError(f"{folder}: no {file} yet; train it first, or continue with --resume")
    task_class, task_config = TASKS[section["name"]]
    if (folder / BASE).is_file():
        from regard.runs.adapter import merge_adapter

        module, config = load_base(folder, settings), recipe.fill("task", section, task_config)
        merge_adapter(module, folder)
    else:
        module, config = load_module(folder, kind, settings, section)
    module.to(device or best_device()).eval()
    return with_generation(module, load_task(folder, task_class, config, module.config), folder, kind)


def load_task(folder: Path, task_class: type[Task], config: Any, sizes: Any) -> Task:
    """Load the task of a run, with its tokenizers and chat template; `sizes` configures the model."""
    tokenizer, *other = check_tokenizers(folder, sizes) if hasattr(sizes, "vocab") else [None]
    ends: list[int] = []
    if has_template := (folder / TEMPLATE).exists():
        assert tokenizer is not None
        written = read_settings(folder / GENERATION).get("eos_token_id", [])
        several = written if isinstance(written, list) else [written]
        ends = [check_token(id, sizes.vocab, folder / GENERATION, "eos_token_id") for id in several]
        tokenizer.end = ends[0] if ends else None
    task = task_class(config, tokenizer, sizes.context, *other)
    task.folder = folder
    if has_template:
        text, special_tokens, path = read_chat_template(folder)
        task.adopt_prompt_format(None, ends, None, Template(text or "", special_tokens, str(path)))
    return task


def load_base(folder: Path, settings: dict[str, Any]) -> nn.Module:
    """Load the base model of a run's adapter."""
    from regard.runs.adapter import find_base

    module = load_model(find_base(folder), "cpu").model
    config: Any = module.config
    for key in settings.keys() & vars(config).keys():
        if settings[key] != json.loads(json.dumps(getattr(config, key))):
            raise UserError(f"{folder / CONFIG}: {key}={settings[key]} is not that of the adapter's base")
    return module


def has_task(folder: Path) -> bool:
    """Return whether a folder's config.json names a task, as only those of runs do."""
    return (folder / CONFIG).is_file() and isinstance(read_settings(folder / CONFIG).get("task"), dict)


def read_config(folder: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the kind of a run's model, its settings and its task's settings, from config.json."""
    settings = read_settings(folder / CONFIG)
    kind = str(settings.pop("model_type", "")).removeprefix("regard-")
    section = settings.pop("task", None)
    if kind not in MODELS or not isinstance(section, dict) or str(section.get("name")) not in TASKS:
        from regard.convert.huggingface.load import KINDS

        theirs = f"; of Hugging Face's, known are {', '.join(KINDS)}"
        raise UserError(
            f"{folder / CONFIG}: not a model of Regard's (model_type is {kind or 'missing'!r}){theirs}"
        )
    settings.pop("architectures", None)
    return kind, settings, section


def with_generation(module: nn.Module, task: Task, folder: Path, kind: str) -> Model:
    """Add the options of generation_config.json to a model; raise UserError for impossible ones."""
    generation = read_settings(folder / GENERATION) if (folder / GENERATION).exists() else {}
    generation.pop("eos_token_id", None)
    model = Model(module, task, task.generation | generation, folder, kind)
    for name in generation.keys() & {"grammar", *task.extra_options}:
        # `within` is the path of a file whose lines are the answers: a folder from elsewhere could show any.
        raise UserError(f"{folder / GENERATION}: {name} is given with each question; remove it")
    try:
        model.request([], {})
    except UserError as e:
        raise UserError(f"{folder / GENERATION}: {e}") from None
    return model


def check_config(folder: Path, module: nn.Module, task: Task, kind: str) -> None:
    """Raise UserError unless the model trained in a folder can be loaded from there afterwards."""
    written, settings, section = read_config(folder)
    if (written, section["name"]) != (kind, task.config.name):
        raise UserError(f"{folder / CONFIG}: a {written} for {section['name']}, not this run's; restore it")
    for values, config in ((settings, module.config), (section, task.config)):
        try:
            filled: Any = recipe.fill("config", values, type(config))
        except UserError as e:
            raise UserError(f"{folder / CONFIG}: {e}") from None
        # A missing setting of the model counts if the run's is not the default; a task may gain settings.
        for key in vars(filled) if config is module.config else values.keys() & vars(filled).keys():
            if (value := getattr(filled, key)) != getattr(config, key):
                raise UserError(f"{folder / CONFIG}: {key}={str(value)[:80]} is not this run's; restore it")
    with_generation(module, task, folder, kind)


def load_frame(folder: Path, step: int) -> Model:
    """Load the model of a step with a frame of the film, on the CPU; no other weights are needed."""
    kind, settings, section = read_config(folder)
    module, config = load_module(folder, kind, settings, section, frame_path(folder, step))
    task = load_task(folder, TASKS[section["name"]][0], config, module.config)
    model = with_generation(module.eval(), task, folder, kind)
    model.step = step
    return model


def load_module(
    folder: Path, kind: str, settings: dict[str, Any], section: dict[str, Any], file: Path | None = None
) -> tuple[nn.Module, Any]:
    """Load the module with its weights, or those of another file, and the configuration of its task."""
    model_class, model_config, _ = MODELS[kind]
    task_class, task_config = TASKS[section["name"]]
    file = file or folder / WEIGHTS
    weights = read_tensors(file)
    try:
        sizes = recipe.fill("model", settings, model_config)
        config = recipe.fill("task", section, task_config)
        if any((getattr(sizes, name, 0) or 0) > len(weights) for name in ("depth", "decoder_depth")):
            raise ValueError(f"it has more layers than {file.name} has tensors")
        module = build_empty(lambda: task_class.add_head(model_class(sizes), config), weights)
    except (ValueError, TypeError, RuntimeError, OverflowError) as e:
        raise UserError(f"{folder / CONFIG}: {str(e).splitlines()[0]}") from None
    weights = join_parts(module, weights)
    check_weights(module, weights, file)
    weights = {
        name: t if isinstance(t := weights.pop(name), SmallWeight) else t.to(own.dtype)
        for name, own in module.state_dict().items()
    }
    module.load_state_dict(weights, assign=True)
    del weights  # the layers' own copies are in another order
    pack_layers(module)
    pack_outputs(module)
    return module, config


def check_tokenizers(folder: Path, sizes: Any) -> list[Tokenizer]:
    """Load the tokenizers of a folder; raise UserError if a tokenizer does not fit the model."""
    tokenizers = load_tokenizers(folder)
    names = (("vocab", TOKENIZER), ("target_vocab", TARGET_TOKENIZER))
    for (name, file), tokenizer in zip(names, tokenizers, strict=False):
        vocab: int = getattr(sizes, name, None) or sizes.vocab
        if tokenizer.vocab > vocab:
            raise UserError(
                f"{folder / file}: its {tokenizer.vocab} tokens are more than the model's {vocab}"
            )
    return tokenizers


def check_weights(
    model: nn.Module, weights: dict[str, torch.Tensor], path: Path, names: Collection[str] | None = None
) -> None:
    """Raise UserError that names the first tensor whose name, shape or dtype differs from the model's, among
    all or among these names."""
    state = model.state_dict()
    ours, theirs = (
        {name: (t.shape, t.is_floating_point()) for name, t in tensors.items()}
        for tensors in (state if names is None else {name: state[name] for name in names}, weights)
    )
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            raise UserError(
                f"{path}: {name} does not fit the model; {CONFIG} and {WEIGHTS} don't belong together"
            )


def steps_of(model: Model) -> list[int]:
    """Return the steps of a model's run that have a checkpoint or a frame of the film, oldest first."""
    if model.folder is None:
        return []
    return sorted({*steps(model.folder / CHECKPOINTS), *film_steps(model.folder)})


def at_step(model: Model, step: int) -> Model:
    """Return the model as it was at a step of its run that has a checkpoint or a frame of the film."""
    known = steps_of(model)
    if step not in known:
        which = f"there are {', '.join(map(str, known))}" if known else "there are no checkpoints"
        more = "train.save and train.keep make more, as does train --look"
        raise UserError(f"step {step}: {which} in {model.folder}; {more}")
    assert model.folder is not None
    if is_quantized(model.model):
        earlier = at_step(load_model(model.folder, "cpu"), step)
        set_precision(earlier, model.dtype)
        return earlier
    module, path = copy.deepcopy(model.model), frame_path(model.folder, step)
    if step in film_steps(model.folder):
        weights = read_tensors(path)
    else:
        path = model.folder / CHECKPOINTS / f"step-{step}" / WEIGHTS
        module, weights = read_checkpoint(model.folder, module, path.parent)
    check_weights(module, weights, path)
    module.load_state_dict(weights)
    earlier = Model(module, model.task, model.generation, model.folder, model.kind)
    earlier.step = step
    return earlier


def read_checkpoint(folder: Path, module: nn.Module, path: Path) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Return a module of the run, and a checkpoint's weights for it, with low-rank updates merged."""
    weights = open_part(path, "model").read_all()
    if (folder / BASE).is_file():  # the checkpoint has what was trained, and the base the rest
        module = load_base(folder, {}).to(next(module.parameters()).device)
        weights = dict(module.state_dict()) | weights
    ranks = {t.shape[0] for name, t in weights.items() if name.endswith("lora_A")}
    if ranks:
        if 0 in ranks:
            raise UserError(f"{path / WEIGHTS}: low-rank updates of rank 0; use another step")
        adapted = copy.deepcopy(module)
        section = recipe.read_file(folder / RECIPE)["train"]
        alpha = recipe.fit("train.lora_alpha", section.get("lora_alpha", "missing"), float)
        lora.add(adapted, ranks.pop(), alpha)
        check_weights(adapted, weights, path / WEIGHTS)
        weights = lora.merge(adapted, weights)
    return module, weights

"""A run's folder: how it is begun, and how a trained model comes back out of it."""

import copy
import errno
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import convert, lora, recipe, scoring
from .checkpoint import read_tensors, steps
from .convert.family import check_tables
from .convert.files import read_json
from .display import progress
from .ensemble import Ensemble
from .errors import Mistake
from .generate import Sampling
from .models import MODELS
from .tasks import TASKS, Answer, WordsTask, WordsTaskConfig, Write, targets
from .text import Tokenizer
from .vectors import embeddings

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
TARGET_TOKENIZER = "target_tokenizer.json"  # where what is written has a vocabulary of its own
GENERATION = "generation_config.json"
RECIPE = "recipe.toml"
LOG = "log.jsonl"
CHECKPOINTS = "checkpoints"
MOST = 4096  # answers to one text
TRIED = 200  # texts, with which an exported model is tried


def best_device() -> torch.device:
    for kind in ("cuda", "mps"):
        if getattr(torch, kind).is_available():
            return torch.device(kind)
    return torch.device("cpu")


def single(text: Any) -> bool:
    """Whether this is one text or conversation, not several."""
    return isinstance(text, str) or any(isinstance(message, dict) for message in text)


class Model:
    """A model with its tokenizer and its task: what people use. `model.model` is the nn.Module inside."""

    def __init__(
        self,
        model: nn.Module,
        task: Any,
        generation: dict[str, Any],
        folder: Path | None = None,
        kind: str | None = None,
    ):
        self.model, self.task, self.generation, self.folder = model, task, generation, folder
        self.kind = kind  # its name in MODELS
        self.step: int | None = None  # of its run, where it is not the model that came out in the end

    @property
    def tokenizer(self) -> Tokenizer:
        return self.task.tokenizer

    @property
    def tokenizers(self) -> list[Tokenizer]:
        """The tokenizer; or the source's and the target's, where these differ; none of a model that sees."""
        return [t for t in (self.task.tokenizer, self.task.target_tokenizer) if t is not None]

    def stream(self, text: str | Sequence[str], **options: Any) -> Iterator[Any]:
        """The answer as it comes, piece by piece; for several texts, a list of pieces at a time.

        Options are those of `generate.Sampling`, `stop` (a string or several), `num_return_sequences` and
        what the task has of its own: `prefix` says how a translation or a reply begins. Where there is a chat
        template, a text may be a conversation: a list of {"role": ..., "content": ...}.
        """
        texts, chosen = [text] if single(text) else text, self._chosen(options)
        for pieces in self.task.ask(self.model, texts, **chosen):
            yield pieces[0] if single(text) and chosen["samples"] == 1 else pieces

    def ask(self, text: str | Sequence[str], **options: Any) -> Any:
        """The answer to a text; for several texts or `num_return_sequences`, a list of answers."""
        found = self.answers(text, **options)
        if single(text) and len(found[0]) == 1:
            return found[0][0].text
        return [answer.text for several in found for answer in several]

    def answers(self, text: str | Sequence[str], **options: Any) -> list[list[Answer]]:
        """Answers with their scores, if beams found them: `num_return_sequences` to each text."""
        texts = [text] if single(text) else text
        return self.task.answers(self.model, texts, **self._chosen(options))

    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        """A vector for each text, (texts, dim), if this is what the model is for."""
        if not hasattr(self.task, "vectors"):
            raise Mistake("this model's task makes no vectors of texts; train one with the recipe embed")
        return self.task.vectors(self.model, [texts] if isinstance(texts, str) else texts)

    def words(self) -> "Model":
        """The same model, asked and judged as word vectors: whatever it does, it has embeddings of words."""
        embeddings(self.model)  # or there is nothing to ask
        task = WordsTask(WordsTaskConfig(name="words"), self.tokenizer, 1)
        return Model(self.model, task, dict(task.generation), self.folder, self.kind)

    def _chosen(self, options: dict[str, Any]) -> dict[str, Any]:
        options = self.generation | {k: v for k, v in options.items() if v is not None}
        usual = getattr(self.task, "nearest", 1) if "within" in options else 1
        stop, samples = options.pop("stop", ()), options.pop("num_return_sequences", usual)
        own = {name: options.pop(name) for name in self.task.extras if name in options}
        known = [f.name for f in fields(Sampling)]
        for name in options:
            if name not in known:
                hint = recipe.nearest(name, [*known, "stop", "num_return_sequences", *self.task.extras])
                raise Mistake(f"{name} is not an option; {hint}")
        if not isinstance(samples, int) or not 1 <= samples <= MOST:
            raise Mistake(f"num_return_sequences={samples}: give a whole number from 1 to {MOST}")
        stops = [stop] if isinstance(stop, str) else stop
        return {"sampling": Sampling(**options), "stop": stops, "samples": samples} | own

    def score(self, *paths: str, against: "Model | None" = None, **options: Any) -> dict[str, Any]:
        """How well it does on held-out data, whole; and how sure it is that it is not as `against`.

        Where answers are compared with references, options are those of `ask`.
        """
        if not paths:
            raise Mistake("there is nothing to score on; give at least one file or folder")
        if (samples := self._chosen(options)["samples"]) > 1:
            raise Mistake(f"num_return_sequences={samples}: only one answer to each text can be scored")
        data = self.task.held_out(paths)
        if against is not None and not self.task.compares:
            raise Mistake("--against compares answers with references; this model's task has none")
        if (alone := self.task.scored(self.model, data)) is not None:
            return alone
        device = next(self.model.parameters()).device
        sums, count = torch.zeros(1, dtype=torch.float64), 0
        with torch.inference_mode(), progress("scoring", len(data)) as advance:
            for batch in self.task.in_order(data, 8192):
                sums = sums + self.task.measure(self.model, *(t.to(device) for t in batch)).cpu()
                count += targets(batch)
                advance(self.task.covered(batch))
        loss, *more = sums.tolist()
        found: dict[str, Any] = self.task.metrics(loss, count, data, *more)
        if not self.task.compares:
            return found
        answers = self._answers_to(data.sources, options)
        found |= self.task.judged(answers, data.targets)
        if against is not None:
            found |= scoring.compare(answers, against._answers_to(data.sources, options), data.targets)
        return found

    def _answers_to(self, sources: Sequence[str], options: dict[str, Any]) -> list[str]:
        answers: list[str] = []
        with progress("answering", len(sources)) as advance:
            for i in range(0, len(sources), self.task.at_once):
                answers += self.ask(sources[i : i + self.task.at_once], **options)
                advance(len(answers) - i)
        return answers


def begin(folder: Path, model: nn.Module, task: Any, sections: recipe.Sections) -> None:
    """Make the folder with everything that stands before training, at once or not at all."""
    config = asdict(model.config)  # type: ignore[call-overload]
    config = {
        "architectures": [type(model).__name__],
        "model_type": f"regard-{sections['model']['kind']}",
        "task": sections["task"],
    } | {k: v for k, v in config.items() if v is not None}
    end = task.tokenizer and task.tokenizer.end
    ends = {} if end is None else {"eos_token_id": end}
    beside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        (beside / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (beside / GENERATION).write_text(
            json.dumps(ends | task.generation, indent=2) + "\n", encoding="utf-8"
        )
        (beside / RECIPE).write_text(recipe.to_toml(sections), encoding="utf-8")
        (beside / LOG).touch()
        if task.tokenizer is not None:
            task.tokenizer.save(beside / TOKENIZER)
        if task.target_tokenizer is not None:
            task.target_tokenizer.save(beside / TARGET_TOKENIZER)
        if folder.is_dir():
            folder.rmdir()  # empty, or the caller would not have come here
        os.rename(beside, folder)
    except OSError as e:
        if e.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise Mistake(f"{folder} holds another run that began just now; choose another --out") from None
        if e.errno == errno.ENOTDIR:
            raise Mistake(f"{folder} is a file, or below one; choose another --out") from None
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def load(folder: str | Path, device: str | torch.device | None = None) -> Model:
    """The trained model of a run's folder, or of one in Hugging Face's layout; hf:OWNER/NAME is one of
    theirs on the hub. Or that of a GGUF file."""
    folder = convert.fetched(str(folder)) if str(folder).startswith(convert.HUB) else Path(folder)
    if convert.is_theirs(folder):
        return load_theirs(folder, device)
    made = _json(folder / CONFIG)
    kind = str(made.pop("model_type", "")).removeprefix("regard-")
    section = made.pop("task", None)
    if kind not in MODELS or not isinstance(section, dict) or str(section.get("name")) not in TASKS:
        theirs = f"; of Hugging Face's, known are {', '.join(convert.KINDS)}"
        raise Mistake(
            f"{folder / CONFIG}: not a model of Regard's (model_type is {kind or 'missing'!r}){theirs}"
        )
    if not (folder / WEIGHTS).is_file():
        raise Mistake(f"{folder}: no {WEIGHTS} yet; train it first, or go on with --resume")
    made.pop("architectures", None)
    module, config, _ = MODELS[kind]
    task_class, task_config = TASKS[section["name"]]
    weights = read_tensors(folder / WEIGHTS)
    try:
        sizes = recipe.fill("model", made, config)
        task_section = recipe.fill("task", section, task_config)
        if any((getattr(sizes, name, 0) or 0) > len(weights) for name in ("depth", "decoder_depth")):
            raise ValueError(f"it tells of more layers than {WEIGHTS} has tensors")
        with torch.device("meta"):  # nothing is made that the file does not fill
            model = task_class.headed(module(sizes), task_section)
        check_tables(model, weights)
    except (ValueError, TypeError, RuntimeError, OverflowError) as e:
        raise Mistake(f"{folder / CONFIG}: {str(e).splitlines()[0]}") from None
    compare_weights(model, weights, folder / WEIGHTS)
    model = task_class.headed(module(sizes), task_section)
    model.load_state_dict(weights)
    model.to(device or best_device()).eval()
    tokenizer, *other = load_tokenizers(folder) if hasattr(model.config, "vocab") else [None]
    for name, some in zip(("vocab", "target_vocab"), (tokenizer, *other), strict=False):
        many = getattr(model.config, name, None) or getattr(model.config, "vocab", 0)
        if some is not None and some.vocab > many:
            file = folder / (TOKENIZER if some is tokenizer else TARGET_TOKENIZER)
            raise Mistake(f"{file}: its {some.vocab} tokens are more than the model's {many}")
    task = task_class(task_section, tokenizer, model.config.context, *other)
    generation = _json(folder / GENERATION) if (folder / GENERATION).exists() else {}
    generation.pop("eos_token_id", None)
    loaded = Model(model, task, task.generation | generation, folder, kind)
    loaded._chosen({})  # options that can't be are told now
    return loaded


def steps_of(model: Model) -> list[int]:
    """The steps of a model's run that have a checkpoint, oldest first."""
    return [] if model.folder is None else steps(model.folder / CHECKPOINTS)


def at_step(model: Model, step: int) -> Model:
    """The model as it was at a step of its run that has a checkpoint."""
    known = steps_of(model)
    if step not in known:
        which = f"there are {', '.join(map(str, known))}" if known else "there are no checkpoints"
        raise Mistake(f"step {step}: {which} in {model.folder}; train.save and train.keep make more")
    assert model.folder is not None
    path = model.folder / CHECKPOINTS / f"step-{step}" / WEIGHTS
    module, weights = copy.deepcopy(model.model), read_tensors(path)
    ranks = {t.shape[0] for name, t in weights.items() if name.endswith("lora_A")}
    if ranks:
        adapted = copy.deepcopy(module)
        alpha = recipe.read_file(model.folder / RECIPE)["train"]["lora_alpha"]
        lora.add(adapted, ranks.pop(), alpha)
        weights = lora.merge(adapted, weights)
    fit_weights(module, weights, path)
    found = Model(module, model.task, model.generation, model.folder, model.kind)
    found.step = step
    return found


def load_theirs(folder: Path, device: str | torch.device | None = None) -> Model:
    """The model of a folder in Hugging Face's layout; its task follows from its head."""
    found = convert.load_folder(folder)
    task_class, task_config = TASKS[found.task["name"]]
    section = recipe.fill("task", found.task, task_config)
    tokenizer, other, model, options = None, list[Tokenizer](), found.model, dict(found.generation)
    begin, ends, first = options.pop("begin", None), options.pop("ends", []), options.pop("first", None)
    if found.tokenizer is not None:
        if isinstance(found.tokenizer, Path):
            where, tokenizer = found.tokenizer, Tokenizer.load(found.tokenizer)
        else:
            where, tokenizer = folder, Tokenizer(found.tokenizer)
        if found.names:
            tokenizer = Tokenizer.read(convert.renamed(tokenizer.inner.to_str(), found.names), where)
        if tokenizer.vocab > model.config.vocab:  # type: ignore[union-attr, operator]
            many = f"its {tokenizer.vocab} tokens are more than the model's {model.config.vocab}"  # type: ignore[union-attr]
            raise Mistake(f"{where}: {many}; they don't belong together")
        other = [] if found.target is None else [Tokenizer(found.target)]
        for each in [tokenizer, *other] if ends else ():
            each.end = ends[0]
    made: nn.Module = task_class.headed(model, section)
    if found.head:
        made.head.load_state_dict(found.head)  # type: ignore[union-attr]
    made.to(device or best_device()).eval()
    task = task_class(section, tokenizer, model.config.context, *other)  # type: ignore[union-attr]
    if begin is not None:
        task.begin = begin
    if len(ends) > 1 and hasattr(task, "ends"):
        task.ends = tuple(ends)
    if isinstance(task, Write):
        usual = tokenizer.inner.encode("").ids  # type: ignore[union-attr]  # what it puts before a text
        task.first = first if first is not None else [] if set(usual) & set(task.ends) else usual
        if found.template is not None:
            from .template import Template  # Jinja is for those who talk

            task.speak(Template(found.template, found.specials, str(found.told)))
    steady = {"temperature": 0.0} if found.template is not None else {}  # who answers need not be original
    loaded = Model(made, task, task.generation | steady | options, folder, found.kind)
    loaded._chosen({})  # options that can't be are told now
    return loaded


def export(model: Model, folder: str | Path, to: str = "hf") -> str:
    """A folder of the model for other programs; in a line, what trying it showed.

    `hf` is Hugging Face's layout, which `load` reads, too.
    """
    if to not in convert.EXPORTS:
        raise Mistake(f"to={to} is not known; known are {', '.join(convert.EXPORTS)}")
    task, tokenizer = model.task, model.tokenizer
    other, module = task.target_tokenizer, model.model
    if any(p.is_cuda or p.dtype != torch.float32 for p in module.parameters()):
        module = copy.deepcopy(module).to("cpu", torch.float32)
    made = convert.Made(
        module,
        asdict(task.config),
        model.generation,
        None if tokenizer is None else tokenizer.inner.to_str(),
        getattr(task, "begin", None),
        getattr(task, "end", None if tokenizer is None else tokenizer.end),
        getattr(task, "ends", ()),
        None if other is None else other.inner.to_str(),
        getattr(task, "source_end", getattr(task, "end", None)),
        [ids for text in texts(task.config.name) if tokenizer and (ids := tokenizer.encode(text))],
        *((talk.text, talk.specials) if (talk := getattr(task, "template", None)) else ()),
    )
    return convert.EXPORTS[to](folder, made)


def texts(task: str) -> list[str]:
    """Some to try an exported model with: of the task's built-in data, or of another's."""
    here = Path(__file__).parent / "builtin"
    names = [f"{name}.tsv" for name in (task, "translate")]
    path = next(here / name for name in names if (here / name).is_file())
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.split("\t")[0] for line in lines[:TRIED]]


def ensemble(models: Sequence[Model]) -> Model:
    """Several models of one task as one, whose expectations are the mean of theirs."""
    first = models[0]
    classes = [getattr(model.task.config, "labels", None) for model in models]
    digests = [([t.digest for t in m.tokenizers], c) for m, c in zip(models, classes, strict=True)]
    for model, digest in zip(models, digests, strict=True):
        if type(model.task) is not type(first.task) or digest != digests[0]:
            raise Mistake(
                f"{model.folder}: another task, vocabulary or classes than {first.folder}; train it with "
                f"--set data.tokenizer={(first.folder or Path('RUN')) / TOKENIZER}"
            )
    module = Ensemble([model.model for model in models]).eval()
    other = first.tokenizers[1:]
    task = type(first.task)(first.task.config, first.tokenizer, module.config.context, *other)
    if isinstance(first.task, Write):
        task.first, task.ends = first.task.first, first.task.ends
        if first.task.template is not None:
            task.speak(first.task.template)
    return Model(module, task, first.generation, first.folder)


def load_tokenizers(folder: Path) -> list[Tokenizer]:
    """The tokenizer; and the target's own, if it has one."""
    names = [TOKENIZER] + ([TARGET_TOKENIZER] if (folder / TARGET_TOKENIZER).exists() else [])
    return [Tokenizer.load(folder / name) for name in names]


def fit_weights(model: nn.Module, weights: dict[str, torch.Tensor], path: Path) -> None:
    """Weights into the model; a name or shape that differs is named."""
    compare_weights(model, weights, path)
    model.load_state_dict(weights)


def compare_weights(model: nn.Module, weights: dict[str, torch.Tensor], path: Path) -> None:
    wanted, found = (
        {name: (t.shape, t.is_floating_point()) for name, t in some.items()}
        for some in (model.state_dict(), weights)
    )
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise Mistake(
                f"{path}: {name} does not fit the model; {CONFIG} and {WEIGHTS} don't belong together"
            )


def _json(path: Path) -> dict[str, Any]:
    if not path.parent.is_dir():
        raise Mistake(f"{path.parent}: no such model folder")
    found: dict[str, Any] = read_json(path)
    return found

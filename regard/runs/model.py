"""A trained model with its tokenizer and its task: the main class for users."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import errors
from regard.data.memory import encode_if_image, is_pillow_image, list_inputs, name_data
from regard.decode.generate import check_stops
from regard.decode.sampling import Sampling
from regard.errors import UserError
from regard.files.regular import list_matching
from regard.files.untrusted import read_json
from regard.runs.layout import BASE
from regard.runs.score import score_model
from regard.tasks import Answer, Request, Task
from regard.text.tokenizer import Tokenizer

MOST_SAMPLES = 4096  # answers to one input


def best_device() -> torch.device:
    for kind in ("cuda", "mps"):
        if getattr(torch, kind).is_available():
            return torch.device(kind)
    return torch.device("cpu")


def is_single(input: Any) -> bool:
    """Return whether this is one text, conversation or image, not several."""
    if isinstance(input, str | Path) or is_pillow_image(input):
        return True
    return any(isinstance(message, dict) for message in input)


class Model:
    """A model with its tokenizer and its task. `model.model` is the nn.Module inside."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        generation: dict[str, Any],
        folder: Path | None = None,
        kind: str | None = None,
    ):
        self.model, self.task, self.generation, self.folder = model, task, generation, folder
        self.kind = kind  # its name in MODELS
        self.dtype = "auto"  # the precision that it was loaded in
        self.step: int | None = None  # the step of its run, if it is not the final model
        self.adapter: Path | None = None  # that `load` has added

    def __repr__(self) -> str:
        weights, device = (
            sum(p.numel() for p in self.model.parameters()),
            next(self.model.parameters()).device,
        )
        where = "" if self.folder is None else f" {self.folder}"
        at = "" if self.step is None else f" at step {self.step:,}"
        return f"<Model{where}{at}: {self.kind}, {weights:,} weights, for {self.task.config.name}, {device}>"

    @property
    def weight_files(self) -> list[Path]:
        """The files that it was loaded from, as far as they are still there."""
        files: list[Path] = []
        folders = [path for path in (self.folder, self.adapter) if path is not None]
        for path in folders:  # the list grows
            files += [path] if path.is_file() else list_matching(path, "*.safetensors")
            if (path / BASE).is_file() and (base := Path(str(read_json(path / BASE).get("path")))).exists():
                folders.append(base)
        return files

    @property
    def tokenizer(self) -> Tokenizer:
        return self.task.tokenizer

    @property
    def tokenizers(self) -> list[Tokenizer]:
        """The tokenizer, or the source's and the target's if they differ; a model of images has none."""
        return [t for t in (self.task.tokenizer, self.task.target_tokenizer) if t is not None]

    def open_input(self, input: Any) -> Any:
        """Convert an input for the task. If this model reads images or recordings, a string is a path, and
        an image may be one of Pillow's, or the bytes of a file.

        Only for inputs from the user of this process. Inputs from clients of a server go to the task as
        they are, and tasks open no paths.
        """
        if self.task.reads == "text":
            return str(input) if isinstance(input, Path) else input
        source, target = self.task.split_target(input) if self.task.has_source else (input, None)
        if isinstance(source, str | Path):
            source = self.task.find_file(str(source))
        elif is_pillow_image(source) or isinstance(source, bytes):
            from regard.vision.decoding import FileBytes  # imports Pillow

            source = FileBytes("", "the input", data=encode_if_image(source))
        return source if target is None else (source, target)

    def stream(self, text: str | Sequence[str], **options: Any) -> Iterator[Any]:
        """Yield the answer piece by piece as it is generated; for several texts, a list of pieces at a time.

        Options are those of `Sampling`, `stop` (a string or several), `num_return_sequences` and
        the task's own: `prefix` is how a translation or a reply begins. With a chat template, a text may be a
        conversation: a list of {"role": ..., "content": ...}. Several texts may
        be a column of a data frame.
        """
        text = list_inputs(text)
        request = self.request(text, options)
        for pieces in self.task.stream(self.model, request):
            yield pieces[0] if is_single(text) and request.samples == 1 else pieces

    def ask(self, text: str | Sequence[str], **options: Any) -> Any:
        """Return the answer to a text or an image, or a list of answers to several of them (also in a data
        frame) or with `num_return_sequences`."""
        text = list_inputs(text)
        answers = self.answers(text, **options)
        if is_single(text) and len(answers[0]) == 1:
            return answers[0][0].text
        return [answer.text for several in answers for answer in several]

    def answers(self, text: str | Sequence[str], **options: Any) -> list[list[Answer]]:
        """Return answers with their scores, if they have any: `num_return_sequences` for each text."""
        return self.task.answers(self.model, self.request(text, options))

    def embed(self, texts: str | Sequence[str]) -> torch.Tensor:
        """Return a vector for each text, (texts, dim), from a model that embeds texts."""
        return self.task.vectors(self.model, [texts] if isinstance(texts, str) else texts)

    def words(self) -> "Model":
        """Return this model as a model of word vectors, made of its embeddings of words."""
        from regard.tasks import WordsTask, WordsTaskConfig
        from regard.text.vectors import embeddings

        embeddings(self.model)  # raises an error if it has none
        task = WordsTask(WordsTaskConfig(name="words"), self.tokenizer, 1)
        words = Model(self.model, task, dict(task.generation), self.folder, self.kind)
        words.adapter = self.adapter
        return words

    def request(self, text: Any, options: dict[str, Any]) -> Request:
        """Make a request of texts and options of `ask`, checked; other options are the model's defaults."""
        text = list_inputs(text)
        options = self.generation | {k: v for k, v in options.items() if v is not None}
        stop = options.pop("stop", ())
        samples = options.pop("num_return_sequences", self.task.default_samples(options))
        own = {name: options.pop(name) for name in self.task.extra_options if name in options}
        known = [f.name for f in fields(Sampling)]
        for name in options:
            if name not in known:
                names = [*known, "stop", "num_return_sequences", *self.task.extra_options]
                raise UserError(f"{name} is not an option; {errors.suggest(name, names)}")
        if not isinstance(samples, int) or not 1 <= samples <= MOST_SAMPLES:
            raise UserError(f"num_return_sequences={samples}: give a whole number from 1 to {MOST_SAMPLES}")
        stop = [stop] if isinstance(stop, str) else stop
        check_stops(stop)
        return Request(
            [self.open_input(each) for each in ([text] if is_single(text) else text)],
            Sampling(**options),
            stop,
            samples,
            own,
        )

    def score(
        self,
        *paths: Any,
        against: "Model | None" = None,
        by_position: bool = False,
        details: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        """Return scores on held-out data, all of it: paths or rows as `train` takes them; and whether the
        difference from `against`, another model, is significant.

        For tasks whose answers are compared with references, options are those of `ask`. For a model that
        writes, `by_position` adds `loss_by_position`: the mean loss after one token of context, after two,
        ... `details` adds `rows` or `tokens`, how many were scored; for a model that chooses a class, or a
        tag for each word, also `classes`, the scores of each, and `confusion`: how many of each class (a
        list) got which class.
        """
        return score_model(self, [name_data(path) for path in paths], against, by_position, details, options)

"""The interface of a task for the trainer, `ask`, `score`, traces, the page and the server."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from regard.data import Corpus, in_length_order
from regard.decode.sampling import Sampling
from regard.describe.texts import Text
from regard.describe.values import SOFTMAX, Description
from regard.errors import UserError
from regard.tasks.answers import Answer
from regard.tasks.batches import Batch, Bucketed, Samples
from regard.tasks.constant import Constant
from regard.tasks.guessing import Guess
from regard.tasks.reading import Reading, recorded_call
from regard.tasks.request import DataRequest, Prompt, Request
from regard.text.chat_template import Template
from regard.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from regard.vision.decoding import ImageSource

ConfigT = TypeVar("ConfigT")  # the settings in a recipe's [task]
DataT = TypeVar("DataT")  # the data that it is trained and evaluated on
ModelT = TypeVar("ModelT", bound=nn.Module)
Gather = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor, slice]]
PROBABILITIES = Text(
    "Probabilities",
    "Softmax: the scores become probabilities that sum to 1.",
    "p_i = e^{z_i} / Σ_j e^{z_j}",
)


class Task(ABC, Generic[ConfigT, DataT, ModelT]):
    """A task states what it needs and what it can do; methods have the usual behaviour as their default.

    A task is added as one file with its config and its class, and a line in `regard/tasks/__init__.py`.
    """

    # What it needs
    kinds: ClassVar[tuple[str, ...]]  # kinds of models that can do it, as in MODELS, and others `like` them
    specials: ClassVar[tuple[str, ...]]  # tokens that its tokenizer must have
    data_config: ClassVar[type[Any]]  # the settings in a recipe's [data]
    builtin: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]]  # files to train and evaluate on by default
    data_settings: ClassVar[tuple[str, ...]] = ()  # settings that follow from the data, and can't be set
    has_class_folders: ClassVar[bool] = False  # its folders are named after classes
    has_media: ClassVar[bool] = False  # it reads images or recordings, which a table may name
    inherits: ClassVar[tuple[str, ...]] = ()  # settings taken over from the model that it starts from
    for_writers: ClassVar[str | None] = None  # the task that replaces it for models that continue texts
    measures_base: ClassVar[bool] = False  # the model that it starts from is evaluated, too
    static_shapes: ClassVar[bool] = False  # all batches have one shape, so that compiling pays
    few_shapes: ClassVar[bool] = False  # or `pad_to_bucket` reduces them to a few shapes
    divisible_batches: ClassVar[bool] = True  # the loss of a batch is the sum of the losses of its parts
    # What it can learn from a teacher: the answers to its sources, or probabilities
    learns_from: ClassVar[Literal["answers", "probabilities"] | None] = None
    files: ClassVar[tuple[str, ...]] = ()  # that `finish` writes and answers need: exports have them, too
    best_metric: str | None = None  # the highest is best; None: the lowest loss is

    # What it can do
    reads: ClassVar[Literal["text", "image", "audio"]] = "text"  # inputs other than texts become pixels
    generates: ClassVar[bool] = False  # it writes tokens one after another
    has_source: ClassVar[bool] = False  # its output answers a source, which an encoder reads
    streams: ClassVar[bool] = False  # the tokens that it writes are the answer, piece by piece
    embeds: ClassVar[bool] = False  # it has a vector for each text: `vectors`
    predicts: ClassVar[Literal["next", "fill", "place"]] = "next"  # the meaning of a row of its logits
    has_references: ClassVar[bool] = False  # answers are compared with references: `score_answers`
    class_names: Sequence[str] = ()  # if answers are one of these
    class_weights: Constant | None = None
    scored_unit: ClassVar[str] = "tokens"  # the unit that `len` counts in the data that it is scored on
    shows_scores: ClassVar[bool] = False  # answers are shown with their scores, if they have any
    takes_messages: ClassVar[bool] = False  # a conversation is messages with roles, for a chat template
    converses: bool = False  # it remembers what was said
    empty_answer: ClassVar[str] = ""  # shown instead of an empty answer
    generation: ClassVar[dict[str, Any]] = {}  # the usual options of `ask`
    extra_options: ClassVar[tuple[str, ...]] = ()  # options of `ask` that only this task has
    ask_batch_size: ClassVar[int] = 512  # inputs from a pipe answered together: enough to sort them by length
    example: ClassVar[str] = "The quick brown fox jumps over the lazy dog."  # an input to start with

    # The tokens around its inputs and outputs
    begin: int | None = None  # before a target
    end: int | None = None  # after it
    ends: tuple[int, ...] = ()  # if any of several tokens ends an answer
    source_end: int | None = None  # after a source
    template: Template | None = None  # how a conversation becomes a text

    folder: Path | None = None  # that it was loaded from

    gather: Gather | None = None  # the trainer's: rows of all processes, for losses that need the whole batch

    def __init__(
        self,
        config: ConfigT,
        tokenizer: Tokenizer | None,  # None if it reads images and writes nothing
        context: int,
        target_tokenizer: Tokenizer | None = None,  # if the output has its own vocabulary
    ):
        self.config, self.context, self.target_tokenizer = config, context, target_tokenizer
        self.tokenizer: Tokenizer = tokenizer  # type: ignore[assignment]
        self.setup()

    def setup(self) -> None:
        """Set attributes that follow from the config, the tokenizer and the context."""

    def with_context(self, context: int) -> Self:
        """Return the same task for a model with another context."""
        return type(self)(self.config, self.tokenizer, context, self.target_tokenizer)

    @property
    def output_tokenizer(self) -> Tokenizer:
        """The tokenizer of the output."""
        return self.target_tokenizer or self.tokenizer

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer."""
        return self.ends or (() if self.end is None else (self.end,))

    @property
    def starts(self) -> Sequence[int]:
        """The tokens before every text, if the model was trained with them."""
        return ()

    # Data

    @classmethod
    def check_model(cls, config: ConfigT, kind: str) -> None:
        """Raise UserError if these settings don't suit this kind of model."""

    @classmethod
    @abstractmethod
    def read(cls, request: DataRequest[ConfigT]) -> Corpus:
        """Read the data to train and evaluate on, with the tokenizers and settings that follow from them."""

    @abstractmethod
    def held_out(self, paths: Sequence[str]) -> DataT:
        """Read data to score on."""

    def lengths(self, data: Any) -> tuple[np.ndarray, np.ndarray]:
        """The lengths of both sides of every row; twice the same if it has only one."""
        return data.ids.lengths, data.ids.lengths

    def samples(self, data: DataT, seed: int, rows: int, tokens: int | None) -> Samples:
        """Rows by step, in an order that the seed decides."""
        return Bucketed(data, self.lengths(data), seed, rows, tokens)

    def batch(self, samples: Any, rows: np.ndarray) -> Batch:
        """The batch of these rows, to train on."""
        return self.collate(samples.data, rows)

    def pad_to_bucket(self, batch: Batch) -> Batch:
        """Add padding to the batch, so that there are only a few shapes."""
        raise NotImplementedError

    def collate(self, data: Any, rows: Any) -> Batch:
        """Collate rows of the data into a batch."""
        raise NotImplementedError

    def evaluation_batches(self, data: DataT, tokens: int) -> Iterator[Batch]:
        """All of the data once, in batches of about `tokens` tokens."""
        for rows in in_length_order(*self.lengths(data), tokens):
            yield self.collate(data, rows)

    def batch_length(self, batch: Batch) -> int:
        """The size of a batch in the unit of `len`."""
        return len(batch[0])

    def count_read(self, batch: Batch) -> dict[str, float]:
        """Count what the model reads in a batch: the task's own unit, if it has one, and the tokens."""
        return {"tokens": int(batch[1].sum())}  # the tokens of the attention mask

    def learn_answers(self, data: DataT, answers: Sequence[str]) -> tuple[DataT, int]:
        """If it learns from a teacher's answers: return the data with these answers as targets, and
        how many were replaced."""
        raise NotImplementedError

    def predictions(self, model: ModelT, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """If it learns from probabilities: the logits of all predictions (..., C), and which count."""
        raise NotImplementedError

    # Training

    def weights_on(self, device: torch.device) -> Tensor | None:
        """The weight of each class in the loss, if classes have weights."""
        return None if self.class_weights is None else self.class_weights.on(device)

    @classmethod
    def add_head(cls, model: nn.Module, config: ConfigT) -> nn.Module:
        """Add the task's head to the model, if the task has one."""
        return model

    @classmethod
    def init_from(cls, model: nn.Module, data: Any) -> None:
        """Load weights that a new model starts from, if there are any."""

    @abstractmethod
    def loss(self, model: ModelT, *batch: Tensor) -> Tensor:
        """The sum of the losses over all predictions of a batch."""

    def token_losses(self, model: ModelT, *batch: Tensor) -> Tensor:
        """The loss of every prediction of a batch (B, T), for a task that predicts running text."""
        raise UserError(f"the task {self.config.name} has no loss for each position; only the task write has")  # type: ignore[attr-defined]

    def measure(self, model: ModelT, *batch: Tensor) -> Tensor:
        """The sums over a batch that `metrics` needs: the loss, and more in some tasks."""
        return self.loss(model, *batch)

    @abstractmethod
    def metrics(self, loss: float, count: int, data: DataT, *more: float) -> dict[str, float]:
        """Metrics from the sums over `count` predictions."""

    def remark(self, *more: float) -> str | None:
        """Describe a problem that the sums of an evaluation show, if any, and what to do about it."""
        return None

    def guess(self, model: ModelT, batches: Iterable[Batch], data: DataT) -> Guess | None:
        """The loss of the best constant answer to these batches; None if it is not meaningful."""
        return None

    @abstractmethod
    def preview(self, model: ModelT, data: DataT, seed: int) -> str:
        """A few inputs and the model's answers, shown while training."""

    def finish(
        self, folder: Path, weights: Mapping[str, Tensor], data: DataT, like: Path | None = None
    ) -> None:
        """Write the files that a finished run has besides the model; new ones get the mode of `like`."""

    # Answers

    @abstractmethod
    def answers(self, model: ModelT, request: Request) -> list[list[Answer]]:
        """`request.samples` answers to each input, or fewer."""

    def stream(self, model: ModelT, request: Request) -> Iterator[list[str]]:
        """Yield the pieces of all answers as they are generated, or all at once."""
        yield [answer.text for several in self.answers(model, request) for answer in several]

    def join_arguments(self, texts: Sequence[str]) -> Sequence[str]:
        """Turn the texts of a command line into inputs: each text, or several of them joined."""
        return texts

    def default_samples(self, options: dict[str, Any]) -> int:
        """The default number of answers to each input."""
        return 1

    def conversation(self, turns: Sequence[str]) -> Any:
        """Join the turns of a conversation, the user's first and last, into one input: a line each."""
        return "\n".join(turn.replace("\n", " ") for turn in turns)

    def vectors(self, model: ModelT, texts: Sequence[str | Sequence[int]]) -> Tensor:
        """A vector for each text or its token ids, if the task `embeds`."""
        raise UserError("this model's task does not embed texts; train one with the recipe embed")

    @property
    def text_limit(self) -> int:
        """The largest number of tokens of a text that are read."""
        return self.context

    def count_tokens(self, input: Any) -> tuple[int, int]:
        """The number of tokens of an input that are read, and of all its tokens."""
        return 0, 0

    def may_be_long(self, input: Any) -> bool:
        """Return whether an input is a text that may be too long to be read as a whole."""
        return isinstance(input, str) and self.reads == "text" and len(input.encode()) > self.text_limit // 4

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images that it reads."""
        raise NotImplementedError

    def find_file(self, path: str) -> "ImageSource":
        """The file at a path of this machine, if the task does not read texts."""
        from regard.data.images import find_image  # imports Pillow

        return find_image(path)

    def pixels(self, input: "ImageSource | Tensor") -> Tensor:
        """The pixels of an image for the model, (C, H, W) in bytes."""
        from regard.data.images import read_pixels

        return read_pixels(input, self.image_shape)

    def example_input(self) -> str | Tensor:
        """An example to ask by default."""
        return self.example if self.reads == "text" else torch.full(self.image_shape, 128, dtype=torch.uint8)

    def score(self, model: ModelT, data: DataT) -> dict[str, float] | None:
        """Scores that are not sums over batches; they replace all others."""
        return None

    def count_scored(self, data: Any) -> int:
        """The number of rows, or tokens, of the data that are scored."""
        return len(data)

    def score_answers(self, answers: Sequence[str], references: Sequence[Any]) -> dict[str, Any]:
        """Scores of answers against references, if the task `has_references`."""
        raise NotImplementedError

    @property
    def counted_classes(self) -> Sequence[str]:
        """The classes of the confusion matrix that `score` makes."""
        return self.class_names

    def classes_of(self, answer: str) -> list[str]:
        """The classes in an answer or a reference."""
        return [answer]

    def rate_answer(self, answer: str, reference: Any) -> float:
        """Rate an answer, to compare it with another one, if the task does not write."""
        return float(answer == reference)

    # Prompts, if a task `generates`

    def prompts(self, input: Any, as_user: bool = False) -> list[Prompt]:
        """The prompts of an input, one for each part that is answered separately.

        With `as_user` and a chat template, a text is a user's message.
        """
        raise NotImplementedError

    def prompt_of_ids(self, ids: list[int]) -> Prompt:
        """The prompt of an input that is already token ids."""
        raise NotImplementedError

    def adopt_prompt_format(
        self, begin: int | None, ends: Sequence[int], first: list[int] | None, template: Template | None
    ) -> None:
        """Take over the prompt format of another library's folder: the token before a target, the tokens that
        end an answer, the tokens before every text, and the chat template."""
        if begin is not None:
            self.begin = begin

    def continue_from(self, base: "Task") -> None:
        """Take over the prompt format of the task of the model that training starts from."""

    # For traces and views: an input's forward call and its result

    def reading(self, model: ModelT, input: Any) -> Reading:
        """What the model reads when it is asked, if that is one forward call."""
        args, _ = recorded_call(model, lambda: self.answers(model, Request([input])))
        ids, (read, count) = args[0][0].tolist(), self.count_tokens(input)
        tokens = {"text": self.tokenizer.tokens(ids)}
        return Reading({"text": ids}, tokens, lambda: model(*args), unread=count - read)

    def run_once(self, model: ModelT, text: str) -> None:
        """Run the model on a text as when it is asked, so that its values can be recorded."""
        self.answers(model, Request([text]))

    def outcome(self, result: Tensor, reading: Reading) -> dict[str, Tensor]:
        """The logits of one input and their probabilities, from a forward call's result without its batch
        dimension."""
        return {"logits": result, "probabilities": upcast(result).softmax(-1)}

    def describe(self, d: Description, model: ModelT, dims: int) -> None:
        """Note what the task computes before and after the model; `dims` are those of the logits."""
        d.see("probabilities", {"does": "softmax", "x": "logits"}, PROBABILITIES, box=SOFTMAX)

    def answer_rows(self, ids: Sequence[int], count: int) -> list[int]:
        """Which of `count` rows of logits are the answer."""
        return list(range(count))

    def cross_attention(self, model: ModelT, input: Any, answer: str) -> tuple[Tensor, list[str], list[str]]:
        """How each token of an answer attends to its source."""
        raise UserError("this model answers without a source; there is no attention between the two")

    def split_target(self, input: Any) -> tuple[Any, str | None]:
        """Split an input into a source and a target, if there is one: a pair, or a text with a tab."""
        if isinstance(input, str):
            input = tuple(input.split("\t", 1))
        return (*input, None)[:2] if isinstance(input, tuple | list) else (input, None)

    def source_prompt(self, model: ModelT, source: Any) -> Prompt:
        """The prompt of a source that is answered as a whole."""
        prompts = self.prompts(source)
        if len(prompts) != 1:
            raise UserError(f"the text is read in {len(prompts)} parts, one after another; give one sentence")
        return prompts[0]

    def encode_target(self, prompt: Prompt, target: str) -> list[int]:
        """Encode a target as the model writes it, with its end."""
        raise NotImplementedError

    def write_target(self, model: ModelT, prompt: Prompt, sampling: Sampling) -> list[int]:
        """The target that the model writes itself, with its end."""
        raise NotImplementedError


def upcast(x: Tensor) -> Tensor:
    """Convert to float32 or wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))

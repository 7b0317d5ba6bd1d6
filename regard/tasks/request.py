"""Requests to a task: what to answer, and what to learn from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from regard.data.encoding import tokenizer_for
from regard.decode.prompts import Source
from regard.decode.sampling import Sampling
from regard.text.tokenizer import Tokenizer

ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True)
class Request:
    """Inputs, and options of the answers."""

    inputs: Sequence[Any]  # texts, conversations, or images: an `ImageSource` or pixels, never a path
    sampling: Sampling = field(default_factory=Sampling)
    stop: Sequence[str] = ()  # an answer ends before the first of these
    samples: int = 1  # answers to each input
    options: Mapping[str, Any] = field(default_factory=dict)  # the task's own, see `Task.extra_options`
    cached: bool = True  # keep the keys and values of earlier tokens


@dataclass(frozen=True)
class DataRequest(Generic[ConfigT]):
    """Files to learn from, and the settings needed to read them."""

    paths: Sequence[str]
    valid: Sequence[str]  # files to evaluate on; none: a part of the others is held out
    data: Any  # the [data] section: an instance of `Task.data_config`
    config: ConfigT  # the [task] section
    context: int  # of the model
    tokenizers: Sequence[Tokenizer] = ()  # of an earlier run, to use again
    base: Any = None  # the task of the model that training starts from

    def tokenizer(self, texts: Iterable[tuple[bool, str]], specials: Sequence[str]) -> Tokenizer:
        """That of an earlier run, or one for these texts, see `tokenizer_for`."""
        return self.tokenizers[0] if self.tokenizers else tokenizer_for(texts, self.data, specials)


class Prompt(NamedTuple):
    """The input of a model that writes."""

    ids: list[int]  # where the answer begins: a text to continue, or the first token of a target
    source: Source | None = None  # what an encoder reads: token ids, or pixels

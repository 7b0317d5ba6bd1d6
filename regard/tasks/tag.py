"""Tagging: a label for every word, such as its part in a name. Devlin et al. 2019, section 5.3.

Shapes: B batch, T tokens, C classes.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from unicodedata import category

import numpy as np
import torch
from torch import Tensor, nn

from regard.data import Corpus, DataConfig, in_length_order
from regard.data.labels import class_names
from regard.data.ragged import Ragged
from regard.data.splitting import hold_out_groups
from regard.data.tags import TaggedSentence, read_tags
from regard.describe.watch import evaluating
from regard.errors import UserError
from regard.models import ModelWithHead
from regard.tasks import metrics as scoring
from regard.tasks.answers import Answer
from regard.tasks.batches import (
    TOKENS_AT_ONCE,
    Batch,
    encode_held_out,
    fingerprint,
    pad_rows,
    ragged,
    targets,
)
from regard.tasks.constant import Constant
from regard.tasks.fill import END, FIRST, SPECIALS, UNKNOWN
from regard.tasks.guessing import Guess, guess_targets
from regard.tasks.heads import add_head, class_weights
from regard.tasks.loss import IGNORED, cross_entropy
from regard.tasks.reading import Reading
from regard.tasks.request import DataRequest, Request
from regard.tasks.task import Task

WORD = re.compile(r"w+(?:-w+)*|[^ ]")  # matches the kinds of a text's characters, see `split_words`
INNER = set("-'’.,")  # part of a word between its letters or digits: Ruiz-Hart, don't, 3.5

Window = tuple[list[int], list[int]]  # ids, and where each word begins


@dataclass(frozen=True, kw_only=True)
class TagConfig:
    name: Literal["tag"]
    labels: tuple[str, ...] | None = None  # the tags; None: as found in the data
    balanced: bool = False  # rare tags count as much as frequent ones
    weights: tuple[float, ...] | None = None  # of each tag, if `balanced`; None: as found in the data


def split_words(text: str) -> list[str]:
    """Split a text into words at white space and punctuation; every other mark is a separate word."""

    def kind(c: str) -> str:
        if c.isspace():
            return " "
        return "-" if c in INNER else "w" if c == "_" or category(c)[0] in "LMNC" else "."

    return [text[m.start() : m.end()] for m in WORD.finditer("".join(map(kind, text)))]


def format_tags(words: Sequence[str], tags: Sequence[str]) -> str:
    """Anna/B-PER lives/O in/O Bonn/B-LOC"""
    return " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))


def parse_tags(text: str) -> list[str]:
    """Parse the tags that `format_tags` wrote: a word may have slashes or spaces, its tag has none."""
    return [word.rpartition("/")[2] for word in text.split(" ") if "/" in word]


class Examples:
    """Sentences as windows of token ids, with a tag's number where a word begins."""

    def __init__(self, sentences: Sequence[TaggedSentence], ids: Ragged, labels: Ragged):
        self.ids, self.labels = ids, labels
        self.sources = [words for words, _ in sentences]
        self.targets = [format_tags(words, tags) for words, tags in sentences]

    def __len__(self) -> int:
        return sum(map(len, self.sources))

    def describe(self) -> str:
        return f"{len(self):,} words"

    def fingerprint(self) -> str:
        return fingerprint((self.ids.ids, self.ids.lengths, self.labels.ids))


class Tag(Task[TagConfig, Examples, ModelWithHead]):
    kinds = ("bert", "gpt")  # a GPT reads only the text before a word
    specials = SPECIALS
    data_config = DataConfig
    builtin = ("tag.conll",), ("tag.valid.conll",)
    has_references = True
    data_settings = ("labels", "weights")

    def setup(self) -> None:
        tokenizer, end = self.tokenizer, self.tokenizer.id(END)
        first, last = tokenizer.id(FIRST), tokenizer.end if end is None else end
        self.before, self.after = ([] if id is None else [id] for id in (first, last))
        self.room = self.context - len(self.before) - len(self.after)
        if self.room < 1:
            raise UserError(f"model.context={self.context} has no room for a word; make it larger")
        unknown = [tokenizer.id(name) for name in (UNKNOWN, "<unk>")]
        self.unknown = next((id for id in unknown if id is not None), 0)  # in place of an invisible word
        self.of_entities = all(scoring.TAG.fullmatch(name) for name in self.config.labels or ())
        self.best_metric = "f1" if self.of_entities else "accuracy"
        self.class_weights = Constant.of(self.config.weights)

    # Data

    @classmethod
    def read(cls, request: DataRequest[TagConfig]) -> Corpus:
        sentences = read_tags(request.paths)
        if request.valid:
            train, held = sentences, read_tags(request.valid)
        else:
            out = hold_out_groups([tuple(words) for words, _ in sentences], request.data.holdout)
            train, held = ([sentences[i] for i in np.flatnonzero(out == side)] for side in (False, True))
        sides = [(out, " ".join(s[0])) for out, part in ((False, train), (True, held)) for s in part]
        tokenizer = request.tokenizer(sides, cls.specials)
        # a rare tag may be only in the held-out part; its name may be known
        names = request.config.labels or class_names(tag for _, tags in train + held for tag in tags)
        for name in names:
            if "/" in name:
                raise UserError(
                    f'the tag "{name}" has a slash, which separates a word from its tag; write it another way'
                )
        task = cls(TagConfig(name="tag", labels=tuple(names)), tokenizer, request.context)
        training, notes = task.examples(train)
        settings: dict[str, Any] = {"labels": list(names)}
        if request.config.balanced:
            numbers = training.labels.ids[training.labels.ids != IGNORED]
            settings["weights"] = class_weights(np.bincount(numbers, minlength=len(names)))
        valid, more = encode_held_out(task.examples, held)
        return Corpus(training, valid, tokenizer, task_settings=settings, notes=notes + more)

    def examples(self, sentences: Sequence[TaggedSentence]) -> tuple[Examples, list[str]]:
        """Encode sentences and their tags; notes say how many sentences take several windows."""
        numbers = {name: number for number, name in enumerate(self.config.labels or ())}
        rows, labels, cut = [], [], 0
        for number, ((words, tags), windows) in enumerate(
            zip(sentences, self.windows([words for words, _ in sentences]), strict=True), 1
        ):
            for tag in tags:
                if tag not in numbers:
                    begun, known = " ".join(words)[:40], ", ".join(list(numbers)[:20])
                    raise UserError(
                        f'sentence {number} ({begun}…): the tag "{tag}" is not one of those to learn: {known}'
                    )
            coming = iter(tags)
            for ids, begins in windows:
                row = [IGNORED] * len(ids)
                for i in begins:
                    row[i] = numbers[next(coming)]
                rows.append(ids)
                labels.append(row)
            cut += len(windows) > 1
        notes = [f"{cut:,} of {len(sentences):,} sentences are longer than {self.context} tokens "
                 "(model.context) and are read in parts"] if cut else []  # fmt: skip
        return Examples(sentences, ragged(rows), ragged(labels)), notes

    def windows(self, sentences: Sequence[Sequence[str]]) -> list[list[Window]]:
        """Split every sentence into one or more windows, so that each word is in one of them."""
        # A word is encoded as inside a text, with its space; the first one has none.
        spaced = [[(" " if i else "") + word for i, word in enumerate(words)] for words in sentences]
        pieces = self.pieces(list(dict.fromkeys(word for words in spaced for word in words)))
        result = []
        for words in spaced:
            windows: list[Window] = []
            for ids, at in (pieces[word] for word in words):
                if not windows or len(windows[-1][0]) + len(ids) > len(self.before) + self.room:
                    windows.append((list(self.before), []))
                row, begins = windows[-1]
                begins.append(len(row) + at)
                row += ids
            for row, _ in windows:
                row += self.after
            result.append(windows)
        return result

    def pieces(self, words: Sequence[str]) -> dict[str, tuple[list[int], int]]:
        """The ids of each word, as many as fit, and which of them begins the word itself: if tokens are
        characters, the one after the space."""
        result = {}
        for word, (ids, offsets) in zip(words, self.tokenizer.encode_offsets(words), strict=True):
            space = word.startswith(" ")
            begin = next((i for i, (_, stop) in enumerate(offsets) if stop > space), len(ids))
            if begin == len(ids):  # the tokenizer drops the whole word
                ids.append(self.unknown)
            if len(ids) > self.room:
                ids, begin = ids[begin : begin + self.room], 0
            result[word] = ids, begin
        return result

    def held_out(self, paths: Sequence[str]) -> Examples:
        return self.examples(read_tags(paths))[0]

    def collate(self, data: Examples, rows: np.ndarray) -> Batch:
        """ids and their attention mask (B, T); the tag where a word begins (B, T)."""
        ids, attention_mask = pad_rows(data.ids, rows)
        labels, _ = pad_rows(data.labels, rows, IGNORED)
        return tuple(torch.from_numpy(x) for x in (ids, attention_mask, labels))

    def batch_length(self, batch: Batch) -> int:
        return targets(batch)

    # Training

    @classmethod
    def add_head(cls, model: nn.Module, config: TagConfig) -> ModelWithHead:
        return add_head(model, len(config.labels or (0,)), each=True)

    def loss(self, model: ModelWithHead, *batch: Tensor) -> Tensor:
        """The sum of cross-entropies in nats, by the tags' weights."""
        ids, attention_mask, labels = batch
        weights = self.weights_on(labels.device)
        weights = None if weights is None else weights[labels.clamp(min=0)]  # (B, T)
        return cross_entropy(model(ids, attention_mask), None, labels, weights=weights)

    def measure(self, model: ModelWithHead, *batch: Tensor) -> Tensor:
        """The loss, how many tags were right; and how many entities were right, predicted, and true."""
        ids, attention_mask, labels = batch
        logits = model(ids, attention_mask)  # (B, T, C)
        predicted, loss = logits.argmax(-1), cross_entropy(logits, None, labels)
        sums = torch.stack([loss.double(), (predicted == labels).sum().double()])
        if not self.of_entities:
            return sums
        names, words = self.config.labels or (), (labels != IGNORED).cpu()
        sides = (
            [[names[i] for i in row[at].tolist()] for row, at in zip(x.cpu(), words, strict=True)]
            for x in (predicted, labels)
        )
        return torch.cat([sums, sums.new_tensor(scoring.entity_counts(*sides))])

    def metrics(self, loss: float, count: int, data: Examples, *more: float) -> dict[str, float]:
        right, *entities = more
        metrics = {"loss": loss / max(1, count), "accuracy": right / max(1, count)}
        if not self.of_entities:
            return metrics
        same, predicted, true = entities
        return metrics | {"f1": 2 * same / max(1, predicted + true)}  # join the parts of long sentences

    def guess(self, model: ModelWithHead, batches: Iterable[Batch], data: Examples) -> Guess:
        return guess_targets(batches, len(self.config.labels or ()))

    def preview(self, model: ModelWithHead, data: Examples, seed: int) -> str:
        return "\n".join(answer.text for (answer,) in self.answers(model, Request(data.sources[:3])))

    # Answers

    @torch.inference_mode()
    def tags(self, model: ModelWithHead, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """The likeliest tag of every word."""
        windows = self.windows(sentences)
        flat = [window for several in windows for window in several]
        names, tags = self.config.labels or (), [list[str]() for _ in flat]
        ids, device = ragged([ids for ids, _ in flat]), next(model.parameters()).device
        with evaluating(model):
            for rows in in_length_order(ids.lengths, ids.lengths, TOKENS_AT_ONCE) if flat else ():
                batch = (torch.from_numpy(x).to(device) for x in pad_rows(ids, rows))
                for row, best in zip(rows.tolist(), model(*batch).argmax(-1).tolist(), strict=True):
                    tags[row] = [names[best[i]] for i in flat[row][1]]
        coming = iter(tags)
        return [[tag for _ in several for tag in next(coming)] for several in windows]

    def answers(self, model: ModelWithHead, request: Request) -> list[list[Answer]]:
        """Each text's words with their tags; an input that is a list is already split into words."""
        if request.samples > 1:
            raise UserError(
                f"num_return_sequences={request.samples}: a text is tagged in one way only; leave it out"
            )
        sentences = [split_words(text) if isinstance(text, str) else text for text in request.inputs]
        tags = self.tags(model, sentences)
        answers = []
        for words, row in zip(sentences, tags, strict=True):
            value = [{"word": word, "tag": tag} for word, tag in zip(words, row, strict=True)]
            answers.append([Answer(format_tags(words, row), value=value)])
        return answers

    def score_answers(self, answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Score whole entities, if the tags are parts of entities."""
        if not self.of_entities:
            return {}
        return scoring.entity_f1(*([parse_tags(text) for text in side] for side in (answers, references)))

    @property
    def counted_classes(self) -> Sequence[str]:
        return self.config.labels or ()

    def classes_of(self, answer: str) -> list[str]:
        return parse_tags(answer)

    # Looking on

    def reading(self, model: ModelWithHead, input: str) -> Reading:
        reading = super().reading(model, input)
        if self.config.labels:
            reading.tokens["label"] = list(self.config.labels)
        return reading

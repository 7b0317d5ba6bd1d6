"""Tagging: a label for every word, such as the part that it has in a name. Devlin et al. 2019, section 5.3.

Shapes: B batch, T tokens, C classes.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from unicodedata import category

import numpy as np
import torch
from torch import Tensor, nn

from regard import scoring
from regard.data import Corpus, DataConfig, in_length_order
from regard.data.encoding import tokenizer_for
from regard.data.labels import Tagged, classes, tagged
from regard.data.pairs import Ragged
from regard.errors import Mistake
from regard.generate import Sampling
from regard.loss import IGNORED, cross_entropy
from regard.models import Labelled
from regard.text import Tokenizer

from .answers import Answer
from .batches import Batch, padded, targets
from .fill import END, FIRST, SPECIALS, UNKNOWN
from .task import Task

T = TypeVar("T")
TOKENS_AT_ONCE = 8192
WORD = re.compile(r"w+(?:-w+)*|[^ ]")  # over the kinds of a text's characters, see `words_of`
INNER = set("-'’.,")  # part of a word between its letters or digits: Ruiz-Hart, don't, 3.5

Window = tuple[list[int], list[int]]  # ids, and where each word in it begins


@dataclass(frozen=True, kw_only=True)
class TagConfig:
    name: Literal["tag"]
    labels: tuple[str, ...] | None = None  # the tags, as found in the data


def words_of(text: str) -> list[str]:
    """A text's words as white space and punctuation part them; every other mark is a word of its own."""

    def kind(c: str) -> str:
        if c.isspace():
            return " "
        return "-" if c in INNER else "w" if c == "_" or category(c)[0] in "LMNC" else "."

    return [text[m.start() : m.end()] for m in WORD.finditer("".join(map(kind, text)))]


def written(words: Sequence[str], tags: Sequence[str]) -> str:
    """Anna/B-PER lives/O in/O Bonn/B-LOC"""
    return " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))


def tags_of(text: str) -> list[str]:
    """The tags of what `written` wrote: a word may have slashes, its tag has none."""
    return [word.rpartition("/")[2] for word in text.split(" ") if word]


def headed(model: Any, outputs: int) -> nn.Module:
    """The model with a head for each token."""
    if isinstance(model, Labelled):
        model = model.model  # another head's place
    made = Labelled(model, outputs, each=True, dropout=model.config.dropout)
    made.model.requires_grad_(True)
    for part in made.unused:  # by its own heads: what has no gradient would keep processes waiting
        part.requires_grad_(False)
    return made


def parted(rows: Sequence[T], holdout: float) -> tuple[list[T], list[T]]:
    """To learn from and to measure on: every tenth, for a holdout of 0.1; of few, the last one."""
    if not holdout or len(rows) < 2:
        return list(rows), []
    every = min(max(2, round(1 / holdout)), len(rows))
    return [row for i, row in enumerate(rows, 1) if i % every], list(rows[every - 1 :: every])


def joined(rows: Sequence[Sequence[Any]], dtype: type) -> Ragged:
    flat: np.ndarray = np.array([x for row in rows for x in row], dtype=dtype)
    return Ragged(flat, np.array([len(row) for row in rows], dtype=np.int64))


class Examples:
    """Sentences as windows of token ids, with a tag's number where a word begins."""

    def __init__(self, sentences: Sequence[Tagged], ids: Ragged, wanted: Ragged):
        self.ids, self.wanted = ids, wanted
        self.sources = [words for words, _ in sentences]
        self.targets = [written(words, tags) for words, tags in sentences]

    def __len__(self) -> int:
        return sum(map(len, self.sources))

    def describe(self) -> str:
        return f"{len(self):,} words"

    def fingerprint(self) -> str:
        sha = hashlib.sha256()
        for array in (self.ids.ids, self.ids.lengths, self.wanted.ids):
            sha.update(np.ascontiguousarray(array).tobytes())
        return sha.hexdigest()


class Tag(Task):
    kinds = ("bert", "gpt")  # of which a GPT knows only what stands before a word
    specials = SPECIALS
    data = DataConfig
    builtin = ("tag.conll",), ("tag.valid.conll",)
    compares = True

    def __init__(self, config: TagConfig, tokenizer: Tokenizer, context: int, target: None = None):
        self.config, self.tokenizer, self.context = config, tokenizer, context
        end = tokenizer.id(END)
        first, last = tokenizer.id(FIRST), tokenizer.end if end is None else end
        self.before, self.after = ([] if id is None else [id] for id in (first, last))
        self.room = context - len(self.before) - len(self.after)
        if self.room < 1:
            raise Mistake(f"model.context={context} has no room for a word; make it larger")
        unknown = [tokenizer.id(name) for name in (UNKNOWN, "<unk>")]
        self.unknown = next((id for id in unknown if id is not None), 0)  # in place of an invisible word
        self.of_entities = all(scoring.TAG.fullmatch(name) for name in config.labels or ())
        self.best = "f1" if self.of_entities else "accuracy"

    @classmethod
    def headed(cls, model: Any, config: TagConfig) -> nn.Module:
        return headed(model, len(config.labels or (0,)))

    # making a model

    @classmethod
    def read(
        cls,
        paths: Sequence[str],
        valid: Sequence[str],
        data: DataConfig,
        config: TagConfig,
        context: int,
        tokenizers: Sequence[Tokenizer] = (),
    ) -> Corpus:
        sentences = tagged(paths)
        if valid:
            train, held = sentences, tagged(valid)
        else:
            train, held = parted(sentences, data.holdout)
        sides = [(out, " ".join(s[0])) for out, part in ((False, train), (True, held)) for s in part]
        tokenizer = tokenizers[0] if tokenizers else tokenizer_for(sides, data, cls.specials)
        # a rare tag may be held out; that there is such a one is no secret
        names = config.labels or classes(tag for _, tags in train + held for tag in tags)
        for name in names:
            if "/" in name:
                raise Mistake(
                    f'the tag "{name}" has a slash, which parts a word from its tag; write it another way'
                )
        task = cls(TagConfig(name="tag", labels=tuple(names)), tokenizer, context)
        learnt, notes = task.examples(train)
        measured = None
        if held:
            measured, more = task.examples(held)
            notes += [f"held out: {note}" for note in more]
        return Corpus(learnt, measured, tokenizer, found={"labels": list(names)}, notes=notes)

    def examples(self, sentences: Sequence[Tagged]) -> tuple[Examples, list[str]]:
        """Sentences as ids and numbers of tags; a line says how many take several windows."""
        place = {name: number for number, name in enumerate(self.config.labels or ())}
        rows, wanted, cut = [], [], 0
        for number, ((words, tags), windows) in enumerate(
            zip(sentences, self.windows([words for words, _ in sentences]), strict=True), 1
        ):
            for tag in tags:
                if tag not in place:
                    begun, known = " ".join(words)[:40], ", ".join(list(place)[:20])
                    raise Mistake(
                        f'sentence {number} ({begun}…): the tag "{tag}" is not one of those to learn: {known}'
                    )
            coming = iter(tags)
            for ids, begins in windows:
                row = [IGNORED] * len(ids)
                for i in begins:
                    row[i] = place[next(coming)]
                rows.append(ids)
                wanted.append(row)
            cut += len(windows) > 1
        notes = [f"{cut:,} of {len(sentences):,} sentences are longer than {self.context} tokens "
                 "(model.context) and are read in parts"] if cut else []  # fmt: skip
        return Examples(sentences, joined(rows, np.int64), joined(wanted, np.int64)), notes

    def windows(self, sentences: Sequence[Sequence[str]]) -> list[list[Window]]:
        """Every sentence as one window or several that follow each other: each word is in one of them."""
        # A word is written as inside of a text, with its space; the first one has none.
        spelt = [[(" " if i else "") + word for i, word in enumerate(words)] for words in sentences]
        known = self.pieces(list(dict.fromkeys(word for words in spelt for word in words)))
        found = []
        for words in spelt:
            windows: list[Window] = []
            for ids, at in (known[word] for word in words):
                if not windows or len(windows[-1][0]) + len(ids) > len(self.before) + self.room:
                    windows.append((list(self.before), []))
                row, begins = windows[-1]
                begins.append(len(row) + at)
                row += ids
            for row, _ in windows:
                row += self.after
            found.append(windows)
        return found

    def pieces(self, words: Sequence[str]) -> dict[str, tuple[list[int], int]]:
        """The ids of each word, no more than there is room for, and which of them is the first of the word
        itself: where characters are tokens, the one after the space."""
        found = {}
        for word, e in zip(
            words, self.tokenizer.inner.encode_batch(list(words), add_special_tokens=False), strict=True
        ):
            space = word.startswith(" ")
            begin = next((i for i, (_, stop) in enumerate(e.offsets) if stop > space), len(e.ids))
            ids = list(e.ids)
            if begin == len(ids):  # nothing of the word is left
                ids.append(self.unknown)
            if len(ids) > self.room:
                ids, begin = ids[begin : begin + self.room], 0
            found[word] = ids, begin
        return found

    def held_out(self, paths: Sequence[str]) -> Examples:
        return self.examples(tagged(paths))[0]

    def collated(self, examples: Examples, rows: np.ndarray) -> Batch:
        """ids and real (B, T); the tag where a word begins (B, T)."""
        ids, real = padded(examples.ids, rows)
        wanted, _ = padded(examples.wanted, rows, by=IGNORED)
        return tuple(torch.from_numpy(x) for x in (ids, real, wanted))

    def loss(self, model: Any, ids: Tensor, real: Tensor, wanted: Tensor) -> Tensor:
        """The sum of cross-entropies in nats."""
        return cross_entropy(model(ids, real), None, wanted)

    def measure(self, model: Any, *batch: Tensor) -> Tensor:
        """The loss, how many words' tags were right; and how many entities, of how many told and there."""
        ids, real, wanted = batch
        logits = model(ids, real)  # (B, T, C)
        told, loss = logits.argmax(-1), cross_entropy(logits, None, wanted)
        sums = torch.stack([loss.double(), (told == wanted).sum().double()])
        if not self.of_entities:
            return sums
        names, words = self.config.labels or (), (wanted != IGNORED).cpu()
        sides = (
            [[names[i] for i in row[at].tolist()] for row, at in zip(x.cpu(), words, strict=True)]
            for x in (told, wanted)
        )
        return torch.cat([sums, sums.new_tensor(scoring.entity_counts(*sides))])

    def metrics(
        self, loss: float, count: int, examples: Examples, right: float, *entities: float
    ) -> dict[str, float]:
        found = {"loss": loss / max(1, count), "accuracy": right / max(1, count)}
        if not self.of_entities:
            return found
        same, told, there = entities
        return found | {"f1": 2 * same / max(1, told + there)}  # of parts, where a sentence is read in such

    def covered(self, batch: Batch) -> int:
        return targets(batch)

    def sample(self, model: Any, examples: Examples, seed: int) -> str:
        """A few sentences with the tags that the model gives them."""
        told = self.answers(model, examples.sources[:3], Sampling())
        return "\n".join(answer.text for (answer,) in told)

    def judged(self, answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Whole entities, if tags are parts of such."""
        if not self.of_entities:
            return {}
        return scoring.entity_f1(*([tags_of(text) for text in side] for side in (answers, references)))

    # using it

    @torch.inference_mode()
    def tags(self, model: Any, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """The likeliest tag of every word."""
        windows = self.windows(sentences)
        flat = [window for several in windows for window in several]
        names, told = self.config.labels or (), [list[str]() for _ in flat]
        ids = joined([ids for ids, _ in flat], np.int64)
        device, training = next(model.parameters()).device, model.training
        model.eval()
        for rows in in_length_order(ids.lengths, ids.lengths, TOKENS_AT_ONCE) if flat else ():
            batch = (torch.from_numpy(x).to(device) for x in padded(ids, rows))
            for row, best in zip(rows.tolist(), model(*batch).argmax(-1).tolist(), strict=True):
                told[row] = [names[best[i]] for i in flat[row][1]]
        model.train(training)
        coming = iter(told)
        return [[tag for _ in several for tag in next(coming)] for several in windows]

    def answers(
        self,
        model: Any,
        texts: Sequence[str | Sequence[str]],
        sampling: Sampling,
        stop: Sequence[str] = (),
        samples: int = 1,
    ) -> list[list[Answer]]:
        """Each text's words with their tags; what is a list is words already."""
        if samples > 1:
            raise Mistake(f"num_return_sequences={samples}: a text is tagged in one way only; leave it out")
        sentences = [words_of(text) if isinstance(text, str) else text for text in texts]
        told = self.tags(model, sentences)
        return [[Answer(written(words, tags))] for words, tags in zip(sentences, told, strict=True)]

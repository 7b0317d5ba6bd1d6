"""Words as vectors: each learns from the words near it, against words drawn at random. Mikolov et al. 2013.

Shapes: B stretches of text, T words of each, D width.
"""

import csv
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import scoring
from regard.data import Corpus, DataConfig, Stream, Windows, corpus, in_order
from regard.data.encoding import encoded, split
from regard.data.reading import decoded, documents, empty, holds, in_folder, lines
from regard.data.sampling import GOLDEN, keys, mixed
from regard.data.shards import prepared
from regard.errors import Mistake
from regard.generate import Sampling
from regard.loss import IGNORED
from regard.text import Tokenizer, word_tokenizer
from regard.vectors import Vectors, embeddings, whole_words

from .answers import Answer
from .batches import Batch, targets
from .task import Task

UNKNOWN = "<unk>"
STRETCH = 64  # words of text that one row reads
SHARED = 32  # words drawn for each row
STEP = 16  # gaps make rows longer, by a multiple of this: few shapes to compile for
SALT = 0x776F726473  # what is drawn has other keys than the order of the text
VECTORS, MAP = "vectors.txt", "map.svg"
SETS = (("word1", "word2", "word3", "target"), ("word1", "word2", "similarity"))  # by their columns
TAGGED = re.compile(r".+-[nvja]")  # a word with its part of speech, as MEN writes them


@dataclass(frozen=True, kw_only=True)
class WordsTaskConfig:
    name: Literal["words"]
    mode: Literal["skipgram", "cbow"] = "skipgram"  # a word foretells each neighbour, or they foretell it
    negative: int = 5  # words drawn at random against each that was there: k
    subsample: float = 1e-3  # t: words with a larger share of the text are passed over now and then; 0: never

    def __post_init__(self) -> None:
        if self.negative < 1:
            raise ValueError(f"negative={self.negative} must be 1 or more")
        if not 0 <= self.subsample <= 1:
            raise ValueError(f"subsample={self.subsample} must be a share, from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class WordsDataConfig(DataConfig):
    tokenizer: str = "word"  # words apart from the signs around them; or a tokenizer.json or its folder
    vocab: int = 500_000  # the most frequent ones
    holdout: float = 0.02
    least: int = 5  # how often a word must be there to get a vector
    lower: bool = True  # whether capitals make no difference

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least < 1:
            raise ValueError(f"least={self.least} must be 1 or more")


class WordsTask(Task):
    kinds = ("words",)
    specials = ("<|endoftext|>", UNKNOWN)
    data = WordsDataConfig
    builtin = ("write.txt",), ()
    extras = ("distance",)  # cosine, or euclidean
    at_once = 64
    steady = True
    generation: ClassVar[dict[str, Any]] = {"top_k": 10}  # neighbours

    def __init__(self, config: WordsTaskConfig, tokenizer: Tokenizer, context: int, target: None = None):
        self.config, self.tokenizer, self.context = config, tokenizer, context
        self.chances: Chances | None = None  # those of the text that is learnt from
        ids = (tokenizer.id(token) for token in self.specials)
        self.words = whole_words(tokenizer)
        self.no_words = [id for id in ids if id is not None]

    # making a model

    @classmethod
    def read(
        cls,
        paths: Sequence[str],
        valid: Sequence[str],
        data: WordsDataConfig,
        config: WordsTaskConfig,
        context: int,
        tokenizers: Sequence[Tokenizer] = (),
    ) -> Corpus:
        """`tokenizers` are those of an earlier run, to be used again."""
        if tokenizers or data.tokenizer != "word" or prepared(paths):
            return corpus(paths, valid, data, cls.specials, *tokenizers)
        held = list(documents(valid)) if valid else None
        parts = list(split(list(documents(paths)), held, data.holdout))
        learnable = (text for out, text in parts if not out)
        tokenizer = word_tokenizer(learnable, data.vocab, cls.specials, data.least, data.lower, signs=True)
        if tokenizer.vocab < len(cls.specials) + 2:
            raise Mistake(
                f"{paths[0]}: fewer than two words are there {data.least} times; "
                "give more text, or set data.least=1"
            )
        found = list(encoded(parts, tokenizer))
        sides = [[some for some in found if some.held == out] for out in (False, True)]
        train, measured = (
            Stream([some.ids for some in side], sum(some.bytes for some in side)) for side in sides
        )
        known = tokenizer.vocab - len(cls.specials)
        notes = [f"{known:,} words are there at least {data.least} times"]
        return Corpus(train, measured if len(measured) >= 2 else None, tokenizer, notes=notes)

    def training(self, stream: Stream, seed: int, rows: int, tokens: int | None) -> Windows:
        """Stretches of text by number, in an order that the seed decides."""
        self.chances = Chances.of(stream, self.tokenizer.vocab, self.no_words, self.config.subsample)
        return Windows(stream, STRETCH, seed, rows if tokens is None else max(1, tokens // STRETCH))

    def batch(self, samples: Windows, rows: np.ndarray) -> Batch:
        return self.drawn(samples.batch(rows)[:, :-1], keys(samples.seed ^ SALT, rows))

    def in_order(self, stream: Stream, tokens: int) -> Iterator[Batch]:
        """The whole stream once, about so many words at a time; what is drawn is the same every time."""
        done = 0
        for ids, _ in in_order(stream, STRETCH, max(1, tokens // STRETCH)):
            yield self.drawn(ids, keys(SALT, np.arange(done, done + len(ids))))
            done += len(ids)

    def drawn(self, ids: np.ndarray, key: np.ndarray) -> Batch:
        """Of stretches of text (B, STRETCH), the words that are not passed over and the words drawn against
        them; and how far each of them looks: up to 1, 2, ... or `context` words, all equally likely.

        Everything is a function of the row's key. What is passed over leaves no gap; documents are kept
        apart by one as wide as the context.
        """
        assert self.chances is not None
        B, S = ids.shape
        noise = mixed(key[:, None] + np.arange(1, 2 * S + SHARED + 1, dtype=np.uint64) * np.uint64(GOLDEN))
        kept = uniform(noise[:, :S]) < self.chances.keep[ids]
        reach = 1 + (noise[:, S : 2 * S] % np.uint64(self.context)).astype(np.int64)
        negatives = self.chances.draw(uniform(noise[:, 2 * S :]))
        taken = kept + self.context * (ids == self.tokenizer.end)
        ends = taken.cumsum(1)
        T = max(S, -(-int(ends[:, -1].max()) // STEP) * STEP)
        row, column = np.nonzero(kept)
        place = ends[row, column] - 1
        words, looks = np.zeros((B, T), np.int64), np.full((B, T), IGNORED)
        words[row, place], looks[row, place] = ids[row, column], reach[row, column]
        return tuple(torch.from_numpy(x) for x in (words, negatives, looks))

    def loss(self, model: nn.Module, ids: Tensor, negatives: Tensor, reach: Tensor) -> Tensor:
        """-Σ log σ(v'ᵀ v) over all pairs of a word and one near it, and k times the mean of -log σ(-v'ᵀ v)
        over the words drawn: eq. 4, whose expectation over single draws it is.

        That all words of a row share what is drawn (Ji et al. 2016) makes large products of many small ones.
        """
        T, M = ids.shape[1], negatives.shape[1]
        x, y = model.embed(ids), model.near(torch.cat([ids, negatives], dim=1))  # type: ignore[operator]
        place = torch.arange(T, device=ids.device)
        apart = (place[:, None] - place).abs()
        near = (apart > 0) & (apart <= reach[:, :, None]) & (reach != IGNORED)[:, None, :]
        near = near.to(x.dtype)  # (B, T, T)
        pairs = near.sum(-1)  # (B, T)
        if self.config.mode == "cbow":  # the mean of all near it and the word itself are the one pair
            x = near @ x / pairs.clamp(min=1)[..., None]  # (B, T, D)
            pairs = pairs.clamp(max=1)
            near = torch.diag_embed(pairs)  # (B, T, T)
        scores = x @ y.mT  # (B, T, T + M)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        there, drawn = scores.split([T, M], dim=-1)
        right, wrong = F.logsigmoid(there) * near, F.logsigmoid(-drawn).sum(-1) * pairs
        return -right.sum() - self.config.negative / M * wrong.sum()

    def metrics(self, loss: float, count: int, stream: Stream) -> dict[str, float]:
        return {"loss": loss / max(1, count)}  # of one word and all around it

    def covered(self, batch: Batch) -> int:
        return targets(batch)

    def sample(self, model: Any, stream: Stream, seed: int) -> str:
        """A few words of the data that are neither frequent nor rare, and their neighbours."""
        seen = set(stream.read(0, 100_000).tolist())
        there = [word for word, id in self.words.items() if id in seen]
        words = there[len(there) // 8 :: max(1, len(there) // 8)][:3]
        found = self.answers(model, words, Sampling(top_k=5))
        return "\n".join(f"{word}\n  → {a[0].text}" for word, a in zip(words, found, strict=True))

    def finish(self, folder: Path, weights: dict[str, Tensor]) -> None:
        """The vectors as everybody reads them, and a map of the most frequent words."""
        found = Vectors(list(self.words), weights["embed.weight"][list(self.words.values())])
        found.save(folder / VECTORS)
        found.map(folder / MAP)

    # using it

    def answers(
        self,
        model: Any,
        texts: Sequence[str],
        sampling: Sampling,
        stop: Sequence[str] = (),
        samples: int = 1,
        distance: str = "cosine",
    ) -> list[list[Answer]]:
        """The words nearest to "king", or to "king - man + woman": `top_k` of them on a line, each with its
        cosine or distance; or, where several `samples` are asked for, each an answer with its score."""
        count = samples if samples > 1 else sampling.top_k or self.generation["top_k"]
        learnt, answers = self.learnt(model), []
        for text in texts:
            found = learnt.nearest(text, count, distance)
            if samples > 1:
                answers.append([Answer(word, value) for word, value in found])
            else:
                answers.append([Answer(", ".join(f"{word} {value:.2f}" for word, value in found))])
        return answers

    def learnt(self, model: nn.Module) -> Vectors:
        return Vectors(list(self.words), embeddings(model)[list(self.words.values())])

    # judging it

    def held_out(self, paths: Sequence[str]) -> dict[str, list[dict[str, str]]]:
        """Sets of pairs with how similar people find them, or of analogies: the rows of each file."""
        files = [f for path in paths for f in (in_folder(path, {".csv"}) if os.path.isdir(path) else [path])]
        return {file: table(file) for file in files}

    def scored(self, model: Any, sets: dict[str, list[dict[str, str]]]) -> dict[str, float]:
        """Spearman's rank correlation with people, or the share of analogies found; and how much of each set
        the vocabulary covers, which is all that is judged. A set is known by its columns."""
        found: dict[str, float] = {}
        learnt = self.learnt(model)
        for file, rows in sets.items():
            scores = (analogies if "target" in rows[0] else similarities)(learnt, rows)
            name = "" if len(sets) == 1 else Path(file).name.split(".")[0] + "_"
            found |= {name + key: value for key, value in scores.items()}
        return found


def similarities(learnt: Vectors, rows: list[dict[str, str]]) -> dict[str, float]:
    places, there = covered(learnt, rows, ["word1", "word2"])
    one, other = learnt.unit[places].unbind(1)
    people = [float(row["similarity"]) for row, known in zip(rows, there, strict=True) if known]
    cosines = (one * other).sum(1).tolist()
    rho = scoring.spearman(cosines, people) if len(people) > 1 else 0.0
    return {"spearman": rho, "covered": float(there.mean())}


def analogies(learnt: Vectors, rows: list[dict[str, str]]) -> dict[str, float]:
    """word1 is to word2 as word3 is to the target."""
    places, there = covered(learnt, rows, ["word1", "word2", "word3", "target"])
    W, right = learnt.unit, 0
    for some in places.to(W.device).split(1024):
        a, b, c, aim = some.unbind(1)
        likeness = (W[b] - W[a] + W[c]) @ W.mT
        likeness.scatter_(1, some[:, :3], -torch.inf)
        right += int((likeness.argmax(1) == aim).sum())
    return {"accuracy": right / max(1, len(places)), "covered": float(there.mean())}


def covered(learnt: Vectors, rows: list[dict[str, str]], columns: Sequence[str]) -> tuple[Tensor, np.ndarray]:
    """Where the words stand of those rows whose words all have vectors, and which rows these are."""
    words = [row[column] for row in rows for column in columns]
    if all(TAGGED.fullmatch(word) for word in words):
        words = [word[:-2] for word in words]
    places = np.array([learnt.find(word) for word in words]).reshape(len(rows), len(columns))
    there = np.all(places >= 0, axis=1)
    return torch.from_numpy(places[there]), there


@dataclass
class Chances:
    """How likely each word is kept, and drawn."""

    keep: np.ndarray  # by id
    drawn: np.ndarray  # cumulated

    @classmethod
    def of(cls, stream: Stream, vocab: int, no_words: Sequence[int], t: float) -> "Chances":
        counts = np.zeros(vocab)
        for part in stream.parts:
            counts += np.bincount(part, minlength=vocab)
        counts[list(no_words)] = 0
        if not counts.any():
            raise Mistake("there is no word to learn from in the text; give more, or set data.least=1")
        share = counts / counts.sum() / (t or math.inf)
        with np.errstate(divide="ignore"):
            keep = np.where(share > 0, np.sqrt(1 / share) + 1 / share, 0) if t else np.ones(vocab)
        return cls(np.where(counts > 0, keep, 0), np.cumsum(counts**0.75))  # as word2vec.c has both

    def draw(self, u: np.ndarray) -> np.ndarray:
        """The word at each of these places between 0 and 1."""
        return np.searchsorted(self.drawn, u * self.drawn[-1], side="right")


def uniform(noise: np.ndarray) -> np.ndarray:
    """From 0 to less than 1, of 64 random bits."""
    return (noise >> np.uint64(11)) * 2.0**-53


def table(file: str) -> list[dict[str, str]]:
    """The rows of a .csv whose first line names its columns; those that have nothing in them are left out."""
    if holds(file) != ".csv":
        raise Mistake(f"{file}: no .csv; to score on, give one of word1,word2,similarity or of analogies")
    text = (decoded(line, file, number) for number, line in enumerate(lines(file), 1))
    reader = csv.DictReader(text)
    columns = [column for column in reader.fieldnames or () if column]
    needed = next((kind for kind in SETS if set(kind) <= set(columns)), None)
    if needed is None:
        like = " or ".join(",".join(kind) for kind in SETS)
        raise Mistake(f"{file}:1: its columns are {', '.join(columns) or 'missing'}, but should be {like}")
    rows = []
    for row in reader:
        cells = [(row[column] or "").strip() for column in needed]
        if not any(cells):
            continue
        if not all(cells):
            raise Mistake(f"{file}:{reader.line_num}: fewer cells than {','.join(needed)}; fill them all")
        rows.append(dict(zip(needed, cells, strict=True)))
        try:
            float(row.get("similarity", 0))
        except ValueError:
            raise Mistake(f"{file}:{reader.line_num}: {cells[-1]} is no number for similarity") from None
    if not rows:
        raise empty(file)
    return rows

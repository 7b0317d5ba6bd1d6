"""Words as vectors: each learns from the words near it, against words drawn at random. Mikolov et al. 2013.

Shapes: B rows of text, T words of each, D width.
"""

import csv
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data import Corpus, DataConfig, Stream, Windows, in_order, load_corpus
from regard.data.documents import read_chunks
from regard.data.encoding import encode_texts, split_parts, split_texts
from regard.data.files import (
    content_suffix,
    decode_utf8,
    empty_file,
    expand_folders,
    read_lines,
)
from regard.data.shards import is_prepared
from regard.data.shuffling import GOLDEN, mix64, random_keys
from regard.decode.sampling import Sampling
from regard.errors import UserError
from regard.models import Word2Vec
from regard.tasks import metrics as scoring
from regard.tasks.answers import Answer
from regard.tasks.batches import Batch, targets
from regard.tasks.loss import IGNORED
from regard.tasks.reading import Reading, on_device
from regard.tasks.request import DataRequest, Request
from regard.tasks.task import Task, upcast
from regard.text.tokenizer_kinds import word_tokenizer
from regard.text.vectors import Vectors, embeddings, select_vectors, whole_words

UNKNOWN = "<unk>"
STRETCH = 64  # words of text that one row reads
SHARED = 32  # words drawn for each row
STEP = 16  # gaps make rows longer, by a multiple of this: few shapes to compile for
SALT = 0x776F726473  # samples use other random numbers than the order of the text
VECTORS, MAP = "vectors.txt", "map.svg"
SETS = (("word1", "word2", "word3", "target"), ("word1", "word2", "similarity"))  # columns of the tables
TAGGED = re.compile(r".+-[nvja]")  # a word with its part of speech, as MEN writes them


@dataclass(frozen=True, kw_only=True)
class WordsTaskConfig:
    name: Literal["words"]
    mode: Literal["skipgram", "cbow"] = "skipgram"  # a word predicts each neighbour, or they predict it
    negative: int = 5  # negative samples for each word: k
    subsample: float = 1e-3  # t: words with a larger share of the text are sometimes skipped; 0: never

    def __post_init__(self) -> None:
        if self.negative < 1:
            raise ValueError(f"negative={self.negative} must be 1 or more")
        if not 0 <= self.subsample <= 1:
            raise ValueError(f"subsample={self.subsample} must be a share, from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class WordsDataConfig(DataConfig):
    tokenizer: str = "word"  # words and signs apart; or a tokenizer.json or its folder
    vocab: int = 500_000  # the number of words, the most frequent ones
    holdout: float = 0.02
    least: int = 5  # how often a word must occur to get a vector
    lower: bool = True  # lower-case all words

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least < 1:
            raise ValueError(f"least={self.least} must be 1 or more")


class WordsTask(Task[WordsTaskConfig, Any, Word2Vec]):
    """Trained on a `Stream`, and scored on tables of similarities or analogies."""

    kinds = ("words",)
    specials = ("<|endoftext|>", UNKNOWN)
    data_config = WordsDataConfig
    builtin = ("words.txt", "write.txt"), ()
    extra_options = ("distance",)  # cosine, or euclidean
    ask_batch_size = 64
    static_shapes = True
    generation: ClassVar[dict[str, Any]] = {"top_k": 10}  # neighbours

    def setup(self) -> None:
        self.chances: Chances | None = None  # of the training text
        ids = (self.tokenizer.id(token) for token in self.specials)
        self.words = whole_words(self.tokenizer)
        self.no_words = [id for id in ids if id is not None]

    # Data

    @classmethod
    def read(cls, request: DataRequest[WordsTaskConfig]) -> Corpus:
        paths, valid, data = request.paths, request.valid, request.data
        if request.tokenizers or data.tokenizer != "word" or is_prepared(paths):
            return load_corpus(paths, valid, data, cls.specials, *request.tokenizers)
        held = list(read_chunks(valid)) if valid else None
        parts = list(split_texts(list(read_chunks(paths)), held, data.holdout))
        training = (text for out, _, text in split_parts(parts) if not out)
        tokenizer = word_tokenizer(training, data.vocab, cls.specials, data.least, data.lower, signs=True)
        if tokenizer.vocab < len(cls.specials) + 2:
            raise UserError(
                f"{paths[0]}: fewer than two words occur {data.least} times; "
                "give more text, or set data.least=1"
            )
        texts = list(encode_texts(parts, tokenizer))
        sides = [[text for text in texts if text.held_out == out] for out in (False, True)]
        train, evaluation = (
            Stream([text.ids for text in side], sum(text.bytes for text in side)) for side in sides
        )
        known = tokenizer.vocab - len(cls.specials)
        notes = [f"{known:,} words occur at least {data.least} time{'s' * (data.least != 1)}"]
        return Corpus(train, evaluation if len(evaluation) >= 2 else None, tokenizer, notes=notes)

    def held_out(self, paths: Sequence[str]) -> dict[str, list[dict[str, str]]]:
        """Read tables of pairs with similarities rated by people, or of analogies: the rows of each file."""
        files = list(expand_folders(paths, {".csv"}))
        return {file: read_table(file) for file in files}

    def samples(self, data: Stream, seed: int, rows: int, tokens: int | None) -> Windows:
        self.chances = Chances.of(data, self.tokenizer.vocab, self.no_words, self.config.subsample)
        return Windows(data, STRETCH, seed, rows if tokens is None else max(1, tokens // STRETCH))

    def batch(self, samples: Windows, rows: np.ndarray) -> Batch:
        return self.collate(samples.batch(rows)[:, :-1], random_keys(samples.seed ^ SALT, rows))

    def evaluation_batches(self, data: Stream, tokens: int) -> Iterator[Batch]:
        """The whole stream once; the same samples are drawn every time."""
        done = 0
        for ids, _ in in_order(data, STRETCH, max(1, tokens // STRETCH)):
            yield self.collate(ids, random_keys(SALT, np.arange(done, done + len(ids))))
            done += len(ids)

    def collate(self, data: np.ndarray, rows: np.ndarray) -> Batch:
        """For text (B, STRETCH), each row with its key: the words that are not skipped, their negative
        samples, and the window of each word: up to 1, 2, ... or `context` words, all equally likely.

        Everything is a function of the row's key. Skipped words leave no gap; documents are separated by a
        gap as wide as the context.
        """
        assert self.chances is not None
        B, S = data.shape
        noise = mix64(rows[:, None] + np.arange(1, 2 * S + SHARED + 1, dtype=np.uint64) * np.uint64(GOLDEN))
        keep = uniform(noise[:, :S]) < self.chances.keep[data]
        reach = 1 + (noise[:, S : 2 * S] % np.uint64(self.context)).astype(np.int64)
        negatives = self.chances.draw(uniform(noise[:, 2 * S :]))
        widths = keep + self.context * (data == self.tokenizer.end)
        ends = widths.cumsum(1)
        T = max(S, -(-int(ends[:, -1].max()) // STEP) * STEP)
        row, column = np.nonzero(keep)
        place = ends[row, column] - 1
        words, looks = np.zeros((B, T), np.int64), np.full((B, T), IGNORED)
        words[row, place], looks[row, place] = data[row, column], reach[row, column]
        return tuple(torch.from_numpy(x) for x in (words, negatives, looks))

    def batch_length(self, batch: Batch) -> int:
        return targets(batch)

    def count_read(self, batch: Batch) -> dict[str, float]:
        """Count the words that are not skipped."""
        return {"tokens": targets(batch)}

    # Training

    def loss(self, model: Word2Vec, *batch: Tensor) -> Tensor:
        """-Σ log σ(v'ᵀ v) over all pairs of a word and one near it, and k times the mean of -log σ(-v'ᵀ v)
        over the words drawn: eq. 4, whose expectation over single draws it is.

        All words of a row share their samples (Ji et al. 2016), so that products are few and large.
        """
        ids, negatives, reach = batch
        T, M = ids.shape[1], negatives.shape[1]
        x, y = model.embed(ids), model.near(torch.cat([ids, negatives], dim=1))
        place = torch.arange(T, device=ids.device)
        apart = (place[:, None] - place).abs()
        near = (apart > 0) & (apart <= reach[:, :, None]) & (reach != IGNORED)[:, None, :]
        near = near.to(x.dtype)  # (B, T, T)
        pairs = near.sum(-1)  # (B, T)
        if self.config.mode == "cbow":  # the mean of the neighbours and the word are one pair
            x = near @ x / pairs.clamp(min=1)[..., None]  # (B, T, D)
            pairs = pairs.clamp(max=1)
            near = torch.diag_embed(pairs)  # (B, T, T)
        scores = upcast(x @ y.mT)  # (B, T, T + M)
        near_scores, negative_scores = scores.split([T, M], dim=-1)
        right, wrong = F.logsigmoid(near_scores) * near, F.logsigmoid(-negative_scores).sum(-1) * pairs
        return -right.sum() - self.config.negative / M * wrong.sum()

    def metrics(self, loss: float, count: int, data: Stream, *more: float) -> dict[str, float]:
        return {"loss": loss / max(1, count)}  # of one word and all around it

    def preview(self, model: Word2Vec, data: Stream, seed: int) -> str:
        """A few words of the data that are neither frequent nor rare, and their neighbours."""
        ids = set(data.read(0, 100_000).tolist())
        known = [word for word, id in self.words.items() if id in ids]
        words = known[len(known) // 8 :: max(1, len(known) // 8)][:3]
        answers = self.answers(model, Request(words, Sampling(top_k=5)))
        return "\n".join(f"{word}\n  → {a[0].text}" for word, a in zip(words, answers, strict=True))

    def finish(
        self, folder: Path, weights: Mapping[str, Tensor], data: Any, like: Path | None = None
    ) -> None:
        """Write the vectors in word2vec's format, and a map of the most frequent words."""
        vectors = select_vectors(weights["embed.weight"], self.words)
        vectors.save(folder / VECTORS, like=like)
        vectors.map(folder / MAP, like=like)

    # Answers

    def answers(self, model: Word2Vec, request: Request) -> list[list[Answer]]:
        """The words nearest to "king", or to "king - man + woman": `top_k` of them on a line, each with its
        cosine or distance; with several `samples`, each is an answer with its score."""
        several, distance = request.samples > 1, request.options.get("distance", "cosine")
        count = request.samples if several else request.sampling.top_k or self.generation["top_k"]
        vectors, answers = self.word_vectors(model), []
        for text in request.inputs:
            words = vectors.nearest(text, count, distance)
            line = ", ".join(f"{word} {score:.2f}" for word, score in words)
            value = [{"word": word, "score": score} for word, score in words]
            answers.append([Answer(*each) for each in words] if several else [Answer(line, value=value)])
        return answers

    def word_vectors(self, model: nn.Module) -> Vectors:
        return select_vectors(embeddings(model), self.words)

    def example_input(self) -> str:
        return next(iter(self.words))

    def score(self, model: nn.Module, data: dict[str, list[dict[str, str]]]) -> dict[str, float]:
        """Spearman's rank correlation with people's ratings, or the share of analogies found; and the share
        of each table that the vocabulary covers; only that is scored. Columns define the kind of table."""
        result: dict[str, float] = {}
        vectors = self.word_vectors(model)
        for file, rows in data.items():
            scores = (analogies if "target" in rows[0] else similarities)(vectors, rows)
            stem = os.fsencode(Path(file).name.split(".")[0]).decode(errors="replace")  # any bytes
            name = "" if len(data) == 1 else stem + "_"
            result |= {name + key: value for key, value in scores.items()}
        return result

    def count_scored(self, data: dict[str, list[dict[str, str]]]) -> int:
        return sum(map(len, data.values()))

    # Looking on

    def reading(self, model: Word2Vec, input: str) -> Reading:
        ids = self.tokenizer.encode(input)
        if not ids:
            raise UserError(f"{input}: none of its words are in the model's vocabulary")
        (row,) = on_device(model, ids)
        return Reading({"text": ids}, {"text": self.tokenizer.tokens(ids)}, lambda: model(row))


def similarities(vectors: Vectors, rows: list[dict[str, str]]) -> dict[str, float]:
    places, there = find_words(vectors, rows, ["word1", "word2"])
    one, other = vectors.unit[places].unbind(1)
    people = [float(row["similarity"]) for row, known in zip(rows, there, strict=True) if known]
    cosines = (one * other).sum(1).tolist()
    rho = scoring.spearman(cosines, people) if len(people) > 1 else 0.0
    return {"spearman": rho, "covered": float(there.mean())}


def analogies(vectors: Vectors, rows: list[dict[str, str]]) -> dict[str, float]:
    """Score analogies: word1 is to word2 as word3 is to the target."""
    places, there = find_words(vectors, rows, ["word1", "word2", "word3", "target"])
    W, right = vectors.unit, 0
    for block in places.to(W.device).split(1024):
        a, b, c, target = block.unbind(1)
        cosines = (W[b] - W[a] + W[c]) @ W.mT
        cosines.scatter_(1, block[:, :3], -torch.inf)
        right += int((cosines.argmax(1) == target).sum())
    return {"accuracy": right / max(1, len(places)), "covered": float(there.mean())}


def find_words(
    vectors: Vectors, rows: list[dict[str, str]], columns: Sequence[str]
) -> tuple[Tensor, np.ndarray]:
    """The vectors' rows for each table row whose words are all known, and the indices of these table rows."""
    words = [row[column] for row in rows for column in columns]
    if all(TAGGED.fullmatch(word) for word in words):
        words = [word[:-2] for word in words]
    places = np.array([vectors.find(word) for word in words]).reshape(len(rows), len(columns))
    there = np.all(places >= 0, axis=1)
    return torch.from_numpy(places[there]), there


@dataclass
class Chances:
    """The probability of each word to be kept, and to be drawn."""

    keep: np.ndarray  # by id
    cumulative: np.ndarray  # the cumulative weights of being drawn

    @classmethod
    def of(cls, stream: Stream, vocab: int, no_words: Sequence[int], t: float) -> "Chances":
        counts = np.zeros(vocab)
        for ids in stream.blocks():
            counts += np.bincount(ids, minlength=vocab)
        counts[list(no_words)] = 0
        if not counts.any():
            raise UserError("the text has no word to learn from; give more, or set data.least=1")
        share = counts / counts.sum() / (t or math.inf)
        with np.errstate(divide="ignore"):
            keep = np.where(share > 0, np.sqrt(1 / share) + 1 / share, 0) if t else np.ones(vocab)
        return cls(np.where(counts > 0, keep, 0), np.cumsum(counts**0.75))  # both as in word2vec.c

    def draw(self, u: np.ndarray) -> np.ndarray:
        """Draw words by numbers between 0 and 1."""
        return np.searchsorted(self.cumulative, u * self.cumulative[-1], side="right")


def uniform(noise: np.ndarray) -> np.ndarray:
    """Turn 64 random bits into a number from 0 to less than 1."""
    return (noise >> np.uint64(11)) * 2.0**-53


def read_table(file: str) -> list[dict[str, str]]:
    """Read the rows of a .csv whose first line names its columns, without empty rows."""
    if content_suffix(file) != ".csv":
        raise UserError(
            f"{file}: not a .csv; to score on, give one of word1,word2,similarity or of analogies"
        )
    text = (decode_utf8(line, file, number) for number, line in enumerate(read_lines(file), 1))
    reader = csv.DictReader(text)
    columns = [column for column in reader.fieldnames or () if column]
    needed = next((kind for kind in SETS if set(kind) <= set(columns)), None)
    if needed is None:
        like = " or ".join(",".join(kind) for kind in SETS)
        raise UserError(f"{file}:1: its columns are {', '.join(columns) or 'missing'}, but should be {like}")
    rows = []
    for row in reader:
        cells = [(row[column] or "").strip() for column in needed]
        if not any(cells):
            continue
        if not all(cells):
            raise UserError(f"{file}:{reader.line_num}: fewer cells than {','.join(needed)}; fill them all")
        rows.append(dict(zip(needed, cells, strict=True)))
        try:
            float(row.get("similarity", 0))
        except ValueError:
            raise UserError(f"{file}:{reader.line_num}: {cells[-1]} is not a number for similarity") from None
    if not rows:
        raise empty_file(file)
    return rows

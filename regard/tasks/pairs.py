"""Pairs: a text to read and a text to write. A sentence and its translation, an utterance and its reply.

Shapes: B batch, S source tokens, T target tokens.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.recurrent import CELLS
from regard.data import Corpus, PairConfig, PairDataset, read_pairs
from regard.data.alignment import likely_targets
from regard.data.bpe_dropout import TokenDropout
from regard.data.bucketing import bucket_width
from regard.data.conversations import read_chat_pairs
from regard.data.encoding import tokenizer_for
from regard.data.pair_dataset import encode_pairs, filter_pairs
from regard.data.pairs import History, Pair, build_histories, split_pairs
from regard.decode.prompts import Writer
from regard.decode.sampling import Sampling
from regard.decode.shortlist import SHORTLIST, Shortlist, ShortlistWriter, make_shortlist
from regard.errors import UserError
from regard.models import Seq2Seq, Transformer
from regard.tasks import text_metrics as scoring
from regard.tasks.batches import (
    Batch,
    Bucketed,
    BucketedByPass,
    Samples,
    encode_held_out,
    per_token,
    ragged,
)
from regard.tasks.guessing import Guess, guess_targets
from regard.tasks.loss import IGNORED, cross_entropy
from regard.tasks.r_drop import check_r_drop, r_drop_of_words, repeat_rows
from regard.tasks.request import DataRequest, Request
from regard.tasks.source import SourceTask, with_end
from regard.text.sentences import split_to_fit
from regard.text.tokenizer import Tokenizer

SEPARATOR = "<sep>"


@dataclass(frozen=True, kw_only=True)
class PairTaskConfig:
    """The base of the settings of translating and chatting."""

    smoothing: float = 0.1  # of labels: this share of the probability is spread over all words
    r_drop: float = 0.0  # how strongly two passes' dropout should agree: alpha of Liang et al. 2021
    forcing: float = 1.0  # recurrent models: how often the previous word is the true one, not the model's own

    def __post_init__(self) -> None:
        for name in ("smoothing", "forcing"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} must be from 0 to 1")
        if not self.r_drop >= 0:
            raise ValueError(f"r_drop={self.r_drop} must not be negative")


@dataclass(frozen=True, kw_only=True)
class TranslateConfig(PairTaskConfig):
    name: Literal["translate"]
    longest: int | None = None  # tokens; longer sources are read sentence by sentence. None: as in the data

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.longest is not None and self.longest < 1:
            raise ValueError(f"longest={self.longest} must be 1 or more")


@dataclass(frozen=True, kw_only=True)
class ChatConfig(PairTaskConfig):
    name: Literal["chat"]
    turns: int = 1  # the number of turns that it reads, its own included

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.turns < 1:
            raise ValueError(f"turns={self.turns} must be 1 or more")


PairConfigT = TypeVar("PairConfigT", bound=PairTaskConfig)
PairModel = Transformer | Seq2Seq


class PairTask(SourceTask[PairConfigT, PairDataset, PairModel]):
    """Write a text for each text."""

    kinds = ("transformer", "t5", *CELLS)
    data_config = PairConfig
    few_shapes = True
    learns_from = "answers"
    files = (SHORTLIST,)
    extra_options = (
        *SourceTask.extra_options,
        "shortlist",
    )  # write only words that may translate the source's
    cut_sources: ClassVar[bool] = False  # sources that are too long lose their beginning, or are dropped

    # Data

    @classmethod
    def check_model(cls, config: PairConfigT, kind: str) -> None:
        if config.forcing < 1 and kind not in CELLS:
            raise UserError("task.forcing is for recurrent models; leave it out, or set model.kind=gru")

    @classmethod
    def read(cls, request: DataRequest[PairConfigT]) -> Corpus:
        data, context, turns = request.data, request.context, cls.turns(request.config)
        held = list(cls.read_texts(request.valid)) if request.valid else None
        train, held = split_pairs(list(cls.read_texts(request.paths)), held, data.holdout)
        tokenizers = request.tokenizers or cls._train_tokenizers(train, held, data)
        task = cls(request.config, tokenizers[0], context, *tokenizers[1:])

        def prepare(histories: list[History]) -> tuple[PairDataset, list[str]]:
            return filter_pairs(task.encode(histories), data, context - 1, context - 1, cls.cut_sources)

        trained = build_histories(train, turns)
        training, notes = prepare(trained)
        evaluated = build_histories(held, turns)
        if not request.valid and data.version > 1:  # conversations may come to the same point
            known = {tuple(source) for source, _ in trained}
            new = [history for history in evaluated if tuple(history[0]) not in known]
            if dropped := len(evaluated) - len(new):
                notes += [
                    f"held out: dropped {dropped:,} of {len(evaluated):,} pairs: their source is trained on"
                ]
            evaluated = new
        valid, more = encode_held_out(prepare, evaluated)
        training.bpe_dropout, training.keep_targets = data.bpe_dropout, data.keep_targets
        training.shortlist = data.shortlist
        settings = cls.settings_from(training)
        return Corpus(training, valid, tokenizers[0], task.target_tokenizer, settings, notes + more)

    @classmethod
    def read_texts(cls, paths: Sequence[str]) -> Iterator[Pair]:
        return read_pairs(paths)

    @classmethod
    def _train_tokenizers(cls, train: list[Pair], held: list[Pair], data: PairConfig) -> list[Tokenizer]:
        """Train one tokenizer for both sides, or one for each."""
        sides = [(False, pair) for pair in train] + [(True, pair) for pair in held]
        sources, targets = ([(out, pair[i]) for out, pair in sides] for i in (0, 1))
        if data.target_tokenizer is None:
            return [tokenizer_for(sources + targets, data, cls.specials)]
        own = replace(data, tokenizer=data.target_tokenizer)
        return [tokenizer_for(sources, data, cls.specials), tokenizer_for(targets, own, cls.specials)]

    @classmethod
    def turns(cls, config: PairConfigT) -> int:
        """The number of turns of a conversation that are a source."""
        return 1

    @classmethod
    def settings_from(cls, pairs: PairDataset) -> dict[str, Any]:
        """Settings of the task that follow from the data."""
        return {}

    def encode(self, texts: list[tuple[list[str], str]]) -> PairDataset:
        return encode_pairs(texts, self.tokenizer, self.output_tokenizer, self.tokenizer.id(SEPARATOR))

    def held_out(self, paths: Sequence[str]) -> PairDataset:
        """Data to score on; pairs that are too long for the model are answered, too."""
        return self.encode(build_histories(list(self.read_texts(paths)), self.turns(self.config)))

    def learn_answers(self, data: PairDataset, answers: Sequence[str]) -> tuple[PairDataset, int]:
        """Replace targets by answers, except by empty ones or ones that are too long for the model."""
        ids = self.output_tokenizer.encode_batch(answers)
        fits = [0 < len(row) < self.context for row in ids]
        targets = [new if fit else old for new, old, fit in zip(answers, data.targets, fits, strict=True)]
        rows = [
            new if fit else data.target(row) for row, (new, fit) in enumerate(zip(ids, fits, strict=True))
        ]
        learned = PairDataset(data.sources, targets, data.source_ids, ragged(rows, data.target_ids.ids.dtype))
        learned = data + learned if data.keep_targets else learned
        learned.bpe_dropout, learned.shortlist = data.bpe_dropout, data.shortlist
        return learned, sum(fits)

    def lengths(self, data: PairDataset) -> tuple[np.ndarray, np.ndarray]:
        return data.source_lengths, data.target_lengths

    def samples(self, data: PairDataset, seed: int, rows: int, tokens: int | None) -> Samples:
        if not data.bpe_dropout:
            return super().samples(data, seed, rows, tokens)
        return Respelled(self, data, seed, rows, tokens)

    def batch(self, samples: Bucketed, rows: np.ndarray) -> Batch:
        if isinstance(samples, Respelled):
            return self.collate(*samples.spell(rows))
        return super().batch(samples, rows)

    def collate(self, data: PairDataset, rows: np.ndarray) -> Batch:
        """The source and its attention mask (B, S); the target as input and as output (B, T)."""
        source, attention_mask = with_end(data.source_ids, rows, self.context, self.source_end, newest=True)
        sides = (source, attention_mask, *self.collate_targets(data.target_ids, rows))
        return tuple(torch.from_numpy(x) for x in sides)

    def pad_to_bucket(self, batch: Batch) -> Batch:
        """Pad both sides to the length of the longest text of their bucket."""
        width = min(self.context, bucket_width(max(side.shape[1] for side in batch)))
        fills = (0, 0, 0, IGNORED)
        return tuple(F.pad(t, (0, width - t.shape[1]), value=v) for t, v in zip(batch, fills, strict=True))

    # Training

    @classmethod
    def add_head(cls, model: nn.Module, config: PairConfigT) -> nn.Module:
        check_r_drop(config.r_drop, model)
        return model

    def loss(self, model: PairModel, *batch: Tensor) -> Tensor:
        """The sum over all predictions, in nats, with label smoothing in training."""
        source, attention_mask, target, following = batch
        forcing = (self.config.forcing,) if self.config.forcing < 1 and model.training else ()
        smoothing = self.config.smoothing if model.training else 0.0
        if self.config.r_drop and model.training:
            x = model.hidden(*repeat_rows(source, target, attention_mask), *forcing)  # type: ignore[arg-type]
            return r_drop_of_words(
                x, model.output, following, self.config.r_drop, smoothing, model.output_bias
            )
        hidden = model.hidden(source, target, attention_mask, *forcing)
        return cross_entropy(hidden, model.output, following, smoothing, model.output_bias)

    def metrics(self, loss: float, count: int, data: PairDataset, *more: float) -> dict[str, float]:
        return per_token(loss, count, data.bytes)

    def guess(self, model: PairModel, batches: Iterable[Batch], data: PairDataset) -> Guess:
        return guess_targets(batches, self.output_tokenizer.vocab, self.config.smoothing)

    def finish(
        self, folder: Path, weights: Mapping[str, Tensor], data: PairDataset, like: Path | None = None
    ) -> None:
        if not data.shortlist:
            return
        vocab, writer = self.tokenizer.vocab, self.output_tokenizer
        counts = np.bincount(data.target_ids.ids, minlength=writer.vocab)
        lists = likely_targets(data.source_ids, data.target_ids, vocab, data.shortlist, self.end)
        needed = [self.end, *(id for token in self.specials if (id := writer.id(token)) is not None)]
        shortlist = make_shortlist(lists, counts, needed, shared=self.target_tokenizer is None)
        shortlist.save(folder / SHORTLIST, like=like)

    # Answers

    @cached_property
    def shortlist(self) -> Shortlist:
        """The shortlist in the folder that the task was loaded from."""
        if self.folder is None:
            raise UserError("shortlist: this model has none; leave it out")
        if not (path := self.folder / SHORTLIST).exists():
            add = (
                f"regard train {self.config.name} DATA --out {self.folder} --resume --set data.shortlist=100"  # type: ignore[attr-defined]
            )
            raise UserError(f"{path}: no such file; make it with {add}")
        return Shortlist.load(path, self.tokenizer.vocab, self.output_tokenizer.vocab)

    def writing_model(self, model: PairModel, request: Request) -> Writer:
        chosen = request.options.get("shortlist", False)
        if not isinstance(chosen, bool):
            raise UserError(f"shortlist={chosen!r}: give true or false")
        if not chosen:
            return model
        if (device := next(model.parameters()).device).type != "cpu":
            raise UserError(f"shortlist is for a CPU, and the model is on {device}; leave it out")
        return ShortlistWriter(model, self.shortlist)

    def preview(self, model: PairModel, data: PairDataset, seed: int) -> str:
        sources = data.sources[:3]
        answers = self.answers(model, Request(sources, Sampling(max_new_tokens=60, temperature=0)))
        return "\n".join(f"{s}\n  → {a[0].text}" for s, a in zip(sources, answers, strict=True))


class Respelled(BucketedByPass):
    """Pairs whose words are split differently at each pass: data.bpe_dropout."""

    def __init__(self, task: PairTask[Any], data: PairDataset, seed: int, rows: int, tokens: int | None):
        super().__init__(data, task.lengths(data), seed, rows, tokens)
        self.longest = task.context - 1
        self.dropouts = [TokenDropout(task.tokenizer, data.bpe_dropout, seed)] * 2
        if task.target_tokenizer is not None:
            self.dropouts[1] = TokenDropout(task.target_tokenizer, data.bpe_dropout, seed)

    def spell(self, numbers: np.ndarray) -> tuple[PairDataset, np.ndarray]:
        """The pairs with these indices, tokenized anew, and their rows."""
        rows, sides = numbers % len(self.data), (self.data.source_ids, self.data.target_ids)
        spelled = [
            dropout(side, rows, dropout.keys(2 * numbers + n), self.longest)
            for n, (side, dropout) in enumerate(zip(sides, self.dropouts, strict=True))
        ]
        return PairDataset([], [], *spelled), np.arange(len(rows))


class Translate(PairTask[TranslateConfig]):
    builtin = ("translate.tsv",), ("translate.valid.tsv",)
    data_settings = ("longest",)
    generation: ClassVar = {"max_new_tokens": 200, "temperature": 0.0, "num_beams": 4}

    @classmethod
    def settings_from(cls, pairs: PairDataset) -> dict[str, Any]:
        return {"longest": int(pairs.source_lengths.max())}

    def parts(self, input: str) -> list[list[int]]:
        """Split a text that is longer than the training texts into sentences."""
        longest = min(self.config.longest or self.context, self.context - 1)
        text = input.strip()
        if len(ids := self.tokenizer.encode(text)) <= longest:
            return [ids] if text else []
        parts = split_to_fit(text, lambda part: len(self.tokenizer.encode(part)), longest)
        return [self.tokenizer.encode(part) for part in parts if part and not part.isspace()]

    def score_answers(self, answers: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        return scoring.text_scores(answers, references)


class Chat(PairTask[ChatConfig]):
    builtin = ("chat.tsv",), ("chat.valid.tsv",)
    specials = (*PairTask.specials, SEPARATOR)
    for_writers = "converse"
    cut_sources = converses = True
    generation: ClassVar = {"max_new_tokens": 100, "temperature": 0.0}
    example = "Hi how are you"

    @classmethod
    def read_texts(cls, paths: Sequence[str]) -> Iterator[Pair]:
        return read_chat_pairs(paths)

    @classmethod
    def turns(cls, config: ChatConfig) -> int:
        return config.turns

    def encode(self, texts: list[tuple[list[str], str]]) -> PairDataset:
        """Encode a turn, which is one line, as when the model is asked."""
        return super().encode([([turn.replace("\n", " ") for turn in turns], t) for turns, t in texts])

    def parts(self, input: str) -> list[list[int]]:
        """A text of several lines is the conversation so far; if it is too long, its oldest words are cut."""
        ids = self.encode_turns(input)
        return [ids[1 - self.context :]] if ids else []

    def count_tokens(self, input: str) -> tuple[int, int]:
        count = len(self.encode_turns(input))
        return min(count, self.context - 1), count

    def encode_turns(self, input: str) -> list[int]:
        """Encode the last turns of a conversation."""
        lines = [line for line in input.split("\n") if line.strip()][-self.config.turns :]
        ids: list[int] = []
        for n, line in enumerate(lines):
            separator = self.tokenizer.id(SEPARATOR)
            ids += ([separator] if n and separator is not None else []) + self.tokenizer.encode(line.strip())
        return ids

    def score_answers(self, answers: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        diversity = {f"distinct_{n}": scoring.distinct(answers, n) for n in (1, 2)}
        return scoring.text_scores(answers, references) | diversity

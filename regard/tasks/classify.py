"""Classification: the class or the score of a text, or of two. Devlin et al. 2019, section 4.

An encoder-decoder writes the name of the class, or the score: text to text, Raffel et al. 2020. It chooses
the name that it is most likely to write.

Shapes: B batch, T tokens, C classes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data import Corpus, DataConfig, in_length_order
from regard.data.labels import LabelledTexts, class_ids, class_names, read_labels, split_labels
from regard.data.ragged import Ragged
from regard.decode.sampling import Sampling
from regard.describe.watch import evaluating
from regard.errors import UserError
from regard.models import ModelWithHead, Transformer
from regard.models.base import EncoderDecoder
from regard.tasks import metrics as scoring
from regard.tasks.answers import Answer
from regard.tasks.batches import (
    TOKENS_AT_ONCE,
    Batch,
    at_places,
    encode_held_out,
    fingerprint,
    pad_rows,
    ragged,
    row_places,
    segments_from,
    targets,
)
from regard.tasks.constant import Constant
from regard.tasks.fill import END, FIRST, SPECIALS
from regard.tasks.guessing import Guess, guess_targets
from regard.tasks.heads import (
    add_head,
    class_counts,
    class_scores,
    count_scores,
    label_settings,
    likeliest_classes,
    remark_on_classes,
)
from regard.tasks.loss import IGNORED
from regard.tasks.r_drop import check_r_drop, r_drop, repeat_rows
from regard.tasks.reading import Reading
from regard.tasks.request import DataRequest, Prompt, Request
from regard.tasks.task import Task, upcast
from regard.tasks.written_names import WrittenNames

SCORES = 21  # scores that can be written, from the lowest to the highest


@dataclass(frozen=True, kw_only=True)
class ClassifyConfig:
    name: Literal["classify"]
    labels: tuple[str, ...] | None = None  # the classes, as found in the data; None: a score is predicted
    low: float | None = None  # the scores' range; None: as found in the data
    high: float | None = None
    balanced: bool = False  # rare classes count as much as frequent ones
    weights: tuple[float, ...] | None = None  # of each class, if `balanced`; None: as found in the data
    metric: Literal["accuracy", "matthews", "f1", "spearman", "loss"] | None = (
        None  # None: chosen by the labels
    )
    smoothing: float = 0.0
    r_drop: float = 0.0  # how strongly two passes' dropout should agree: alpha of Liang et al. 2021
    mean: bool = False  # pool a text by the mean of its tokens' hidden states, not as its model does

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing={self.smoothing} must be from 0 to less than 1")
        if not self.r_drop >= 0:
            raise ValueError(f"r_drop={self.r_drop} must not be negative")


class Examples:
    """Texts as token ids, with labels: the number of the class, or the score between 0 and 1."""

    def __init__(self, table: LabelledTexts, ids: Ragged, seconds: np.ndarray, labels: np.ndarray):
        self.ids, self.seconds, self.labels = ids, seconds, labels  # `seconds`: where the second text begins
        self.sources = [text.replace("\t", " ") for text in table.texts]  # a tab separates the two
        if table.second_texts is not None:
            self.sources = [f"{t}\t{o}" for t, o in zip(self.sources, table.second_texts, strict=True)]
        self.targets = [str(x) for x in (table.labels if table.labels is not None else table.scores or [])]

    def __len__(self) -> int:
        return len(self.labels)

    def describe(self) -> str:
        return f"{len(self):,} texts"

    def fingerprint(self) -> str:
        return fingerprint((self.ids.ids, self.ids.lengths, self.labels))


ClassifyModel = ModelWithHead | Transformer


def writes_names(model: nn.Module) -> TypeGuard[Transformer]:
    """Whether a model writes the name of a class: one that reads a source and writes a target."""
    return isinstance(model, EncoderDecoder)


class Classify(Task[ClassifyConfig, Examples, ClassifyModel]):
    kinds = ("bert", "gpt", "t5", "transformer")
    specials = SPECIALS
    data_config = DataConfig
    builtin = ("classify.tsv",), ("classify.valid.tsv",)
    has_references = shows_scores = True
    learns_from = "probabilities"
    data_settings = ("labels", "low", "high", "weights", "metric")

    def setup(self) -> None:
        end = self.tokenizer.id(END)
        self.first, self.end = self.tokenizer.id(FIRST), self.tokenizer.end if end is None else end
        self.class_weights = Constant.of(self.config.weights)
        scores, self.class_names = self.config.labels is None, self.config.labels or ()
        metric = self.config.metric or ("loss" if scores else "accuracy")  # for runs of earlier versions
        if metric != "loss" and (metric == "spearman") != scores:
            kind = "a score, not a class" if scores else "a class, not a score"
            raise UserError(f"task.metric={metric}: each text has {kind}; leave it out")
        self.best_metric = None if metric == "loss" else metric

    # Data

    @classmethod
    def read(cls, request: DataRequest[ClassifyConfig]) -> Corpus:
        config, valid = request.config, request.valid
        train, held = split_labels(
            read_labels(request.paths), read_labels(valid) if valid else None, request.data.holdout
        )
        sides = [
            (out, t)
            for out, part in ((False, train), (True, held))
            for t in part.texts + (part.second_texts or [])
        ]
        tokenizer = request.tokenizer(sides, cls.specials)
        settings: dict[str, Any] = {} if config.metric else {"metric": "spearman"}
        labelled: list[str] = []
        if train.labels is not None:
            names = list(config.labels or class_names(train.labels))
            settings, labelled = label_settings(config, class_ids(train, names), names)
        else:
            settings["low"] = min(train.scores or [0.0]) if config.low is None else config.low
            settings["high"] = max(train.scores or [1.0]) if config.high is None else config.high
            if settings["low"] == settings["high"] and config.low is None:
                raise UserError(
                    f"every score is {settings['low']:g}: there is nothing to predict; give others"
                )
        task = cls(ClassifyConfig(**vars(config) | settings), tokenizer, request.context)
        training, notes = task.examples(train)
        evaluation, more = encode_held_out(task.examples, held)
        return Corpus(training, evaluation, tokenizer, task_settings=settings, notes=labelled + notes + more)

    def examples(self, table: LabelledTexts) -> tuple[Examples, list[str]]:
        """Encode a table; texts that are too long are cut at the end, and a note says how many."""
        sides = [
            self.tokenizer.encode_batch(side) for side in (table.texts, table.second_texts or []) if side
        ]
        rows = [self.frame(*(side[i] for side in sides)) for i in range(len(table))]
        if table.labels is not None:
            labels = np.array(class_ids(table, list(self.config.labels or ())))
        else:
            low, high = self.bounds
            labels = (np.array(table.scores, dtype=np.float32) - low) / ((high - low) or 1.0)
        cut = sum(shortened for _, _, shortened in rows)
        notes = (
            [f"cut {cut:,} of {len(table):,} texts to {self.context} tokens (model.context)"] if cut else []
        )
        seconds = np.array([second for _, second, _ in rows])
        return Examples(table, ragged([ids for ids, _, _ in rows]), seconds, labels), notes

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest score."""
        low, high = self.config.low, self.config.high
        return 0.0 if low is None else low, 1.0 if high is None else high

    def frame(self, text: np.ndarray, other: np.ndarray | None = None) -> tuple[np.ndarray, int, bool]:
        """Make [CLS] text [SEP] other [SEP], cut to fit; return where the other begins, and if it was cut."""
        first, end = [[] if id is None else [id] for id in (self.first, self.end)]
        room = self.context - len(first) - len(end) * (1 if other is None else 2)
        half = room if other is None else max(room // 2, room - len(other))
        a = text[: max(1, min(half, room))]
        b = np.array([], dtype=np.int64) if other is None else other[: max(0, room - len(a))]
        ids = np.concatenate([first, a, end, b, [] if other is None else end]).astype(np.int64)
        shortened = len(a) < len(text) or (other is not None and len(b) < len(other))
        return ids, len(ids) if other is None else len(first) + len(a) + len(end), shortened

    def held_out(self, paths: Sequence[str]) -> Examples:
        table = read_labels(paths)
        if (table.labels is None) != (self.config.labels is None):
            kind = "a score" if self.config.labels is None else "a class"
            raise UserError(f"{paths[0]}: it has a {table.kind} for each text, but the model predicts {kind}")
        return self.examples(table)[0]

    def collate(self, data: Examples, rows: np.ndarray) -> Batch:
        """ids, attention mask and segments (B, T); the class or score (B,)."""
        ids, attention_mask = pad_rows(data.ids, rows)
        segments = segments_from(data.seconds[rows], attention_mask)
        return tuple(torch.from_numpy(x) for x in (ids, attention_mask, segments, data.labels[rows]))

    def evaluation_batches(self, data: Examples, tokens: int) -> Iterator[Batch]:
        """Batches as in training; for scores also the places of the rows, since their ranks are compared."""
        for rows in in_length_order(*self.lengths(data), tokens):
            *inputs, labels = self.collate(data, rows)
            places = [] if self.config.labels else [torch.from_numpy(row_places(rows, len(data)))]
            yield *inputs, *places, labels

    def batch_length(self, batch: Batch) -> int:
        return targets(batch)

    # Training

    @classmethod
    def add_head(cls, model: nn.Module, config: ClassifyConfig) -> nn.Module:
        """Add a head for these classes, or for a score; a model that writes needs none."""
        if config.r_drop and (writes_names(model) or not config.labels):
            raise UserError("task.r_drop is for classes that an encoder predicts, not for what is written")
        check_r_drop(config.r_drop, model)
        if not writes_names(model):
            return add_head(model, len(config.labels or (0,)), mean=config.mean)
        if config.smoothing:
            raise UserError(
                f"task.smoothing={config.smoothing}: labels that are written are not smoothed; leave it out"
            )
        return model

    @cached_property
    def names(self) -> WrittenNames:
        """The text that is written for each class, or for each of the scores."""
        low, high = self.bounds
        scores = [f"{low + (high - low) * i / (SCORES - 1):.4g}" for i in range(SCORES)]
        return WrittenNames(self.config.labels or scores, self.tokenizer, self.end or 0)

    def logits(self, model: ClassifyModel, ids: Tensor, attention_mask: Tensor, segments: Tensor) -> Tensor:
        """The logits of the classes (B, C), or the score (B, 1) before it is scaled to its bounds."""
        if writes_names(model):
            logits = self.names.likelihoods(model, ids, attention_mask)
            if self.config.labels is None:  # the mean of all scores by their probabilities
                scores = torch.linspace(0, 1, SCORES, dtype=logits.dtype, device=logits.device)
                logits = (logits.softmax(-1) @ scores)[:, None]
            return logits
        has_segments = getattr(model.config, "segments", 0) > 1
        return upcast(model(ids, attention_mask, segments if has_segments else None))

    def loss(self, model: ClassifyModel, *batch: Tensor) -> Tensor:
        *inputs, labels = batch
        if not writes_names(model):
            smoothing = self.config.smoothing if model.training else 0.0
            weights = self.weights_on(labels.device)
            if self.config.r_drop and model.training:
                logits = self.logits(model, *repeat_rows(*inputs))
                return r_drop(logits, labels, self.config.r_drop, smoothing, weights)
            return self._loss(self.logits(model, *inputs), labels, weights, smoothing)
        counts, number = labels != IGNORED, labels
        if self.config.labels is None:
            number = (labels * (SCORES - 1)).round().long()
        number = number.where(counts, 0)
        weights = self.weights_on(labels.device)
        weight = counts if weights is None else counts * weights[number]
        ids, attention_mask, _ = inputs
        return -(self.names.likelihoods(model, ids, attention_mask, number[:, None])[:, 0] * weight).sum()

    def predictions(self, model: ClassifyModel, *batch: Tensor) -> tuple[Tensor, Tensor]:
        *inputs, labels = batch
        return self.logits(model, *inputs), labels != IGNORED

    def _loss(self, logits: Tensor, labels: Tensor, weights: Tensor | None, smoothing: float) -> Tensor:
        """The sum of cross-entropies in nats, or of squared errors."""
        if self.config.labels is None:
            counts = labels != IGNORED
            return ((logits[:, 0] - labels).square() * counts).sum()
        return F.cross_entropy(
            logits, labels, weights, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
        )

    def measure(self, model: ClassifyModel, *batch: Tensor) -> Tensor:
        """The loss, and how often each class is right, predicted and true, or the score of each row."""
        *inputs, labels = batch
        places = inputs.pop() if self.config.labels is None else None
        logits = self.logits(model, *inputs)
        loss = self._loss(logits, labels, None, 0.0).double()[None]
        more = class_counts(logits, labels) if places is None else at_places(logits[:, 0], places)
        return torch.cat([loss, more.double()])

    def metrics(self, loss: float, count: int, data: Examples, *more: float) -> dict[str, float]:
        metrics = {"loss": loss / max(1, count)}
        if self.config.labels is not None:
            return metrics | count_scores(more)
        return metrics | {name: f(more, data.labels) for name, f in scoring.CORRELATIONS.items()}

    def guess(self, model: ClassifyModel, batches: Iterable[Batch], data: Examples) -> Guess | None:
        if self.config.labels is None and writes_names(model):  # a score is written
            return None
        return guess_targets(
            batches, len(self.config.labels or ()), self.config.smoothing, self.config.weights
        )

    def remark(self, *more: float) -> str | None:
        labels = self.config.labels
        return remark_on_classes(labels, more, self.config.balanced) if labels else None

    def preview(self, model: ClassifyModel, data: Examples, seed: int) -> str:
        sources = data.sources[:3]
        answers = [a.text for (a,) in self.answers(model, Request(sources))]
        return "\n".join(f"{s}\n  → {a}" for s, a in zip(sources, answers, strict=True))

    # Answers

    @torch.inference_mode()
    def answers(self, model: ClassifyModel, request: Request) -> list[list[Answer]]:
        """The likeliest classes of each text with their probabilities, or its score. A tab separates the two
        texts of a pair."""
        texts = request.inputs
        if not texts:
            return []
        parts = [[np.array(self.tokenizer.encode(part)) for part in text.split("\t")[:2]] for text in texts]
        rows = [self.frame(*several) for several in parts]
        ids = ragged([ids for ids, _, _ in rows])
        unknown = LabelledTexts(list(texts), None, None, [0.0] * len(texts))
        examples = Examples(unknown, ids, np.array([second for _, second, _ in rows]), np.zeros(len(texts)))
        device, answers = next(model.parameters()).device, [list[Answer]() for _ in texts]
        with evaluating(model):
            for numbers in in_length_order(ids.lengths, ids.lengths, TOKENS_AT_ONCE):
                *batch, _ = self.collate(examples, numbers)
                logits = self.logits(model, *(t.to(device) for t in batch))
                for number, row in zip(numbers.tolist(), logits.cpu(), strict=True):
                    answers[number] = self._answer(row, request.samples)
        return answers

    def count_tokens(self, input: str) -> tuple[int, int]:
        parts = [np.array(self.tokenizer.encode(part)) for part in input.split("\t")[:2]]
        specials = sum(id is not None for id in (self.first, *[self.end] * len(parts)))
        return len(self.frame(*parts)[0]) - specials, sum(map(len, parts))

    def _answer(self, logits: Tensor, samples: int) -> list[Answer]:
        if self.config.labels is None:
            low, high = self.bounds
            score = f"{low + float(logits[0]) * (high - low):.4f}"
            return [Answer(score, value=float(score))]
        return likeliest_classes(self.config.labels, logits, samples)

    def score_answers(self, answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        if self.config.labels is None:
            predicted, true = ([float(x) for x in side] for side in (answers, references))
            return {name: f(predicted, true) for name, f in scoring.CORRELATIONS.items()}
        return class_scores(self.config.labels, answers, references)

    def rate_answer(self, answer: str, reference: str) -> float:
        is_score = self.config.labels is None
        return -abs(float(answer) - float(reference)) if is_score else super().rate_answer(answer, reference)

    # Looking on

    def reading(self, model: ClassifyModel, input: str) -> Reading:
        reading = super().reading(model, input)
        if self.config.labels:
            reading.tokens["label"] = list(self.config.labels)
        return reading

    def outcome(self, result: Tensor, reading: Reading) -> dict[str, Tensor]:
        scores = self.config.labels is None and result.ndim == 1
        return {"logits": result} if scores else super().outcome(result, reading)

    def split_target(self, input: Any) -> tuple[str, str | None]:
        """Split a text, or two with a tab between, from its class, if one is given."""
        return (input, None) if isinstance(input, str) else (input[0], input[1])

    def source_prompt(self, model: ClassifyModel, source: str) -> Prompt:
        """The source that an encoder-decoder reads, and the tokens that a class's name begins with."""
        calls: list[Tensor] = []
        hook = model.embed.register_forward_pre_hook(lambda _, args: calls.append(args[0]))  # type: ignore[union-attr]
        try:
            self.answers(model, Request([source]))
        finally:
            hook.remove()
        return Prompt([int(calls[1][0, 0])], calls[0][0].tolist())

    def encode_target(self, prompt: Prompt, target: str) -> list[int]:
        return [*self.tokenizer.encode(target), self.end or 0]

    def write_target(self, model: ClassifyModel, prompt: Prompt, sampling: Sampling) -> list[int]:
        """The name of the likeliest class, or score."""
        assert writes_names(model)
        source = torch.tensor([prompt.source], device=next(model.parameters()).device)
        best = self.names.likelihoods(model, source, torch.ones_like(source, dtype=torch.bool)).argmax()
        return [i for i in self.names.ids.on(source.device)[best].tolist() if i >= 0]

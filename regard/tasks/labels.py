"""Labels: a text, or two, and its class or a score; or a tag for every word. Devlin et al. 2019, section 4.

A Transformer with an encoder and a decoder writes the name of the class, or the score: text to text, Raffel
et al. 2020. Its names compete by how likely it is to write each.

Shapes: B batch, T tokens, C classes, L tokens of a name.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import scoring
from regard.data import Corpus, DataConfig, in_length_order
from regard.data.encoding import tokenizer_for
from regard.data.labels import Labels, classes, labelled, numbered, split_labels
from regard.data.pairs import Ragged
from regard.errors import Mistake
from regard.generate import Sampling
from regard.loss import IGNORED
from regard.models import Labelled, Transformer
from regard.text import Tokenizer

from .answers import Answer
from .batches import Batch, padded, targets
from .fill import END, FIRST, SPECIALS
from .fill import PAD as BERT_PAD
from .pairs import PAD
from .task import Task

TOKENS_AT_ONCE = 8192
SCORES = 21  # that can be written, from the lowest to the highest


@dataclass(frozen=True, kw_only=True)
class ClassifyConfig:
    name: Literal["classify"]
    labels: tuple[str, ...] | None = None  # the classes, as found in the data; none: a score is told
    low: float | None = None  # the scores' range; none: as found in the data
    high: float | None = None
    balanced: bool = False  # rare classes count as much as frequent ones
    weights: tuple[float, ...] | None = None  # what each class counts, then; as found in the data
    smoothing: float = 0.0
    mean: bool = False  # a text is the mean of its tokens' vectors, not the one that its model has for this

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing={self.smoothing} must be from 0 to less than 1")


class Examples:
    """Texts as token ids, with numbers to learn: the class, or the score between 0 and 1."""

    def __init__(self, table: Labels, ids: Ragged, seconds: np.ndarray, wanted: np.ndarray):
        self.ids, self.seconds, self.wanted = ids, seconds, wanted  # `seconds`: where the second text begins
        self.sources = [text.replace("\t", " ") for text in table.texts]  # a tab parts the two
        if table.others is not None:
            self.sources = [f"{t}\t{o}" for t, o in zip(self.sources, table.others, strict=True)]
        self.targets = [str(x) for x in (table.labels if table.labels is not None else table.scores or [])]

    def __len__(self) -> int:
        return len(self.wanted)

    def describe(self) -> str:
        return f"{len(self):,} texts"

    def fingerprint(self) -> str:
        sha = hashlib.sha256()
        for array in (self.ids.ids, self.ids.lengths, self.wanted):
            sha.update(np.ascontiguousarray(array).tobytes())
        return sha.hexdigest()


class Classify(Task):
    kinds = ("bert", "gpt", "t5", "transformer")
    specials = SPECIALS
    data = DataConfig
    compares = True
    builtin = ("classify.tsv",), ("classify.valid.tsv",)

    def __init__(self, config: ClassifyConfig, tokenizer: Tokenizer, context: int, target: None = None):
        self.config, self.tokenizer, self.context = config, tokenizer, context
        self.first, self.end = (
            tokenizer.id(FIRST),
            tokenizer.id(END) if tokenizer.id(END) is not None else tokenizer.end,
        )
        self.best = None if config.labels is None else "accuracy"

    @classmethod
    def headed(cls, model: Any, config: ClassifyConfig) -> nn.Module:
        """The model with a head for these classes, or for a score; one that writes needs none."""
        if isinstance(model, Transformer):
            if config.smoothing:
                raise Mistake(
                    f"task.smoothing={config.smoothing}: what is written is not smoothed; leave it out"
                )
            return model
        if isinstance(model, Labelled):
            model = model.model  # another head's place
        made = Labelled(model, len(config.labels or (0,)), mean=config.mean, dropout=model.config.dropout)
        made.model.requires_grad_(True)
        for part in made.unused:  # by its own heads: what has no gradient would keep processes waiting
            part.requires_grad_(False)
        return made

    # making a model

    @classmethod
    def read(
        cls,
        paths: Sequence[str],
        valid: Sequence[str],
        data: DataConfig,
        config: ClassifyConfig,
        context: int,
        tokenizers: Sequence[Tokenizer] = (),
    ) -> Corpus:
        train, held = split_labels(labelled(paths), labelled(valid) if valid else None, data.holdout)
        sides = [
            (out, t) for out, part in ((False, train), (True, held)) for t in part.texts + (part.others or [])
        ]
        tokenizer = tokenizers[0] if tokenizers else tokenizer_for(sides, data, cls.specials)
        found: dict[str, Any] = {}
        if train.labels is not None:
            names = list(config.labels or classes(train.labels))
            found["labels"] = names
            if config.balanced:
                counts = np.bincount(numbered(train, names), minlength=len(names))
                found["weights"] = (counts.sum() / len(names) / np.maximum(counts, 1)).tolist()
        else:
            found["low"] = min(train.scores or [0.0]) if config.low is None else config.low
            found["high"] = max(train.scores or [1.0]) if config.high is None else config.high
        task = cls(ClassifyConfig(**vars(config) | found), tokenizer, context)
        learnt, notes = task.examples(train)
        measured = None
        if len(held):
            measured, more = task.examples(held)
            notes += [f"held out: {note}" for note in more]
        return Corpus(learnt, measured, tokenizer, found=found, notes=notes)

    def examples(self, table: Labels) -> tuple[Examples, list[str]]:
        """A table as ids; texts that are too long lose their ends, and a line says how many."""
        sides = [self.tokenizer.encode_batch(side) for side in (table.texts, table.others or []) if side]
        read = [self.framed(*(side[i] for side in sides)) for i in range(len(table))]
        ids = Ragged(np.concatenate([row for row, _, _ in read]), np.array([len(row) for row, _, _ in read]))
        if table.labels is not None:
            wanted = np.array(numbered(table, list(self.config.labels or ())))
        else:
            low, high = self.bounds
            wanted = (np.array(table.scores, dtype=np.float32) - low) / ((high - low) or 1.0)
        cut = sum(lost for _, _, lost in read)
        notes = (
            [f"cut {cut:,} of {len(table):,} texts to {self.context} tokens (model.context)"] if cut else []
        )
        return Examples(table, ids, np.array([second for _, second, _ in read]), wanted), notes

    @property
    def bounds(self) -> tuple[float, float]:
        low, high = self.config.low, self.config.high
        return 0.0 if low is None else low, 1.0 if high is None else high

    def framed(self, text: np.ndarray, other: np.ndarray | None = None) -> tuple[np.ndarray, int, bool]:
        """[CLS] text [SEP] other [SEP] as there is room, where the second begins, whether some was cut."""
        first, end = [[] if id is None else [id] for id in (self.first, self.end)]
        room = self.context - len(first) - len(end) * (1 if other is None else 2)
        half = room if other is None else max(room // 2, room - len(other))
        a = text[: max(1, min(half, room))]
        b = np.array([], dtype=np.int64) if other is None else other[: max(0, room - len(a))]
        ids = np.concatenate([first, a, end, b, [] if other is None else end]).astype(np.int64)
        lost = len(a) < len(text) or (other is not None and len(b) < len(other))
        return ids, len(ids) if other is None else len(first) + len(a) + len(end), lost

    def held_out(self, paths: Sequence[str]) -> Examples:
        table = labelled(paths)
        if (table.labels is None) != (self.config.labels is None):
            told = "a score" if self.config.labels is None else "a class"
            raise Mistake(f"{paths[0]}: it has a {table.kind} for each text, but the model tells {told}")
        return self.examples(table)[0]

    def collated(self, examples: Examples, rows: np.ndarray) -> Batch:
        """ids, real and segments (B, T); the class or score (B,)."""
        ids, real = padded(examples.ids, rows)
        segments = ((np.arange(real.shape[1]) >= examples.seconds[rows][:, None]) & real).astype(np.int64)
        return tuple(torch.from_numpy(x) for x in (ids, real, segments, examples.wanted[rows]))

    @cached_property
    def names(self) -> Tensor:
        """What is written for each class, or for each of the scores: ids (C, L), with an end."""
        low, high = self.bounds
        scores = [f"{low + (high - low) * i / (SCORES - 1):.4g}" for i in range(SCORES)]
        texts = self.config.labels or scores
        ids = [tuple(self.tokenizer.encode(text)) for text in texts]
        for i, some in enumerate(ids):
            if some in ids[:i]:
                both = f"{texts[ids.index(some)]!r} and {texts[i]!r}"
                raise Mistake(f"the tokenizer spells {both} alike; use another: --set data.tokenizer=bpe")
        names = torch.full((len(ids), 1 + max(map(len, ids))), IGNORED)
        for row, some in zip(names, ids, strict=True):
            row[: len(some) + 1] = torch.tensor([*some, self.end or 0])
        return names

    def likelihoods(self, model: Any, ids: Tensor, real: Tensor, which: Tensor | None = None) -> Tensor:
        """log p of writing each name after a text (B, C); or of those with the numbers `which` (B, n)."""
        names = self.names.to(ids.device)
        which = torch.arange(len(names), device=ids.device).expand(len(ids), -1) if which is None else which
        n, written = which.shape[1], names[which.flatten()]  # (B·n, L)
        pad = (self.tokenizer.id(name) for name in (PAD, BERT_PAD))
        target = written.clamp(min=0).roll(1, dims=1)
        target[:, 0] = next((id for id in pad if id is not None), 0)
        encoded = model.encode(ids, real).repeat_interleave(n, dim=0)  # (B·n, T, D)
        x = model.decode(target, encoded, real.repeat_interleave(n, dim=0))  # (B·n, L, D)
        logits = F.linear(x, model.output)  # (B·n, L, V)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        wrong = F.cross_entropy(logits.mT, written, ignore_index=IGNORED, reduction="none")  # (B·n, L)
        return -wrong.sum(1).view(-1, n)

    def logits(self, model: Any, ids: Tensor, real: Tensor, segments: Tensor) -> Tensor:
        """(B, C), or the score before it is brought between its bounds (B, 1)."""
        if isinstance(model, Transformer):
            found = self.likelihoods(model, ids, real)
            if self.config.labels is None:  # what is expected of the scores that might be written
                scores = torch.linspace(0, 1, SCORES, dtype=found.dtype, device=found.device)
                found = (found.softmax(-1) @ scores)[:, None]
            return found
        knows = getattr(model.config, "segments", 0) > 1
        logits: Tensor = model(ids, real, segments if knows else None)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def loss(self, model: Any, *batch: Tensor) -> Tensor:
        *read, wanted = batch
        if not isinstance(model, Transformer):
            smoothing = self.config.smoothing if model.training else 0.0
            return self._loss(self.logits(model, *read), wanted, smoothing)
        counts, number = wanted != IGNORED, wanted
        if self.config.labels is None:
            number = (wanted * (SCORES - 1)).round().long()
        number = number.where(counts, 0)
        weight = counts if (found := self._weight(wanted.device)) is None else counts * found[number]
        ids, real, _ = read
        return -(self.likelihoods(model, ids, real, number[:, None])[:, 0] * weight).sum()

    def _weight(self, device: torch.device) -> Tensor | None:
        """What each class counts."""
        return None if self.config.weights is None else torch.tensor(self.config.weights, device=device)

    def _loss(self, logits: Tensor, wanted: Tensor, smoothing: float = 0.0) -> Tensor:
        """The sum of cross-entropies in nats, or of squared errors."""
        if self.config.labels is None:
            counts = wanted != IGNORED
            return ((logits[:, 0] - wanted).square() * counts).sum()
        weight = self._weight(logits.device)
        return F.cross_entropy(
            logits, wanted, weight, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
        )

    def measure(self, model: Any, *batch: Tensor) -> Tensor:
        """The loss, and how many classes were right."""
        *read, wanted = batch
        logits = self.logits(model, *read)
        right = (logits.argmax(-1) == wanted).sum() if self.config.labels is not None else torch.zeros(())
        return torch.stack([self._loss(logits, wanted).double(), right.to(logits.device).double()])

    def metrics(self, loss: float, count: int, examples: Examples, right: float) -> dict[str, float]:
        found = {"loss": loss / max(1, count)}
        return found if self.config.labels is None else found | {"accuracy": right / max(1, count)}

    def covered(self, batch: Batch) -> int:
        return targets(batch)

    def sample(self, model: Any, examples: Examples, seed: int) -> str:
        """A few texts, and what the model thinks of them."""
        sources = examples.sources[:3]
        told = [a.text for (a,) in self.answers(model, sources, Sampling())]
        return "\n".join(f"{s}\n  → {t}" for s, t in zip(sources, told, strict=True))

    def judged(self, answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        if self.config.labels is None:
            told, true = ([float(x) for x in side] for side in (answers, references))
            return {"spearman": scoring.spearman(told, true), "pearson": scoring.pearson(told, true)}
        return judged(self.config.labels, answers, references)

    # using it

    @torch.inference_mode()
    def answers(
        self,
        model: Any,
        texts: Sequence[str],
        sampling: Sampling,
        stop: Sequence[str] = (),
        samples: int = 1,
    ) -> list[list[Answer]]:
        """The class of each text with its probability, and the next likeliest if `samples` are asked for; or
        its score. A tab parts a text from the other one."""
        if not texts:
            return []
        parts = [[np.array(self.tokenizer.encode(part)) for part in text.split("\t")[:2]] for text in texts]
        read = [self.framed(*some) for some in parts]
        ids = Ragged(np.concatenate([ids for ids, _, _ in read]), np.array([len(ids) for ids, _, _ in read]))
        unknown = Labels(list(texts), None, None, [0.0] * len(texts))
        seconds = np.array([second for _, second, _ in read])
        examples = Examples(unknown, ids, seconds, np.zeros(len(texts)))
        device, training = next(model.parameters()).device, model.training
        told: list[list[Answer]] = [[] for _ in texts]
        model.eval()
        for rows in in_length_order(ids.lengths, ids.lengths, TOKENS_AT_ONCE):
            *batch, _ = self.collated(examples, rows)
            logits = self.logits(model, *(t.to(device) for t in batch))
            for row, some in zip(rows.tolist(), logits.cpu(), strict=True):
                told[row] = self.told(some, samples)
        model.train(training)
        return told

    def told(self, logits: Tensor, samples: int) -> list[Answer]:
        if self.config.labels is None:
            low, high = self.bounds
            return [Answer(f"{low + float(logits[0]) * (high - low):.4f}")]
        return likeliest(self.config.labels, logits, samples)


def judged(labels: Sequence[str], answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """How well classes were told; of two, the second is the one looked for."""
    two = labels[1] if len(labels) == 2 else None
    return {"f1": scoring.f1(answers, references, two), "matthews": scoring.matthews(answers, references)}


def likeliest(labels: Sequence[str], logits: Tensor, count: int) -> list[Answer]:
    """The best classes with their probabilities."""
    best = logits.softmax(-1).topk(min(count, len(logits)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [Answer(labels[i], p) for i, p in pairs]

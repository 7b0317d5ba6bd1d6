"""Sentence embeddings: texts that mean the same get similar vectors. Reimers & Gurevych 2019.

Shapes: B pairs of a process, N pairs of all processes, T tokens, D width.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.cache import masked_mean
from regard.data import Corpus, DataConfig, in_length_order
from regard.data.ragged import Ragged
from regard.describe.texts import Text
from regard.describe.values import Description
from regard.describe.watch import evaluating
from regard.errors import UserError
from regard.models import Bert, Elmo
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
    targets,
)
from regard.tasks.fill import END, FIRST, SPECIALS
from regard.tasks.heads import encoder_only
from regard.tasks.loss import IGNORED
from regard.tasks.reading import Reading, on_device
from regard.tasks.request import DataRequest, Request
from regard.tasks.similarity import LINES_AT_ONCE, LineIndex, Texts, read_similar_pairs, split_data
from regard.tasks.task import Task, upcast

CANDIDATES = 64  # the number of candidates among which the partner is searched in evaluations
DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class EmbedConfig:
    name: Literal["embed"]
    temperature: float = 0.05  # τ: the smaller, the more the nearest of the wrong ones count
    pooling: Literal["mean", "first"] = "mean"  # of the tokens' hidden states: their mean, or that of [CLS]
    normalize: bool = True  # answer with vectors of length 1; training always uses cosines
    longest: int | None = None  # the largest number of tokens of a text, unless the context is shorter
    low: float | None = None  # the scores' range; None: as found in the data
    high: float | None = None
    metric: Literal["spearman", "loss"] | None = None  # chooses the best weights; None: by the data

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature} must be more than 0")
        if self.longest is not None and self.longest < 3:
            raise ValueError(f"longest={self.longest} must be 3 or more")


class Examples:
    """Pairs of texts as token ids, with labels: how similar they are, from 0 to 1; or 0 for pairs without
    scores, which mean the same."""

    def __init__(self, pairs: Sequence[Texts], ids: tuple[Ragged, ...], labels: np.ndarray):
        self.sources, self.targets = ([pair[side] for pair in pairs] for side in (0, 1))
        width = len(ids)  # 3 of triplets
        self.ids, self.labels = ids, labels
        known: dict[str, int] = {}
        numbers = [[known.setdefault(text, len(known)) for text in pair] for pair in pairs]
        self.text_numbers = np.array(numbers, dtype=np.int64).reshape(-1, width)  # equal for equal texts

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def scored(self) -> bool:
        return bool(self.labels.dtype == np.float32)

    def describe(self) -> str:
        more = " with scores" if self.scored else " with negatives" if len(self.ids) > 2 else ""
        return f"{len(self):,} pair{'s' * (len(self) != 1)}{more}"

    def fingerprint(self) -> str:
        return fingerprint((*(x for side in self.ids for x in (side.lengths, side.ids)), self.labels))


class Embed(Task[EmbedConfig, Examples, Bert | Elmo]):
    """A text's vector is the mean of its tokens' hidden states. Pairs that mean the same are trained against
    the other pairs of the batch, both ways; so the batch is part of the problem, and parts of it would be an
    easier one: `train.micro` is refused. Processes that share a batch gather their vectors, so that each pair
    competes with all others, and N processes learn what one would. Pairs with scores are trained one by one.
    """

    kinds = ("bert",)
    specials = SPECIALS
    data_config = DataConfig
    builtin = ("embed.tsv",), ("embed.valid.tsv",)
    divisible_batches = False
    embeds = True
    data_settings = ("low", "high", "metric")
    extra_options = ("within",)  # the file whose nearest lines are the answers
    inherits = ("pooling", "normalize", "longest")
    nearest = 5  # the number of lines that are returned by default

    def setup(self) -> None:
        end = self.tokenizer.id(END)
        self.first, self.end = self.tokenizer.id(FIRST), self.tokenizer.end if end is None else end
        self.lines: LineIndex | None = None  # of the file that was searched last
        self.best_metric = None if self.config.metric == "loss" else self.config.metric

    # Data

    @classmethod
    def read(cls, request: DataRequest[EmbedConfig]) -> Corpus:
        paths, config = request.paths, request.config
        train, held = split_data(paths, request.valid, request.data.holdout)
        sides = [(out, t) for out, part in ((False, train), (True, held)) for pair in part[0] for t in pair]
        tokenizer = request.tokenizer(sides, cls.specials)
        settings: dict[str, Any] = {}
        if train[1] is not None:
            low, high = min(train[1]), max(train[1])
            if low == high:
                raise UserError(
                    f"{paths[0]}: all scores are {low:g}; to learn from them, they have to differ"
                )
            settings = {"low": low, "high": high, "metric": "spearman"}
        chosen = {k: v for k, v in vars(config).items() if v is not None}
        task = cls(EmbedConfig(**settings | chosen), tokenizer, request.context)
        training, notes = task.examples(*train)
        if not len(training):
            raise UserError(f"{paths[0]}: no pair has a text on both sides; give others")
        valid, more = encode_held_out(lambda pairs: task.examples(pairs, held[1]), held[0])
        return Corpus(training, valid or None, tokenizer, task_settings=settings, notes=notes + more)

    def held_out(self, paths: Sequence[str]) -> Examples:
        examples, _ = self.examples(*read_similar_pairs(paths))
        if not len(examples):
            raise UserError(f"{paths[0]}: no pair has a text on both sides; give others")
        return examples

    def examples(self, pairs: Sequence[Texts], scores: Sequence[float] | None) -> tuple[Examples, list[str]]:
        """Encode pairs; texts that are too long are cut at the end, and notes say how many."""
        keep = [row for row, pair in enumerate(pairs) if all(pair)]
        notes = []
        if len(keep) < len(pairs):
            notes += [f"dropped {len(pairs) - len(keep):,} of {len(pairs):,} pairs: an empty side"]
        pairs = [pairs[row] for row in keep]
        sides, cut = [], 0
        for side in range(len(pairs[0]) if pairs else 2):
            rows = [self.frame(ids) for ids in self.tokenizer.encode_batch([pair[side] for pair in pairs])]
            sides.append(ragged([ids for ids, _ in rows]))
            cut += sum(shortened for _, shortened in rows)
        if cut:
            notes += [f"cut {cut:,} of {len(sides) * len(pairs):,} texts to {self.room} tokens"]
        labels: np.ndarray = np.zeros(len(pairs), dtype=np.int64)
        if scores is not None:
            low, high = self.config.low, self.config.high
            low = min(scores) if low is None else low  # for a model that was not trained on scores
            high = max(scores) if high is None else high
            numbers = np.array([scores[row] for row in keep], dtype=np.float32)
            labels = (numbers - np.float32(low)) / np.float32((high - low) or 1.0)
        return Examples(pairs, tuple(sides), labels), notes

    @property
    def room(self) -> int:
        return min(self.context, self.config.longest or self.context)

    @property
    def text_limit(self) -> int:
        return self.room - 2

    def frame(self, text: np.ndarray) -> tuple[np.ndarray, bool]:
        """Make [CLS] text [SEP], cut to fit; return it, and whether it was cut."""
        first, end = ([] if id is None else [id] for id in (self.first, self.end))
        longest = max(1, self.room - len(first) - len(end))
        ids = np.concatenate([np.array(first, np.int64), text[:longest], np.array(end, np.int64)])
        return ids.astype(np.int64), len(text) > longest

    def lengths(self, data: Examples) -> tuple[np.ndarray, np.ndarray]:
        first, *more = (side.lengths for side in data.ids)
        return first, np.maximum.reduce(more)

    def collate(self, data: Examples, rows: np.ndarray) -> Batch:
        """The ids and attention mask (B, T) of both sides, and of negatives if there are any; the indices of
        the texts (B, 2 or 3), and labels (B,)."""
        sides = [x for side in data.ids for x in pad_rows(side, rows)]
        return tuple(torch.from_numpy(x) for x in (*sides, data.text_numbers[rows], data.labels[rows]))

    def evaluation_batches(self, data: Examples, tokens: int) -> Iterator[Batch]:
        """Batches of pairs; with scores also the places of the rows, since their ranks are compared."""
        for rows in self.groups(data):
            *sides, numbers, labels = self.collate(data, rows)
            inputs = [*sides[:4], numbers[:, :2]]  # as many candidates with negatives as without
            places = [torch.from_numpy(row_places(rows, len(data)))] if data.scored else []
            yield *inputs, *places, labels

    def groups(self, data: Examples) -> Iterator[np.ndarray]:
        """All pairs once, in groups of equal size: in a larger group, the partner would be harder to find."""
        longer = np.maximum(*(side.lengths for side in data.ids[:2]))
        order = np.argsort(longer, kind="stable")
        for i in range(0, len(order), CANDIDATES):
            yield order[i : i + CANDIDATES]

    def batch_length(self, batch: Batch) -> int:
        return targets(batch)

    def count_read(self, batch: Batch) -> dict[str, float]:
        return {"tokens": sum(int(mask.sum()) for mask in batch[1:-2:2])}

    # Training

    @classmethod
    def add_head(cls, model: nn.Module, config: EmbedConfig) -> Bert | Elmo:
        """Return the encoder alone, without a head."""
        return encoder_only(model)

    def pool(self, model: Bert | Elmo, ids: Tensor, attention_mask: Tensor) -> Tensor:
        """A vector for each text."""
        x = upcast(model.encode(ids, attention_mask))  # (B, T, D)
        return x[:, 0] if self.config.pooling == "first" else masked_mean(x, attention_mask)

    def unit_vectors(self, model: Bert | Elmo, *sides: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors of length 1 for both sides of the pairs (N, D), from ids and attention masks; vectors of
        negatives are appended to the second side (N, 2 D)."""
        ids, masks = sides[::2], sides[1::2]
        u, *v = (F.normalize(self.pool(model, *side), dim=1) for side in zip(ids, masks, strict=True))
        return u, torch.cat(v, dim=1)

    def loss(self, model: Bert | Elmo, *batch: Tensor) -> Tensor:
        """The sum over pairs of the squared difference between cosine and score; or of the cross-entropy of
        finding the partner of either side, in nats."""
        *sides, numbers, labels = batch
        u, v = self.unit_vectors(model, *sides)
        if labels.is_floating_point() or not model.training or self.gather is None:
            return self.compare(u, v, numbers, labels)[0]
        return self.compare(*self.gather(u, v, numbers, labels))[0]

    def measure(self, model: Bert | Elmo, *batch: Tensor) -> Tensor:
        """The loss; how many partners were found, or the cosine of each row."""
        *sides, numbers, labels = batch[:5] + batch[-1:]
        u, v = self.unit_vectors(model, *sides)
        loss, right = (x.double()[None] for x in self.compare(u, v, numbers, labels))
        more = at_places((u * v).sum(1), batch[5]) if labels.is_floating_point() else right
        return torch.cat([loss, more])

    def compare(
        self, u: Tensor, v: Tensor, numbers: Tensor, labels: Tensor, rows: slice = slice(None)
    ) -> tuple[Tensor, Tensor]:
        """Vectors of length 1 (N, D): the loss over some rows of them, and how many partners were found."""
        counts = (labels != IGNORED)[rows]
        if labels.is_floating_point():
            return (((u * v).sum(1) - labels).square() * counts).sum(), torch.zeros((), device=u.device)
        v, *negatives = v.split(u.shape[1], dim=1)
        forth, back = self.logits(u, v, numbers[:, :2], labels)
        if negatives:
            forth = torch.cat(
                [forth, self.negative_logits(u, negatives[0], numbers, labels)], dim=1
            )  # (N, 2N)
        partners = torch.arange(len(u), device=u.device)[rows]
        losses = [F.cross_entropy(logits[rows], partners, reduction="none") for logits in (forth, back)]
        right = (forth[rows].argmax(1) == partners) & counts
        return ((losses[0] + losses[1]) / 2 * counts).sum(), right.sum()

    def logits(self, u: Tensor, v: Tensor, numbers: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """u vᵀ/τ and v uᵀ/τ (N, N): InfoNCE, van den Oord et al. 2018, equation 4.

        A text that may mean the same as the partner does not count: the same text again, or another partner
        of it.
        """
        own = torch.eye(len(u), dtype=torch.bool, device=u.device)
        first, second = numbers[:, None] == numbers[None], numbers[:, None] == numbers[None].flip(-1)
        absent = (labels == IGNORED)[None, :].expand(len(u), -1)  # padding rows of processes without data
        forth = first.any(-1) | second[..., 0] | absent  # a_i is b_j
        back = first.any(-1) | second[..., 1] | absent  # b_i is a_j
        kind = u.device.type
        exact = nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)
        with exact:  # τ would amplify the rounding errors of bfloat16
            cosines = u @ v.T / self.config.temperature  # (N, N)
        return cosines.masked_fill(forth & ~own, -torch.inf), cosines.T.masked_fill(back & ~own, -torch.inf)

    def negative_logits(self, u: Tensor, w: Tensor, numbers: Tensor, labels: Tensor) -> Tensor:
        """u wᵀ/τ (N, N), where w are the negatives: similar texts with another meaning. A negative that
        equals a text or its partner does not count."""
        kind = u.device.type
        with nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False):
            cosines = u @ w.T / self.config.temperature
        same = (numbers[:, None, :2] == numbers[None, :, 2:]).any(-1) | (labels == IGNORED)[None, :]
        return cosines.masked_fill(same, -torch.inf)

    def metrics(self, loss: float, count: int, data: Examples, *more: float) -> dict[str, float]:
        metrics = {"loss": loss / max(1, count)}
        if data.scored:
            return metrics | {name: f(more, data.labels) for name, f in scoring.CORRELATIONS.items()}
        return metrics | {"accuracy": more[0] / max(1, count)}

    def preview(self, model: Bert | Elmo, data: Examples, seed: int) -> str:
        """A few pairs, and their cosines."""
        few = data.sources[:3], data.targets[:3]
        u, v = (F.normalize(self.vectors(model, side), dim=1) for side in few)
        cosines = (u * v).sum(1).tolist()
        return "\n".join(f"{a}\n  {c:.2f}  {b}" for a, b, c in zip(*few, cosines, strict=True))

    def score(self, model: Bert | Elmo, data: Examples) -> dict[str, float]:
        """The loss, and the correlation of scores with cosines, or how often the partner is the nearest."""
        u, v = (F.normalize(self.vectors(model, side), dim=1) for side in (data.sources, data.targets))
        numbers, labels = (torch.from_numpy(x) for x in (data.text_numbers, data.labels))
        groups = (torch.from_numpy(rows) for rows in self.groups(data))
        sums = [self.compare(u[rows], v[rows], numbers[rows], labels[rows]) for rows in groups]
        loss, right = (sum(float(x) for x in column) for column in zip(*sums, strict=True))
        scores = self.metrics(loss, len(data), data, *((u * v).sum(1).tolist() if data.scored else [right]))
        if data.scored:
            return scores
        right = 0
        for i in range(0, len(u), LINES_AT_ONCE):
            block = slice(i, i + LINES_AT_ONCE)
            best = torch.full((len(u[block]),), -torch.inf)
            where = torch.zeros(len(best), dtype=torch.int64)
            for j in range(0, len(v), LINES_AT_ONCE):
                cosine, at = (u[block] @ v[j : j + LINES_AT_ONCE].T).max(1)
                where = torch.where(cosine > best, at + j, where)
                best = torch.maximum(best, cosine)
            right += int((numbers[where, 1] == numbers[block, 1]).sum())
        return scores | {"recall_at_1": right / len(u)}

    # Answers

    @torch.inference_mode()
    def vectors(self, model: Bert | Elmo, texts: Sequence[str | Sequence[int]]) -> Tensor:
        """A vector for each text or its token ids, (N, D), on the CPU; with `normalize`, of length 1."""
        device, vectors = next(model.parameters()).device, torch.zeros(len(texts), model.config.dim)
        if not texts:
            return vectors
        coming = iter(self.tokenizer.encode_batch([text for text in texts if isinstance(text, str)]))
        encoded = [next(coming) if isinstance(text, str) else np.array(text, np.int64) for text in texts]
        ids = ragged([self.frame(row)[0] for row in encoded])
        with evaluating(model):
            for rows in in_length_order(ids.lengths, ids.lengths, TOKENS_AT_ONCE):
                batch = (torch.from_numpy(x).to(device) for x in pad_rows(ids, rows))
                vectors[torch.from_numpy(rows)] = self.pool(model, *batch).cpu()
        return F.normalize(vectors, dim=1) if self.config.normalize else vectors

    def answers(self, model: Bert | Elmo, request: Request) -> list[list[Answer]]:
        """Each text's vector as JSON; or the nearest lines of the file `within`, with cosines."""
        vectors, within = self.vectors(model, request.inputs), request.options.get("within")
        if within is None:
            rounded = [[round(x, DIGITS) for x in v] for v in vectors.tolist()]
            return [[Answer(json.dumps(v), value=v)] for v in rounded]
        if self.lines is None or self.lines.path != str(within):
            self.lines = LineIndex(str(within), lambda texts: self.vectors(model, texts))
        nearest = self.lines.nearest(F.normalize(vectors, dim=1), request.samples)
        return [[Answer(line, round(cosine, DIGITS)) for line, cosine in several] for several in nearest]

    def count_tokens(self, input: str) -> tuple[int, int]:
        ids = self.tokenizer.encode_batch([input])[0]
        specials = sum(id is not None for id in (self.first, self.end))
        return len(self.frame(ids)[0]) - specials, len(ids)

    def default_samples(self, options: dict[str, Any]) -> int:
        return self.nearest if "within" in options else 1

    # Looking on

    def reading(self, model: Bert | Elmo, input: str) -> Reading:
        ids = self.frame(self.tokenizer.encode_batch([input])[0])[0].tolist()
        (row,) = on_device(model, ids)
        mask = torch.ones_like(row, dtype=torch.bool)
        read, count = self.count_tokens(input)
        tokens = {"text": self.tokenizer.tokens(ids)}
        return Reading({"text": ids}, tokens, lambda: self.pool(model, row, mask), unread=count - read)

    def outcome(self, result: Tensor, reading: Reading) -> dict[str, Tensor]:
        return {"vector": result}

    def describe(self, d: Description, model: Bert | Elmo, dims: int) -> None:
        x, first = model.describe(Description(), head=False), self.config.pooling == "first"
        op = {"does": "same", "x": x, "row": 0} if first else {"does": "mean", "x": x}
        about = f"One vector for the whole text: {'that of the first token' if first else 'the mean of all'}."
        d.see("vector", op, Text("Vector", about, "x_0" if first else "mean_t(x_t)"), box="Vector")

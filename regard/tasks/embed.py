"""Sentences as vectors: those that mean the same come near each other. Reimers & Gurevych 2019.

Shapes: B pairs of a process, N pairs of all processes, T tokens, D width.
"""

import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from regard import distributed, scoring
from regard.data import Corpus, DataConfig, in_length_order, text_pairs
from regard.data.encoding import tokenizer_for
from regard.data.labels import SUFFIXES, Labels, labelled, split_labels
from regard.data.pairs import Pair, Ragged, split_pairs
from regard.data.reading import decoded, empty, holds, in_folder, json_rows, lines
from regard.display import progress
from regard.errors import Mistake
from regard.generate import Sampling
from regard.loss import IGNORED
from regard.models import Labelled
from regard.text import Tokenizer

from .answers import Answer
from .batches import Batch, padded, targets
from .fill import END, FIRST, SPECIALS
from .task import Task

TOKENS_AT_ONCE = 8192
CANDIDATES = 64  # pairs among which the partner is looked for, when measuring
LINES_AT_ONCE = 4096  # of a file that is searched, from text to vectors
VECTORS_AT_ONCE = 65536  # of these, compared with a question
DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class EmbedConfig:
    name: Literal["embed"]
    temperature: float = 0.05  # τ: the smaller, the more the nearest of the wrong ones count
    pooling: Literal["mean", "first"] = "mean"  # of the tokens' vectors: their mean, or [CLS]'s
    normalize: bool = True  # vectors of length 1 are told; learning always goes by cosines
    longest: int | None = None  # tokens of a text that are read, if the context does not allow fewer
    low: float | None = None  # the scores' range, as found in the data
    high: float | None = None

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature} must be more than 0")
        if self.longest is not None and self.longest < 3:
            raise ValueError(f"longest={self.longest} must be 3 or more")


class Examples:
    """Pairs of texts as token ids, with what is known of each: how alike they are, from 0 to 1; or no more
    than that they mean the same."""

    def __init__(self, pairs: Sequence[Pair], ids: tuple[Ragged, Ragged], wanted: np.ndarray):
        self.sources, self.targets = ([pair[side] for pair in pairs] for side in (0, 1))
        self.ids, self.wanted = ids, wanted
        known: dict[str, int] = {}
        numbers = [[known.setdefault(text, len(known)) for text in pair] for pair in pairs]
        self.who = np.array(numbers, dtype=np.int64).reshape(-1, 2)  # the same number for the same text

    def __len__(self) -> int:
        return len(self.wanted)

    @property
    def scored(self) -> bool:
        return bool(self.wanted.dtype == np.float32)

    def describe(self) -> str:
        return f"{len(self):,} pair{'s' * (len(self) != 1)}{' with scores' if self.scored else ''}"

    def fingerprint(self) -> str:
        sha = hashlib.sha256()
        for array in (*(x for side in self.ids for x in (side.lengths, side.ids)), self.wanted):
            sha.update(np.ascontiguousarray(array).tobytes())
        return sha.hexdigest()


class Embed(Task):
    """A text's vector is the mean of its tokens'. Pairs that mean the same are learnt against the other pairs
    of the batch, both ways; so the batch belongs to the problem, and parts of it would be an easier one:
    `train.micro` is refused. Processes that share a batch tell each other their vectors, so that each pair is
    held against all others, and N of them learn what one would. Pairs with scores are learnt one by one.
    """

    kinds = ("bert",)
    specials = SPECIALS
    data = DataConfig
    builtin = ("embed.tsv",), ("embed.valid.tsv",)
    extras = ("within",)  # a file, whose nearest lines are told
    whole = True  # a step's batch cannot be cut into parts
    inherits = ("pooling", "normalize", "longest")  # from a model that it starts from
    nearest = 5  # lines that are told, if nothing else is asked for

    def __init__(self, config: EmbedConfig, tokenizer: Tokenizer, context: int, target: None = None):
        self.config, self.tokenizer, self.context = config, tokenizer, context
        end = tokenizer.id(END)
        self.first, self.end = tokenizer.id(FIRST), tokenizer.end if end is None else end
        self.lines: Lines | None = None  # of the file that was searched last

    @classmethod
    def headed(cls, model: Any, config: EmbedConfig) -> nn.Module:
        """The encoder alone."""
        if isinstance(model, Labelled):
            model = model.model
        model.requires_grad_(True)
        # no part in it: what has no gradient would keep processes waiting
        for part in (model.transform, model.transform_norm, model.bias, model.next, model.pooler):
            part.requires_grad_(False)
        return model

    # making a model

    @classmethod
    def read(
        cls,
        paths: Sequence[str],
        valid: Sequence[str],
        data: DataConfig,
        config: EmbedConfig,
        context: int,
        tokenizers: Sequence[Tokenizer] = (),
    ) -> Corpus:
        train, held = parted(paths, valid, data.holdout)
        sides = [(out, t) for out, part in ((False, train), (True, held)) for pair in part[0] for t in pair]
        tokenizer = tokenizers[0] if tokenizers else tokenizer_for(sides, data, cls.specials)
        found: dict[str, Any] = {}
        if train[1] is not None:
            low, high = min(train[1]), max(train[1])
            if low == high:
                raise Mistake(f"{paths[0]}: all scores are {low:g}; to learn from them, they have to differ")
            found = {"low": low, "high": high}
        task = cls(
            EmbedConfig(**found | {k: v for k, v in vars(config).items() if v is not None}),
            tokenizer,
            context,
        )
        learnt, notes = task.examples(*train)
        if not len(learnt):
            raise Mistake(f"{paths[0]}: no pair has a text on both sides; give others")
        measured = None
        if held[0]:
            measured, more = task.examples(*held)
            notes += [f"held out: {note}" for note in more]
        return Corpus(learnt, measured if measured else None, tokenizer, found=found, notes=notes)

    def held_out(self, paths: Sequence[str]) -> Examples:
        examples, _ = self.examples(*pairs_of(paths))
        if not len(examples):
            raise Mistake(f"{paths[0]}: no pair has a text on both sides; give others")
        return examples

    def examples(self, pairs: Sequence[Pair], scores: Sequence[float] | None) -> tuple[Examples, list[str]]:
        """Pairs as ids; what is too long loses its end, and lines say how often."""
        keep = [row for row, pair in enumerate(pairs) if all(pair)]
        notes = []
        if len(keep) < len(pairs):
            notes += [f"dropped {len(pairs) - len(keep):,} of {len(pairs):,} pairs: an empty side"]
        pairs = [pairs[row] for row in keep]
        sides, cut = [], 0
        for side in (0, 1):
            framed = [self.framed(ids) for ids in self.tokenizer.encode_batch([pair[side] for pair in pairs])]
            sides.append(ragged([ids for ids, _ in framed]))
            cut += sum(lost for _, lost in framed)
        if cut:
            notes += [f"cut {cut:,} of {2 * len(pairs):,} texts to {self.room} tokens"]
        wanted: np.ndarray = np.zeros(len(pairs), dtype=np.int64)
        if scores is not None:
            low, high = self.config.low, self.config.high
            low = min(scores) if low is None else low  # of a model that has learnt from no scores
            high = max(scores) if high is None else high
            kept = np.array([scores[row] for row in keep], dtype=np.float32)
            wanted = (kept - np.float32(low)) / np.float32((high - low) or 1.0)
        return Examples(pairs, (sides[0], sides[1]), wanted), notes

    @property
    def room(self) -> int:
        return min(self.context, self.config.longest or self.context)

    def framed(self, text: np.ndarray) -> tuple[np.ndarray, bool]:
        """[CLS] text [SEP] as there is room, and whether some was cut."""
        first, end = ([] if id is None else [id] for id in (self.first, self.end))
        most = max(1, self.room - len(first) - len(end))
        whole = np.concatenate([np.array(first, np.int64), text[:most], np.array(end, np.int64)])
        return whole.astype(np.int64), len(text) > most

    def lengths(self, examples: Examples) -> tuple[np.ndarray, np.ndarray]:
        a, b = examples.ids
        return a.lengths, b.lengths

    def collated(self, examples: Examples, rows: np.ndarray) -> Batch:
        """ids and real (B, T) of both sides, who (B, 2), and what is known of the pairs (B,)."""
        sides = [x for side in examples.ids for x in padded(side, rows)]
        return tuple(torch.from_numpy(x) for x in (*sides, examples.who[rows], examples.wanted[rows]))

    def in_order(self, examples: Examples, tokens: int) -> Iterator[Batch]:
        for rows in self.groups(examples):
            yield self.collated(examples, rows)

    def groups(self, examples: Examples) -> Iterator[np.ndarray]:
        """All pairs once. Always as many together: among more, the partner would be harder to find."""
        longer = np.maximum(*(side.lengths for side in examples.ids))
        order = np.argsort(longer, kind="stable")
        for i in range(0, len(order), CANDIDATES):
            yield order[i : i + CANDIDATES]

    def pooled(self, model: Any, ids: Tensor, real: Tensor) -> Tensor:
        """A vector for each text."""
        x = model.encode(ids, real)  # (B, T, D)
        x = x.to(torch.promote_types(x.dtype, torch.float32))  # (B, T, D)
        if self.config.pooling == "first":
            return x[:, 0]
        y = (x * real[..., None]).sum(1) / real.sum(1, keepdim=True)  # (B, D)
        return y

    def loss(self, model: Any, *batch: Tensor) -> Tensor:
        """The sum over pairs, of the squared difference between cosine and score; or of what it takes to find
        the partner of either side, in nats."""
        a, a_real, b, b_real, who, wanted = batch
        u, v = self.unit(model, a, a_real), self.unit(model, b, b_real)
        if wanted.is_floating_point() or not model.training:
            return self.compared(u, v, who, wanted)[0]
        return self.compared(*gathered(u, v, who, wanted))[0]

    def measure(self, model: Any, *batch: Tensor) -> Tensor:
        """The loss, and how many partners were found."""
        a, a_real, b, b_real, who, wanted = batch
        u, v = self.unit(model, a, a_real), self.unit(model, b, b_real)
        return torch.stack([x.double() for x in self.compared(u, v, who, wanted)])

    def compared(
        self, u: Tensor, v: Tensor, who: Tensor, wanted: Tensor, rows: slice = slice(None)
    ) -> tuple[Tensor, Tensor]:
        """Vectors of length 1 (N, D): the loss over some rows of them, and how many partners were found."""
        counts = (wanted != IGNORED)[rows]
        if wanted.is_floating_point():
            return (((u * v).sum(1) - wanted).square() * counts).sum(), torch.zeros((), device=u.device)
        forth, back = self.logits(u, v, who, wanted)
        aim = torch.arange(len(u), device=u.device)[rows]
        lost = [F.cross_entropy(logits[rows], aim, reduction="none") for logits in (forth, back)]
        right = (forth[rows].argmax(1) == aim) & counts
        return ((lost[0] + lost[1]) / 2 * counts).sum(), right.sum()

    def unit(self, model: Any, ids: Tensor, real: Tensor) -> Tensor:
        return F.normalize(self.pooled(model, ids, real), dim=1)

    def logits(self, u: Tensor, v: Tensor, who: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """u vᵀ/τ and v uᵀ/τ (N, N): InfoNCE, van den Oord et al. 2018, equation 4.

        What may mean the same as the partner is no candidate: the same text once more, or another's partner.
        """
        own = torch.eye(len(u), dtype=torch.bool, device=u.device)
        first, second = who[:, None] == who[None], who[:, None] == who[None].flip(-1)
        absent = (wanted == IGNORED)[None, :].expand(len(u), -1)  # of those that only keep time
        forth = first.any(-1) | second[..., 0] | absent  # a_i is b_j
        back = first.any(-1) | second[..., 1] | absent  # b_i is a_j
        kind = u.device.type
        exact = nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)
        with exact:  # τ would make what bfloat16 rounds off large
            alike = u @ v.T / self.config.temperature  # (N, N)
        return alike.masked_fill(forth & ~own, -torch.inf), alike.T.masked_fill(back & ~own, -torch.inf)

    def metrics(self, loss: float, count: int, examples: Examples, right: float) -> dict[str, float]:
        found = {"loss": loss / max(1, count)}
        return found if examples.scored else found | {"accuracy": right / max(1, count)}

    def covered(self, batch: Batch) -> int:
        return targets(batch)

    def sample(self, model: Any, examples: Examples, seed: int) -> str:
        """A few pairs, and how alike the model finds them."""
        few = examples.sources[:3], examples.targets[:3]
        u, v = (F.normalize(self.vectors(model, side), dim=1) for side in few)
        cosines = (u * v).sum(1).tolist()
        return "\n".join(f"{a}\n  {c:.2f}  {b}" for a, b, c in zip(*few, cosines, strict=True))

    def scored(self, model: Any, examples: Examples) -> dict[str, float]:
        """The loss; of scores, the correlation of the cosines with them; of pairs, how often the partner is
        the nearest of all."""
        sides = (examples.sources, examples.targets)
        u, v = (F.normalize(self.vectors(model, side), dim=1) for side in sides)
        who, wanted = (torch.from_numpy(x) for x in (examples.who, examples.wanted))
        groups = (torch.from_numpy(rows) for rows in self.groups(examples))
        told = [self.compared(u[rows], v[rows], who[rows], wanted[rows]) for rows in groups]
        loss, right = (sum(float(x) for x in some) for some in zip(*told, strict=True))
        found = self.metrics(loss, len(examples), examples, right)
        if examples.scored:
            cosines = (u * v).sum(1).tolist()
            return found | {
                "spearman": scoring.spearman(cosines, examples.wanted),
                "pearson": scoring.pearson(cosines, examples.wanted),
            }
        right = 0
        for i in range(0, len(u), LINES_AT_ONCE):
            best = torch.full((len(u[i : i + LINES_AT_ONCE]),), -torch.inf)
            where = torch.zeros(len(best), dtype=torch.int64)
            for j in range(0, len(v), LINES_AT_ONCE):
                some, at = (u[i : i + LINES_AT_ONCE] @ v[j : j + LINES_AT_ONCE].T).max(1)
                where = torch.where(some > best, at + j, where)
                best = torch.maximum(best, some)
            right += int((who[where, 1] == who[i : i + LINES_AT_ONCE, 1]).sum())
        return found | {"recall_at_1": right / len(u)}

    # using it

    @torch.inference_mode()
    def vectors(self, model: Any, texts: Sequence[str | Sequence[int]]) -> Tensor:
        """A vector for each text or its token ids, (N, D), on the CPU; of length 1, if it is to be
        `normalize`d."""
        device, training = next(model.parameters()).device, model.training
        found = torch.zeros(len(texts), model.config.dim)
        if not texts:
            return found
        read = iter(self.tokenizer.encode_batch([text for text in texts if isinstance(text, str)]))
        encoded = [next(read) if isinstance(text, str) else np.array(text, np.int64) for text in texts]
        ids = ragged([self.framed(row)[0] for row in encoded])
        model.eval()
        for rows in in_length_order(ids.lengths, ids.lengths, TOKENS_AT_ONCE):
            batch = (torch.from_numpy(x).to(device) for x in padded(ids, rows))
            found[torch.from_numpy(rows)] = self.pooled(model, *batch).cpu()
        model.train(training)
        return F.normalize(found, dim=1) if self.config.normalize else found

    def answers(
        self,
        model: Any,
        texts: Sequence[str],
        sampling: Sampling,
        stop: Sequence[str] = (),
        samples: int = 1,
        within: str | None = None,
    ) -> list[list[Answer]]:
        """Each text's vector as JSON; or the lines `within` a file that are nearest to it, with cosines."""
        vectors = self.vectors(model, texts)
        if within is None:
            return [[Answer(json.dumps([round(x, DIGITS) for x in v]))] for v in vectors.tolist()]
        if self.lines is None or self.lines.path != str(within):
            self.lines = Lines(str(within), self, model)
        return self.lines.nearest(F.normalize(vectors, dim=1), samples)


# Searching


class Lines:
    """The lines of a file and their vectors, in temporary files: a million of them need little memory."""

    def __init__(self, path: str, task: Embed, model: Any):
        self.path, places = path, [np.zeros(1, np.int64)]
        stripped = (decoded(line, path, number).strip() for number, line in enumerate(lines(path), 1))
        some = (line for line in stripped if line)
        with (
            tempfile.TemporaryFile() as texts,
            tempfile.TemporaryFile() as vectors,
            progress("lines read") as advance,
        ):
            while block := list(itertools.islice(some, LINES_AT_ONCE)):
                unit = F.normalize(task.vectors(model, block), dim=1)
                vectors.write(unit.numpy().astype(np.float32).tobytes())
                spelt = [line.encode() for line in block]
                texts.write(b"".join(spelt))
                places.append(places[-1][-1] + np.cumsum([len(line) for line in spelt]))
                advance(len(block))
            self.places = np.concatenate(places)  # where each line begins, and the end
            if not len(self):
                raise empty(path)
            for file in (texts, vectors):
                file.flush()
            # which stay as long as they are mapped, and no longer
            self.texts = np.memmap(texts, dtype=np.uint8, mode="r")
            shape = (len(self), model.config.dim)
            self.vectors = np.memmap(vectors, dtype=np.float32, mode="r", shape=shape)

    def __len__(self) -> int:
        return len(self.places) - 1

    def __getitem__(self, row: int) -> str:
        start, stop = self.places[row : row + 2].tolist()
        return bytes(self.texts[start:stop]).decode()

    def nearest(self, vectors: Tensor, many: int) -> list[list[Answer]]:
        """The `many` lines with the largest cosines, exactly: all are compared, block by block."""
        best = torch.empty(len(vectors), 0)
        where = torch.empty(len(vectors), 0, dtype=torch.int64)
        for i in range(0, len(self), VECTORS_AT_ONCE):
            block = torch.from_numpy(np.array(self.vectors[i : i + VECTORS_AT_ONCE]))
            cosines = torch.cat([best, vectors @ block.T], dim=1)
            numbers = torch.arange(i, i + len(block)).expand(len(vectors), -1)
            best, at = cosines.topk(min(many, cosines.shape[1]), dim=1)
            where = torch.cat([where, numbers], dim=1).gather(1, at)
        return [
            [Answer(self[row], round(cosine, DIGITS)) for row, cosine in zip(rows, some, strict=True)]
            for rows, some in zip(where.tolist(), best.tolist(), strict=True)
        ]


# Data


Table = tuple[list[Pair], list[float] | None]  # pairs, and their scores if there are some


def pairs_of(paths: Sequence[str]) -> Table:
    """Pairs that mean the same, from files as text_pairs reads them; or with scores, from labelled ones."""
    if not with_scores(paths):
        return list(text_pairs(paths)), None
    return scored_pairs(labelled(paths))


def parted(paths: Sequence[str], valid: Sequence[str], holdout: float) -> tuple[Table, Table]:
    """What to learn from, and what to measure on."""
    if valid and with_scores(paths) != with_scores(valid):
        raise Mistake("of the data to learn from and to measure on, only one has scores; give both the same")
    if not with_scores(paths):
        train, held = split_pairs(
            list(text_pairs(paths)), list(text_pairs(valid)) if valid else None, holdout
        )
        return (train, None), (held, None)
    sides = split_labels(labelled(paths), labelled(valid) if valid else None, holdout)
    return scored_pairs(sides[0]), scored_pairs(sides[1])


def scored_pairs(table: Labels) -> Table:
    if table.others is None or table.scores is None:
        where, there = table.where[0] if table.where else "the data", ", ".join(table.columns)
        raise Mistake(
            f"{where}: the columns are {there}; to compare texts, give text, other and score, or pairs "
            "without a header (source TAB target)"
        )
    return list(zip(table.texts, table.others, strict=True)), table.scores


def with_scores(paths: Sequence[str]) -> bool:
    """Whether the first file has a header of labelled data; without one, a .tsv and .jsonl have pairs."""
    path = str(paths[0])
    if os.path.isdir(path):
        path = str(in_folder(path, SUFFIXES)[0])
    if path == "-" or path.startswith("hf:"):
        return False
    match holds(path):
        case ".csv":
            return True
        case ".tsv":
            line = next(iter(lines(path)), b"")
            names = [name.strip() for name in decoded(line, path).split("\t")]
            return "text" in names and bool({"other", "score", "label"} & set(names))
        case ".jsonl":
            row = next((row for _, row in json_rows(path)), None)
            return isinstance(row, dict) and "text" in row
    return False


def ragged(rows: Sequence[np.ndarray]) -> Ragged:
    return Ragged(
        np.concatenate([np.array([], np.int64), *rows]), np.array([len(row) for row in rows], np.int64)
    )


# Processes


class Sum(torch.autograd.Function):
    """The sum over all processes; and of the gradients, since every process's loss depends on all of it."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


def gathered(
    u: Tensor, v: Tensor, who: Tensor, wanted: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, slice]:
    """The vectors of all processes (N, D), who they are, what is known of them; and which are one's own."""
    if distributed.WORLD == 1 or u.device.type == "meta":
        return u, v, who, wanted, slice(None)
    B = len(u)
    most = int(distributed.most(B)[0])
    before, after = distributed.RANK * most, (distributed.WORLD - distributed.RANK) * most - B
    x = F.pad(torch.cat([u, v], 1), (0, 0, before, after))
    x = Sum.apply(x)  # (N, 2 * D)
    told = torch.cat([who, wanted[:, None] - IGNORED], 1)  # shifted: where nobody is, IGNORED comes out
    told = distributed.total(F.pad(told, (0, 0, before, after)))
    u, v = x.chunk(2, 1)
    return u, v, told[:, :2], told[:, 2] + IGNORED, slice(before, before + B)

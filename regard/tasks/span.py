"""Answers in a text: where in it does the one to a question begin and end? Devlin et al. 2019, section 4.2.

Shapes: B batch, T tokens, L tokens of the text in a window, N tokens of the longest answer.
"""

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import scoring
from regard.data import Corpus, DataConfig, in_length_order
from regard.data.encoding import tokenizer_for
from regard.data.labels import Span, spans
from regard.errors import Mistake
from regard.generate import Sampling
from regard.loss import cross_entropy
from regard.text import Tokenizer

from .answers import Answer
from .batches import Batch, padded
from .fill import END, FIRST, SPECIALS
from .tag import TOKENS_AT_ONCE, headed, joined, parted
from .task import Task


@dataclass(frozen=True, kw_only=True)
class SpanTaskConfig:
    name: Literal["span"]
    longest: int = 30  # tokens of an answer that is told

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise ValueError(f"longest={self.longest} must be more than 0")


@dataclass(frozen=True)
class Window:
    """[CLS] question [SEP] a part of the text [SEP]"""

    ids: list[int]
    second: int  # where the text begins
    may: list[bool]  # where an answer may begin or end; or that there is none, at [CLS]
    offsets: list[tuple[int, int]]  # of the part's tokens, in characters of the text, without spaces

    def place(self, start: int, end: int) -> tuple[int, int]:
        """The tokens that an answer begins and ends with; [CLS] twice if it is not wholly in the part."""
        o, may = self.offsets, self.may[self.second :]
        if not o or not (o[0][0] <= start and end <= o[-1][1]):
            return 0, 0
        first = bisect_right(o, start, key=lambda offset: offset[1])
        last = bisect_left(o, end, key=lambda offset: offset[0]) - 1
        while first <= last and not may[first]:
            first += 1
        while first <= last and not may[last]:
            last -= 1
        return (self.second + first, self.second + last) if first <= last else (0, 0)


class Examples:
    """Windows as token ids, with the places to tell."""

    def __init__(self, found: Sequence[Span], windows: Sequence[Window], wanted: np.ndarray):
        self.ids = joined([w.ids for w in windows], np.int64)
        self.may = joined([w.may for w in windows], np.bool_)
        self.seconds = np.array([w.second for w in windows])
        self.wanted = wanted
        self.sources = [(span.question, span.context) for span in found]
        self.targets = [span.answer for span in found]

    def __len__(self) -> int:
        return len(self.seconds)

    def describe(self) -> str:
        parts = f" in {len(self):,} parts" if len(self) > len(self.sources) else ""
        return f"{len(self.sources):,} questions{parts}"

    def fingerprint(self) -> str:
        sha = hashlib.sha256()
        for array in (self.ids.ids, self.ids.lengths, self.wanted):
            sha.update(np.ascontiguousarray(array).tobytes())
        return sha.hexdigest()


class SpanTask(Task):
    kinds = ("bert",)  # a GPT would have to begin an answer before it has read it
    specials = SPECIALS
    data = DataConfig
    builtin = ("span.jsonl",), ("span.valid.jsonl",)
    compares = True
    best = "spans"

    def __init__(self, config: SpanTaskConfig, tokenizer: Tokenizer, context: int, target: None = None):
        self.config, self.tokenizer, self.context = config, tokenizer, context
        ids = [tokenizer.id(name) for name in (FIRST, END)]
        if None in ids:
            raise Mistake(f"the tokenizer lacks {FIRST} or {END}; train one with this recipe")
        self.first, self.end = (id for id in ids if id is not None)
        self.room = context - 3
        if self.room < 2:
            raise Mistake(f"model.context={context} has no room for a question and a text; make it larger")

    @classmethod
    def headed(cls, model: Any, config: SpanTaskConfig) -> nn.Module:
        return headed(model, 2)

    # making a model

    @classmethod
    def read(
        cls,
        paths: Sequence[str],
        valid: Sequence[str],
        data: DataConfig,
        config: SpanTaskConfig,
        context: int,
        tokenizers: Sequence[Tokenizer] = (),
    ) -> Corpus:
        found = spans(paths)
        if valid:
            train, held = found, spans(valid)
        else:  # whole texts: what is asked about one of them tells of the other questions
            out = set(parted(list(dict.fromkeys(span.context for span in found)), data.holdout)[1])
            train, held = ([s for s in found if (s.context in out) == side] for side in (False, True))
        sides = [
            (out, text)
            for out, part in ((False, train), (True, held))
            for text in dict.fromkeys(text for span in part for text in (span.context, span.question))
        ]
        tokenizer = tokenizers[0] if tokenizers else tokenizer_for(sides, data, cls.specials)
        task = cls(config, tokenizer, context)
        learnt, notes = task.examples(train)
        measured = None
        if held:
            measured, more = task.examples(held)
            notes += [f"held out: {note}" for note in more]
        return Corpus(learnt, measured, tokenizer, notes=notes)

    def examples(self, found: Sequence[Span]) -> tuple[Examples, list[str]]:
        """Questions and texts as ids, and the places of the answers; lines say what does not fit."""
        several = self.windows([(span.question, span.context) for span in found])
        windows, wanted, long, lost = [], [], 0, 0
        for span, some in zip(found, several, strict=True):
            bare = span.answer.strip()
            start = span.start + span.answer.index(bare)
            places = [window.place(start, start + len(bare)) for window in some]
            windows += some
            wanted += places
            long += len(some) > 1
            lost += not any(last for _, last in places)
        of = f"of {len(found):,}"
        notes = [f"{long:,} {of} texts are longer than {self.context} tokens (model.context) and are read in "
                 "parts that overlap"] if long else []  # fmt: skip
        notes += [f"{lost:,} {of} answers are whole in no part, and not learnt"] if lost else []
        return Examples(found, windows, np.array(wanted, dtype=np.int64).reshape(-1, 2)), notes

    def windows(self, pairs: Sequence[tuple[str, str]]) -> list[list[Window]]:
        """A question with a text; where this is too long, with parts of it, each from the middle of the one
        before. A question may take half of the room."""
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        encodings = self.tokenizer.inner.encode_batch(texts, add_special_tokens=False)
        known = {
            text: (e.ids, [bare(text, *offset) for offset in e.offsets])
            for text, e in zip(texts, encodings, strict=True)
        }
        found = []
        for question, text in pairs:
            about = known[question][0][: self.room // 2]
            ids, offsets = known[text]
            width, second = self.room - len(about), len(about) + 2
            starts = range(0, max(1, len(ids) - width + max(1, width // 2)), max(1, width // 2))
            some = []
            for i in starts:
                part = offsets[i : i + width]
                seen = [begin < stop for begin, stop in part]  # no answer is a space
                row = [self.first, *about, self.end, *ids[i : i + width], self.end]
                some.append(Window(row, second, [True] + [False] * (second - 1) + seen + [False], part))
            found.append(some)
        return found

    def held_out(self, paths: Sequence[str]) -> Examples:
        return self.examples(spans(paths))[0]

    def collated(self, examples: Examples, rows: np.ndarray) -> Batch:
        """ids, real, segments and may (B, T); where the answer begins and ends (B, 2)."""
        ids, real = padded(examples.ids, rows)
        may, _ = padded(examples.may, rows)
        segments = ((np.arange(real.shape[1]) >= examples.seconds[rows][:, None]) & real).astype(np.int64)
        return tuple(torch.from_numpy(x) for x in (ids, real, segments, may, examples.wanted[rows]))

    def logits(self, model: Any, ids: Tensor, real: Tensor, segments: Tensor, may: Tensor) -> Tensor:
        """Of every place as the answer's first and as its last."""
        knows = model.config.segments > 1
        x = model(ids, real, segments if knows else None).transpose(1, 2)  # (B, 2, T)
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        return x.masked_fill(~may[:, None], float("-inf"))

    def loss(self, model: Any, *batch: Tensor) -> Tensor:
        """The sum of cross-entropies in nats, of the first place and of the last."""
        *read, wanted = batch
        return cross_entropy(self.logits(model, *read), None, wanted)

    def measure(self, model: Any, *batch: Tensor) -> Tensor:
        """The loss, how many of the places were right, and of how many windows both."""
        *read, wanted = batch
        logits = self.logits(model, *read)  # (B, 2, T)
        right = logits.argmax(-1) == wanted  # (B, 2)
        loss = cross_entropy(logits, None, wanted)
        return torch.stack([x.double() for x in (loss, right.sum(), right.all(-1).sum())])

    def metrics(
        self, loss: float, count: int, examples: Examples, right: float, both: float
    ) -> dict[str, float]:
        many = max(1, count)
        return {"loss": loss / many, "accuracy": right / many, "spans": 2 * both / many}

    def sample(self, model: Any, examples: Examples, seed: int) -> str:
        """A few questions, and the model's answers."""
        sources = examples.sources[:3]
        told = self.answers(model, sources, Sampling())
        return "\n".join(f"{q}\n  → {a.text}" for (q, _), (a,) in zip(sources, told, strict=True))

    def judged(self, answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        return {
            "exact": scoring.exact_match(answers, references),
            "f1": scoring.token_f1(answers, references),
        }

    # using it

    @torch.inference_mode()
    def answers(
        self,
        model: Any,
        texts: Sequence[str | tuple[str, str]],
        sampling: Sampling,
        stop: Sequence[str] = (),
        samples: int = 1,
    ) -> list[list[Answer]]:
        """The likeliest answer to each question, as it stands in the text, with its probability, and the next
        likeliest if `samples` are asked for. A tab parts a question from its text."""
        pairs = [asked(text) if isinstance(text, str) else text for text in texts]
        windows = self.windows(pairs)
        flat = [(number, window) for number, some in enumerate(windows) for window in some]
        examples = Examples([], [window for _, window in flat], np.zeros((len(flat), 2), dtype=np.int64))
        found: list[dict[tuple[int, int], float]] = [{} for _ in texts]
        device, training = next(model.parameters()).device, model.training
        model.eval()
        lengths = examples.ids.lengths
        for rows in in_length_order(lengths, lengths, TOKENS_AT_ONCE) if flat else ():
            *batch, _ = self.collated(examples, rows)
            logs = self.logits(model, *(t.to(device) for t in batch)).log_softmax(-1).cpu()
            for row, some in zip(rows.tolist(), logs, strict=True):
                number, window = flat[row]
                for place, p in self.likeliest(some, window, samples):
                    found[number][place] = max(p, found[number].get(place, 0.0))
        model.train(training)
        return [
            [
                Answer(text[start:end], p)
                for (start, end), p in sorted(likely.items(), key=lambda item: -item[1])[:samples]
            ]
            or [Answer("")]
            for (_, text), likely in zip(pairs, found, strict=True)
        ]

    def likeliest(self, logs: Tensor, window: Window, samples: int) -> list[tuple[tuple[int, int], float]]:
        """The likeliest spans of a window (start, end) in characters; p = p(start) p(end)."""
        L, N = len(window.offsets), self.config.longest
        if not any(window.may[1:]):
            return []
        starts, ends = logs[:, window.second : window.second + L]
        # a row for each start, with the ends from there on
        sums = starts[:, None] + F.pad(ends, (0, N - 1), value=float("-inf")).unfold(0, N, 1)  # (L, N)
        top = sums.flatten().topk(1 if samples == 1 else min(sums.numel(), int(sums.isfinite().sum())))
        found: dict[tuple[int, int], float] = {}
        for log, at in zip(top.values.tolist(), top.indices.tolist(), strict=True):
            first, more = divmod(at, N)
            start, end = window.offsets[first][0], window.offsets[first + more][1]
            found.setdefault((start, end), float(np.exp(log)))
        return list(found.items())


def bare(text: str, start: int, end: int) -> tuple[int, int]:
    """The offsets without the white space at the ends."""
    while start < end and text[end - 1].isspace():
        end -= 1
    while start < end and text[start].isspace():
        start += 1
    return start, end


def asked(text: str) -> tuple[str, str]:
    question, _, context = text.partition("\t")
    if not question.strip() or not context.strip():
        raise Mistake("give a question, a tab and the text to find the answer in")
    return question, context

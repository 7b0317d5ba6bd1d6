"""Question answering: where in a text does the answer begin and end? Devlin et al. 2019, section 4.2.

Shapes: B batch, T tokens, L tokens of the text in a window, N tokens of the longest answer.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data import Corpus, DataConfig, in_length_order
from regard.data.spans import Span, read_spans
from regard.data.splitting import hold_out_groups
from regard.describe.values import SOFTMAX, Description
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
    segments_from,
)
from regard.tasks.fill import END, FIRST, SPECIALS
from regard.tasks.heads import add_head, global_projections
from regard.tasks.loss import cross_entropy
from regard.tasks.reading import Reading
from regard.tasks.request import DataRequest, Request
from regard.tasks.task import PROBABILITIES, Task, upcast


@dataclass(frozen=True, kw_only=True)
class SpanTaskConfig:
    name: Literal["span"]
    longest: int = 30  # the largest number of tokens of an answer
    unanswerable: bool = False  # some questions have no answer, as found in the data
    separators: int = 1  # [SEP] between question and text; 2 as in RoBERTa and Longformer

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise ValueError(f"longest={self.longest} must be more than 0")
        if self.separators not in (1, 2):
            raise ValueError(f"separators={self.separators} must be 1 or 2")


@dataclass(frozen=True)
class Window:
    """[CLS] question [SEP] a part of the text [SEP]"""

    ids: list[int]
    second: int  # where the text begins
    may: list[bool]  # where an answer may begin or end; [CLS] stands for no answer
    offsets: list[tuple[int, int]]  # the tokens' places in characters of the text, without spaces

    def place(self, start: int, end: int) -> tuple[int, int]:
        """The first and the last token of an answer; [CLS] for both if it is not entirely in this part."""
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
    """Windows as token ids, with the places where answers begin and end."""

    def __init__(self, questions: Sequence[Span], windows: Sequence[Window], places: np.ndarray):
        self.ids = ragged([w.ids for w in windows])
        self.may = ragged([w.may for w in windows], np.bool_)
        self.seconds = np.array([w.second for w in windows])
        self.places = places
        self.sources = [(span.question, span.context) for span in questions]
        self.targets = [span.answer for span in questions]

    def __len__(self) -> int:
        return len(self.seconds)

    def describe(self) -> str:
        parts = f" in {len(self):,} parts" if len(self) > len(self.sources) else ""
        return f"{len(self.sources):,} questions{parts}"

    def fingerprint(self) -> str:
        return fingerprint((self.ids.ids, self.ids.lengths, self.places))


class SpanTask(Task[SpanTaskConfig, Examples, ModelWithHead]):
    kinds = ("bert",)  # a GPT can't find where an answer begins before it has read it
    specials = SPECIALS
    data_config = DataConfig
    builtin = ("span.jsonl",), ("span.valid.jsonl",)
    has_references = shows_scores = True
    inherits = ("separators",)
    data_settings = ("unanswerable",)
    empty_answer = "(no answer in the text)"
    predicts = "place"
    best_metric = "spans"
    example = "Who sleeps?\tThe old fox sleeps all day."
    end: int

    def join_arguments(self, texts: Sequence[str]) -> Sequence[str]:
        """Two texts without a tab are a question and its text."""
        return ["\t".join(texts)] if len(texts) == 2 and "\t" not in "".join(texts) else texts

    def setup(self) -> None:
        ids = [self.tokenizer.id(name) for name in (FIRST, END)]
        if None in ids:
            raise UserError(f"the tokenizer lacks {FIRST} or {END}; train one with this recipe")
        self.first, self.end = (id for id in ids if id is not None)
        self.room = self.context - 2 - self.config.separators
        if self.room < 2:
            raise UserError(
                f"model.context={self.context} has no room for a question and a text; make it larger"
            )

    # Data

    @classmethod
    def read(cls, request: DataRequest[SpanTaskConfig]) -> Corpus:
        questions = read_spans(request.paths)
        if request.valid:
            train, held = questions, read_spans(request.valid)
        else:  # split by whole texts: questions about one text give away each other's answers
            texts = list(dict.fromkeys(span.context for span in questions))
            out = dict(zip(texts, hold_out_groups(texts, request.data.holdout), strict=True))
            train, held = ([s for s in questions if out[s.context] == side] for side in (False, True))
        sides = [
            (out, text)
            for out, part in ((False, train), (True, held))
            for text in dict.fromkeys(text for span in part for text in (span.context, span.question))
        ]
        tokenizer = request.tokenizer(sides, cls.specials)
        settings = {"unanswerable": True} if not all(span.has_answer for span in train) else {}
        task = cls(request.config, tokenizer, request.context)
        training, notes = task.examples(train)
        valid, more = encode_held_out(task.examples, held)
        return Corpus(training, valid, tokenizer, task_settings=settings, notes=notes + more)

    def examples(self, questions: Sequence[Span]) -> tuple[Examples, list[str]]:
        """Encode questions and texts, and find the places of the answers; notes say what does not fit."""
        by_question = self.windows([(span.question, span.context) for span in questions])
        windows, places, long, lost, none = [], [], 0, 0, 0
        for span, several in zip(questions, by_question, strict=True):
            stripped = span.answer.strip()
            start = span.start + span.answer.index(stripped)
            spots = [window.place(start, start + len(stripped)) if stripped else (0, 0) for window in several]
            windows += several
            places += spots
            long += len(several) > 1
            none += not stripped
            lost += bool(stripped) and not any(last for _, last in spots)
        of = f"of {len(questions):,}"
        notes = [f"{long:,} {of} texts are longer than {self.context} tokens (model.context) and are read in "
                 "parts that overlap"] if long else []  # fmt: skip
        notes += [f"{none:,} {of} questions have no answer: the model learns to say so"] if none else []
        notes += [f"{lost:,} {of} answers don't fit into one part and are not learned"] if lost else []
        return Examples(questions, windows, np.array(places, dtype=np.int64).reshape(-1, 2)), notes

    def windows(self, pairs: Sequence[tuple[str, str]]) -> list[list[Window]]:
        """Make a window of a question and a text. A text that is too long gets several, each from the middle
        of the previous one. A question may take half of the context."""
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        encoded = {
            text: (ids, [strip_offsets(text, *offset) for offset in offsets])
            for text, (ids, offsets) in zip(texts, self.tokenizer.encode_offsets(texts), strict=True)
        }
        result = []
        for question, text in pairs:
            about = encoded[question][0][: self.room // 2]
            ids, offsets = encoded[text]
            between = [self.end] * self.config.separators
            width, second = self.room - len(about), 1 + len(about) + len(between)
            starts = range(0, max(1, len(ids) - width + max(1, width // 2)), max(1, width // 2))
            windows = []
            for i in starts:
                part = offsets[i : i + width]
                visible = [begin < stop for begin, stop in part]  # answers don't begin or end with spaces
                row = [self.first, *about, *between, *ids[i : i + width], self.end]
                windows.append(Window(row, second, [True] + [False] * (second - 1) + visible + [False], part))
            result.append(windows)
        return result

    def held_out(self, paths: Sequence[str]) -> Examples:
        return self.examples(read_spans(paths))[0]

    def collate(self, data: Examples, rows: np.ndarray) -> Batch:
        """ids, attention mask, segments and may (B, T); where the answer begins and ends (B, 2)."""
        ids, attention_mask = pad_rows(data.ids, rows)
        may, _ = pad_rows(data.may, rows)
        segments = segments_from(data.seconds[rows], attention_mask)
        return tuple(torch.from_numpy(x) for x in (ids, attention_mask, segments, may, data.places[rows]))

    # Training

    @classmethod
    def add_head(cls, model: nn.Module, config: SpanTaskConfig) -> ModelWithHead:
        reader = add_head(model, 2, each=True)
        for part in global_projections(reader.model):
            part.requires_grad_(True)  # the question is global
        return reader

    def logits(
        self, model: ModelWithHead, ids: Tensor, attention_mask: Tensor, segments: Tensor, may: Tensor
    ) -> Tensor:
        """The logits of every place as the first and as the last of the answer."""
        has_segments = model.config.segments > 1  # type: ignore[union-attr]
        x = model(ids, attention_mask, segments if has_segments else None, self.globals(model, ids))
        x = x.transpose(1, 2)  # (B, 2, T)
        return upcast(x).masked_fill(~may[:, None], float("-inf"))

    def globals(self, model: ModelWithHead, ids: Tensor) -> Tensor | None:
        """The number of global tokens of each row in a Longformer, those of the question: (B, 1, 1, 1)."""
        if not getattr(model.config, "global_qkv", False):
            return None
        return (ids == self.end).long().argmax(1)[:, None, None, None]

    def loss(self, model: ModelWithHead, *batch: Tensor) -> Tensor:
        """The sum of cross-entropies in nats, of the first place and of the last."""
        *inputs, places = batch
        return cross_entropy(self.logits(model, *inputs), None, places)

    def measure(self, model: ModelWithHead, *batch: Tensor) -> Tensor:
        """The loss, how many of the places were right, and in how many windows both were."""
        *inputs, places = batch
        logits = self.logits(model, *inputs)  # (B, 2, T)
        right = logits.argmax(-1) == places  # (B, 2)
        loss = cross_entropy(logits, None, places)
        return torch.stack([x.double() for x in (loss, right.sum(), right.all(-1).sum())])

    def metrics(self, loss: float, count: int, data: Examples, *more: float) -> dict[str, float]:
        (right, both), many = more, max(1, count)
        return {"loss": loss / many, "accuracy": right / many, "spans": 2 * both / many}

    def preview(self, model: ModelWithHead, data: Examples, seed: int) -> str:
        sources = data.sources[:3]
        answers = self.answers(model, Request(sources))
        return "\n".join(f"{q}\n  → {a.text}" for (q, _), (a,) in zip(sources, answers, strict=True))

    # Answers

    @torch.inference_mode()
    def answers(self, model: ModelWithHead, request: Request) -> list[list[Answer]]:
        """The likeliest answers to each question, as written in the text, with their probabilities. A tab
        separates a question from its text."""
        pairs = [split_question(input) if isinstance(input, str) else input for input in request.inputs]
        flat = [(n, window) for n, several in enumerate(self.windows(pairs)) for window in several]
        examples = Examples([], [window for _, window in flat], np.zeros((len(flat), 2), dtype=np.int64))
        likely: list[dict[tuple[int, int], float]] = [{} for _ in pairs]
        nothing = [1.0] * len(pairs)  # the smallest probability of no answer among the parts
        device, lengths = next(model.parameters()).device, examples.ids.lengths
        with evaluating(model):
            for rows in in_length_order(lengths, lengths, TOKENS_AT_ONCE) if flat else ():
                *batch, _ = self.collate(examples, rows)
                logs = self.logits(model, *(t.to(device) for t in batch)).log_softmax(-1).cpu()
                for row, log in zip(rows.tolist(), logs, strict=True):
                    number, window = flat[row]
                    nothing[number] = min(nothing[number], float(log[:, 0].sum().exp()))
                    for place, p in self.likeliest(log, window, request.samples):
                        likely[number][place] = max(p, likely[number].get(place, 0.0))
        answers = []
        for (_, text), places, none in zip(pairs, likely, nothing, strict=True):
            several = [Answer(text[start:end], p) for (start, end), p in places.items()]
            if (
                self.config.unanswerable
            ):  # [CLS] as the answer's first and last token, Devlin et al. 2019, 4.3
                several.append(Answer("", none))
            best = sorted(several, key=lambda answer: -(answer.score or 0.0))
            answers.append(best[: request.samples] or [Answer("")])
        return answers

    def count_tokens(self, input: str | tuple[str, str]) -> tuple[int, int]:
        """Count the tokens of the question, since a text is read in parts."""
        question, _ = split_question(input) if isinstance(input, str) else input
        count = len(self.tokenizer.encode(question))
        return min(count, self.room // 2), count

    def likeliest(self, logs: Tensor, window: Window, samples: int) -> list[tuple[tuple[int, int], float]]:
        """The likeliest spans (start, end) of a window, in characters; p = p(start) p(end)."""
        L, N = len(window.offsets), self.config.longest
        if not any(window.may[1:]):
            return []
        starts, ends = logs[:, window.second : window.second + L]
        # a row for each start, with the ends from there on
        sums = starts[:, None] + F.pad(ends, (0, N - 1), value=float("-inf")).unfold(0, N, 1)  # (L, N)
        top = sums.flatten().topk(1 if samples == 1 else min(sums.numel(), int(sums.isfinite().sum())))
        places: dict[tuple[int, int], float] = {}
        for log, at in zip(top.values.tolist(), top.indices.tolist(), strict=True):
            first, more = divmod(at, N)
            start, end = window.offsets[first][0], window.offsets[first + more][1]
            places.setdefault((start, end), float(np.exp(log)))
        return list(places.items())

    def score_answers(self, answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        return {
            "exact": scoring.exact_match(answers, references),
            "f1": scoring.token_f1(answers, references),
        }

    def rate_answer(self, answer: str, reference: str) -> float:
        return scoring.token_f1([answer], [reference])

    # Looking on

    def reading(self, model: ModelWithHead, input: str) -> Reading:
        reading = super().reading(model, input)
        may = self.windows([split_question(input)])[0][0].may
        reading.may = torch.tensor(may, device=next(model.parameters()).device)
        reading.tokens["label"] = ["first", "last"]
        return reading

    def outcome(self, result: Tensor, reading: Reading) -> dict[str, Tensor]:
        """The probability of each place as the first of an answer, and as the last."""
        assert reading.may is not None
        logits = upcast(result).masked_fill(~reading.may[:, None], -math.inf)
        return {"logits": result, "probabilities": logits.softmax(0)}

    def describe(self, d: Description, model: ModelWithHead, dims: int) -> None:
        about = "Softmax over the places where an answer may begin, and over those where it may end."
        d.see("probabilities", None, PROBABILITIES._replace(about=about), box=SOFTMAX)


def strip_offsets(text: str, start: int, end: int) -> tuple[int, int]:
    """Remove white space at both ends of each span from its offsets."""
    while start < end and text[end - 1].isspace():
        end -= 1
    while start < end and text[start].isspace():
        start += 1
    return start, end


def split_question(text: str) -> tuple[str, str]:
    question, _, context = text.partition("\t")
    if not question.strip() or not context.strip():
        raise UserError(
            "give a question and the text to find the answer in, as two arguments or with a tab between"
        )
    return question, context

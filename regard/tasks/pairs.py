"""Pairs: a text to read and a text to write. A sentence and its translation, an utterance and its reply.

Shapes: B batch, S source tokens, T target tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from regard import scoring
from regard.data import Corpus, PairConfig, Pairs, text_pairs
from regard.data.encoding import tokenizer_for
from regard.data.pairs import Ragged, encode, filtered, histories, split_pairs
from regard.errors import Mistake
from regard.generate import Sampling, generate
from regard.loss import IGNORED, cross_entropy
from regard.recurrent import CELLS
from regard.sentences import fitted
from regard.text import Tokenizer
from regard.watch import watch

from .answers import Answer, searched, spelt, streamed
from .batches import Batch, per_token
from .task import Task

PAD, BEGIN, END, SEPARATOR = "<pad>", "<s>", "</s>", "<sep>"
TOKENS_AT_ONCE = 4096  # of sources, answered together


@dataclass(frozen=True, kw_only=True)
class PairTaskConfig:
    """What translating and chatting have in common."""

    smoothing: float = 0.1  # of labels: this share of the probability is spread over all words
    forcing: float = 1.0  # recurrent models: how often the word before is the true one, not the model's own

    def __post_init__(self) -> None:
        for name in ("smoothing", "forcing"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} must be from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class TranslateConfig(PairTaskConfig):
    name: Literal["translate"]
    longest: int | None = None  # tokens; longer sources go sentence by sentence. None: as in the data

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.longest is not None and self.longest < 1:
            raise ValueError(f"longest={self.longest} must be 1 or more")


@dataclass(frozen=True, kw_only=True)
class ChatConfig(PairTaskConfig):
    name: Literal["chat"]
    turns: int = 1  # how many turns of the conversation it reads, its own included

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.turns < 1:
            raise ValueError(f"turns={self.turns} must be 1 or more")


class PairTask(Task):
    """Read a source, write a target. What a source is, the tasks below say."""

    kinds = ("transformer", "t5", *CELLS)
    specials: tuple[str, ...] = (PAD, BEGIN, END)
    data = PairConfig
    extras = ("prefix",)  # how every answer begins
    compares = True
    cut = False  # sources that are too long lose their beginning, instead of being dropped

    def __init__(
        self, config: Any, tokenizer: Tokenizer, context: int, target_tokenizer: Tokenizer | None = None
    ):
        self.config, self.tokenizer, self.context = config, tokenizer, context
        self.target_tokenizer = target_tokenizer
        self.writer = target_tokenizer or tokenizer
        if context < 2:
            raise Mistake(f"a context of {context} has no room for a text and its end; make it longer")
        if tokenizer.end is None or self.writer.end is None:
            raise Mistake(f"the tokenizer has no token that ends a text; train one with {END}")
        self.source_end, self.end = tokenizer.end, self.writer.end
        ids = (self.writer.id(token) for token in (BEGIN, PAD))
        self.begin = next((id for id in ids if id is not None), self.end)

    # making a model

    @classmethod
    def read(
        cls,
        paths: Sequence[str],
        valid: Sequence[str],
        data: PairConfig,
        config: Any,
        context: int,
        tokenizers: Sequence[Tokenizer] = (),
    ) -> Corpus:
        """`tokenizers` are those of an earlier run, to be used again."""
        turns = cls.turns(config)
        held = list(text_pairs(valid)) if valid else None
        train, held = split_pairs(list(text_pairs(paths)), held, data.holdout)
        if not tokenizers:
            sides = [(False, pair) for pair in train] + [(True, pair) for pair in held]
            sources, targets = ([(out, pair[i]) for out, pair in sides] for i in (0, 1))
            if data.target_tokenizer is None:
                tokenizers = [tokenizer_for(sources + targets, data, cls.specials)]
            else:
                own = replace(data, tokenizer=data.target_tokenizer)
                tokenizers = [
                    tokenizer_for(sources, data, cls.specials),
                    tokenizer_for(targets, own, cls.specials),
                ]
        task = cls(config, tokenizers[0], context, *tokenizers[1:])
        learnt, notes = filtered(
            task.encoded(histories(train, turns)), data, context - 1, context - 1, cls.cut
        )
        measured = None
        if held:
            measured, more = filtered(
                task.encoded(histories(held, turns)), data, context - 1, context - 1, cls.cut
            )
            notes += [f"held out: {note}" for note in more]
        return Corpus(learnt, measured, tokenizers[0], task.target_tokenizer, cls.found(learnt), notes)

    @classmethod
    def turns(cls, config: Any) -> int:
        return 1

    @classmethod
    def found(cls, pairs: Pairs) -> dict[str, Any]:
        """Settings of the task that follow from the data."""
        return {}

    def encoded(self, texts: list[tuple[list[str], str]]) -> Pairs:
        return encode(texts, self.tokenizer, self.writer, self.tokenizer.id(SEPARATOR))

    def held_out(self, paths: Sequence[str]) -> Pairs:
        """Data to score on. What is too long for the model is still to be answered."""
        return self.encoded(histories(list(text_pairs(paths)), self.turns(self.config)))

    def lengths(self, pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
        return pairs.source_lengths, pairs.target_lengths

    def collated(self, pairs: Pairs, rows: np.ndarray) -> Batch:
        """Source and where it is real (B, S); target from its beginning, and to its end (B, T)."""
        source, real = ended(pairs.source_ids, rows, self.context, self.source_end, newest=True)
        following, counts = ended(pairs.target_ids, rows, self.context, self.end)
        target = np.roll(following, 1, axis=1)
        target[:, 0] = self.begin
        following[~counts] = IGNORED
        return tuple(torch.from_numpy(x) for x in (source, real, target, following))

    def loss(
        self, model: nn.Module, source: Tensor, real: Tensor, target: Tensor, following: Tensor
    ) -> Tensor:
        """The sum over all predictions, in nats; the smoothed one while training."""
        forced = (self.config.forcing,) if self.config.forcing < 1 and model.training else ()
        hidden = model.hidden(source, target, real, *forced)  # type: ignore[operator]
        smoothing = self.config.smoothing if model.training else 0.0
        return cross_entropy(hidden, model.output, following, smoothing)  # type: ignore[arg-type]

    def metrics(self, loss: float, count: int, pairs: Pairs) -> dict[str, float]:
        return per_token(loss, count, pairs.bytes)

    def sample(self, model: Any, pairs: Pairs, seed: int) -> str:
        """A few sources, and what the model makes of them."""
        sources = pairs.sources[:3]
        options = Sampling(max_new_tokens=60, temperature=0)
        answers = self.answers(model, sources, options)
        return "\n".join(f"{s}\n  → {a[0].text}" for s, a in zip(sources, answers, strict=True))

    # using it

    def parts(self, text: str) -> list[list[int]]:
        """What is read of a text, each part on its own: ids without the end."""
        raise NotImplementedError

    def sourced(self, part: list[int]) -> list[int]:
        """A part as the model reads it."""
        return [*part, self.source_end]

    def ask(
        self,
        model: Any,
        texts: Sequence[str],
        sampling: Sampling,
        stop: Sequence[str] = (),
        samples: int = 1,
        prefix: str = "",
        cached: bool = True,
    ) -> Iterator[list[str]]:
        """The answer to every row, piece by piece; row i * samples + j is sample j of text i."""
        parts = [self.parts(text) for text in texts]
        if sampling.num_beams > 1 or any(len(some) != 1 for some in parts):
            found = self.answers(model, texts, sampling, stop, samples, prefix)
            yield [answer.text for several in found for answer in several]
            return
        prefix = self._kept(prefix)
        prompt = self._prompt(prefix)
        if prefix:
            yield [prefix] * len(texts) * samples
        sources, prompts = [self.sourced(part) for (part,) in parts], [prompt] * len(texts)
        steps = generate(
            model, prompts, sampling, sources=sources, end=self.end, samples=samples, cached=cached
        )
        yield from streamed(steps, self.writer, len(texts) * samples, stop, prompt[1:])

    def answers(
        self,
        model: Any,
        texts: Sequence[str],
        sampling: Sampling,
        stop: Sequence[str] = (),
        samples: int = 1,
        prefix: str = "",
    ) -> list[list[Answer]]:
        """Whole answers: `samples` of them to each text, with scores where beams found them."""
        prefix = self._kept(prefix)
        parts = [
            (i, "" if n else prefix, self.sourced(part))  # the whole answer begins with it, once
            for i, text in enumerate(texts)
            for n, part in enumerate(self.parts(text))
        ]
        answered: list[list[Answer]] = [[] for _ in parts]
        for begin in dict.fromkeys(begin for _, begin, _ in parts):
            some = [k for k, part in enumerate(parts) if part[1] == begin]
            for group in grouped([len(parts[k][2]) for k in some], sampling.num_beams * samples):
                sources = [parts[some[g]][2] for g in group]
                found = self._answered(model, sources, sampling, stop, samples, begin)
                for g, several in zip(group, found, strict=True):
                    answered[some[g]] = several
        whole: list[list[list[Answer]]] = [[] for _ in texts]
        for (i, _, _), several in zip(parts, answered, strict=True):
            whole[i].append(several)
        return [joined(some, samples) for some in whole]

    def _answered(
        self,
        model: Any,
        sources: list[list[int]],
        sampling: Sampling,
        stop: Sequence[str],
        samples: int,
        prefix: str,
    ) -> list[list[Answer]]:
        prompt = self._prompt(prefix)
        prompts, begun = [prompt] * len(sources), prompt[1:]
        if sampling.num_beams > 1:
            best = searched(model, prompts, sampling, self.end, samples, sources)
            found = spelt(best, self.writer, stop, begun)
        else:
            rows = len(sources) * samples
            steps = generate(model, prompts, sampling, sources=sources, end=self.end, samples=samples)
            pieces = streamed(steps, self.writer, rows, stop, begun)
            texts = ["".join(row) for row in zip(*pieces, strict=True)]
            found = [[Answer(t) for t in texts[i : i + samples]] for i in range(0, rows, samples)]
        return [[replace(answer, text=prefix + answer.text) for answer in some] for some in found]

    def _kept(self, prefix: str) -> str:
        """Without the space at its end where the tokenizer drops that: the next word will bring its own."""
        kept = self.writer.decode(self.writer.encode(prefix))
        return prefix if kept[-1:].isspace() else prefix.rstrip()

    def looked(self, model: Any, text: str, answer: str) -> tuple[Tensor, list[str], list[str]]:
        """What each word of an answer looked at in the text: weights (T, S), the mean over the heads of the
        last layer; and the words of both sides, T of the answer and S of the text."""
        source = [*self.parts(text)[0], self.tokenizer.end or 0]
        written = [*self.writer.encode(answer), self.writer.end or 0]
        device = next(model.parameters()).device
        with torch.inference_mode(), watch(model) as seen:
            model(*(torch.tensor([ids], device=device) for ids in (source, [self.begin, *written[:-1]])))
        looks = [name for name in seen if name.endswith(("cross.f", "look"))]
        if not looks:
            raise Mistake("this model looks at nothing: it has no attention; train one with model.attention")
        weights = torch.cat([each["weights"][0].mean(0) for each in seen[looks[-1]]])  # (T, S)
        return weights, self.writer.tokens(written), self.tokenizer.tokens(source)

    def _prompt(self, prefix: str) -> list[int]:
        prompt = [self.begin, *(self.writer.encode(prefix) if prefix else [])]
        if len(prompt) > self.context:
            raise Mistake(f"prefix: its {len(prompt) - 1} tokens do not fit the context of {self.context}")
        return prompt


def ended(
    side: Ragged, rows: np.ndarray, longest: int, end: int, newest: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of ids with `end` after each, and where they are real; of too many, the first or the newest."""
    n = np.minimum(side.lengths[rows], longest - 1)[:, None]
    starts = side.offsets[rows + 1][:, None] - n if newest else side.offsets[rows][:, None]
    i = np.arange(n.max() + 1)
    ids = np.zeros((len(rows), len(i)), dtype=np.int64)
    ids[i < n] = side.ids[(starts + i)[i < n]]
    ids[i == n] = end
    return ids, i <= n


def grouped(lengths: Sequence[int], width: int) -> Iterator[list[int]]:
    """Numbers of sources of similar length, longest first, as many as are answered together."""
    order = sorted(range(len(lengths)), key=lambda k: -lengths[k])
    while order:
        size = max(1, TOKENS_AT_ONCE // (lengths[order[0]] * width))
        yield order[:size]
        order = order[size:]


def joined(parts: list[list[Answer]], samples: int) -> list[Answer]:
    """The answers to the parts of a text as answers to the text: the best with the best, and so on."""
    if len(parts) == 1:
        return parts[0]
    answers = []
    for j in range(samples):
        some = [part[min(j, len(part) - 1)] for part in parts]
        scores = [a.score for a in some if a.score is not None]
        answers.append(Answer(" ".join(a.text for a in some), sum(scores) if scores else None))
    return answers


class Translate(PairTask):
    builtin = ("translate.tsv",), ("translate.valid.tsv",)
    generation: ClassVar = {"max_new_tokens": 200, "temperature": 0.0, "num_beams": 4}

    @classmethod
    def found(cls, pairs: Pairs) -> dict[str, Any]:
        return {"longest": int(pairs.source_lengths.max())}

    def parts(self, text: str) -> list[list[int]]:
        """A text longer than those it has learnt from goes sentence by sentence."""
        longest = min(self.config.longest or self.context, self.context - 1)
        some = fitted(text.strip(), lambda part: len(self.tokenizer.encode(part)), longest)
        return [self.tokenizer.encode(part) for part in some if part and not part.isspace()]

    @staticmethod
    def judged(answers: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        return scoring.text_scores(answers, references)


class Chat(PairTask):
    builtin = ("chat.tsv",), ("chat.valid.tsv",)
    specials = (*PairTask.specials, SEPARATOR)
    cut = talks = True
    generation: ClassVar = {"max_new_tokens": 100, "temperature": 0.0}

    @classmethod
    def turns(cls, config: ChatConfig) -> int:
        return config.turns

    def encoded(self, texts: list[tuple[list[str], str]]) -> Pairs:
        """A turn is one line, here as when it is asked."""
        return super().encoded([([turn.replace("\n", " ") for turn in turns], t) for turns, t in texts])

    def parts(self, text: str) -> list[list[int]]:
        """A text of several lines is a conversation so far; what is too long loses its oldest words."""
        lines = [line for line in text.split("\n") if line.strip()][-self.config.turns :]
        ids: list[int] = []
        for n, line in enumerate(lines):
            separator = self.tokenizer.id(SEPARATOR)
            ids += ([separator] if n and separator is not None else []) + self.tokenizer.encode(line.strip())
        return [ids[1 - self.context :]] if ids else []

    @staticmethod
    def judged(answers: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        said = {f"distinct_{n}": scoring.distinct(answers, n) for n in (1, 2)}
        return scoring.text_scores(answers, references) | said

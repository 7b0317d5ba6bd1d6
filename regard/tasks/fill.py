"""Filling in: words are hidden, and the model tells them from both sides. Devlin et al. 2019, BERT.

Or a small model fills them in, and the model tells which words are new. Clark et al. 2020, ELECTRA.

Shapes: B batch, T tokens, M hidden tokens, D width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data import Corpus, DataConfig, Stream, Windows, corpus
from regard.data.encoding import tokenizer_for
from regard.data.passages import Passages, divided, paragraphs, passages
from regard.data.reading import documents
from regard.data.sampling import keys, shuffled
from regard.errors import Mistake
from regard.generate import Sampling, draw
from regard.loss import IGNORED, cross_entropy
from regard.models import Electra
from regard.text import BYTES, Tokenizer

from .answers import Answer
from .batches import Batch
from .restore import BLANK
from .task import Task

PAD, UNKNOWN, FIRST, END, MASK = SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SPACE = next(symbol for symbol, byte in BYTES.items() if byte == ord(" "))
BEST = 5  # words that are shown for a blank
SHARP = 50.0  # how much telling a replaced word counts, for each word that is to be told; of the paper


def in_word(symbol: str) -> bool:
    """Whether a piece that begins or ends with this is not at the border of a word: letters and digits, and
    in byte-level pieces all bytes of what is not ASCII."""
    byte = BYTES.get(symbol)
    return symbol.isalnum() if byte is None else byte >= 0x80 or chr(byte).isalnum()


@dataclass(frozen=True, kw_only=True)
class FillConfig:
    name: Literal["fill"]
    next: bool = True  # also: does the second text follow the first? Without, text is packed (RoBERTa)
    hidden: float = 0.15  # the share of the tokens that are to be told
    whole_words: bool = False  # hide all pieces of a word, or none
    replaced: bool = False  # a small model fills them in, and the model tells these words (ELECTRA)

    def __post_init__(self) -> None:
        if not 0 < self.hidden < 1:
            raise ValueError(f"hidden={self.hidden} must be a share between 0 and 1")


class Fill(Task):
    kinds = ("bert",)
    specials = SPECIALS
    data = DataConfig
    builtin = ("write.txt",), ()
    at_once = 64
    steady = True

    def __init__(self, config: FillConfig, tokenizer: Tokenizer, context: int, target: None = None):
        self.config, self.tokenizer, self.context = config, tokenizer, context
        if config.replaced:  # the better the words put in, the harder to find: the loss may rise
            self.best = "words_accuracy"
        ids = [tokenizer.id(name) for name in (PAD, FIRST, END, MASK)]
        if None in ids:
            raise Mistake(
                f"the tokenizer lacks one of {PAD} {FIRST} {END} {MASK}; train one with this recipe"
            )
        self.pad, self.first, self.end, self.mask = (id for id in ids if id is not None)
        added = tokenizer.inner.get_added_tokens_decoder()
        special = {tokenizer.id(name) for name in SPECIALS} | {id for id, t in added.items() if t.special}
        spelt = [tokenizer.inner.id_to_token(id) or "" for id in range(tokenizer.vocab)]
        self.usual = np.array([bool(piece) and id not in special for id, piece in enumerate(spelt)])
        self.words = np.flatnonzero(self.usual)  # what may be hidden, and drawn
        # A piece goes on with a word if it is ##ing of WordPiece; or begins with a letter, and the one before
        # ends with a letter, or with the space or apostrophe that byte-level tokenizers count to the word.
        marked = any(piece.startswith("##") for piece in spelt)
        self.inside = np.array([p.startswith("##") if marked else in_word(p[:1]) for p in spelt])
        self.open = np.array([marked or in_word(p[-1:]) or p[-1:] in ("'", " ", SPACE) for p in spelt])
        self.most = max(1, round(config.hidden * context))  # of hidden tokens in a row

    # making a model

    @classmethod
    def headed(cls, model: Any, config: FillConfig) -> Any:
        return Electra(model) if config.replaced else model

    @classmethod
    def read(
        cls,
        paths: Sequence[str],
        valid: Sequence[str],
        data: DataConfig,
        config: FillConfig,
        context: int,
        tokenizers: Sequence[Tokenizer] = (),
    ) -> Corpus:
        if not config.next:
            return corpus(paths, valid, data, cls.specials, *tokenizers)
        train = [part for text in documents(paths) for part in paragraphs(text)]
        if valid:
            held = [part for text in documents(valid) for part in paragraphs(text)]
        else:
            train, held = divided(train, data.holdout)
        sides = [(False, text) for text in train] + [(True, text) for text in held]
        tokenizer = tokenizers[0] if tokenizers else tokenizer_for(sides, data, cls.specials)
        learnt = passages(train, tokenizer, context - 3)
        if len(learnt.firsts) < 3:
            raise Mistake(
                f"{paths[0]}: one document; telling what follows needs several, blank lines between them "
                "(or set task.next=false)"
            )
        measured = passages(held, tokenizer, context - 3) if held else None
        if measured is not None and len(measured.firsts) < 3:
            if valid:
                raise Mistake(f"{valid[0]}: one document; give several, blank lines between them")
            measured = None
        return Corpus(learnt, measured, tokenizer)

    def held_out(self, paths: Sequence[str]) -> Stream | Passages:
        if not self.config.next:
            found = corpus(paths, (), DataConfig(holdout=0.0), self.specials, self.tokenizer)
            return found.valid or found.train
        parts = (part for text in documents(paths) for part in paragraphs(text))
        held = passages(parts, self.tokenizer, self.context - 3)
        if len(held.firsts) < 3:
            raise Mistake(f"{paths[0]}: one document; give several, blank lines between them")
        return held

    def training(
        self, data: Stream | Passages, seed: int, rows: int, tokens: int | None
    ) -> "Windows | Samples":
        size = rows if tokens is None else max(1, tokens // self.context)
        return (
            Samples(data, seed, size)
            if isinstance(data, Passages)
            else Windows(data, self.context - 2, seed, size)
        )

    def batch(self, samples: "Windows | Samples", rows: np.ndarray) -> Batch:
        dice = [np.random.Generator(np.random.Philox(key=[samples.seed, row])) for row in rows.tolist()]
        if isinstance(samples, Samples):
            read = [
                self.two(samples.passages, at, rng) for at, rng in zip(samples.at(rows), dice, strict=True)
            ]
        else:
            read = [
                ([self.first, *text, self.end], 0, IGNORED) for text in samples.batch(rows)[:, :-1].tolist()
            ]
        return self.collated(read, dice)

    def two(self, data: Passages, at: int, rng: np.random.Generator) -> tuple[list[int], int, int]:
        """A passage as two pieces, the second in half of the cases from elsewhere: the ids, where the second
        begins, and 0 if it follows, else 1. Either ends with a sentence if it can: its length must not tell.
        """
        first, stop = data.cuts[at].tolist()
        room = self.context - 3
        alone = stop - first == 1
        middle = stop if alone else first + 1 + int(rng.integers(stop - first - 1))
        other = alone or rng.random() < 0.5
        a, b = data.joined(first, middle), data.joined(middle, stop)
        if other:
            space = max(room - len(a), room // 2 if alone else 1)
            begin = data.elsewhere(first, rng)
            b = data.joined(begin, data.until(begin, space))[:space]
        a = a[: room - len(b)]
        ids = [self.first, *a.tolist(), self.end, *b.tolist(), self.end]
        return ids, len(a) + 2, int(other)

    def collated(
        self, read: Sequence[tuple[list[int], int, int]], dice: Sequence[np.random.Generator]
    ) -> Batch:
        """ids, real and segments (B, T); whether the second follows (B,); hidden places (B, M), what is
        thrown there if they are to be replaced, and hidden words."""
        B = len(read)
        ids = np.full((B, self.context), self.pad, dtype=np.int64)
        segments, real = np.zeros_like(ids), np.zeros((B, self.context), dtype=bool)
        follows = np.array([label for _, _, label in read])
        places = np.zeros((B, self.most), dtype=np.int64)
        following = np.full((B, self.most), IGNORED)
        for b, ((text, second, _), rng) in enumerate(zip(read, dice, strict=True)):
            shown, chosen = self.masked(np.array(text), rng)
            ids[b, : len(text)], real[b, : len(text)] = shown, True
            if second:
                segments[b, second : len(text)] = 1
            places[b, : len(chosen)], following[b, : len(chosen)] = chosen, np.array(text)[chosen]
        throws = (
            [np.stack([rng.random(self.most, np.float32) for rng in dice])] if self.config.replaced else []
        )
        return tuple(torch.from_numpy(x) for x in (ids, real, segments, follows, places, *throws, following))

    def masked(self, text: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The text with tokens hidden, and where: 80 % of these become [MASK], 10 % any word, 10 % stay."""
        usual = np.flatnonzero(self.usual[text])
        many = min(max(1, round(self.config.hidden * len(usual))), self.most, len(usual))
        if self.config.whole_words and many:
            chosen = np.sort(self._of_words(text, usual, many, rng))
        else:
            chosen = np.sort(rng.choice(usual, many, replace=False))
        throw = rng.random(len(chosen))
        drawn = self.words[rng.integers(len(self.words), size=len(chosen))]
        shown = text.copy()
        shown[chosen] = np.where(throw < 0.8, self.mask, np.where(throw < 0.9, drawn, text[chosen]))
        return shown, chosen

    def _of_words(
        self, text: np.ndarray, usual: np.ndarray, many: int, rng: np.random.Generator
    ) -> np.ndarray:
        """The places of whole words, as many as have room; if none has, of the shortest."""
        ids = text[usual]
        begins = ~self.inside[ids[1:]] | ~self.open[ids[:-1]] | (np.diff(usual) > 1)
        words = np.split(usual, np.flatnonzero(begins) + 1)
        chosen: list[int] = []
        for i in rng.permutation(len(words)).tolist():
            if len(chosen) + len(words[i]) <= many:
                chosen += words[i].tolist()
        return np.array(chosen) if chosen else min(words, key=len)[: self.most]

    def in_order(self, data: Stream | Passages, tokens: int) -> Iterator[Batch]:
        """Everything once; what is hidden is the same every time."""
        size = max(1, tokens // self.context)
        wide = self.context - 2
        count = len(data) if isinstance(data, Passages) else -(-len(data) // wide)
        for i in range(0, count, size):
            numbers = range(i, min(i + size, count))
            dice = [np.random.Generator(np.random.Philox(key=[0, n])) for n in numbers]
            if isinstance(data, Passages):
                read = [self.two(data, n, rng) for n, rng in zip(numbers, dice, strict=True)]
            else:
                texts = [data.read(n * wide, min((n + 1) * wide, len(data))).tolist() for n in numbers]
                read = [([self.first, *text, self.end], 0, IGNORED) for text in texts]
            yield self.collated(read, dice)

    def loss(self, model: Any, *batch: Tensor) -> Tensor:
        """The sum over the hidden words, in nats; and for each row that of the next sentence, weighed so that
        both count alike on average; and over all words, whether they were replaced."""
        return self._sums(model, *batch)[0]

    def measure(self, model: Any, *batch: Tensor) -> Tensor:
        """The loss, the hidden words' part and the next sentence's, how many of either were right, rows; and
        the replaced words' part, how many words were told right, words."""
        loss, words, follows, hidden, yes_or_no, label, *found = self._sums(model, *batch)
        right = (F.linear(hidden, model.output).argmax(-1) == batch[-1]).sum()
        told = label != IGNORED
        agreed = (yes_or_no.argmax(-1) == label).sum()
        return torch.stack([loss, words, follows, right, agreed, told.sum(), *found]).double()

    def _sums(
        self,
        model: Any,
        ids: Tensor,
        real: Tensor,
        segments: Tensor,
        label: Tensor,
        places: Tensor,
        *rest: Tensor,
    ) -> tuple[Tensor, ...]:
        """The loss and what it is made of."""
        *throws, following = rest
        bert, some = (model.model if throws else model), (segments if model.config.segments else None)
        x = model.generated(ids, real, some) if throws else bert.encode(ids, real, some)  # (B, T, D)
        hidden = bert.transformed(x.gather(1, places[..., None].expand(-1, -1, x.shape[-1])))  # (B, M, D)
        words = cross_entropy(hidden, model.output, following)
        counts = following != IGNORED
        kept = counts.any(1)  # not those of a process that only keeps time
        found: list[Tensor] = []
        if throws:
            with torch.no_grad():
                logits = F.linear(hidden, model.output).flatten(0, 1)  # (B·M, V)
                drawn = draw(logits.float(), throws[0].flatten()).view_as(places)  # (B, M)
            written, shown = (put_in(ids, places, some, counts) for some in (following, drawn))  # (B, T)
            x = bert.encode(shown, real, segments if model.config.segments else None)  # (B, T, D)
            yes, new, counted = model.replaced(x), shown != written, real & kept[:, None]  # (B, T)
            yes = yes.to(torch.promote_types(yes.dtype, torch.float32))  # (B, T)
            wrong = F.binary_cross_entropy_with_logits(yes, new.to(yes.dtype), reduction="none")  # (B, T)
            right = ((yes > 0) == new) & counted  # (B, T)
            found = [(wrong * counted).sum(), right.sum(), counted.sum()]
        label = label.masked_fill(~kept, IGNORED)
        yes_or_no = bert.follows(x)  # (B, 2)
        follows = cross_entropy(yes_or_no, None, label)
        loss = words + self.most * follows
        loss = loss + SHARP * self.config.hidden * found[0] if found else loss
        return loss, words, follows, hidden, yes_or_no, label, *found

    def metrics(
        self,
        loss: float,
        count: int,
        data: Any,
        words: float,
        follows: float,
        right: float,
        agreed: float,
        rows: float,
        wrong: float = 0.0,
        told: float = 0.0,
        all_words: float = 0.0,
    ) -> dict[str, float]:
        found = {
            "loss": loss / max(1, count),
            "words_loss": words / max(1, count),
            "words_accuracy": right / max(1, count),
        }
        if self.config.next:
            found |= {"next_loss": follows / max(1, rows), "next_accuracy": agreed / max(1, rows)}
        if self.config.replaced:
            found |= {
                "replaced_loss": wrong / max(1, all_words),
                "replaced_accuracy": told / max(1, all_words),
            }
        return found

    def covered(self, batch: Batch) -> int:
        return len(batch[0]) if self.config.next else int(batch[1].sum()) - 2 * len(batch[0])

    def sample(self, model: Any, data: Stream | Passages, seed: int) -> str:
        """A sentence of the data with a blank in it, and the words that the model would put there."""
        ids = data.joined(0, 1) if isinstance(data, Passages) else data.read(0, min(len(data), 20))
        ids = ids[: self.context - 2]
        at = len(ids) // 2
        read = [self.first, *ids.tolist(), self.end]
        read[at + 1] = self.mask
        shown = self.tokenizer.decode(ids[:at]) + " ___ " + self.tokenizer.decode(ids[at + 1 :])
        return f"{shown}\n  → {self._best(model, [read])[0][0]}"

    # using it

    def answers(
        self,
        model: Any,
        texts: Sequence[str],
        sampling: Sampling,
        stop: Sequence[str] = (),
        samples: int = 1,
    ) -> list[list[Answer]]:
        """For each blank of each text, the likeliest words with their probabilities.

        A model that has learnt to tell replaced words names the likeliest of a text without blanks.
        """
        read = []
        for text in texts:
            parts = BLANK.split(text)
            if len(parts) < 2 and not self.config.replaced:
                raise Mistake("mark what is missing with [MASK] or ___, as in: The fox [MASK] over the dog")
            ids: list[int] = [self.first]
            for i, part in enumerate(parts):
                ids += [*([self.mask] if i else []), *self.tokenizer.encode(part.rstrip())]
            if len(ids) >= self.context:
                raise Mistake(
                    f"a text of {len(ids)} tokens does not fit the context of {self.context}; shorten it"
                )
            read.append([*ids, self.end])
        found = self._best(model, read) if read else []
        return [[Answer("; ".join(blanks))] * samples for blanks in found]

    @torch.inference_mode()
    def _best(self, model: Any, read: list[list[int]]) -> list[list[str]]:
        """For each [MASK] of each text, "word probability, ..." of the likeliest words; if a text has none,
        those of its words that are likeliest not its writer's."""
        device = next(model.parameters()).device
        T = max(map(len, read))
        ids = torch.tensor([row + [self.pad] * (T - len(row)) for row in read], device=device)  # (B, T)
        real = torch.tensor([[i < len(row) for i in range(T)] for row in read], device=device)  # (B, T)
        training = model.training
        probs = model.eval()(ids, real).float().softmax(-1)  # (B, T, V)
        odd = (
            model.replaced(model.model.encode(ids, real)).sigmoid() if self.config.replaced else real
        )  # (B, T)
        model.train(training)
        found = []
        for b, row in enumerate(read):
            every = list(range(probs.shape[-1]))
            best = [(probs[b, t], every) for t, id in enumerate(row) if id == self.mask]
            best = best or [(odd[b, 1 : len(row) - 1], row[1:-1])]
            tops = [(p.topk(min(BEST, len(p))), words) for p, words in best]
            found.append(
                [
                    ", ".join(
                        f"{self.tokenizer.tokens([words[i]])[0].strip()} {p:.2f}"
                        for p, i in zip(top.values.tolist(), top.indices.tolist(), strict=True)
                    )
                    for top, words in tops
                ]
            )
        return found


def put_in(ids: Tensor, places: Tensor, words: Tensor, counts: Tensor) -> Tensor:
    """The texts (B, T) with words (B, M) at places (B, M), those that count."""
    return ids.scatter(1, places.where(counts, places[:, :1]), words.where(counts, words[:, :1]))


class Samples:
    """Passages in a new random order every epoch; what a step reads depends on seed and step alone."""

    notes = ()

    def __init__(self, data: Passages, seed: int, size: int):
        self.passages, self.seed, self.size = data, seed, size

    def rows(self, step: int) -> np.ndarray:
        return np.arange(step * self.size, (step + 1) * self.size)

    def at(self, rows: np.ndarray) -> list[int]:
        epochs, index = np.divmod(rows, len(self.passages))
        return shuffled(index, len(self.passages), keys(self.seed, epochs)).tolist()

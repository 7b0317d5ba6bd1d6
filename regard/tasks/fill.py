"""Masked language modelling: predict masked tokens from both sides. Devlin et al. 2019, BERT.

Or a small model fills them in, and the model detects which tokens were replaced. Clark et al. 2020, ELECTRA.

Shapes: B batch, T tokens, M masked tokens, D width.
"""

import math
from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.cache import Mask
from regard.data import Stream
from regard.data.passages import Passages
from regard.decode.sampling import sample_tokens
from regard.describe.export import without_head
from regard.describe.texts import Text
from regard.describe.values import LINEAR, SOFTMAX, Description
from regard.describe.watch import evaluating
from regard.errors import UserError
from regard.models import Bert, Electra, Elmo
from regard.tasks.answers import Answer
from regard.tasks.batches import Batch, pad_rows, ragged, segments_from, targets
from regard.tasks.guessing import Guess, guess_targets
from regard.tasks.heads import freeze, global_projections, likeliest_classes
from regard.tasks.loss import IGNORED, cross_entropy
from regard.tasks.masked_texts import FillConfig, MaskedTexts
from regard.tasks.masking import END, FIRST, MASK, PAD, SPECIALS, UNKNOWN
from regard.tasks.reading import Reading, on_device
from regard.tasks.request import Request
from regard.tasks.restore import BLANK
from regard.tasks.task import PROBABILITIES, upcast

__all__ = ["END", "FIRST", "MASK", "PAD", "SPECIALS", "UNKNOWN", "Fill", "FillConfig"]
BEST = 5  # the number of words that are shown for a blank
Choices = list[tuple[str, float]]  # words with their probabilities, the likeliest first
NEXT = ("isNext", "notNext")  # the classes of `Bert.next_sentence`, in the order of its logits
REPLACED_WEIGHT = 50.0  # λ, of the loss of detecting replaced words; as in the paper


class Fill(MaskedTexts):
    kinds = ("bert",)
    builtin = ("write.txt",), ()
    ask_batch_size = 64
    shows_scores = True
    predicts = "fill"
    example = "The fox [MASK] over the dog."

    # Training

    @classmethod
    def add_head(cls, model: nn.Module, config: FillConfig) -> nn.Module:
        freeze(global_projections(model))  # no token is global
        return Electra(cast(Bert, model), config.words) if config.replaced else model

    @classmethod
    def check_model(cls, config: FillConfig, kind: str) -> None:
        if kind == "elmo" and config.replaced:
            raise UserError("task.replaced needs a model.kind=bert; elmo predicts every word anyway")

    def loss(self, model: Bert | Electra | Elmo, *batch: Tensor) -> Tensor:
        """The sum of the cross-entropies of masked words, in nats, of the next sentence, weighted so that
        both count alike on average, and of all words, whether they were replaced."""
        return self._losses(model, *batch)[0]

    def measure(self, model: Bert | Electra | Elmo, *batch: Tensor) -> Tensor:
        """The loss, its parts for masked words and for the next sentence, how many of each were right, rows;
        and for ELECTRA the part for replaced words, how many were right, words."""
        loss, words, follows, hidden, yes_or_no, label, *replaced = self._losses(model, *batch)
        bert = cast("Bert | Elmo", without_head(model))
        right = (bert.logits(hidden).argmax(-1) == batch[-1]).sum()
        counts = label != IGNORED
        agreed = (yes_or_no.argmax(-1) == label).sum()
        return torch.stack([loss, words, follows, right, agreed, counts.sum(), *replaced]).double()

    def _losses(self, model: Bert | Electra | Elmo, *batch: Tensor) -> tuple[Tensor, ...]:
        """The loss, its parts, and the values that they are computed from."""
        ids, attention_mask, segments, label, places, *throws, words = batch
        kinds = segments if model.config.segments else None
        counts = words != IGNORED
        bert: Bert | Elmo
        if isinstance(model, Elmo):
            bert, x, hidden, words_loss = model, *self._both_ways(model, *batch)
        else:
            if isinstance(model, Electra):
                masked, x = model.model, model.generator_states(ids, attention_mask, kinds)  # (B, T, D)
            else:
                masked, x = model, model.encode(ids, attention_mask, kinds)  # (B, T, D)
            bert, hidden = masked, masked.lm_head(take(x, places))  # (B, M, D)
            words_loss = cross_entropy(hidden, bert.output, words, bias=bert.output_bias)
        rows = counts.any(1)  # not the padding rows of a process without data
        replaced: list[Tensor] = []
        if isinstance(model, Electra):
            with torch.no_grad():
                logits = bert.logits(hidden).flatten(0, 1)  # (B·M, V)
                sampled = sample_tokens(logits.float(), throws[0].flatten()[:, None]).view_as(
                    places
                )  # (B, M)
            true, shown = (put_in(ids, places, tokens, counts) for tokens in (words, sampled))  # (B, T)
            x = bert.encode(shown, attention_mask, kinds)  # (B, T, D)
            yes, new, counted = upcast(model.detect(x)), shown != true, attention_mask & rows[:, None]
            losses = F.binary_cross_entropy_with_logits(yes, new.to(yes.dtype), reduction="none")  # (B, T)
            right = ((yes > 0) == new) & counted  # (B, T)
            replaced = [(losses * counted).sum(), right.sum(), counted.sum()]
        label = label.masked_fill(~rows, IGNORED)
        yes_or_no = bert.next_sentence(x)  # (B, 2)
        follows = cross_entropy(yes_or_no, None, label)
        loss = words_loss + self.masker.limit * follows
        loss = loss + REPLACED_WEIGHT * self.config.hidden * replaced[0] if replaced else loss
        return loss, words_loss, follows, hidden, yes_or_no, label, *replaced

    def _both_ways(self, model: Elmo, *batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For ELMo: every word is predicted from the words before it and from those after it; none is masked.
        The vectors of all tokens (B, T, D), the hidden states of those chosen (B, M, D), and for each row the
        mean loss of both directions, times the number chosen in it: so parts of a batch add up to it."""
        ids, attention_mask, _, _, places, words = batch
        counts = words != IGNORED
        true = put_in(ids, places, words, counts)  # (B, T)
        layers = model.layers(true, attention_mask)
        sides = model.each_side(layers[1])
        targets = true.masked_fill(~(attention_mask & counts.any(1, keepdim=True)), IGNORED)  # (B, T)
        share = counts.sum(1) / (targets != IGNORED).sum(1).clamp(min=1) / 2  # (B,)
        how = {"bias": model.output_bias, "weights": share[:, None].expand_as(targets)}
        losses = [cross_entropy(side, model.output, targets, **how) for side in sides]
        hidden = take(sides[0] + sides[1], places)  # (B, M, D)
        return model.mix(*layers), hidden, losses[0] + losses[1]

    def metrics(self, loss: float, count: int, data: Stream | Passages, *more: float) -> dict[str, float]:
        words, follows, right, agreed, rows, *replaced = more
        metrics = {
            "loss": loss / max(1, count),
            "words_loss": words / max(1, count),
            "words_accuracy": right / max(1, count),
        }
        if not self.config.words:
            metrics = {"loss": follows / max(1, rows)}
        if self.config.next:
            metrics |= {"next_loss": follows / max(1, rows), "next_accuracy": agreed / max(1, rows)}
        if self.config.replaced:
            wrong, detected, all_words = replaced or (0.0, 0.0, 0.0)
            metrics |= {
                "replaced_loss": wrong / max(1, all_words),
                "replaced_accuracy": detected / max(1, all_words),
            }
        return metrics

    def guess(
        self, model: Bert | Electra | Elmo, batches: Iterable[Batch], data: Stream | Passages
    ) -> Guess | None:
        """Guess words by their frequency; a fifth of them is shown, half of these unchanged, so repeating
        the input is right every other time. Guess the next sentence by a coin."""
        if self.config.replaced or not self.config.words:
            return None
        batches = list(batches)
        words = guess_targets(batches, self.tokenizer.vocab)
        loss = 0.8 * words.loss + 0.2 * (math.log(2) + 0.5 * words.loss)
        if self.config.next:
            rows = sum(len(batch[-1]) for batch in batches)
            loss += self.masker.limit * math.log(2) * rows / sum(map(targets, batches))
        return Guess(loss, loss, words.share, words.steps)

    def preview(self, model: Bert | Electra | Elmo, data: Stream | Passages, seed: int) -> str:
        """A sentence of the data with a blank in it, and the words that the model would put there."""
        ids = data.sentence_ids(0, 1) if isinstance(data, Passages) else data.read(0, min(len(data), 20))
        ids = ids[: self.context - 2]
        at = len(ids) // 2
        text = [self.first, *ids.tolist(), self.end]
        text[at + 1] = self.mask
        shown = self.tokenizer.decode(ids[:at]) + " ___ " + self.tokenizer.decode(ids[at + 1 :])
        return f"{shown}\n  → {format_words(self._likeliest(model, [text], BEST)[0][0])}"

    # Answers

    def answers(self, model: Bert | Electra | Elmo, request: Request) -> list[list[Answer]]:
        """For each blank of each text, the likeliest words with their probabilities; for each pair of texts
        with a tab between them, whether the second follows the first.

        For a text without blanks, a model that detects replaced words returns the likeliest ones.
        """
        pairs = [split_pair(input) for input in request.inputs]
        texts = [self.blank_ids(text) for text, pair in zip(request.inputs, pairs, strict=True) if not pair]
        words = iter(self._likeliest(model, texts, max(BEST, request.samples)) if texts else [])
        logits = iter(self._next_sentence(model, [self.pair_ids(*pair) for pair in pairs if pair]))
        return [
            likeliest_classes(NEXT, next(logits), request.samples)
            if pair
            else fill_blanks(next(words), request.samples)
            for pair in pairs
        ]

    def join_arguments(self, texts: Sequence[str]) -> Sequence[str]:
        """Join two texts without blanks to a pair, if the model predicts next sentences or masked words."""
        several = len(texts) != 2 or self.config.replaced or any(BLANK.search(text) for text in texts)
        return texts if several else ["\t".join(text.replace("\t", " ") for text in texts)]

    def blank_ids(self, text: str) -> list[int]:
        """[CLS] text [SEP], with [MASK] for each blank."""
        parts = BLANK.split(text)
        if not self.config.words and (len(parts) > 1 or not self.config.replaced):
            asks = "whether words were replaced" if self.config.replaced else "whether a text follows another"
            raise UserError(f"this model has no head for masked words; it only predicts {asks}")
        if len(parts) < 2 and not self.config.replaced:
            raise UserError("mark what is missing with [MASK] or ___, as in: The fox [MASK] over the dog")
        ids: list[int] = [self.first]
        for i, part in enumerate(parts):
            ids += [*([self.mask] if i else []), *self.tokenizer.encode(part.rstrip())]
        return self.check_length([*ids, self.end])

    def pair_ids(self, text: str, other: str) -> tuple[list[int], int]:
        """[CLS] text [SEP] other [SEP], and where the other begins."""
        if not self.config.next:
            raise UserError(
                "this model was trained without next sentence prediction, so it cannot say whether a text "
                "follows another; train one with task.next=true, or mark what is missing with [MASK]"
            )
        a, b = ([*self.tokenizer.encode(part.strip()), self.end] for part in (text, other))
        return self.check_length([self.first, *a, *b]), 1 + len(a)

    def check_length(self, ids: list[int]) -> list[int]:
        if len(ids) > self.context:
            raise UserError(
                f"a text of {len(ids)} tokens does not fit the context of {self.context}; shorten it"
            )
        return ids

    @torch.inference_mode()
    def _next_sentence(
        self, model: Bert | Electra | Elmo, pairs: Sequence[tuple[list[int], int]]
    ) -> list[Tensor]:
        """The logits (2,) of each pair: that the second text follows, and that it does not."""
        if not pairs:
            return []
        ids, attention_mask = pad_rows(ragged([ids for ids, _ in pairs]), np.arange(len(pairs)))
        segments = segments_from(np.array([second for _, second in pairs]), attention_mask)
        device = next(model.parameters()).device
        batch = (torch.from_numpy(x).to(device) for x in (ids, attention_mask, segments))
        with evaluating(model):
            return list(upcast(self.next_logits(model, *batch)).cpu())

    def next_logits(
        self, model: Bert | Electra | Elmo, ids: Tensor, attention_mask: Mask, segments: Tensor
    ) -> Tensor:
        """The logits (B, 2) of whether the second text of each row follows the first."""
        bert = cast(Bert, without_head(model))
        kinds = segments if bert.config.segments > 1 else None
        return bert.next_sentence(bert.encode(ids, attention_mask, kinds))

    @torch.inference_mode()
    def _likeliest(
        self, model: Bert | Electra | Elmo, texts: list[list[int]], count: int
    ) -> list[list[Choices]]:
        """For each [MASK] of each text, the likeliest words with their probabilities; if a text has none,
        its words that were most likely replaced."""
        device, T = next(model.parameters()).device, max(map(len, texts))
        rows = [row + [self.pad] * (T - len(row)) for row in texts]
        mask = [[i < len(row) for i in range(T)] for row in texts]
        ids, attention_mask = torch.tensor(rows, device=device), torch.tensor(mask, device=device)  # (B, T)
        replaced = attention_mask
        with evaluating(model):
            logits = model(ids, attention_mask) if self.config.words else ids[..., None]  # (B, T, V)
            probs = logits.float().softmax(-1)
            if self.config.replaced:
                assert isinstance(model, Electra)
                replaced = model.detect(model.model.encode(ids, attention_mask)).sigmoid()  # (B, T)
        every, result = list(range(probs.shape[-1])), []
        for b, row in enumerate(texts):
            blanks = [(probs[b, t], every) for t, id in enumerate(row) if id == self.mask]
            blanks = blanks or [(replaced[b, 1 : len(row) - 1], row[1:-1])]
            result.append([self._choices(p, words, count) for p, words in blanks])
        return result

    def _choices(self, probabilities: Tensor, words: Sequence[int], count: int) -> Choices:
        top = probabilities.topk(min(count, len(probabilities)))
        best = zip(top.values.tolist(), top.indices.tolist(), strict=True)
        return [(self.tokenizer.tokens([words[i]])[0].strip(), p) for p, i in best]

    # Looking on

    def whole_text(self, text: str) -> list[int]:
        """Encode a text without blanks."""
        return [self.first, *self.tokenizer.encode(text)[: self.context - 2], self.end]

    def reading(self, model: Bert | Electra | Elmo, input: str) -> Reading:
        if BLANK.search(input):
            return super().reading(model, input)
        if pair := split_pair(input):
            ids, second = self.pair_ids(*pair)
            row, segments = on_device(model, ids, [int(i >= second) for i in range(len(ids))])
            tokens = {"text": self.tokenizer.tokens(ids), "label": list(NEXT)}
            return Reading({"text": ids}, tokens, lambda: self.next_logits(model, row, None, segments))
        ids = self.whole_text(input)
        (row,) = on_device(model, ids)
        unread = max(0, len(self.tokenizer.encode(input)) - (self.context - 2))
        reading = Reading(
            {"text": ids}, {"text": self.tokenizer.tokens(ids)}, lambda: model(row), unread=unread
        )
        if isinstance(model, Electra):
            reading.run = lambda: model.detect(model.model.encode(row))
        if isinstance(model, Elmo):
            reading.run = lambda: predict_and_mix(model, row)
        return reading

    def run_once(self, model: Bert | Electra | Elmo, text: str) -> None:
        if BLANK.search(text) or split_pair(text):
            super().run_once(model, text)
        else:
            bert = without_head(model)
            bert(*on_device(model, self.whole_text(text)))

    def outcome(self, result: Tensor, reading: Reading) -> dict[str, Tensor]:
        if result.ndim > 1 or "label" in reading.tokens:
            return super().outcome(result, reading)
        return {"logits": result, "probabilities": upcast(result).sigmoid()}  # whether words were replaced

    def describe(self, d: Description, model: Bert | Electra | Elmo, dims: int) -> None:
        if dims == 1:  # predicts the next sentence, or detects replaced words (ELECTRA)
            text = Text("Logits", "The scores of a text that follows, and of another.", "z")
            d.same("logits", "next", text, box=LINEAR)
            d.see("probabilities", {"does": "softmax", "x": "next"}, PROBABILITIES, box=SOFTMAX)
            text = Text("Logits", "The score of each token being replaced.", "z_t")
            z = d.same("logits", "found", text, box=LINEAR, column=0)
            text = Text("Probabilities", "The probability of each token being replaced.", "σ(z_t)")
            d.activate("probabilities", torch.sigmoid, z, text=text, box=SOFTMAX)
        else:
            super().describe(d, model, dims)

    def answer_rows(self, ids: Sequence[int], count: int) -> list[int]:
        return [i for i, id in enumerate(ids) if id == self.mask] or list(range(count))


def format_words(choices: Choices) -> str:
    return ", ".join(f"{word} {p:.2f}" for word, p in choices[:BEST])


def fill_blanks(blanks: list[Choices], samples: int) -> list[Answer]:
    """Return the likeliest words of all blanks as one answer, or as several answers the likeliest ways to
    fill all of them, with their probabilities: blanks are filled independently of each other."""
    if samples == 1:
        value = [[{"word": word, "score": p} for word, p in choices[:BEST]] for choices in blanks]
        return [Answer("; ".join(map(format_words, blanks)), value=value)]
    ways: list[tuple[list[str], float]] = [([], 1.0)]
    for choices in blanks:
        longer = [  # only this many words of a blank can be part of the n-th best way
            ([*words, word], q * p)
            for n, (words, q) in enumerate(ways, 1)
            for word, p in choices[: samples // n]
        ]
        ways = sorted(longer, key=lambda way: -way[1])[:samples]
    return [Answer("; ".join(words), p, words) for words, p in ways]


def predict_and_mix(model: Elmo, ids: Tensor) -> Tensor:
    """Return the logits; also compute the vectors that tasks would use, so that they can be recorded."""
    layers = model.layers(ids)
    model.mix(*layers)
    return model.logits(model.both_sides(layers[1]))


def take(x: Tensor, places: Tensor) -> Tensor:
    """Select the vectors (B, M, D) at places (B, M) of x (B, T, D)."""
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))


def put_in(ids: Tensor, places: Tensor, words: Tensor, counts: Tensor) -> Tensor:
    """Put words (B, M) into texts (B, T) at places (B, M), where they count."""
    return ids.scatter(1, places.where(counts, places[:, :1]), words.where(counts, words[:, :1]))


def split_pair(input: str | Sequence[str]) -> tuple[str, str] | None:
    """Split the two texts of a pair at its tab; None for a text with blanks or without a tab."""
    if not isinstance(input, str):
        first, second = input
        return first, second
    text, tab, other = input.partition("\t")
    return (text, other) if tab and not BLANK.search(input) else None

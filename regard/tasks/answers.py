"""Turn tokens into answers, for every task that writes."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from regard.decode.beam import NO_TOKEN, Hypothesis, beam_search
from regard.decode.cpu_steps import next_logits
from regard.decode.generate import Stopper, generate
from regard.decode.paged_beam import search_by_runner
from regard.decode.prompts import Source, Writer, read_rows
from regard.decode.runners import borrow_runner
from regard.decode.sampling import Sampling, beam_processor
from regard.decode.shortlist import ShortlistWriter
from regard.errors import UserError
from regard.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Answer:
    text: str
    score: float | None = None  # beam search's: log-probability / length ** length_penalty
    value: Any = field(
        default=None, compare=False
    )  # the value that the text shows: a number, a list or an object; None: only the text


@dataclass(frozen=True)
class Generated:
    """The tokens of an answer."""

    tokens: list[int]
    score: float | None = None  # as an answer's


def stream_text(
    steps: Iterable[list[int | None]],
    tokenizer: Tokenizer,
    rows: int,
    stop: Sequence[str],
    before: Sequence[int] = (),
) -> Iterator[list[str]]:
    """The text of `generate`: the new piece of every row, step by step, after the tokens `before`."""
    texts = [(tokenizer.decoder(before), Stopper(stop)) for _ in range(rows)]
    for tokens in steps:
        yield [
            stopper.push(decoder.push(token)) if token is not None and not stopper.done else ""
            for token, (decoder, stopper) in zip(tokens, texts, strict=True)
        ]
        if all(stopper.done for _, stopper in texts):
            return
    yield [stopper.push(decoder.finish()) + stopper.finish() for decoder, stopper in texts]


def join_text(
    steps: Iterable[list[int | None]],
    tokenizer: Tokenizer,
    rows: int,
    stop: Sequence[str],
    before: Sequence[int] = (),
) -> list[str]:
    """The whole text of every row: what `stream_text` yields, joined.

    Without stops, texts are decoded once, at their end, so that the next step does not wait for it.
    """
    if stop:
        return [
            "".join(pieces) for pieces in zip(*stream_text(steps, tokenizer, rows, stop, before), strict=True)
        ]
    begin = len(tokenizer.decode(before))
    return [tokenizer.decode([*before, *tokens])[begin:] for tokens in collect_tokens(steps, rows)]


def collect_tokens(steps: Iterable[list[int | None]], rows: int) -> list[list[int]]:
    """All tokens of every row of `generate`."""
    texts: list[list[int]] = [[] for _ in range(rows)]
    for tokens in steps:
        for text, token in zip(texts, tokens, strict=True):
            if token is not None:
                text.append(token)
    return texts


def generate_tokens(
    model: Writer,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    end: int | None,
    samples: int,
    sources: Sequence[Source] | None = None,
) -> list[list[Generated]]:
    """Generate `samples` continuations of each prompt: sampled, or the most likely ones by beam search."""
    if sampling.num_beams > 1:
        hypotheses = search_beams(model, prompts, sampling, end, samples, sources)
        return [[Generated(h.tokens, h.score) for h in several] for several in hypotheses]
    steps = generate(model, prompts, sampling, sources=sources, end=end, samples=samples)
    rows = collect_tokens(steps, len(prompts) * samples)
    return [[Generated(row) for row in rows[i : i + samples]] for i in range(0, len(rows), samples)]


def search_beams(
    model: Writer,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    end: int | Collection[int] | None,
    samples: int,
    sources: Sequence[Source] | None = None,
) -> list[list[Hypothesis]]:
    """The most likely continuations of each prompt, best first; beams can't outgrow the context."""
    beams = sampling.num_beams
    if samples > beams:
        raise UserError(f"num_return_sequences={samples}: no more than num_beams={beams}")
    longest = sampling.max_new_tokens
    if sources is not None:  # as in `generate`, an answer ends when the context is full
        longest = min(longest, 1 + model.config.context - len(prompts[0]))
    by_text = sampling.repetition_penalty != 1 or sampling.no_repeat_ngram_size  # depends on the texts so far
    with nullcontext() if by_text else borrow_runner(model, len(prompts) * beams) as runner:
        if runner is not None:
            ends = [end] if isinstance(end, int) else list(end or ())
            best = search_by_runner(runner, prompts, sampling, ends, longest, sources)
            return [several[:samples] for several in best]
    process = beam_processor(sampling, prompts)
    if compact := isinstance(model, ShortlistWriter) and process is None:
        model = model.compact()
    with torch.inference_mode():
        logits, state = read_rows(model, prompts, sources)
    hypotheses = beam_search(
        partial(next_logits, model),
        logits,
        state,
        beams=beams,
        end=NO_TOKEN if end is None else end,
        max_new_tokens=longest,
        length_penalty=sampling.length_penalty,
        process=process,
        vocab=state.tokens if compact else None,
    )
    return [several[:samples] for several in hypotheses]


def decode_hypotheses(
    hypotheses: list[list[Hypothesis]],
    tokenizer: Tokenizer,
    stop: Sequence[str],
    before: Sequence[int] = (),
) -> list[list[Answer]]:
    """Decode the results of beam search up to the first stop; `before` are the tokens before them."""

    def answer(hypothesis: Hypothesis) -> Answer:
        stopper = Stopper(stop)
        text = tokenizer.decode([*before, *hypothesis.tokens])[len(tokenizer.decode(before)) :]
        return Answer(stopper.push(text) + stopper.finish(), hypothesis.score)

    return [[answer(h) for h in several] for several in hypotheses]

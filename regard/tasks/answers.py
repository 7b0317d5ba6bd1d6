"""From tokens to answers, for every task that writes."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.beam import NOTHING, Hypothesis, beam_search
from regard.errors import Mistake
from regard.generate import Sampling, Source, Stopper, allowed, generate, read
from regard.text import Tokenizer


@dataclass(frozen=True)
class Answer:
    text: str
    score: float | None = None  # beam search's: log-probability / length ** length_penalty


@dataclass(frozen=True)
class Written:
    tokens: list[int]
    score: float | None = None  # as an answer's


def streamed(
    steps: Iterable[list[int | None]],
    tokenizer: Tokenizer,
    rows: int,
    stop: Sequence[str],
    begun: Sequence[int] = (),
) -> Iterator[list[str]]:
    """What `generate` writes, as text: the new piece of every row, step by step; `begun` stands before it."""
    texts = [(tokenizer.decoder(begun), Stopper(stop)) for _ in range(rows)]
    for tokens in steps:
        yield [
            stopper.push(decoder.push(token)) if token is not None and not stopper.done else ""
            for token, (decoder, stopper) in zip(tokens, texts, strict=True)
        ]
        if all(stopper.done for _, stopper in texts):
            return
    yield [stopper.push(decoder.finish()) + stopper.finish() for decoder, stopper in texts]


def written(
    model: Any,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    end: int | None,
    samples: int,
    sources: Sequence[Source] | None = None,
) -> list[list[Written]]:
    """`samples` continuations of each prompt, as tokens: drawn, or the most likely ones by beam search."""
    if sampling.num_beams > 1:
        found = searched(model, prompts, sampling, end, samples, sources)
        return [[Written(h.tokens, h.score) for h in some] for some in found]
    texts: list[list[int]] = [[] for _ in range(len(prompts) * samples)]
    for tokens in generate(model, prompts, sampling, sources=sources, end=end, samples=samples):
        for text, token in zip(texts, tokens, strict=True):
            text += [] if token is None else [token]
    return [[Written(text) for text in texts[i : i + samples]] for i in range(0, len(texts), samples)]


def searched(
    model: Any,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    end: int | Collection[int] | None,
    samples: int,
    sources: Sequence[Source] | None = None,
) -> list[list[Hypothesis]]:
    """The most likely continuations of each prompt, best first; beams can't outgrow the context."""
    beams = sampling.num_beams
    if samples > beams:
        raise Mistake(f"num_return_sequences={samples}: no more than num_beams={beams}")
    longest = sampling.max_new_tokens
    if sources is not None:  # as in `generate`, an answer ends when the context is full
        longest = min(longest, 1 + model.config.context - len(prompts[0]))
    with torch.inference_mode():
        logits, state = read(model, prompts, sources)
    found = beam_search(
        model.step,
        logits,
        state,
        beams=beams,
        end=NOTHING if end is None else end,
        max_new_tokens=longest,
        length_penalty=sampling.length_penalty,
        allowed=allowed(sampling, prompts),
    )
    return [hypotheses[:samples] for hypotheses in found]


def spelt(
    found: list[list[Hypothesis]], tokenizer: Tokenizer, stop: Sequence[str], begun: Sequence[int] = ()
) -> list[list[Answer]]:
    """What beams found, as text up to the first stop; `begun` stands before it."""

    def answer(hypothesis: Hypothesis) -> Answer:
        stopper = Stopper(stop)
        text = tokenizer.decode([*begun, *hypothesis.tokens])[len(tokenizer.decode(begun)) :]
        return Answer(stopper.push(text) + stopper.finish(), hypothesis.score)

    return [[answer(h) for h in hypotheses] for hypotheses in found]

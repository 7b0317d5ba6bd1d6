"""From tokens to answers, for every task that writes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.beam import NOTHING, Hypothesis, beam_search
from regard.errors import Mistake
from regard.generate import Sampling, Stopper, allowed, read
from regard.text import Tokenizer


@dataclass(frozen=True)
class Answer:
    text: str
    score: float | None = None  # beam search's: log-probability / length ** length_penalty


def streamed(
    steps: Iterable[list[int | None]],
    tokenizer: Tokenizer,
    rows: int,
    stop: Sequence[str],
    begun: Sequence[int] = (),
) -> Iterator[list[str]]:
    """What `generate` writes, as text: the new piece of every row, step by step; `begun` stands before it."""
    written = [(tokenizer.decoder(begun), Stopper(stop)) for _ in range(rows)]
    for tokens in steps:
        yield [
            stopper.push(decoder.push(token)) if token is not None and not stopper.done else ""
            for token, (decoder, stopper) in zip(tokens, written, strict=True)
        ]
        if all(stopper.done for _, stopper in written):
            return
    yield [stopper.push(decoder.finish()) + stopper.finish() for decoder, stopper in written]


def searched(
    model: Any,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    tokenizer: Tokenizer,
    stop: Sequence[str],
    samples: int,
    sources: Sequence[Sequence[int]] | None = None,
    begun: Sequence[int] = (),
) -> list[list[Answer]]:
    """The most likely answers to each prompt, best first; beams can't outgrow the context."""
    beams, end = sampling.num_beams, tokenizer.end
    if samples > beams:
        raise Mistake(f"num_return_sequences={samples}: no more than num_beams={beams}")
    with torch.inference_mode():
        logits, state = read(model, prompts, sources)
    found = beam_search(
        model.step,
        logits,
        state,
        beams=beams,
        end=NOTHING if end is None else end,
        max_new_tokens=sampling.max_new_tokens,
        length_penalty=sampling.length_penalty,
        allowed=allowed(sampling, prompts),
    )

    def answer(hypothesis: Hypothesis) -> Answer:
        stopper = Stopper(stop)
        text = tokenizer.decode([*begun, *hypothesis.tokens])[len(tokenizer.decode(begun)) :]
        return Answer(stopper.push(text) + stopper.finish(), hypothesis.score)

    return [[answer(h) for h in hypotheses[:samples]] for hypotheses in found]

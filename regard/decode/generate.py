"""Generation: greedy or sampled, many rows at once, one token of each row at a time.

A row's text depends only on its prompt, the options and the seed, not on the other rows of the batch.
This works with every model whose `start` reads prompts (and sources, if it has an encoder), and whose `step`
reads one more token.

Shapes: B unfinished rows, T tokens, V vocabulary.
"""

import secrets
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from regard.cancel import check_cancelled
from regard.decode.buffers import Text
from regard.decode.lookup import Guesses
from regard.decode.prompts import Source, Writer, fit_context, read_rows, source_key
from regard.decode.runner import Runner
from regard.decode.runners import borrow_runner
from regard.decode.sampling import (
    NOT_FINITE,
    RowRules,
    Sampling,
    choose,
    draw_uniform,
    row_generator,
    row_rules,
)
from regard.decode.shortlist import ShortlistWriter, ShortState
from regard.errors import UserError


def generate(
    model: Writer,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    sources: Sequence[Source] | None = None,
    end: int | Collection[int] | None = None,
    samples: int = 1,
    cached: bool = True,
) -> Iterator[list[int | None]]:
    """Continue each prompt `samples` times: yield each row's new token at every step, None after its end.

    An encoder-decoder also reads the prompt's source; there, a row also ends when the context is full.
    Sample j of prompt i is row i * samples + j. A row ends at an `end` token, which is not yielded, or after
    max_new_tokens; so a row with fewer tokens than that has reached an end token.
    cached=False reads every row anew at every step, which is slow and gives the same tokens.
    The model is in evaluation mode during the iteration.
    """
    for i, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompt {i} is empty: give at least one token")
    if samples < 1:
        raise UserError(f"samples={samples}: give a whole number from 1 up")
    ends = {end} if isinstance(end, int) else set(end or ())
    if isinstance(model, ShortlistWriter) and cached and sampling.takes_highest:
        model = model.compact()
    texts = [list(prompt) for prompt in prompts for _ in range(samples)]
    repeated = None if sources is None else [source for source in sources for _ in range(samples)]
    return _generate(model, texts, repeated, sampling, ends, samples, cached)


@dataclass
class Job:
    """Rows to write: their texts so far, sources, random numbers, and largest numbers of tokens."""

    texts: list[list[int]]
    sources: list[Source] | None
    sampling: Sampling
    ends: set[int]
    generators: list[np.random.Generator]
    max_steps: int
    rules: list[RowRules | None]


@torch.inference_mode()  # between the steps it is off
def _generate(
    model: Writer,
    texts: list[list[int]],
    sources: list[Source] | None,
    sampling: Sampling,
    ends: set[int],
    samples: int,
    cached: bool,
) -> Iterator[list[int | None]]:
    seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
    asked = texts if sources is None else [[*source_key(s), *t] for s, t in zip(sources, texts, strict=True)]
    generators = [row_generator(seed, row % samples, text) for row, text in enumerate(asked)]
    max_steps = sampling.max_new_tokens
    if sources is not None:
        max_steps = min(max_steps, 1 + model.config.context - max(map(len, texts), default=0))
    rules = [row_rules(sampling, len(text), ends, max_steps) for text in texts]
    job = Job(texts, sources, sampling.without_rules(), ends, generators, max_steps, rules)
    with borrow_runner(model, len(texts)) if cached else nullcontext() as runner:
        if runner is None:
            yield from _generate_plainly(model, job, cached)
        else:
            yield from _generate_by_runner(runner, job)


def _generate_by_runner(runner: Runner, job: Job) -> Iterator[list[int | None]]:
    """On a GPU: a row gets its first token when there is room for it; other rows may be ahead by then."""
    texts, sources, sampling, ends = job.texts, job.sources, job.sampling, job.ends
    rows: dict[Text, int] = {}
    for row, ids in enumerate(texts if job.max_steps > 0 else []):
        source = None if sources is None else sources[row]
        text = Text(ids, sampling, job.generators[row], job.max_steps, source, rules=job.rules[row])
        rows[text] = row
        runner.add(text)
    while not runner.idle:
        check_cancelled()
        steps: list[list[int | None]] = []  # more than one if guesses were right
        begun = Counter[Text]()
        for output in runner.step():
            if output.token < 0:
                raise UserError(NOT_FINITE)
            if output.text.done:
                continue
            if output.token not in ends:
                if begun[output.text] == len(steps):
                    steps.append([None] * len(texts))
                steps[begun[output.text]][rows[output.text]] = output.token
                begun[output.text] += 1
            rules = output.text.rules
            raise_errors([rules])
            if output.token in ends or output.last or (rules is not None and rules.finished):
                runner.remove(output.text)
        yield from steps


def _generate_plainly(model: Writer, job: Job, cached: bool) -> Iterator[list[int | None]]:
    """All rows at once, step by step until none is left."""
    texts, sources, sampling, ends = job.texts, job.sources, job.sampling, job.ends
    generators, max_steps = job.generators, job.max_steps
    device, context = next(model.parameters()).device, model.config.context
    live = list(range(len(texts)))  # the unfinished rows: row b of the batch is texts[live[b]]
    state, length = None, context  # length: of the longest window in the state, padding included
    guesses: Guesses | None = None
    vocab: list[int] | None = None  # the tokens of the logits, if these are not all tokens
    training = [m for m in model.modules() if m.training]
    for m in training:
        m.training = False
    try:
        for step in range(max_steps if live else 0):
            windows = [fit_context(texts[row], context) for row in live]
            live_sources = None if sources is None else [sources[row] for row in live]
            if not cached:
                alone = [(w, live_sources and [live_sources[b]]) for b, w in enumerate(windows)]
                logits = torch.cat([read_rows(model, [w], source)[0] for w, source in alone])
            elif length == context:  # nothing is read yet, or the longest row is full
                logits, state = read_rows(model, windows, live_sources)
                length = max(map(len, windows))
                vocab = state.vocab() if isinstance(state, ShortState) else None
                if sampling.prompt_lookup_num_tokens and len(texts) == 1:
                    guesses = Guesses.of(model, state, sampling.prompt_lookup_num_tokens)
            elif guesses is not None:
                logits = guesses.step(windows[0], min(context - length, max_steps - step) - 1)
                length += 1
            else:
                last = torch.tensor([w[-1:] for w in windows], device=device)  # (B, 1)
                logits, state = model.step(last, state)
                length += 1
            uniform = draw_uniform([generators[row] for row in live])
            rules = [job.rules[row] for row in live]
            tokens = choose(logits, [texts[row] for row in live], sampling, uniform, rules)
            if -1 in tokens:
                raise UserError(NOT_FINITE)
            raise_errors(rules)
            tokens = tokens if vocab is None else [vocab[token] for token in tokens]
            going = [b for b, token in enumerate(tokens) if token not in ends]
            new: list[int | None] = [None] * len(texts)
            for b in going:
                texts[live[b]].append(tokens[b])
                new[live[b]] = tokens[b]
            if not going:
                return
            yield new
            going = [b for b in going if not ((rule := rules[b]) and rule.finished)]
            if not going:
                return
            if len(going) < len(live):  # costs no more than growing the cache by a step
                live = [live[b] for b in going]
                if state is not None:
                    state.reorder(torch.tensor(going, device=device))
    finally:
        for m in training:
            m.training = True


def raise_errors(rules: Sequence[RowRules | None]) -> None:
    for rule in rules:
        if rule is not None and rule.error is not None:
            raise rule.error


def check_stops(stops: object) -> None:
    if not isinstance(stops, list | tuple) or not all(stop and isinstance(stop, str) for stop in stops):
        raise UserError(f"stop={stops!r}: give a list of strings, none of them empty")


class Stopper:
    """Passes streamed text on, up to the stop that begins first.

    Text that may begin a stop is held back, so that the result does not depend on the pieces.
    """

    def __init__(self, stops: Sequence[str]):
        check_stops(stops)
        self.stops, self.held, self.done = list(stops), "", False

    def push(self, piece: str) -> str:
        """Take one more piece of text; return what is safe to show now."""
        if self.done:
            return ""
        self.held += piece
        cut, open_ = self._cut(), self._open()
        self.done = cut < len(self.held) and cut <= open_
        shown, self.held = self.held[: min(cut, open_)], "" if self.done else self.held[open_:]
        return shown

    def finish(self) -> str:
        """Return the text that was held back, up to a stop, at the end."""
        cut, held = self._cut(), self.held
        self.done, self.held = self.done or cut < len(held), ""
        return held[:cut]

    def _cut(self) -> int:
        """Where the first complete stop begins."""
        return min((at for at in map(self.held.find, self.stops) if at >= 0), default=len(self.held))

    def _open(self) -> int:
        """Where the beginning of a stop that may still be completed starts."""
        n = len(self.held)
        first = max(0, n + 1 - max(map(len, self.stops), default=1))
        tails = ((i, self.held[i:]) for i in range(first, n))
        return next((i for i, t in tails if any(s.startswith(t) and s != t for s in self.stops)), n)

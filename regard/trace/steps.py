"""A trace of every step of writing an answer.

Shapes: K beams, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.beam import NOTHING, beam_search
from regard.errors import Mistake
from regard.generate import allowed, generate
from regard.generate import read as read_rows
from regard.run import Model
from regard.tasks import Restore, Write
from regard.tasks.pairs import PairTask

from .collecting import Found, collected
from .kept import Trace
from .reading import Reading, made, read_source, sourced


class Steps:
    """A model that writes, and keeps a trace of every step."""

    def __init__(self, model: Model, layers: Sequence[int] | None, reading: Reading, side: str):
        self.model, self.layers, self.reading, self.side = model, layers, reading, side
        self.inner, self.config = model.model, model.model.config
        self.parameters, self.modules = self.inner.parameters, self.inner.modules
        self.heard: list[int] = []
        self.traces: list[Trace] = []

    def start(self, *given: Any) -> tuple[Tensor, Any]:
        with collected(self.inner, self.layers) as found:
            logits, state = self.inner.start(*given)  # type: ignore[operator]
        self.heard = given[1 if self.side == "target" else 0][0].tolist()
        self.keep(found, logits)
        return logits, state

    def step(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        with collected(self.inner, self.layers, reads=False) as found:
            logits, state = self.inner.step(ids, state)  # type: ignore[operator]
        self.heard = [*self.heard, int(ids[0, 0])]
        self.keep(found, logits)
        return logits, state

    def keep(self, found: Found, logits: Tensor) -> None:
        new = made(self.model, self.reading, found, logits)
        new.about["step"] = len(self.traces)
        self.traces.append(self.tell(new, self.side, self.heard))

    def tell(self, some: Trace, side: str, ids: list[int]) -> Trace:
        writer = getattr(self.model.task, "writer", self.model.task.tokenizer)
        some.ids, some.tokens = some.ids | {side: ids}, some.tokens | {side: writer.tokens(ids)}
        return some


def stepwise(model: Model, given: Any, layers: Sequence[int] | None, **options: Any) -> list[Trace]:
    """A trace of every step of writing an answer."""
    task, sampling = model.task, model._chosen(options)["sampling"]
    if not isinstance(task, PairTask | Restore | Write):
        raise Mistake("this model does not write step by step; leave steps out")
    longest, end = sampling.max_new_tokens, task.tokenizer.end if isinstance(task, Write) else task.end
    if isinstance(task, Write):
        prompt, sources = task.plain(given), None
        reading, side = Reading(), "text"
    else:
        source, begin, _ = sourced(model, given)
        prompt, sources = [begin], [source]
        reading, side = read_source(model, source), "target"
        longest = min(longest, model.model.config.context)  # type: ignore[union-attr]
    steps = Steps(model, layers, reading, side)
    if sampling.num_beams == 1:
        for new, (token,) in enumerate(generate(steps, [prompt], sampling, sources=sources, end=end)):
            steps.tell(steps.traces[new], "written", [token or 0])
        if end is not None and "written" not in steps.traces[-1].ids:
            steps.tell(steps.traces[-1], "written", [end])
        return steps.traces
    if sources is None:
        if longest >= task.context:
            raise Mistake(f"max_new_tokens={longest}: with beams, less than the context of {task.context}")
        prompt = prompt[longest - task.context :]
    logits, state = read_rows(steps, [prompt], sources)
    change = allowed(sampling, [prompt])
    beams = Beams(steps, prompt, sampling.num_beams, NOTHING if end is None else end, change)
    beam_search(
        steps.step,
        logits,
        state,
        beams=sampling.num_beams,
        end=beams.end,
        max_new_tokens=longest,
        length_penalty=sampling.length_penalty,
        allowed=beams.see,
    )
    return steps.traces


class Beams:
    """The candidates of every step, as beam search weighs them."""

    def __init__(self, steps: Steps, prompt: list[int], beams: int, end: int, change: Any):
        self.steps, self.prompt, self.beams, self.end, self.change = steps, prompt, beams, end, change
        self.sums: dict[tuple[int, ...], float] = {}

    def see(self, new: Tensor, texts: Tensor, rows: Tensor) -> Tensor:
        """`allowed` of `beam_search`: told what may follow each of the texts, before that is weighed.

        A candidate has its `text` so far as ids, its last `token`, the number of the `parent` beam, and a
        `score`, the sum of log-probabilities; it has `ended`, or is `kept` as a beam, or neither.
        """
        new = new if self.change is None else self.change(new, texts, rows)
        beams = [tuple(text) for text in texts[0].tolist()]
        if not beams[0]:  # at first, all are the same one
            sums = [0.0] + [-math.inf] * (len(beams) - 1)
        else:
            sums = [self.sums.get(text, -math.inf) for text in beams]
            for one in self.steps.traces[-2].about["beam"]:
                one["kept"] = tuple(one["text"]) in beams
        scores = torch.tensor(sums, device=new.device)[:, None] + new[0]  # (K, V)
        best, place = scores.flatten().topk(min(2 * self.beams, scores.numel()))
        found, writer = [], getattr(self.steps.model.task, "writer", self.steps.model.task.tokenizer)
        for score, at in zip(best.tolist(), place.tolist(), strict=True):
            parent, id = divmod(at, scores.shape[1])
            told = {"text": [*beams[parent], id], "token": writer.tokens([id])[0], "parent": parent}
            found.append(told | {"score": score, "ended": id == self.end, "kept": False})
        found = [one for one in found if one["score"] > -math.inf]
        self.sums = {tuple(one["text"]): one["score"] for one in found}
        self.steps.traces[-1].about["beam"] = found
        self.steps.tell(self.steps.traces[-1], self.steps.side, [*self.prompt, *beams[0]])
        return new

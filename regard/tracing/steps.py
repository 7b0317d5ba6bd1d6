"""Trace every step of generating an answer.

Shapes: K beams, V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.decode.beam import NO_TOKEN, beam_search
from regard.decode.generate import generate
from regard.decode.prompts import read_rows
from regard.decode.sampling import Sampling, beam_processor
from regard.errors import UserError
from regard.runs.model import Model
from regard.tasks.reading import Reading
from regard.tracing.reading import make_trace, read_source
from regard.tracing.record import Recording, record
from regard.tracing.traces import Trace


class StepTracer:
    """Generates with a model, and keeps a trace of every step."""

    def __init__(self, model: Model, layers: Sequence[int] | None, reading: Reading, side: str):
        self.model, self.layers, self.reading, self.side = model, layers, reading, side
        self.inner, self.config = model.model, model.model.config
        self.parameters, self.modules = self.inner.parameters, self.inner.modules
        self.ids: list[int] = []  # of the decoder's input so far
        self.traces: list[Trace] = []

    def start(self, *inputs: Any) -> tuple[Tensor, Any]:
        with record(self.inner, self.layers) as recording:
            logits, state = self.inner.start(*inputs)  # type: ignore[operator]
        self.ids = inputs[1 if self.side == "target" else 0][0].tolist()
        self.add_trace(recording, logits)
        return logits, state

    def step(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        with record(self.inner, self.layers, reads=False) as recording:
            logits, state = self.inner.step(ids, state)  # type: ignore[operator]
        self.ids = [*self.ids, int(ids[0, 0])]
        self.add_trace(recording, logits)
        return logits, state

    def add_trace(self, recording: Recording, logits: Tensor) -> None:
        self.traces.append(make_trace(self.model, self.reading, recording, logits))
        self.traces[-1].about["step"] = len(self.traces) - 1
        self.set_tokens(-1, self.side, self.ids)

    def set_tokens(self, step: int, side: str, ids: list[int]) -> None:
        """Set the ids and tokens of one side of a step's trace."""
        trace, tokens = self.traces[step], self.model.task.output_tokenizer.tokens(ids)
        trace.ids, trace.tokens = trace.ids | {side: ids}, trace.tokens | {side: tokens}


def trace_steps(model: Model, input: Any, layers: Sequence[int] | None, **options: Any) -> list[Trace]:
    """A trace of every step of generating an answer."""
    task, sampling = model.task, model.request([], options).sampling
    if not task.generates:
        raise UserError("this model does not write step by step; leave steps out")
    source, _ = task.split_target(input) if task.has_source else (input, None)
    read = task.source_prompt(model.model, source)
    prompt, sources = read.ids, None if read.source is None else [read.source]
    if task.has_source:
        tracer = StepTracer(model, layers, read_source(model, read), "target")
    else:
        tracer = StepTracer(model, layers, Reading(), "text")
    if sampling.num_beams > 1:
        search_beams(tracer, prompt, sources, sampling)
        return tracer.traces
    end = end_token(model)
    for new, (token,) in enumerate(generate(tracer, [prompt], sampling, sources=sources, end=end)):
        tracer.set_tokens(new, "written", [token or 0])
    if end is not None and "written" not in tracer.traces[-1].ids:
        tracer.set_tokens(-1, "written", [end])
    return tracer.traces


def end_token(model: Model) -> int | None:
    task = model.task
    return task.output_tokenizer.end if task.end is None else task.end


def search_beams(
    tracer: StepTracer, prompt: list[int], sources: list[Any] | None, sampling: Sampling
) -> None:
    """Run beam search, and trace its steps with the candidates of each."""
    task, longest, end = tracer.model.task, sampling.max_new_tokens, end_token(tracer.model)
    if task.has_source:
        longest = min(longest, task.context)
    if sources is None:
        if longest >= task.context:
            raise UserError(f"max_new_tokens={longest}: with beams, less than the context of {task.context}")
        prompt = prompt[longest - task.context :]
    logits, state = read_rows(tracer, [prompt], sources)
    process = beam_processor(sampling, [prompt])
    recorder = BeamRecorder(tracer, prompt, sampling.num_beams, NO_TOKEN if end is None else end, process)
    beam_search(
        tracer.step,
        logits,
        state,
        beams=sampling.num_beams,
        end=recorder.end,
        max_new_tokens=longest,
        length_penalty=sampling.length_penalty,
        process=recorder.record,
    )


class BeamRecorder:
    """Adds to every trace the candidates that beam search compares at its step."""

    def __init__(
        self,
        tracer: StepTracer,
        prompt: list[int],
        beams: int,
        end: int,
        process: Callable[[Tensor, Tensor, Tensor], Tensor] | None,
    ):
        self.tracer, self.prompt, self.beams, self.end, self.process = tracer, prompt, beams, end, process
        self.sums: dict[tuple[int, ...], float] = {}  # log-probabilities of the candidates

    def record(self, new: Tensor, texts: Tensor, rows: Tensor) -> Tensor:
        """The `process` argument of `beam_search`, which gets the log-probabilities of the next tokens.

        A candidate has its `text` so far as ids, its last `token`, the index of its `parent` beam, and its
        `score`, the sum of log-probabilities; it has `ended`, or is `kept` as a beam, or neither.
        """
        new = new if self.process is None else self.process(new, texts, rows)
        beams = [tuple(text) for text in texts[0].tolist()]
        if not beams[0]:  # at first, all beams are the same
            sums = [0.0] + [-math.inf] * (len(beams) - 1)
        else:
            sums = [self.sums.get(text, -math.inf) for text in beams]
            for candidate in self.tracer.traces[-2].about["beam"]:
                candidate["kept"] = tuple(candidate["text"]) in beams
        scores = torch.tensor(sums, device=new.device)[:, None] + new[0]  # (K, V)
        best, place = scores.flatten().topk(min(2 * self.beams, scores.numel()))
        candidates, tokenizer = [], self.tracer.model.task.output_tokenizer
        for score, at in zip(best.tolist(), place.tolist(), strict=True):
            if score > -math.inf:
                parent, id = divmod(at, scores.shape[1])
                text = {"text": [*beams[parent], id], "token": tokenizer.tokens([id])[0], "parent": parent}
                candidates.append(text | {"score": score, "ended": id == self.end, "kept": False})
        self.sums = {tuple(candidate["text"]): candidate["score"] for candidate in candidates}
        self.tracer.traces[-1].about["beam"] = candidates
        self.tracer.set_tokens(-1, self.tracer.side, [*self.prompt, *beams[0]])
        return new

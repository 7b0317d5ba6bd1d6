"""The search for an answer: the candidates of every step of beam search, and their attention.

Shapes: K beams, V vocabulary, H heads, S source tokens, N steps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.decode.beam import NO_TOKEN, beam_search
from regard.decode.prompts import read_rows
from regard.decode.sampling import beam_processor
from regard.describe.watch import evaluating, watch
from regard.errors import UserError
from regard.runs.model import Model
from regard.tracing import Trace
from regard.tracing.names import trace_names

ALTERNATIVES = 3  # tokens shown beside each token of a path
MAX_BEAMS = 16


@dataclass
class Tree:
    """Candidates by step, best first. Each has its `token`, the index `from` of the candidate before it
    (None at first), the index `parent` of its beam, its probability `p` after that, and its `score`, the sum
    of log-probabilities; it has `ended`, or is `kept` as a beam, or neither. `chosen` are the answer's.

    rows: the weights of each cross-attention (H, N · K, S); row n K + k is of beam k at step n.
    """

    beams: int
    steps: list[list[dict[str, Any]]] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    score: float | None = None  # of the answer, as beam search compares them
    rows: dict[str, Tensor] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"beams": self.beams, "steps": self.steps, "chosen": self.chosen, "score": self.score}


def path(trace: Trace, writer: Any) -> Tree:
    """The tree of one beam: the tokens of the answer, and the other likely ones at each step."""
    tree, total = Tree(1), 0.0
    for id, logits in zip(trace.ids["written"], trace["logits"].float(), strict=True):
        likely = logits.log_softmax(-1)  # (V,)
        ids = [id, *(i for i in likely.topk(min(ALTERNATIVES + 1, len(likely))).indices.tolist() if i != id)]
        ids = sorted(ids[: ALTERNATIVES + 1], key=lambda i: -float(likely[i]))
        before = tree.chosen[-1] if tree.chosen else None
        step = []
        for i, token in zip(ids, writer.tokens(ids), strict=True):
            log = float(likely[i])
            step.append(
                {"token": token, "from": before, "parent": 0, "p": math.exp(log), "score": total + log}
                | {"ended": i == writer.end, "kept": i == id}
            )
        tree.chosen.append(ids.index(id))
        tree.steps.append(step)
        total += float(likely[id])
    return tree


def searches(model: Model) -> bool:
    """Return whether the model writes answers to sources, so that beam search applies."""
    return model.task.has_source


def search(model: Model, input: Any, beams: int) -> Tree:
    """The tree of the beam search that `ask` with `num_beams` runs."""
    if not searches(model):
        raise UserError("this model does not write answers to sources, so there is no beam search")
    if not 2 <= beams <= MAX_BEAMS:
        raise UserError(f"beams={beams}: give a number from 2 to {MAX_BEAMS}")
    task, module = model.task, model.model
    sampling = model.request([], {"num_beams": beams}).sampling
    prompt = task.source_prompt(module, task.split_target(input)[0])
    looks = [m for name, m in trace_names(module) if name.endswith((".cross", ".look"))]
    recorder = Recorder(model, beams, task.end)
    with watch(module, looks) as records, evaluating(module), torch.no_grad():
        logits, state = read_rows(module, [prompt.ids], [prompt.source])  # type: ignore[arg-type, list-item]
        recorder.processor = beam_processor(sampling, [prompt.ids])
        (answers,) = beam_search(
            module.step,  # type: ignore[arg-type]
            logits,
            state,
            beams=beams,
            end=recorder.end,
            max_new_tokens=min(sampling.max_new_tokens, task.context),
            length_penalty=sampling.length_penalty,
            process=recorder.record,
        )
    names = {id(m): name for name, m in trace_names(module)}
    paths = dict(module.named_modules())
    for at, calls in records.items():
        steps = [r["weights"][:, :, -1].expand(beams, -1, -1) for r in calls[: len(recorder.texts)]]
        recorder.tree.rows[names[id(paths[at])]] = torch.stack(steps).flatten(0, 1).transpose(0, 1)
    return recorder.finish(answers[0].tokens, answers[0].score)


class Recorder:
    """Builds a tree while beam search runs."""

    def __init__(self, model: Model, beams: int, end: int | None):
        self.tree, self.end = Tree(beams), NO_TOKEN if end is None else end
        self.processor: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
        self.writer = model.task.output_tokenizer
        self.texts: list[list[tuple[int, ...]]] = []  # the candidates of each step

    def record(self, new: Tensor, texts: Tensor, rows: Tensor) -> Tensor:
        """The `allowed` argument of `beam_search`: gets the scores of the tokens after each text."""
        new = new if self.processor is None else self.processor(new, texts, rows)
        beams = [tuple(text) for text in texts[0].tolist()]
        before = [self.texts[-1].index(text) for text in beams] if self.texts else []
        sums = [self.tree.steps[-1][i]["score"] for i in before] or [0.0] + [-math.inf] * (len(beams) - 1)
        for i in before:
            self.tree.steps[-1][i]["kept"] = True
        scores = torch.tensor(sums, device=new.device)[:, None] + new[0]  # (K, V)
        best, place = scores.flatten().topk(min(2 * self.tree.beams, scores.numel()))
        step, candidates = [], []
        for score, at in zip(best.tolist(), place.tolist(), strict=True):
            if score > -math.inf:
                parent, id = divmod(at, scores.shape[1])
                candidates.append((*beams[parent], id))
                about = {"token": self.writer.tokens([id])[0], "from": before[parent] if before else None}
                about |= {"parent": parent, "p": math.exp(score - sums[parent]), "score": score}
                step.append(about | {"ended": id == self.end, "kept": False})
        self.texts.append(candidates)
        self.tree.steps.append(step)
        return new

    def finish(self, answer: list[int], score: float) -> Tree:
        """The tree, with the path of the answer marked."""
        for n, texts in enumerate(self.texts):
            text = tuple(answer[: n + 1]) if n < len(answer) else (*answer, self.end)
            if n > len(answer) or text not in texts:
                break
            self.tree.chosen.append(texts.index(text))
        self.tree.score = score
        return self.tree

"""How an answer was found: the candidates of every step of beam search, and where each of them looked.

Shapes: K beams, V vocabulary, H heads, S source tokens, N steps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.beam import NOTHING, beam_search
from regard.errors import Mistake
from regard.generate import allowed
from regard.generate import read as read_rows
from regard.run import Model
from regard.tasks import Restore
from regard.tasks.pairs import PairTask
from regard.trace import Trace
from regard.trace.collecting import evaluating, named
from regard.trace.reading import sourced
from regard.watch import watch

BESIDE = 3  # other words beside each of a path
MOST = 16  # beams


@dataclass
class Tree:
    """Candidates by step, best first: each has its `token`, the number `from` of the candidate before it
    (none at first), its beam's number `parent`, its probability `p` after that, and its `score`, the sum of
    log-probabilities; it has `ended`, or is `kept` as a beam, or neither. `chosen` are the answer's.

    rows: of each cross-attention (H, N · K, S), where beam k looked to write its token of step n: n K + k.
    """

    beams: int
    steps: list[list[dict[str, Any]]] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    score: float | None = None  # of the whole answer, as beam search compares them
    rows: dict[str, Tensor] = field(default_factory=dict)

    def told(self) -> dict[str, Any]:
        return {"beams": self.beams, "steps": self.steps, "chosen": self.chosen, "score": self.score}


def path(trace: Trace, writer: Any) -> Tree:
    """What was written, word after word, and what else was likely: one beam."""
    found, sum = Tree(1), 0.0
    for id, logits in zip(trace.ids["written"], trace["logits"].float(), strict=True):
        likely = logits.log_softmax(-1)  # (V,)
        ids = [id, *(i for i in likely.topk(min(BESIDE + 1, len(likely))).indices.tolist() if i != id)]
        ids = sorted(ids[: BESIDE + 1], key=lambda i: -float(likely[i]))
        before = found.chosen[-1] if found.chosen else None
        step = []
        for i, token in zip(ids, writer.tokens(ids), strict=True):
            log = float(likely[i])
            step.append(
                {"token": token, "from": before, "parent": 0, "p": math.exp(log), "score": sum + log}
                | {"ended": i == writer.end, "kept": i == id}
            )
        found.chosen.append(ids.index(id))
        found.steps.append(step)
        sum += float(likely[id])
    return found


def searches(model: Model) -> bool:
    """Does it write answers to sources, which can be searched for?"""
    return isinstance(model.task, PairTask | Restore)


def search(model: Model, given: Any, beams: int) -> Tree:
    """The tree of a beam search for an answer, as `ask` with `num_beams` would make it."""
    if not searches(model):
        raise Mistake("this model does not write answers to sources; there is no beam to search with")
    if not 2 <= beams <= MOST:
        raise Mistake(f"beams={beams}: give a number from 2 to {MOST}")
    task, module = model.task, model.model
    sampling = model._chosen({"num_beams": beams})["sampling"]
    source, begin, _ = sourced(model, given)
    looks = [m for name, m in named(module) if name.endswith((".cross", ".look"))]
    growing = Growing(model, beams, task.end)
    with evaluating(module), torch.no_grad(), watch(module, looks) as seen:
        logits, state = read_rows(module, [[begin]], [source])  # type: ignore[arg-type]
        growing.change = allowed(sampling, [[begin]])
        (answers,) = beam_search(
            module.step,  # type: ignore[arg-type]
            logits,
            state,
            beams=beams,
            end=growing.end,
            max_new_tokens=min(sampling.max_new_tokens, module.config.context),  # type: ignore[union-attr]
            length_penalty=sampling.length_penalty,
            allowed=growing.see,
        )
    names = {id(m): name for name, m in named(module)}
    paths = dict(module.named_modules())
    for at, records in seen.items():
        every = [r["weights"][:, :, -1].expand(beams, -1, -1) for r in records[: len(growing.texts)]]
        growing.tree.rows[names[id(paths[at])]] = torch.stack(every).flatten(0, 1).transpose(0, 1)
    return growing.ended(answers[0].tokens, answers[0].score)


class Growing:
    """A tree while beam search is under way."""

    def __init__(self, model: Model, beams: int, end: int | None):
        self.tree, self.end = Tree(beams), NOTHING if end is None else end
        self.change: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
        self.writer = getattr(model.task, "writer", model.task.tokenizer)
        self.texts: list[list[tuple[int, ...]]] = []  # of the candidates, by step

    def see(self, new: Tensor, texts: Tensor, rows: Tensor) -> Tensor:
        """`allowed` of `beam_search`: told what may follow each of the texts, before that is weighed."""
        new = new if self.change is None else self.change(new, texts, rows)
        beams = [tuple(text) for text in texts[0].tolist()]
        before = [self.texts[-1].index(text) for text in beams] if self.texts else []
        sums = [self.tree.steps[-1][i]["score"] for i in before] or [0.0] + [-math.inf] * (len(beams) - 1)
        for i in before:
            self.tree.steps[-1][i]["kept"] = True
        scores = torch.tensor(sums, device=new.device)[:, None] + new[0]  # (K, V)
        best, place = scores.flatten().topk(min(2 * self.tree.beams, scores.numel()))
        step, found = [], []
        for score, at in zip(best.tolist(), place.tolist(), strict=True):
            if score > -math.inf:
                parent, id = divmod(at, scores.shape[1])
                found.append((*beams[parent], id))
                told = {"token": self.writer.tokens([id])[0], "from": before[parent] if before else None}
                told |= {"parent": parent, "p": math.exp(score - sums[parent]), "score": score}
                step.append(told | {"ended": id == self.end, "kept": False})
        self.texts.append(found)
        self.tree.steps.append(step)
        return new

    def ended(self, answer: list[int], score: float) -> Tree:
        """With the way to the answer marked."""
        for n, texts in enumerate(self.texts):
            text = tuple(answer[: n + 1]) if n < len(answer) else (*answer, self.end)
            if n > len(answer) or text not in texts:
                break
            self.tree.chosen.append(texts.index(text))
        self.tree.score = score
        return self.tree

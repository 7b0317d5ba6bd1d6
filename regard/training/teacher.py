"""Distillation: a model learns from others, its teachers.

Where a task writes a text for each source, the teachers' answers to the training sources become the targets
(sequence-level knowledge distillation, Kim & Rush 2016, section 3.2). Several teachers answer as one, by the
mean of their probabilities (Freitag et al. 2017). Elsewhere their probabilities are learned, step by step:
see `Objective.distill`.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from regard.data import Corpus
from regard.errors import UserError
from regard.runs.ensemble import ensemble
from regard.runs.layout import ANSWERS
from regard.runs.load import load
from regard.runs.model import Model
from regard.tasks import TASKS, Task
from regard.training import distributed
from regard.training.objective import Objective

AT_ONCE = 2048  # sources that are answered between two writes


def load_teachers(paths: Sequence[str], task: str, device: torch.device) -> list[Model]:
    models = [load(path, device) for path in paths]
    for path, model in zip(paths, models, strict=True):
        if (other := model.task.config.name) != task:
            raise UserError(f"--teacher {path}: its task is {other}; give a model that was trained to {task}")
    return models


def check_teachable(task: type[Task], name: str) -> None:
    if task.learns_from is None:
        names = ", ".join(name for name, (other, _) in TASKS.items() if other.learns_from)
        raise UserError(f"--teacher: {name} can't learn from another model; these can: {names}")


def learn_probabilities(objective: Objective, paths: Sequence[str], task: Task, device: torch.device) -> None:
    """Make the teachers' probabilities what is learned, from now on."""
    if "labels" in vars(task.config) and not task.config.labels:
        raise UserError("--teacher: a score has no probabilities to learn; classes have")
    for path, teacher in zip(paths, load_teachers(paths, task.config.name, device), strict=True):
        for (what, theirs), ours in zip(facts(teacher.task).items(), facts(task).values(), strict=True):
            if theirs != ours:
                raise UserError(f"--teacher {path}: it has another {what} than the student; give it the same")
        if (context := teacher.task.context) < task.context:
            raise UserError(
                f"--teacher {path}: its context is {context}, the student's {task.context}; "
                f"set model.context={context}"
            )
        objective.teachers = [*objective.teachers, teacher.model.requires_grad_(False).eval()]


def facts(task: Task) -> dict[str, object]:
    """What a teacher must share with its student."""
    tokenizers = [t and t.digest for t in (task.tokenizer, task.target_tokenizer)]
    names = {"set of classes": "labels", "size of images": "size", "number of channels": "channels"}
    return {"vocabulary": tokenizers} | {k: getattr(task.config, v, None) for k, v in names.items()}


def learn_answers(
    folder: Path, paths: Sequence[str], task: Task, corpus: Corpus, device: torch.device
) -> None:
    """Put the teachers' answers to its sources into the corpus; all are kept in the run's folder."""
    sources = corpus.train.sources
    answers = read_answers(folder, len(sources))
    if distributed.all_max(len(answers) < len(sources))[0]:
        models = load_teachers(paths, task.config.name, device)
        teacher = models[0] if len(models) == 1 else ensemble(models)
        answer_sources(folder, teacher, sources, [row for row in range(len(sources)) if row not in answers])
        distributed.barrier()  # all have written theirs
        answers = read_answers(folder, len(sources))
    corpus.train, replaced = task.learn_answers(corpus.train, [answers[row] for row in range(len(sources))])
    names = " and ".join(str(path) for path in paths)
    corpus.notes.append(f"{replaced:,} of {len(sources):,} targets are what {names} answered ({ANSWERS})")


def answer_sources(folder: Path, teacher: Model, sources: Sequence[str], rows: Sequence[int]) -> None:
    """Write the answers to these sources to a file of this process."""
    mine, began = distributed.local_rows(rows), time.monotonic()
    with (folder / ANSWERS.replace("*", str(distributed.RANK))).open("a", encoding="utf-8") as file:
        file.write("\n")  # what a killed process left of a line ends here
        for start in range(0, len(mine), AT_ONCE):
            part = mine[start : start + AT_ONCE]
            answers = teacher.answers([sources[row] for row in part])
            for row, (answer, *_) in zip(part, answers, strict=True):
                file.write(json.dumps({"row": row, "answer": answer.text}, ensure_ascii=False) + "\n")
            file.flush()
            done = start + len(part)
            left = (time.monotonic() - began) * (len(mine) - done) / done
            if distributed.RANK == 0:
                print(f"teachers: {done:,} of {len(mine):,} answers, {left:.0f} s left", file=sys.stderr)


def read_answers(folder: Path, count: int) -> dict[int, str]:
    """The answers that are in a run's folder, by row; lines that are not whole are left out."""
    answers = {}
    for path in sorted(folder.glob(ANSWERS)):
        for line in path.read_text("utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
                row, answer = entry["row"], entry["answer"]
            except (ValueError, KeyError, TypeError):
                continue
            if isinstance(answer, str) and type(row) is int and 0 <= row < count:
                answers[row] = answer
    return answers

"""Distillation: a model learns what others, its teachers, answer.

Where a task writes texts, the teachers' answers to the training sources become the targets (sequence-level
knowledge distillation, Kim & Rush 2016, section 3.2). Several teachers answer as one, by the mean of their
probabilities (Freitag et al. 2017).
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
from regard.tasks import Task
from regard.training import distributed

AT_ONCE = 2048  # sources that are answered between two writes


def load_teacher(paths: Sequence[str], task: str, device: torch.device) -> Model:
    """The teachers as one model."""
    models = [load(path, device) for path in paths]
    for path, model in zip(paths, models, strict=True):
        if (other := model.task.config.name) != task:
            raise UserError(f"--teacher {path}: its task is {other}; give a model that was trained to {task}")
    return models[0] if len(models) == 1 else ensemble(models)


def check_teachable(task: type[Task], name: str) -> None:
    if not task.takes_answers:
        raise UserError(f"--teacher: {name} can't learn from answers; translate and chat can")


def learn_answers(
    folder: Path, paths: Sequence[str], task: Task, corpus: Corpus, device: torch.device
) -> None:
    """Put the teachers' answers to its sources into the corpus; all are kept in the run's folder."""
    sources = corpus.train.sources
    answers = read_answers(folder, len(sources))
    if distributed.all_max(len(answers) < len(sources))[0]:
        teacher = load_teacher(paths, task.config.name, device)
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

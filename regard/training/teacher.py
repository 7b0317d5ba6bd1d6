"""Distillation: a model learns from others, its teachers.

If a task writes a text for each source, the teachers' answers to the training sources become the targets
(sequence-level knowledge distillation, Kim & Rush 2016, section 3.2). Several teachers answer as one, with
the mean of their probabilities (Freitag et al. 2017). Other tasks learn the probabilities, step by step: see
`Objective.distill`.
"""

import hashlib
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.data import Corpus
from regard.errors import UserError
from regard.files.atomic import is_missing
from regard.files.regular import list_matching
from regard.files.untrusted import parse_json
from regard.runs.ensemble import ensemble
from regard.runs.layout import ANSWERS, write_text
from regard.runs.load import load
from regard.runs.model import Model
from regard.tasks import TASKS, Task
from regard.training import distributed
from regard.training.config import TrainConfig
from regard.training.objective import Objective
from regard.training.origins import check_origins

AT_ONCE = 2048  # sources that are answered between two writes, at most
FIRST, PART_SECONDS = 64, 5.0  # seconds, if the time is limited: at first, and then as long
TEACHERS_SHARE = 0.5  # of the time of a run, at most


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


def learn_probabilities(
    objective: Objective, folder: Path, paths: Sequence[str], task: Task, device: torch.device
) -> None:
    """Train on the teachers' probabilities from now on."""
    if "labels" in vars(task.config) and not task.config.labels:
        raise UserError("--teacher: a score has no probabilities to learn; classes have")
    check_origins(folder, "teacher", paths)
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
    """The properties that a teacher must share with its student."""
    tokenizers = [t and t.digest for t in (task.tokenizer, task.target_tokenizer)]
    names = {"set of classes": "labels", "size of images": "size", "number of channels": "channels"}
    return {"vocabulary": tokenizers} | {k: getattr(task.config, v, None) for k, v in names.items()}


def learn_answers(
    folder: Path, paths: Sequence[str], task: Task, corpus: Corpus, device: torch.device, config: TrainConfig
) -> TrainConfig:
    """Replace the corpus's targets by the teachers' answers, which are kept in the run's folder.

    Return the settings of the student, which has the remaining time of train.minutes. Teachers take a part
    of the time at most; sources that they have not answered by then keep their targets.
    """
    sources, minutes = corpus.train.sources, config.minutes
    limit = math.inf if minutes is None else TEACHERS_SHARE * 60 * minutes
    answers = read_answers(folder, sources)
    if distributed.all_max(len(answers) < len(sources) and read_seconds(folder) < limit)[0]:
        check_origins(folder, "teacher", paths)
        models = load_teachers(paths, task.config.name, device)
        teacher = models[0] if len(models) == 1 else ensemble(models)
        missing = [row for row in range(len(sources)) if row not in answers]
        if limit < math.inf:  # the answered ones represent all
            missing = np.random.default_rng(0).permutation(missing).tolist()
        answer_sources(folder, teacher, sources, missing, limit - read_seconds(folder))
        distributed.barrier()  # all processes have written their answers
        answers = read_answers(folder, sources)
    corpus.train, replaced = task.learn_answers(
        corpus.train, [answers.get(row, "") for row in range(len(sources))]
    )
    names = " and ".join(str(path) for path in paths)
    note = f"{replaced:,} of {len(sources):,} targets are what {names} answered ({ANSWERS})"
    if len(answers) < len(sources):
        note += f"; for more there was no time, of which teachers have {TEACHERS_SHARE:.0%} at most"
    corpus.notes.append(note)
    if minutes is None:
        return config
    left = max(0.5 * (1 - TEACHERS_SHARE) * minutes, minutes - read_seconds(folder) / 60)
    return replace(config, minutes=left)


def answer_sources(
    folder: Path, teacher: Model, sources: Sequence[str], rows: Sequence[int], limit: float = math.inf
) -> None:
    """Write the answers to these sources to this process's file, as many as fit into the seconds."""
    mine, began, done = distributed.local_rows(rows), time.monotonic(), 0
    size = AT_ONCE if limit == math.inf else FIRST
    path = folder / ANSWERS.replace("*", str(distributed.RANK))
    if is_missing(path):
        write_text(path, "")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n")  # ends a line that a killed process left incomplete
        while done < len(mine) and (since := time.monotonic()) - began < limit:
            part = mine[done : done + size]
            answers = teacher.answers([sources[row] for row in part])
            each = (time.monotonic() - since) / len(part)
            for row, (answer, *_) in zip(part, answers, strict=True):
                entry = {"row": row, "source": source_digest(sources[row]), "answer": answer.text}
                entry["seconds"] = round(each, 6)
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")
            file.flush()
            done += len(part)
            took = time.monotonic() - began
            left = min(limit - took, took * (len(mine) - done) / done)
            if limit < math.inf:
                size = int(min(AT_ONCE, max(1, done / max(took, 1e-9) * min(PART_SECONDS, left))))
            if distributed.RANK == 0:
                print(f"teachers: {done:,} of {len(mine):,} answers, {left:.0f} s left", file=sys.stderr)


def read_answers(folder: Path, sources: Sequence[str]) -> dict[int, str]:
    """Read the answers to these sources in a run's folder, by row; answers to other sources and incomplete
    lines are left out. Earlier versions did not write the sources."""
    return {
        entry["row"]: entry["answer"]
        for path in list_matching(folder, ANSWERS)
        for entry in read_entries(path)
        if entry["row"] < len(sources) and entry["source"] in (None, source_digest(sources[entry["row"]]))
    }


def source_digest(source: str) -> str:
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def read_seconds(folder: Path) -> float:
    """The time in which the teachers answered; processes work at the same time."""
    return max(
        (sum(e["seconds"] for e in read_entries(path)) for path in list_matching(folder, ANSWERS)),
        default=0.0,
    )


def read_entries(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text("utf-8", errors="replace").splitlines():
        try:
            entry = parse_json(line)
            row, answer, seconds = entry["row"], entry["answer"], entry.get("seconds", 0.0)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        if isinstance(answer, str) and type(row) is int and row >= 0 and isinstance(seconds, int | float):
            yield {"row": row, "source": entry.get("source"), "answer": answer, "seconds": seconds}

"""Score a model on held-out data."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from regard.data.reading import read_together, record_reading
from regard.data.splitting import choose_test
from regard.draw.terminal import progress
from regard.errors import UserError
from regard.runs import recipe
from regard.runs.layout import RECIPE
from regard.tasks import Task, targets
from regard.tasks.loss import IGNORED
from regard.tasks.metrics import count_confusions, sign_test
from regard.tasks.text_metrics import compare

if TYPE_CHECKING:
    from regard.runs.model import Model

TOKENS_AT_ONCE = 8192


def score_model(
    model: "Model",
    paths: Sequence[str],
    against: "Model | None",
    by_position: bool,
    details: bool,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Return the metrics on all data of the files, and of the answers if the task has references.

    `by_position` adds the mean loss at each position of the context, `details` the number of rows and the
    scores of each class.
    """
    task = model.task
    if not paths:
        raise UserError("there is nothing to score on; give at least one file or folder")
    if (samples := model.request([], options).samples) > 1:
        raise UserError(f"num_return_sequences={samples}: only one answer to each text can be scored")
    if against is not None:
        check_comparable(task, against.task)
    with read_together(usual_columns=usual_columns(model)) as reading:
        data = task.held_out(choose_test(paths, task.has_class_folders, task.has_media))
    record_reading(reading)
    if by_position:
        return evaluate_positions(model, data)
    if (scores := task.score(model.model, data)) is not None:
        return ({"rows": task.count_scored(data)} if details else {}) | scores
    scores = evaluate(model, data)
    if not task.has_references:
        return ({task.scored_unit: task.count_scored(data)} if details else {}) | scores
    answers = answer_all(model, data.sources, options)
    scores = ({"rows": len(answers)} if details else {}) | scores | task.score_answers(answers, data.targets)
    if details and task.counted_classes:
        sides = (
            [name for text in side for name in task.classes_of(text)] for side in (answers, data.targets)
        )
        scores |= count_confusions(task.counted_classes, *sides)
    if against is not None:
        scores |= compare_answers(task, answers, answer_all(against, data.sources, options), data.targets)
    return scores


def compare_answers(
    task: Task, answers: Sequence[str], other_answers: Sequence[str], references: Sequence[Any]
) -> dict[str, Any]:
    """Test whether answers are better than another model's by more than chance: texts by BLEU and chrF, the
    others (classes, tags, spans, scores) by the rows in which only one model is right, or nearer."""
    if task.generates:
        return compare(answers, other_answers, references)
    scores = {
        f"{name}_against": value for name, value in task.score_answers(other_answers, references).items()
    }
    ours, theirs = (
        [task.rate_answer(*row) for row in zip(side, references, strict=True)]
        for side in (answers, other_answers)
    )
    if task.class_names:
        scores = {"accuracy_against": fmean(theirs)} | scores
    return scores | sign_test(ours, theirs)


def usual_columns(model: "Model") -> dict[str, str]:
    """Return the table columns that a run was trained on, if they were chosen."""
    path = None if model.folder is None else Path(model.folder) / RECIPE
    section = recipe.read_file(path)["data"] if path is not None and path.is_file() else {}
    columns = section.get("columns")
    return {name: str(column) for name, column in columns.items()} if isinstance(columns, dict) else {}


def check_comparable(task: Task, other: Task) -> None:
    """Raise UserError unless the answers of both tasks can be compared with the same references."""
    names = task.config.name, other.config.name
    if not task.has_references:
        raise UserError(
            f"--against compares answers with references; this model's task, {names[0]}, has none"
        )
    both_write = all(t.has_references and t.generates for t in (task, other))
    if names[0] != names[1] and not (both_write and task.reads == other.reads):
        raise UserError(
            f"--against: a model for {names[1]} does not answer what a model for {names[0]} is asked; give "
            f"another one for {names[0]}"
        )


def evaluate(model: "Model", data: Any) -> dict[str, float]:
    """Return the task's metrics over all of the data."""
    task, device = model.task, next(model.model.parameters()).device
    sums, count = torch.zeros(1, dtype=torch.float64), 0
    with torch.inference_mode(), progress("scoring", len(data)) as advance:
        for batch in task.evaluation_batches(data, TOKENS_AT_ONCE):
            sums = sums + task.measure(model.model, *(t.to(device) for t in batch)).cpu()
            count += targets(batch)
            advance(task.batch_length(batch))
    loss, *more = sums.tolist()
    return task.metrics(loss, count, data, *more)


def evaluate_positions(model: "Model", data: Any) -> dict[str, Any]:
    """Return the metrics, with the mean loss of the predictions after one token of context, after two, ..."""
    task, device = model.task, next(model.model.parameters()).device
    sums, counts = torch.zeros(2, task.context, dtype=torch.float64)
    with torch.inference_mode(), progress("scoring", len(data)) as advance:
        for batch in task.evaluation_batches(data, TOKENS_AT_ONCE):
            losses = task.token_losses(model.model, *(t.to(device) for t in batch)).double().cpu()
            T = losses.shape[1]
            sums[:T] += losses.sum(0)
            counts[:T] += (batch[-1] != IGNORED).sum(0)
            advance(task.batch_length(batch))
    positions = (sums / counts)[counts > 0].tolist()
    return task.metrics(float(sums.sum()), int(counts.sum()), data) | {"loss_by_position": positions}


def loss_table(losses: Sequence[float]) -> list[tuple[str, float]]:
    """Summarize the mean loss at positions 1, 2, 3-4, 5-8 and so on in a short table."""
    rows, first = [], 1
    while first <= len(losses):
        last = min(len(losses), first if first < 3 else 2 * (first - 1))
        name = str(first) if first == last else f"{first}-{last}"
        rows.append((name, fmean(losses[first - 1 : last])))
        first = last + 1
    return rows


def answer_all(model: "Model", sources: Sequence[str], options: dict[str, Any]) -> list[str]:
    answers: list[str] = []
    size = model.task.ask_batch_size
    with progress("answering", len(sources)) as advance:
        for i in range(0, len(sources), size):
            answers += model.ask(sources[i : i + size], **options)
            advance(len(answers) - i)
    return answers

"""How well a model does on held-out data."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from regard.draw.terminal import progress
from regard.errors import UserError
from regard.tasks import targets
from regard.tasks.metrics import compare

if TYPE_CHECKING:
    from regard.runs.model import Model

TOKENS_AT_ONCE = 8192


def score_model(
    model: "Model", paths: Sequence[str], against: "Model | None", options: dict[str, Any]
) -> dict[str, Any]:
    """Metrics of all data in the files; and of the answers, where these have references."""
    task = model.task
    if not paths:
        raise UserError("there is nothing to score on; give at least one file or folder")
    if (samples := model.request([], options).samples) > 1:
        raise UserError(f"num_return_sequences={samples}: only one answer to each text can be scored")
    data = task.held_out(paths)
    if against is not None and not task.has_references:
        raise UserError("--against compares answers with references; this model's task has none")
    if (scores := task.score(model.model, data)) is not None:
        return scores
    scores = evaluate(model, data)
    if not task.has_references:
        return scores
    answers = answer_all(model, data.sources, options)
    scores |= task.score_answers(answers, data.targets)
    if against is not None:
        scores |= compare(answers, answer_all(against, data.sources, options), data.targets)
    return scores


def evaluate(model: "Model", data: Any) -> dict[str, float]:
    """The task's metrics over all of the data."""
    task, device = model.task, next(model.model.parameters()).device
    sums, count = torch.zeros(1, dtype=torch.float64), 0
    with torch.inference_mode(), progress("scoring", len(data)) as advance:
        for batch in task.evaluation_batches(data, TOKENS_AT_ONCE):
            sums = sums + task.measure(model.model, *(t.to(device) for t in batch)).cpu()
            count += targets(batch)
            advance(task.batch_length(batch))
    loss, *more = sums.tolist()
    return task.metrics(loss, count, data, *more)


def answer_all(model: "Model", sources: Sequence[str], options: dict[str, Any]) -> list[str]:
    answers: list[str] = []
    size = model.task.ask_batch_size
    with progress("answering", len(sources)) as advance:
        for i in range(0, len(sources), size):
            answers += model.ask(sources[i : i + size], **options)
            advance(len(answers) - i)
    return answers
